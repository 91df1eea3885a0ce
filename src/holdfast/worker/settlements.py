"""`PendingSettlements`: the settlements of the next request to the engine, reported once it has answered."""

from collections.abc import Mapping, Sequence

from holdfast.clock import MICROSECONDS
from holdfast.codec import JobMessage
from holdfast.values import AttemptRecord, JobLease, Outcome, Settlement
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.process import Flight
from holdfast.worker.reporting import Reporter
from holdfast.worker.verdict import carrying, succeeded


class PendingSettlements:
    """Successes are by far the most, so they are counted as they come and reported together."""

    def __init__(self, copies: DeadLetterCopies) -> None:
        self._copies = copies
        self._successes: list[Settlement] = []
        self._done: list[JobMessage] = []
        # By queue and job.
        self._durations: dict[tuple[str, str], list[float]] = {}
        self._others: list[Settlement] = []
        self._ended: list[JobMessage | None] = []

    def __len__(self) -> int:
        return len(self._successes) + len(self._others)

    @property
    def settlements(self) -> list[Settlement]:
        return self._successes + self._others

    @property
    def leases(self) -> list[JobLease]:
        return [settlement.lease for settlement in self.settlements]

    def add(self, settlement: Settlement, message: JobMessage | None) -> None:
        self._others.append(carrying(self._copies.carried_by(settlement, message), message))
        self._ended.append(message)

    def add_successes(
        self, flights: Sequence[Flight], frames: Sequence[Done]
    ) -> Mapping[tuple[str, str], Sequence[float]]:
        """Acknowledge these jobs. Returns how many seconds each of them took, by queue and job."""
        durations: dict[tuple[str, str], list[float]] = {}
        for flight, frame in zip(flights, frames, strict=True):
            lease, message, started_us, ended_us = flight.lease, flight.message, frame.started_us, frame.ended_us
            record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=started_us, ended_us=ended_us)
            self._successes.append(carrying(succeeded(lease, record), message))
            self._done.append(message)
            durations.setdefault((lease.queue, message.job), []).append((ended_us - started_us) / MICROSECONDS)
        for place, seconds in durations.items():
            self._durations.setdefault(place, []).extend(seconds)
        return durations

    def report(self, held: Sequence[bool | None], reporter: Reporter) -> None:
        """Report the answers, each of which is None if the engine did not answer."""
        first = len(self._successes)
        if all(held[:first]) and not reporter.reports_each:
            reporter.succeeded(self._durations)
        else:
            reporter.settled(list(zip(self._successes, self._done, strict=True)), held[:first])
        if self._others:
            reporter.settled(list(zip(self._others, self._ended, strict=True)), held[first:])
