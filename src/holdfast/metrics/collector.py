"""`MetricsCollector`: receives counters; `MeasuringCollector`: also receives measurements."""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable


class MetricsCollector(Protocol):
    """Receives counters. It is called from the worker's threads and must not raise.

    A method that also has the parameter `job: str | None = None` receives the name of the job, if it is known.
    """

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        """Add to a counter of a queue."""
        ...


@runtime_checkable
class MeasuringCollector(MetricsCollector, Protocol):
    """A collector that also receives measurements."""

    def observe(self, name: str, values: Sequence[float], *, queue: str) -> None:
        """Add measurements of a queue, such as the seconds that each of some jobs took."""
        ...


class LabellingCollector(Protocol):
    """A collector that receives counters and measurements with the names of their jobs."""

    def count(self, name: str, value: int = 1, *, queue: str, job: str | None = None) -> None:
        """Add to a counter of a queue and a job."""
        ...

    def observe(self, name: str, values: Sequence[float], *, queue: str, job: str | None = None) -> None:
        """Add measurements of a queue and a job."""
        ...


def labelling(collector: MetricsCollector) -> LabellingCollector:
    """The collector, called with measurements and the names of jobs only if it accepts them."""
    return _Adapted(collector)


class _Adapted:
    def __init__(self, collector: MetricsCollector) -> None:
        observe = collector.observe if isinstance(collector, MeasuringCollector) else _ignore
        self.count = _with_job(collector.count)
        self.observe = _with_job(observe)


def _ignore(*_: object, **__: object) -> None:
    pass


def _with_job(method: Callable[..., None]) -> Callable[..., None]:
    """The method, called without the parameter `job` if it does not have it."""
    try:
        inspect.signature(method).bind("", 1, queue="", job=None)
    except (TypeError, ValueError):  # it has no such parameter, or is written in C
        pass
    else:
        return method

    def call(name: str, value: Any = 1, *, queue: str, job: str | None = None) -> None:
        method(name, value, queue=queue)

    return call


class InMemoryMetrics:
    """Counters and measurements of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str | None]] = Counter()
        self._observed: dict[tuple[str, str, str | None], tuple[int, float]] = {}

    def count(self, name: str, value: int = 1, *, queue: str, job: str | None = None) -> None:
        with self._lock:
            self._counts[name, queue, job] += value

    def observe(self, name: str, values: Sequence[float], *, queue: str, job: str | None = None) -> None:
        with self._lock:
            number, total = self._observed.get((name, queue, job), (0, 0.0))
            self._observed[name, queue, job] = (number + len(values), total + sum(values))

    def total(self, name: str, queue: str | None = None, job: str | None = None) -> int:
        """The value of a counter, for one queue or over all queues, and for one job or over all jobs."""
        with self._lock:
            return sum(
                value
                for (counted, where, what), value in self._counts.items()
                if counted == name and queue in (None, where) and job in (None, what)
            )

    def observed(self, name: str, queue: str, job: str | None = None) -> tuple[int, float]:
        """The number of measurements and their sum, for one job or over all jobs."""
        with self._lock:
            found = [
                seen
                for (observed, where, what), seen in self._observed.items()
                if (observed, where) == (name, queue) and job in (None, what)
            ]
        return sum(number for number, _ in found), sum((total for _, total in found), 0.0)
