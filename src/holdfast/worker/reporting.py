"""`Reporter`: reports each settled job to the metrics, the log and a listener."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from holdfast.codec import JobMessage
from holdfast.metrics import MetricsCollector, measuring
from holdfast.units import counted, format_duration
from holdfast.values import Abandon, DeadReason, JobLease, Nack, Release, Settlement, WorkerResult, WorkerStatus
from holdfast.worker.verdict import has_run, status_of

log = logging.getLogger("holdfast.worker")

EXECUTOR_DIED: Final = "holdfast.ExecutorDied"
# Marks the log records of outcomes, which a program that prints each outcome itself can leave out.
OUTCOME: Final = {"is_outcome": True}

# The counters of each status; a rejected signature has one more.
_COUNTED: Final = {
    WorkerStatus.ACKED: ("jobs_succeeded",),
    WorkerStatus.REQUEUED: ("jobs_failed", "jobs_requeued"),
    WorkerStatus.DEAD_LETTERED: ("jobs_failed", "jobs_failed_permanently"),
    WorkerStatus.RELEASED: ("jobs_released",),
    WorkerStatus.SKIPPED_IDEMPOTENT: ("jobs_skipped_idempotent",),
    WorkerStatus.BLOCKED: ("jobs_blocked",),
    WorkerStatus.LOST_LEASE: ("jobs_lost_lease",),
}


class Reporter:
    """One per worker. It is called with whole batches: counting jobs one by one would cost more than the jobs."""

    def __init__(
        self, metrics: MetricsCollector, *, listener: Callable[[Sequence[WorkerResult]], None] | None = None
    ) -> None:
        self._metrics = measuring(metrics)
        self._listener = listener
        # The number of settlements by status. A job that is retried here is settled more than once.
        self.tally: Counter[WorkerStatus] = Counter()
        # The number of settled attempts that ran, for `max_jobs`.
        self.jobs_done = 0
        # The number of jobs whose first attempt failed here and that were requeued for a retry. Later failures of the
        # same job are not counted, so the numbers of several workers can be added up. A job is counted even if it is
        # done or dead by now: successes are reported without ids, and the retry may run in another worker.
        self.jobs_to_retry = 0

    @property
    def reports_each(self) -> bool:
        """Whether a listener wants the result of every single job."""
        return self._listener is not None

    @property
    def done(self) -> int:
        return self.tally[WorkerStatus.ACKED]

    @property
    def failed(self) -> int:
        return self.tally[WorkerStatus.REQUEUED] + self.tally[WorkerStatus.DEAD_LETTERED]

    def settled(
        self, settlements: Sequence[tuple[Settlement, JobMessage | None]], answers: Sequence[bool | None]
    ) -> None:
        """Report settlements, each with the job's message; `answers` are whether each lease still held.

        A settlement that the engine did not answer (None) is not reported.
        """
        ends: Counter[tuple[WorkerStatus, str]] = Counter()
        counts: Counter[tuple[str, str]] = Counter()
        durations: dict[str, list[float]] = {}
        results: list[WorkerResult] = []
        for (settlement, message), held in zip(settlements, answers, strict=True):
            if held is None:
                continue
            queue = settlement.lease.queue
            status = status_of(settlement) if held else WorkerStatus.LOST_LEASE
            ends[status, queue] += 1
            self.jobs_done += has_run(settlement)
            if status is WorkerStatus.REQUEUED and settlement.lease.attempts == 0:
                self.jobs_to_retry += 1
            if settlement.record is not None:
                durations.setdefault(queue, []).append(settlement.record.duration_s)
            if status is not WorkerStatus.ACKED or self.reports_each:
                result = result_of(settlement, message, status)
                results.append(result)
                _log_result(result, settlement.lease)
            if isinstance(settlement, Abandon) and settlement.reason is DeadReason.BAD_SIGNATURE:
                counts["jobs_rejected_signature", queue] += 1
        for (status, queue), number in ends.items():
            self._add(status, queue, number, counts)
        self._count(counts, durations)
        self._pass_on(results)

    def circuit_open(self, queue: str) -> None:
        """Report that no jobs are claimed from the queue until its circuit closes."""
        self._pass_on([WorkerResult(status=WorkerStatus.CIRCUIT_OPEN, queue=queue)])

    def _pass_on(self, results: Sequence[WorkerResult]) -> None:
        if self._listener is not None and results:
            try:
                self._listener(results)
            except Exception:  # the listener is the application's code; jobs must not suffer from it
                log.exception("the result listener failed for %s", counted(len(results), "result"))

    def succeeded(self, durations: Mapping[str, Sequence[float]]) -> None:
        """Count jobs that were acknowledged, given how many seconds each of them took, by queue."""
        counts: Counter[tuple[str, str]] = Counter()
        for queue, seconds in durations.items():
            self.jobs_done += len(seconds)
            self._add(WorkerStatus.ACKED, queue, len(seconds), counts)
        self._count(counts, durations)

    def _add(self, status: WorkerStatus, queue: str, number: int, counts: Counter[tuple[str, str]]) -> None:
        self.tally[status] += number
        for name in _COUNTED.get(status, ()):
            counts[name, queue] += number

    def blocked(self, leases: Sequence[JobLease]) -> None:
        """Count jobs that were blocked after the claim because a slot was full."""
        self._ended(WorkerStatus.BLOCKED, leases)

    def lost(self, leases: Sequence[JobLease]) -> None:
        """Count jobs whose lease was lost before they could run."""
        self._ended(WorkerStatus.LOST_LEASE, leases)

    def _ended(self, status: WorkerStatus, leases: Sequence[JobLease]) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        for queue, number in Counter(lease.queue for lease in leases).items():
            self._add(status, queue, number, counts)
        self._count(counts, {})

    def fetched(self, queue: str, number: int) -> None:
        """Count claimed jobs."""
        self._count(Counter({("jobs_fetched", queue): number}), {})

    def reaped(self, number: int) -> None:
        """Count reaped jobs."""
        self._count(Counter({("jobs_reaped", "*"): number}), {})

    def _count(self, counts: Counter[tuple[str, str]], durations: Mapping[str, Sequence[float]]) -> None:
        try:
            for (name, queue), number in counts.items():
                self._metrics.count(name, number, queue=queue)
            for queue, seconds in durations.items():
                self._metrics.observe("job_duration_seconds", seconds, queue=queue)
        except Exception:  # the collector may be the application's code; jobs must not suffer from it
            log.exception("the metrics collector failed")


def result_of(settlement: Settlement, message: JobMessage | None, status: WorkerStatus) -> WorkerResult:
    """The result of one job, for people and programs that follow a worker."""
    lease, record = settlement.lease, settlement.record
    return WorkerResult(
        status=status,
        job_id=lease.id,
        job=message.job if message else None,
        queue=lease.queue,
        attempt=lease.attempts + 1,
        max_attempts=message.max_retries + 1 if message else None,
        error=record.error if record else None,
        retry_in=settlement.delay if isinstance(settlement, Nack | Release) else None,
        duration_s=record.duration_s if record else 0.0,
    )


def _log_result(result: WorkerResult, lease: JobLease) -> None:
    error = result.error.line if result.error else "no error was recorded"
    match result.status:
        case WorkerStatus.DEAD_LETTERED:
            attempts = counted(result.attempt, "attempt")
            log.critical("job %s (%s) dead-lettered after %s: %s", lease.id, result.job, attempts, error, extra=OUTCOME)
        case WorkerStatus.REJECTED:
            log.critical("job %s rejected and dead-lettered: %s", lease.id, error, extra=OUTCOME)
        case WorkerStatus.RELEASED:
            if result.error:
                why = "its process died" if result.error.type == EXECUTOR_DIED else "this worker cannot run it yet"
                wait = format_duration(result.retry_in or 0)
                log.warning("job %s requeued because %s; retrying in %s: %s", lease.id, why, wait, error, extra=OUTCOME)
        case WorkerStatus.LOST_LEASE:
            log.warning("job %s: lease lost before the job was settled; result discarded", lease.id, extra=OUTCOME)
        case _:
            pass
