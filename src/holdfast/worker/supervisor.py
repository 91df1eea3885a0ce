"""`Supervisor`: the worker process. It claims, admits, renews and settles jobs in batches; its children run them.

The loop runs on one thread and never blocks: the `Exchanger` talks to the engine, the `Keeper` renews leases and the
`Caretaker` does what is not urgent, each on its own thread; the `ProcessPool` manages the children. Every step of the
loop belongs to one object with its own state: see the attributes.
"""

import itertools
import logging
import os
import selectors
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.clock import from_us
from holdfast.errors import HoldfastError
from holdfast.execution.retry import RetryPolicy
from holdfast.handlers import HandlerRegistry
from holdfast.metrics import End
from holdfast.metrics.levels import WorkerLevels
from holdfast.queues.contract import Engine, new_session
from holdfast.rates import Rate
from holdfast.state.breakers import Breakers, Rule
from holdfast.units import format_duration
from holdfast.values import JobLease, RunningJob, StopOrder, WorkerReport
from holdfast.worker.admission import Admission, Admitted
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.caretaker import BEAT_EVERY_S, Caretaker
from holdfast.worker.circuits import DEFAULT_RULE, QueueCircuits
from holdfast.worker.claim_cycle import ClaimCycle
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.exchanger import EngineAnswer, Exchanger
from holdfast.worker.executors.pool import LINGER_S, ProcessPool
from holdfast.worker.executors.process import Flight, Program
from holdfast.worker.executors.resident_memory import resident_bytes
from holdfast.worker.fencing import Fencing
from holdfast.worker.holdings import SETTLE_LINGER_S, Holdings
from holdfast.worker.keeper import Keeper
from holdfast.worker.live_output import LiveOutputs
from holdfast.worker.mailbox import Mailbox
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pace import Pace
from holdfast.worker.reporting import Reporter
from holdfast.worker.results import ResultHandler
from holdfast.worker.round_robin import RoundRobin
from holdfast.worker.sessions import SessionFile, Unsupported
from holdfast.worker.shutdown import FLUSH_S, Shutdown
from holdfast.worker.systemd import Notifier, SystemdStatus
from holdfast.worker.takeover import Takeover
from holdfast.worker.throttle import Throttle

log = logging.getLogger("holdfast.worker")

EXCHANGE_S: Final = 0.004
LIVE_WITHIN_S: Final = 10.0
_JOBS_SHOWN: Final = 100


