"""The values that all layers share: states, reasons, leases, attempts, settlements, views. All are frozen.

Those that exist in large numbers are not tracked by the garbage collector (`gc=False`): plain data has no cycles.
"""

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Raw, Struct

from holdfast.clock import MICROSECONDS, from_us

DEFAULT_QUEUE = "default"
QUEUE_PATTERN = "[a-z0-9][a-z0-9_-]{0,62}"
QUEUE_NAMES = "use up to 63 lower-case letters, digits, '_' and '-', starting with a letter or digit"
# The private queue of one `holdfast run`.
PRIVATE_QUEUE_PATTERN = "run-[0-9a-f]{12}"
DEFAULT_PRIORITY = 5
DEFAULT_INSTALLATION = "holdfast"
INSTALLATION_PATTERN = "[A-Za-z0-9_.-]{1,64}"
OUTPUT_LIMIT = 64 * 1024
RESULT_LIMIT = 64 * 1024


def cut_mark(cut: int) -> str:
    """The marker in an output where this many bytes were cut."""
    return f"… {cut:,} bytes cut …"


class JobState(StrEnum):
    """The state of a job; between two operations it is in exactly one of these."""

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    PROCESSING = "processing"
    FAILED = "failed"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether only an operator can change this state."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED})


class DeadReason(StrEnum):
    """Why a job is dead. The list is closed."""

    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASH_LOOP = "crash-loop"
    BAD_SIGNATURE = "bad-signature"
    UNDECODABLE = "undecodable"
    WRONG_QUEUE = "wrong-queue"
    HANDLER_FORBIDDEN = "handler-forbidden"
    NO_RETRY = "no-retry"
    PARENT_FAILED = "parent-failed"

    @property
    def follows_a_run(self) -> bool:
        """Whether the handler ran and failed. With the other reasons, the handler did not report a failure."""
        return self in (DeadReason.FAILED, DeadReason.TIMEOUT, DeadReason.NO_RETRY)


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    INTERRUPTED = "interrupted"
    SNOOZED = "snoozed"
    POSTPONED = "postponed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    RATE_LIMITED = "rate-limited"
    LOST_LEASE = "lost-lease"


class BackoffStrategy(StrEnum):
    """How the delay grows with each retry."""

    NONE = "none"
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The delay before each retry. With `delays`, exactly those; the last one is repeated.

    `max` and `jitter` apply to linear and exponential delays, `multiplier` to exponential ones only.
    """

    strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    base: float = 2.0
    multiplier: float = 2.0
    max: float = 300.0
    jitter: float = 0.15
    delays: tuple[float, ...] = ()


class ErrorInfo(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An exception as text; it is never converted back to an exception."""

    type: str
    message: str
    traceback: str = ""

    @property
    def line(self) -> str:
        """The error on one line, for lists and logs."""
        head, _, rest = self.message.partition("\n")
        return f"{self.type}: {head}{' …' if rest else ''}" if head else self.type


