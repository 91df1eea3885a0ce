"""`WorkerLoop`: processes the jobs of some queues in this process, one at a time, and does maintenance."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.units import format_duration
from holdfast.values import ErrorInfo, WorkerResult, WorkerStatus
from holdfast.worker.backoff import pause_after
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.worker import QueueWorker

log = logging.getLogger("holdfast.loop")

SHARED_WAIT_S: Final = 0.02
STOP_CHECK_S: Final = 0.5


class WorkerLoop:
    """Processes queues in turn. `stop` lets the running job finish; `burst` exits when no job is due."""

    def __init__(
        self,
        worker: QueueWorker,
        queues: Sequence[str],
        *,
        poll_interval_s: float = 1.0,
        reap_interval_s: float = 10.0,
        burst: bool = False,
        max_jobs: int = 0,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> None:
        self._worker = worker
        self._queues = list(queues)
        self._poll_interval_s = poll_interval_s
        self._burst = burst
        self._max_jobs = max_jobs
        self._on_result = on_result
        self._is_stopping = False
        self._limited: dict[str, float] = {}
        self._empty_until: dict[str, float] = {}
        self._refusing: set[str] = set()
        self._maintenance = Maintenance(
            worker.backend, worker.copies, reap_interval_s=reap_interval_s, on_reaped=worker.reporter.reaped
        )
        self._done_before = worker.reporter.jobs_done

    @property
    def jobs_done(self) -> int:
        """The number of jobs that this loop has run."""
        return self._worker.reporter.jobs_done - self._done_before

    def stop(self) -> None:
        """Claim no more jobs; the running job finishes. Safe to call from a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Process jobs until stopped, until no job is due (`burst`), or until `max_jobs` jobs have run."""
        failures = 0
        if not self._burst:
            with suppress(BackendError):
                self._worker.circuits.recall(self._queues)
        while not self._is_stopping:
            try:
                if self._maintenance.run_due():
                    self._worker.circuits.answered()
                    self._worker.circuits.note()
                worked = self._turn()
            except Exception as problem:
                if self._burst:
                    raise
                failures += 1
                self._recover(problem, failures)
                continue
            failures = 0
            if self._burst and not worked:
                break
        with suppress(BackendError):
            self._worker.circuits.note()

    def _recover(self, problem: Exception, failures: int) -> None:
        """Report the problem and wait a little: one outage, or one bad row, must not end the worker."""
        if isinstance(problem, BackendUnavailable):
            pause = self._worker.backoff.failed(problem, "claim jobs")
        else:
            pause = pause_after(failures)
            log.error("processing failed, continuing in %s", format_duration(pause), exc_info=problem)
        if self._on_result is not None:
            error = ErrorInfo(type=type(problem).__name__, message=str(problem))
            self._on_result(WorkerResult(status=WorkerStatus.ERROR, error=error))
        self._worker.clock.sleep(pause)

    def _turn(self) -> bool:
        """Process at most one job of each queue. Returns whether there was one, or a queue waits for its rate limit."""
        worked = False
        for queue in self._queues:
            if self._is_stopping:
                break
            if self._empty_until.get(queue, 0.0) > self._worker.clock.monotonic():
                continue
            result = self._worker.process_once(queue, wait=self._wait(worked, queue), unless=lambda: self._is_stopping)
            if result.status is WorkerStatus.CIRCUIT_OPEN:
                self._refused(queue, result, worked)
                continue
            self._refusing.discard(queue)
            is_limited = result.status is WorkerStatus.RATE_LIMITED and result.job_id is None
            # A burst must not wait for the next token of a queue without jobs.
            is_empty = is_limited and self._burst and not self._worker.has_work(queue, self._poll_interval_s)
            if result.status is WorkerStatus.EMPTY or is_empty:
                self._limited.pop(queue, None)
                self._rest(queue)
                continue
            # Reported once, not in every turn, until the queue is empty.
            if self._on_result is not None and not (is_limited and queue in self._limited):
                self._on_result(result)
            if is_limited:
                self._limited[queue] = self._worker.clock.monotonic() + (result.retry_in or 0.0)
                continue
            worked = True
            if self._max_jobs and self.jobs_done >= self._max_jobs:
                self.stop()
        if self._limited and not worked and not self._is_stopping:
            soonest_s = min(self._limited.values()) - self._worker.clock.monotonic()
            self._worker.clock.sleep(max(0.0, min(soonest_s, self._poll_interval_s, STOP_CHECK_S)))
        return worked or bool(self._limited)

    def _rest(self, queue: str) -> None:
        """Skip an empty queue with a rate limit for a while, because every claim from it takes tokens and returns them.
        The last queue is not skipped: the loop waits on it.
        """
        if self._worker.is_limited(queue) and queue != self._queues[-1] and not self._burst:
            self._empty_until[queue] = self._worker.clock.monotonic() + self._poll_interval_s

    def _refused(self, queue: str, result: WorkerResult, worked: bool) -> None:
        """Report once that the circuit of a queue has opened, and pause before the next turn."""
        if queue not in self._refusing:
            self._refusing.add(queue)
            if self._on_result is not None:
                self._on_result(result)
        if wait_s := self._wait(worked, queue):
            self._worker.clock.sleep(wait_s)

    def _wait(self, worked: bool, queue: str) -> float:
        """Wait only on the last queue of a turn without work; if there are several queues, only briefly."""
        if self._burst or worked or queue != self._queues[-1]:
            return 0.0
        return min(self._poll_interval_s, STOP_CHECK_S if len(self._queues) == 1 else SHARED_WAIT_S)
