"""The contract in plain Python, as its readable reference: moving jobs."""

from collections.abc import Mapping, Sequence

from holdfast.clock import Clock, duration_us, from_us
from holdfast.codec import content_digest
from holdfast.errors import IdConflict, StateConflict
from holdfast.queues.contract import (
    Crashes,
    Effect,
    Jobs,
    LeasePolicy,
    LockedSlots,
    abandoned_run,
    effect_of,
    extras_of,
    find_duplicates,
    kept_output,
    kept_progress,
    left_slots,
    slot_names,
    take_once,
)
from holdfast.queues.contract.state import apply_writes
from holdfast.queues.engines.memory.connections import MemoryStore, StoredJob
from holdfast.queues.engines.memory.edges import check_known_parents, connect, resolve_notes
from holdfast.queues.engines.memory.slots import MemorySlots, MemoryUniques
from holdfast.queues.engines.tables.rows import Row, dues, lease_state, leased
from holdfast.values import (
    Accepted,
    AttemptView,
    CellWrite,
    DeadReason,
    Entered,
    Entry,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    LiveOutput,
    Progress,
    QueuePause,
    Settlement,
)

WAIT_STEP_S = 0.005


class MemoryJobs(Jobs):
    """Jobs in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy, clock)
        self._store = store

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        with self._store.lock:
            now = self.clock.now_us()
            fresh = self._fresh(envelopes, now)  # before any key is taken: a known id must belong to the same job
            applied = apply_writes(writes, self._store.cells, now)
            if applied is None:
                raise StateConflict("a condition on shared state did not hold; nothing was enqueued")
            duplicates: Mapping[str, str] = {}
            if any(one.unique is not None for one in envelopes):
                duplicates = find_duplicates(envelopes, MemoryUniques(self._store, now))
                fresh = {id: one for id, one in fresh.items() if id not in duplicates}
            check_known_parents(self._store, fresh.values(), fresh)
            self._store.cells |= applied.cells
            self._insert(fresh, now)
            resolve_notes(self._store, now)
            created = set(fresh)
            ids = [(one.id, duplicates.get(one.id, one.id)) for one in envelopes]
            return [Accepted(id=id, created=take_once(created, asked)) for asked, id in ids]

    def _fresh(self, envelopes: Sequence[JobEnvelope], now: int) -> dict[str, JobEnvelope]:
        """The envelopes whose ids are new. A known id must belong to the same job."""
        fresh: dict[str, JobEnvelope] = {}
        for envelope in envelopes:
            known = self._known_digest(envelope.id, now)
            if known is None and envelope.id in fresh:
                known = content_digest(fresh[envelope.id].wire)
            if known is None:
                fresh[envelope.id] = envelope
            elif known != content_digest(envelope.wire):
                raise IdConflict(envelope.id)
        return fresh

    def _known_digest(self, job_id: str, now: int) -> bytes | None:
        if record := self._store.records.get(job_id):
            return content_digest(record.envelope.wire)
        tombstone = self._store.tombstones.get(job_id)
        return tombstone.digest if tombstone is not None and tombstone.until_us > now else None

    def _insert(self, fresh: Mapping[str, JobEnvelope], now: int) -> None:
        envelopes = list(fresh.values())
        for envelope, due_us in zip(envelopes, dues(envelopes, now), strict=True):
            record = StoredJob(number=next(self._store.numbers), envelope=envelope, accepted_us=now, due_us=due_us)
            self._store.tombstones.pop(envelope.id, None)
            self._store.records[envelope.id] = record
            self._store.by_number[record.number] = record
            self._store.offer(record)
        connect(self._store, [self._store.records[id] for id in fresh])

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        with self._store.lock:
            now = self.clock.now_us()
            times = dues(envelopes, now)
            return [self._reschedule(one, due_us) for one, due_us in zip(envelopes, times, strict=True)]

    def _reschedule(self, envelope: JobEnvelope, due_us: int) -> bool:
        record = self._store.records.get(envelope.id)
        if record is None or not record.is_waiting:
            return False
        record.envelope, record.due_us = envelope, due_us
        self._store.blocked.pop(record.number, None)
        self._wait(record, JobState.PENDING)
        return True

    def _wait(self, record: StoredJob, state: JobState) -> None:
        """Make the job claimable, unless it waits for its parents."""
        record.state = JobState.BLOCKED if self._store.has_open_edge(record) else state
        self._store.offer(record)

    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        asked_at = self.clock.monotonic()
        with self._store.lock:
            now = self.clock.now_us()
            held = [record for record in self._store.leased.values() if _is_stamped(record, queue, owner_token, now)]
            if not held and queue not in self._store.pauses:
                held = self._take_due(queue, limit, now)
                for record in held:
                    self._store.leased[record.envelope.id] = record
                    record.state = JobState.PROCESSING
                    record.owner_token = owner_token
                    record.deliveries += 1
                    record.claimed_us = now
                    record.lease_us = duration_us(self.policy.lease_s)
                    record.lease_until_us = now + record.lease_us
            return leased([_row(record, now) for record in held], queue, owner_token, asked_at)

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        with self._store.lock:
            rows = MemorySlots(self._store, self.clock.now_us())
            return LockedSlots(rows, slot_names(entries)).enter(entries)

    def repair(self) -> int:
        with self._store.lock:
            waited_for = [name for name, queues in self._store.waiting.items() if any(queues.values())]
            rows = MemorySlots(self._store, self.clock.now_us())
            promoted = LockedSlots(rows, waited_for).promote() if waited_for else 0
            return promoted + resolve_notes(self._store, rows.now_us)

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        descriptors = [] if wake is None else [wake]
        while not self._is_due(queues) and (left := give_up_at - self.clock.monotonic()) > 0:
            if self.clock.wait(min(left, WAIT_STEP_S), descriptors):
                return

    def _is_due(self, queues: Sequence[str]) -> bool:
        with self._store.lock:
            now = self.clock.now_us()
            dues = [self._store.next_due_us(queue) for queue in queues if queue not in self._store.pauses]
            return any(due is not None and due <= now for due in dues)

    def _take_due(self, queue: str, limit: int, now: int) -> list[StoredJob]:
        taken: list[StoredJob] = []
        if limit > 0:
            for record in self._store.due(queue, now):
                if record.crashes and taken:  # a suspect runs alone: it waits for the next claim
                    self._store.offer(record)
                    break
                taken.append(record)
                if record.crashes or len(taken) == limit:
                    break
        return taken

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._store.lock:
            now = self.clock.now_us()
            duplicates = self._check_enqueues(settlements, now)
            answers = [self._settle_one(settlement, duplicates, now) for settlement in settlements]
            resolve_notes(self._store, now)
            return answers

    def _check_enqueues(self, settlements: Sequence[Settlement], now: int) -> Mapping[str, str]:
        """Raise, before anything changes, if a settlement that will be applied enqueues an id that belongs to a job
        with different content, or a unique job that is rejected. Returns the ids of jobs that must not be stored.
        """
        carriers = [one for one in settlements if one.writes or one.enqueues]
        _, enqueues = extras_of([one for one in carriers if self._store.held(one.lease, now)])
        self._fresh(enqueues, now)
        if not any(one.unique is not None for one in enqueues):
            return {}
        # A job may enqueue the next one with its own key: it is judged in the state that its settlement gives it.
        held = [one for one in settlements if self._store.held(one.lease, now)]
        settled = {one.lease.id: effect_of(one).state for one in held}
        return find_duplicates(enqueues, MemoryUniques(self._store, now, settled))

    def _settle_one(self, settlement: Settlement, duplicates: Mapping[str, str], now: int) -> bool:
        lease, effect = settlement.lease, effect_of(settlement)
        record = self._store.held(lease, now)
        if record is None:
            known = self._store.records.get(lease.id)
            settled = known and known.number == lease.token and known.settled.get(lease.delivery)
            return settled == (lease.owner_token, effect.verdict)
        if settlement.record is not None:
            record.history.append(AttemptView(delivery=record.deliveries, record=settlement.record))
            if settlement.record.output:
                record.outputs.pop(record.deliveries, None)
        self._apply(record, effect, now)
        self._store.note([record])
        if settlement.leaves:
            LockedSlots(MemorySlots(self._store, now), left_slots([settlement])).leave([settlement])
        if settlement.writes and (applied := apply_writes(settlement.writes, self._store.cells, now)):
            self._store.cells |= applied.cells
        if settlement.enqueues:
            self._insert(self._fresh([one for one in settlement.enqueues if one.id not in duplicates], now), now)
        return True

    def _apply(self, record: StoredJob, effect: Effect, now: int) -> None:
        del self._store.leased[record.envelope.id]
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
            self._give_back(record, effect.state, now + duration_us(effect.delay), now)

    def _give_back(self, record: StoredJob, state: JobState, due_us: int, now: int) -> None:
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
            self._store.offer(record)

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        with self._store.lock:
            return self.settle(settlements), self.claim_now(queue, limit, owner_token)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        with self._store.lock:
            now = self.clock.now_us()
            for lease in leases:
                if record := self._store.held(lease, now):
                    record.lease_until_us = now + record.lease_us
            return self.lease_states(leases)

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        with self._store.lock:
            now = self.clock.now_us()
            held = [self._store.held(lease, now) for lease in leases]
            return [lease_state(None if one is None else one.cancel_request is not None) for one in held]

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        with self._store.lock:
            now = self.clock.now_us()
            held = [(self._store.held(lease, now), progress) for lease, progress in reports]
            for record, progress in held:
                if record is not None:
                    record.progress = record.deliveries, kept_progress(progress, now)
            return [record is not None for record, _ in held]

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        with self._store.lock:
            now = self.clock.now_us()
            held = [(self._store.held(lease, now), output) for lease, output in reports]
            for record, output in held:
                if record is not None:
                    record.outputs[record.deliveries] = kept_output(output)
            return [record is not None for record, _ in held]

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        theirs = tuple(session.hex() for session in sessions)
        with self._store.lock:
            now = self.clock.now_us()
            held = [
                record
                for record in self._store.leased.values()
                if record.lease_until_us > now and (record.owner_token or "").startswith(theirs)
            ]
            for record in held:
                record.lease_until_us = now
            return len(held)

    def reap_expired(self, queue: str | None = None) -> int:
        with self._store.lock:
            now = self.clock.now_us()
            leased = [record for record in self._store.leased.values() if queue in (None, record.envelope.queue)]
            for record in leased:
                # If the clock was set back, such a lease would expire that much too late.
                if record.lease_until_us > now + 2 * record.lease_us:
                    record.lease_until_us = now + record.lease_us
            ended = [record for record in leased if record.lease_until_us <= now]
            for record in ended:
                record.history.append(
                    AttemptView(delivery=record.deliveries, record=abandoned_run(record.claimed_us, now))
                )
                del self._store.leased[record.envelope.id]
                record.crashes += 1
                record.owner_token = None
                self._give_back(record, JobState.PENDING, now, now)
            self._store.note(ended)
            return len(ended)

    def pause(self, queue: str, reason: str = "") -> None:
        with self._store.lock:
            self._store.pauses[queue] = QueuePause(queue=queue, reason=reason, since=from_us(self.clock.now_us()))

    def resume(self, queue: str) -> bool:
        with self._store.lock:
            return self._store.pauses.pop(queue, None) is not None

    def pauses(self) -> Sequence[QueuePause]:
        with self._store.lock:
            return tuple(self._store.pauses[queue] for queue in sorted(self._store.pauses))


def _is_stamped(record: StoredJob, queue: str, owner_token: str, now: int) -> bool:
    return record.owner_token == owner_token and record.envelope.queue == queue and record.lease_until_us > now


def _row(record: StoredJob, now: int) -> Row:
    """The row of a lease, as `leased` takes it."""
    counts = (record.deliveries, record.attempts, record.crashes, record.ignore_expiry)
    left_us = min(record.lease_until_us - now, record.lease_us)
    envelope = record.envelope
    return (record.number, envelope.id, envelope.wire, record.lease_us, record.claimed_us, *counts, left_us)
