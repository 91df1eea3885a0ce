"""The contract in plain Python: the readable reference, for tests and for jobs that may die with the process.

Guarantees every law as long as the process lives. Several backends on one `MemoryStore` are several workers.
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Final

from holdfast.clock import SYSTEM_CLOCK, Clock, from_us, span_us, to_us
from holdfast.codec import MAX_WIRE_BYTES, content_digest
from holdfast.errors import IdConflict, NotSupported
from holdfast.queues.contract import (
    DEFAULT_POLICY,
    FORGET_LOST_S,
    TOMBSTONE_S,
    Capabilities,
    Crashes,
    Effect,
    Engine,
    EngineInfo,
    LeasePolicy,
    abandoned_run,
    check_purge,
    effect_of,
    has_expired,
    history_of,
    kept_output,
    kept_progress,
    silence_allowed_s,
    view_of,
    worker_state,
)
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.values import (
    Accepted,
    AttemptView,
    CancelAnswer,
    DeadReason,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    JobView,
    LeaseState,
    LiveOutput,
    Page,
    Progress,
    QueuePause,
    ReplayAnswer,
    Settlement,
    StopOrder,
    WorkerReport,
    WorkerView,
)

WAIT_STEP_S = 0.005

DURABILITY: Final = {"always": "nothing: a job ends with its process"}
"""What an accepted job survives, by how the engine is set up."""


@dataclass(slots=True)
class _Record:
    """One job. `PENDING` stands for waiting: whether that shows as scheduled is a question of the time."""

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
    progress: tuple[int, Progress] | None = None
    """The latest report, and which delivery made it."""
    outputs: dict[int, LiveOutput] = field(default_factory=dict[int, LiveOutput])
    """What deliveries that have told no output yet had printed while they ran."""
    history: list[AttemptView] = field(default_factory=list[AttemptView])
    settled: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    """By which claim, and with which verdict, each delivery was settled: a repeated settlement is recognised."""

    @property
    def is_claimable(self) -> bool:
        return self.state in (JobState.PENDING, JobState.FAILED)

    def is_held_by(self, lease: JobLease, now: int) -> bool:
        return (
            self.state is JobState.PROCESSING
            and self.owner_token == lease.owner_token
            and self.number == lease.token
            and self.lease_until_us > now
        )

    def finish(self, state: JobState, now: int) -> None:
        self.state = state
        self.finished_us = now
        self.cancel_request = None

    def view(self, now: int) -> JobView:
        waiting = self.state is JobState.PENDING and self.due_us > now
        errors = (past.record.error.line for past in reversed(self.history) if past.record.error)
        last_error = None if self.state is JobState.COMPLETED else next(errors, None)
        return view_of(
            id=self.envelope.id,
            queue=self.envelope.queue,
            state=JobState.SCHEDULED if waiting else self.state,
            job=self.envelope.job,
            wire=self.envelope.wire,
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
        )

    def _shown_progress(self) -> Progress | None:
        is_shown = self.state in (JobState.PROCESSING, JobState.FAILED, JobState.DEAD, JobState.CANCELLED)
        if not is_shown or self.progress is None:
            return None
        delivery, progress = self.progress
        return progress if delivery == self.deliveries else None


@dataclass(slots=True)
class _Worker:
    """One worker: what it said last, when, and what an operator asks of it."""

    report: WorkerReport
    heard_us: int
    order: StopOrder | None = None


@dataclass(slots=True)
class _Tombstone:
    """What is left of a job: enough to know its id again."""

    digest: bytes
    until_us: int


class MemoryStore:
    """Where the jobs are. One lock makes every verb atomic; heaps keep each queue's best job on top."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.records: dict[str, _Record] = {}
        self.leased: dict[str, _Record] = {}
        self.tombstones: dict[str, _Tombstone] = {}
        self.pauses: dict[str, QueuePause] = {}
        self.workers: dict[str, _Worker] = {}
        self.facts: defaultdict[str, set[str]] = defaultdict(set)
        self.numbers = count(1)
        self._ready: defaultdict[tuple[str, int], list[tuple[int, str, int]]] = defaultdict(list)
        self._offers = count(1)

    def offer(self, record: _Record) -> None:
        """Put a claimable record where claims look for it."""
        ready = self._ready[record.envelope.queue, record.envelope.priority]
        record.offer = next(self._offers)
        heapq.heappush(ready, (record.due_us, record.envelope.id, record.offer))

    def due(self, queue: str, now: int) -> Iterator[_Record]:
        """The queue's due records, best first. Taking one removes it; whoever does not claim it offers it again."""
        for priority in range(9, -1, -1):
            ready = self._ready[queue, priority]
            while ready and ready[0][0] <= now:
                if record := self._offered(heapq.heappop(ready)):
                    yield record

    def next_due_us(self, queue: str) -> int | None:
        """When the queue's next record falls due."""
        heads: list[int] = []
        for priority in range(10):
            ready = self._ready[queue, priority]
            while ready and self._offered(ready[0]) is None:
                heapq.heappop(ready)
            heads += [due_us for due_us, _, _ in ready[:1]]
        return min(heads, default=None)

    def _offered(self, entry: tuple[int, str, int]) -> _Record | None:
        """What an entry of a heap stands for; heaps keep the entries of jobs cancelled or offered again since."""
        _, job_id, offer = entry
        record = self.records.get(job_id)
        return record if record is not None and record.is_claimable and record.offer == offer else None


