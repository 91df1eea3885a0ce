"""The contract with leases that every engine obeys, and the second one for reading and operating.

An engine implements the primitives (`accept`, `claim`, `settle`, `exchange`, `renew_many`, `reap_expired`); the
readable verbs are one-element calls of them. `holdfast.testing.conformance` states the laws behind it as tests.
"""

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Self, TypedDict, Unpack

import msgspec
from msgspec import Struct

from holdfast.clock import Clock, from_us, span_us, to_us
from holdfast.codec import describe
from holdfast.definition import JobDefinition
from holdfast.errors import NotSupported
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.values import (
    FINAL_STATES,
    Abandon,
    Accepted,
    Ack,
    AttemptRecord,
    AttemptView,
    Cancel,
    CancelAnswer,
    DeadReason,
    ErrorInfo,
    JobFilter,
    JobHistory,
    JobLease,
    JobState,
    JobView,
    LeaseState,
    LiveOutput,
    Nack,
    Outcome,
    Page,
    Progress,
    QueuePause,
    Release,
    ReplayAnswer,
    Settlement,
    StopOrder,
    WorkerReport,
    WorkerState,
    WorkerView,
)
from holdfast.values import JobEnvelope as JobEnvelope

# How many of its own heartbeats a worker may miss before people are told that it is lost, and how long they are told.
LOST_AFTER_BEATS = 3
FORGET_LOST_S = 86_400.0
DEFAULT_LEASE_S = 60.0
DEFAULT_CRASH_LIMIT = 3
DEFAULT_RETAIN_COMPLETED_S = 86_400.0
TOMBSTONE_S = 3600.0
MAX_PROGRESS_MESSAGE_BYTES = 1024
LIVE_OUTPUT_BYTES = 16 * 1024


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do. Asking for what it cannot is `NotSupported`, never a silent downgrade."""

    durable: bool
    shared: bool
    transactional_enqueue: bool
    wakes_up: bool
    max_wire_bytes: int
    delay_resolution_s: float


class EngineInfo(Struct, frozen=True, kw_only=True):
    """What an engine says of itself. A schema of 0 is not there yet; None means that there is none to be had.

    `clock_us` is the clock of a server when it was asked; an engine in this process goes by this host's.
    """

    server: str
    names: str = ""
    schema: int | None = None
    known_schema: int | None = None
    settings: Mapping[str, str]
    survives: str
    clock_us: int | None = None


class LeasePolicy(Struct, frozen=True, kw_only=True):
    """The engine's own settings: how long a lease lasts, how many crashes end a job, how long records are kept."""

    lease_s: float = DEFAULT_LEASE_S
    crash_limit: int = DEFAULT_CRASH_LIMIT
    retain_completed_s: float = DEFAULT_RETAIN_COMPLETED_S
    retain_dead_s: float | None = None


DEFAULT_POLICY = LeasePolicy()


class Crashes(Enum):
    """What a settlement does to the count of consecutive deliveries without a verdict."""

    RESET = 0
    KEEP = 1
    ADD = 2


class Effect(Struct, frozen=True, kw_only=True):
    """What a settlement changes, the same on every engine. A release is `PENDING`; its delay makes it scheduled."""

    state: JobState
    verdict: str
    delay: float = 0.0
    adds_attempt: bool = False
    crashes: Crashes = Crashes.RESET
    dead_reason: DeadReason | None = None
    cancel_reason: str | None = None
    expired: bool = False


EFFECT_OF_ACK = Effect(state=JobState.COMPLETED, verdict="ack")


def effect_of(settlement: Settlement) -> Effect:
    """The change a settlement asks for: the table of ends, as a pure function."""
    match settlement:
        case Ack():
            return EFFECT_OF_ACK
        case Nack(delay=delay):
            return Effect(state=JobState.FAILED, verdict="nack", delay=delay, adds_attempt=True)
        case Release(delay=delay, crashed=crashed, unstarted=unstarted):
            return Effect(
                state=JobState.PENDING,
                verdict="release",
                delay=delay,
                crashes=Crashes.ADD if crashed else Crashes.KEEP if unstarted else Crashes.RESET,
            )
        case Abandon(reason=reason):
            return Effect(
                state=JobState.DEAD,
                verdict="abandon",
                adds_attempt=reason.follows_a_run,
                crashes=Crashes.RESET if reason.follows_a_run else Crashes.KEEP,
                dead_reason=reason,
            )
        case Cancel(reason=reason, expired=expired):
            return Effect(
                state=JobState.CANCELLED,
                verdict="cancel",
                crashes=Crashes.KEEP if expired else Crashes.RESET,
                cancel_reason="expired" if expired else reason,
                expired=expired,
            )


