"""The contract in plain Python: reading and operating."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from holdfast.clock import Clock, duration_us, from_us
from holdfast.codec import content_digest
from holdfast.queues.contract import (
    IDLE_SLOT_S,
    SHOWN_RELATIVES,
    SHOWN_WAITERS,
    TOMBSTONE_S,
    LeasePolicy,
    Outdated,
    Records,
    check_purge,
    has_expired,
    history_of,
)
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.memory.connections import DeletedJob, MemoryStore, StoredEdge, StoredJob
from holdfast.queues.engines.memory.edges import resolve_notes
from holdfast.queues.engines.tables.rows import is_by_finish, oldest_waits
from holdfast.values import (
    CancelAnswer,
    EdgeOutcome,
    JobFilter,
    JobHistory,
    JobState,
    JobView,
    Page,
    QueueWait,
    Relative,
    Relatives,
    ReplayAnswer,
    SlotHolder,
    SlotView,
    SlotWaiter,
)


class MemoryRecords(Records):
    """The records in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy)
        self._store = store
        self._clock = clock

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        with self._store.lock:
            now = self._clock.now_us()
            numbers: dict[str, dict[JobState, int]] = {}
            for view in (self._store.view(record, now) for record in self._store.records.values()):
                if queue in (None, view.queue):
                    states = numbers.setdefault(view.queue, {})
                    states[view.state] = states.get(view.state, 0) + 1
            return numbers

    def oldest_waits(self) -> dict[str, QueueWait]:
        with self._store.lock:
            waiting = [one for one in self._store.records.values() if one.is_claimable]
            return oldest_waits([(one.envelope.queue, one.due_us) for one in waiting], self._clock.now_us())

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        with self._store.lock:
            now = self._clock.now_us()
            by_finish = is_by_finish(where)
            found = [
                (_sort_key(record, by_finish), view)
                for record in self._store.records.values()
                if _matches(view := self._store.view(record, now), where)
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
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None:
                return None
            job = self._store.view(record, self._clock.now_us())
            return history_of(job, record.history, record.outputs, record.envelope.wire)

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        with self._store.lock:
            used = sorted({*self._store.places, *self._store.waiting} if names is None else names)
            views = [self._slot(name) for name in used if name > after or names is not None]
            return [view for view in views if view.holders or view.waiting][:limit]

    def _slot(self, name: str) -> SlotView:
        now = self._clock.now_us()
        places = [one for one in self._store.places.get(name, {}).values() if self._store.is_taken(one, now)]
        entries = [entry for heap in self._store.waiting.get(name, {}).values() for entry in heap]
        blocked = [
            self._store.by_number[waiter.number]
            for *_, waiter in sorted(entries)
            if self._store.blocked.get(waiter.number) is waiter
            and self._store.is_blocked(self._store.by_number[waiter.number])
        ]
        return SlotView(
            name=name,
            holders=tuple(
                SlotHolder(
                    job_id=one.record.envelope.id,
                    queue=one.queue,
                    since=from_us(one.since_us),
                    fence=None if one.owner_token is None else one.fence,
                )
                for one in sorted(places, key=lambda place: (place.since_us, place.record.number))
            ),
            waiting=len(blocked),
            waiters=tuple(
                SlotWaiter(job_id=one.envelope.id, queue=one.envelope.queue, since=from_us(one.blocked_us))
                for one in blocked[:SHOWN_WAITERS]
            ),
        )

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None:
                return Relatives()
            parents = self._store.parents.get(record.number, {})
            children = self._store.children.get(record.number, {})
            return Relatives(
                parents=self._relatives(parents, limit),
                children=self._relatives(children, limit),
                open_parents=sum(edge.outcome is EdgeOutcome.OPEN for edge in parents.values()),
                child_count=len(children),
            )

    def _relatives(self, edges: Mapping[JobNumber, StoredEdge], limit: int) -> tuple[Relative, ...]:
        records = [record for number in edges if (record := self._store.by_number.get(number)) is not None]
        now = self._clock.now_us()
        return tuple(
            Relative(
                job_id=one.envelope.id,
                state=self._store.view(one, now).state,
                on_failure=edges[one.number].on_failure,
                outcome=edges[one.number].outcome,
            )
            for one in sorted(records, key=lambda record: record.number)[:limit]
        )

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None:
                return CancelAnswer.UNKNOWN
            if record.state is JobState.PROCESSING:
                # A second request without a reason leaves the first reason as it is.
                record.cancel_request = reason or record.cancel_request or ""
                return CancelAnswer.REQUESTED
            if record.state.is_final:
                return CancelAnswer.TOO_LATE
            record.cancel_reason = reason
            record.finish(JobState.CANCELLED, self._clock.now_us())
            self._store.note([record])
            resolve_notes(self._store, self._clock.now_us())
            return CancelAnswer.CANCELLED

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None:
                return ReplayAnswer.UNKNOWN
            if record.state not in (JobState.DEAD, JobState.CANCELLED):
                return ReplayAnswer.NOT_FINAL
            too_late = record.expired or has_expired(record.envelope.wire, self._clock.now_us())
            if too_late and not ignore_expiry and not record.ignore_expiry:
                return ReplayAnswer.EXPIRED
            self._disregard_failed_parents(record)
            record.state = JobState.BLOCKED if self._store.has_open_edge(record) else JobState.PENDING
            record.attempts = record.crashes = 0
            record.due_us = self._clock.now_us()
            record.dead_reason = record.cancel_reason = record.finished_us = None
            record.expired = False
            record.ignore_expiry = record.ignore_expiry or ignore_expiry
            self._store.offer(record)
            self._store.note([record])
            resolve_notes(self._store, self._clock.now_us())
            return ReplayAnswer.REPLAYED

    def _disregard_failed_parents(self, record: StoredJob) -> None:
        """Let the job run although these parents have failed, because an operator retried it."""
        for edge in self._store.parents.get(record.number, {}).values():
            if edge.outcome is EdgeOutcome.CANCELLED:
                edge.outcome = EdgeOutcome.MET

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        chosen = check_purge(states)
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None or record.state not in chosen:
                return False
            self._delete(record, self._clock.now_us() + duration_us(TOMBSTONE_S))
            resolve_notes(self._store, self._clock.now_us())
            return True

    def delete(self, outdated: Outdated) -> int:
        with self._store.lock:
            now = self._clock.now_us()
            old = [
                (record, record.finished_us)
                for record in self._store.records.values()
                if record.finished_us is not None
                and record.finished_us <= outdated.before(now)
                and record.state is outdated.state
                and outdated.queue in (None, record.envelope.queue)
                and not (outdated.spares_parents and self._has_open_child(record))
            ]
            for record, finished_us in old:
                self._delete(record, outdated.known_until(finished_us, now))
            resolve_notes(self._store, now)
            return len(old)

    def _has_open_child(self, record: StoredJob) -> bool:
        return any(
            child in self._store.by_number and not self._store.by_number[child].state.is_final
            for child in self._store.children.get(record.number, ())
        )

    def delete_tombstones(self) -> int:
        with self._store.lock:
            now = self._clock.now_us()
            expired = [job_id for job_id, stone in self._store.tombstones.items() if stone.until_us <= now]
            for job_id in expired:
                del self._store.tombstones[job_id]
            return len(expired)

    def delete_unused(self) -> int:
        with self._store.lock:
            store, now = self._store, self._clock.now_us()
            over = [row.key for row in store.uniques.values() if row.until_us <= now and self._is_final(row.job_id)]
            for key in over:
                del store.uniques[key]
            left = [
                (name, number)
                for name, places in store.places.items()
                for number, place in places.items()
                if not store.is_taken(place, now)
            ]
            for name, number in left:
                del store.places[name][number]
            idle = [
                name
                for name, fence in store.fences.items()
                if fence <= now - duration_us(IDLE_SLOT_S)
                and not store.places.get(name)
                and not any(store.waiting.get(name, {}).values())
            ]
            for name in idle:
                del store.fences[name]
                store.places.pop(name, None)
                store.waiting.pop(name, None)
            return len(over) + len(left) + len(idle)

    def _is_final(self, job_id: str) -> bool:
        record = self._store.records.get(job_id)
        return record is None or record.state.is_final

    def _delete(self, record: StoredJob, until_us: int) -> None:
        del self._store.records[record.envelope.id]
        del self._store.by_number[record.number]
        self._store.blocked.pop(record.number, None)
        self._store.note([record])
        for parent in self._store.parents.pop(record.number, {}):
            del self._store.children[parent][record.number]
        self._store.tombstones[record.envelope.id] = DeletedJob(content_digest(record.envelope.wire), until_us)


def _sort_key(record: StoredJob, by_finish: bool) -> tuple[int, int]:
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
