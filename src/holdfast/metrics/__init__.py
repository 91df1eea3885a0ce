"""Counting and measuring what workers do: the contracts, and the in-memory collector that is used by default.

`prometheus.py` has a collector for Prometheus; it needs the extra `metrics`.
"""

from holdfast.metrics.collector import InMemoryMetrics, MeasuringCollector, MetricsCollector, measuring

__all__ = ["InMemoryMetrics", "MeasuringCollector", "MetricsCollector", "measuring"]
