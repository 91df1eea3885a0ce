"""`EngineBackoff`: how long a worker waits before it retries, and since when its engine has been unavailable."""

import logging
import random
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from holdfast.clock import Clock
from holdfast.errors import BackendUnavailable
from holdfast.units import format_duration

log = logging.getLogger("holdfast.worker")

T = TypeVar("T")

Listener: TypeAlias = Callable[[BackendUnavailable | None], None]

INSIST_LIMIT_S: Final = 5.0
_MAX_PAUSE_S: Final = 5.0


def pause_after(failures: int) -> float:
    """Seconds to wait after this many failures in a row; random, so that workers do not retry in step."""
    return min(_MAX_PAUSE_S, 0.1 * 2.0 ** min(failures, 6)) * random.uniform(0.5, 1.0)


class EngineBackoff:
    """One thread reports the outcome of every request to the engine here; any thread may read the attributes.

    A listener receives each failure, and None for each answer, on the thread that reports it.
    """

    def __init__(self, clock: Clock) -> None:
        self.failures = 0
        """The number of failures since the last answer."""
        self.failing_since: float | None = None
        self.answered_at = clock.monotonic()
        self._clock = clock
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def failed(self, problem: BackendUnavailable, what: str) -> float:
        """Count and log a failed request. Returns the seconds to wait before the next try."""
        self.failures += 1
        if self.failing_since is None:
            self.failing_since = self._clock.monotonic()
        pause_s = pause_after(self.failures)
        log.warning("engine unavailable, cannot %s; retrying in %s: %s", what, format_duration(pause_s), problem)
        self._notify(problem)
        return pause_s

    def answered(self) -> None:
        """Record that the engine has answered, whatever the answer was."""
        self.answered_at = self._clock.monotonic()
        if self.failing_since is not None:
            log.warning("engine available again after %s", format_duration(self.answered_at - self.failing_since))
            self.failing_since, self.failures = None, 0
        self._notify(None)

    def insist(self, call: Callable[[], T], what: str, *, wait: Callable[[float], object]) -> T:
        """Repeat a call for claimed jobs for a short time while the engine is unavailable. `wait` passes the time
        between two tries; if it returns True, there is no other one.
        """
        give_up_at = self._clock.monotonic() + INSIST_LIMIT_S
        while True:
            try:
                answer = call()
            except BackendUnavailable as problem:
                if self._clock.monotonic() >= give_up_at or wait(self.failed(problem, what)):
                    raise
            else:
                self.answered()
                return answer

    def _notify(self, problem: BackendUnavailable | None) -> None:
        for listener in self._listeners:
            listener(problem)
