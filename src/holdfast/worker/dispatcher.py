"""`Dispatcher`: gives the backlog to the children, and says how much more they could do with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight
from holdfast.worker.fencing import Fencing
from holdfast.worker.holdings import Holdings
from holdfast.worker.pace import Pace

# A claimed job that no slot takes for this long is handed back, since another worker may have one: the first if every
# slot is at a long job, the second in any case.
HAND_BACK_AFTER_S: Final = 0.05
HAND_BACK_ANYWAY_S: Final = 0.5
# How long a job that must run alone waits for that before another worker may try, and how long it is left to them.
SUSPECT_S: Final = 1.0
ISOLATION_S: Final = 60.0


class Dispatcher:
    """Shares out whole batches. A suspect runs alone in its child; in its last life, alone in the worker."""

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
        """How many more jobs of each queue would be started soon, where a claim is worth it."""
        children = self._open_children(now)
        # Suspects come one by one: whoever waits for a child of its own keeps the next from being claimed.
        if self._is_isolating or len(self._backlog.suspects) >= len(children):
            return {}
        has_free_slot = any(len(child.held) < self._pool.slots for child in children)
        rooms: dict[str, int] = {}
        for queue in self._queues:
            batch = self._pace.batch(queue, self._pool.slots)
            room = sum(self._room_in(child, queue) for child in children) - len(self._backlog.usual)
            # A claim for a few jobs costs as much as one for many: it waits until it is worth it, or urgent.
            if room > 0 and (has_free_slot or room >= batch * len(children) // 4):
                rooms[queue] = room
        return rooms

    def dispatch(self, now: float) -> None:
        """Give the children what they have room for; what has waited too long goes back."""
        for child in self._pool.children:
            child.is_alone &= bool(child.held)  # the suspect it was kept free for may be gone
        if self._backlog.suspects:
            self._dispatch_suspect(now)
        if self._backlog.usual:
            self._share_out(now)
            self._hand_back_waiting(now)

    def hand_all_back(self) -> None:
        """Nothing more is given here: let others have it."""
        for flight in self._backlog:
            self._holdings.hand_back(flight)
        self._backlog.clear()

    @property
    def _is_isolating(self) -> bool:
        """Whether a job has the worker to itself, or waits for that."""
        return self._isolated is not None and self._isolated in self._holdings.flights

    def _open_children(self, now: float) -> list[ExecutorProcess]:
        """The children that can be given any job, and would start it soon."""
        return [child for child in self._pool.ready if not child.is_alone and not child.is_blocked(now)]

    def _room_in(self, child: ExecutorProcess, queue: str) -> int:
        """How many jobs of this queue the child should be given now."""
        only = len(self._queues) == 1
        held = {queue: len(child.held)} if only else Counter(one.lease.queue for one in child.held.values())
        return self._pace.room(held, queue, self._pool.slots)

    def _share_out(self, now: float) -> None:
        """Give each child its part of the backlog, the one with least to do first."""
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
        """Hand these to the child, but not those that were cancelled while they waited, or lost a lease that fences."""
        cancelled = [flight for flight in flights if flight.is_cancelled]
        if cancelled:
            for flight in cancelled:
                self._holdings.cancel(flight)
            flights = [flight for flight in flights if not flight.is_cancelled]
        lost = [flight for flight in flights if flight.is_lost and flight.message.fence]
        if lost:
            for flight in lost:
                self._holdings.forsake(flight)
            flights = [flight for flight in flights if flight not in lost]
        if flights:
            self._fencing.arm(child, flights)
            self._pool.give(child, flights)

    def _hand_back_waiting(self, now: float) -> None:
        # A child that gets on will have room in a moment.
        patience_s = HAND_BACK_ANYWAY_S if self._open_children(now) else HAND_BACK_AFTER_S
        waiting = self._backlog.usual
        while waiting and waiting[0].waits_since < now - patience_s:
            self._holdings.hand_back(waiting.popleft(), "no slot was free")

    def _dispatch_suspect(self, now: float) -> None:
        """Give the first suspect a child of its own.

        So whatever dies with it next time, no other job is lost for it. While it waits for that, it is not held for
        ever: another worker may have room.
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
            child.is_alone = True  # it is given nothing more until it has run the suspect
        patience_s = ISOLATION_S if is_last else SUSPECT_S
        if now > flight.waits_since + patience_s:
            suspects.popleft()
            self._holdings.hand_back(flight, "it has to run alone, and others are running", delay=patience_s)
