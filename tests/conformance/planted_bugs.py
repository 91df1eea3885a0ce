"""Classic bugs, each planted in an engine that is otherwise right: what the laws must not let pass.

Most are a memory engine with one verb gone wrong; where the bug is a forgotten condition, it is the SQLite engine with
that condition struck from its statement.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.codec import describe
from holdfast.queues.backends import sqlite
from holdfast.queues.backends import sqlite_inspector as inspector
from holdfast.queues.backends import sqlite_workers as workers
from holdfast.queues.backends.memory import MemoryBackend, MemoryStore
from holdfast.queues.backends.sqlite import SqliteBackend
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab
from holdfast.values import (
    Abandon,
    Accepted,
    Ack,
    AttemptView,
    CancelAnswer,
    JobEnvelope,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    LeaseState,
    Nack,
    Page,
    Progress,
    Release,
    ReplayAnswer,
    Settlement,
    StopOrder,
    WorkerReport,
    WorkerState,
    WorkerView,
)

Plant: TypeAlias = Callable[[Path], Lab]


class AckWithoutTokenCheck(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return super().settle([self._believe(one) for one in settlements])

    def _believe(self, settlement: Settlement) -> Settlement:
        record = self.store.records.get(settlement.lease.id)
        if record is None or not isinstance(settlement, Ack):
            return settlement
        return replace(settlement, lease=replace(settlement.lease, owner_token=record.owner_token or ""))


class VerdictAcceptedAfterTheLeaseEnded(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for settlement in settlements:
            record = self.store.records.get(settlement.lease.id)
            if record is not None and record.owner_token == settlement.lease.owner_token:
                record.lease_until_us = max(record.lease_until_us, self.clock.now_us() + 1)
        return super().settle(settlements)


class RefusedAttemptRecorded(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            record = self.store.records.get(settlement.lease.id)
            if not answer and record is not None and settlement.record is not None:
                record.history.append(AttemptView(delivery=settlement.lease.delivery, record=settlement.record))
        return answers


class RepeatedAttemptRecordedTwice(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        held = [settlement.lease.id in self.store.leased for settlement in settlements]
        answers = super().settle(settlements)
        for settlement, answer, was_held in zip(settlements, answers, held, strict=True):
            if answer and not was_held and settlement.record is not None:
                past = AttemptView(delivery=settlement.lease.delivery, record=settlement.record)
                self.store.records[settlement.lease.id].history.append(past)
        return answers


class OneBadSettlementSpoilsTheBatch(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        now = self.clock.now_us()
        records = [self.store.records.get(settlement.lease.id) for settlement in settlements]
        if all(
            record is not None and record.is_held_by(settlement.lease, now)
            for record, settlement in zip(records, settlements, strict=True)
        ):
            return super().settle(settlements)
        return [False] * len(settlements) if len(settlements) > 1 else super().settle(settlements)


class AttemptLostOnNack(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        before = {one.lease.id: one.lease.attempts for one in settlements if isinstance(one, Nack)}
        answers = super().settle(settlements)
        for id, attempts in before.items():
            if id in self.store.records:
                self.store.records[id].attempts = attempts
        return answers


class AttemptCountedOnRelease(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Release):
                self.store.records[settlement.lease.id].attempts += 1
        return answers


class AttemptCountedOnEveryAbandon(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Abandon) and not settlement.reason.follows_a_run:
                self.store.records[settlement.lease.id].attempts += 1
        return answers


class DelayForgottenOnNack(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return super().settle([replace(one, delay=0.0) if isinstance(one, Nack) else one for one in settlements])


class DeadLetterDropped(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        answers = super().settle(settlements)
        for settlement, answer in zip(settlements, answers, strict=True):
            if answer and isinstance(settlement, Abandon):
                self.store.records.pop(settlement.lease.id, None)
        return answers


class CancelRequestLostOnRetry(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for settlement in settlements:
            if isinstance(settlement, Nack) and settlement.lease.id in self.store.records:
                self.store.records[settlement.lease.id].cancel_request = None
        return super().settle(settlements)


class CancelRequestLost(MemoryBackend):
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        answer = super().cancel(job_id, reason)
        if answer is CancelAnswer.REQUESTED:
            self.store.records[job_id].cancel_request = None
        return answer


class RunningJobCancelledUnderItsWorker(MemoryBackend):
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        record = self.store.leased.pop(job_id, None)
        if record is not None:
            record.finish(JobState.CANCELLED, self.clock.now_us())
            return CancelAnswer.CANCELLED
        return super().cancel(job_id, reason)


class ReaperTakesLivingLeases(MemoryBackend):
    def reap_expired(self, queue: str | None = None) -> int:
        for record in self.store.leased.values():
            record.lease_until_us = self.clock.now_us()
        return super().reap_expired(queue)


class ReaperReapsEveryQueue(MemoryBackend):
    def reap_expired(self, queue: str | None = None) -> int:
        return super().reap_expired(None)


class ReaperNeverReaps(MemoryBackend):
    def reap_expired(self, queue: str | None = None) -> int:
        return 0


class ReaperLeavesNoHistory(MemoryBackend):
    def reap_expired(self, queue: str | None = None) -> int:
        histories = {id: list(record.history) for id, record in self.store.leased.items()}
        reaped = super().reap_expired(queue)
        for id, history in histories.items():
            self.store.records[id].history = history
        return reaped


class CrashNotCounted(MemoryBackend):
    def reap_expired(self, queue: str | None = None) -> int:
        before = {id: record.crashes for id, record in self.store.leased.items()}
        reaped = super().reap_expired(queue)
        for id, crashes in before.items():
            self.store.records[id].crashes = crashes
        return reaped


class ReaperSelectsThenUpdates(MemoryBackend):
    """Two reapers that read the same ended leases both count them."""

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


class ClaimIgnoresItsLimit(MemoryBackend):
    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        return super().claim(queue, limit + 1, owner_token=owner_token, wait=wait)


class ClaimRewritesTheMessage(MemoryBackend):
    """What every engine does that keeps columns instead of the bytes."""

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        leases = super().claim(queue, limit, owner_token=owner_token, wait=wait)
        return [
            lease if describe(lease.wire) is None else replace(lease, wire=msgspec.json.format(lease.wire, indent=1))
            for lease in leases
        ]


class PriorityInverted(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        return super().accept([replace(one, priority=9 - one.priority) for one in envelopes], tx)


class BatchOrderLost(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        return super().accept(list(reversed(envelopes)), tx)[::-1]


class HalfABatchKept(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        return [answer for one in envelopes for answer in super(HalfABatchKept, self).accept([one], tx)]


class SameIdOverwrites(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        for envelope in envelopes:
            self.store.records.pop(envelope.id, None)
        return super().accept(envelopes, tx)


class OtherContentAcceptedSilently(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        known = set(self.store.records)
        fresh = super().accept([one for one in envelopes if one.id not in known], tx)
        created = {answer.id: answer.created for answer in fresh}
        return [Accepted(id=one.id, created=created.get(one.id, False)) for one in envelopes]


class RepeatedEnqueueMovesTheDueTime(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        answers = super().accept(envelopes, tx)
        for envelope, answer in zip(envelopes, answers, strict=True):
            if not answer.created and envelope.id in self.store.records:
                record = self.store.records[envelope.id]
                record.due_us = self.clock.now_us() + int(envelope.delay * 1e6)
                self.store.offer(record)
        return answers


class TransactionIgnored(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        return super().accept(envelopes)


class TombstoneForgotten(MemoryBackend):
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        self.store.tombstones.clear()
        return super().accept(envelopes, tx)


class RenewalRevivesAnEndedLease(MemoryBackend):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        for lease in leases:
            record = self.store.records.get(lease.id)
            if record is not None and record.owner_token == lease.owner_token:
                record.lease_until_us = max(record.lease_until_us, self.clock.now_us() + 1)
        return super().renew_many(leases)


class RenewalMovesNothing(MemoryBackend):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        before = {id: record.lease_until_us for id, record in self.store.leased.items()}
        answers = super().renew_many(leases)
        for id, lease_until_us in before.items():
            self.store.leased[id].lease_until_us = lease_until_us
        return answers


class RenewalOfOneLosesAll(MemoryBackend):
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        answers = super().renew_many(leases)
        return [LeaseState.LOST] * len(leases) if LeaseState.LOST in answers else answers


class ReplayForgetsHistory(MemoryBackend):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].history.clear()
        return answer


class ReplayKeepsAttempts(MemoryBackend):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        attempts = self.store.records[job_id].attempts if job_id in self.store.records else 0
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].attempts = attempts
        return answer


class ReplayIsANewJob(MemoryBackend):
    """Delete and insert instead of one change: the deliveries of the former life are gone."""

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        answer = super().replay(job_id, ignore_expiry=ignore_expiry)
        if answer is ReplayAnswer.REPLAYED:
            self.store.records[job_id].deliveries = 0
        return answer


class ReplayIgnoresExpiryUnasked(MemoryBackend):
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        return super().replay(job_id, ignore_expiry=True)


class PurgeTakesWaitingJobs(MemoryBackend):
    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        purged = super().purge(states, queue=queue, older_than=older_than)
        for id in [id for id, record in self.store.records.items() if record.is_claimable]:
            del self.store.records[id]
        return purged


class PurgeIgnoresAge(MemoryBackend):
    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        return super().purge(states, queue=queue)


class DeadLettersPruned(MemoryBackend):
    def prune(self) -> int:
        return super().prune() + self.purge([JobState.DEAD], older_than=timedelta(days=1))


class DiscardTakesAnyJob(MemoryBackend):
    def discard(self, job_id: str) -> bool:
        return super().discard(job_id) or self.store.records.pop(job_id, None) is not None


class PageLosesTheLastJob(MemoryBackend):
    """`limit` is applied before the cursor's own row is left out."""

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        page = super().find(where, limit=limit, after=after)
        return page if after is None else Page(jobs=page.jobs[1:], next=page.next)


