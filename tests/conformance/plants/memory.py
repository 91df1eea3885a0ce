"""Bugs for the memory engine, each in one verb."""

import os
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.codec import describe
from holdfast.errors import StateConflict
from holdfast.queues.contract import Engine, LeasePolicy, Outdated
from holdfast.queues.contract.state import parted
from holdfast.queues.engines.memory.connections import MemoryStore, StoredJob
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.engines.memory.jobs import MemoryJobs
from holdfast.queues.engines.memory.records import MemoryRecords
from holdfast.queues.engines.memory.state import MemoryState
from holdfast.queues.engines.tables.rows import oldest_waits
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab
from holdfast.testing.laws.shared_state import RACERS
from holdfast.values import (
    Abandon,
    Accepted,
    Ack,
    AttemptView,
    CancelAnswer,
    Cell,
    CellWrite,
    Drop,
    EdgeOutcome,
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
    QueueWait,
    Release,
    ReplayAnswer,
    Resize,
    Settlement,
    Spend,
    Spent,
    Write,
)

from .planting import Plant


class AckWithoutTokenCheck(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return super().settle([self._believe(one) for one in settlements])

    def _believe(self, settlement: Settlement) -> Settlement:
        record = self.store.records.get(settlement.lease.id)
        if record is None or not isinstance(settlement, Ack):
            return settlement
        return replace(settlement, lease=replace(settlement.lease, owner_token=record.owner_token or ""))


class VerdictAcceptedAfterTheLeaseEnded(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for settlement in settlements:
            record = self.store.records.get(settlement.lease.id)
            if record is not None and record.owner_token == settlement.lease.owner_token:
                record.lease_until_us = max(record.lease_until_us, self.clock.now_us() + 1)
        return super().settle(settlements)


class RefusedAttemptRecorded(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            record = self.store.records.get(settlement.lease.id)
            if not answer and record is not None and settlement.record is not None:
                record.history.append(AttemptView(delivery=settlement.lease.delivery, record=settlement.record))
        return answers


class RepeatedAttemptRecordedTwice(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        held = [settlement.lease.id in self.store.leased for settlement in settlements]
        answers = super().settle(settlements)
        for settlement, answer, was_held in zip(settlements, answers, held, strict=True):
            if answer and not was_held and settlement.record is not None:
                past = AttemptView(delivery=settlement.lease.delivery, record=settlement.record)
                self.store.records[settlement.lease.id].history.append(past)
        return answers


class OneBadSettlementSpoilsTheBatch(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        now = self.clock.now_us()
        if all(self.store.held(settlement.lease, now) for settlement in settlements):
            return super().settle(settlements)
        return [False] * len(settlements) if len(settlements) > 1 else super().settle(settlements)


class AttemptLostOnNack(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        before = {one.lease.id: one.lease.attempts for one in settlements if isinstance(one, Nack)}
        answers = super().settle(settlements)
        for id, attempts in before.items():
            if id in self.store.records:
                self.store.records[id].attempts = attempts
        return answers


class AttemptCountedOnRelease(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Release):
                self.store.records[settlement.lease.id].attempts += 1
        return answers


class AttemptCountedOnEveryAbandon(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Abandon) and not settlement.reason.follows_a_run:
                self.store.records[settlement.lease.id].attempts += 1
        return answers


class DelayForgottenOnNack(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return super().settle([replace(one, delay=0.0) if isinstance(one, Nack) else one for one in settlements])


class DeadLetterDropped(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Abandon):
                self.store.records.pop(settlement.lease.id, None)
        return answers


class CancelRequestLostOnRetry(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for settlement in settlements:
            if isinstance(settlement, Nack) and settlement.lease.id in self.store.records:
                self.store.records[settlement.lease.id].cancel_request = None
        return super().settle(settlements)


class CancelRequestLost(MemoryEngine):
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        answer = super().cancel(job_id, reason)
        if answer is CancelAnswer.REQUESTED:
            self.store.records[job_id].cancel_request = None
        return answer


class RunningJobCancelledUnderItsWorker(MemoryEngine):
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        record = self.store.leased.pop(job_id, None)
        if record is not None:
            record.finish(JobState.CANCELLED, self.clock.now_us())
            return CancelAnswer.CANCELLED
        return super().cancel(job_id, reason)


class TakeoverRobsEveryWorker(MemoryEngine):
    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        return super().expire_leases([bytes.fromhex(one.owner_token or "")[:8] for one in self.store.leased.values()])


class TakeoverCountsExpiredLeases(MemoryEngine):
    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        theirs = [one for one in self.store.leased.values() if bytes.fromhex(one.owner_token or "")[:8] in sessions]
        return max(super().expire_leases(sessions), len(theirs))


class ReaperTakesLivingLeases(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        for record in self.store.leased.values():
            record.lease_until_us = self.clock.now_us()
        return super().reap_expired(queue)


class ReaperReapsEveryQueue(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        return super().reap_expired(None)


class ReaperNeverReaps(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        return 0


class ReaperLeavesNoHistory(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        histories = {id: list(record.history) for id, record in self.store.leased.items()}
        reaped = super().reap_expired(queue)
        for id, history in histories.items():
            self.store.records[id].history = history
        return reaped


class CrashNotCounted(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        before = {id: record.crashes for id, record in self.store.leased.items()}
        reaped = super().reap_expired(queue)
        for id, crashes in before.items():
            self.store.records[id].crashes = crashes
        return reaped


class ReaperSelectsThenUpdates(MemoryEngine):
    """Two reapers read the same expired leases, and both count them."""

    _both_have_read = threading.Barrier(2)

    def reap_expired(self, queue: str | None = None) -> int:
        ended = [record for record in list(self.store.leased.values()) if record.lease_until_us <= self.clock.now_us()]
        if threading.current_thread() is not threading.main_thread():
            self._both_have_read.wait(timeout=30)
        reaped = super().reap_expired(queue)
        if not reaped:
            for record in ended:
                record.crashes += 1
        return reaped or len(ended)


class ClaimIgnoresItsLimit(MemoryEngine):
    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        return super().claim(queue, limit + 1, owner_token=owner_token, wait=wait)


class ClaimRewritesTheMessage(MemoryEngine):
    """The bug of an engine that stores columns instead of the message."""

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        leases = super().claim(queue, limit, owner_token=owner_token, wait=wait)
        return [
            lease if describe(lease.wire) is None else replace(lease, wire=msgspec.json.format(lease.wire, indent=1))
            for lease in leases
        ]


class PriorityInverted(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        return super().accept([replace(one, priority=9 - one.priority) for one in envelopes], tx)


class BatchOrderLost(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        return super().accept(list(reversed(envelopes)), tx)[::-1]


class HalfABatchKept(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        return [answer for one in envelopes for answer in super(HalfABatchKept, self).accept([one], tx)]


class SameIdOverwrites(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        for envelope in envelopes:
            self.store.records.pop(envelope.id, None)
        return super().accept(envelopes, tx)


class OtherContentAcceptedSilently(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        known = set(self.store.records)
        fresh = super().accept([one for one in envelopes if one.id not in known], tx)
        created = {answer.id: answer.created for answer in fresh}
        return [Accepted(id=one.id, created=created.get(one.id, False)) for one in envelopes]


class RepeatedEnqueueMovesTheDueTime(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        answers = super().accept(envelopes, tx)
        for envelope, answer in zip(envelopes, answers, strict=True):
            if not answer.created and envelope.id in self.store.records:
                record = self.store.records[envelope.id]
                record.due_us = self.clock.now_us() + int(envelope.delay * 1e6)
                self.store.offer(record)
        return answers


class TransactionIgnored(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        return super().accept(envelopes)


class TombstoneForgotten(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        self.store.tombstones.clear()
        return super().accept(envelopes, tx)


class RenewalRevivesAnEndedLease(MemoryEngine):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        for lease in leases:
            record = self.store.records.get(lease.id)
            if record is not None and record.owner_token == lease.owner_token:
                record.lease_until_us = max(record.lease_until_us, self.clock.now_us() + 1)
        return super().renew_many(leases)


class RenewalMovesNothing(MemoryEngine):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        before = {id: record.lease_until_us for id, record in self.store.leased.items()}
        answers = super().renew_many(leases)
        for id, lease_until_us in before.items():
            self.store.leased[id].lease_until_us = lease_until_us
        return answers


class RenewalOfOneLosesAll(MemoryEngine):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        answers = super().renew_many(leases)
        return [LeaseState.LOST] * len(leases) if LeaseState.LOST in answers else answers


class ReplayForgetsHistory(MemoryEngine):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].history.clear()
        return answer


class ReplayKeepsAttempts(MemoryEngine):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        attempts = self.store.records[job_id].attempts if job_id in self.store.records else 0
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].attempts = attempts
        return answer


class ReplayIsANewJob(MemoryEngine):
    """Deletes and inserts the job, so that the deliveries of its former life are lost."""

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].deliveries = 0
        return answer


class ReplayIgnoresExpiryUnasked(MemoryEngine):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        return super().replay(job_id, ignore_expiry=True)


class PurgeTakesWaitingJobs(MemoryEngine):
    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        purged = super().purge(states, queue=queue, older_than=older_than)
        for id in [id for id, record in self.store.records.items() if record.is_claimable]:
            del self.store.records[id]
        return purged


class PurgeIgnoresAge(MemoryEngine):
    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        return super().purge(states, queue=queue)


class DeadLettersPruned(MemoryEngine):
    def prune(self) -> int:
        return super().prune() + self.purge([JobState.DEAD], older_than=timedelta(days=1))


class DiscardTakesAnyJob(MemoryEngine):
    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        return super().discard(job_id, states=states) or self.store.records.pop(job_id, None) is not None


class DiscardIsForDeadLettersOnly(MemoryEngine):
    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        return super().discard(job_id)


class PageLosesTheLastJob(MemoryEngine):
    """`limit` is applied before the cursor's own row is left out."""

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        page = super().find(where, limit=limit, after=after)
        return page if after is None else Page(jobs=page.jobs[1:], next=page.next)


class CursorsOfNeighbours(MemoryEngine):
    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        page = super().find(where, limit=limit, after=after)
        return replace(page, cursors=page.cursors[1:] + page.cursors[:1])


class SearchesByTimeIncludeTheirEnd(MemoryEngine):
    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        instant = timedelta(microseconds=1)
        accepted, finished = where.accepted_before, where.finished_before
        where = replace(
            where,
            accepted_before=None if accepted is None else accepted + instant,
            finished_before=None if finished is None else finished + instant,
        )
        return super().find(where, limit=limit, after=after)


class SearchesForgetWhereTheyBegin(MemoryEngine):
    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        return super().find(replace(where, finished_from=None), limit=limit, after=after)


class HistoryBackwards(MemoryEngine):
    def get(self, job_id: str) -> JobHistory | None:
        history = super().get(job_id)
        return None if history is None else replace(history, attempts=history.attempts[::-1])


class MessageLostWithTheEnd(MemoryEngine):
    def get(self, job_id: str) -> JobHistory | None:
        history = super().get(job_id)
        return replace(history, wire=b"") if history is not None and history.job.state.is_final else history


class WaitNeverEndsEarly(MemoryJobs):
    """Misses a job that is due, or becomes due during the wait."""

    def _is_due(self, queues: Sequence[str]) -> bool:
        return False


class WaitLooksAtOneQueue(MemoryJobs):
    def _is_due(self, queues: Sequence[str]) -> bool:
        return super()._is_due(queues[:1])


class WaitSpinsWhilePaused(MemoryJobs):
    def _is_due(self, queues: Sequence[str]) -> bool:
        return super()._is_due(queues) or any(queue in self._store.pauses for queue in queues)


class WaitNeverWaits(MemoryEngine):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        pass


class WaitIsDeaf(MemoryEngine):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        super().wait_for_work(queues, timeout)


class WaitSwallowsWhatWokeIt(MemoryEngine):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        super().wait_for_work(queues, timeout, wake=wake)
        if wake is not None and self.clock.wait(0, [wake]):
            os.read(wake, 10)


class ProgressOfAnybody(MemoryEngine):
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        records = [self.store.records.get(lease.id) for lease, _ in reports]
        for record, (_, progress) in zip(records, reports, strict=True):
            if record is not None:
                record.progress = record.deliveries, progress
        return super().report_progress(reports)


class ProgressOfTheDeliveryBefore(MemoryJobs):
    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        leases = super().claim_now(queue, limit, owner_token)
        for lease in leases:
            record = self._store.records[lease.id]
            if record.progress is not None:
                record.progress = record.deliveries, record.progress[1]
        return leases


class ProgressRenewsTheLease(MemoryEngine):
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        self.renew_many([lease for lease, _ in reports])
        return super().report_progress(reports)


class ProgressLostWithTheVerdict(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for one in settlements:
            if record := self.store.records.get(one.lease.id):
                record.progress = None
        return super().settle(settlements)


class OutputOfAnybody(MemoryEngine):
    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        for lease, output in reports:
            if record := self.store.records.get(lease.id):
                record.outputs[record.deliveries] = output
        return super().report_output(reports)


class OutputRenewsTheLease(MemoryEngine):
    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        self.renew_many([lease for lease, _ in reports])
        return super().report_output(reports)


class OutputLostInTheCrash(MemoryEngine):
    def reap_expired(self, queue: str | None = None) -> int:
        for record in self.store.leased.values():
            record.outputs.clear()
        return super().reap_expired(queue)


class OutputOfTheDeliveryBefore(MemoryEngine):
    def get(self, job_id: str) -> JobHistory | None:
        history = super().get(job_id)
        record = self.store.records.get(job_id)
        if history is None or record is None or not record.outputs:
            return history
        return replace(history, live_output=list(record.outputs.values())[-1])


class LongOutputKeptWhole(MemoryEngine):
    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        answers = super().report_output(reports)
        for lease, output in reports:
            self.store.records[lease.id].outputs[lease.delivery] = output
        return answers


class LookRenewsTheLease(MemoryJobs):
    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return MemoryJobs(self._store, self.policy, self.clock).renew_many(leases)


class LeasedJobsWait(MemoryEngine):
    def oldest_waits(self) -> dict[str, QueueWait]:
        records = self.store.records.values()
        return oldest_waits([(one.envelope.queue, one.due_us) for one in records], self.clock.now_us())


class WritesUpToTheFailedCondition(MemoryState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        versions: list[int] = []
        for write in writes:
            written = super().write([write])
            if written is None:
                return None
            versions += written
        return versions


class ConditionDropped(MemoryState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        return super().write([replace(write, if_version=None) for write in writes])


class ConditionCheckedBeforeTheLock(MemoryState):
    """All writers check the condition before any of them writes."""

    _all_have_looked = threading.Barrier(RACERS)

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        if threading.current_thread() is threading.main_thread():
            return super().write(writes)
        cells, resizes = parted(writes)
        holds = all(self._holds(write) for write in cells if write.if_version is not None)
        self._all_have_looked.wait(timeout=30)
        return super().write([*(replace(write, if_version=None) for write in cells), *resizes]) if holds else None

    def _holds(self, write: CellWrite) -> bool:
        cells = self.read(write.kind, [write.key])
        return (cells[0].version if cells else 0) == write.if_version


class ResizedThoughAConditionFailed(MemoryState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        versions = super().write(writes)
        if versions is None:
            super().write([one for one in writes if isinstance(one, Resize)])
        return versions


class VersionsStartAgainAfterADrop(MemoryState):
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        versions = super().write(writes)
        for write in writes:
            if versions is not None and isinstance(write, Drop):
                self._store.cells.pop((write.kind, write.key), None)
        return versions


class SweptWhileTheVersionIsAhead(MemoryState):
    def sweep(self, limit: int = 1000) -> int:
        now = self._clock.now_us()
        for name in [name for name, stored in self._store.cells.items() if not stored.is_live(now)]:
            del self._store.cells[name]
        return super().sweep(limit)


class ExpiredUntilItIsSwept(MemoryState):
    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Cell]:
        for name, stored in self._store.cells.items():
            self._store.cells[name] = stored._replace(expires_us=None)
        return super().read(kind, keys, after=after, limit=limit)


class SweepTakesLiveCells(MemoryState):
    def sweep(self, limit: int = 1000) -> int:
        swept = super().sweep(limit)
        self._store.cells.clear()
        return swept


class RefundWithoutLimit(MemoryState):
    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return [
            Spent(tokens=one.tokens, wait_s=0.0) if one.tokens > one.burst else spent
            for one, spent in zip(spends, super().spend(spends), strict=True)
        ]


class SpendOfNothingAnswersNothing(MemoryState):
    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        return [
            spent if one.tokens else Spent(tokens=0, wait_s=0.0)
            for one, spent in zip(spends, super().spend(spends), strict=True)
        ]


class SpendReadsThenWrites(MemoryState):
    """All callers read the same bucket before any of them takes from it."""

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        before = dict(self._store.buckets)
        answers = super().spend(spends)
        self._store.buckets |= before
        return answers


class WritesOfTheWholeBatch(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        self.state.write([write for one in settlements for write in one.writes])
        return answers


class WritesOfARepetition(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for one, answer in zip(settlements, answers, strict=True):
            if answer:
                self.state.write(one.writes)
        return answers


class EnqueuesOfARefusal(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for one, answer in zip(settlements, answers, strict=True):
            if not answer:
                self.accept(one.enqueues)
        return answers


class NeighboursOfABadOneSettled(MemoryEngine):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return [answer for one in settlements for answer in super(NeighboursOfABadOneSettled, self).settle([one])]


class JobsAcceptedWithoutTheirWrites(MemoryEngine):
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[Write] = ()
    ) -> list[Accepted]:
        accepted = super().accept(envelopes, tx)
        if self.state.write(writes) is None:
            raise StateConflict("too late")
        return accepted


class CompletedParentsNotNoted(MemoryStore):
    def note(self, records: Iterable[StoredJob]) -> None:
        super().note([one for one in records if one.state is not JobState.COMPLETED])


class DeadParentsNotNoted(MemoryStore):
    def note(self, records: Iterable[StoredJob]) -> None:
        super().note([one for one in records if one.state is not JobState.DEAD])


class ReapedParentsNotNoted(MemoryJobs):
    def reap_expired(self, queue: str | None = None) -> int:
        notes = dict(self._store.notes)
        reaped = super().reap_expired(queue)
        self._store.notes = notes
        return reaped


class ParentsCancelledWhileTheyWaitNotNoted(MemoryStore):
    def note(self, records: Iterable[StoredJob]) -> None:
        super().note([one for one in records if one.state is not JobState.CANCELLED or one.deliveries])


class ParentsCancelledOnEntryNotNoted(MemoryJobs):
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        notes = dict(self._store.notes)
        answers = super().enter(entries)
        self._store.notes = notes
        return answers


class DeletedParentsNotNoted(MemoryStore):
    def note(self, records: Iterable[StoredJob]) -> None:
        super().note([one for one in records if one.number in self.by_number])


class ReplayedParentsNotNoted(MemoryStore):
    def note(self, records: Iterable[StoredJob]) -> None:
        super().note([one for one in records if one.state.is_final])


class RescheduledBeforeItsParentsEnd(MemoryJobs):
    def _wait(self, record: StoredJob, state: JobState) -> None:
        record.state = state
        self._store.offer(record)


class ReplayedBeforeItsOtherParentsEnd(MemoryStore):
    def has_open_edge(self, record: StoredJob) -> bool:
        return False


class ReplayedButWaitingForAFailedParent(MemoryRecords):
    def _disregard_failed_parents(self, record: StoredJob) -> None:
        pass


class ParentsOfWaitingJobsPruned(MemoryRecords):
    def delete(self, outdated: Outdated) -> int:
        return super().delete(replace(outdated, spares_parents=False))


class ParentsOfReleasedJobsPruned(MemoryRecords):
    def _has_open_child(self, record: StoredJob) -> bool:
        return any(one.outcome is EdgeOutcome.OPEN for one in self._store.children.get(record.number, {}).values())


BUGS: dict[type[MemoryEngine | MemoryJobs | MemoryRecords | MemoryState | MemoryStore], str] = {
    AckWithoutTokenCheck: "test_a_stale_lease_cannot_settle_a_job_that_another_holds",
    VerdictAcceptedAfterTheLeaseEnded: "test_an_expired_lease_cannot_settle_the_job_even_before_it_is_reaped",
    RefusedAttemptRecorded: "test_a_forged_token_cannot_settle",
    RepeatedAttemptRecordedTwice: "test_a_repeated_settlement_answers_true_and_changes_nothing",
    OneBadSettlementSpoilsTheBatch: "test_each_settlement_of_a_batch_has_its_own_answer",
    AttemptLostOnNack: "test_a_nack_costs_an_attempt_and_waits_for_its_retry",
    AttemptCountedOnRelease: "test_a_release_costs_no_attempt",
    AttemptCountedOnEveryAbandon: "test_only_reasons_that_follow_a_run_cost_an_attempt",
    DelayForgottenOnNack: "test_a_retry_is_never_delivered_early",
    DeadLetterDropped: "test_a_dead_letter_has_its_whole_history",
    CancelRequestLostOnRetry: "test_a_job_with_a_cancellation_request_is_not_retried",
    CancelRequestLost: "test_a_running_job_receives_a_cancellation_request",
    RunningJobCancelledUnderItsWorker: "test_a_running_job_receives_a_cancellation_request",
    ReaperTakesLivingLeases: "test_the_reaper_does_not_touch_unexpired_leases",
    ReaperReapsEveryQueue: "test_the_reaper_reaps_one_queue_or_all",
    ReaperNeverReaps: "test_every_job_of_a_lost_claim_is_requeued",
    ReaperLeavesNoHistory: "test_a_delivery_without_a_verdict_is_in_the_history",
    CrashNotCounted: "test_a_reaped_job_is_pending_with_one_crash_and_no_attempt",
    ReaperSelectsThenUpdates: "test_concurrent_reapers_count_a_crash_once",
    ClaimIgnoresItsLimit: "test_a_claim_returns_at_most_its_limit",
    ClaimRewritesTheMessage: "test_the_message_is_delivered_byte_for_byte",
    PriorityInverted: "test_higher_priorities_come_first",
    BatchOrderLost: "test_a_batch_is_claimed_in_the_order_it_was_accepted",
    HalfABatchKept: "test_a_refused_job_refuses_its_whole_batch",
    SameIdOverwrites: "test_the_same_id_with_other_content_is_refused",
    OtherContentAcceptedSilently: "test_the_same_id_with_other_content_is_refused",
    RepeatedEnqueueMovesTheDueTime: "test_the_same_content_created_again_is_the_same_job",
    TransactionIgnored: "test_a_transaction_is_refused_where_none_is_declared",
    TombstoneForgotten: "test_a_discarded_id_is_known_for_an_hour_and_then_free",
    RenewalRevivesAnEndedLease: "test_an_expired_lease_is_never_revived",
    RenewalMovesNothing: "test_a_renewed_lease_expires_a_full_length_from_now",
    RenewalOfOneLosesAll: "test_many_leases_are_renewed_one_by_one",
    ReplayForgetsHistory: "test_a_replayed_dead_letter_starts_a_new_life_with_its_history",
    ReplayKeepsAttempts: "test_a_replayed_dead_letter_starts_a_new_life_with_its_history",
    ReplayIsANewJob: "test_a_replayed_crash_loop_may_crash_as_often_again",
    ReplayIgnoresExpiryUnasked: "test_an_expired_job_is_replayed_only_if_its_expiry_is_ignored",
    PurgeTakesWaitingJobs: "test_a_purge_deletes_only_jobs_in_the_given_states",
    PurgeIgnoresAge: "test_a_purge_leaves_jobs_that_finished_recently",
    DeadLettersPruned: "test_dead_letters_are_retained_forever_by_default",
    DiscardTakesAnyJob: "test_only_dead_letters_are_discarded",
    DiscardIsForDeadLettersOnly: "test_completed_and_cancelled_jobs_are_discarded_on_request",
    PageLosesTheLastJob: "test_pages_show_every_job_exactly_once",
    CursorsOfNeighbours: "test_every_job_of_a_page_has_a_cursor_to_the_rest",
    SearchesByTimeIncludeTheirEnd: "test_jobs_can_be_searched_by_when_they_were_accepted",
    SearchesForgetWhereTheyBegin: "test_a_search_can_start_from_when_jobs_finished",
    HistoryBackwards: "test_the_history_has_every_attempt_in_order",
    MessageLostWithTheEnd: "test_a_history_contains_the_message_as_it_was_accepted",
    LeasedJobsWait: "test_the_longest_wait_of_each_queue_is_known",
    WaitNeverEndsEarly: "test_a_wait_ends_when_a_job_is_due",
    WaitLooksAtOneQueue: "test_a_job_in_any_of_the_queues_ends_the_wait",
    WaitSpinsWhilePaused: "test_a_job_that_cannot_be_claimed_does_not_end_a_wait",
    WaitNeverWaits: "test_a_wait_ends_at_its_timeout",
    WaitIsDeaf: "test_a_wait_ends_when_the_wake_descriptor_is_readable",
    WaitSwallowsWhatWokeIt: "test_a_wait_ends_when_the_wake_descriptor_is_readable",
    ProgressOfAnybody: "test_a_stale_lease_cannot_report_progress",
    ProgressOfTheDeliveryBefore: "test_a_new_delivery_has_no_progress",
    ProgressRenewsTheLease: "test_a_report_does_not_move_the_lease",
    ProgressLostWithTheVerdict: "test_an_unsuccessful_job_shows_its_progress",
    OutputOfAnybody: "test_a_stale_lease_cannot_report_output",
    OutputRenewsTheLease: "test_output_does_not_move_the_lease",
    OutputLostInTheCrash: "test_the_output_of_a_crashed_delivery_is_retained",
    OutputOfTheDeliveryBefore: "test_a_new_delivery_under_the_same_token_has_no_live_output",
    LongOutputKeptWhole: "test_the_end_of_a_long_output_is_retained",
    LookRenewsTheLease: "test_lease_states_are_read_without_extending_a_lease",
    WritesUpToTheFailedCondition: "test_a_failed_condition_refuses_all_writes",
    ConditionDropped: "test_a_failed_condition_refuses_all_writes",
    ConditionCheckedBeforeTheLock: "test_of_many_writers_of_one_version_one_wins",
    VersionsStartAgainAfterADrop: "test_versions_grow_across_drop_expiry_and_sweep",
    SweptWhileTheVersionIsAhead: "test_versions_grow_across_drop_expiry_and_sweep",
    ExpiredUntilItIsSwept: "test_an_expired_cell_is_absent_before_it_is_swept",
    SweepTakesLiveCells: "test_sweeping_deletes_only_what_has_expired",
    RefundWithoutLimit: "test_a_refund_never_fills_a_bucket_above_its_burst",
    SpendOfNothingAnswersNothing: "test_a_spend_of_nothing_answers_how_full_the_bucket_is",
    SpendReadsThenWrites: "test_a_bucket_grants_its_burst_and_then_its_rate",
    WritesOfTheWholeBatch: "test_a_refused_settlement_carries_nothing",
    WritesOfARepetition: "test_a_repeated_settlement_carries_nothing_twice",
    EnqueuesOfARefusal: "test_a_refused_settlement_carries_nothing",
    NeighboursOfABadOneSettled: "test_a_settlement_that_cannot_be_written_changes_nothing_and_others_can_be_settled",
    TakeoverRobsEveryWorker: "test_leases_of_other_sessions_stay",
    TakeoverCountsExpiredLeases: "test_a_lease_expires_only_once",
    ResizedThoughAConditionFailed: "test_a_refused_write_resizes_nothing",
    JobsAcceptedWithoutTheirWrites: "test_jobs_are_accepted_with_writes_or_not_at_all",
    CompletedParentsNotNoted: "test_a_child_is_blocked_until_its_parent_has_completed",
    DeadParentsNotNoted: "test_every_end_of_a_parent_is_noticed",
    ReapedParentsNotNoted: "test_every_end_of_a_parent_is_noticed",
    ParentsCancelledWhileTheyWaitNotNoted: "test_every_end_of_a_parent_is_noticed",
    ParentsCancelledOnEntryNotNoted: "test_every_end_of_a_parent_is_noticed",
    DeletedParentsNotNoted: "test_a_deleted_parent_counts_as_failed",
    ReplayedParentsNotNoted: "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
    RescheduledBeforeItsParentsEnd: "test_a_rescheduled_child_still_waits",
    ReplayedBeforeItsOtherParentsEnd: "test_a_replayed_child_runs_although_its_parent_failed",
    ReplayedButWaitingForAFailedParent: "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed",
    ParentsOfWaitingJobsPruned: "test_a_parent_is_retained_for_its_unfinished_children",
    ParentsOfReleasedJobsPruned: "test_a_parent_is_retained_for_its_unfinished_children",
}
"""Each bug with the clause that it breaks."""


@contextmanager
def lab_of(bug: type[MemoryEngine | MemoryJobs | MemoryRecords | MemoryState | MemoryStore]) -> Generator[Lab]:
    """A lab for an engine with a bug, or with a part that has one."""
    store = bug() if issubclass(bug, MemoryStore) else MemoryStore()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        if issubclass(bug, MemoryEngine):
            return bug(envelopes, policy=policy, clock=clock, store=store)
        engine = MemoryEngine(envelopes, policy=policy, clock=clock, store=store)
        if issubclass(bug, MemoryJobs):
            engine.jobs = bug(store, policy, clock)
        elif issubclass(bug, MemoryRecords):
            engine.records = bug(store, policy, clock)
        elif issubclass(bug, MemoryState):
            engine.state = bug(store, clock)
        return engine

    with Lab(connect) as lab:
        yield lab


HEALTHY = partial(lab_of, MemoryEngine)
PLANTS = {bug.__name__: Plant(breaks, partial(lab_of, bug)) for bug, breaks in BUGS.items()}