class Supervisor:
    """One worker. Call `run` on the main thread, and `stop` from any thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        program: Program,
        registry: HandlerRegistry,
        admission: Admission,
        retry: RetryPolicy,
        copies: DeadLetterCopies,
        reporter: Reporter,
        options: WorkerOptions,
        version: str,
        limits: Mapping[str, Rate] | None = None,
        breaker: Rule = DEFAULT_RULE,
        notifier: Notifier | None = None,
        session_dir: Path | None = None,
    ) -> None:
        self._session = new_session()
        self._session_dir = session_dir
        self._session_file: SessionFile | None = None
        self._takeover: Takeover | None = None
        self.id = self._session.hex()
        self.options = options
        self.reporter = reporter
        self.backoff = EngineBackoff(engine.clock)
        self._circuits = QueueCircuits(
            Breakers(engine.state),
            engine.clock,
            breaker,
            on_open=lambda queue: self._mailbox.post(lambda: reporter.circuit_open(queue)),
        )
        self.backoff.subscribe(lambda problem: self._circuits.answered() if problem is None else None)
        self._unadmitted: Sequence[JobLease] = ()
        self.turned_at = time.monotonic()
        self._engine = engine
        self._registry = registry
        self._version = version
        self._started_at = from_us(engine.clock.now_us())
        self._numbers = itertools.count(1)
        self._notifier = notifier or Notifier.from_environment({})
        self._systemd = SystemdStatus(self._notifier, is_ready=lambda: bool(self._pool.ready), status=self._status)
        self._selector = selectors.DefaultSelector()
        self._mailbox = Mailbox(self._selector)
        self._keeper = Keeper(
            engine,
            on_cancel=lambda lease: self._fencing.on_cancel(lease),
            on_lost=lambda lease: self._fencing.on_lost(lease),
        )
        self._maintenance = Maintenance(
            engine, copies, reap_interval_s=options.reap_interval_s, on_reaped=reporter.reaped
        )
        self._caretaker = self._make_caretaker()
        self._holdings = Holdings(self._keeper, copies, clock=engine.clock, reporter=reporter)
        self._pace = Pace(is_shared=len(options.queues) > 1)
        self._pool = self._make_pool(program, retry)
        self._fencing: Fencing = Fencing(self._keeper, self._holdings, self._pool, self._mailbox)
        self._dispatcher = self._make_dispatcher()
        self._claim_cycle = self._make_claim_cycle(admission, limits or {})
        self._shutdown = Shutdown(
            options,
            pool=self._pool,
            claim_cycle=self._claim_cycle,
            backoff=self.backoff,
            caretaker=self._caretaker,
            notifier=self._notifier,
        )

    def _make_caretaker(self) -> Caretaker:
        return Caretaker(
            self._engine,
            self._maintenance,
            LiveOutputs(self._engine, lambda: self._pool.flights()),
            self._circuits,
            worker_id=self.id,
            report=self.report,
            # Only the jobs that the report lists: otherwise, a job that is missing from the report would be reported
            # only with a later heartbeat.
            running=lambda: len(self._pool.flights()),
            on_order=self.stop,
        )

    def _make_pool(self, program: Program, retry: RetryPolicy) -> ProcessPool:
        results = ResultHandler(self._holdings, pace=self._pace, retry=retry, on_progress=self._caretaker.progressed)
        return ProcessPool(program, self.options, listener=results, selector=self._selector)

    def _make_dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self._holdings,
            pool=self._pool,
            pace=self._pace,
            fencing=self._fencing,
            queues=tuple(self.options.queues),
            crash_limit=self._engine.policy.crash_limit,
        )

    def _make_claim_cycle(self, admission: Admission, limits: Mapping[str, Rate]) -> ClaimCycle:
        throttle = Throttle(
            self._engine.state,
            limits,
            self._engine.clock,
            poll_interval_s=self.options.poll_interval_s,
            # A burst ends when every queue is empty.
            skips_empty=not self.options.burst,
        )
        exchanger = Exchanger(
            self._engine,
            RoundRobin(self.options.queues),
            session=self._session,
            admission=admission,
            backoff=self.backoff,
            throttle=throttle,
            circuits=self._circuits,
            recalls=not self.options.burst,
            on_claimed=self._hold,
            on_answer=lambda answer: self._mailbox.post(lambda: self._take(answer)),
            fence_at=self._keeper.fence_at,
        )
        return ClaimCycle(
            exchanger,
            holdings=self._holdings,
            dispatcher=self._dispatcher,
            reporter=self.reporter,
            options=self.options,
            limited=limits,
        )

    # These may be called from any thread.

    def stop(self, order: StopOrder = StopOrder.DRAIN) -> None:
        """Claim no more jobs and exit: after finishing the running jobs, or after releasing them."""
        self._mailbox.post(self._shutdown.drain if order is StopOrder.DRAIN else self._shutdown.hurry)

    @property
    def is_draining(self) -> bool:
        return self._shutdown.is_begun

    @property
    def running(self) -> int:
        """The number of running jobs."""
        return self._pool.running

    @property
    def unsettled(self) -> int:
        """The number of jobs that were dropped or whose settlement the engine never answered."""
        return self.reporter.unsettled

    @property
    def undelivered(self) -> int:
        """The number of settlements that the engine has not answered yet."""
        return len(self._holdings.unsent) + self._claim_cycle.undelivered

    def liveness(self) -> str | None:
        """The problem with the loop, if it does not run. Does not use the engine."""
        is_live = time.monotonic() - self.turned_at < LIVE_WITHIN_S
        return None if is_live else "the worker loop is not responding"

    def readiness(self) -> list[tuple[str, str | None]]:
        """The checks of `/readyz`, each with its problem if it fails."""
        since = self._shutdown.unavailable_since
        outage = None if since is None else f"unavailable for {format_duration(time.monotonic() - since)}"
        has_children = bool(self._pool.ready) or self.is_draining
        children = None if has_children else (self._pool.problem or "none is ready yet")
        return [
            ("engine", outage or self._check_engine()),
            ("executors", children),
            ("draining", "the worker is shutting down" if self.is_draining else None),
        ]

    def _check_engine(self) -> str | None:
        try:
            self._engine.check()
        except HoldfastError as problem:
            return str(problem)
        return None

    def report(self) -> WorkerReport:
        """The report that this worker sends with each heartbeat."""
        flights = self._pool.flights()
        now, wall = time.monotonic(), self._engine.clock.now_us()
        jobs = tuple(
            RunningJob(
                id=flight.lease.id,
                job=flight.message.job,
                queue=flight.lease.queue,
                started_at=from_us(wall - int((now - flight.started_at) * 1e6)),
            )
            for flight in flights[:_JOBS_SHOWN]
        )
        pids = [child.guarded.pid for child in self._pool.children if child.guarded.pid is not None]
        return WorkerReport(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            started_at=self._started_at,
            queues=tuple(name if weight == 1 else f"{name}:{weight}" for name, weight in self.options.queues.items()),
            handlers=self._registry.keys(),
            processes=self.options.processes,
            slots=self.options.slots,
            beat_every_s=BEAT_EVERY_S,
            draining=self.is_draining,
            jobs=jobs,
            running=len(flights),
            done=self.reporter.done,
            failed=self.reporter.failed,
            memory_bytes=resident_bytes() + sum(map(resident_bytes, pids)),
        )

    def levels(self) -> WorkerLevels:
        """The worker's gauges."""
        # The caretaker uses the engine even when there is nothing to claim or settle.
        answered_at = max(self.backoff.answered_at, self._caretaker.answered_at)
        return WorkerLevels(
            running=self.running,
            slots=self.options.slots,
            processes_ready=len(self._pool.ready),
            verdicts_undelivered=self.undelivered,
            engine_unheard_s=max(0.0, time.monotonic() - answered_at),
        )

    def _status(self) -> str:
        return f"{self.running} running, {self.reporter.done} done, {self.reporter.failed} failed"

    # The loop.

    def run(self) -> None:
        """Process jobs until stopped, until no job is due (`burst`), or until `max_jobs` jobs have run."""
        self._begin_session()
        self._caretaker.start()
        try:
            while not self._is_over():
                self._turn()
        finally:
            self._close()
        if self._shutdown.failure is not None:
            raise self._shutdown.failure

    def _begin_session(self) -> None:
        """Lock the session file, if there can be one. Not before `run`: a program may fork before it runs a worker."""
        if self._session_dir is None or sys.platform != "linux":
            return
        try:
            self._session_file = self._pool.session = SessionFile(self._session_dir, self._session)
        except (OSError, ValueError, Unsupported) as problem:
            log.warning(
                "dead-worker detection is off: %s; if this worker dies, its jobs wait for their leases to expire",
                problem,
            )
            return
        self._takeover = Takeover(
            self._session_file,
            self._engine,
            expire=lambda session: self._engine.expire_leases([session]),
            reap=lambda: self._maintenance.reap("of a dead worker"),
        )
        self._takeover.start()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            key.data(events)
        self._mailbox.open()
        now = self.turned_at = time.monotonic()
        self._pool.tend(now, listens=not self._claim_cycle.is_exchanging)
        self._pace.learn()
        self._fencing.enforce(now)
        self._shutdown.tend(now)
        if self.is_draining:
            self._dispatcher.release_all()
        else:
            self._dispatcher.dispatch(now)
        self._claim_cycle.ask()
        self._systemd.turn(now)

    def _patience(self) -> float:
        """The seconds that the loop may wait for an event before it has to check a deadline."""
        if self._holdings.backlog or (self._holdings.unsent and not self._claim_cycle.is_asking):
            return SETTLE_LINGER_S
        if self._pool.lingers:
            return EXCHANGE_S if self._claim_cycle.is_exchanging else LINGER_S
        if any(child.unstarted for child in self._pool.children):
            return 0.01
        idle = min(0.5, self._notifier.watchdog_interval_s or 0.5)
        return 0.1 if self._holdings.flights or self.is_draining or not self._pool.ready else idle

    def _is_over(self) -> bool:
        if self._claim_cycle.is_asking or self._holdings.unsent or self._holdings.flights:
            return self._shutdown.has_waited_enough
        if self.is_draining:
            return not self._pool.children
        is_enough = 0 < self.options.max_jobs <= self.reporter.jobs_done
        if is_enough or (self.options.burst and self._claim_cycle.is_dry):
            self._shutdown.drain()
        return False

    def _close(self) -> None:
        if self._takeover is not None:
            self._takeover.stop()
        self._pool.close()
        self._keeper.close(FLUSH_S)
        self._claim_cycle.close(FLUSH_S)
        self._caretaker.close(FLUSH_S)
        self._holdings.give_up()
        self.reporter.ended(End.UNSETTLED, self._unadmitted)
        if self._takeover is not None:
            self._takeover.join(FLUSH_S)
        if self._session_file is not None:
            self._session_file.close(is_finished=not self.unsettled)
        self._selector.close()
        self._mailbox.close()

    def _hold(self, leases: Sequence[JobLease]) -> None:
        """Start to renew these leases. The exchanger calls it on its thread, before the jobs are admitted."""
        self._unadmitted = leases
        self._keeper.hold(leases)
        self.reporter.fetched(leases[0].queue, len(leases))

    def _take(self, answer: EngineAnswer) -> None:
        """Process an answer of the engine: claimed jobs, answered settlements, an unexpected error."""
        self._unadmitted = ()
        if answer.admitted:
            self._take_in(answer.admitted)
        self._claim_cycle.answered(answer)
        if answer.news:
            self.reporter.limited(answer.news)
        self.reporter.working(answer.problem)
        if answer.problem is not None and self.options.burst:
            # A burst stops with this error; any other worker continues after a pause.
            self._shutdown.failure = answer.problem
            self._shutdown.drain()

    def _take_in(self, admitted: Admitted) -> None:
        """Add the admitted jobs to the backlog; the refusals are settled with the next request."""
        for refusal in admitted.refusals:
            self._holdings.unsent.add(refusal.settlement, refusal.message)
        if admitted.blocked or admitted.lost:
            self._holdings.blocked(admitted.blocked, admitted.lost)
        now, fences = time.monotonic(), admitted.fences
        flights = [
            Flight(next(self._numbers), lease, message, now, fences.get(lease.id, 0) if fences else 0)
            for lease, message in zip(admitted.leases, admitted.messages, strict=True)
        ]
        self._holdings.add(flights)
        self._fencing.admitted()