class HistoryBackwards(MemoryBackend):
    def get(self, job_id: str) -> JobHistory | None:
        history = super().get(job_id)
        return None if history is None else replace(history, attempts=history.attempts[::-1])


class WaitNeverEndsEarly(MemoryBackend):
    """A job that is due, or falls due meanwhile, goes unnoticed."""

    def _is_due(self, queues: Sequence[str]) -> bool:
        return False


class WaitLooksAtOneQueue(MemoryBackend):
    def _is_due(self, queues: Sequence[str]) -> bool:
        return super()._is_due(queues[:1])


class WaitSpinsWhilePaused(MemoryBackend):
    def _is_due(self, queues: Sequence[str]) -> bool:
        return super()._is_due(queues) or any(queue in self.store.pauses for queue in queues)


class WaitNeverWaits(MemoryBackend):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        pass


class WaitIsDeaf(MemoryBackend):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        super().wait_for_work(queues, timeout)


class WaitSwallowsWhatWokeIt(MemoryBackend):
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        super().wait_for_work(queues, timeout, wake=wake)
        if wake is not None and self.clock.wait(0, [wake]):
            os.read(wake, 10)


class ProgressOfAnybody(MemoryBackend):
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        records = [self.store.records.get(lease.id) for lease, _ in reports]
        for record, (_, progress) in zip(records, reports, strict=True):
            if record is not None:
                record.progress = record.deliveries, progress
        return super().report_progress(reports)


