"""`Supervisor`: the worker process. It fetches, verifies, renews and settles in batches; its children run the jobs.

One thread turns this loop and never waits for anybody: the `Exchanger` talks to the engine, the `Keeper` renews, the
`Caretaker` does what is not urgent, and the `ProcessPool` holds the children.
"""

import itertools
import logging
import os
import secrets
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from holdfast import errors
from holdfast.clock import from_us
from holdfast.errors import BackendUnavailable, HandlerError, HoldfastError, UnknownHandler
from holdfast.execution.retry import RetryPolicy
from holdfast.handlers import HandlerRegistry
from holdfast.queues.contract import Engine
from holdfast.values import (
    Cancel,
    ErrorInfo,
    ExecutionResult,
    JobLease,
    Outcome,
    Progress,
    Release,
    RunningJob,
    Settlement,
    StopOrder,
    WorkerReport,
)
from holdfast.worker.caretaker import BEAT_EVERY_S, Caretaker
from holdfast.worker.decision import decide, policy_of, suspected
from holdfast.worker.exchanger import Answer, Exchanger, Request
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.memory import resident_bytes
from holdfast.worker.executors.pool import LINGER_S, ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight, KillReason, Program
from holdfast.worker.intake import Intake, Refusal
from holdfast.worker.keeper import Keeper, Listener
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.options import WorkerOptions
from holdfast.worker.reporting import EXECUTOR_DIED, Reporter
from holdfast.worker.systemd import Notifier
from holdfast.worker.turns import Pace, Turns
from holdfast.worker.verdicts import Verdicts

log = logging.getLogger("holdfast.worker")

# A claimed job that no slot takes for this long is handed back, since another worker may have one: the first if every
# slot is at a long job, the second in any case.
HAND_BACK_AFTER_S: Final = 0.05
HAND_BACK_ANYWAY_S: Final = 0.5
# How long a job that must run alone waits for that before another worker may try, and how long it is left to them.
SUSPECT_S: Final = 1.0
ISOLATION_S: Final = 60.0
HURRY_KILL_AFTER_S: Final = 1.0
# How much earlier than the lease's end a fenced job is killed: its kill must be over by then.
FENCE_MARGIN_S: Final = 1.0
FLUSH_S: Final = 10.0
EXCHANGE_S: Final = 0.004
LEAVE_IN_PEACE_S: Final = 0.05
FAILED_PAUSE_S: Final = 1.0
# Verdicts on jobs shorter than this wait a little for each other; those on longer ones are written at once.
SHORT_S: Final = 0.01
SETTLE_LINGER_S: Final = 0.01
LIVE_WITHIN_S: Final = 10.0
_BURST_LOOK_S: Final = 0.05
_JOBS_SHOWN: Final = 100


