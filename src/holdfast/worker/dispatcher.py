"""`Dispatcher`: hands the backlog to the children, and computes how many more jobs to claim."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight
from holdfast.worker.fencing import Fencing
from holdfast.worker.holdings import Holdings
from holdfast.worker.pace import Pace

# A claimed job that no slot takes for this long is released, because another worker may have a free slot: the first
# limit applies if every slot is running a long job, the second in any case.
RELEASE_AFTER_S: Final = 0.05
RELEASE_ANYWAY_S: Final = 0.5
# How long a job that must run alone waits for a child before it is released, and also how long it is then delayed.
SUSPECT_S: Final = 1.0
ISOLATION_S: Final = 60.0


class Dispatcher:
    """Hands out whole batches. A suspect runs alone in its child; if another crash would be its last, in the worker."""

    def __init__(
        self,
        holdings: Holdings,
        *,
        pool: ProcessPool,
        pace: Pace,
        fencing: Fencing,
        queues: Sequence[str],
        crash_limit: int,
    ) -> None:
        self._holdings = holdings
        self._backlog = holdings.backlog
        self._pool = pool
        self._pace = pace
        self._fencing = fencing
        self._queues = queues
        self._crash_limit = crash_limit
        self._isolated: Flight | None = None

    def room(self, now: float) -> Mapping[str, int]:
        """The number of further jobs of each queue that would start soon, where a claim is worth its cost."""
        children = self._open_children(now)
        # One suspect at a time: while one waits for a child of its own, no further one is claimed.
        if self._is_isolating or len(self._backlog.suspects) >= len(children):
            return {}
        has_free_slot = any(len(child.held) < self._pool.slots for child in children)
        rooms: dict[str, int] = {}
        for queue in self._queues:
            batch = self._pace.batch(queue, self._pool.slots)
            room = sum(self._room_in(child, queue) for child in children) - len(self._backlog.usual)
            # A claim for a few jobs costs as much as one for many, so it waits until it is worth it, or urgent.
            if room > 0 and (has_free_slot or room >= batch * len(children) // 4):
                rooms[queue] = room
        return rooms

    def dispatch(self, now: float) -> None:
        """Hand the children what they have room for, and release jobs that have waited too long."""
        for child in self._pool.children:
            child.is_alone &= bool(child.held)  # the suspect it was reserved for may be gone
        if self._backlog.suspects:
            self._dispatch_suspect(now)
        if self._backlog.usual:
            self._share_out(now)
            self._release_waiting(now)

    def release_all(self) -> None:
        """Release the whole backlog, because no more jobs are started here."""
        for flight in self._backlog:
            self._holdings.release(flight)
        self._backlog.clear()

    @property
    def _is_isolating(self) -> bool:
        """Whether a job has the worker to itself, or is waiting for that."""
        return self._isolated is not None and self._isolated in self._holdings.flights

    def _open_children(self, now: float) -> list[ExecutorProcess]:
        """The children that can take any job and would start it soon."""
        return [child for child in self._pool.ready if not child.is_alone and not child.is_blocked(now)]

    def _room_in(self, child: ExecutorProcess, queue: str) -> int:
        """The number of jobs of this queue to hand to the child now."""
        only = len(self._queues) == 1
        held = {queue: len(child.held)} if only else Counter(one.lease.queue for one in child.held.values())
        return self._pace.room(held, queue, self._pool.slots)

    def _share_out(self, now: float) -> None:
        """Hand each child its part of the backlog, starting with the child that has the fewest jobs."""
        waiting = self._backlog.usual
        children = self._open_children(now)
        children.sort(key=lambda child: len(child.held))
        for place, child in enumerate(children):
            part = -(-len(waiting) // (len(children) - place))
            part = min(part, self._room_in(child, waiting[0].lease.queue))
            self._give(child, [waiting.popleft() for _ in range(part)])
            if not waiting:
                return

    def _give(self, child: ExecutorProcess, flights: Sequence[Flight]) -> None:
        """Hand these to the child, except jobs that were cancelled while they waited, or lost a fenced lease."""
        cancelled = [flight for flight in flights if flight.is_cancelled]
        if cancelled:
            for flight in cancelled:
                self._holdings.cancel(flight)
            flights = [flight for flight in flights if not flight.is_cancelled]
        lost = [flight for flight in flights if flight.is_lost and flight.is_fenced]
        if lost:
            for flight in lost:
                self._holdings.drop(flight)
            flights = [flight for flight in flights if flight not in lost]
        if flights:
            self._fencing.arm(child, flights)
            self._pool.give(child, flights)

    def _release_waiting(self, now: float) -> None:
        # A child that is making progress will have room in a moment.
        patience_s = RELEASE_ANYWAY_S if self._open_children(now) else RELEASE_AFTER_S
        waiting = self._backlog.usual
        while waiting and waiting[0].waits_since < now - patience_s:
            self._holdings.release(waiting.popleft(), "no slot was free")

    def _dispatch_suspect(self, now: float) -> None:
        """Hand the first suspect to a child of its own, so that no other job dies with it if it crashes again.

        A suspect that waits too long for an empty child is released: another worker may have one.
        """
        suspects = self._backlog.suspects
        flight = suspects[0]
        is_last = flight.lease.crashes + 1 >= self._crash_limit
        if is_last:
            self._isolated = flight
        is_free = len(self._holdings.flights) == len(suspects) if is_last else not self._is_isolating
        child = min(self._pool.ready, key=lambda child: len(child.held), default=None)
        if is_free and child is not None and not child.held:
            child.is_alone = not flight.is_cancelled
            self._give(child, [suspects.popleft()])
            return
        if child is not None:
            child.is_alone = True  # no other job until it has run the suspect
        patience_s = ISOLATION_S if is_last else SUSPECT_S
        if now > flight.waits_since + patience_s:
            suspects.popleft()
            self._holdings.release(flight, "it has to run alone, and other jobs are running", delay=patience_s)
