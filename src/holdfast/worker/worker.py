"""`QueueWorker.process_once`: one message end to end: fetch, verify, run one attempt, settle."""

import logging
import random
import time
from collections.abc import Callable
from typing import Final, Self

from holdfast.clock import Clock, from_us
from holdfast.codec import JobMessage
from holdfast.errors import (
    BackendUnavailable,
    BadSignature,
    CommandForbidden,
    EnvelopeRejected,
    HandlerForbidden,
    HoldfastError,
    NewerWire,
    UnknownHandler,
    UnknownKey,
)
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.execution.runtime import JobRuntime
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted
from holdfast.metrics import MetricsCollector
from holdfast.queues.contract import QueueBackend, new_owner_token
from holdfast.queues.signing import Signer
from holdfast.values import (
    Abandon,
    AttemptRecord,
    Cancel,
    DeadReason,
    ErrorInfo,
    ExecutionResult,
    JobLease,
    Nack,
    Outcome,
    Release,
    Settlement,
    WorkerResult,
    WorkerStatus,
)
from holdfast.worker.decision import decide, status_of
from holdfast.worker.keeper import Keeper

log = logging.getLogger("holdfast.worker")

POSTPONE_S: Final = 60.0
EMPTY: Final = WorkerResult(status=WorkerStatus.EMPTY)


class WrongQueue(EnvelopeRejected):
    """The message was signed for another queue or another job: somebody moved or copied it."""


