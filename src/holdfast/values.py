"""The nouns every layer shares: states, reasons, leases, attempts, settlements, what people read. All frozen.

Those that come in crowds are hidden from the garbage collector (`gc=False`): plain data cannot make a cycle.
"""

import re
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from msgspec import Raw, Struct

from holdfast.clock import MICROSECONDS, from_us

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_INSTALLATION = "holdfast"
INSTALLATION_PATTERN = "[A-Za-z0-9_.-]{1,64}"
OUTPUT_LIMIT = 64 * 1024
RESULT_LIMIT = 64 * 1024


def cut_mark(cut: int) -> str:
    """What stands in an output for so many bytes of it that were not kept."""
    return f"… {cut:,} bytes cut …"


class JobState(StrEnum):
    """Where a job is; at every quiet moment it is in exactly one of these."""

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
        """Whether only an operator can move the job from here."""
        return self in FINAL_STATES


FINAL_STATES = frozenset({JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED})


class DeadReason(StrEnum):
    """Why a dead letter is one; the list is closed."""

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
        """Whether the handler ran and failed; the other reasons end a job that was never started."""
        return self in (DeadReason.FAILED, DeadReason.TIMEOUT, DeadReason.NO_RETRY)


class Outcome(StrEnum):
    """How one attempt ended, as its record says."""

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
    LOST_LEASE = "lost-lease"


