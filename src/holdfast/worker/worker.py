"""`QueueWorker.process_once`: one message end to end: fetch, verify, run one attempt, settle."""

import logging
import time
from collections.abc import Callable
from typing import Final, Self

from holdfast.clock import Clock
from holdfast.codec import JobMessage
from holdfast.errors import BackendError, BackendUnavailable, HoldfastError
from holdfast.execution.retry import RetryPolicy
from holdfast.execution.runtime import JobRuntime
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted
from holdfast.metrics import MetricsCollector
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.queues.signing import Signer
from holdfast.values import JobLease, Settlement, WorkerResult, WorkerStatus
from holdfast.worker.admission import Admission, refused
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.keeper import Keeper
from holdfast.worker.reporting import Reporter, result_of
from holdfast.worker.verdict import handed_back, policy_of, status_of, verdict_on

log = logging.getLogger("holdfast.worker")

EMPTY: Final = WorkerResult(status=WorkerStatus.EMPTY)


class QueueWorker:
    """Runs one attempt per delivery and decides; the engine keeps the retries."""

    def __init__(
        self,
        backend: Engine,
        runtime: JobRuntime,
        signer: Signer,
        *,
        retry: RetryPolicy,
        metrics: MetricsCollector,
        clock: Clock,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self.reporter = Reporter(metrics)
        self.backoff = EngineBackoff(clock)
        self._runtime = runtime
        self._session = new_session()
        self._admission = Admission(signer, runtime.registry, clock)
        self._retry = retry
        self._keeper = Keeper(backend, on_cancel=self._cancel, on_lost=self._lost)
        self.running: JobLease | None = None
        """The lease of the job that is running now."""

    def process_once(self, queue: str, *, wait: float = 0.0, unless: Callable[[], bool] | None = None) -> WorkerResult:
        """One message of the queue, if there is one within `wait` seconds, from the lease to the settlement.

        If `unless` says so once there is one, it is given back: nothing is started by a worker that is leaving.
        """
        leases = self.backend.claim(queue, 1, owner_token=new_owner_token(self._session), wait=wait)
        self.backoff.answered()
        if not leases:
            return EMPTY
        self.reporter.fetched(queue, 1)
        if unless is not None and unless():
            return self._settle(None, handed_back(leases[0], self.clock.now_us()))
        return self._process(leases[0])

    def interrupt(self) -> None:
        """Stop the running attempt and give its job back; for a worker that has to leave now. From any thread."""
        for _ in range(200):  # it may be just beginning, or just ending; on the main thread nothing gets on meanwhile
            lease = self.running
            if lease is None or self._runtime.interrupt(lease.id, JobInterrupted("the worker had to leave")):
                return
            time.sleep(0.005)

    def close(self) -> None:
        """Stop renewing leases and let go of the event loop."""
        self._keeper.close()
        self._runtime.close()

    def __enter__(self) -> Self:
        """Keep the signal handlers of timeouts in place between jobs, which makes short ones cheaper."""
        self._runtime.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _process(self, lease: JobLease) -> WorkerResult:
        try:
            self._keeper.hold([lease])
            try:
                message, settlement = self._judged(lease)
            finally:
                self._keeper.drop([lease])
        except KeyboardInterrupt:
            self._settle(None, handed_back(lease, self.clock.now_us()))
            raise
        return self._settle(message, settlement)

    def _cancel(self, lease: JobLease) -> bool:
        return self._runtime.interrupt(lease.id, JobCancelRequested())

    def _lost(self, lease: JobLease) -> None:
        log.warning("job %s: lease lost while it was running; its result will be discarded", lease.id)

    def _judged(self, lease: JobLease) -> tuple[JobMessage | None, Settlement]:
        """Run the job if it may run. Returns its message, if that could be verified, and the settlement."""
        admitted = self._admission.admit([lease])
        for refusal in admitted.refusals:
            return refusal.message, refusal.settlement
        (message,) = admitted.messages
        self.running = lease
        try:
            result = self._runtime.run(message, lease)
        except HoldfastError as problem:  # raised before anything ran; what a handler raises is in the result
            return message, refused(lease, problem, self.clock.now_us())
        finally:
            self.running = None
        return message, verdict_on(result, message, lease, policy_of(message, self._retry))

    def _settle(self, message: JobMessage | None, settlement: Settlement) -> WorkerResult:
        held = self._settle_until_answered(settlement)
        self.reporter.settled([(settlement, message)], [held])
        return result_of(settlement, message, status_of(settlement) if held else WorkerStatus.LOST_LEASE)

    def _settle_until_answered(self, settlement: Settlement) -> bool:
        """Repeat a settlement whose outcome is unknown: the same token and verdict answer True if it went through."""
        give_up_at = self.clock.monotonic() + settlement.lease.ttl_s
        while True:
            try:
                held = self.backend.settle([settlement])[0]
            except BackendUnavailable as problem:
                if self.clock.monotonic() >= give_up_at:
                    raise
                self.clock.sleep(self.backoff.failed(problem, f"settle job {settlement.lease.id}"))
            except BackendError:
                # Only this record cannot be written: its lease expires, and the job is reaped.
                log.exception("job %s cannot be settled", settlement.lease.id)
                return False
            else:
                self.backoff.answered()
                return held
