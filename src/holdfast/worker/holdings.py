"""`Holdings`: the jobs that a worker holds, and the settlements that go to the engine next."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.clock import Clock
from holdfast.metrics import End
from holdfast.values import CancelJob, ErrorInfo, ExecutionResult, JobLease, Outcome, Release, Settlement
from holdfast.worker.admission import refused
from holdfast.worker.backlog import Backlog
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.process import Flight
from holdfast.worker.keeper import Keeper
from holdfast.worker.reporting import Reporter
from holdfast.worker.settlements import PendingSettlements
from holdfast.worker.verdict import momentary, released

# Settlements of jobs shorter than this wait a little for each other; those of longer jobs are sent at once.
SHORT_S: Final = 0.01
SETTLE_LINGER_S: Final = 0.01


class Holdings:
    """A job is among the `flights` from its admission until its verdict, or until it is dropped without one. Jobs that
    no child has yet are also in the `backlog`.

    `unsent` are the settlements that go to the engine next, and `finished` counts how often jobs have left with a
    verdict.
    """

    def __init__(self, keeper: Keeper, copies: DeadLetterCopies, *, clock: Clock, reporter: Reporter) -> None:
        self.flights: set[Flight] = set()
        self.backlog = Backlog()
        self.unsent = PendingSettlements(copies)
        self.finished = 0
        self._keeper = keeper
        self._copies = copies
        self._clock = clock
        self._reporter = reporter
        self._settle_by = 0.0
        self._is_urgent = False

    def add(self, flights: Sequence[Flight]) -> None:
        self.flights.update(flights)
        self.backlog.add(flights)

    def flight_of(self, lease: JobLease) -> Flight | None:
        return next((flight for flight in self.flights if flight.lease is lease), None)

    def done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> Mapping[tuple[str, str], Sequence[float]]:
        """Settle jobs that succeeded. Returns how many seconds each of them took, by queue and job."""
        self._remove(flights)
        durations = self.unsent.add_successes(flights, frames)
        for seconds in durations.values():
            self._is_urgent = self._is_urgent or max(seconds) > SHORT_S
        return durations

    def settle(self, flight: Flight, settlement: Settlement, duration_s: float = 0.0) -> None:
        """Settle a job that has run for `duration_s`."""
        self._is_urgent = self._is_urgent or duration_s > SHORT_S
        self._remove([flight])
        self.unsent.add(settlement, flight.message)

    def refuse(self, flight: Flight, problem: Exception) -> None:
        """Settle a job that its child could not run."""
        self.settle(flight, refused(flight.lease, problem, self._clock.now_us()))

    def cancel(self, flight: Flight) -> None:
        """Settle a job that was cancelled before it was started."""
        self.settle(flight, CancelJob(lease=flight.lease, record=momentary(Outcome.CANCELLED, self._clock.now_us())))

    def release(self, flight: Flight, note: str = "", *, delay: float = 0.0) -> None:
        """Return a job to its queue without using up an attempt."""
        self._is_urgent = True
        if flight.started_at > 0:
            record = self.cut_short(flight, Outcome.INTERRUPTED, note=note).record()
            self.settle(flight, Release(lease=flight.lease, delay=delay, record=record))
        else:
            now_us = self._clock.now_us()
            self.settle(flight, released(flight.lease, now_us, note, delay=delay, unstarted=True))

    def blocked(self, blocked: Sequence[JobLease], lost: Sequence[JobLease]) -> None:
        """Stop renewing leases that ended because a slot was full, or that were lost."""
        self._keeper.drop([*blocked, *lost])
        self._reporter.ended(End.BLOCKED, blocked)
        self._reporter.ended(End.LOST_LEASE, lost)

    def drop(self, flight: Flight) -> None:
        """Give a job up without a verdict, because its lease may have expired. It is reaped, or already was."""
        self.flights.discard(flight)
        self._keeper.drop([flight.lease])
        self._reporter.ended(End.UNSETTLED, [flight.lease])

    def give_up(self) -> None:
        """Give up the jobs and the settlements that are left when the worker exits."""
        self._reporter.ended(End.UNSETTLED, [flight.lease for flight in self.flights])
        self.answered(self.unsent, [None] * len(self.unsent))

    def cut_short(
        self, flight: Flight, outcome: Outcome, error: ErrorInfo | None = None, *, note: str = ""
    ) -> ExecutionResult:
        """The result of an attempt that could not report one itself, from its start to now."""
        now_us = self._clock.now_us()
        return ExecutionResult(
            handler=flight.message.job,
            outcome=outcome,
            started_us=now_us - int((time.monotonic() - flight.started_at) * 1e6),
            ended_us=now_us,
            output="" if flight.printed is None else flight.printed.text(),
            error=error,
            note=note,
        )

    def may_linger(self, now: float) -> bool:
        """Whether to wait for more settlements: all so far are of short jobs, so others will share their commit."""
        return not self._is_urgent and now < self._settle_by

    def take_unsent(self) -> PendingSettlements:
        """Hand over the settlements that go to the engine now."""
        taken, self.unsent, self._is_urgent = self.unsent, PendingSettlements(self._copies), False
        return taken

    def answered(self, sent: PendingSettlements, held: Sequence[bool | None]) -> None:
        """Report settlements, each with whether its lease still held, or None if the engine did not answer."""
        self._keeper.drop(sent.leases)
        sent.report(held, self._reporter)

    def _remove(self, flights: Sequence[Flight]) -> None:
        self.flights.difference_update(flights)
        self.finished += 1
        if not self.unsent:
            self._settle_by = time.monotonic() + SETTLE_LINGER_S
