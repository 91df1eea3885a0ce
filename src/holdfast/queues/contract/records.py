"""The verbs of operators: reading, cancelling, replaying and deleting jobs; the rules that all engines share.

Finished records are deleted a batch at a time, so that no lock is held for long.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.clock import duration_us, to_us
from holdfast.codec import describe
from holdfast.queues.contract.jobs import LeasePolicy
from holdfast.values import (
    FINAL_STATES,
    AttemptView,
    CancelAnswer,
    JobFilter,
    JobHistory,
    JobState,
    JobView,
    LiveOutput,
    Page,
    QueueWait,
    Relatives,
    ReplayAnswer,
    SlotView,
    traits_of,
)

TOMBSTONE_S: Final = 3600.0
PRUNE_BATCH: Final = 1000
SHOWN_WAITERS: Final = 10
"""The maximum number of waiting jobs that are listed with a slot."""
SHOWN_RELATIVES: Final = 100
"""The maximum number of parents and of children that are listed with a job."""
IDLE_SLOT_S: Final = 3600.0
"""How long an unused slot is retained. After that, its fence numbers restart from the clock."""
_ANY_TIME: Final = 2**63 - 1


class Outdated(Struct, frozen=True, kw_only=True):
    """Finished records to delete, by state, queue (None: any) and age (None: any).

    Their ids stay known for an hour from now or, with `known_us`, for that long after their jobs finished.
    """

    state: JobState
    queue: str | None = None
    age_us: int | None = None
    known_us: int | None = None
    spares_parents: bool = False
    """Whether to spare the parents of unfinished jobs, which may read their results."""

    def before(self, now_us: int) -> int:
        """The latest instant at which they finished."""
        return _ANY_TIME if self.age_us is None else now_us - self.age_us

    def known_until(self, finished_us: int, now_us: int) -> int:
        """When the id of such a record becomes free."""
        return now_us + duration_us(TOMBSTONE_S) if self.known_us is None else finished_us + self.known_us

    def parted(self, found: Iterable[tuple[Any, ...]], now_us: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Of records (number, when it finished), those that leave a tombstone, with its expiry; and the others."""
        expiries = [(number, self.known_until(finished_us, now_us)) for number, finished_us in found]
        return [one for one in expiries if one[1] > now_us], [number for number, until in expiries if until <= now_us]


class Records(ABC):
    """Reading and operating, for people. Each change is one conditional write, like the worker's."""

    def __init__(self, policy: LeasePolicy) -> None:
        self.policy = policy

    @abstractmethod
    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        """The number of jobs in each state, by queue; states without jobs are left out."""

    @abstractmethod
    def oldest_waits(self) -> dict[str, QueueWait]:
        """How long the oldest due job of each queue has waited. Queues in which no job is due are left out."""

    @abstractmethod
    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        """A page of jobs; `after` is the `next` of the previous page.

        Newest first: the last finished if only final states are requested, otherwise the last accepted.
        """

    @abstractmethod
    def get(self, job_id: str) -> JobHistory | None:
        """One job with its history; None if the id is unknown."""

    @abstractmethod
    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        """The slots that jobs hold or wait for, ordered by name; with `names`, only these. Of the waiting jobs, the
        first `SHOWN_WAITERS` are listed, by priority, due time and id.
        """

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        """The jobs that a job waits for, and the first `limit` of those that wait for it. A parent whose record was
        deleted is left out. An engine without dependencies has none.
        """
        return Relatives()

    @abstractmethod
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        """Cancel a waiting job at once; ask for a running one to be cancelled by its worker. The children of a
        cancelled job follow their policies, as they do however it finishes.
        """

    @abstractmethod
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        """Requeue a dead or cancelled job. Its attempts and crashes are reset, and its history is retained.

        It no longer waits for parents that have failed, only for unfinished ones. Children that were cancelled because
        it failed are blocked again.
        """

    @abstractmethod
    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        """Delete one job in one of these final states; its id stays known for an hour."""

    @abstractmethod
    def delete(self, outdated: Outdated) -> int:
        """Delete up to `PRUNE_BATCH` of these records, the oldest first, and return how many were found."""

    @abstractmethod
    def delete_tombstones(self) -> int:
        """Delete up to `PRUNE_BATCH` expired tombstones, and return how many were found."""

    @abstractmethod
    def delete_unused(self) -> int:
        """Delete up to `PRUNE_BATCH` rows that nothing uses: unique keys whose job is final or deleted and whose period
        has expired, places of jobs that no longer hold them (unless other jobs wait for the slot: see `Jobs.repair`),
        and slots that have not been used for `IDLE_SLOT_S`. Returns how many were found.
        """

    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        """Delete jobs in these final states that finished longer ago than `older_than`."""
        age_us = None if older_than is None else duration_us(older_than.total_seconds())
        chosen = [Outdated(state=state, queue=queue, age_us=age_us) for state in sorted(check_purge(states))]
        return sum(until_done(lambda: self.delete(outdated)) for outdated in chosen)  # noqa: B023 - called at once

    def prune(self) -> int:
        """Delete records that were retained long enough; an id stays known for at least an hour after its job
        finished. Returns how many jobs were deleted.
        """
        policy = self.policy
        retained_s = {JobState.COMPLETED: policy.retain_completed_s, JobState.CANCELLED: policy.retain_completed_s}
        if policy.retain_dead_s is not None:
            retained_s[JobState.DEAD] = policy.retain_dead_s
        deleted = 0
        for state, seconds in retained_s.items():
            # A record that was retained for an hour needs no tombstone.
            known_us = duration_us(max(seconds, TOMBSTONE_S))
            outdated = Outdated(state=state, age_us=duration_us(seconds), known_us=known_us, spares_parents=True)
            deleted += until_done(lambda: self.delete(outdated))  # noqa: B023 - called at once
        until_done(self.delete_tombstones)
        until_done(self.delete_unused)
        return deleted

    def dead_letters(self, *, queue: str | None = None, limit: int = 50, after: str | None = None) -> Page:
        """Dead letters, newest first."""
        return self.find(JobFilter(states=(JobState.DEAD,), queue=queue), limit=limit, after=after)