class BackoffStrategy(StrEnum):
    """How the delay grows from retry to retry."""

    NONE = "none"
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Backoff(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long to wait before each retry; with `delays`, exactly those, the last one repeated."""

    strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    base: float = 2.0
    multiplier: float = 2.0
    max: float = 300.0
    jitter: float = 0.15
    delays: tuple[float, ...] = ()


class ErrorInfo(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """An exception as text; it is never turned back into an object."""

    type: str
    message: str
    traceback: str = ""

    @property
    def line(self) -> str:
        """One line for lists and logs."""
        head, _, rest = self.message.partition("\n")
        return f"{self.type}: {head}{' …' if rest else ''}" if head else self.type


class AttemptRecord(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one attempt did, stored in the same write as the settlement it belongs to.

    Its time is counted as engines count it, in microseconds since the epoch; `result` is the returned value as JSON.
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
        """Whether there is nothing to tell but that it went well, and when."""
        return (
            self.outcome is Outcome.SUCCEEDED
            and self.error is None
            and self.result is None
            and not self.output
            and not self.note
        )


class JobTraits(Struct, frozen=True, kw_only=True):
    """Options that a job carries unchanged: from its definition through its message to what people read."""

    name: str | None = None
    priority: int = DEFAULT_PRIORITY
    trace_id: str | None = None
    tags: tuple[str, ...] = ()
    meta: Raw = Raw(b"{}")
    fence: bool = False


def traits_of(carrier: JobTraits) -> dict[str, Any]:
    """The traits of a definition, a message or a view, by name."""
    return {name: getattr(carrier, name) for name in JobTraits.__struct_fields__}


class JobEnvelope(Struct, frozen=True, kw_only=True, gc=False):
    """One job on its way into a queue: its id, what engines index, and the signed bytes, made once."""

    id: str
    queue: str
    job: str
    priority: int
    wire: bytes
    name: str | None = None
    trace_id: str | None = None
    delay: float = 0.0
    run_at: datetime | None = None


class Accepted(Struct, frozen=True, kw_only=True, gc=False):
    """The engine's answer to one envelope: `created` is False if this very job was accepted before."""

    id: str
    created: bool


class JobLease(Struct, frozen=True, kw_only=True, gc=False):
    """A reservation. Its bytes are as fetched, unverified: only the worker's verification makes a message of them.

    `token` is the engine's handle, `owner_token` the 128 random bits of this claim, the first half of which is the
    session of its worker; `claimed_at` is the engine's clock, `fence_at` this process's monotonic clock, taken before
    the request.
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


class LeaseState(StrEnum):
    """What a renewal found: the lease is longer now, it is gone, or it is longer and the job shall be cancelled."""

    HELD = "held"
    LOST = "lost"
    CANCEL_REQUESTED = "cancel-requested"


MAX_CELL_BYTES: Final = 1024 * 1024
MAX_CELL_KEY_BYTES: Final = 1024
MAX_TOKENS: Final = 1_000_000
MAX_CELL_TTL_S: Final = 100 * 366 * 86_400.0
_kind_pattern = re.compile(r"[a-z][a-z0-9-]{0,62}")


class Cell(Struct, frozen=True, kw_only=True):
    """One small value in shared state. `version` grows with every write of its key, even across a drop or expiry, so
    it can serve as a fencing token.
    """

    kind: str
    key: str
    value: bytes
    version: int
    expires_in: float | None = None


class Put(Struct, frozen=True, kw_only=True, gc=False, tag=True):
    """Store a value under (kind, key), for `ttl` seconds or until it is dropped.

    With `if_version`, only if the cell has that version; 0 means that there is no such cell.
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


Write: TypeAlias = Put | Drop


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


class _Settled(Struct, frozen=True, kw_only=True):
    """What every settlement carries. A settlement that is applied also applies its `writes`, which have no condition,
    and accepts its `enqueues`, in the same commit; a refused one does neither, and a repeated one does neither again.
    """

    lease: JobLease
    record: AttemptRecord | None = None
    writes: tuple[Write, ...] = ()
    enqueues: tuple[JobEnvelope, ...] = ()


class Ack(_Settled, frozen=True, kw_only=True, gc=False, tag=True):
    """The handler returned."""


class Nack(_Settled, frozen=True, kw_only=True, tag=True):
    """The run failed and shall be retried after `delay`: one attempt more."""

    delay: float = 0.0


class Release(_Settled, frozen=True, kw_only=True, tag=True):
    """Give the job back; costs no attempt.

    `crashed` counts as a delivery that ended without a verdict; `unstarted` says nothing about the job, and leaves
    that count as it is.
    """

    delay: float = 0.0
    crashed: bool = False
    unstarted: bool = False


class Abandon(_Settled, frozen=True, kw_only=True, tag=True):
    """Make the job a dead letter: kept, with its reason."""

    reason: DeadReason


class CancelJob(_Settled, frozen=True, kw_only=True, tag=True):
    """End the job as cancelled. `expired`: it was too late to start it, so replaying it asks for `ignore_expiry`."""

    reason: str = ""
    expired: bool = False


Settlement: TypeAlias = Ack | Nack | Release | Abandon | CancelJob


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a running job says it is; `total` may be unknown. `at` is the engine's clock, once it is kept."""

    done: float
    total: float | None = None
    message: str = ""
    at: datetime | None = None


class JobView(JobTraits, frozen=True, omit_defaults=True):
    """One job as people see it: the engine's record beside what its message says of itself."""

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
    damaged: bool = False
    """Whether the store holds something that Holdfast does not write: what can be read of it is shown."""


class AttemptView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a job's history; `delivery` counts claims over all lives of the job."""

    delivery: int
    record: AttemptRecord


class LiveOutput(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running attempt has printed lately; `start` is how many bytes it had printed before that."""

    text: str
    start: int = 0

    @property
    def end(self) -> int:
        """How many bytes the attempt has printed up to the end of this."""
        return self.start + len(self.text.encode())

    @property
    def marked(self) -> str:
        """The text, behind a line that says how much is missing before it."""
        return f"{cut_mark(self.start)}\n{self.text}" if self.start else self.text


class JobHistory(Struct, frozen=True, kw_only=True):
    """A job with every attempt it made, oldest first, and what the one that is running says meanwhile."""

    job: JobView
    attempts: tuple[AttemptView, ...]
    live_output: LiveOutput | None = None


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs: every condition given must hold."""

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

    `cursors` are one for each job: a page `after` it begins right behind that job.
    """

    jobs: tuple[JobView, ...]
    next: str | None = None
    cursors: tuple[str, ...] = ()


class QueuePause(Struct, frozen=True, kw_only=True):
    """A queue from which nothing is claimed until it is resumed."""

    queue: str
    reason: str
    since: datetime


class WorkerState(StrEnum):
    """How a worker is doing: `lost` has not been heard of for three of its heartbeats."""

    LIVE = "live"
    DRAINING = "draining"
    LOST = "lost"


class StopOrder(StrEnum):
    """What an operator asks of a worker: finish what is running, or hand it back at once."""

    DRAIN = "drain"
    NOW = "now"


class RunningJob(Struct, frozen=True, kw_only=True):
    """One job a worker is running."""

    id: str
    job: str
    queue: str
    started_at: datetime


class WorkerReport(Struct, frozen=True, kw_only=True):
    """What a worker says of itself with each heartbeat. `id` is random: host and pid are for people, never identity.

    `queues` are as the worker was given them, with their weights; `jobs` are the running ones, a hundred at the most.
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
    """A worker as people see it: its last report, and when the engine heard it."""

    report: WorkerReport
    state: WorkerState
    heard_at: datetime
    order: StopOrder | None = None


class CancelAnswer(StrEnum):
    """What a request to cancel did."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    TOO_LATE = "too-late"
    UNKNOWN = "unknown"


class ReplayAnswer(StrEnum):
    """What a request to replay did."""

    REPLAYED = "replayed"
    EXPIRED = "expired"
    NOT_FINAL = "not-final"
    UNKNOWN = "unknown"


class WorkerStatus(StrEnum):
    """What one turn of the worker did."""

    EMPTY = "empty"
    ACKED = "acked"
    REQUEUED = "requeued"
    DEAD_LETTERED = "dead-lettered"
    REJECTED = "rejected"
    RELEASED = "released"
    CANCELLED = "cancelled"
    SKIPPED_IDEMPOTENT = "skipped-idempotent"
    LOST_LEASE = "lost-lease"
    ERROR = "error"


class WorkerResult(Struct, frozen=True, kw_only=True):
    """The end of one turn: what happened to which job."""

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
    """What one attempt came to, before anybody settles it: what is kept of it, and what steers the settlement."""

    handler: str
    no_retry: bool = False
    snooze_s: float | None = None
    cancel_reason: str | None = None

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCEEDED

    def record(self) -> AttemptRecord:
        """The part of it that is kept with the settlement."""
        return AttemptRecord(
            outcome=self.outcome,
            started_us=self.started_us,
            ended_us=self.ended_us,
            error=self.error,
            output=self.output,
            result=self.result,
            note=self.note,
        )
