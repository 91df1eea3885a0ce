"""Metrics of workers: the counters, the contracts of a collector, and the in-memory collector, which is the default.

`prometheus.py` has a collector for Prometheus; it needs the extra `metrics`.
"""

from holdfast.metrics.collector import InMemoryMetrics, MeasuringCollector, MetricsCollector, labelling
from holdfast.metrics.counters import End

__all__ = ["End", "InMemoryMetrics", "MeasuringCollector", "MetricsCollector", "labelling"]
