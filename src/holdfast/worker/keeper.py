"""`Keeper`: renews the leases a worker holds, from its own thread, and learns there of cancellations."""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.errors import BackendError
from holdfast.queues.contract import QueueBackend
from holdfast.values import JobLease, LeaseState

log = logging.getLogger("holdfast.keeper")


@dataclass(slots=True)
class _Held:
    lease: JobLease
    on_cancel: Callable[[], bool]
    is_told: bool = False


class Keeper:
    """Renews every held lease at a third of its length. A handler that blocks does not hold a renewal up."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, lease: JobLease, on_cancel: Callable[[], bool]) -> Generator[None]:
        """Keep this lease while the block runs; `on_cancel` is called if the job is cancelled, until it says True."""
        with self._lock:
            self._held[lease.id] = _Held(lease, on_cancel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(lease.id, None)

    def close(self) -> None:
        """Stop renewing. Leases that are still held end by themselves."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def renew_held(self) -> bool:
        """Renew what is held now; False if the engine could not be asked."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            return True
        try:
            states = self._backend.renew_many([one.lease for one in held])
        except Exception as problem:  # whatever it was: without this thread every lease would be lost
            unforeseen = not isinstance(problem, BackendError)
            log.warning("could not renew %d leases, trying again: %s", len(held), problem, exc_info=unforeseen)
            return False
        for one, state in zip(held, states, strict=True):
            try:
                self._tell(one, state)
            except Exception:
                log.exception("job %s could not be told of its cancellation, trying again", one.lease.id)
        return True

    def _tell(self, held: _Held, state: LeaseState) -> None:
        if held.is_told or state is LeaseState.HELD:
            return
        # The job may have ended since the leases were collected: then there is nobody left to tell.
        with self._lock:
            if self._held.get(held.lease.id) is not held:
                return
            if state is LeaseState.CANCEL_REQUESTED:
                held.is_told = held.on_cancel()
                return
        held.is_told = True
        log.warning("the lease of job %s was lost while it ran; its verdict will be refused", held.lease.id)

    def _run(self) -> None:
        interval = self._backend.policy.lease_s / 3
        wait = interval
        while not self._stop.wait(wait):
            wait = interval if self.renew_held() else min(interval, 1.0)