class QueueWorker:
    """Runs one attempt per delivery and decides; the engine keeps the retries."""

    def __init__(
        self,
        backend: QueueBackend,
        runtime: JobRuntime,
        signer: Signer,
        *,
        retry: RetryPolicy,
        metrics: MetricsCollector,
        clock: Clock,
    ) -> None:
        self.backend = backend
        self.metrics = metrics
        self.clock = clock
        self._runtime = runtime
        self._signer = signer
        self._retry = retry
        self._keeper = Keeper(backend)
        self._running: str | None = None

    def process_once(self, queue: str, *, wait: float = 0.0, unless: Callable[[], bool] | None = None) -> WorkerResult:
        """One message of the queue, if there is one within `wait` seconds, from the lease to the settlement.

        If `unless` says so once there is one, it is given back: nothing is started by a worker that is leaving.
        """
        leases = self.backend.claim(queue, 1, owner_token=new_owner_token(), wait=wait)
        if not leases:
            return EMPTY
        self._count("jobs_fetched", queue)
        if unless is not None and unless():
            return self._settle(leases[0], None, Release(lease=leases[0], record=self._record(Outcome.INTERRUPTED)))
        return self._process(leases[0])

    def interrupt(self) -> None:
        """Stop the running attempt and give its job back; for a worker that has to leave now. From any thread."""
        for _ in range(200):  # it may be just beginning, or just ending; on the main thread nothing gets on meanwhile
            job_id = self._running
            if job_id is None or self._runtime.interrupt(job_id, JobInterrupted("the worker had to leave")):
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
            message = self._verify(lease)
        except HoldfastError as problem:
            return self._settle(lease, None, self._refusal(lease, problem))
        if message.expires_at is not None and lease.claimed_at >= message.expires_at and not lease.ignore_expiry:
            record = self._record(Outcome.EXPIRED)
            return self._settle(lease, message, Cancel(lease=lease, reason="expired", expired=True, record=record))
        try:
            result = self._run(message, lease)
        except HoldfastError as problem:  # raised before anything ran; what a handler raises is in the result
            return self._settle(lease, message, self._refusal(lease, problem))
        except KeyboardInterrupt:
            self._settle(lease, message, Release(lease=lease, record=self._record(Outcome.INTERRUPTED)))
            raise
        retry = self._retry if message.backoff is None else BackoffPolicy(message.backoff)
        return self._settle(lease, message, decide(result, message, lease, retry))

    def _run(self, message: JobMessage, lease: JobLease) -> ExecutionResult:
        def cancel() -> bool:
            return self._runtime.interrupt(lease.id, JobCancelRequested())

        with self._keeper.holding(lease, on_cancel=cancel):
            self._running = lease.id
            try:
                return self._runtime.run(message, lease)
            finally:
                self._running = None

    def _verify(self, lease: JobLease) -> JobMessage:
        message = self._signer.open(lease.wire)
        if message.queue != lease.queue:
            raise WrongQueue(f"the message was signed for queue '{message.queue}', not for '{lease.queue}'")
        if message.identifier != lease.id:
            raise WrongQueue(f"the message was signed for job '{message.identifier}', not for '{lease.id}'")
        return message

    def _refusal(self, lease: JobLease, problem: HoldfastError) -> Settlement:
        """What to do with a message that cannot be run: later, if a deploy can mend it, else never."""
        error = ErrorInfo(type=type(problem).__name__, message=str(problem))
        match problem:
            case UnknownHandler() | UnknownKey() | NewerWire():
                # Another worker of the queue may be able to: soon at first, then ever more seldom.
                puts_off = max(0, lease.delivery - lease.attempts - 1)
                delay = min(POSTPONE_S, 2.0 ** min(puts_off, 10))
                return Release(lease=lease, delay=delay, record=self._record(Outcome.POSTPONED, error))
            case BadSignature():
                reason = DeadReason.BAD_SIGNATURE
            case WrongQueue():
                reason = DeadReason.WRONG_QUEUE
            case HandlerForbidden() | CommandForbidden():
                reason = DeadReason.HANDLER_FORBIDDEN
            case _:
                reason = DeadReason.UNDECODABLE
        return Abandon(lease=lease, reason=reason, record=self._record(Outcome.REJECTED, error))

    def _record(self, outcome: Outcome, error: ErrorInfo | None = None) -> AttemptRecord:
        now = from_us(self.clock.now_us())
        return AttemptRecord(outcome=outcome, started_at=now, ended_at=now, error=error)

    def _settle(self, lease: JobLease, message: JobMessage | None, settlement: Settlement) -> WorkerResult:
        held = self._settle_until_answered(settlement)
        status = status_of(settlement) if held else WorkerStatus.LOST_LEASE
        record = settlement.record
        result = WorkerResult(
            status=status,
            job_id=lease.id,
            job=message.job if message else None,
            attempt=lease.attempts + 1,
            error=record.error if record else None,
            retry_in=settlement.delay if isinstance(settlement, Nack | Release) else None,
            duration_s=record.duration_s if record else 0.0,
        )
        self._report(result, settlement, lease)
        return result

    def _settle_until_answered(self, settlement: Settlement) -> bool:
        """Repeat a settlement whose outcome is unknown: the same token and verdict answer True if it went through."""
        give_up_at = self.clock.monotonic() + settlement.lease.ttl_s
        pause = 0.1
        while True:
            try:
                return self.backend.settle([settlement])[0]
            except BackendUnavailable as problem:
                if self.clock.monotonic() >= give_up_at:
                    raise
                log.warning("job %s is not settled yet, trying again: %s", settlement.lease.id, problem)
                self.clock.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, 5.0)

    def _report(self, result: WorkerResult, settlement: Settlement, lease: JobLease) -> None:
        queue = lease.queue
        error = result.error.line if result.error else "no error was recorded"
        match result.status:
            case WorkerStatus.ACKED:
                self._count("jobs_succeeded", queue)
            case WorkerStatus.REQUEUED:
                self._count("jobs_failed", queue)
                self._count("jobs_requeued", queue)
            case WorkerStatus.DEAD_LETTERED:
                self._count("jobs_failed", queue)
                self._count("jobs_failed_permanently", queue)
                log.critical("job %s (%s) is dead after %s: %s", lease.id, result.job, _attempts(result.attempt), error)
            case WorkerStatus.REJECTED:
                if isinstance(settlement, Abandon) and settlement.reason is DeadReason.BAD_SIGNATURE:
                    self._count("jobs_rejected_signature", queue)
                log.critical("job %s was rejected and is dead: %s", lease.id, error)
            case WorkerStatus.RELEASED:
                self._count("jobs_released", queue)
                if result.error:
                    log.warning("job %s cannot run here yet, again in %g s: %s", lease.id, result.retry_in or 0, error)
            case WorkerStatus.LOST_LEASE:
                self._count("jobs_lost_lease", queue)
                log.warning("job %s was no longer ours when it ended; its verdict was refused", lease.id)
            case _:
                pass

    def _count(self, name: str, queue: str) -> None:
        try:
            self.metrics.count(name, queue=queue)
        except Exception:  # the collector may be the user's own, and no job shall wait for it
            log.exception("the metrics collector failed")


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number} attempts"
