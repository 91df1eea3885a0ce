"""The memory engine's data. One lock makes every verb atomic; several engines may share one `MemoryStore`, as several
workers would share a database.
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from holdfast.clock import from_us
from holdfast.queues.contract.engine import EngineInfo
from holdfast.queues.contract.records import message_fields
from holdfast.queues.contract.slots import JobNumber, SlotRow, Waiter
from holdfast.queues.contract.state import CellName, StoredCell
from holdfast.queues.contract.uniques import UniqueRow
from holdfast.values import (
    AttemptView,
    DeadReason,
    EdgeOutcome,
    JobEnvelope,
    JobLease,
    JobState,
    JobView,
    LiveOutput,
    OnParentFailure,
    Progress,
    QueuePause,
)

DURABILITY: Final = {"always": "nothing: jobs are lost when the process exits"}
"""What an accepted job survives, by the engine's settings."""


@dataclass(slots=True)
class StoredJob:
    """One job. `PENDING` means waiting; whether it is shown as scheduled depends on the time."""

    number: int
    envelope: JobEnvelope
    accepted_us: int
    due_us: int
    offer: int = 0
    state: JobState = JobState.PENDING
    attempts: int = 0
    crashes: int = 0
    deliveries: int = 0
    owner_token: str | None = None
    claimed_us: int = 0
    lease_us: int = 0
    lease_until_us: int = 0
    cancel_request: str | None = None
    cancel_reason: str | None = None
    dead_reason: DeadReason | None = None
    expired: bool = False
    ignore_expiry: bool = False
    finished_us: int | None = None
    blocked_us: int = 0
    progress: tuple[int, Progress] | None = None
    """The delivery of the latest report, and the report."""
    outputs: dict[int, LiveOutput] = field(default_factory=dict[int, LiveOutput])
    """The output reported by deliveries while they ran, unless their attempt has recorded it."""
    history: list[AttemptView] = field(default_factory=list[AttemptView])
    settled: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    """The claim and the verdict with which each delivery was settled, to recognise a repeated settlement."""

    @property
    def is_claimable(self) -> bool:
        return self.state in (JobState.PENDING, JobState.FAILED)

    @property
    def is_waiting(self) -> bool:
        return self.is_claimable or self.state is JobState.BLOCKED

    def finish(self, state: JobState, now: int) -> None:
        self.state = state
        self.finished_us = now
        self.cancel_request = None

    def view(self, now: int, blocked: Waiter | None = None) -> JobView:
        """The job as users see it. `blocked` is the slot that it waits for, if it is blocked."""
        waiting = self.state is JobState.PENDING and self.due_us > now
        errors = (past.record.error.line for past in reversed(self.history) if past.record.error)
        last_error = None if self.state is JobState.COMPLETED else next(errors, None)
        return JobView(
            id=self.envelope.id,
            queue=self.envelope.queue,
            state=JobState.SCHEDULED if waiting else self.state,
            job=self.envelope.job,
            attempts=self.attempts,
            crashes=self.crashes,
            deliveries=self.deliveries,
            accepted_at=from_us(self.accepted_us),
            due_at=from_us(self.due_us),
            finished_at=None if self.finished_us is None else from_us(self.finished_us),
            lease_until=from_us(self.lease_until_us) if self.state is JobState.PROCESSING else None,
            dead_reason=self.dead_reason,
            cancel_reason=self.cancel_reason,
            cancel_requested=self.cancel_request is not None,
            last_error=last_error,
            progress=self._shown_progress(),
            blocked_on=None if blocked is None else blocked.slot,
            blocked_since=from_us(self.blocked_us) if self.state is JobState.BLOCKED else None,
            **message_fields(self.envelope.wire),
        )

    def _shown_progress(self) -> Progress | None:
        is_shown = self.state in (JobState.PROCESSING, JobState.FAILED, JobState.DEAD, JobState.CANCELLED)
        if not is_shown or self.progress is None:
            return None
        delivery, progress = self.progress
        return progress if delivery == self.deliveries else None


@dataclass(slots=True)
class StoredPlace:
    """A place in a slot: held by the claim with this owner token, or reserved for a promoted job of this queue."""

    record: StoredJob
    owner_token: str | None
    queue: str
    fence: int = 0
    until_us: int = 0
    since_us: int = 0


@dataclass(slots=True)
class StoredEdge:
    """An edge between a parent and a child, which both of them share."""

    on_failure: OnParentFailure
    outcome: EdgeOutcome = EdgeOutcome.OPEN


@dataclass(slots=True)
class DeletedJob:
    """The tombstone of a job: enough to recognise its id."""

    digest: bytes
    until_us: int


