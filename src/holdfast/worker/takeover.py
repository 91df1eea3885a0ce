"""`Takeover`: the worker's thread that watches other workers on this host and requeues the jobs of dead ones."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine
from holdfast.state.identity import database_id
from holdfast.state.workers import WorkerRegistry
from holdfast.worker.sessions import SessionFile

log = logging.getLogger("holdfast.takeover")

PROBE_EVERY_S: Final = 0.3
REPEAT_EVERY_S: Final = 1.0


class Takeover:
    """Probes the session files; `reap` ends the leases of dead sessions and requeues their jobs."""

    def __init__(self, file: SessionFile, engine: Engine, reap: Callable[[Sequence[bytes]], None]) -> None:
        self._file = file
        self._engine = engine
        self._registry = WorkerRegistry(engine.state)
        self._reap = reap
        # A request of a dead worker may still be on its way: until when, and when next, its leases are ended again.
        self._repeats: dict[bytes, tuple[float, float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-takeover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        self._is_over.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._probe(time.monotonic())
            except BackendUnavailable as problem:
                log.debug("engine unavailable: %s", problem)
            except BackendError as problem:
                log.warning("taking over jobs failed, retrying: %s", problem)
            except Exception:
                log.exception("taking over jobs failed, retrying")
            self._is_over.wait(PROBE_EVERY_S)

    def _probe(self, now: float) -> None:
        if not self._file.is_published:
            self._file.publish(database_id(self._engine.state))
        dead = self._file.dead_neighbours()
        if dead:
            self._reap(dead)
            for session in dead:
                log.warning("worker %s died on this host; its jobs were requeued", session.hex())
                self._registry.leave(session.hex())
                self._file.forget(session)
                self._repeats[session] = (now + self._engine.policy.lease_s, now + REPEAT_EVERY_S)
        late = [session for session, (_, again_at) in self._repeats.items() if again_at <= now and session not in dead]
        if late:
            self._reap(late)
            again = {session: (until, now + REPEAT_EVERY_S) for session, (until, _) in self._repeats.items()}
            self._repeats = {session: times for session, times in again.items() if times[0] > now}
