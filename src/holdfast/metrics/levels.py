"""Gauges: `WorkerLevels` of a worker, and `JobCounts` of its queues."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from holdfast.values import JobState

JobCounts: TypeAlias = Mapping[str, Mapping[JobState, int]]
"""The number of jobs in each state, by queue."""


class WorkerLevels(Struct, frozen=True, kw_only=True):
    """The running jobs of a worker, its slots and processes, and the state of its connection to the engine."""

    running: int
    slots: int
    processes_ready: int
    verdicts_undelivered: int
    engine_unheard_s: float