class ProgressOfTheDeliveryBefore(MemoryBackend):
    def _claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        leases = super()._claim_now(queue, limit, owner_token)
        for lease in leases:
            record = self.store.records[lease.id]
            if record.progress is not None:
                record.progress = record.deliveries, record.progress[1]
        return leases


class ProgressRenewsTheLease(MemoryBackend):
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        self.renew_many([lease for lease, _ in reports])
        return super().report_progress(reports)


class ProgressLostWithTheVerdict(MemoryBackend):
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        for one in settlements:
            if record := self.store.records.get(one.lease.id):
                record.progress = None
        return super().settle(settlements)


class BeatForgetsTheOrder(MemoryBackend):
    def beat(self, report: WorkerReport) -> StopOrder | None:
        order = super().beat(report)
        self.store.workers[report.id].order = None
        return order


class OrderMadeLessUrgent(MemoryBackend):
    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        known = super().order_stop(worker_id, order)
        if known:
            self.store.workers[worker_id].order = order
        return known


class LeavingTakesNobodyOff(MemoryBackend):
    def leave(self, worker_id: str) -> None:
        pass


class SilentWorkerNeverLost(MemoryBackend):
    def workers(self) -> Sequence[WorkerView]:
        return [
            replace(view, state=WorkerState.LIVE) if view.state is WorkerState.LOST else view
            for view in super().workers()
        ]