class MemoryBackend(Engine):
    """Jobs in a `MemoryStore`."""

    capabilities = Capabilities(
        durable=False,
        shared=False,
        transactional_enqueue=False,
        wakes_up=False,
        max_wire_bytes=MAX_WIRE_BYTES,
        delay_resolution_s=1e-6,
    )

    def __init__(
        self,
        envelopes: EnvelopeFactory,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        store: MemoryStore | None = None,
    ) -> None:
        super().__init__(envelopes, policy=policy, clock=clock)
        self.store = store or MemoryStore()

    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        if tx is not None:
            raise NotSupported("the memory engine has no transactions to enqueue in; leave tx out")
        with self.store.lock:
            now = self.clock.now_us()
            created: dict[str, JobEnvelope] = {}
            for envelope in envelopes:
                known = self._known_digest(envelope.id, now)
                if known is None and envelope.id in created:
                    known = content_digest(created[envelope.id].wire)
                if known is None:
                    created[envelope.id] = envelope
                elif known != content_digest(envelope.wire):
                    raise IdConflict(envelope.id)
            # Jobs accepted together are due in the order given, so each is due a microsecond after the one before.
            first = now - len(created) + 1
            for place, envelope in enumerate(created.values()):
                self._insert(envelope, now, first + place)
            fresh = set(created)
            return [Accepted(id=one.id, created=_take(fresh, one.id)) for one in envelopes]

    def _known_digest(self, job_id: str, now: int) -> bytes | None:
        if record := self.store.records.get(job_id):
            return content_digest(record.envelope.wire)
        tombstone = self.store.tombstones.get(job_id)
        return tombstone.digest if tombstone is not None and tombstone.until_us > now else None

    def _insert(self, envelope: JobEnvelope, now: int, due_us: int) -> None:
        if envelope.delay > 0:
            due_us = now + span_us(envelope.delay)
        elif envelope.run_at is not None and to_us(envelope.run_at) > now:
            due_us = to_us(envelope.run_at)
        record = _Record(number=next(self.store.numbers), envelope=envelope, accepted_us=now, due_us=due_us)
        self.store.tombstones.pop(envelope.id, None)
        self.store.records[envelope.id] = record
        self.store.offer(record)

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        give_up_at = self.clock.monotonic() + wait
        while True:
            leases = self._claim_now(queue, limit, owner_token)
            left = give_up_at - self.clock.monotonic()
            if leases or left <= 0:
                return leases
            self.wait_for_work([queue], left)

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        descriptors = [] if wake is None else [wake]
        while not self._is_due(queues) and (left := give_up_at - self.clock.monotonic()) > 0:
            if self.clock.wait(min(left, WAIT_STEP_S), descriptors):
                return

    def _is_due(self, queues: Sequence[str]) -> bool:
        with self.store.lock:
            now = self.clock.now_us()
            dues = [self.store.next_due_us(queue) for queue in queues if queue not in self.store.pauses]
            return any(due is not None and due <= now for due in dues)

    def _claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        asked_at = self.clock.monotonic()
        with self.store.lock:
            now = self.clock.now_us()
            held = [record for record in self.store.leased.values() if _is_stamped(record, queue, owner_token, now)]
            if held or queue in self.store.pauses:
                return [self._lease(record, asked_at, now) for record in held]
            taken = self._take_due(queue, limit, now)
            for record in taken:
                self.store.leased[record.envelope.id] = record
                record.state = JobState.PROCESSING
                record.owner_token = owner_token
                record.deliveries += 1
                record.claimed_us = now
                record.lease_us = span_us(self.policy.lease_s)
                record.lease_until_us = now + record.lease_us
            return [self._lease(record, asked_at, now) for record in taken]

    def _take_due(self, queue: str, limit: int, now: int) -> list[_Record]:
        taken: list[_Record] = []
        if limit > 0:
            for record in self.store.due(queue, now):
                if record.crashes and taken:  # a suspect runs alone: it waits for the next claim
                    self.store.offer(record)
                    break
                taken.append(record)
                if record.crashes or len(taken) == limit:
                    break
        return taken

    def _lease(self, record: _Record, asked_at: float, now: int) -> JobLease:
        return JobLease(
            id=record.envelope.id,
            queue=record.envelope.queue,
            wire=record.envelope.wire,
            token=record.number,
            owner_token=record.owner_token or "",
            ttl_s=record.lease_us / 1e6,
            claimed_at=from_us(record.claimed_us),
            fence_at=asked_at + min(record.lease_until_us - now, record.lease_us) / 1e6,
            delivery=record.deliveries,
            attempts=record.attempts,
            crashes=record.crashes,
            ignore_expiry=record.ignore_expiry,
        )

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self.store.lock:
            now = self.clock.now_us()
            return [self._settle_one(settlement, now) for settlement in settlements]

    def _settle_one(self, settlement: Settlement, now: int) -> bool:
        lease, effect = settlement.lease, effect_of(settlement)
        record = self.store.records.get(lease.id)
        if record is None:
            return False
        if not record.is_held_by(lease, now):
            settled = record.settled.get(lease.delivery)
            return record.number == lease.token and settled == (lease.owner_token, effect.verdict)
        if settlement.record is not None:
            record.history.append(AttemptView(delivery=record.deliveries, record=settlement.record))
            if settlement.record.output:
                record.outputs.pop(record.deliveries, None)
        self._apply(record, effect, now)
        return True

    def _apply(self, record: _Record, effect: Effect, now: int) -> None:
        del self.store.leased[record.envelope.id]
        record.settled[record.deliveries] = (record.owner_token or "", effect.verdict)
        record.attempts += effect.adds_attempt
        match effect.crashes:
            case Crashes.RESET:
                record.crashes = 0
            case Crashes.ADD:
                record.crashes += 1
            case Crashes.KEEP:
                pass
        if effect.state.is_final:
            record.dead_reason = effect.dead_reason
            if effect.state is JobState.CANCELLED:
                record.cancel_reason = effect.cancel_reason or record.cancel_request or ""
            record.expired = effect.expired
            record.finish(effect.state, now)
        else:
            self._give_back(record, effect.state, now + span_us(effect.delay), now)

    def _give_back(self, record: _Record, state: JobState, due_us: int, now: int) -> None:
        """The job waits again, unless an operator wants it cancelled or its crashes have reached the limit."""
        if record.cancel_request is not None:
            record.cancel_reason = record.cancel_request
            record.finish(JobState.CANCELLED, now)
        elif record.crashes >= self.policy.crash_limit:
            record.dead_reason = DeadReason.CRASH_LOOP
            record.finish(JobState.DEAD, now)
        else:
            record.state = state
            record.due_us = due_us
            self.store.offer(record)

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        with self.store.lock:
            return self.settle(settlements), self._claim_now(queue, limit, owner_token)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        with self.store.lock:
            now = self.clock.now_us()
            return [self._renew_one(lease, now) for lease in leases]

    def _renew_one(self, lease: JobLease, now: int) -> LeaseState:
        state = self._lease_state(lease, now)
        if state is not LeaseState.LOST:
            record = self.store.records[lease.id]
            record.lease_until_us = now + record.lease_us
        return state

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        with self.store.lock:
            now = self.clock.now_us()
            return [self._lease_state(lease, now) for lease in leases]

    def _lease_state(self, lease: JobLease, now: int) -> LeaseState:
        record = self.store.records.get(lease.id)
        if record is None or not record.is_held_by(lease, now):
            return LeaseState.LOST
        return LeaseState.HELD if record.cancel_request is None else LeaseState.CANCEL_REQUESTED

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        with self.store.lock:
            now = self.clock.now_us()
            return [self._report_one(lease, progress, now) for lease, progress in reports]

    def _report_one(self, lease: JobLease, progress: Progress, now: int) -> bool:
        record = self.store.records.get(lease.id)
        if record is None or not record.is_held_by(lease, now):
            return False
        record.progress = record.deliveries, kept_progress(progress, now)
        return True

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        with self.store.lock:
            now = self.clock.now_us()
            return [self._keep_output(lease, output, now) for lease, output in reports]

    def _keep_output(self, lease: JobLease, output: LiveOutput, now: int) -> bool:
        record = self.store.records.get(lease.id)
        if record is None or not record.is_held_by(lease, now):
            return False
        record.outputs[record.deliveries] = kept_output(output)
        return True

    def reap_expired(self, queue: str | None = None) -> int:
        with self.store.lock:
            now = self.clock.now_us()
            leased = [record for record in self.store.leased.values() if queue in (None, record.envelope.queue)]
            for record in leased:
                # The wall clock was set back: such a lease would outlive its worker by as much.
                if record.lease_until_us > now + 2 * record.lease_us:
                    record.lease_until_us = now + record.lease_us
            ended = [record for record in leased if record.lease_until_us <= now]
            for record in ended:
                record.history.append(
                    AttemptView(delivery=record.deliveries, record=abandoned_run(record.claimed_us, now))
                )
                del self.store.leased[record.envelope.id]
                record.crashes += 1
                record.owner_token = None
                self._give_back(record, JobState.PENDING, now, now)
            return len(ended)

    def prune(self) -> int:
        with self.store.lock:
            now = self.clock.now_us()
            kept_s = {
                JobState.COMPLETED: self.policy.retain_completed_s,
                JobState.CANCELLED: self.policy.retain_completed_s,
                JobState.DEAD: self.policy.retain_dead_s,
            }
            old = [record for record in self.store.records.values() if _is_older(record, kept_s.get(record.state), now)]
            for record in old:
                self._forget(record, (record.finished_us or now) + span_us(TOMBSTONE_S))
            gone = [job_id for job_id, stone in self.store.tombstones.items() if stone.until_us <= now]
            for job_id in gone:
                del self.store.tombstones[job_id]
            for worker in list(self.store.workers.values()):
                lost_us = worker.heard_us + span_us(silence_allowed_s(worker.report))
                if lost_us <= now - span_us(FORGET_LOST_S):
                    self.leave(worker.report.id)
            return len(old)

    def _forget(self, record: _Record, until_us: int) -> None:
        del self.store.records[record.envelope.id]
        self.store.tombstones[record.envelope.id] = _Tombstone(content_digest(record.envelope.wire), until_us)

    def check(self) -> None:
        pass

    def describe(self) -> EngineInfo:
        return EngineInfo(server="the memory of this process", settings={}, survives=DURABILITY["always"])

    def create_schema(self) -> None:
        pass

    def close(self) -> None:
        pass

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        with self.store.lock:
            now = self.clock.now_us()
            numbers: dict[str, dict[JobState, int]] = {}
            for view in (record.view(now) for record in self.store.records.values()):
                if queue in (None, view.queue):
                    states = numbers.setdefault(view.queue, {})
                    states[view.state] = states.get(view.state, 0) + 1
            return numbers

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        with self.store.lock:
            now = self.clock.now_us()
            by_finish = bool(where.states) and all(state.is_final for state in where.states)
            found = [
                (_sort_key(record, by_finish), view)
                for record in self.store.records.values()
                if _matches(view := record.view(now), where)
            ]
            found.sort(key=lambda pair: pair[0], reverse=True)
            if after is not None:
                place = tuple(int(part) for part in after.split("."))
                found = [pair for pair in found if pair[0] < place]
            page = found[:limit]
            more = len(found) > limit
            cursors = tuple(".".join(map(str, place)) for place, _ in page)
            following = cursors[-1] if more and cursors else None
            return Page(jobs=tuple(view for _, view in page), next=following, cursors=cursors)

    def get(self, job_id: str) -> JobHistory | None:
        with self.store.lock:
            record = self.store.records.get(job_id)
            if record is None:
                return None
            return history_of(record.view(self.clock.now_us()), record.history, record.outputs)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        with self.store.lock:
            record = self.store.records.get(job_id)
            if record is None:
                return CancelAnswer.UNKNOWN
            if record.state is JobState.PROCESSING:
                # Asking again without a reason does not take the first one back.
                record.cancel_request = reason or record.cancel_request or ""
                return CancelAnswer.REQUESTED
            if record.state.is_final:
                return CancelAnswer.TOO_LATE
            record.cancel_reason = reason
            record.finish(JobState.CANCELLED, self.clock.now_us())
            return CancelAnswer.CANCELLED

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        with self.store.lock:
            record = self.store.records.get(job_id)
            if record is None:
                return ReplayAnswer.UNKNOWN
            if record.state not in (JobState.DEAD, JobState.CANCELLED):
                return ReplayAnswer.NOT_FINAL
            too_late = record.expired or has_expired(record.envelope.wire, self.clock.now_us())
            if too_late and not ignore_expiry and not record.ignore_expiry:
                return ReplayAnswer.EXPIRED
            record.state = JobState.PENDING
            record.attempts = record.crashes = 0
            record.due_us = self.clock.now_us()
            record.dead_reason = record.cancel_reason = record.finished_us = None
            record.expired = False
            record.ignore_expiry = record.ignore_expiry or ignore_expiry
            self.store.offer(record)
            return ReplayAnswer.REPLAYED

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        chosen = check_purge(states)
        with self.store.lock:
            record = self.store.records.get(job_id)
            if record is None or record.state not in chosen:
                return False
            self._forget(record, self.clock.now_us() + span_us(TOMBSTONE_S))
            return True

    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        chosen = check_purge(states)
        with self.store.lock:
            now = self.clock.now_us()
            old = [
                record
                for record in self.store.records.values()
                if record.state in chosen
                and queue in (None, record.envelope.queue)
                and (older_than is None or _is_older(record, older_than.total_seconds(), now))
            ]
            for record in old:
                self._forget(record, now + span_us(TOMBSTONE_S))
            return len(old)

    def pause(self, queue: str, reason: str = "") -> None:
        with self.store.lock:
            self.store.pauses[queue] = QueuePause(queue=queue, reason=reason, since=from_us(self.clock.now_us()))

    def resume(self, queue: str) -> bool:
        with self.store.lock:
            return self.store.pauses.pop(queue, None) is not None

    def pauses(self) -> Sequence[QueuePause]:
        with self.store.lock:
            return tuple(self.store.pauses[queue] for queue in sorted(self.store.pauses))

    def facts(self, kind: str) -> frozenset[str]:
        with self.store.lock:
            return frozenset(self.store.facts[kind])

    def add_facts(self, kind: str, facts: Iterable[str]) -> None:
        with self.store.lock:
            self.store.facts[kind].update(facts)

    def beat(self, report: WorkerReport) -> StopOrder | None:
        with self.store.lock:
            order = self.order_of(report.id)
            self.store.workers[report.id] = _Worker(report, self.clock.now_us(), order)
            return order

    def order_of(self, worker_id: str) -> StopOrder | None:
        with self.store.lock:
            worker = self.store.workers.get(worker_id)
            return None if worker is None else worker.order

    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        with self.store.lock:
            worker = self.store.workers.get(worker_id)
            if worker is None:
                return False
            if worker.order is not StopOrder.NOW:
                worker.order = order
            return True

    def leave(self, worker_id: str) -> None:
        with self.store.lock:
            self.store.workers.pop(worker_id, None)

    def workers(self) -> Sequence[WorkerView]:
        with self.store.lock:
            now = self.clock.now_us()
            views = [
                WorkerView(
                    report=worker.report,
                    state=worker_state(worker.report, worker.heard_us, now),
                    heard_at=from_us(worker.heard_us),
                    order=worker.order,
                )
                for worker in self.store.workers.values()
            ]
            return sorted(views, key=lambda view: (view.report.started_at, view.report.id))


