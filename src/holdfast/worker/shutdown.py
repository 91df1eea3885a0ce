"""`Shutdown`: stops a worker, after its running jobs or at once, and records why it failed if it did."""

import logging
import time
from typing import Final

from holdfast.errors import BackendUnavailable
from holdfast.units import counted, format_duration
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.caretaker import Caretaker
from holdfast.worker.claim_cycle import ClaimCycle
from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.options import WorkerOptions
from holdfast.worker.systemd import Notifier

log = logging.getLogger("holdfast.worker")

HURRY_KILL_AFTER_S: Final = 1.0
FLUSH_S: Final = 10.0


class Shutdown:
    """Does nothing until `drain` or `hurry` is called, or the engine has been unavailable for too long."""

    def __init__(
        self,
        options: WorkerOptions,
        *,
        pool: ProcessPool,
        claim_cycle: ClaimCycle,
        backoff: EngineBackoff,
        caretaker: Caretaker,
        notifier: Notifier,
    ) -> None:
        self.failure: Exception | None = None
        self._options = options
        self._pool = pool
        self._claim_cycle = claim_cycle
        self._backoff = backoff
        self._caretaker = caretaker
        self._notifier = notifier
        self._draining_since: float | None = None
        self._hurried_since: float | None = None

    @property
    def is_begun(self) -> bool:
        return self._draining_since is not None

    @property
    def has_waited_enough(self) -> bool:
        """Whether a worker that stops at once has tried long enough to settle its jobs."""
        since = self._hurried_since
        return since is not None and not self._pool.children and time.monotonic() > since + FLUSH_S

    def drain(self) -> None:
        """Claim no more jobs and finish the running ones."""
        if self._draining_since is None:
            self._draining_since = time.monotonic()
            self._notifier.stopping()
            self._claim_cycle.leave()
            self._pool.leave()
            self._caretaker.beat_now()

    def hurry(self) -> None:
        """Also release the running jobs."""
        self.drain()
        if self._hurried_since is None:
            self._hurried_since = time.monotonic()
            self._claim_cycle.hurry()
            self._pool.hurry(self._hurried_since, HURRY_KILL_AFTER_S)

    def tend(self, now: float) -> None:
        """Release the running jobs once the grace period has expired; give up on an engine that stays unavailable."""
        self._give_up_if_unavailable(now)
        since, grace = self._draining_since, self._options.grace_s
        if since is not None and grace and now > since + grace and self._hurried_since is None and self._pool.children:
            running = counted(self._pool.running, "running job")
            log.warning("grace period of %s expired; releasing %s", format_duration(grace), running)
            self.hurry()
        if self._hurried_since is not None:
            self._pool.hurry(now, HURRY_KILL_AFTER_S)  # another job may have started since

    def _give_up_if_unavailable(self, now: float) -> None:
        """Stop with an error, so that the service manager starts a new process, which may reach the engine."""
        limit_s, since = self._options.give_up_after_s, self.unavailable_since
        if limit_s and since is not None and now > since + limit_s and self.failure is None:
            self.failure = BackendUnavailable(f"engine unavailable for {format_duration(now - since)}; giving up")
            self.hurry()

    @property
    def unavailable_since(self) -> float | None:
        """The time since when the engine has answered neither the exchanger nor the caretaker, if it is unavailable."""
        # While every slot is busy the exchanger has nothing to ask for, but the caretaker asks every second.
        asked, cared = self._backoff, self._caretaker
        # Read once: other threads change them at any moment.
        asking_since, caring_since = asked.failing_since, cared.failing_since
        if asking_since is not None and asking_since > cared.answered_at:
            return asking_since
        if caring_since is not None and caring_since > asked.answered_at:
            return caring_since
        return None
