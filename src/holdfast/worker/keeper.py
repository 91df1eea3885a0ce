"""`Keeper`: renews the leases a worker holds, from its own thread, and learns there of cancellations."""

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from holdfast.errors import BackendError
from holdfast.queues.contract import QueueBackend
from holdfast.values import JobLease, LeaseState

log = logging.getLogger("holdfast.keeper")


class Listener:
    """Whoever holds leases and wants to know what a renewal found. Called on the keeper's thread."""

    def on_cancel(self, lease: JobLease) -> bool:
        """The job shall be cancelled; asked again at each renewal until this says True."""
        return True

    def on_lost(self, lease: JobLease) -> None:
        """The lease is gone; told once."""


class Keeper:
    """Renews every held lease at a third of its length. A handler that blocks does not hold a renewal up."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        # By the lease's identity: of one job, several may be in our hands, if the first was lost.
        self._held: dict[int, tuple[JobLease, Listener]] = {}
        self._told: set[int] = set()
        self._proven: dict[int, float] = {}
        self._interval_s = backend.policy.lease_s / 3
        self._renewed_at: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leases: Iterable[JobLease], listener: Listener) -> None:
        """Keep these leases until they are dropped."""
        with self._lock:
            self._held.update({id(lease): (lease, listener) for lease in leases})
            if self._thread is None and self._held:
                self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
                self._thread.start()

    def drop(self, leases: Iterable[JobLease]) -> None:
        """Renew these no more: they are settled, or lost."""
        with self._lock:
            for key in map(id, leases):
                if self._held.pop(key, None) is not None and self._proven:
                    self._proven.pop(key, None)
                    self._told.discard(key)

    @contextmanager
    def holding(self, lease: JobLease, on_cancel: Callable[[], bool]) -> Generator[None]:
        """Keep this lease while the block runs; `on_cancel` is called if the job is cancelled, until it says True."""
        self.hold([lease], _Single(on_cancel))
        try:
            yield
        finally:
            self.drop([lease])

    def fence_at(self, lease: JobLease) -> float:
        """Until when, on this process's monotonic clock, the lease is known to hold."""
        return self._proven.get(id(lease), lease.fence_at)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop renewing; what is held ends by itself. A thread that the engine keeps waiting is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def renew_held(self) -> bool:
        """Renew what is held now; False if the engine could not be asked."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            self._renewed_at = None
            return True
        asked_at = self._backend.clock.monotonic()
        try:
            states = self._backend.renew_many([lease for lease, _ in held])
        except Exception as problem:  # whatever it was: without this thread every lease would be lost
            unforeseen = not isinstance(problem, BackendError)
            log.warning("could not renew %d leases, trying again: %s", len(held), problem, exc_info=unforeseen)
            return False
        gap = 0.0 if self._renewed_at is None else asked_at - self._renewed_at
        self._renewed_at = asked_at
        if gap > 2 * self._interval_s:
            log.warning("leases that last %g s were renewed only after %.1f s", self._backend.policy.lease_s, gap)
        for (lease, listener), state in zip(held, states, strict=True):
            if state is not LeaseState.LOST:
                self._prove(lease, asked_at + lease.ttl_s)
            if state is not LeaseState.HELD:
                self._tell(lease, listener, state)
        return True

    def _prove(self, lease: JobLease, fence_at: float) -> None:
        with self._lock:
            if id(lease) in self._held:
                self._proven[id(lease)] = fence_at

    def _tell(self, lease: JobLease, listener: Listener, state: LeaseState) -> None:
        key = id(lease)
        # The job may have ended since the leases were collected: then there is nobody left to tell.
        with self._lock:
            if key not in self._held or key in self._told:
                return
            self._proven.setdefault(key, lease.fence_at)
            try:
                if state is LeaseState.LOST or listener.on_cancel(lease):
                    self._told.add(key)
            except Exception:
                log.exception("job %s could not be told of its cancellation, trying again", lease.id)
                return
        if state is LeaseState.LOST:
            listener.on_lost(lease)

    def _run(self) -> None:
        wait = self._interval_s
        while not self._stop.wait(wait):
            wait = self._interval_s if self.renew_held() else min(self._interval_s, 1.0)


class _Single(Listener):
    def __init__(self, on_cancel: Callable[[], bool]) -> None:
        self._on_cancel = on_cancel

    def on_cancel(self, lease: JobLease) -> bool:
        return self._on_cancel()

    def on_lost(self, lease: JobLease) -> None:
        log.warning("the lease of job %s was lost while it ran; its verdict will be refused", lease.id)
