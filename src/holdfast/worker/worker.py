"""`QueueWorker`: claims one job, verifies it, runs one attempt in this process, and settles it."""

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Self

from msgspec import structs

from holdfast.clock import Clock
from holdfast.codec import JobMessage
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError, IdConflict
from holdfast.execution.retry import RetryPolicy
from holdfast.execution.runtime import JobRuntime
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted
from holdfast.metrics import End, MetricsCollector
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.queues.signing import Signer
from holdfast.rates import Rate
from holdfast.state.breakers import Breakers, Rule
from holdfast.state.limits import Start, waits_of
from holdfast.values import Entered, Entry, JobLease, Settlement, WorkerResult, WorkerStatus
from holdfast.worker.admission import Admission, refused
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.circuits import DEFAULT_RULE, QueueCircuits
from holdfast.worker.dead_letters import DeadLetterCopies, without_copy
from holdfast.worker.keeper import Keeper
from holdfast.worker.reporting import Reporter, result_of
from holdfast.worker.throttle import Throttle
from holdfast.worker.verdict import carrying, end_of, has_run, policy_of, released, verdict_on

log = logging.getLogger("holdfast.worker")

EMPTY: Final = WorkerResult(status=WorkerStatus.EMPTY)


class QueueWorker:
    """Runs one attempt per delivery and decides on the verdict. Retries are scheduled by the engine."""

    def __init__(
        self,
        backend: Engine,
        runtime: JobRuntime,
        signer: Signer,
        *,
        retry: RetryPolicy,
        metrics: MetricsCollector,
        clock: Clock,
        copies: DeadLetterCopies,
        limits: Mapping[str, Rate] | None = None,
        breaker: Rule = DEFAULT_RULE,
    ) -> None:
        self.backend = backend
        self.copies = copies
        self.clock = clock
        self.reporter = Reporter(metrics, runtime.registry)
        self.backoff = EngineBackoff(clock)
        self.circuits = QueueCircuits(Breakers(backend.state), clock, breaker)
        self.backoff.subscribe(lambda problem: self.circuits.answered() if problem is None else None)
        self._runtime = runtime
        self._session = new_session()
        self._admission = Admission(signer, runtime.registry, clock)
        self._retry = retry
        self._throttle = Throttle(backend.state, limits or {}, clock)
        self._keeper = Keeper(backend, on_cancel=self._cancel, on_lost=self._lost)
        self.running: JobLease | None = None
        """The lease of the running job."""

    def process_once(self, queue: str, *, wait: float = 0.0, unless: Callable[[], bool] | None = None) -> WorkerResult:
        """Process one job of the queue from claim to settlement, waiting up to `wait` seconds for one.

        If `unless` returns True once the job is claimed, the job is released instead: a worker that is shutting down
        starts nothing. If the queue has reached its rate limit, nothing is claimed: `retry_in` is when it has a token.
        While the circuit of the queue is open, nothing is claimed either.
        """
        if not self.circuits.admits(queue):
            return WorkerResult(status=WorkerStatus.CIRCUIT_OPEN, queue=queue)
        is_limited = queue in self._throttle
        # A token is taken only if there is probably a job, and never held while waiting for one.
        with self._counted(queue):
            if is_limited and wait > 0 and not self.has_work(queue, wait):
                return EMPTY
            allowed = self._throttle.take(queue, 1)
        if not allowed:
            self.reporter.limited(self._throttle.news())
            return self._throttle.refusal(queue)
        try:
            return self._claim_and_process(queue, 0.0 if is_limited else wait, unless)
        finally:
            self._throttle.refund()

    @contextmanager
    def _counted(self, queue: str) -> Generator[None]:
        """Count an error of the engine on the circuit of the queue."""
        try:
            yield
        except BackendError as problem:
            self.circuits.failed(queue, problem)
            raise

    def is_limited(self, queue: str) -> bool:
        """Whether the queue has a rate limit."""
        return queue in self._throttle

    def has_work(self, queue: str, wait: float) -> bool:
        """Wait for a job of the queue. Returns whether there may be one."""
        give_up_at = self.clock.monotonic() + wait
        self.backend.wait_for_work([queue], wait)
        return self.clock.monotonic() < give_up_at

    def _claim_and_process(self, queue: str, wait: float, unless: Callable[[], bool] | None) -> WorkerResult:
        try:
            with self._counted(queue):
                leases = self.backend.claim(queue, 1, owner_token=new_owner_token(self._session), wait=wait)
        except BackendUnavailable:
            raise  # the claim may have been applied
        except BackendError:
            self._throttle.owe(queue)
            raise
        self.backoff.answered()
        self.circuits.claimed(queue)
        self._throttle.claimed(queue, 1, len(leases))
        if not leases:
            return EMPTY
        self.reporter.fetched(queue, 1)
        if unless is not None and unless():
            return self._settle(None, released(leases[0], self.clock.now_us(), unstarted=True))
        return self._process(leases[0])

    def interrupt(self) -> None:
        """Stop the running attempt and release its job, for a worker that must exit now. From any thread."""
        for _ in range(200):  # the attempt may be just starting or just finishing
            lease = self.running
            if lease is None or self._runtime.interrupt(lease.id, JobInterrupted("the worker was shutting down")):
                return
            time.sleep(0.005)

    def close(self) -> None:
        """Stop renewing leases and close the event loop."""
        self._keeper.close()
        self._runtime.close()

    def __enter__(self) -> Self:
        """Leave the signal handlers of timeouts installed between jobs, which makes short jobs cheaper."""
        self._runtime.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _process(self, lease: JobLease) -> WorkerResult:
        try:
            self._keeper.hold([lease])
            try:
                message, settlement = self._run(lease)
            finally:
                self._keeper.drop([lease])
        except KeyboardInterrupt:
            self._settle(None, released(lease, self.clock.now_us()))
            raise
        except BaseException:
            self.reporter.ended(End.UNSETTLED, [lease])
            raise
        if isinstance(settlement, End):
            self.reporter.ended(settlement, [lease])
            self._throttle.owe(lease.queue)
            return WorkerResult(status=settlement.status, job_id=lease.id, queue=lease.queue)
        return self._settle(message, settlement)

    def _enter(self, entries: Sequence[Entry]) -> list[Entered]:
        what = f"enter the slots of job {entries[0].lease.id}"
        return self.backoff.insist(lambda: self.backend.enter(entries), what, wait=self.clock.sleep)

    def _pay(self, starts: Sequence[Start]) -> list[float]:
        what = f"take a token for job {starts[0].job_id}"
        return self.backoff.insist(lambda: waits_of(self.backend.state, starts), what, wait=self.clock.sleep)

    def _cancel(self, lease: JobLease) -> bool:
        return self._runtime.interrupt(lease.id, JobCancelRequested())

    def _lost(self, lease: JobLease) -> None:
        log.warning("job %s: lease lost while it was running; its result will be discarded", lease.id)

    def _run(self, lease: JobLease) -> tuple[JobMessage | None, Settlement | End]:
        """Run the job if it is admitted. Returns its message, if it could be verified, and the settlement; or how the
        delivery ended if its lease has already ended.
        """
        admitted = self._admission.admit([lease], self._enter, self._pay)
        for refusal in admitted.refusals:
            return refusal.message, refusal.settlement
        if not admitted.messages:
            return None, End.BLOCKED if admitted.blocked else End.LOST_LEASE
        (message,) = admitted.messages
        self.running = lease
        try:
            result = self._runtime.run(message, structs.replace(lease, fence=admitted.fences.get(lease.id, 0)))
        except HoldfastError as problem:  # raised before the handler ran; a handler's own exceptions are in the result
            return message, refused(lease, problem, self.clock.now_us())
        finally:
            self.running = None
        return message, verdict_on(result, message, lease, policy_of(message, self._retry))

    def _settle(self, message: JobMessage | None, settlement: Settlement) -> WorkerResult:
        settlement = carrying(self.copies.carried_by(settlement, message), message)
        held: bool | None = None
        try:
            held = self._settle_until_answered(settlement)
        finally:
            self.reporter.settled([(settlement, message)], [held])
        if not has_run(settlement):
            self._throttle.owe(settlement.lease.queue)
        end = End.UNSETTLED if held is None else end_of(settlement) if held else End.LOST_LEASE
        return result_of(settlement, message, end.status)

    def _settle_until_answered(self, settlement: Settlement) -> bool | None:
        """Repeat a settlement until the engine answers. One that was already applied is answered with True.

        Returns None if it cannot be stored.
        """
        give_up_at = self.clock.monotonic() + settlement.lease.ttl_s
        while True:
            try:
                held = self.backend.settle([settlement])[0]
            except BackendUnavailable as problem:
                if self.clock.monotonic() >= give_up_at:
                    raise
                self.clock.sleep(self.backoff.failed(problem, f"settle job {settlement.lease.id}"))
            except BackendError as problem:
                if isinstance(problem, IdConflict) and settlement.enqueues:
                    settlement = without_copy(settlement, problem)
                    continue
                # Only this record cannot be written: its lease expires, and the job is reaped.
                log.exception("job %s could not be settled; it runs again when its lease expires", settlement.lease.id)
                return None
            else:
                self.backoff.answered()
                return held
