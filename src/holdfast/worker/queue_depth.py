"""`QueueDepth`: reads the state of queues and circuits for the metrics of a worker."""

import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.errors import BackendError
from holdfast.metrics.levels import QueueLevels
from holdfast.queues.contract import Engine
from holdfast.state.breakers import Breakers
from holdfast.state.workers import WorkerRegistry, queues_of
from holdfast.values import PRIVATE_QUEUE_PATTERN, CircuitState, JobState, WorkerState

log = logging.getLogger("holdfast.census")

ASK_EVERY_S: Final = 5.0
# Counting takes at most this share of the engine's time: millions of jobs are counted less often.
LARGEST_SHARE: Final = 0.05
PATIENCE_S: Final = 1.0
# How long a count is still shown after the next one was due, if the engine is unavailable.
STANDS_FOR_S: Final = 60.0
# Each circuit has its own label in the metrics, which costs memory in their database.
MOST_CIRCUITS: Final = 100


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
        self._levels: Mapping[str, QueueLevels] | None = None
        self._circuits: Mapping[str, CircuitState] = {}
        self._stands_until = -math.inf

    def read(self) -> Mapping[str, QueueLevels] | None:
        """The latest levels, by queue; None if there are no recent ones.

        They include the queues of other workers, or of none, in which jobs are due, but without the numbers of jobs.
        """
        with self._lock:
            if self._is_answered.is_set() and self._now() >= self._ask_at:
                self._is_answered.clear()
                threading.Thread(target=self._ask, name="holdfast-census", daemon=True).start()
        self._is_answered.wait(self._patience_s)
        return self._levels if self._now() < self._stands_until else None

    def circuits(self) -> Mapping[str, CircuitState]:
        """The states of the circuits when the latest levels were read; at most 100, first those that are not closed."""
        return self._circuits

    def _ask(self) -> None:
        asked_at = self._now()
        levels: Mapping[str, QueueLevels] | None = None
        try:
            circuits = self._read_circuits()
            levels = self._count()
            self._circuits = circuits
        except Exception as problem:  # if this thread died without an answer, no other would ever be started
            is_expected = isinstance(problem, BackendError)
            level = logging.DEBUG if is_expected else logging.WARNING
            log.log(level, "could not count jobs: %s", problem, exc_info=not is_expected)
        now = self._now()
        self._ask_at = now + max(ASK_EVERY_S, (now - asked_at) / LARGEST_SHARE)
        self._levels, self._stands_until = levels, self._ask_at + STANDS_FOR_S
        self._is_answered.set()

    def _count(self) -> Mapping[str, QueueLevels]:
        counts = self._engine.counts(self._queues[0] if len(self._queues) == 1 else None)
        waits = self._engine.oldest_waits()
        live = [view for view in WorkerRegistry(self._engine.state).all() if view.state is WorkerState.LIVE]
        workers = Counter(queue for view in live for queue in queues_of(view))
        # The process of a `holdfast run` works on its private queue without being a worker.
        others = {queue for queue in waits if not re.fullmatch(PRIVATE_QUEUE_PATTERN, queue)}
        return {
            queue: QueueLevels(
                jobs={state: counts.get(queue, {}).get(state, 0) for state in JobState if queue in self._queues},
                oldest_wait_s=waits[queue].seconds if queue in waits else 0.0,
                workers=workers[queue],
            )
            for queue in {*self._queues, *others}
        }

    def _read_circuits(self) -> Mapping[str, CircuitState]:
        views = sorted(Breakers(self._engine.state).all(), key=lambda view: view.state is CircuitState.CLOSED)
        return {view.name: view.state for view in views[:MOST_CIRCUITS]}

    def _now(self) -> float:
        return self._engine.clock.monotonic()
