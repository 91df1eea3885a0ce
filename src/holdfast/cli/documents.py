"""The JSON documents of commands about jobs and queues, as types: what is published as their schemas.

Each carries the name of its schema in `schema`. Lists print an array of them, or one on each line. Members may be
added; none is taken away or changes its meaning.
"""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.values import Backoff, CancelAnswer, DeadReason, ErrorInfo, JobState, JobTraits, Outcome, ReplayAnswer


class Document(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """What a command prints with `--json`: its tag is the name of its schema, and every member is always there."""


class TraitsDocument(JobTraits, Document, frozen=True, kw_only=True):
    """The options that a job carries, with its meta as a JSON value."""

    meta: Any = {}


class ProgressDocument(Struct, frozen=True, kw_only=True):
    """How far a running job says it is."""

    done: float
    total: float | None
    message: str
    at: datetime | None


class JobDocument(TraitsDocument, frozen=True, tag="holdfast.job/1"):
    """One job, as `list` shows it."""

    id: str
    queue: str
    state: JobState
    job: str
    attempts: Annotated[int, Meta(description="Runs that failed in this life of the job; its history may have more.")]
    max_retries: int | None
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
    progress: ProgressDocument | None
    payload: Any
    timeout: float | None
    expires_at: datetime | None
    damaged: Annotated[bool, Meta(description="The engine holds values that Holdfast does not write for this job.")]


class AttemptDocument(Struct, frozen=True, kw_only=True):
    """One attempt of a job."""

    delivery: int
    outcome: Outcome
    started_at: datetime
    ended_at: datetime
    duration_s: float
    error: ErrorInfo | None
    output: str
    result: Any
    note: str


class LiveOutputDocument(Struct, frozen=True, kw_only=True):
    """What a running attempt has printed lately; `start` is how many bytes it had printed before that."""

    text: str
    start: int


class HistoryDocument(JobDocument, frozen=True, kw_only=True, tag="holdfast.job.history/1"):
    """One job with its attempts, oldest first, as `run`, `wait` and `enqueue --wait` show it."""

    history: tuple[AttemptDocument, ...]
    live_output: LiveOutputDocument | None


class ShownDocument(HistoryDocument, frozen=True, kw_only=True, tag="holdfast.job.shown/1"):
    """One job with its attempts and why it is where it is, as `show` shows it."""

    why: tuple[str, ...]


class EnqueuedDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.enqueue/1"):
    """One job, as `enqueue` was asked for it: its id, and whether it was added or had been there already.

    With `--dry-run` nothing was added, and an id that would be made is not known yet.
    """

    id: str | None
    queue: str
    job: str
    created: bool
    delay: float | None
    run_at: datetime | None
    expires_at: datetime | None
    dry_run: bool


class PlannedDocument(TraitsDocument, frozen=True, tag="holdfast.job.plan/1"):
    """One job, as `enqueue --dry-run` would add it, with what the settings would fill in."""

    id: str | None
    queue: str
    job: str
    created: bool
    delay: float | None
    run_at: datetime | None
    expires_at: datetime | None
    dry_run: bool
    payload: Any
    max_retries: int
    backoff: Backoff | None
    timeout: float


class CountDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.count/1"):
    """How many jobs there are; not exact, if the search was given up before all were looked at."""

    count: int
    is_exact: bool


class LogDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.log/1"):
    """What one attempt has printed; without an outcome it is running, and has printed `start` bytes before this."""

    id: str
    attempt: Annotated[int, Meta(description="Its number among all recorded attempts, over all lives of the job.")]
    delivery: int
    outcome: Outcome | None
    started_at: datetime | None
    ended_at: datetime | None
    error: ErrorInfo | None
    start: int
    output: str


class RehearsalDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.rehearsal/1"):
    """What `--dry-run` would have done to a job, or would have been refused; a job without a state is not known."""

    id: str
    state: JobState | None
    would: str
    refused: bool


class CancelDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.cancel/1"):
    """What a request to cancel did, and where the job is now."""

    id: str
    answer: CancelAnswer
    state: JobState | None


class RetryDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.retry/1"):
    """What a request to retry did."""

    id: str
    answer: ReplayAnswer


class DeleteDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.delete/1"):
    """Whether a job was deleted."""

    id: str
    deleted: bool


class DiscardDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.discard/1"):
    """Whether a dead letter was discarded."""

    id: str
    discarded: bool


class PauseDocument(Struct, frozen=True, kw_only=True):
    """Why a queue is paused, and since when."""

    reason: str
    since: datetime


class QueueDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue/1"):
    """One queue: jobs by state, its pause, the workers that take from it."""

    queue: str
    states: dict[JobState, int]
    paused: PauseDocument | None
    workers: tuple[str, ...]


class PausedDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue.pause/1"):
    """Whether a queue was paused."""

    queue: str
    paused: bool
    reason: str


class ResumedDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue.resume/1"):
    """Whether a queue was resumed."""

    queue: str
    resumed: bool


class ReapDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue.reap/1"):
    """How many leases had ended, and how many jobs were taken back."""

    reaped: int
    expired: int


class PurgeDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue.purge/1"):
    """How many jobs were meant, and how many were purged."""

    purged: int
    meant: int


class ErrorText(Struct, frozen=True, kw_only=True):
    """What went wrong; `hint` is what to do next, where that is not part of the message."""

    code: str
    message: str
    hint: str | None


class ErrorDocument(Document, frozen=True, kw_only=True, tag="holdfast.error/1"):
    """What a command that was to speak JSON says on stderr when it fails."""

    error: ErrorText
