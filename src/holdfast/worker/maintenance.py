"""`Maintenance`: every worker reaps jobs of dead workers, prunes old records, tidies the engine's files, and copies
dead letters that no worker has settled.

It is stateless and runs on jittered timers in every worker. There is no leader, and no lock that could be left behind.
"""

import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from holdfast.clock import Clock, from_us
from holdfast.queues.contract import Engine
from holdfast.units import counted
from holdfast.values import DeadReason, JobFilter, JobState, JobView
from holdfast.worker.dead_letters import DeadLetterCopies, UnsettledDeaths

log = logging.getLogger("holdfast.loop")

PRUNE_INTERVAL_S: Final = 60.0
COPY_INTERVAL_S: Final = 60.0
# Maintenance runs about once a second. The interval is shorter because timers are jittered.
REPAIR_INTERVAL_S: Final = 0.8


class Timer:
    """Due at the first check and then at jittered intervals, so that workers do not fall into step."""

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
    """Runs each task when it is due. `on_reaped` receives the number of reaped jobs."""

    def __init__(
        self, backend: Engine, copies: DeadLetterCopies, *, reap_interval_s: float, on_reaped: Callable[[int], None]
    ) -> None:
        self._backend = backend
        self._deaths = UnsettledDeaths(backend, copies)
        self._on_reaped = on_reaped
        self._reap = Timer(backend.clock, reap_interval_s)
        self._repair = Timer(backend.clock, REPAIR_INTERVAL_S)
        self._prune = Timer(backend.clock, PRUNE_INTERVAL_S)
        self._copy = Timer(backend.clock, COPY_INTERVAL_S)

    def run_due(self) -> bool:
        """Run what is due. Returns whether there was anything, so that the engine has answered."""
        has_run = False
        for timer, task in (
            (self._reap, self.reap),
            (self._prune, self._clean),
            (self._repair, self._backend.repair),
            (self._copy, self._deaths.check),
        ):
            if timer.is_due():
                task()
                has_run = True
        return has_run

    def _clean(self) -> None:
        self._backend.prune()
        self._backend.tidy()

    def reap(self, which: str = "whose lease had expired") -> None:
        """Requeue the jobs whose leases have expired, and log how many; `which` describes them."""
        # In all queues: jobs of a queue without workers must not look as if they were running.
        since = from_us(self._backend.clock.now_us())
        reaped = self._backend.reap_expired()
        if reaped:
            dead = self._announce_crash_loops(since)
            self._on_reaped(reaped)
            log.warning("reaped %s %s", counted(reaped, "job"), which)
            self._deaths.reaped(dead)

    def _announce_crash_loops(self, since: datetime) -> list[JobView]:
        """Log and return the jobs that reaping has dead-lettered: no worker ran them to log it."""
        where = JobFilter(states=(JobState.DEAD,), dead_reason=DeadReason.CRASH_LOOP)
        found = self._backend.find(where).jobs
        dead = [job for job in found if job.finished_at is not None and job.finished_at >= since]
        for job in dead:
            log.critical(
                "job %s (%s) dead-lettered (crash loop): its worker died %d times while running it",
                job.id,
                job.job,
                job.crashes,
            )
        return dead
