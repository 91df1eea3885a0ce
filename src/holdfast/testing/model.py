"""`Model`: the contract as one dictionary of jobs, as simple as possible. Every engine must behave like it.

It shares only the values with the engines, so that a mistake must be made twice to go unnoticed. Times are
microseconds. Where the contract leaves a choice, the model lists what is allowed and then follows the engine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

from holdfast.values import (
    Abandon,
    Ack,
    CancelAnswer,
    CancelJob,
    DeadReason,
    JobLease,
    JobState,
    LeaseState,
    Nack,
    Outcome,
    Release,
    ReplayAnswer,
    Settlement,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND
WAITING = (JobState.PENDING, JobState.FAILED)
FINISHED = (JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)

Content: TypeAlias = tuple[str, int, str]
"""What makes two jobs the same: queue, priority and payload."""


@dataclass
class ModelJob:
    """One job. `SCHEDULED` is never stored: it is `PENDING` seen before its due time.

    With `due_at_once`, the engine may choose any due time up to now.
    """

    id: str
    content: Content
    due: int
    due_at_once: bool
    state: JobState = JobState.PENDING
    attempts: int = 0
    crashes: int = 0
    deliveries: int = 0
    owner: str | None = None
    lease_until: int | None = None
    verdicts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    cancel_requested: bool = False
    dead_reason: DeadReason | None = None
    expired: bool = False
    ignore_expiry: bool = False
    finished: int | None = None
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list[tuple[int, Outcome]])

    @property
    def queue(self) -> str:
        return self.content[0]

    @property
    def priority(self) -> int:
        return self.content[1]

    def state_at(self, now: int) -> JobState:
        return JobState.SCHEDULED if self.state is JobState.PENDING and self.due > now else self.state

    def is_held_by(self, owner: str, now: int) -> bool:
        return (
            self.state is JobState.PROCESSING
            and self.owner == owner
            and self.lease_until is not None
            and now < self.lease_until
        )


@dataclass
class ModelTombstone:
    """The id of a deleted job: known until the first instant, free from the second on, either in between."""

    content: Content
    known_until: int
    free_from: int


class Model:
    """Every verb of the contract."""

    def __init__(self, *, now: int, lease_s: float, crash_limit: int, retain_completed_s: float) -> None:
        self.now = self.latest = now
        self.jobs: dict[str, ModelJob] = {}
        self.tombstones: dict[str, ModelTombstone] = {}
        self.lease = int(lease_s * SECOND)
        self.crash_limit = crash_limit
        self.retain_completed = int(retain_completed_s * SECOND)

    def set_time(self, now: int) -> None:
        self.now = now
        self.latest = max(self.latest, now)

    @property
    def has_leased_jobs(self) -> bool:
        return any(job.state is JobState.PROCESSING for job in self.jobs.values())

    @property
    def has_finished_jobs(self) -> bool:
        return any(job.state in FINISHED for job in self.jobs.values())

    def content_of(self, id: str) -> Content | None:
        """The content under a known id; None if the id is free."""
        if id in self.jobs:
            return self.jobs[id].content
        stone = self.tombstones.get(id)
        return stone.content if stone is not None and self.latest < stone.known_until else None

    def is_in_between(self, id: str) -> bool:
        """Whether the contract leaves open if this id is still known."""
        stone = self.tombstones.get(id)
        if id in self.jobs or stone is None:
            return False
        # A tombstone may have been deleted before the clock was set back; its id does not become known again.
        return stone.known_until <= self.latest and self.now < stone.free_from

    def accept(self, id: str, content: Content, delay: int) -> bool | None:
        """Whether the job is new; None if its id is taken by other content."""
        known = self.content_of(id)
        if known is not None:
            return False if known == content else None
        self.tombstones.pop(id, None)
        self.jobs[id] = ModelJob(id, content, due=self.now + delay, due_at_once=delay == 0)
        return True

    def held(self, queue: str, owner: str) -> list[str]:
        """The jobs that a repeated claim returns."""
        return sorted(job.id for job in self.jobs.values() if job.queue == queue and job.is_held_by(owner, self.now))

    def batches(self, queue: str, limit: int) -> list[list[str]]:
        """The batches that a claim may return: the best jobs up to the first suspect, or without all suspects. If the
        first one is a suspect, it comes alone.
        """
        due = [job for job in self.jobs.values() if job.queue == queue and job.state in WAITING and job.due <= self.now]
        best = sorted(due, key=lambda job: (-job.priority, job.due, job.id))
        if limit <= 0 or not best:
            return [[]]
        if best[0].crashes:
            return [[best[0].id]]
        up_to_a_suspect = [job.id for job in takewhile(lambda job: not job.crashes, best)]
        past_the_suspects = [job.id for job in best if not job.crashes]
        return [up_to_a_suspect[:limit], past_the_suspects[:limit]]

    def claim(self, ids: Iterable[str], owner: str) -> None:
        for id in ids:
            job = self.jobs[id]
            job.state = JobState.PROCESSING
            job.owner = owner
            job.lease_until = self.now + self.lease
            job.deliveries += 1

    def settle(self, settlement: Settlement) -> bool | None:
        """The answer; None if the contract leaves it open, because the job is deleted and nothing can change."""
        lease, verdict = settlement.lease, type(settlement).__name__
        job = self.jobs.get(lease.id)
        if job is None:
            return None if lease.id in self.tombstones else False
        if not job.is_held_by(lease.owner_token, self.now):
            return (lease.owner_token, verdict) in job.verdicts
        job.verdicts.add((lease.owner_token, verdict))
        if settlement.record is not None:
            job.outcomes.append((job.deliveries, settlement.record.outcome))
        self._end_run(job, settlement)
        return True

    def _end_run(self, job: ModelJob, settlement: Settlement) -> None:
        job.lease_until = None
        match settlement:
            case Ack():
                job.crashes = 0
                self._finish(job, JobState.COMPLETED)
            case Nack(delay=delay):
                job.attempts += 1
                job.crashes = 0
                self._wait(job, JobState.FAILED, int(delay * SECOND))
            case Release(delay=delay, crashed=crashed):
                job.crashes = job.crashes + 1 if crashed else 0
                self._wait(job, JobState.PENDING, int(delay * SECOND))
            case Abandon(reason=reason):
                if reason in (DeadReason.FAILED, DeadReason.TIMEOUT, DeadReason.NO_RETRY):
                    job.attempts += 1
                    job.crashes = 0
                job.dead_reason = reason
                self._finish(job, JobState.DEAD)
            case CancelJob(expired=expired):
                job.expired = expired
                if not expired:
                    job.crashes = 0
                self._finish(job, JobState.CANCELLED)

    def _wait(self, job: ModelJob, state: JobState, delay: int) -> None:
        if job.cancel_requested:
            self._finish(job, JobState.CANCELLED)
        elif job.crashes >= self.crash_limit:
            job.dead_reason = DeadReason.CRASH_LOOP
            self._finish(job, JobState.DEAD)
        else:
            job.state = state
            job.due = self.now + delay

    def _finish(self, job: ModelJob, state: JobState) -> None:
        job.state = state
        job.finished = self.now
        job.cancel_requested = False

    def renew(self, lease: JobLease) -> LeaseState:
        job = self.jobs.get(lease.id)
        if job is None or not job.is_held_by(lease.owner_token, self.now):
            return LeaseState.LOST
        job.lease_until = self.now + self.lease
        return LeaseState.CANCEL_REQUESTED if job.cancel_requested else LeaseState.HELD

    def reap(self, queue: str | None) -> int:
        reaped = 0
        for job in self.jobs.values():
            if job.lease_until is None or queue not in (None, job.queue):
                continue
            if job.lease_until > self.now + 2 * self.lease:
                job.lease_until = self.now + self.lease
            elif job.lease_until <= self.now:
                reaped += 1
                job.lease_until = None
                job.crashes += 1
                job.outcomes.append((job.deliveries, Outcome.CRASHED))
                self._wait(job, JobState.PENDING, 0)
                job.due_at_once = True
        return reaped

    def cancel(self, id: str) -> CancelAnswer:
        job = self.jobs.get(id)
        if job is None:
            return CancelAnswer.UNKNOWN
        if job.state in FINISHED:
            return CancelAnswer.TOO_LATE
        if job.state is JobState.PROCESSING:
            job.cancel_requested = True
            return CancelAnswer.REQUESTED
        self._finish(job, JobState.CANCELLED)
        return CancelAnswer.CANCELLED

    def replay(self, id: str, *, ignore_expiry: bool) -> ReplayAnswer:
        job = self.jobs.get(id)
        if job is None:
            return ReplayAnswer.UNKNOWN
        if job.state not in (JobState.DEAD, JobState.CANCELLED):
            return ReplayAnswer.NOT_FINAL
        if job.expired and not ignore_expiry:
            return ReplayAnswer.EXPIRED
        job.state, job.due, job.due_at_once = JobState.PENDING, self.now, True
        job.attempts = job.crashes = 0
        job.finished = job.dead_reason = None
        job.expired = False
        job.ignore_expiry = job.ignore_expiry or ignore_expiry
        return ReplayAnswer.REPLAYED

    def discard(self, id: str) -> bool:
        if id not in self.jobs or self.jobs[id].state is not JobState.DEAD:
            return False
        self._delete(self.jobs[id], known_until=self.now + HOUR)
        return True

    def purge(self, states: Iterable[JobState], queue: str | None, age: int | None) -> int:
        chosen = [
            job
            for job in self.jobs.values()
            if job.state in states and queue in (None, job.queue) and self._finished_for(job, age)
        ]
        for job in chosen:
            self._delete(job, known_until=self.now + HOUR)
        return len(chosen)

    def prune(self) -> int:
        old = [
            job
            for job in self.jobs.values()
            if job.state in (JobState.COMPLETED, JobState.CANCELLED) and self._finished_for(job, self.retain_completed)
        ]
        for job in old:
            self._delete(job, known_until=(job.finished or 0) + HOUR)
        return len(old)

    def _finished_for(self, job: ModelJob, age: int | None) -> bool:
        return job.finished is not None and (age is None or self.now - job.finished >= age)

    def _delete(self, job: ModelJob, known_until: int) -> None:
        del self.jobs[job.id]
        self.tombstones[job.id] = ModelTombstone(job.content, known_until, free_from=self.now + HOUR)
