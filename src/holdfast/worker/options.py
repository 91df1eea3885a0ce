"""`WorkerOptions`: the settings of one worker."""

from collections.abc import Mapping

from msgspec import Struct


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The settings of one worker. `queues` maps each queue to its weight. 0 means no limit for `max_jobs`, `grace_s`
    and `give_up_after_s`, which is how long to wait for an unavailable engine.
    """

    queues: Mapping[str, int]
    processes: int = 1
    concurrency: int = 1
    burst: bool = False
    max_jobs: int = 0
    grace_s: float = 0.0
    kill_after_s: float = 10.0
    give_up_after_s: float = 0.0
    poll_interval_s: float = 1.0
    reap_interval_s: float = 10.0

    @property
    def slots(self) -> int:
        """The number of jobs that can run at once."""
        return self.processes * self.concurrency
