"""`PrometheusMetrics`: a worker's counters and measurements, for Prometheus to scrape. Needs the extra `metrics`.

Counters change with every job and are read every few seconds, so they are stored as plain numbers and converted to
Prometheus's samples when they are read. The labels are `queue`, for counters and durations also `job`, for the numbers
of jobs `state`, and for circuits only `circuit`.
"""

import re
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Final, TypeAlias

from holdfast.errors import ConfigError
from holdfast.metrics.counters import MEANINGS
from holdfast.metrics.levels import QueueLevels, WorkerLevels
from holdfast.values import CircuitState

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as problem:
    raise ConfigError("metrics need the package prometheus-client: pip install prometheus-client") from problem

PREFIX: Final = "holdfast_"
BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
CIRCUIT_LEVELS: Final = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}

_unfit = re.compile(r"[^a-zA-Z0-9_]")
_MEANINGS: Final = {**MEANINGS, "job_duration_seconds": "Duration of runs."}

_Key: TypeAlias = tuple[str, str, str]
"""The name of a metric, a queue, and a job or an empty text."""


class PrometheusMetrics(Collector):
    """A collector with its own registry, to which an application may add its own metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[_Key, int] = defaultdict(int)
        self._histograms: defaultdict[_Key, _Histogram] = defaultdict(_Histogram)
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def count(self, name: str, value: int = 1, *, queue: str, job: str | None = None) -> None:
        with self._lock:
            self._counts[_fit(name), queue, job or ""] += value

    def observe(self, name: str, values: Sequence[float], *, queue: str, job: str | None = None) -> None:
        with self._lock:
            self._histograms[_fit(name), queue, job or ""].add(values)

    def follow(
        self,
        levels: Callable[[], WorkerLevels],
        queues: Callable[[], Mapping[str, QueueLevels] | None],
        circuits: Callable[[], Mapping[str, CircuitState]] = dict,
    ) -> None:
        """Add the gauges of a worker, and of queues and circuits, by name. `queues` may return None if they and the
        circuits are unknown.
        """
        self.registry.register(_Levels(levels, queues, circuits))

    def render(self) -> tuple[bytes, str]:
        """The document to be scraped, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """All counters and histograms, in the form that the registry expects."""
        with self._lock:
            counts = sorted(self._counts.items())
            histograms = sorted((key, histogram.read()) for key, histogram in self._histograms.items())
        for name, counted in groupby(counts, _name):
            # To Prometheus, an empty label is a missing one.
            counter = CounterMetricFamily(PREFIX + name, _meaning(name), labels=["queue", "job"])
            for (_, *labels), count in counted:
                counter.add_metric(labels, count)
            yield counter
        for name, observed in groupby(histograms, _name):
            histogram = HistogramMetricFamily(PREFIX + name, _meaning(name), labels=["queue", "job"])
            for (_, *labels), (buckets, total) in observed:
                histogram.add_metric(labels, buckets, total)
            yield histogram


class _Levels(Collector):
    """The gauges of one worker, and of the queues and circuits that it knows."""

    def __init__(
        self,
        levels: Callable[[], WorkerLevels],
        queues: Callable[[], Mapping[str, QueueLevels] | None],
        circuits: Callable[[], Mapping[str, CircuitState]],
    ) -> None:
        self._levels = levels
        self._queues = queues
        self._circuits = circuits

    def collect(self) -> Iterator[Metric]:
        levels = self._levels()
        yield _gauge("worker_jobs_running", "Jobs this worker is running.", levels.running)
        yield _gauge("worker_slots", "Jobs this worker can run at once.", levels.slots)
        yield _gauge("worker_processes_ready", "Processes that accept jobs.", levels.processes_ready)
        yield _gauge(
            "worker_verdicts_undelivered",
            "Settlements that the engine has not confirmed yet.",
            levels.verdicts_undelivered,
        )
        yield _gauge("engine_unheard_seconds", "Time since the engine last responded.", levels.engine_unheard_s)
        queues = self._queues()
        if queues is None:
            return
        jobs = GaugeMetricFamily(
            f"{PREFIX}jobs", "Jobs in the queues of this worker, by state.", labels=["queue", "state"]
        )
        waits = GaugeMetricFamily(
            f"{PREFIX}queue_oldest_wait_seconds",
            "Time for which the oldest due job of a queue has waited; 0 if no job is due.",
            labels=["queue"],
        )
        workers = GaugeMetricFamily(
            f"{PREFIX}queue_workers",
            "Live workers of a queue; 0 if jobs are due and no worker runs them.",
            labels=["queue"],
        )
        for queue, known in sorted(queues.items()):
            for state, number in known.jobs.items():
                jobs.add_metric([queue, state], number)
            waits.add_metric([queue], known.oldest_wait_s)
            workers.add_metric([queue], known.workers)
        circuits = GaugeMetricFamily(
            f"{PREFIX}circuit_state",
            "State of a circuit breaker: 0 = closed, 1 = half-open, 2 = open.",
            labels=["circuit"],
        )
        for circuit, circuit_state in sorted(self._circuits().items()):
            circuits.add_metric([circuit], CIRCUIT_LEVELS[circuit_state])
        yield from (jobs, waits, workers, circuits)


class _Histogram:
    """The number of values in each bucket, and the sum of all values."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def add(self, values: Sequence[float]) -> None:
        counts = self._counts
        for value in values:
            counts[bisect_left(BUCKETS_S, value)] += 1
        self._sum += sum(values)

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """For each bound, the number of values up to it; and the sum."""
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, meaning, value=value)


def _name(item: tuple[_Key, object]) -> str:
    return item[0][0]


@lru_cache(maxsize=256)
def _fit(name: str) -> str:
    return _unfit.sub("_", name)


def _meaning(name: str) -> str:
    return _MEANINGS.get(name, name.replace("_", " ").capitalize() + ".")
