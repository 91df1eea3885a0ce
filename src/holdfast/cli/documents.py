"""The JSON documents of commands about jobs and queues, as types: what is published as their schemas.

Lists print an array of them, or one on each line. Members may be added; none is taken away or changes its meaning.
"""

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.values import Backoff, CancelAnswer, DeadReason, ErrorInfo, JobState, Outcome, ReplayAnswer


class _Document(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every member is always there."""


class ProgressDocument(_Document, frozen=True, kw_only=True):
    """How far a running job says it is."""

    done: float
    total: float | None
    message: str
    at: datetime | None


class JobDocument(_Document, frozen=True, kw_only=True):
    """One job, as `list` shows it."""

    id: str
    queue: str
    state: JobState
    job: str
    name: str | None
    priority: int
    attempts: int
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
    trace_id: str | None
    tags: tuple[str, ...]
    meta: Any
    fence: bool


class AttemptDocument(_Document, frozen=True, kw_only=True):
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


class HistoryDocument(JobDocument, frozen=True, kw_only=True):
    """One job with its attempts, oldest first, as `run`, `wait` and `enqueue --wait` show it."""

    history: tuple[AttemptDocument, ...]


class ShownDocument(HistoryDocument, frozen=True, kw_only=True):
    """One job with its attempts and why it is where it is, as `show` shows it."""

    why: tuple[str, ...]


class EnqueuedDocument(_Document, frozen=True, kw_only=True):
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


class PlannedDocument(EnqueuedDocument, frozen=True, kw_only=True):
    """One job, as `enqueue --dry-run` would add it, with what the settings would fill in."""

    name: str | None
    payload: Any
    priority: int
    max_retries: int
    backoff: Backoff | None
    timeout: float
    tags: tuple[str, ...]
    meta: Any
    trace_id: str | None
    fence: bool


class CountDocument(_Document, frozen=True, kw_only=True):
    """How many jobs there are; not exact, if the search was given up before all were looked at."""

    count: int
    is_exact: bool


class LogDocument(_Document, frozen=True, kw_only=True):
    """What one attempt has printed."""

    attempt: int
    delivery: int
    outcome: Outcome
    started_at: datetime
    ended_at: datetime
    output: str


class RehearsalDocument(_Document, frozen=True, kw_only=True):
    """What `--dry-run` would have done to a job; a job without a state is not known."""

    id: str
    state: JobState | None
    would: str


class CancelDocument(_Document, frozen=True, kw_only=True):
    """What a request to cancel did, and where the job is now."""

    id: str
    answer: CancelAnswer
    state: JobState | None


class RetryDocument(_Document, frozen=True, kw_only=True):
    """What a request to retry did."""

    id: str
    answer: ReplayAnswer


class DeleteDocument(_Document, frozen=True, kw_only=True):
    """Whether a job was deleted."""

    id: str
    deleted: bool


class DiscardDocument(_Document, frozen=True, kw_only=True):
    """Whether a dead letter was discarded."""

    id: str
    discarded: bool


class PauseDocument(_Document, frozen=True, kw_only=True):
    """Why a queue is paused, and since when."""

    reason: str
    since: datetime


class QueueDocument(_Document, frozen=True, kw_only=True):
    """One queue: jobs by state, its pause, the workers that take from it."""

    queue: str
    states: dict[JobState, int]
    paused: PauseDocument | None
    workers: tuple[str, ...]


class PausedDocument(_Document, frozen=True, kw_only=True):
    """Whether a queue was paused."""

    queue: str
    paused: bool
    reason: str


class ResumedDocument(_Document, frozen=True, kw_only=True):
    """Whether a queue was resumed."""

    queue: str
    resumed: bool


class ReapDocument(_Document, frozen=True, kw_only=True):
    """How many leases had ended, and how many jobs were taken back."""

    reaped: int
    expired: int


class PurgeDocument(_Document, frozen=True, kw_only=True):
    """How many jobs were meant, and how many were purged."""

    purged: int
    meant: int
