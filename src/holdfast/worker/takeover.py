"""`Takeover`: the worker's thread that watches other workers on this host and requeues the jobs of dead ones."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine
from holdfast.state.identity import database_id
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted
from holdfast.worker.sessions import SessionFile, Unsupported

log = logging.getLogger("holdfast.takeover")

PROBE_EVERY_S: Final = 0.3
REPEAT_EVERY_S: Final = 0.6


class Takeover:
    """Probes the session files. `expire` ends the leases of a session and returns how many; `reap` requeues jobs."""

    def __init__(
        self, file: SessionFile, engine: Engine, *, expire: Callable[[bytes], int], reap: Callable[[], None]
    ) -> None:
        self._file = file
        self._engine = engine
        self._registry = WorkerRegistry(engine.state)
        self._expire = expire
        self._reap = reap
        # A request of a dead worker may still be on its way, so its leases are ended again until this time.
        self._repeat_until: dict[bytes, float] = {}
        self._repeat_at = 0.0
        self._problem = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-takeover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop probing; `join` waits for the probe in progress."""
        self._is_over.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._probe()
                self._problem = ""
            except Unsupported as problem:
                log.warning("dead-worker detection is off: %s", problem)
                return
            except BackendUnavailable as problem:
                log.debug("engine unavailable: %s", problem)
            except (BackendError, OSError) as problem:
                self._report(str(problem))
            except Exception:
                log.exception("detecting dead workers failed, retrying")
            self._is_over.wait(PROBE_EVERY_S)

    def _report(self, problem: str) -> None:
        """Log a problem once, not with each probe that meets it again."""
        if problem != self._problem:
            self._problem = problem
            log.warning("detecting dead workers failed, retrying: %s", problem)

    def _probe(self) -> None:
        if not self._file.is_published:
            self._file.publish(database_id(self._engine.state))
        for session in self._file.dead_neighbours():
            self._take_over(session)
        now = time.monotonic()
        if self._repeat_until and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_EVERY_S
            self._repeat_until = {session: until for session, until in self._repeat_until.items() if until > now}
            if sum(map(self._expire, self._repeat_until)):
                self._reap()

    def _take_over(self, session: bytes) -> None:
        expired = self._expire(session)
        # Even if no lease is left: an earlier try may have ended them and then failed to reap.
        self._reap()
        self._registry.leave(session.hex())
        self._file.forget(session)
        self._repeat_until[session] = time.monotonic() + self._engine.policy.lease_s
        log.warning("worker %s died on this host while it held %s", session.hex(), counted(expired, "job"))