def until_done(work: Callable[[], int]) -> int:
    """Repeat `work` as long as it finds a whole batch. Returns the total."""
    total, batch = 0, PRUNE_BATCH
    while batch == PRUNE_BATCH:
        batch = work()
        total += batch
    return total


def history_of(
    job: JobView, attempts: Iterable[AttemptView], outputs: Mapping[int, LiveOutput], wire: bytes
) -> JobHistory:
    """A job's history, with its message and the output that deliveries reported while they ran, by delivery.

    Such output is shown for the running delivery, and for those that crashed before they recorded it. The attempts may
    have been read a moment later than the job: a delivery that has an attempt is not running.
    """
    past = tuple(_with_output(one, outputs.get(one.delivery)) for one in attempts)
    is_running = job.state is JobState.PROCESSING and all(one.delivery != job.deliveries for one in past)
    live_output = outputs.get(job.deliveries) if is_running else None
    return JobHistory(job=job, attempts=past, live_output=live_output, wire=wire)


def _with_output(attempt: AttemptView, output: LiveOutput | None) -> AttemptView:
    if output is None or attempt.record.output:
        return attempt
    record = msgspec.structs.replace(attempt.record, output=output.marked)
    return msgspec.structs.replace(attempt, record=record)


def check_purge(states: Iterable[JobState]) -> frozenset[JobState]:
    """The states to purge, which must be final: unfinished jobs are cancelled, never purged."""
    chosen = frozenset(states)
    if not chosen:
        raise ValueError("name at least one state to purge: completed, dead or cancelled")
    if wrong := ", ".join(sorted(chosen - FINAL_STATES)):
        raise ValueError(f"only completed, dead and cancelled jobs can be purged, not {wrong}; cancel those jobs first")
    return chosen


def has_expired(wire: bytes, now_us: int) -> bool:
    """Whether a job with this message has expired: replayed, it would not be started."""
    message = describe(wire)
    return message is not None and message.expires_at is not None and to_us(message.expires_at) <= now_us


def message_fields(wire: bytes) -> dict[str, Any]:
    """The fields of a `JobView` that come from the message of its job; none if it cannot be read."""
    message = describe(wire)
    if message is None:
        return {}
    return {
        **traits_of(message),
        "max_retries": message.max_retries,
        "payload": message.payload,
        "timeout": message.timeout,
        "expires_at": message.expires_at,
        "unique": message.unique,
    }
