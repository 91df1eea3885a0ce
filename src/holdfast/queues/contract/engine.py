"""`Engine`: composed of jobs, records and shared state, with readable verbs for single jobs.

An engine *has* its parts, so that one that sends its messages through another system can reuse another engine's
records and state.
It also has the verbs of its jobs and records: most callers need nothing but the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, Self

import msgspec
from msgspec import Struct

from holdfast.codec import MAX_WIRE_BYTES
from holdfast.errors import NotSupported
from holdfast.queues.contract.edges import check_parents
from holdfast.queues.contract.jobs import EngineTransaction, Jobs, new_owner_token
from holdfast.queues.contract.records import SHOWN_RELATIVES, Records
from holdfast.queues.contract.state import PAGE, SharedState
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.values import (
    Abandon,
    Accepted,
    Ack,
    AttemptRecord,
    CancelAnswer,
    CellWrite,
    DeadReason,
    Entered,
    Entry,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    LeaseState,
    LiveOutput,
    Nack,
    Page,
    Progress,
    QueuePause,
    QueueWait,
    Relatives,
    Release,
    ReplayAnswer,
    Settlement,
    SlotView,
)

if TYPE_CHECKING:
    from holdfast.definition import JobDefinition


class Capabilities(Struct, frozen=True, kw_only=True):
    """The features of an engine. Using one that it lacks raises `NotSupported`; nothing is silently downgraded."""

    durable: bool
    shared: bool
    transactional_enqueue: bool
    wakes_up: bool
    dependencies: bool = False
    max_wire_bytes: int = MAX_WIRE_BYTES
    delay_resolution_s: float = 1e-6


class EngineInfo(Struct, frozen=True, kw_only=True):
    """The description of an engine. A schema of 0 does not exist yet; None means that the engine has no schema.

    `clock_us` is the server's clock when it was read; an engine without a server uses the clock of this host.
    """

    server: str
    names: str = ""
    schema: int | None = None
    known_schema: int | None = None
    settings: Mapping[str, str]
    survives: str
    clock_us: int | None = None


class Connections(Protocol):
    """The access of an engine to its database, and the schema there."""

    def check_schema(self) -> None:
        """Raise if the engine is unavailable, or if its schema is not the one this program knows."""

    def describe(self) -> EngineInfo:
        """The software, its settings, and what an accepted job survives there; nothing is created."""
        ...

    def create_schema(self) -> None:
        """Create or update the schema; many processes may call this at once."""

    def close(self) -> None:
        """Close every connection. Leases do not change."""


class Engine:
    """Moves jobs, stores the whole record of each, and holds the state that workers share."""

    capabilities: Capabilities

    def __init__(
        self,
        envelopes: EnvelopeFactory,
        connections: Connections,
        *,
        jobs: Jobs,
        records: Records,
        state: SharedState,
    ) -> None:
        self.envelopes = envelopes
        self._connections = connections
        self.jobs = jobs
        self.records = records
        self.state = state
        self.policy = jobs.policy
        self.clock = jobs.clock

    # The engine as a whole: see `Connections`.

    def tidy(self) -> None:
        """Do maintenance on the engine's own files, such as a checkpoint. No job is affected."""

    def check(self) -> None:
        self._connections.check_schema()

    def describe(self) -> EngineInfo:
        return self._connections.describe()

    def create_schema(self) -> None:
        self._connections.create_schema()

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One message at a time.

    def enqueue(self, definition: "JobDefinition", *, id: str | None = None, tx: object | None = None) -> str:
        """Store one job of this definition and return its id."""
        return self.accept([self.envelopes.make(definition, id=id)], tx)[0].id

    def fetch(self, queue: str) -> JobLease | None:
        """Lease the next job of the queue, or None if none is due."""
        leases = self.claim(queue, 1, owner_token=new_owner_token())
        return leases[0] if leases else None

    def ack(self, lease: JobLease, record: AttemptRecord | None = None) -> bool:
        """Acknowledge the job: it is completed."""
        return self.settle([Ack(lease=lease, record=record)])[0]

    def nack(self, lease: JobLease, delay: float | None = None, record: AttemptRecord | None = None) -> bool:
        """Report that the run failed: one more attempt, and a retry after the delay."""
        return self.settle([Nack(lease=lease, delay=delay or 0.0, record=record)])[0]

    def release(self, lease: JobLease, delay: float | None = None, record: AttemptRecord | None = None) -> bool:
        """Release the job without using up an attempt."""
        return self.settle([Release(lease=lease, delay=delay or 0.0, record=record)])[0]

    def abandon(self, lease: JobLease, reason: DeadReason, record: AttemptRecord | None = None) -> bool:
        """Dead-letter the job; nothing is deleted."""
        return self.settle([Abandon(lease=lease, reason=reason, record=record)])[0]

    def renew(self, lease: JobLease) -> JobLease | None:
        """Extend the lease and return it. An expired lease is never revived: another worker may hold the job."""
        fence_at = self.clock.monotonic() + lease.ttl_s
        if self.renew_many([lease])[0] is LeaseState.LOST:
            return None
        return msgspec.structs.replace(lease, fence_at=fence_at)

    # Jobs: see `Jobs`, which never receives an empty batch.

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        if writes and tx is not None:
            # The caller may leave it open for minutes, with the cells locked. A worker that settles with writes to them
            # would wait with its leased rows locked, and lose every lease of the batch.
            raise ValueError("writes cannot be part of a caller's transaction; call accept without tx")
        self._check_transaction(tx)
        if any(one.after for one in envelopes):
            if not self.capabilities.dependencies:
                raise NotSupported("this engine does not support dependencies between jobs; leave out after")
            check_parents(envelopes)
        return self.jobs.accept(envelopes, tx, writes=writes) if envelopes or writes else []

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        self._check_transaction(tx)
        return self.jobs.reschedule(envelopes, tx) if envelopes else []

    def _check_transaction(self, tx: object | None) -> None:
        if tx is not None and not self.capabilities.transactional_enqueue:
            raise NotSupported("this engine cannot enqueue in your transaction; leave tx out, or use an SQL engine")

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        return self.jobs.transaction(job_id, delivery)

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        return self.jobs.claim(queue, limit, owner_token=owner_token, wait=wait)

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        return self.jobs.enter(entries) if entries else []

    def repair(self) -> int:
        return self.jobs.repair()

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        self.jobs.wait_for_work(queues, timeout, wake=wake)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self.jobs.settle(settlements) if settlements else []

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        return self.jobs.exchange(settlements, queue, limit, owner_token=owner_token)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self.jobs.renew_many(leases) if leases else []

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self.jobs.lease_states(leases) if leases else []

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        return self.jobs.report_progress(reports) if reports else []

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        return self.jobs.report_output(reports) if reports else []

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        return self.jobs.expire_leases(sessions) if sessions else 0

    def reap_expired(self, queue: str | None = None) -> int:
        reaped = self.jobs.reap_expired(queue)
        if reaped:
            # In a second transaction, because the reaper locks jobs before it can know their slots.
            self.jobs.repair()
        return reaped

    def pause(self, queue: str, reason: str = "") -> None:
        self.jobs.pause(queue, reason)

    def resume(self, queue: str) -> bool:
        return self.jobs.resume(queue)

    def pauses(self) -> Sequence[QueuePause]:
        return self.jobs.pauses()

    # Records: see `Records`.

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        return self.records.counts(queue)

    def oldest_waits(self) -> dict[str, QueueWait]:
        return self.records.oldest_waits()

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        return self.records.find(where, limit=limit, after=after)

    def dead_letters(self, *, queue: str | None = None, limit: int = 50, after: str | None = None) -> Page:
        return self.records.dead_letters(queue=queue, limit=limit, after=after)

    def get(self, job_id: str) -> JobHistory | None:
        return self.records.get(job_id)

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        return self.records.slots(names, after=after, limit=limit)

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        return self.records.relatives(job_id, limit=limit)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        return self.records.cancel(job_id, reason)

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        return self.records.replay(job_id, ignore_expiry=ignore_expiry)

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        return self.records.discard(job_id, states=states)

    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        return self.records.purge(states, queue=queue, older_than=older_than)

    def prune(self) -> int:
        """Delete records that were retained long enough, and sweep shared state. Returns how many jobs were deleted."""
        deleted = self.records.prune()
        while self.state.sweep() >= PAGE:
            pass
        return deleted
