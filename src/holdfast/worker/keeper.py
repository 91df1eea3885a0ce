"""`Keeper`: the thread of a worker that renews its leases and notices cancellation requests."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.errors import BackendError
from holdfast.queues.contract import Engine
from holdfast.units import counted, format_duration
from holdfast.values import JobLease, LeaseState

log = logging.getLogger("holdfast.keeper")

CHECK_EVERY_S: Final = 1.0


class Keeper:
    """Renews every held lease after a third of its length. A handler that blocks does not delay it.

    Between renewals, it checks each second the leases that were already held at the last check.

    Both callbacks run on the keeper's thread. `on_cancel` receives the lease of a job with a cancellation request,
    at each check until it returns True. `on_lost` receives a lost lease, once.
    """

    def __init__(
        self, backend: Engine, *, on_cancel: Callable[[JobLease], bool], on_lost: Callable[[JobLease], None]
    ) -> None:
        self._backend = backend
        self._on_cancel = on_cancel
        self._on_lost = on_lost
        self._lock = threading.Lock()
        # By the identity of the lease: if a lease was lost, this worker may hold another one on the same job.
        self._held: dict[int, JobLease] = {}
        self._notified: set[int] = set()
        self._fences: dict[int, float] = {}
        self._checked: frozenset[int] = frozenset()
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
        """Stop renewing these: they are settled, or lost."""
        with self._lock:
            for key in map(id, leases):
                if self._held.pop(key, None) is not None and self._fences:
                    self._fences.pop(key, None)
                    self._notified.discard(key)

    def fence_at(self, lease: JobLease) -> float:
        """The time, on this process's monotonic clock, until which the lease is known to hold."""
        return self._fences.get(id(lease), lease.fence_at)

    def close(self, timeout_s: float | None = None) -> None:
        """Stop renewing. If the thread is blocked on the engine, give up on it after `timeout_s`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def check(self) -> None:
        """Check the leases that were already held at the last check. If the engine is unavailable, do nothing."""
        with self._lock:
            checked, self._checked = self._checked, frozenset(self._held)
            held = [lease for key, lease in self._held.items() if key in checked and key not in self._notified]
        if not held:
            return
        try:
            states = self._backend.lease_states(held)
        except BackendError as problem:
            log.debug("could not check %s: %s", counted(len(held), "lease"), problem)
            return
        except Exception:  # without this thread every lease would be lost
            log.exception("could not check %s", counted(len(held), "lease"))
            return
        for lease, state in zip(held, states, strict=True):
            if state is not LeaseState.HELD:
                self._notify(lease, state)

    def renew_held(self) -> bool:
        """Renew the held leases. Returns False if the engine is unavailable."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            self._renewed_at = None
            return True
        asked_at = self._backend.clock.monotonic()
        try:
            states = self._backend.renew_many(held)
        except Exception as problem:  # without this thread every lease would be lost
            leases, is_unexpected = counted(len(held), "lease"), not isinstance(problem, BackendError)
            log.warning("could not renew %s, retrying: %s", leases, problem, exc_info=is_unexpected)
            return False
        gap = 0.0 if self._renewed_at is None else asked_at - self._renewed_at
        self._renewed_at = asked_at
        if gap > 2 * self._interval_s:
            log.warning(
                "lease renewal was late: %s since the last one (lease: %g s); this host may be overloaded",
                format_duration(gap),
                self._backend.policy.lease_s,
            )
        for lease, state in zip(held, states, strict=True):
            with self._lock:
                if state is not LeaseState.LOST and id(lease) in self._held:
                    self._fences[id(lease)] = asked_at + lease.ttl_s
            if state is not LeaseState.HELD:
                self._notify(lease, state)
        return True

    def _notify(self, lease: JobLease, state: LeaseState) -> None:
        key = id(lease)
        with self._lock:
            if key not in self._held or key in self._notified:  # the job may have finished since the check
                return
            self._fences.setdefault(key, lease.fence_at)
            try:
                if state is LeaseState.LOST or self._on_cancel(lease):
                    self._notified.add(key)
            except Exception:
                log.exception("could not pass the cancellation request on to job %s, retrying", lease.id)
                return
        if state is LeaseState.LOST:
            self._on_lost(lease)

    def _run(self) -> None:
        renew_at = time.monotonic() + self._interval_s
        while not self._stop.wait(min(CHECK_EVERY_S, max(0.0, renew_at - time.monotonic()))):
            if time.monotonic() < renew_at:
                self.check()
                continue
            is_renewed = self.renew_held()
            renew_at = time.monotonic() + (self._interval_s if is_renewed else min(self._interval_s, 1.0))
