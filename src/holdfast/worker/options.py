"""How a worker works."""

from collections.abc import Mapping

from msgspec import Struct


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """How a worker works. `queues` have weights; 0 means no limit for `max_jobs`, no end for `grace_s`, and to wait for
    an engine that does not answer for ever.
    """

    queues: Mapping[str, int]
    processes: int = 1
    concurrency: int = 1
    burst: bool = False
    max_jobs: int = 0
    grace_s: float = 30.0
    kill_after_s: float = 10.0
    give_up_after_s: float = 0.0
    poll_interval_s: float = 1.0
    reap_interval_s: float = 10.0

    @property
    def slots(self) -> int:
        """How many jobs run at once."""
        return self.processes * self.concurrency