def abandoned_run(claimed_us: int, now_us: int) -> AttemptRecord:
    """The record the engine itself writes of a delivery that ended without a verdict."""
    return AttemptRecord(
        outcome=Outcome.CRASHED,
        started_us=claimed_us,
        ended_us=max(claimed_us, now_us),
        error=ErrorInfo(type="LeaseExpired", message="the worker stopped, or lost the engine, without a verdict"),
    )


def kept_progress(progress: Progress, now_us: int) -> Progress:
    """What an engine keeps of a report, so that no handler's report can spoil those of others in the same write."""
    message = progress.message.encode("utf-8", "replace")[:MAX_PROGRESS_MESSAGE_BYTES].decode("utf-8", "ignore")
    done = float(progress.done) if math.isfinite(progress.done) else 0.0
    total = None if progress.total is None or not math.isfinite(progress.total) else float(progress.total)
    return Progress(done=done, total=total, message=message, at=from_us(now_us))


def kept_output(output: LiveOutput) -> LiveOutput:
    """What an engine keeps of a running attempt's output: its end, in characters that every engine can store."""
    data = output.text.replace("\0", "\ufffd").encode("utf-8", "replace")
    text = data[-LIVE_OUTPUT_BYTES:].decode("utf-8", "ignore")
    return LiveOutput(text=text, start=output.start + len(data) - len(text.encode()))


def history_of(job: JobView, attempts: Iterable[AttemptView], outputs: Mapping[int, LiveOutput]) -> JobHistory:
    """A job's history, with what deliveries said of their output while they ran, by delivery.

    That is told of the one that is running, and of those that did not live to tell it themselves. The attempts may have
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


def silence_allowed_s(report: WorkerReport) -> float:
    """How long a worker may be silent before it counts as lost."""
    return LOST_AFTER_BEATS * report.beat_every_s


def worker_state(report: WorkerReport, heard_us: int, now_us: int) -> WorkerState:
    """How a worker is doing that was heard then."""
    if now_us > heard_us + span_us(silence_allowed_s(report)):
        return WorkerState.LOST
    return WorkerState.DRAINING if report.draining else WorkerState.LIVE


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


def new_session() -> bytes:
    """64 random bits that all claims of one worker have in common."""
    return secrets.token_bytes(8)


def new_owner_token(session: bytes) -> str:
    """The token of one claim: the session of the worker, then 64 random bits of this claim."""
    return (session + secrets.token_bytes(8)).hex()


class EngineTransaction(ABC):
    """A transaction of the engine's own database that ends with its job: the handler's writes, then the verdict.

    It is open, and one of `complete` and `roll_back` has to be called, once.
    """

    connection: Any
    """The driver's connection, inside of the transaction; whoever gets it neither commits nor rolls back."""

    @abstractmethod
    def complete(self, record: AttemptRecord) -> None:
        """Acknowledge the job as the last statement and commit; `LeaseLost` if it is not this delivery's any more, and
        then nothing of the transaction was kept.
        """

    @abstractmethod
    def roll_back(self) -> None:
        """Keep nothing of it."""


