"""What people read and operate: the records of jobs, and the rules that are the same on every engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NotRequired, TypedDict, Unpack

import msgspec

from holdfast.clock import to_us
from holdfast.codec import describe
from holdfast.values import (
    FINAL_STATES,
    AttemptView,
    CancelAnswer,
    DeadReason,
    JobFilter,
    JobHistory,
    JobState,
    JobView,
    LiveOutput,
    Page,
    Progress,
    ReplayAnswer,
)

TOMBSTONE_S = 3600.0


class Records(ABC):
    """Reading and operating, for people. Each change is one conditional write, like the worker's."""

    @abstractmethod
    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        """How many jobs of each queue are in each state; states without jobs are left out."""

    @abstractmethod
    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        """Some jobs; `after` is the `next` of the page before.

        Newest first: the last finished if only final states are asked for, else the last accepted.
        """

    @abstractmethod
    def get(self, job_id: str) -> JobHistory | None:
        """One job with its history."""

    @abstractmethod
    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        """Cancel a waiting job at once; ask for a running one to be cancelled by its worker."""

    @abstractmethod
    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        """Give a dead or cancelled job a new life: no attempts, no crashes, its whole history."""

    @abstractmethod
    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        """Forget one dead letter, or a job that ended in another of these states; its id stays known for an hour."""

    @abstractmethod
    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        """Forget finished jobs of these states, finished longer ago than that."""

    @abstractmethod
    def prune(self) -> int:
        """Delete records that were retained long enough; an id stays known for at least an hour after its job
        finished. Returns how many jobs were deleted.
        """

    def dead_letters(self, *, queue: str | None = None, limit: int = 50, after: str | None = None) -> Page:
        """Dead letters, newest first."""
        return self.find(JobFilter(states=(JobState.DEAD,), queue=queue), limit=limit, after=after)


def history_of(job: JobView, attempts: Iterable[AttemptView], outputs: Mapping[int, LiveOutput]) -> JobHistory:
    """A job's history, with what deliveries said of their output while they ran, by delivery.

    It is shown for the running delivery, and for those that crashed before they recorded it. The attempts may have
    been read a moment later than the job: what has ended is not running.
    """
    past = tuple(_with_output(one, outputs.get(one.delivery)) for one in attempts)
    is_running = job.state is JobState.PROCESSING and all(one.delivery != job.deliveries for one in past)
    return JobHistory(job=job, attempts=past, live_output=outputs.get(job.deliveries) if is_running else None)


def _with_output(attempt: AttemptView, output: LiveOutput | None) -> AttemptView:
    if output is None or attempt.record.output:
        return attempt
    record = msgspec.structs.replace(attempt.record, output=output.marked)
    return msgspec.structs.replace(attempt, record=record)


def check_purge(states: Iterable[JobState]) -> frozenset[JobState]:
    """The states to purge, if all of them are final: work that is not done is cancelled, never purged."""
    chosen = frozenset(states)
    if not chosen or not chosen <= FINAL_STATES:
        wrong = ", ".join(sorted(chosen - FINAL_STATES)) or "nothing"
        raise ValueError(f"only completed, dead and cancelled jobs can be purged, not {wrong}: cancel the others first")
    return chosen


def has_expired(wire: bytes, now_us: int) -> bool:
    """Whether a job with this message would be too late to start: a new life would end at once."""
    message = describe(wire)
    return message is not None and message.expires_at is not None and to_us(message.expires_at) <= now_us


class RecordFields(TypedDict):
    """The part of a `JobView` that is the engine's own bookkeeping."""

    id: str
    queue: str
    state: JobState
    job: str
    attempts: int
    crashes: int
    deliveries: int
    accepted_at: datetime
    due_at: datetime
    finished_at: datetime | None
    lease_until: datetime | None
    dead_reason: DeadReason | None
    cancel_reason: str | None
    cancel_requested: bool
    last_error: str | None
    progress: Progress | None
    damaged: NotRequired[bool]


def view_of(*, wire: bytes, **record: Unpack[RecordFields]) -> JobView:
    """What people see of a record, completed by what its message says of itself."""
    message = describe(wire)
    if message is None:
        return JobView(**record)
    return JobView(
        **record,
        name=message.name,
        priority=message.priority,
        max_retries=message.max_retries,
        payload=message.payload,
        timeout=message.timeout,
        expires_at=message.expires_at,
        trace_id=message.trace_id,
        tags=message.tags,
        meta=message.meta,
        fence=message.fence,
    )
