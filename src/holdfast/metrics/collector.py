"""`MetricsCollector`: receives counters; `MeasuringCollector`: also receives measurements."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class MetricsCollector(Protocol):
    """Receives counters. It is called from the worker's threads and must not raise."""

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        """Add to a counter of a queue."""
        ...


@runtime_checkable
class MeasuringCollector(MetricsCollector, Protocol):
    """A collector that also receives measurements."""

    def observe(self, name: str, values: Sequence[float], *, queue: str) -> None:
        """Add measurements of a queue, such as the seconds that each of some jobs took."""
        ...


def measuring(collector: MetricsCollector) -> MeasuringCollector:
    """The collector itself if it accepts measurements, else a wrapper that drops them."""
    return collector if isinstance(collector, MeasuringCollector) else _CountingOnly(collector)


class _CountingOnly:
    def __init__(self, collector: MetricsCollector) -> None:
        self.count = collector.count

    def observe(self, name: str, values: Sequence[float], *, queue: str) -> None:
        pass


class InMemoryMetrics:
    """Counters and measurements of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._observed: dict[tuple[str, str], tuple[int, float]] = {}

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        with self._lock:
            self._counts[name, queue] += value

    def observe(self, name: str, values: Sequence[float], *, queue: str) -> None:
        with self._lock:
            number, total = self._observed.get((name, queue), (0, 0.0))
            self._observed[name, queue] = (number + len(values), total + sum(values))

    def total(self, name: str, queue: str | None = None) -> int:
        """The value of a counter, for one queue or over all queues."""
        with self._lock:
            return sum(
                value for (counted, where), value in self._counts.items() if counted == name and queue in (None, where)
            )

    def observed(self, name: str, queue: str) -> tuple[int, float]:
        """The number of measurements and their sum."""
        with self._lock:
            return self._observed.get((name, queue), (0, 0.0))
