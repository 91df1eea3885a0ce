"""Metrics of workers: the contracts of a collector, and the in-memory collector, which is the default.

`prometheus.py` has a collector for Prometheus; it needs the extra `metrics`.
"""

from holdfast.metrics.collector import InMemoryMetrics, MeasuringCollector, MetricsCollector, measuring

__all__ = ["InMemoryMetrics", "MeasuringCollector", "MetricsCollector", "measuring"]