class AttemptRecord(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The record of one attempt, stored in the same write as its settlement.

    Times are in microseconds since the epoch. `result` is the returned value as JSON.
    """

    outcome: Outcome
    started_us: int
    ended_us: int
    error: ErrorInfo | None = None
    output: str = ""
    result: bytes | None = None
    note: str = ""

    @property
    def started_at(self) -> datetime:
        return from_us(self.started_us)

    @property
    def ended_at(self) -> datetime:
        return from_us(self.ended_us)

    @property
    def duration_s(self) -> float:
        return (self.ended_us - self.started_us) / MICROSECONDS

    @property
    def is_plain_success(self) -> bool:
        """Whether the attempt succeeded without output, result or note."""
        return (
            self.outcome is Outcome.SUCCEEDED
            and self.error is None
            and self.result is None
            and not self.output
            and not self.note
        )


class OnParentFailure(StrEnum):
    """What to do with a job if one of its parents is dead or cancelled: cancel it, run it anyway, or let it wait
    until the parent has been replayed and completes.
    """

    CANCEL = "cancel"
    RUN = "run"
    WAIT = "wait"


PARENT_FAILED: Final = "parent-failed"
"""The reason of a job that was cancelled because a parent failed."""


class JobTraits(Struct, frozen=True, kw_only=True):
    """Options that stay the same from the definition of a job through its message to its view."""

    name: str | None = None
    priority: int = DEFAULT_PRIORITY
    trace_id: str | None = None
    tags: tuple[str, ...] = ()
    meta: Raw = Raw(b"{}")
    fence: bool = False
    idempotency_key: str | None = None
    idempotency_ttl: float | None = None
    single_instance: bool = False
    concurrency_key: str | None = None
    concurrency: int = 1
    dead_letter_to: str | None = None
    rate_limit: str | None = None
    rate_key: str | None = None
    breaker: str | None = None
    after: tuple[str, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.CANCEL
    schedule: str | None = None
    """The schedule that the job was created by. Not an option: only a schedule sets it."""
    scheduled_for: Annotated[datetime, Meta(tz=True)] | None = None
    """The instant of the schedule that the job was created for."""


class CatchUp(StrEnum):
    """What to do with instants of a schedule that passed more than five minutes ago, because no runner was running:
    nothing, run the last of them, or run all of them, up to a limit.
    """

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Overlap(StrEnum):
    """What to do at an instant if the previous run of the schedule has not finished: run at the same time, skip this
    run, or let it wait until the previous one has finished.
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class TickOutcome(StrEnum):
    """The outcome of an instant: the job was enqueued, was enqueued late, was not enqueued because of a rule, or was
    not enqueued although it should have been.
    """

    FIRED = "fired"
    LATE = "late"
    SKIPPED = "skipped"
    MISSED = "missed"

    @property
    def has_job(self) -> bool:
        return self in (TickOutcome.FIRED, TickOutcome.LATE)


class ScheduleSource(StrEnum):
    """Where a schedule is defined: in the application's code, in its settings, or only in the backend."""

    CODE = "code"
    CONFIG = "config"
    STORED = "stored"


def traits_of(carrier: JobTraits) -> dict[str, Any]:
    """The traits of a definition, a message or a view, by name."""
    return {name: getattr(carrier, name) for name in JobTraits.__struct_fields__}


class UniqueScope(StrEnum):
    """How long a unique key stays taken."""

    WAITING = "waiting"
    OPEN = "open"
    PERIOD = "period"


class OnConflict(StrEnum):
    """What to do if a job's unique key is taken: return the job that has it, raise an error, or give that job the new
    payload and due time.
    """

    IGNORE = "ignore"
    REJECT = "reject"
    REPLACE = "replace"


class Unique(Struct, frozen=True, kw_only=True, gc=False):
    """At most one job with this key: until it starts (`WAITING`), until it is final (`OPEN`), or for `period` seconds
    after it was accepted.

    If there already is one, `accept` returns its id instead of storing the job, or raises `UniqueConflict`
    (`OnConflict.REJECT`).
    """

    key: str
    scope: UniqueScope = UniqueScope.OPEN
    period: float = 0.0
    on_conflict: OnConflict = OnConflict.IGNORE

    @property
    def reject(self) -> bool:
        return self.on_conflict is OnConflict.REJECT


class JobEnvelope(Struct, frozen=True, kw_only=True, gc=False):
    """A job that is about to be stored: its id, the fields that engines index, and the signed bytes."""

    id: str
    queue: str
    job: str
    priority: int
    wire: bytes
    name: str | None = None
    trace_id: str | None = None
    delay: float = 0.0
    run_at: datetime | None = None
    unique: Unique | None = None
    after: tuple[str, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.CANCEL


class EnqueueOutcome(StrEnum):
    """The result of enqueueing a job: it was stored; it, or a job with its unique key, already existed; or the payload
    and due time of the job with its unique key were replaced.
    """

    CREATED = "created"
    EXISTING = "existing"
    REPLACED = "replaced"


class Accepted(Struct, frozen=True, kw_only=True, gc=False):
    """The engine's answer to one envelope; `created` is False if the same job was accepted before, or if another job
    has its unique key. In the latter case, `id` is the id of that job.
    """

    id: str
    created: bool
    replaced: bool = False

    @property
    def outcome(self) -> EnqueueOutcome:
        if self.created:
            return EnqueueOutcome.CREATED
        return EnqueueOutcome.REPLACED if self.replaced else EnqueueOutcome.EXISTING


class JobLease(Struct, frozen=True, kw_only=True, gc=False):
    """The right to run and settle a job. `wire` is unverified; the worker verifies it before it decodes the message.

    `token` is the engine's handle. `owner_token` is 128 random bits that identify this claim; the first half identifies
    the worker's session. `claimed_at` is the engine's time, `fence_at` this process's monotonic time just before the
    request.
    """

    id: str
    queue: str
    wire: bytes
    token: int | str
    owner_token: str
    ttl_s: float
    claimed_at: datetime
    fence_at: float
    delivery: int
    attempts: int = 0
    crashes: int = 0
    ignore_expiry: bool = False
    fence: int = 0
    """The fence number of the slots that the job holds; 0 if it holds none."""


class LeaseState(StrEnum):
    """The result of a renewal: extended, lost, or extended with a cancellation request for the job."""

    HELD = "held"
    LOST = "lost"
    CANCEL_REQUESTED = "cancel-requested"


MAX_CELL_BYTES: Final = 1024 * 1024
MAX_CELL_KEY_BYTES: Final = 1024
MAX_TOKENS: Final = 1_000_000
MAX_CELL_TTL_S: Final = 100 * 366 * 86_400.0
MAX_SLOT_SIZE: Final = 2**31 - 2
_kind_pattern = re.compile(r"[a-z][a-z0-9-]{0,62}")


class Cell(Struct, frozen=True, kw_only=True):
    """One small value in shared state. `version` increases with every write to its key, even after a drop or expiry,
    so it can serve as a fencing token.
    """

    kind: str
    key: str
    value: bytes
    version: int
    expires_in: float | None = None


class Put(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Store a value under (kind, key), for `ttl` seconds or until it is dropped.

    With `if_version`, only if the cell has that version; 0 means that the cell must not exist.
    """

    kind: str
    key: str
    value: bytes = b""
    ttl: float | None = None
    if_version: int | None = None

    def __post_init__(self) -> None:
        _check_cell(self.kind, self.key)
        if len(self.value) > MAX_CELL_BYTES:
            raise ValueError(f"cell '{self.kind}/{self.key}': {len(self.value):,} bytes exceed {MAX_CELL_BYTES:,}")
        if self.ttl is not None and not 0 < self.ttl <= MAX_CELL_TTL_S:
            raise ValueError(f"cell '{self.kind}/{self.key}': a ttl of {self.ttl} s is not between 0 and 100 years")


class Drop(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Remove the cell under (kind, key); with `if_version`, only if it has that version."""

    kind: str
    key: str
    if_version: int | None = None

    def __post_init__(self) -> None:
        _check_cell(self.kind, self.key)


CellWrite: TypeAlias = Put | Drop


class Resize(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Set the size of a slot, overriding those in the messages of its jobs; with None, these apply again.

    The slot admits no job for `closed_for` seconds. Waiting jobs that have a place now are promoted in the same commit.
    """

    slot: str
    size: int | None = None
    closed_for: float = 0.0

    def __post_init__(self) -> None:
        _check_cell("slot", self.slot)
        if self.size is not None and not 0 <= self.size <= MAX_SLOT_SIZE:
            raise ValueError(f"slot '{self.slot}': a size of {self.size} is not between 0 and {MAX_SLOT_SIZE:,}")
        if not 0 <= self.closed_for <= MAX_CELL_TTL_S or (self.closed_for and self.size is None):
            raise ValueError(
                f"slot '{self.slot}': it cannot be closed for {self.closed_for} s; give a size, and 0 s to 100 years"
            )


Write: TypeAlias = CellWrite | Resize


def _check_cell(kind: str, key: str) -> None:
    if not _kind_pattern.fullmatch(kind):
        raise ValueError(f"{kind!r} is not a valid kind of cell: use up to 63 lower-case letters, digits and '-'")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_CELL_KEY_BYTES or "\0" in key:
        raise ValueError(f"{key[:80]!r} is not a valid cell key: use 1 to {MAX_CELL_KEY_BYTES} bytes without NUL")


class Spend(Struct, frozen=True, kw_only=True, gc=False):
    """Ask a bucket for tokens: it refills at `per_s` and holds at most `burst`.

    `reserve` grants all of them now and answers how long to wait before they may be used. Negative `tokens` are a
    refund, which never fills a bucket above `burst`.
    """

    bucket: str
    tokens: int
    per_s: float
    burst: int
    reserve: bool = False

    def __post_init__(self) -> None:
        _check_cell("bucket", self.bucket)
        if not 1e-6 <= self.per_s <= 1e6 or not 1 <= self.burst <= MAX_TOKENS:
            raise ValueError(
                f"bucket '{self.bucket}': {self.per_s} tokens per second with a burst of {self.burst} is not a "
                "valid rate: use a rate from 0.000001 to 1,000,000 and a burst from 1 to 1,000,000"
            )
        if abs(self.tokens) > MAX_TOKENS:
            raise ValueError(f"bucket '{self.bucket}': {self.tokens:,} tokens are too many: ask for up to 1,000,000")


class Spent(Struct, frozen=True, kw_only=True, gc=False):
    """How many tokens were granted, and the seconds until the next one is free (or until these are, if reserved)."""

    tokens: int
    wait_s: float


class CircuitState(StrEnum):
    """The state of a circuit: calls are made; calls are refused; or one trial call decides which."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Slot(Struct, frozen=True, kw_only=True, gc=False):
    """A semaphore that up to `size` running jobs hold at a time. Jobs that find it full wait in the state `blocked`.

    If the cell `unless` (kind, key) exists, the work that the slot protects is done, and no job needs to enter it.
    """

    name: str
    size: int = 1
    unless: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        _check_cell("slot", self.name)


class Entry(Struct, frozen=True, kw_only=True):
    """A claimed job that asks for all of its slots."""

    lease: JobLease
    slots: tuple[Slot, ...]


class EntryOutcome(StrEnum):
    """The answer to an entry: the job holds all of its slots; it is blocked on one of them; its work is done, so it
    need not run; or its lease was lost.
    """

    ENTERED = "entered"
    BLOCKED = "blocked"
    SPARED = "spared"
    LOST = "lost"


class Entered(Struct, frozen=True, kw_only=True):
    """The answer to an entry. `fence` is greater than that of every earlier holder of these slots; `cell` is the cell
    that spared the job.
    """

    outcome: EntryOutcome
    fence: int = 0
    cell: Cell | None = None


class _Settled(Struct, frozen=True, kw_only=True):
    """The fields of every settlement. In the commit that applies a settlement, the job also leaves the slots in
    `leaves`, its `writes` (which have no conditions) are applied, and its `enqueues` are accepted. A refused settlement
    does none of this, and a repeated one changes nothing more.
    """

    lease: JobLease
    record: AttemptRecord | None = None
    leaves: tuple[str, ...] = ()
    writes: tuple[CellWrite, ...] = ()
    enqueues: tuple[JobEnvelope, ...] = ()


class Ack(_Settled, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned: complete the job."""


class Nack(_Settled, frozen=True, kw_only=True, tag=True):
    """The run failed: count the attempt and retry after `delay` seconds."""

    delay: float = 0.0


class Release(_Settled, frozen=True, kw_only=True, tag=True):
    """Return the job to its queue without counting an attempt.

    `crashed` counts as a delivery without a verdict. `unstarted` leaves the count of crashes unchanged.
    """

    delay: float = 0.0
    crashed: bool = False
    unstarted: bool = False


class Abandon(_Settled, frozen=True, kw_only=True, tag=True):
    """Dead-letter the job with this reason."""

    reason: DeadReason


class CancelJob(_Settled, frozen=True, kw_only=True, tag=True):
    """Cancel the job. `expired`: it was too late to start it, so a replay needs `ignore_expiry`."""

    reason: str = ""
    expired: bool = False


Settlement: TypeAlias = Ack | Nack | Release | Abandon | CancelJob


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A progress report of a running job; `total` may be unknown. `at` is the engine's time, set when it is stored."""

    done: float
    total: float | None = None
    message: str = ""
    at: datetime | None = None


class JobView(JobTraits, frozen=True, omit_defaults=True):
    """One job as users see it: the engine's record and the contents of its message."""

    id: str
    queue: str
    state: JobState
    job: str
    accepted_at: datetime
    due_at: datetime
    attempts: int = 0
    max_retries: int | None = None
    crashes: int = 0
    deliveries: int = 0
    finished_at: datetime | None = None
    lease_until: datetime | None = None
    dead_reason: DeadReason | None = None
    cancel_reason: str | None = None
    cancel_requested: bool = False
    last_error: str | None = None
    progress: Progress | None = None
    payload: Raw = Raw(b"null")
    timeout: float | None = None
    expires_at: datetime | None = None
    unique: str | None = None
    blocked_on: str | None = None
    """The slot that a blocked job waits for."""
    blocked_since: datetime | None = None
    damaged: bool = False
    """Whether the record contains data that Holdfast does not write; whatever can be read is shown."""


class AttemptView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a job's history; `delivery` counts claims over all lives of the job."""

    delivery: int
    record: AttemptRecord


class LiveOutput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest output of a running attempt; `start` is the number of bytes printed before it."""

    text: str
    start: int = 0

    @property
    def end(self) -> int:
        """The number of bytes printed up to the end of this text."""
        return self.start + len(self.text.encode())

    @property
    def marked(self) -> str:
        """The text, after a line with the number of bytes that are missing before it."""
        return f"{cut_mark(self.start)}\n{self.text}" if self.start else self.text


class JobHistory(Struct, frozen=True, kw_only=True):
    """A job with all its attempts, oldest first, and the output of the one that is running.

    `wire` is its message as stored, unverified.
    """

    job: JobView
    attempts: tuple[AttemptView, ...]
    live_output: LiveOutput | None = None
    wire: bytes = b""


class JobFilter(Struct, frozen=True, kw_only=True):
    """Selects jobs that meet all of these conditions."""

    states: tuple[JobState, ...] = ()
    queue: str | None = None
    job: str | None = None
    ids: tuple[str, ...] = ()
    dead_reason: DeadReason | None = None
    accepted_from: datetime | None = None
    accepted_before: datetime | None = None
    finished_from: datetime | None = None
    finished_before: datetime | None = None


class Page(Struct, frozen=True, kw_only=True):
    """Some jobs, newest first, and the cursor of the next page, if there is one.

    `cursors` has one cursor for each job: a page `after` it starts with the next job.
    """

    jobs: tuple[JobView, ...]
    next: str | None = None
    cursors: tuple[str, ...] = ()


class SlotHolder(Struct, frozen=True, kw_only=True):
    """A job that holds a slot, or a promoted job that can enter it before others (`fence` is None)."""

    job_id: str
    queue: str
    since: datetime
    fence: int | None = None


class SlotWaiter(Struct, frozen=True, kw_only=True):
    """A job that is blocked on a slot."""

    job_id: str
    queue: str
    since: datetime


class SlotView(Struct, frozen=True, kw_only=True):
    """A slot as users see it: its holders, the number of jobs that wait for it, and the first few of those."""

    name: str
    holders: tuple[SlotHolder, ...] = ()
    waiting: int = 0
    waiters: tuple[SlotWaiter, ...] = ()


class EdgeOutcome(StrEnum):
    """The state of an edge: the child waits for the parent, the parent no longer holds it up, or the parent has failed
    and the child is cancelled.
    """

    OPEN = "open"
    MET = "met"
    CANCELLED = "cancelled"


class Relative(Struct, frozen=True, kw_only=True):
    """A parent or a child of a job, and the edge between the two."""

    job_id: str
    state: JobState
    on_failure: OnParentFailure
    outcome: EdgeOutcome


class Relatives(Struct, frozen=True, kw_only=True):
    """The jobs that a job waits for, and those that wait for it, in the order in which they were accepted. There may be
    more children than are listed.
    """

    parents: tuple[Relative, ...] = ()
    children: tuple[Relative, ...] = ()
    open_parents: int = 0
    child_count: int = 0


class QueuePause(Struct, frozen=True, kw_only=True):
    """A queue from which no jobs are claimed until it is resumed."""

    queue: str
    reason: str
    since: datetime


class WorkerState(StrEnum):
    """The state of a worker; a `lost` one has missed three heartbeats."""

    LIVE = "live"
    DRAINING = "draining"
    LOST = "lost"


class StopOrder(StrEnum):
    """An operator's request to a worker: to finish its running jobs first, or to release them at once."""

    DRAIN = "drain"
    NOW = "now"


class RunningJob(Struct, frozen=True, kw_only=True):
    """A job that a worker is running."""

    id: str
    job: str
    queue: str
    started_at: datetime


class QueueWait(Struct, frozen=True, kw_only=True):
    """The time that the oldest due job of a queue has waited, by the engine's clock, and when it became due."""

    since: datetime
    seconds: float


class WorkerReport(Struct, frozen=True, kw_only=True):
    """A worker's report about itself, sent with each heartbeat. `id` is random; host and pid are only shown.

    `queues` are as configured, with their weights. `jobs` are the running ones, at most a hundred.
    """

    id: str
    host: str
    pid: int
    version: str
    started_at: datetime
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    processes: int
    slots: int
    beat_every_s: float
    draining: bool = False
    jobs: tuple[RunningJob, ...] = ()
    running: int = 0
    done: int = 0
    failed: int = 0
    memory_bytes: int = 0


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker as users see it: its last report, and when the engine received it."""

    report: WorkerReport
    state: WorkerState
    heard_at: datetime
    order: StopOrder | None = None


class CancelAnswer(StrEnum):
    """The result of a request to cancel a job."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too-late"
    UNKNOWN = "unknown"


class ReplayAnswer(StrEnum):
    """The result of a request to replay a job."""

    REPLAYED = "replayed"
    EXPIRED = "expired"
    NOT_FINAL = "not-final"
    UNKNOWN = "unknown"


class WorkerStatus(StrEnum):
    """The result of one turn of a worker."""

    EMPTY = "empty"
    ACKED = "acked"
    REQUEUED = "requeued"
    DEAD_LETTERED = "dead-lettered"
    REJECTED = "rejected"
    RELEASED = "released"
    BLOCKED = "blocked"
    RATE_LIMITED = "rate-limited"
    CANCELLED = "cancelled"
    SKIPPED_IDEMPOTENT = "skipped-idempotent"
    LOST_LEASE = "lost-lease"
    CIRCUIT_OPEN = "circuit-open"
    ERROR = "error"


class WorkerResult(Struct, frozen=True, kw_only=True):
    """The result of one turn, and the job it processed."""

    status: WorkerStatus
    job_id: str | None = None
    job: str | None = None
    queue: str | None = None
    attempt: int = 0
    max_attempts: int | None = None
    error: ErrorInfo | None = None
    retry_in: float | None = None
    duration_s: float = 0.0


class ExecutionResult(AttemptRecord, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one attempt before it is settled: its record, and what decides the settlement."""

    handler: str
    no_retry: bool = False
    snooze_s: float | None = None
    cancel_reason: str | None = None

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCEEDED

    def record(self) -> AttemptRecord:
        """The part that is stored with the settlement."""
        return AttemptRecord(
            outcome=self.outcome,
            started_us=self.started_us,
            ended_us=self.ended_us,
            error=self.error,
            output=self.output,
            result=self.result,
            note=self.note,
        )
