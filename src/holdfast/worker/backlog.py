"""`Backlog`: jobs in a worker's hands that no child has yet."""

from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.worker.executors.process import Flight


class Backlog:
    """First come, first given. `suspects`, delivered without a verdict before, stand in a line of their own."""

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
        """These were given and not started: they come first again, and wait from now on."""
        for flight in reversed(flights):
            flight.waits_since = now
            (self.suspects if flight.is_suspect else self.usual).appendleft(flight)

    def clear(self) -> None:
        self.usual.clear()
        self.suspects.clear()
