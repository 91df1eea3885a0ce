"""`Keeper`: renews the leases a worker holds, from its own thread, and looks after them: are they to be cancelled?"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.errors import BackendError
from holdfast.queues.contract import Engine
from holdfast.values import JobLease, LeaseState

log = logging.getLogger("holdfast.keeper")

LOOK_EVERY_S: Final = 1.0


class Keeper:
    """Renews every held lease at a third of its length. A handler that blocks does not hold a renewal up.

    In between, it checks each second those that were already held at the last check.

    Both callbacks run on the keeper's thread. `on_cancel` receives the lease of a job that is to be cancelled, again at
    each check until it returns True. `on_lost` receives a lease that no longer holds, once.
    """

    def __init__(
        self, backend: Engine, *, on_cancel: Callable[[JobLease], bool], on_lost: Callable[[JobLease], None]
    ) -> None:
        self._backend = backend
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._lock = threading.Lock()
        # By the lease's identity: of one job, several may be in our hands, if the first was lost.
        self._held: dict[int, JobLease] = {}
        self._told: set[int] = set()
        self._proven: dict[int, float] = {}
        self._seen: frozenset[int] = frozenset()
        self._interval_s = backend.policy.lease_s / 3
        self._renewed_at: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, leases: Iterable[JobLease]) -> None:
        """Renew these leases until they are dropped."""
        with self._lock:
            self._held.update({id(lease): lease for lease in leases})
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

    def fence_at(self, lease: JobLease) -> float:
        """Until when, on this process's monotonic clock, the lease is known to hold."""
        return self._proven.get(id(lease), lease.fence_at)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop renewing; what is held ends by itself. A thread that the engine keeps waiting is left behind."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Learn what has become of what is held for a while; an engine that does not answer is asked another time."""
        with self._lock:
            seen, self._seen = self._seen, frozenset(self._held)
            held = [lease for key, lease in self._held.items() if key in seen and key not in self._told]
        if not held:
            return
        try:
            states = self._backend.lease_states(held)
        except BackendError as problem:
            log.debug("could not check %d lease(s): %s", len(held), problem)
            return
        except Exception:  # whatever it was: without this thread every lease would be lost
            log.exception("could not check %d lease(s)", len(held))
            return
        for lease, state in zip(held, states, strict=True):
            if state is not LeaseState.HELD:
                self._tell(lease, state)

    def renew_held(self) -> bool:
        """Renew what is held now; False if the engine could not be asked."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            self._renewed_at = None
            return True
        asked_at = self._backend.clock.monotonic()
        try:
            states = self._backend.renew_many(held)
        except Exception as problem:  # whatever it was: without this thread every lease would be lost
            unforeseen = not isinstance(problem, BackendError)
            log.warning("could not renew %d lease(s), retrying: %s", len(held), problem, exc_info=unforeseen)
            return False
        gap = 0.0 if self._renewed_at is None else asked_at - self._renewed_at
        self._renewed_at = asked_at
        if gap > 2 * self._interval_s:
            log.warning("leases of %g s were renewed late, after %.1f s", self._backend.policy.lease_s, gap)
        for lease, state in zip(held, states, strict=True):
            if state is not LeaseState.LOST:
                self._prove(lease, asked_at + lease.ttl_s)
            if state is not LeaseState.HELD:
                self._tell(lease, state)
        return True

    def _prove(self, lease: JobLease, fence_at: float) -> None:
        with self._lock:
            if id(lease) in self._held:
                self._proven[id(lease)] = fence_at

    def _tell(self, lease: JobLease, state: LeaseState) -> None:
        key = id(lease)
        # The job may have ended since the leases were collected: then there is nobody left to tell.
        with self._lock:
            if key not in self._held or key in self._told:
                return
            self._proven.setdefault(key, lease.fence_at)
            try:
                if state is LeaseState.LOST or self._on_cancel(lease):
                    self._told.add(key)
            except Exception:
                log.exception("could not pass the cancellation request on to job %s, retrying", lease.id)
                return
        if state is LeaseState.LOST:
            self._on_lost(lease)

    def _run(self) -> None:
        renew_at = time.monotonic() + self._interval_s
        while not self._stop.wait(min(LOOK_EVERY_S, max(0.0, renew_at - time.monotonic()))):
            if time.monotonic() < renew_at:
                self.look()
                continue
            is_renewed = self.renew_held()
            renew_at = time.monotonic() + (self._interval_s if is_renewed else min(self._interval_s, 1.0))
