"""The contract in plain Python: reading and operating."""

from collections.abc import Iterable
from datetime import datetime

from holdfast.clock import Clock, duration_us
from holdfast.codec import content_digest
from holdfast.queues.contract import TOMBSTONE_S, LeasePolicy, Outdated, Records, check_purge, has_expired, history_of
from holdfast.queues.engines.memory.connections import DeletedJob, MemoryStore, StoredJob
from holdfast.queues.engines.tables.rows import is_by_finish
from holdfast.values import CancelAnswer, JobFilter, JobHistory, JobState, JobView, Page, ReplayAnswer


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
            for view in (record.view(now) for record in self._store.records.values()):
                if queue in (None, view.queue):
                    states = numbers.setdefault(view.queue, {})
                    states[view.state] = states.get(view.state, 0) + 1
            return numbers

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        with self._store.lock:
            now = self._clock.now_us()
            by_finish = is_by_finish(where)
            found = [
                (_sort_key(record, by_finish), view)
                for record in self._store.records.values()
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
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None:
                return None
            return history_of(record.view(self._clock.now_us()), record.history, record.outputs)

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
            record.state = JobState.PENDING
            record.attempts = record.crashes = 0
            record.due_us = self._clock.now_us()
            record.dead_reason = record.cancel_reason = record.finished_us = None
            record.expired = False
            record.ignore_expiry = record.ignore_expiry or ignore_expiry
            self._store.offer(record)
            return ReplayAnswer.REPLAYED

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        chosen = check_purge(states)
        with self._store.lock:
            record = self._store.records.get(job_id)
            if record is None or record.state not in chosen:
                return False
            self._delete(record, self._clock.now_us() + duration_us(TOMBSTONE_S))
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
            ]
            for record, finished_us in old:
                self._delete(record, outdated.known_until(finished_us, now))
            return len(old)

    def delete_tombstones(self) -> int:
        with self._store.lock:
            now = self._clock.now_us()
            expired = [job_id for job_id, stone in self._store.tombstones.items() if stone.until_us <= now]
            for job_id in expired:
                del self._store.tombstones[job_id]
            return len(expired)

    def _delete(self, record: StoredJob, until_us: int) -> None:
        del self._store.records[record.envelope.id]
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
