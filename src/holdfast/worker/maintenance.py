"""What every worker does for all: takes back jobs of dead workers, drops old records, tends the engine's files.

Stateless, on jittered timers, by everybody: no leader, and no lock that could be left behind.
"""

import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from holdfast.clock import Clock, from_us
from holdfast.queues.contract import Engine
from holdfast.values import DeadReason, JobFilter, JobState

log = logging.getLogger("holdfast.loop")

PRUNE_INTERVAL_S: Final = 60.0


class Timer:
    """Due at the first look, then again and again, a little irregularly so that workers do not fall into step."""

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_at = clock.monotonic()

    def is_due(self) -> bool:
        now = self._clock.monotonic()
        if now < self._due_at:
            return False
        self._due_at = now + self._interval_s * random.uniform(0.8, 1.2)
        return True


class Maintenance:
    """Done when due; `on_reaped` hears how many jobs were taken back."""

    def __init__(self, backend: Engine, *, reap_interval_s: float, on_reaped: Callable[[int], None]) -> None:
        self._backend = backend
        self._on_reaped = on_reaped
        self._reap = Timer(backend.clock, reap_interval_s)
        self._prune = Timer(backend.clock, PRUNE_INTERVAL_S)

    def run_due(self) -> None:
        if self._reap.is_due():
            self._take_back()
        if self._prune.is_due():
            self._backend.prune()
            self._backend.tidy()

    def _take_back(self) -> None:
        # For all queues: one that nobody works any more must not keep jobs as if they were running.
        since = from_us(self._backend.clock.now_us())
        reaped = self._backend.reap_expired()
        if reaped:
            self._announce_crash_loops(since)
            self._on_reaped(reaped)
            log.warning("reaped %s whose lease had expired", _jobs(reaped))

    def _announce_crash_loops(self, since: datetime) -> None:
        """A job that ended its worker once too often died while nobody was looking: say so as for any other."""
        where = JobFilter(states=(JobState.DEAD,), dead_reason=DeadReason.CRASH_LOOP)
        for job in self._backend.find(where).jobs:
            if job.finished_at is not None and job.finished_at >= since:
                log.critical(
                    "job %s (%s) dead-lettered (crash loop): its worker died %d times while running it",
                    job.id,
                    job.job,
                    job.crashes,
                )


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
