"""What there is at this moment: `WorkerLevels` of a worker, and `JobCounts` of its queues, as its engine knows them."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from holdfast.values import JobState

JobCounts: TypeAlias = Mapping[str, Mapping[JobState, int]]
"""How many jobs are in each state, by queue."""


class WorkerLevels(Struct, frozen=True, kw_only=True):
    """Jobs that are running, how many could, in how many processes, and how well the worker gets on with its engine."""

    running: int
    slots: int
    processes_ready: int
    verdicts_undelivered: int
    engine_unheard_s: float
