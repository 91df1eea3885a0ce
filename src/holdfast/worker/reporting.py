"""`Reporter`: reports each settled job to the metrics, the log and a listener."""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from holdfast.codec import JobMessage
from holdfast.metrics import End, MetricsCollector, labelling
from holdfast.metrics.counters import FAILED, FETCHED, REAPED
from holdfast.units import counted, format_duration
from holdfast.values import ErrorInfo, JobLease, Nack, Release, Settlement, WorkerResult, WorkerStatus
from holdfast.worker.verdict import end_of, has_run

log = logging.getLogger("holdfast.worker")

EXECUTOR_DIED: Final = "holdfast.ExecutorDied"
# Marks the log records of outcomes, which a program that prints each outcome itself can leave out.
OUTCOME: Final = {"is_outcome": True}

# How many jobs have their own label in the metrics. All others share one, because each label costs memory here and in
# the database of the metrics.
MOST_LABELS: Final = 100
OTHER: Final = "other"

_Ends: TypeAlias = Counter[tuple[End, str, str | None]]
_Counts: TypeAlias = Counter[tuple[str, str, str | None]]


class Reporter:
    """One per worker. It is called with whole batches: counting jobs one by one would cost more than the jobs.

    `handlers` contains the keys of the registered handlers. No other job has a label in the metrics.
    """

    def __init__(
        self,
        metrics: MetricsCollector,
        handlers: Container[str],
        *,
        listener: Callable[[Sequence[WorkerResult]], None] | None = None,
    ) -> None:
        self._metrics = labelling(metrics)
        self._handlers = handlers
        self._labels: dict[str, str] = {}
        self._listener = listener
        # The number of settlements by status. A job that is retried here is settled more than once.
        self.tally: Counter[WorkerStatus] = Counter()
        # The number of settled attempts that ran, for `max_jobs`.
        self.jobs_done = 0
        # The numbers of claimed jobs, and of those that were given up without a settlement.
        self.claimed = 0
        self.unsettled = 0
        # The number of jobs whose first attempt failed here and that were requeued for a retry. Later failures of the
        # same job are not counted, so the numbers of several workers can be added up. A job is counted even if it is
        # done or dead by now: successes are reported without ids, and the retry may run in another worker.
        self.jobs_to_retry = 0
        self._error: ErrorInfo | None = None

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

        A settlement that the engine did not answer (None) is only counted.
        """
        ends: _Ends = Counter()
        durations: dict[tuple[str, str | None], list[float]] = {}
        results: list[WorkerResult] = []
        for (settlement, message), held in zip(settlements, answers, strict=True):
            queue, job = settlement.lease.queue, None if message is None else self._label(message.job)
            if held is None:
                ends[End.UNSETTLED, queue, job] += 1
                continue
            end = end_of(settlement) if held else End.LOST_LEASE
            ends[end, queue, job] += 1
            self.jobs_done += has_run(settlement)
            if end is End.REQUEUED and settlement.lease.attempts == 0:
                self.jobs_to_retry += 1
            if settlement.record is not None:
                durations.setdefault((queue, job), []).append(settlement.record.duration_s)
            if end is not End.SUCCEEDED or self.reports_each:
                result = result_of(settlement, message, end.status)
                results.append(result)
                _log_result(result, settlement.lease)
        self._count(self._counted(ends), [(*place, seconds) for place, seconds in durations.items()])
        self._pass_on(results)

    def working(self, problem: Exception | None) -> None:
        """Report an error that keeps the worker from claiming jobs: once, until it has passed (None) or has changed."""
        error = None if problem is None else ErrorInfo(type=type(problem).__name__, message=str(problem))
        if error is not None and error != self._error:
            self._pass_on([WorkerResult(status=WorkerStatus.ERROR, error=error)])
        self._error = error

    def circuit_open(self, queue: str) -> None:
        """Report that no jobs are claimed from the queue until its circuit closes."""
        self._pass_on([WorkerResult(status=WorkerStatus.CIRCUIT_OPEN, queue=queue)])

    def _pass_on(self, results: Sequence[WorkerResult]) -> None:
        if self._listener is not None and results:
            try:
                self._listener(results)
            except Exception:  # the listener is the application's code; jobs must not suffer from it
                log.exception("the result listener failed for %s", counted(len(results), "result"))

    def limited(self, news: Sequence[WorkerResult]) -> None:
        """Report queues that have reached their rate limit."""
        for one in news:
            wait = format_duration(one.retry_in or 0)
            log.info(
                "queue '%s' has reached its rate limit; the next job can start in %s", one.queue, wait, extra=OUTCOME
            )
        self._pass_on(news)

    def succeeded(self, durations: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Count jobs that were acknowledged, given how many seconds each of them took, by queue and job."""
        labelled = [(queue, self._label(name), seconds) for (queue, name), seconds in durations.items()]
        ends: _Ends = Counter()
        for queue, job, seconds in labelled:
            ends[End.SUCCEEDED, queue, job] += len(seconds)
            self.jobs_done += len(seconds)
        self._count(self._counted(ends), labelled)

    def ended(self, end: End, leases: Sequence[JobLease]) -> None:
        """Count jobs that ended like this without a settlement."""
        self._count(self._counted(Counter((end, lease.queue, None) for lease in leases)))

    def fetched(self, queue: str, number: int) -> None:
        """Count claimed jobs."""
        self.claimed += number
        self._count(Counter({(FETCHED, queue, None): number}))

    def reaped(self, number: int) -> None:
        """Count reaped jobs."""
        self._count(Counter({(REAPED, "*", None): number}))

    def _counted(self, ends: _Ends) -> _Counts:
        """Add these ends to the tally, and return their counters."""
        counts: _Counts = Counter()
        for (end, queue, job), number in ends.items():
            if end in (End.REQUEUED, End.FAILED_PERMANENTLY):
                counts[FAILED, queue, job] += number
            counts[end.value, queue, job] = number
            if end is End.UNSETTLED:
                self.unsettled += number
            else:
                self.tally[end.status] += number
        return counts

    def _label(self, job: str) -> str | None:
        """The label of a job in the metrics; None if it has no handler here."""
        if job not in self._labels:
            if job not in self._handlers:
                return None
            self._labels[job] = job if len(self._labels) < MOST_LABELS else OTHER
        return self._labels[job]

    def _count(self, counts: _Counts, durations: Iterable[tuple[str, str | None, Sequence[float]]] = ()) -> None:
        try:
            for (name, queue, job), number in counts.items():
                self._metrics.count(name, number, queue=queue, job=job)
            for queue, job, seconds in durations:
                self._metrics.observe("job_duration_seconds", seconds, queue=queue, job=job)
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
