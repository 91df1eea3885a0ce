"""`Backlog`: jobs that a worker has claimed and not yet handed to a child."""

from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.worker.executors.process import Flight


class Backlog:
    """First in, first out. `suspects`, whose earlier deliveries ended without a verdict, have their own queue."""

    def __init__(self) -> None:
        self.usual: deque[Flight] = deque()
        self.suspects: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self.usual) + len(self.suspects)

    def __iter__(self) -> Iterator[Flight]:
        yield from self.usual
        yield from self.suspects

    def add(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            (self.suspects if flight.is_suspect else self.usual).append(flight)

    def put_back(self, flights: Sequence[Flight], now: float) -> None:
        """Put jobs that a child has not started back at the front."""
        for flight in reversed(flights):
            flight.waits_since = now
            (self.suspects if flight.is_suspect else self.usual).appendleft(flight)

    def clear(self) -> None:
        self.usual.clear()
        self.suspects.clear()
