"""Counting what workers do: a one-method contract, and the in-memory collector that is used by default."""

from holdfast.metrics.collector import InMemoryMetrics, MetricsCollector

__all__ = ["InMemoryMetrics", "MetricsCollector"]
