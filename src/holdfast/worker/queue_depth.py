"""`QueueDepth`: counts the jobs of a worker's queues by state, for its metrics."""

import logging
import math
import threading
from collections.abc import Iterable
from typing import Final

from holdfast.errors import BackendError
from holdfast.metrics.levels import JobCounts
from holdfast.queues.contract import Engine
from holdfast.values import JobState

log = logging.getLogger("holdfast.census")

ASK_EVERY_S: Final = 5.0
# Counting takes at most this share of the engine's time: millions of jobs are counted less often.
LARGEST_SHARE: Final = 0.05
PATIENCE_S: Final = 1.0
# How long a count is still shown after the next one was due, if the engine is unavailable.
STANDS_FOR_S: Final = 60.0


class QueueDepth:
    """Counts on its own thread and not too often, however many clients ask and however long the engine takes."""

    def __init__(self, engine: Engine, queues: Iterable[str], *, patience_s: float = PATIENCE_S) -> None:
        self._engine = engine
        self._queues = tuple(queues)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._is_answered = threading.Event()
        self._is_answered.set()
        self._ask_at = -math.inf
        self._counts: JobCounts | None = None
        self._stands_until = -math.inf

    def read(self) -> JobCounts | None:
        """The latest count, with every state of every queue; None if there is no recent one."""
        with self._lock:
            if self._is_answered.is_set() and self._now() >= self._ask_at:
                self._is_answered.clear()
                threading.Thread(target=self._ask, name="holdfast-census", daemon=True).start()
        self._is_answered.wait(self._patience_s)
        return self._counts if self._now() < self._stands_until else None

    def _ask(self) -> None:
        asked_at = self._now()
        counts: JobCounts | None = None
        try:
            found = self._engine.counts(self._queues[0] if len(self._queues) == 1 else None)
            counts = {
                queue: {state: found.get(queue, {}).get(state, 0) for state in JobState} for queue in self._queues
            }
        except Exception as problem:  # if this thread died without an answer, no other would ever be started
            is_expected = isinstance(problem, BackendError)
            level = logging.DEBUG if is_expected else logging.WARNING
            log.log(level, "could not count jobs: %s", problem, exc_info=not is_expected)
        now = self._now()
        self._ask_at = now + max(ASK_EVERY_S, (now - asked_at) / LARGEST_SHARE)
        self._counts, self._stands_until = counts, self._ask_at + STANDS_FOR_S
        self._is_answered.set()

    def _now(self) -> float:
        return self._engine.clock.monotonic()