def _take(fresh: set[str], job_id: str) -> bool:
    if job_id in fresh:
        fresh.remove(job_id)
        return True
    return False


def _is_stamped(record: _Record, queue: str, owner_token: str, now: int) -> bool:
    return record.owner_token == owner_token and record.envelope.queue == queue and record.lease_until_us > now


def _is_older(record: _Record, age_s: float | None, now: int) -> bool:
    return age_s is not None and record.finished_us is not None and record.finished_us <= now - span_us(age_s)


def _sort_key(record: _Record, by_finish: bool) -> tuple[int, int]:
    return ((record.finished_us or 0) if by_finish else 0, record.number)


def _matches(view: JobView, where: JobFilter) -> bool:
    return (
        (not where.states or view.state in where.states)
        and where.queue in (None, view.queue)
        and where.job in (None, view.job)
        and (not where.ids or view.id in where.ids)
        and where.dead_reason in (None, view.dead_reason)
        and _is_between(where.accepted_from, view.accepted_at, where.accepted_before)
        and _is_between(where.finished_from, view.finished_at, where.finished_before)
    )


def _is_between(start: datetime | None, moment: datetime | None, before: datetime | None) -> bool:
    if moment is None:
        return start is None and before is None
    return (start is None or start <= moment) and (before is None or moment < before)