class MemoryStore:
    """All data of the engine. One lock makes every verb atomic; heaps have each queue's best job on top."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: dict[str, StoredJob] = {}
        self.leased: dict[str, StoredJob] = {}
        self.tombstones: dict[str, DeletedJob] = {}
        self.pauses: dict[str, QueuePause] = {}
        self.cells: dict[CellName, StoredCell] = {}
        self.buckets: dict[str, int] = {}
        self.by_number: dict[JobNumber, StoredJob] = {}
        self.fences: dict[str, int] = {}
        self.sizes: dict[str, SlotRow] = {}
        """The slots whose size was set. Their fences are in `fences`."""
        self.places: dict[str, dict[JobNumber, StoredPlace]] = {}
        self.blocked: dict[JobNumber, Waiter] = {}
        self.waiting: dict[str, dict[str, list[tuple[int, int, str, Waiter]]]] = {}
        """By slot and queue, a heap of blocked jobs, best first. An entry that is not in `blocked` is stale."""
        self.uniques: dict[str, UniqueRow] = {}
        self.children: dict[JobNumber, dict[JobNumber, StoredEdge]] = {}
        """The edges of each parent, by child; `parents` has the same ones for each child."""
        self.parents: dict[JobNumber, dict[JobNumber, StoredEdge]] = {}
        self.notes: dict[JobNumber, None] = {}
        """Parents whose edges may disagree with their states, oldest first."""
        self.numbers = count(1)
        self._ready: defaultdict[tuple[str, int], list[tuple[int, str, int]]] = defaultdict(list)
        self._offers = count(1)

    def check_schema(self) -> None:
        pass

    def describe(self) -> EngineInfo:
        return EngineInfo(server="the memory of this process", settings={}, survives=DURABILITY["always"])

    def create_schema(self) -> None:
        pass

    def close(self) -> None:
        pass

    def clear(self) -> None:
        """Delete everything. The parts of an engine share this object, so it is emptied, not replaced."""
        with self.lock:
            for stored in (
                self.records,
                self.leased,
                self.tombstones,
                self.pauses,
                self.cells,
                self.buckets,
                self.by_number,
                self.fences,
                self.sizes,
                self.places,
                self.blocked,
                self.waiting,
                self.uniques,
                self.children,
                self.parents,
                self.notes,
                self._ready,
            ):
                stored.clear()

    def held(self, lease: JobLease, now: int) -> StoredJob | None:
        """The record of a lease; None if the lease no longer holds."""
        record = self.leased.get(lease.id)
        is_held = (
            record is not None
            and record.owner_token == lease.owner_token
            and record.number == lease.token
            and record.lease_until_us > now
        )
        return record if is_held else None

    def is_taken(self, place: StoredPlace, now: int) -> bool:
        """Whether a place is still taken: its job is running under that claim, or was promoted and can still enter."""
        record = place.record
        is_leased = self.leased.get(record.envelope.id) is record and record.lease_until_us > now
        if place.owner_token is not None:
            return is_leased and record.owner_token == place.owner_token
        is_due = record.is_claimable and record.due_us <= now
        return (is_due or is_leased) and record.envelope.queue == place.queue

    def is_blocked(self, record: StoredJob) -> bool:
        return record.state is JobState.BLOCKED and record.number in self.blocked

    def note(self, records: Iterable[StoredJob]) -> None:
        """Leave a note on each of these jobs that has children."""
        self.notes |= {record.number: None for record in records if record.number in self.children}

    def has_open_edge(self, record: StoredJob) -> bool:
        return any(edge.outcome is EdgeOutcome.OPEN for edge in self.parents.get(record.number, {}).values())

    def view(self, record: StoredJob, now: int) -> JobView:
        """A job as users see it."""
        return record.view(now, self.blocked.get(record.number) if record.state is JobState.BLOCKED else None)

    def offer(self, record: StoredJob) -> None:
        """Put a claimable record into the heap of its queue."""
        ready = self._ready[record.envelope.queue, record.envelope.priority]
        record.offer = next(self._offers)
        heapq.heappush(ready, (record.due_us, record.envelope.id, record.offer))

    def due(self, queue: str, now: int) -> Iterator[StoredJob]:
        """The queue's due records, best first. Taking one removes it; offer it again if it is not claimed."""
        for priority in range(9, -1, -1):
            ready = self._ready[queue, priority]
            while ready and ready[0][0] <= now:
                if record := self._offered(heapq.heappop(ready)):
                    yield record

    def next_due_us(self, queue: str) -> int | None:
        """When the queue's next record is due; None if none is waiting."""
        heads: list[int] = []
        for priority in range(10):
            ready = self._ready[queue, priority]
            while ready and self._offered(ready[0]) is None:
                heapq.heappop(ready)
            heads += [due_us for due_us, _, _ in ready[:1]]
        return min(heads, default=None)

    def _offered(self, entry: tuple[int, str, int]) -> StoredJob | None:
        """The record of a heap's entry; None if the job was cancelled or offered again since."""
        _, job_id, offer = entry
        record = self.records.get(job_id)
        return record if record is not None and record.is_claimable and record.offer == offer else None
