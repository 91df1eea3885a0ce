"""`RoundRobin`: the order in which a worker claims from its queues."""

from collections.abc import Container, Mapping


class RoundRobin:
    """Weighted round robin: over time, queues that have work are served in proportion to their weights."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = dict(weights)
        self._served = dict.fromkeys(weights, 0.0)
        self._is_dry = dict.fromkeys(weights, True)
        self._now = 0.0

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._weights)

    def order(self, among: Container[str]) -> list[str]:
        """These queues, starting with the one that was served least for its weight."""
        return sorted((queue for queue in self._served if queue in among), key=self._claimed_share)

    def took(self, queue: str, number: int) -> None:
        """Record how many jobs were claimed from the queue; 0 means that it is empty."""
        self._is_dry[queue], was_dry = number == 0, self._is_dry[queue]
        if number:
            # A queue that was empty for a while does not catch up on what it did not use.
            start = max(self._served[queue], self._now) if was_dry else self._served[queue]
            self._now = start
            self._served[queue] = start + number / self._weights[queue]

    def _claimed_share(self, queue: str) -> float:
        return max(self._served[queue], self._now) if self._is_dry[queue] else self._served[queue]