class QueueBackend(ABC):
    """One engine. Every change of a leased job is one conditional write on its id, its claim and its lease's end."""

    capabilities: Capabilities

    def __init__(self, envelopes: EnvelopeFactory, *, policy: LeasePolicy, clock: Clock) -> None:
        self.envelopes = envelopes
        self.policy = policy
        self.clock = clock

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str:
        """Keep one job of this definition and return its id."""
        return self.accept([self.envelopes.make(definition, id=id)], tx)[0].id

    def fetch(self, queue: str) -> JobLease | None:
        """Lease the next job of the queue, or None if there is none to be had now."""
        leases = self.claim(queue, 1, owner_token=new_owner_token(new_session()))
        return leases[0] if leases else None

    def ack(self, lease: JobLease, record: AttemptRecord | None = None) -> bool:
        """The job is done."""
        return self.settle([Ack(lease=lease, record=record)])[0]

    def nack(self, lease: JobLease, delay: float | None = None, record: AttemptRecord | None = None) -> bool:
        """The run failed: one attempt more, and again after the delay."""
        return self.settle([Nack(lease=lease, delay=delay or 0.0, record=record)])[0]

    def release(self, lease: JobLease, delay: float | None = None, record: AttemptRecord | None = None) -> bool:
        """Give the job back; it costs no attempt."""
        return self.settle([Release(lease=lease, delay=delay or 0.0, record=record)])[0]

    def abandon(self, lease: JobLease, reason: DeadReason, record: AttemptRecord | None = None) -> bool:
        """Make the job a dead letter; it is kept."""
        return self.settle([Abandon(lease=lease, reason=reason, record=record)])[0]

    def renew(self, lease: JobLease) -> JobLease | None:
        """Move the lease's end and return the longer lease; an ended lease is never revived, someone may hold it."""
        fence_at = self.clock.monotonic() + lease.ttl_s
        if self.renew_many([lease])[0] is LeaseState.LOST:
            return None
        return msgspec.structs.replace(lease, fence_at=fence_at)

    @abstractmethod
    def accept(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[Accepted]:
        """Keep all of these jobs, or none: an id taken by other content refuses the whole call.

        With `tx`, a connection to the engine's own database, they are kept if that transaction is, and seen by others
        once it is; what the driver raises is raised as it is.
        """

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        """Begin a transaction that is to end with this delivery of the job; `LeaseLost` if it holds it no longer."""
        raise NotSupported("this engine has no transactions a handler could write in; use SQLite, PostgreSQL or MySQL")

    @abstractmethod
    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        """Lease up to `limit` due jobs, best first, waiting up to `wait` seconds for the first one.

        Repeated with the same token, it returns what that token already holds. A job that was delivered without a
        verdict before comes alone.
        """

    @abstractmethod
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        """Return when a job of these queues may be due, when `wake` is readable, or after `timeout` seconds.

        Only a hint, which may come without reason: what is due is for `claim` to say. What was committed after the
        last look of this thread is noticed.
        """

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Apply each settlement whose lease still holds; False means it no longer did and nothing changed.

        Repeating a settlement that went through answers True.
        """

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        """Settle one batch and claim the next in one transaction or round trip."""

    @abstractmethod
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        """Give each lease that still holds its full length again, counted from now."""

    @abstractmethod
    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        """How each lease stands, without moving its end; a cheap read."""

    @abstractmethod
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        """Keep how far each job is, the latest report only; False means the lease no longer held."""

    @abstractmethod
    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        """Keep what each running job has printed lately, the latest report only; False means the lease no longer held.

        It is seen while the job runs, and then if the record of the attempt tells no output itself: above all, if the
        delivery ended without a verdict.
        """

    @abstractmethod
    def reap_expired(self, queue: str | None = None) -> int:
        """Take back jobs whose lease has ended: each delivery counts as a crash, the limit makes it dead."""

    @abstractmethod
    def prune(self) -> int:
        """Drop records kept long enough; an id stays known for at least an hour after its job finished."""

    def tidy(self) -> None:  # noqa: B027 - most engines tend their files themselves
        """Tend the engine's own files, such as a log that wants to be written back; without effect on any job."""

    @abstractmethod
    def check(self) -> None:
        """Answer; or raise why not: the engine cannot be reached, or its schema is not the one this program knows."""

    @abstractmethod
    def describe(self) -> EngineInfo:
        """What the engine is, how it is set up, and what an accepted job survives there; nothing is made by asking."""

    @abstractmethod
    def create_schema(self) -> None:
        """Prepare the engine, or bring it up to date; safe from many processes at once."""

    @abstractmethod
    def close(self) -> None:
        """Let go of every connection. Leases stay as they are."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class QueueInspector(ABC):
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
    def pause(self, queue: str, reason: str = "") -> None:
        """Claim nothing more from the queue; what is running goes on."""

    @abstractmethod
    def resume(self, queue: str) -> bool:
        """Claim from the queue again; False if it was not paused."""

    @abstractmethod
    def pauses(self) -> Sequence[QueuePause]:
        """The queues that are paused."""

    @abstractmethod
    def facts(self, kind: str) -> frozenset[str]:
        """What this installation remembers of itself, such as the fingerprints of its signing keys."""

    @abstractmethod
    def add_facts(self, kind: str, facts: Iterable[str]) -> None:
        """Remember these."""

    def dead_letters(self, *, queue: str | None = None, limit: int = 50, after: str | None = None) -> Page:
        """Dead letters, newest first."""
        return self.find(JobFilter(states=(JobState.DEAD,), queue=queue), limit=limit, after=after)


class WorkerRegistry(ABC):
    """Which workers there are. Nothing depends on it but people: a lease alone says who holds a job."""

    @abstractmethod
    def beat(self, report: WorkerReport) -> StopOrder | None:
        """Keep the worker's report, heard now; answers what an operator asks of it."""

    @abstractmethod
    def order_of(self, worker_id: str) -> StopOrder | None:
        """What an operator asks of this worker; a cheap read."""

    @abstractmethod
    def order_stop(self, worker_id: str, order: StopOrder) -> bool:
        """Ask a worker to stop; False if it is not known. Of two orders the more urgent one stands."""

    @abstractmethod
    def leave(self, worker_id: str) -> None:
        """Forget a worker that has stopped."""

    @abstractmethod
    def workers(self) -> Sequence[WorkerView]:
        """All workers known, the oldest first; a lost one is forgotten by `prune` after a day."""


class Engine(QueueBackend, QueueInspector, WorkerRegistry, ABC):
    """A record engine: it moves jobs and keeps the whole record of each."""
