"""`Fencing`: acts on what becomes of leases while their jobs run: cancelled, lost, or no longer known to hold."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.values import JobLease
from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight, KillReason
from holdfast.worker.holdings import Holdings
from holdfast.worker.keeper import Keeper
from holdfast.worker.mailbox import Mailbox

log = logging.getLogger("holdfast.worker")

# How much earlier than the lease's end a fenced job is killed: its kill must be over by then.
FENCE_MARGIN_S: Final = 1.0


class Fencing:
    """The keeper tells it, on its thread; it acts on the loop's."""

    def __init__(self, keeper: Keeper, holdings: Holdings, pool: ProcessPool, mailbox: Mailbox) -> None:
        self._keeper = keeper
        self._holdings = holdings
        self._pool = pool
        self._mailbox = mailbox
        self._unmatched: list[tuple[Callable[[Flight], None], JobLease]] = []

    def on_cancel(self, lease: JobLease) -> bool:
        self._mailbox.post(lambda: self._report(self._cancel, lease))
        return True

    def on_lost(self, lease: JobLease) -> None:
        self._mailbox.post(lambda: self._report(self._lost, lease))

    def arm(self, child: ExecutorProcess, flights: Sequence[Flight]) -> None:
        """See to it that those of these that asked for it do not outlive their leases in this child."""
        fences = [self._fence_of(flight) for flight in flights if flight.message.fence]
        if fences:
            # Before it can start: we may stand still a moment later.
            child.fence(min([*fences, *map(self._fence_of, child.fenced.values())]))

    def enforce(self, now: float) -> None:
        """Kill what asked for it before its lease can pass to somebody else; or, if we should stand still, have it
        killed then.
        """
        for child in self._pool.children:
            until = min((self._fence_of(flight) for flight in child.fenced.values()), default=None)
            child.fence(until)
            if until is not None and now > until:
                self._pool.kill([one for one in child.fenced.values() if now > self._fence_of(one)], KillReason.FENCED)

    def admitted(self) -> None:
        """Act on reports that came while their jobs were being admitted. Reports about finished jobs are dropped."""
        reports, self._unmatched = self._unmatched, []
        for act, lease in reports:
            flight = self._holdings.flight_of(lease)
            if flight is not None:
                act(flight)

    def _fence_of(self, flight: Flight) -> float:
        return self._keeper.fence_at(flight.lease) - min(FENCE_MARGIN_S, flight.lease.ttl_s / 4)

    def _report(self, act: Callable[[Flight], None], lease: JobLease) -> None:
        flight = self._holdings.flight_of(lease)
        if flight is None:
            self._unmatched.append((act, lease))
        else:
            act(flight)

    def _cancel(self, flight: Flight) -> None:
        flight.is_cancelled = True
        if flight.child is not None and flight.number in flight.child.running:
            flight.child.stop(flight, cancelled=True, now=time.monotonic())
        elif flight.child is not None:
            flight.child.recall()

    def _lost(self, flight: Flight) -> None:
        flight.is_lost = True
        log.warning("job %s: lease lost while it was running; its result will be discarded", flight.lease.id)
        if flight.message.fence:
            self._pool.kill([flight], KillReason.FENCED)
