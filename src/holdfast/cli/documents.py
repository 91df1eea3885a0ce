"""The JSON documents of commands about jobs and queues, from which their published schemas are derived.

Each has the name of its schema in `schema`. Commands that list things print an array of documents, or one per line.
Members may be added; none is removed or changes its meaning.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, field

from holdfast.cli.words import DEPENDS_ON
from holdfast.values import (
    Backoff,
    CancelAnswer,
    CircuitState,
    DeadReason,
    EdgeOutcome,
    EnqueueOutcome,
    ErrorInfo,
    JobState,
    JobTraits,
    OnParentFailure,
    Outcome,
    ReplayAnswer,
    SlotView,
)

if TYPE_CHECKING:  # help and completion load neither
    from holdfast.state.breakers import CircuitView
    from holdfast.state.limits import Usage


class Document(Struct, frozen=True, kw_only=True, tag_field="schema"):
    """A document of `--json`. Its tag is the name of its schema, and every member is always present."""


class TraitsDocument(JobTraits, Document, frozen=True, kw_only=True):
    """The options of a job, with its metadata as a JSON value."""

    meta: Any = {}
    after: tuple[str, ...] = field(name=DEPENDS_ON, default=())


class ProgressDocument(Struct, frozen=True, kw_only=True):
    """The progress that a running job reports."""

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
    attempts: Annotated[int, Meta(description="Failed runs in the current life of the job; the history may have more.")]
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
    unique: Annotated[str | None, Meta(description="The unique key, which starts with the handler.")]
    blocked_on: Annotated[str | None, Meta(description="The key that a blocked job waits for.")]
    blocked_since: datetime | None
    damaged: Annotated[bool, Meta(description="The stored record has values that Holdfast never writes.")]


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
    """The latest output of a running attempt; `start` is the number of bytes before it."""

    text: str
    start: int


class HistoryDocument(JobDocument, frozen=True, kw_only=True, tag="holdfast.job.history/1"):
    """One job with its attempts, oldest first, as `run`, `wait` and `enqueue --wait` show it."""

    history: tuple[AttemptDocument, ...]
    live_output: LiveOutputDocument | None


class LockHolderDocument(Struct, frozen=True, kw_only=True):
    """A job that holds a key, or a promoted one that can take it next, whose fence is null."""

    id: str
    queue: str
    since: datetime
    fence: int | None


class LockWaiterDocument(Struct, frozen=True, kw_only=True):
    """A job that waits for a key."""

    id: str
    queue: str
    since: datetime


class LockDocument(Document, frozen=True, kw_only=True, tag="holdfast.lock/1"):
    """A key that jobs hold or wait for: its holders, the number of waiting jobs, and the first few of them."""

    key: str
    holders: tuple[LockHolderDocument, ...]
    waiting: int
    waiters: tuple[LockWaiterDocument, ...]


def lock_document(slot: SlotView) -> LockDocument:
    """A slot as a JSON document."""
    return LockDocument(
        key=slot.name,
        holders=tuple(
            LockHolderDocument(id=one.job_id, queue=one.queue, since=one.since, fence=one.fence) for one in slot.holders
        ),
        waiting=slot.waiting,
        waiters=tuple(LockWaiterDocument(id=one.job_id, queue=one.queue, since=one.since) for one in slot.waiters),
    )


class BreakerDocument(Document, frozen=True, kw_only=True, tag="holdfast.breaker/1"):
    """A circuit breaker: its state, the rule by which it opens, and the jobs that wait for it."""

    circuit: str
    state: CircuitState
    failures: Annotated[int, Meta(description="The number of failures in a row.")]
    threshold: Annotated[int | None, Meta(description="The number of failures in a row that opens the circuit.")]
    cooldown: Annotated[float | None, Meta(description="How many seconds the circuit refuses calls once it is open.")]
    opened_at: datetime | None
    retry_in: Annotated[float | None, Meta(description="The seconds until a call is tried; null if none is refused.")]
    waiting: Annotated[int, Meta(description="The number of jobs that wait until the circuit closes.")]
    waiters: tuple[LockWaiterDocument, ...]


def breaker_document(circuit: "CircuitView", slot: SlotView | None) -> BreakerDocument:
    """A circuit as a JSON document. `slot` is the one of the jobs that wait for it."""
    waiters = () if slot is None else slot.waiters
    return BreakerDocument(
        circuit=circuit.name,
        state=circuit.state,
        failures=circuit.failures,
        threshold=None if circuit.rule is None else circuit.rule.failures,
        cooldown=None if circuit.rule is None else circuit.rule.cooldown,
        opened_at=circuit.opened_at,
        retry_in=circuit.retry_in,
        waiting=0 if slot is None else slot.waiting,
        waiters=tuple(LockWaiterDocument(id=one.job_id, queue=one.queue, since=one.since) for one in waiters),
    )


class BreakerResetDocument(Document, frozen=True, kw_only=True, tag="holdfast.breaker.reset/1"):
    """Whether a circuit was reset."""

    circuit: str
    reset: bool


class BreakerTrippedDocument(Document, frozen=True, kw_only=True, tag="holdfast.breaker.trip/1"):
    """Whether a circuit was tripped, and for how many seconds it then refuses calls."""

    circuit: str
    tripped: bool
    cooldown: float


class RelativeDocument(Struct, frozen=True, kw_only=True):
    """A job that another one depends on, or that depends on it, and whether that dependency is met."""

    id: str
    state: JobState
    on_parent_failure: OnParentFailure
    outcome: EdgeOutcome


class ShownDocument(HistoryDocument, frozen=True, kw_only=True, tag="holdfast.job.shown/1"):
    """One job with its attempts and the reasons for its state, as `show` shows it."""

    why: tuple[str, ...]
    locks: Annotated[tuple[LockDocument, ...], Meta(description="The job's keys that any job holds or waits for.")]
    dead_letter_copy: Annotated[
        str | None, Meta(description="The job that the copy of this dead letter is, unless it was deleted since.")
    ]
    parents: Annotated[
        tuple[RelativeDocument, ...], Meta(description="The jobs in depends_on whose records have not been deleted.")
    ]
    open_parents: Annotated[int, Meta(description="The number of parents that the job still waits for.")]
    children: Annotated[tuple[RelativeDocument, ...], Meta(description="The first jobs that depend on this one.")]
    child_count: Annotated[int, Meta(description="The number of jobs that depend on this one.")]


class GraphJobDocument(Struct, frozen=True, kw_only=True):
    """A job in a graph; `depends_on` are its parents in the graph. A job that was just deleted has no handler."""

    id: str
    state: JobState
    job: str | None
    queue: str | None
    depends_on: tuple[str, ...]
    hidden_parents: Annotated[int, Meta(description="The number of its parents that are not in the graph.")]
    hidden_children: Annotated[int, Meta(description="The number of its children that are not in the graph.")]


class GraphDocument(Document, frozen=True, kw_only=True, tag="holdfast.graph/1"):
    """A job, the jobs that it depends on, and those that depend on it, the nearest first."""

    id: str
    jobs: tuple[GraphJobDocument, ...]


class EnqueuedDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.enqueue/1"):
    """One enqueued job: its id, and whether it is new, already existed, or replaced the job with its unique key.

    With `--dry-run` nothing is added, and an id that would be generated is null.
    """

    id: str | None
    queue: str
    job: str
    created: bool
    outcome: EnqueueOutcome
    delay: float | None
    run_at: datetime | None
    expires_at: datetime | None
    dry_run: bool


class PlannedDocument(TraitsDocument, frozen=True, tag="holdfast.job.plan/1"):
    """One job as `enqueue --dry-run` would add it, with the defaults from the settings."""

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
    """The number of jobs. It is not exact if the search stopped before it had checked all jobs."""

    count: int
    is_exact: bool


class LogDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.log/1"):
    """The output of one attempt; `start` is the number of bytes before it. A running attempt has no outcome."""

    id: str
    attempt: Annotated[
        int, Meta(description="The number of the attempt among all recorded attempts, over all lives of the job.")
    ]
    delivery: int
    outcome: Outcome | None
    started_at: datetime | None
    ended_at: datetime | None
    error: ErrorInfo | None
    start: int
    output: str


class RehearsalDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.rehearsal/1"):
    """What a command would do to a job, or that it would be refused; `state` is null if there is no such job."""

    id: str
    state: JobState | None
    would: str
    refused: bool


class CancelDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.cancel/1"):
    """The result of a cancellation request, and the state of the job."""

    id: str
    answer: CancelAnswer
    state: JobState | None


class RetryDocument(Document, frozen=True, kw_only=True, tag="holdfast.job.retry/1"):
    """The result of a retry."""

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
    """The reason and the start of a pause."""

    reason: str
    since: datetime


class LimitDocument(Struct, frozen=True, kw_only=True):
    """The rate limit of a queue, the number of jobs that can start now, and the seconds until the next one can."""

    rate: str
    burst: int
    available: int
    wait_s: float


class QueueDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue/1"):
    """One queue: its jobs by state, whether it is paused, its live workers, and its rate limit (only `queue show`)."""

    queue: str
    states: dict[JobState, int]
    oldest_due_at: Annotated[datetime | None, Meta(description="The time at which the oldest due job became due.")]
    paused: PauseDocument | None
    workers: tuple[str, ...]
    limit: LimitDocument | None = None


class QueueLimitDocument(LimitDocument, Document, frozen=True, kw_only=True, tag="holdfast.queue.limit/1"):
    """The rate limit of a queue and its usage; `reset` is set if it was reset."""

    queue: str
    reset: bool


def limit_document(usage: "Usage") -> LimitDocument:
    """The usage of a rate limit, as a JSON document."""
    return LimitDocument(rate=usage.rate, burst=usage.burst, available=usage.available, wait_s=usage.wait_s)


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
    """The number of expired leases, and of jobs that were reaped."""

    reaped: int
    expired: int


class PurgeDocument(Document, frozen=True, kw_only=True, tag="holdfast.queue.purge/1"):
    """The number of jobs that matched, and of jobs that were purged."""

    purged: int
    meant: int


class ErrorText(Struct, frozen=True, kw_only=True):
    """An error; `hint` is the next step, if the message does not name it."""

    code: str
    message: str
    hint: str | None


class ErrorDocument(Document, frozen=True, kw_only=True, tag="holdfast.error/1"):
    """The document that a command with `--json` prints on stderr when it fails."""

    error: ErrorText
