"""`MetricsCollector`: whoever wants to know how often something happened."""

import threading
from collections import Counter
from typing import Protocol


class MetricsCollector(Protocol):
    """Receives counters. It is called from the worker's threads and must not raise."""

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        """Add to a counter of a queue."""
        ...


class InMemoryMetrics:
    """Counters of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        with self._lock:
            self._counts[name, queue] += value

    def total(self, name: str, queue: str | None = None) -> int:
        """What a counter has reached, over all queues or for one."""
        with self._lock:
            return sum(
                value for (counted, where), value in self._counts.items() if counted == name and queue in (None, where)
            )