class LostWorkerForgottenAtOnce(MemoryBackend):
    def prune(self) -> int:
        for view in self.workers():
            if view.state is WorkerState.LOST:
                self.leave(view.report.id)
        return super().prune()


class LostWorkerNeverForgotten(MemoryBackend):
    def prune(self) -> int:
        kept = dict(self.store.workers)
        pruned = super().prune()
        self.store.workers.update(kept)
        return pruned


MEMORY_BUGS: list[type[MemoryBackend]] = [
    AckWithoutTokenCheck,
    VerdictAcceptedAfterTheLeaseEnded,
    RefusedAttemptRecorded,
    RepeatedAttemptRecordedTwice,
    OneBadSettlementSpoilsTheBatch,
    AttemptLostOnNack,
    AttemptCountedOnRelease,
    AttemptCountedOnEveryAbandon,
    DelayForgottenOnNack,
    DeadLetterDropped,
    CancelRequestLostOnRetry,
    CancelRequestLost,
    RunningJobCancelledUnderItsWorker,
    ReaperTakesLivingLeases,
    ReaperReapsEveryQueue,
    ReaperNeverReaps,
    ReaperLeavesNoHistory,
    CrashNotCounted,
    ReaperSelectsThenUpdates,
    ClaimIgnoresItsLimit,
    ClaimRewritesTheMessage,
    PriorityInverted,
    BatchOrderLost,
    HalfABatchKept,
    SameIdOverwrites,
    OtherContentAcceptedSilently,
    RepeatedEnqueueMovesTheDueTime,
    TransactionIgnored,
    TombstoneForgotten,
    RenewalRevivesAnEndedLease,
    RenewalMovesNothing,
    RenewalOfOneLosesAll,
    ReplayForgetsHistory,
    ReplayKeepsAttempts,
    ReplayIsANewJob,
    ReplayIgnoresExpiryUnasked,
    PurgeTakesWaitingJobs,
    PurgeIgnoresAge,
    DeadLettersPruned,
    DiscardTakesAnyJob,
    PageLosesTheLastJob,
    HistoryBackwards,
    WaitNeverEndsEarly,
    WaitLooksAtOneQueue,
    WaitSpinsWhilePaused,
    WaitNeverWaits,
    WaitIsDeaf,
    WaitSwallowsWhatWokeIt,
    ProgressOfAnybody,
    ProgressOfTheDeliveryBefore,
    ProgressRenewsTheLease,
    ProgressLostWithTheVerdict,
    BeatForgetsTheOrder,
    OrderMadeLessUrgent,
    LeavingTakesNobodyOff,
    SilentWorkerNeverLost,
    LostWorkerForgottenAtOnce,
    LostWorkerNeverForgotten,
]

Edit: TypeAlias = tuple[str, str, str]
"""A statement, what it says, and what it says with the bug."""

