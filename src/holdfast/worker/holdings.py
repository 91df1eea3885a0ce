"""`Holdings`: the jobs in a worker's hands, and the verdicts on those that have left them."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.clock import Clock
from holdfast.values import CancelJob, ErrorInfo, ExecutionResult, JobLease, Outcome, Release, Settlement
from holdfast.worker.admission import refused
from holdfast.worker.backlog import Backlog
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.process import Flight
from holdfast.worker.keeper import Keeper
from holdfast.worker.reporting import Reporter
from holdfast.worker.settlements import PendingSettlements
from holdfast.worker.verdict import handed_back, momentary

# Settlements of jobs shorter than this wait a little for each other; those of longer ones are sent at once.
SHORT_S: Final = 0.01
SETTLE_LINGER_S: Final = 0.01


class Holdings:
    """A job is among the `flights` from its admission until there is a verdict on it, or until none can be given. Those
    that no child has yet are also in the `backlog`.

    `verdicts` are those that go to the engine next. `unsettled` jobs have left without an answer from it, and
    `endings` counts how often jobs have left with a verdict.
    """

    def __init__(self, keeper: Keeper, *, clock: Clock, reporter: Reporter) -> None:
        self.flights: set[Flight] = set()
        self.backlog = Backlog()
        self.unsent = PendingSettlements()
        self.unsettled = 0
        self.finished = 0
        self._keeper = keeper
        self._clock = clock
        self._reporter = reporter
        self._settle_by = 0.0
        self._is_urgent = False

    def add(self, flights: Sequence[Flight]) -> None:
        self.flights.update(flights)
        self.backlog.add(flights)

    def flight_of(self, lease: JobLease) -> Flight | None:
        return next((flight for flight in self.flights if flight.lease is lease), None)

    def done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> Mapping[str, Sequence[float]]:
        """These went well; how many seconds each of them took, by queue."""
        self._remove(flights)
        durations = self.unsent.add_successes(flights, frames)
        for seconds in durations.values():
            self._is_urgent = self._is_urgent or max(seconds) > SHORT_S
        return durations

    def finish(self, flight: Flight, settlement: Settlement, duration_s: float) -> None:
        """This one has run so long, and is to be settled like this."""
        self._is_urgent = self._is_urgent or duration_s > SHORT_S
        self.settle(flight, settlement)

    def settle(self, flight: Flight, settlement: Settlement) -> None:
        self._remove([flight])
        self.unsent.add(settlement, flight.message)

    def refuse(self, flight: Flight, problem: Exception) -> None:
        """Settle a job that its child could not run."""
        self.settle(flight, refused(flight.lease, problem, self._clock.now_us()))

    def cancel(self, flight: Flight) -> None:
        """Settle a job that was cancelled before it was started."""
        self.settle(flight, CancelJob(lease=flight.lease, record=momentary(Outcome.CANCELLED, self._clock.now_us())))

    def hand_back(self, flight: Flight, note: str = "", *, delay: float = 0.0) -> None:
        """Let another worker have it: what it did here, if anything, counts for nothing."""
        self._is_urgent = True
        if flight.started_at > 0:
            record = self.cut_short(flight, Outcome.INTERRUPTED, note=note).record()
            self.settle(flight, Release(lease=flight.lease, delay=delay, record=record))
        else:
            now_us = self._clock.now_us()
            self.settle(flight, handed_back(flight.lease, now_us, note, delay=delay, unstarted=True))

    def forsake(self, flight: Flight) -> None:
        """Let it go without a verdict: whether its lease still holds is not known, so nothing may be said about it."""
        self.flights.discard(flight)
        self._keeper.drop([flight.lease])
        self.unsettled += 1

    def cut_short(
        self, flight: Flight, outcome: Outcome, error: ErrorInfo | None = None, *, note: str = ""
    ) -> ExecutionResult:
        """The result of an attempt that could not tell its own, from its start to now."""
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
        """Whether all verdicts are on short jobs: more will come in a moment, for the same commit."""
        return not self._is_urgent and now < self._settle_by

    def take_unsent(self) -> PendingSettlements:
        """What is to go to the engine now; it is the caller's from here."""
        verdicts, self.unsent, self._is_urgent = self.unsent, PendingSettlements(), False
        return verdicts

    def answered(self, verdicts: PendingSettlements, held: Sequence[bool | None]) -> None:
        """The engine has answered these, each with whether its lease still held; None is no answer."""
        self._keeper.drop(verdicts.leases)
        self.unsettled += verdicts.report(held, self._reporter)

    def _remove(self, flights: Sequence[Flight]) -> None:
        """These leave our hands, with verdicts that go out next."""
        self.flights.difference_update(flights)
        self.finished += 1
        if not self.unsent:
            self._settle_by = time.monotonic() + SETTLE_LINGER_S
