"""`ResultHandler`: settles jobs according to the results that children report, or to how a child died."""

import time
from collections.abc import Callable, Sequence

from holdfast import errors
from holdfast.errors import HoldfastError, UnknownHandler
from holdfast.execution.retry import RetryPolicy
from holdfast.values import CancelJob, ErrorInfo, ExecutionResult, JobLease, Outcome, Progress
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.pool import PoolListener
from holdfast.worker.executors.process import Flight, KillReason
from holdfast.worker.holdings import Holdings
from holdfast.worker.pace import Pace
from holdfast.worker.reporting import EXECUTOR_DIED
from holdfast.worker.verdict import policy_of, suspected, verdict_on


class ResultHandler(PoolListener):
    """Receives the results of the children: successes in batches, everything else one by one."""

    def __init__(
        self,
        holdings: Holdings,
        *,
        pace: Pace,
        retry: RetryPolicy,
        on_progress: Callable[[JobLease, Progress], None],
    ) -> None:
        self._holdings = holdings
        self._pace = pace
        self._retry = retry
        self._pass_progress_on = on_progress

    def on_done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> None:
        for (queue, _), durations in self._holdings.done(flights, frames).items():
            self._pace.took(queue, durations)

    def on_ended(self, flight: Flight, result: ExecutionResult) -> None:
        message, lease = flight.message, flight.lease
        self._pace.took(lease.queue, [result.duration_s])
        settlement = verdict_on(result, message, lease, policy_of(message, self._retry))
        self._holdings.settle(flight, settlement, result.duration_s)

    def on_refused(self, flight: Flight, error: str, message: str) -> None:
        kind = getattr(errors, error, UnknownHandler)
        problem = (
            kind(message) if isinstance(kind, type) and issubclass(kind, HoldfastError) else UnknownHandler(message)
        )
        self._holdings.refuse(flight, problem)

    def on_returned(self, flights: Sequence[Flight]) -> None:
        self._holdings.backlog.put_back(flights, time.monotonic())

    def on_progress(self, flight: Flight, progress: Progress) -> None:
        self._pass_progress_on(flight.lease, progress)

    def on_died(
        self, flights: Sequence[Flight], how: str, killed_for: tuple[KillReason, frozenset[int]] | None
    ) -> None:
        if killed_for is not None:
            why, meant = killed_for
            for flight in flights:
                self._killed(flight, why, is_meant=flight.number in meant)
        elif len(flights) == 1:
            # It was the only job started in that child, so it is to blame.
            error = ErrorInfo(type=EXECUTOR_DIED, message=how)
            self.on_ended(flights[0], self._holdings.cut_short(flights[0], Outcome.CRASHED, error))
        else:
            error = ErrorInfo(type=EXECUTOR_DIED, message=f"{how}, with {len(flights)} jobs started")
            for flight in flights:
                record = self._holdings.cut_short(flight, Outcome.CRASHED, error).record()
                policy = policy_of(flight.message, self._retry)
                self._holdings.settle(flight, suspected(flight.lease, record, policy))

    def _killed(self, flight: Flight, why: KillReason, *, is_meant: bool) -> None:
        if not is_meant:
            self._holdings.release(flight, "its process was killed because of another job")
            return
        match why:
            case KillReason.TIMEOUT:
                limit = f"ran longer than its timeout of {flight.message.timeout:g} s and was killed"
                error = ErrorInfo(type="holdfast.JobTimeout", message=limit)
                self.on_ended(flight, self._holdings.cut_short(flight, Outcome.TIMEOUT, error))
            case KillReason.CANCELLED:
                record = self._holdings.cut_short(
                    flight, Outcome.CANCELLED, note=f"killed: the job {why.value}"
                ).record()
                self._holdings.settle(flight, CancelJob(lease=flight.lease, record=record))
            case KillReason.FENCED:
                self._holdings.drop(flight)
            case _:
                self._holdings.release(flight, f"killed: the job {why.value}")