class Supervisor(Listener):
    """One worker: `run` it on the main thread; `stop` it from any."""

    def __init__(
        self,
        engine: Engine,
        *,
        program: Program,
        registry: HandlerRegistry,
        intake: Intake,
        retry: RetryPolicy,
        reporter: Reporter,
        options: WorkerOptions,
        version: str,
        notifier: Notifier | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.options = options
        self.reporter = reporter
        self.claimed = 0
        self.unsettled = 0
        self.turned_at = time.monotonic()
        self._engine = engine
        self._registry = registry
        self._intake = intake
        self._retry = retry
        self._version = version
        self._notifier = notifier or Notifier.from_environment({})
        self._started_at = from_us(engine.clock.now_us())
        self._numbers = itertools.count(1)
        self._pace = Pace(is_shared=len(options.queues) > 1)
        self._lately: dict[str, list[float]] = {}
        self._turns = Turns(options.queues)
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakes)
        self._calls: deque[Callable[[], None]] = deque()
        self._pool = ProcessPool(
            program,
            processes=options.processes,
            slots=options.concurrency,
            kill_after_s=options.kill_after_s,
            audience=self,
            selector=self._selector,
        )
        self._keeper = Keeper(engine)
        self._exchanger = Exchanger(engine, self._turns, on_answer=self._post_answer, fence_at=self._keeper.fence_at)
        maintenance = Maintenance(engine, reap_interval_s=options.reap_interval_s, on_reaped=reporter.reaped)
        self._caretaker = Caretaker(engine, maintenance, worker_id=self.id, report=self.report, on_order=self.stop)
        self._backlog: deque[Flight] = deque()
        self._suspects: deque[Flight] = deque()
        self._isolated: Flight | None = None
        self._outgoing = Verdicts()
        self._asked: Verdicts | None = None
        self._is_waiting = False
        self._is_dry = False
        self._in_hand: set[Flight] = set()
        self._draining_since: float | None = None
        self._hurried_since: float | None = None
        self._watchdog_at = 0.0
        self._status_at = 0.0
        self._is_announced = False
        self._ask_at = 0.0
        self._asked_at = 0.0
        self._settle_by = 0.0
        self._is_urgent = False
        self._failure: Exception | None = None

    # What others may ask, from any thread.

    def stop(self, order: StopOrder = StopOrder.DRAIN) -> None:
        """Fetch nothing more and end: after what is running, or at once."""
        self._call(self._drain if order is StopOrder.DRAIN else self._hurry)

    @property
    def is_draining(self) -> bool:
        return self._draining_since is not None

    @property
    def in_hand(self) -> frozenset[Flight]:
        """The jobs that were fetched and have no verdict yet."""
        return frozenset(self._in_hand)

    @property
    def running(self) -> int:
        """How many jobs are running."""
        return len(self._pool.flights())

    def is_live(self) -> bool:
        """Whether the loop turns; the engine is not asked."""
        return time.monotonic() - self.turned_at < LIVE_WITHIN_S

    def readiness(self) -> list[tuple[str, str | None]]:
        """What a load balancer or an operator wants to know: each check with its problem, if there is one."""
        since = self._exchanger.failing_since
        unheard = None if since is None else f"has not answered for {time.monotonic() - since:.0f} s"
        has_children = bool(self._pool.ready) or self.is_draining
        children = None if has_children else (self._pool.problem or "none is ready yet")
        return [
            ("engine", unheard or self._ask_engine()),
            ("executors", children),
            ("draining", "the worker is leaving" if self.is_draining else None),
        ]

    def report(self) -> WorkerReport:
        """What this worker says of itself."""
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
        pids = [child.pid for child in self._pool.children if child.pid is not None]
        return WorkerReport(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            started_at=self._started_at,
            queues=tuple(name if weight == 1 else f"{name}:{weight}" for name, weight in self.options.queues.items()),
            handlers=self._registry.keys(),
            processes=self.options.processes,
            slots=self.options.processes * self.options.concurrency,
            beat_every_s=BEAT_EVERY_S,
            draining=self.is_draining,
            jobs=jobs,
            running=len(flights),
            done=self.reporter.done,
            failed=self.reporter.failed,
            memory_bytes=resident_bytes() + sum(map(resident_bytes, pids)),
        )

    # The loop.

    def run(self) -> None:
        """Work until stopped, drained (`burst`) or `max_jobs` jobs are done."""
        self._caretaker.start()
        try:
            while not self._is_over():
                self._turn()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            key.data(events)
        while self._calls:
            self._calls.popleft()()
        now = self.turned_at = time.monotonic()
        self._pool.tend(now, listens=not self._is_exchanging)
        self._learn()
        self._fence(now)
        self._give_up_if_unheard(now)
        self._end_draining(now)
        self._dispatch(now)
        self._ask()
        self._notify(now)

    def _notify(self, now: float) -> None:
        """Tell systemd, if it wants to know, that there are children to work with, how much, and that we live."""
        if not self._is_announced and self._pool.ready:
            self._is_announced = True
            self._notifier.ready()
        if now >= self._status_at:
            self._status_at = now + BEAT_EVERY_S
            tally = self.reporter
            self._notifier.status(f"{self.running} running, {tally.done} done, {tally.failed} failed")
        if self._notifier.watchdog_interval_s is not None and now >= self._watchdog_at:
            self._watchdog_at = now + self._notifier.watchdog_interval_s
            self._notifier.beat()

    @property
    def _is_exchanging(self) -> bool:
        """Whether the exchanger is at work for us: its thread then gets this one's time, which SQLite needs in a
        thousand small pieces; what lingering children have to say goes into the next batch anyway. An engine that does
        not answer for long is not waited for.
        """
        is_at_work = self._asked is not None and not self._is_waiting
        return is_at_work and time.monotonic() < self._asked_at + LEAVE_IN_PEACE_S

    def _patience(self) -> float:
        """How long to wait for an event before the clock has something to say."""
        if self._backlog or self._suspects or (self._outgoing and self._asked is None):
            return SETTLE_LINGER_S
        if self._pool.lingers:
            return EXCHANGE_S if self._is_exchanging else LINGER_S
        if any(child.unstarted for child in self._pool.children):
            return 0.01
        idle = min(0.5, self._notifier.watchdog_interval_s or 0.5)
        return 0.1 if self._in_hand or self.is_draining or not self._pool.ready else idle

    def _is_over(self) -> bool:
        if self._asked is not None or self._outgoing or self._in_hand:
            return self._has_waited_enough()
        if self.is_draining:
            return self._pool.is_empty
        is_enough = 0 < self.options.max_jobs <= self.reporter.jobs_done
        if is_enough or (self.options.burst and self._is_dry):
            self._drain()
        return False

    def _has_waited_enough(self) -> bool:
        """Whether a worker that was told to leave at once has tried long enough to deliver its verdicts."""
        return (
            self._hurried_since is not None and self._pool.is_empty and time.monotonic() > self._hurried_since + FLUSH_S
        )

    def _close(self) -> None:
        self._pool.close()
        self._keeper.close(FLUSH_S)
        self._exchanger.close(FLUSH_S)
        self._caretaker.close(FLUSH_S)
        self.unsettled += len(self._in_hand) + len(self._outgoing) + len(self._asked or ())
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    # Fetching and settling.

    def _ask(self) -> None:
        """Give the exchanger its next request; one at a time."""
        if self._asked is not None:
            if self._is_waiting and (self._outgoing or self.is_draining):
                self._is_waiting = False
                self._exchanger.nudge()
            return
        limits = self._limits()
        if (not self._outgoing and not limits) or time.monotonic() < self._ask_at:
            return
        if not limits and not self._is_urgent and time.monotonic() < self._settle_by:
            return  # verdicts on short jobs, and nothing to claim: more will come in a moment, for the same commit
        self._asked, self._outgoing, self._is_urgent = self._outgoing, Verdicts(), False
        self._asked_at = time.monotonic()
        wait_s = 0.0 if self._asked else self._wait()
        self._is_waiting = wait_s > 0
        self._exchanger.ask(Request(settlements=self._asked.settlements, limits=limits, wait_s=wait_s))

    def _wait(self) -> float:
        if self.options.burst:
            return _BURST_LOOK_S if self._in_hand else 0.0
        return self.options.poll_interval_s

    def _limits(self) -> dict[str, int]:
        """How many jobs of each queue to claim: as many as will be started soon."""
        now = time.monotonic()
        children = [child for child in self._pool.ready if not child.is_alone and not child.is_blocked(now)]
        # Suspects come one by one: whoever waits for a child of its own keeps the next from being claimed.
        if self.is_draining or self._isolated is not None or len(self._suspects) >= len(children):
            return {}
        if self.options.burst and self._is_dry and not self._in_hand:
            return {}
        # Those whose verdicts are on their way count already.
        begun = self.reporter.jobs_done + len(self._in_hand) + len(self._outgoing)
        left = self.options.max_jobs - begun if self.options.max_jobs else 1 << 30
        has_free_slot = any(len(child.held) < self._pool.slots for child in children)
        limits: dict[str, int] = {}
        for queue in self.options.queues:
            batch = self._pace.batch(queue, self._pool.slots)
            room = sum(self._room(child, queue) for child in children) - len(self._backlog)
            # A claim for a few jobs costs as much as one for many: it waits until it is worth it, or urgent.
            if room > 0 and (has_free_slot or room >= batch * len(children) // 4):
                limits[queue] = min(room, left)
        return {queue: limit for queue, limit in limits.items() if limit > 0}

    def _room(self, child: ExecutorProcess, queue: str) -> int:
        """How many jobs of this queue the child should be given now."""
        only = len(self.options.queues) == 1
        held = {queue: len(child.held)} if only else Counter(one.lease.queue for one in child.held.values())
        return self._pace.room(held, queue, self._pool.slots)

    def _post_answer(self, answer: Answer) -> None:
        self._call(lambda: self._take(answer))

    def _take(self, answer: Answer) -> None:
        asked, self._asked, self._is_waiting = self._asked, None, False
        if answer.leases:
            self._admit(answer.leases)
        if answer.problem is not None:
            self._failed_request(answer.problem)
        elif answer.request.limits:
            # What has ended since it was asked may be due again, or have enqueued others.
            self._is_dry = not answer.leases and not self._outgoing
        if asked:
            self._keeper.drop(asked.leases)
            self.unsettled += asked.report(answer.held, self.reporter)

    def _failed_request(self, problem: Exception) -> None:
        """The engine answers with an error nobody foresaw: a burst ends with it, a worker goes on a little later."""
        self._ask_at = time.monotonic() + FAILED_PAUSE_S
        if self.options.burst:
            self._failure = problem
            self._drain()

    def _admit(self, leases: Sequence[JobLease]) -> None:
        if not self.claimed:
            self._caretaker.beat_now()  # people look at a worker when it begins
        self.claimed += len(leases)
        self._keeper.hold(leases, self)
        self.reporter.fetched(leases[0].queue, len(leases))
        now = time.monotonic()
        flights: list[Flight] = []
        for lease in leases:
            message = self._intake.admit(lease)
            if isinstance(message, Refusal):
                self._outgoing.add(message.settlement, message.job)
                continue
            try:
                self._registry.resolve_for(message.job, message.queue)
            except HandlerError as problem:
                self._outgoing.add(self._intake.refusal(lease, problem), message.job)
                continue
            flights.append(Flight(next(self._numbers), lease, message, now))
        self._in_hand.update(flights)
        for flight in flights:
            (self._suspects if flight.is_suspect else self._backlog).append(flight)

    def _settle(self, flight: Flight, settlement: Settlement) -> None:
        self._ended([flight])
        self._outgoing.add(settlement, flight.message.job)

    def _ended(self, flights: Sequence[Flight]) -> None:
        """These leave our hands, with verdicts that go out next."""
        self._let_go(flights)
        self._is_dry = False  # the jobs may have enqueued others
        if not self._outgoing:
            self._settle_by = time.monotonic() + SETTLE_LINGER_S

    def _let_go(self, flights: Sequence[Flight]) -> None:
        self._in_hand.difference_update(flights)
        if self._isolated in flights:
            self._isolated = None

    def _hand_back(self, flight: Flight, note: str = "", *, delay: float = 0.0) -> None:
        self._is_urgent = True
        if flight.started_at > 0:
            record = self._failed(flight, Outcome.INTERRUPTED, note=note).record()
            self._settle(flight, Release(lease=flight.lease, delay=delay, record=record))
        else:
            self._settle(flight, self._intake.handed_back(flight.lease, note, delay=delay, unstarted=True))

    # Giving work to the children.

    def _dispatch(self, now: float) -> None:
        if self.is_draining:
            for flight in (*self._backlog, *self._suspects):
                self._hand_back(flight)
            self._backlog.clear()
            self._suspects.clear()
            return
        for child in self._pool.children:
            child.is_alone &= bool(child.held)  # the suspect it was kept free for may be gone
        if self._suspects:
            self._dispatch_suspect(now)
        if self._backlog:
            self._share_out(now)
            self._hand_back_waiting(now)

    def _share_out(self, now: float) -> None:
        """Give each child its part of the backlog, the one with least to do first."""
        children = [child for child in self._pool.ready if not child.is_alone and not child.is_blocked(now)]
        children.sort(key=lambda child: len(child.held))
        for place, child in enumerate(children):
            part = -(-len(self._backlog) // (len(children) - place))
            part = min(part, self._room(child, self._backlog[0].lease.queue))
            flights = [self._backlog.popleft() for _ in range(part)]
            flights = [flight for flight in flights if not (flight.is_cancelled and self._is_cancelled(flight))]
            if flights:
                self._give(child, flights)
            if not self._backlog:
                return

    def _give(self, child: ExecutorProcess, flights: Sequence[Flight]) -> None:
        fences = [self._fence_of(flight) for flight in flights if flight.message.fence]
        if fences:
            # Before it can start: we may stand still a moment later.
            child.fence(min([*fences, *map(self._fence_of, child.fenced.values())]))
        self._pool.give(child, flights)

    def _hand_back_waiting(self, now: float) -> None:
        # A child that gets on will have room in a moment.
        gets_on = any(not child.is_alone and not child.is_blocked(now) for child in self._pool.ready)
        patience_s = HAND_BACK_ANYWAY_S if gets_on else HAND_BACK_AFTER_S
        while self._backlog and self._backlog[0].waits_since < now - patience_s:
            self._hand_back(self._backlog.popleft(), "no slot was free")

    def _dispatch_suspect(self, now: float) -> None:
        """A job that was delivered without a verdict runs alone in its child; in its last life, alone in the worker.

        So whatever dies with it next time, no other job is lost for it. While it waits for that, it is not held for
        ever: another worker may have room.
        """
        flight = self._suspects[0]
        is_last = flight.lease.crashes + 1 >= self._engine.policy.crash_limit
        if is_last:
            self._isolated = flight
        is_free = len(self._in_hand) == len(self._suspects) if is_last else self._isolated is None
        child = min(self._pool.ready, key=lambda child: len(child.held), default=None)
        if is_free and child is not None and not child.held:
            self._suspects.popleft()
            if not self._is_cancelled(flight):
                child.is_alone = True
                self._give(child, [flight])
            return
        if child is not None:
            child.is_alone = True  # it is given nothing more until it has run the suspect
        patience_s = ISOLATION_S if is_last else SUSPECT_S
        if now > flight.waits_since + patience_s:
            self._suspects.popleft()
            self._hand_back(flight, "it has to run alone, and others are running", delay=patience_s)

    def _is_cancelled(self, flight: Flight) -> bool:
        if flight.is_cancelled:
            self._settle(flight, Cancel(lease=flight.lease, record=self._intake.record(Outcome.CANCELLED)))
        return flight.is_cancelled

    # What the children say.

    def on_done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> None:
        self._ended(flights)
        for queue, durations in self._outgoing.add_successes(flights, frames).items():
            self._took(queue, durations)

    def _took(self, queue: str, durations: Sequence[float]) -> None:
        self._lately.setdefault(queue, []).extend(durations)
        self._is_urgent = self._is_urgent or max(durations) > SHORT_S

    def _learn(self) -> None:
        """Whole turns are averaged."""
        for queue, durations in self._lately.items():
            self._pace.saw(queue, sum(durations), len(durations))
        self._lately.clear()

    def on_ended(self, flight: Flight, result: ExecutionResult) -> None:
        message, lease = flight.message, flight.lease
        self._took(lease.queue, [result.duration_s])
        self._settle(flight, decide(result, message, lease, policy_of(message, self._retry)))

    def on_refused(self, flight: Flight, error: str, message: str) -> None:
        kind = getattr(errors, error, UnknownHandler)
        problem = (
            kind(message) if isinstance(kind, type) and issubclass(kind, HoldfastError) else UnknownHandler(message)
        )
        self._settle(flight, self._intake.refusal(flight.lease, problem))

    def on_returned(self, flights: Sequence[Flight]) -> None:
        now = time.monotonic()
        for flight in reversed(flights):
            flight.waits_since = now
            (self._suspects if flight.is_suspect else self._backlog).appendleft(flight)

    def on_progress(self, flight: Flight, progress: Progress) -> None:
        self._caretaker.progressed(flight.lease, progress)

    def on_died(
        self, flights: Sequence[Flight], how: str, killed_for: tuple[KillReason, frozenset[int]] | None
    ) -> None:
        if killed_for is not None:
            self._on_killed(flights, *killed_for)
        elif len(flights) == 1:
            # It was alone in there, so it was this one's doing.
            result = self._failed(flights[0], Outcome.CRASHED, ErrorInfo(type=EXECUTOR_DIED, message=how))
            self.on_ended(flights[0], result)
        else:
            error = ErrorInfo(type=EXECUTOR_DIED, message=f"{how}, with {len(flights)} jobs started")
            for flight in flights:
                record = self._failed(flight, Outcome.CRASHED, error).record()
                policy = policy_of(flight.message, self._retry)
                self._settle(flight, suspected(flight.lease, record, policy))

    def _on_killed(self, flights: Sequence[Flight], why: KillReason, meant: frozenset[int]) -> None:
        for flight in flights:
            if flight.number not in meant:
                self._hand_back(flight, "a neighbour in its process had to be killed")
                continue
            match why:
                case KillReason.TIMEOUT:
                    limit = f"ran longer than its timeout of {flight.message.timeout:g} s and had to be killed"
                    error = ErrorInfo(type="holdfast.JobTimeout", message=limit)
                    self.on_ended(flight, self._failed(flight, Outcome.TIMEOUT, error))
                case KillReason.CANCELLED:
                    record = self._failed(flight, Outcome.CANCELLED).record()
                    self._settle(flight, Cancel(lease=flight.lease, record=record))
                case KillReason.FENCED:
                    # Whether the lease still holds is not known, so nothing may be said about the job.
                    self._let_go([flight])
                    self._keeper.drop([flight.lease])
                    self.unsettled += 1
                case _:
                    self._hand_back(flight, why.value)

    def _failed(
        self, flight: Flight, outcome: Outcome, error: ErrorInfo | None = None, *, note: str = ""
    ) -> ExecutionResult:
        """The result of an attempt that could not tell its own, from its start to now."""
        now_us = self._engine.clock.now_us()
        return ExecutionResult(
            handler=flight.message.job,
            outcome=outcome,
            started_us=now_us - int((time.monotonic() - flight.started_at) * 1e6),
            ended_us=now_us,
            output=flight.printed,
            error=error,
            note=note,
        )

    # What the keeper says, on its thread.

    def on_cancel(self, lease: JobLease) -> bool:
        self._call(lambda: self._cancel(lease))
        return True

    def on_lost(self, lease: JobLease) -> None:
        self._call(lambda: self._lost(lease))

    def _cancel(self, lease: JobLease) -> None:
        flight = self._flight_of(lease)
        if flight is None:
            return
        flight.is_cancelled = True
        if flight.child is not None and flight.number in flight.child.running:
            flight.child.stop(flight, cancelled=True, now=time.monotonic())
        elif flight.child is not None:
            flight.child.recall()

    def _lost(self, lease: JobLease) -> None:
        flight = self._flight_of(lease)
        if flight is None:
            return
        log.warning("the lease of job %s was lost while it ran; its verdict will be refused", lease.id)
        if flight.message.fence:
            self._pool.kill([flight], KillReason.FENCED)

    def _flight_of(self, lease: JobLease) -> Flight | None:
        return next((flight for flight in self._in_hand if flight.lease is lease), None)

    def _fence(self, now: float) -> None:
        """Kill what asked for it before its lease can pass to somebody else; or, if we should stand still, have it
        killed then.
        """
        for child in self._pool.children:
            until = min((self._fence_of(flight) for flight in child.fenced.values()), default=None)
            child.fence(until)
            if until is not None and now > until:
                self._pool.kill([one for one in child.fenced.values() if now > self._fence_of(one)], KillReason.FENCED)

    def _fence_of(self, flight: Flight) -> float:
        return self._keeper.fence_at(flight.lease) - min(FENCE_MARGIN_S, flight.lease.ttl_s / 4)

    # Leaving.

    def _drain(self) -> None:
        if self._draining_since is None:
            self._draining_since = time.monotonic()
            self._notifier.stopping()
            self._exchanger.leave()
            self._pool.leave()
            self._caretaker.beat_now()

    def _hurry(self) -> None:
        self._drain()
        if self._hurried_since is None:
            self._hurried_since = time.monotonic()
            self._pool.patience(HURRY_KILL_AFTER_S)
            self._exchanger.hurry()
            self._pool.hurry(self._hurried_since)

    def _give_up_if_unheard(self, now: float) -> None:
        """An engine that has not answered for so long may answer a new process: somebody else is to start one."""
        limit_s, since = self.options.give_up_after_s, self._exchanger.failing_since
        if limit_s and since is not None and now > since + limit_s and self._failure is None:
            self._failure = BackendUnavailable(
                f"the engine has not answered for {now - since:.0f} s: the worker gives up"
            )
            self._hurry()

    def _end_draining(self, now: float) -> None:
        since, grace = self._draining_since, self.options.grace_s
        if since is not None and grace and now > since + grace and self._hurried_since is None and self._pool.children:
            log.warning("the grace of %g s is over; what is running (%d) is handed back", grace, self.running)
            self._hurry()
        if self._hurried_since is not None:
            self._pool.hurry(now)  # a job may have been started since

    def _ask_engine(self) -> str | None:
        try:
            self._engine.check()
        except HoldfastError as problem:
            return str(problem)
        return None

    def _call(self, action: Callable[[], None]) -> None:
        """Let the loop do something, as its next thing."""
        self._calls.append(action)
        try:
            os.write(self._wake_in, b"\0")
        except BlockingIOError:
            return

    def _drain_wakes(self, _events: int) -> None:
        try:
            while os.read(self._wake_out, 4096):
                pass
        except BlockingIOError:
            return
