"""`Fencing`: acts on running jobs that are cancelled, lose their lease, or can no longer be sure to hold it."""

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

# How long before its lease expires a fenced job is killed: the kill must be complete by then.
FENCE_MARGIN_S: Final = 1.0


class Fencing:
    """The keeper calls `on_cancel` and `on_lost` on its own thread; the loop then acts on them."""

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
        """Have the child killed before the leases of the fenced jobs among these expire."""
        fences = [self._fence_of(flight) for flight in flights if flight.is_fenced]
        if fences:
            # Before a job can start: this process may be stopped a moment later.
            child.fence(min([*fences, *map(self._fence_of, child.fenced.values())]))

    def enforce(self, now: float) -> None:
        """Kill fenced jobs before another worker can acquire their lease. The guardian does it if we are stopped."""
        for child in self._pool.children:
            until = min((self._fence_of(flight) for flight in child.fenced.values()), default=None)
            child.fence(until)
            if until is not None and now > until:
                self._pool.kill([one for one in child.fenced.values() if now > self._fence_of(one)], KillReason.FENCED)

    def admitted(self) -> None:
        """Act on reports that arrived while their jobs were being admitted. Reports on finished jobs are dropped."""
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
        if flight.is_fenced:
            self._pool.kill([flight], KillReason.FENCED)