SQL_BUGS: dict[str, list[Edit]] = {
    "ack without token check": [(sqlite.ACK, "AND owner_token = :token ", "")],
    "nack without token check": [(sqlite.GIVE_BACK, "AND owner_token = :token ", "")],
    "abandon without token check": [(sqlite.END, "AND owner_token = :token ", "")],
    "ack accepted after the lease ended": [(sqlite.ACK, " AND lease_until > :now", "")],
    "nack accepted after the lease ended": [(sqlite.GIVE_BACK, " AND lease_until > :now", "")],
    "abandon accepted after the lease ended": [(sqlite.END, " AND lease_until > :now", "")],
    "lease one microsecond too long": [(sqlite.ACK, "lease_until > :now", "lease_until >= :now")],
    "old token lives on after the reaper": [
        (sqlite.REAP, "owner_token = NULL, ", ""),
        (sqlite.ACK, " AND state = 2 AND lease_until > :now", " AND state IN (0, 2)"),
    ],
    "renewal revives an ended lease": [(sqlite.RENEW, " AND lease_until > :now", "")],
    "renewal without token check": [(sqlite.RENEW, "AND owner_token = :token ", "")],
    "reaper takes living leases": [
        (sqlite.HAS_EXPIRED, "lease_until <= :now OR", "1 OR"),
        (sqlite.REAP, " AND lease_until <= :now", ""),
    ],
    "crash not counted": [(sqlite.REAP, "crashes = crashes + 1, ", "")],
    "crash limit off by one": [(sqlite.REAP, ">= :crash_limit", "> :crash_limit")],
    "marked crash ignores the limit": [(sqlite.GIVE_BACK, ">= :crash_limit", "> 1000 + :crash_limit")],
    "crashes not reset by a verdict": [(sqlite.GIVE_BACK, "THEN crashes ELSE 0 END", "THEN crashes ELSE crashes END")],
    "crashes reset by handing back": [(sqlite.GIVE_BACK, "WHEN :keeps_crashes THEN crashes ELSE 0 END", "ELSE 0 END")],
    "crashes reset by a rejection": [(sqlite.END, "CASE WHEN :keeps_crashes THEN crashes ELSE 0 END", "0")],
    "suspect claimed with others": [(sqlite.CANDIDATES, "SELECT seq, crashes", "SELECT seq, 0 AS crashes")],
    "delivered early": [
        (sqlite.CANDIDATES, "due_at <= :now", "due_at <= :now + 1000000"),
        (sqlite.CHOSEN, "due_at <= :now", "due_at <= :now + 1000000"),
    ],
    "delivered late": [
        (sqlite.CANDIDATES, "due_at <= :now", "due_at < :now"),
        (sqlite.CHOSEN, "due_at <= :now", "due_at < :now"),
    ],
    "due time not in the order": [
        (sqlite.CANDIDATES, "ORDER BY due_at, id", "ORDER BY id"),
        (sqlite.CHOSEN, "ORDER BY due_at, id", "ORDER BY id"),
    ],
    "repeated claim stamps new jobs": [(sqlite.LEASED_BEFORE, "state = 2", "state = 9")],
    "pause ignored": [(sqlite.IS_PAUSED, "queue = ?", "queue = ? AND 0")],
    "delivery not counted": [(sqlite.CLAIM, "deliveries = deliveries + 1", "deliveries = max(deliveries, 1)")],
    "attempt lost on nack": [(sqlite.GIVE_BACK, "attempts + :attempt", "attempts")],
    "attempt counted on release": [(sqlite.GIVE_BACK, "attempts + :attempt", "attempts + 1")],
    "dead reason lost": [(sqlite.END, "dead_reason = :dead_reason", "dead_reason = NULL")],
    "last error lost": [(sqlite.END, "coalesce(:error, last_error)", "NULL")],
    "cancel request lost on retry": [
        (sqlite.GIVE_BACK, "CASE WHEN cancel_request IS NOT NULL THEN 6 WHEN", "CASE WHEN")
    ],
    "cancel request lost by the reaper": [
        (sqlite.REAP, "CASE WHEN cancel_request IS NOT NULL THEN 6 WHEN", "CASE WHEN")
    ],
    "cancel request seen once": [
        (sqlite.RENEW, "SET lease_until = :now + lease_us", "SET lease_until = :now + lease_us, cancel_request = NULL")
    ],
    "repeated settlement refused": [(sqlite.SETTLED_AS, "verdict = ?", "verdict = ? AND 0")],
    "other verdict taken for a repetition": [
        (sqlite.SETTLED_AS, "verdict = ?", "(verdict = ? OR verdict IS NOT NULL)")
    ],
    "clock set back reaps": [(sqlite.CLAMP, "SET lease_until = :now + lease_us", "SET lease_until = :now")],
    "clock set back holds for ever": [(sqlite.CLAMP, "WHERE state = 2", "WHERE state = 9")],
    "replay keeps crashes": [(inspector.REPLAY, "crashes = 0, ", "")],
    "replay of a running job": [(inspector.REPLAY, "IN (5, 6)", "IN (2, 5, 6)")],
    "replay of a completed job": [(inspector.REPLAY, "IN (5, 6)", "IN (4, 5, 6)")],
    "replay forgets to ignore the expiry": [(inspector.REPLAY, "ignore_expiry OR :ignore_expiry", "0")],
    "tombstone free too soon": [(inspector.FORGET, ":until", ":until - 1800000000")],
    "next due job of another queue": [(sqlite.NEXT_DUE, "queue = :queue", "queue <> :queue")],
    "progress without token check": [(sqlite.REPORT_PROGRESS, "AND owner_token = :token ", "")],
    "progress accepted after the lease ended": [(sqlite.REPORT_PROGRESS, " AND lease_until > :now", "")],
    "progress of a finished job": [(sqlite.REPORT_PROGRESS, " AND state = 2", "")],
    "second report keeps the delivery of the first": [(sqlite.REPORT_PROGRESS, "delivery = excluded.delivery, ", "")],
    "heartbeat not counted": [(workers.BEAT, "heard_at = excluded.heard_at", "heard_at = heard_at")],
    "heartbeat takes the order back": [
        (workers.BEAT, "report = excluded.report", "report = excluded.report, stop_order = NULL")
    ],
    "order made less urgent": [
        (workers.ORDER_STOP, "CASE WHEN stop_order = 'now' THEN stop_order ELSE :order END", ":order")
    ],
    "order for every worker": [(workers.ORDER_STOP, "WHERE id = :id", "WHERE :id = :id")],
    "every worker leaves": [(workers.LEAVE, "id = ?", "1 OR id = ?")],
    "live workers forgotten": [
        (workers.IS_ONE_FORGOTTEN, "lost_at <= ?", "1 OR lost_at <= ?"),
        (workers.FORGET_LOST, "lost_at <= ?", "1 OR lost_at <= ?"),
    ],
    "scheduled counted as pending": [(inspector.COUNT_WAITING, "due_at > :now", "0")],
}


def memory_lab_of(backend: type[MemoryBackend], _: Path) -> Lab:
    """A lab for a memory engine gone wrong."""
    store = MemoryStore()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return backend(envelopes, policy=policy, clock=clock, store=store)

    return Lab(connect)


def sqlite_lab_of(edits: Iterable[Edit], path: Path) -> Lab:
    """A lab for an SQLite engine that says other statements than it should."""
    planted: dict[str, str] = {}
    for statement, right, wrong in edits:
        assert right in statement, f"the engine no longer says {right!r}: plant the bug anew"
        planted[statement] = statement.replace(right, wrong)

    class Planted(SqliteBackend):
        def __init__(self, envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> None:
            super().__init__(path, envelopes, policy=policy, clock=clock)
            said = self._sql
            self._sql = lambda statement: said(planted.get(statement, statement))

    return Lab(Planted)


PLANTS: dict[str, Plant] = {
    **{f"memory: {bug.__name__}": partial(memory_lab_of, bug) for bug in MEMORY_BUGS},
    **{f"sqlite: {name}": partial(sqlite_lab_of, edits) for name, edits in SQL_BUGS.items()},
}
