"""Gauges: `WorkerLevels` of a worker, and `QueueLevels` of a queue."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.values import JobState


class WorkerLevels(Struct, frozen=True, kw_only=True):
    """The running jobs of a worker, its slots and processes, and the state of its connection to the engine."""

    running: int
    slots: int
    processes_ready: int
    verdicts_undelivered: int
    engine_unheard_s: float


class QueueLevels(Struct, frozen=True, kw_only=True):
    """The number of jobs in each state, how long the oldest due job has waited, and the number of live workers.

    `jobs` is empty for queues of other workers.
    """

    jobs: Mapping[JobState, int] = {}
    oldest_wait_s: float = 0.0
    workers: int = 0
