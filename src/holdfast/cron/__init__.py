"""Schedules: when they are due, and what they enqueue."""

from holdfast.cron.frequencies import Frequencies
from holdfast.cron.timing import Cron, Every, Timing, instants, parse_timing

__all__ = ["Cron", "Every", "Frequencies", "Timing", "instants", "parse_timing"]
