"""`Jobs`: the verbs of workers and of callers that enqueue, each over a batch, under leases.

Every change to a leased job is one conditional write on its id, its claim and the expiry of its lease. The effect of a
settlement is the same on every engine: `effect_of`. `holdfast.testing.conformance` states the laws as tests.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.clock import Clock, from_us
from holdfast.errors import NotSupported
from holdfast.values import (
    Abandon,
    Accepted,
    Ack,
    AttemptRecord,
    CancelJob,
    CellWrite,
    DeadReason,
    Entered,
    Entry,
    ErrorInfo,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    LiveOutput,
    Nack,
    Outcome,
    Progress,
    QueuePause,
    Release,
    Settlement,
)

K = TypeVar("K")

DEFAULT_LEASE_S = 60.0
DEFAULT_CRASH_LIMIT = 3
DEFAULT_RETAIN_COMPLETED_S = 86_400.0
MAX_PROGRESS_MESSAGE_BYTES = 1024
LIVE_OUTPUT_BYTES = 16 * 1024
LEASE_EXPIRED = ErrorInfo(
    type="LeaseExpired", message="the worker died or lost its connection to the engine before the job was settled"
)
"""The error of a delivery that ended without a verdict."""


class LeasePolicy(Struct, frozen=True, kw_only=True):
    """The engine's settings: the duration of a lease, the limit of crashes, and how long records are retained."""

    lease_s: float = DEFAULT_LEASE_S
    crash_limit: int = DEFAULT_CRASH_LIMIT
    retain_completed_s: float = DEFAULT_RETAIN_COMPLETED_S
    retain_dead_s: float | None = None


DEFAULT_POLICY = LeasePolicy()


class Crashes(Enum):
    """The effect of a settlement on the count of consecutive deliveries without a verdict."""

    RESET = 0
    KEEP = 1
    ADD = 2


class Effect(Struct, frozen=True, kw_only=True):
    """What a settlement changes in the record. A release is `PENDING`; its delay makes it scheduled."""

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
    """The effect of a settlement, the same on every engine."""
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
        case CancelJob(reason=reason, expired=expired):
            return Effect(
                state=JobState.CANCELLED,
                verdict="cancel",
                crashes=Crashes.KEEP if expired else Crashes.RESET,
                cancel_reason="expired" if expired else reason,
                expired=expired,
            )


def abandoned_run(claimed_us: int, now_us: int) -> AttemptRecord:
    """The record that the engine itself writes for a delivery that ended without a verdict."""
    ended_us = max(claimed_us, now_us)
    return AttemptRecord(outcome=Outcome.CRASHED, started_us=claimed_us, ended_us=ended_us, error=LEASE_EXPIRED)


def kept_progress(progress: Progress, now_us: int) -> Progress:
    """The report as an engine stores it, so that an invalid one cannot fail the others in the same write."""
    message = progress.message.encode("utf-8", "replace")[:MAX_PROGRESS_MESSAGE_BYTES].decode("utf-8", "ignore")
    done = float(progress.done) if math.isfinite(progress.done) else 0.0
    total = None if progress.total is None or not math.isfinite(progress.total) else float(progress.total)
    return Progress(done=done, total=total, message=message, at=from_us(now_us))


def kept_output(output: LiveOutput) -> LiveOutput:
    """The output of a running attempt as an engine stores it: its end, in characters that every engine can store."""
    data = output.text.replace("\0", "\ufffd").encode("utf-8", "replace")
    text = data[-LIVE_OUTPUT_BYTES:].decode("utf-8", "ignore")
    return LiveOutput(text=text, start=output.start + len(data) - len(text.encode()))


def extras_of(settlements: Sequence[Settlement]) -> tuple[list[CellWrite], list[JobEnvelope]]:
    """The writes and the jobs that settlements carry. Conditions are refused: no verdict may depend on one."""
    carriers = [one for one in settlements if one.writes or one.enqueues]
    for one in carriers:
        if any(write.if_version is not None for write in one.writes):
            raise ValueError(f"job '{one.lease.id}': the writes of a settlement cannot have if_version")
    return [write for one in carriers for write in one.writes], [job for one in carriers for job in one.enqueues]


def take_once(remaining: set[K], one: K) -> bool:
    """Remove it and return True, or return False if it is not in the set."""
    if one in remaining:
        remaining.remove(one)
        return True
    return False


def new_session() -> bytes:
    """64 random bits that all claims of one worker share."""
    return os.urandom(8)


def new_owner_token(session: bytes | None = None) -> str:
    """The token of one claim: the session of the worker (default: a new one), then 64 random bits of this claim."""
    return ((session or new_session()) + os.urandom(8)).hex()


class EngineTransaction(ABC):
    """A transaction in the engine's own database that commits with its job: the handler's writes, then the verdict.

    It is open; call either `complete` or `roll_back`, once.
    """

    connection: Any
    """The driver's connection, inside the transaction. The handler must not commit it or roll it back."""

    @abstractmethod
    def complete(
        self,
        record: AttemptRecord,
        *,
        leaves: Sequence[str] = (),
        writes: Sequence[CellWrite] = (),
        enqueues: Sequence[JobEnvelope] = (),
    ) -> None:
        """Acknowledge the job with these slots, writes and jobs as the last step, and commit. Raises `LeaseLost` if
        this delivery no longer holds the job; the transaction is then not committed.
        """

    @abstractmethod
    def roll_back(self) -> None:
        """Roll the transaction back."""


class Jobs(ABC):
    """The verbs that move jobs. No batch is empty; `policy` and `clock` are the engine's."""

    def __init__(self, policy: LeasePolicy, clock: Clock) -> None:
        self.policy = policy
        self.clock = clock

    @abstractmethod
    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        """Store all of these jobs and apply all writes, or nothing: an id taken by other content refuses the whole call
        (`IdConflict`), and so does a write whose condition fails (`StateConflict`). Of several jobs with the same
        unique key, one is stored; the answers for the others contain its id.

        With `tx`, a connection to the engine's own database, they are stored and become visible when that transaction
        commits; the driver's exceptions are not translated. There can be no writes then: see `Engine.accept`.
        """

    @abstractmethod
    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        """Replace the message, queue, priority and due time of each job that has not started with those of its
        envelope.

        The job retains its attempts and history. False means that there is no such job or that it has started; nothing
        was changed. `tx` is the same as for `accept`.
        """

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        """Begin a transaction that ends with this delivery of the job; `LeaseLost` if it no longer holds the job."""
        raise NotSupported("this engine has no transactions for handlers; use SQLite, PostgreSQL or MySQL")

    def claim(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        """Lease up to `limit` due jobs, best first, waiting up to `wait` seconds for the first one.

        Repeated with the same token, it returns what that token already holds. A job that was delivered without a
        verdict before comes alone.
        """
        give_up_at = self.clock.monotonic() + wait
        while True:
            leases = self.claim_now(queue, limit, owner_token) if limit > 0 else []
            left = give_up_at - self.clock.monotonic()
            if leases or left <= 0 or limit <= 0:
                return leases
            self.wait_for_work([queue], left)

    @abstractmethod
    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        """Lease jobs that are due now, without waiting."""

    @abstractmethod
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        """Let each claimed job take all of its slots, or none. If one is full, the lease ends without counting as an
        attempt or a crash, and the job is blocked on that slot until a place is free, or cancelled if that was
        requested.

        Repeating an entry returns the same answer, or `LOST` if the job was blocked. A settlement with `leaves` frees
        the places and promotes the best waiting jobs in the same commit. A job that is returned `unstarted` to run at
        once keeps its turn instead. No place outlives its lease.
        """

    @abstractmethod
    def repair(self) -> int:
        """Promote jobs that are still waiting although their slot has a free place, because a holder died, a promoted
        job cannot enter anymore, or a commit could not promote all of them. Returns how many. It is a cheap read if no
        job is blocked.
        """

    @abstractmethod
    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        """Return when a job of these queues may be due, when `wake` is readable, or after `timeout` seconds.

        This is only a hint and can be spurious: `claim` decides what is due. A job that was committed after this
        thread's last poll is noticed.
        """

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Apply each settlement whose lease still holds, with its writes and its enqueues; False means that the lease
        no longer held and nothing changed.

        Repeating a settlement that was applied returns True and changes nothing. If one of them cannot be written, the
        call raises and changes nothing; the others can be settled without it.
        """

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        """Settle one batch and claim the next in one transaction or round trip."""

    @abstractmethod
    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        """Extend each lease that still holds to its full length, counted from now."""

    @abstractmethod
    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        """The state of each lease, without extending it; a cheap read."""

    @abstractmethod
    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        """Store the progress of each job, the latest report only; False means that the lease no longer held."""

    @abstractmethod
    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        """Store the latest output of each running job; False means that the lease no longer held.

        It is shown while the job runs, and afterwards if the record of the attempt has no output, mainly because the
        delivery ended without a verdict.
        """

    @abstractmethod
    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        """Let every lease of these sessions expire now, and return how many did. Their workers are known to be dead, so
        that `reap_expired` can requeue their jobs at once.
        """

    @abstractmethod
    def reap_expired(self, queue: str | None = None) -> int:
        """Requeue jobs whose lease has expired. Each such delivery counts as a crash; at the limit the job is dead."""

    @abstractmethod
    def pause(self, queue: str, reason: str = "") -> None:
        """Stop claims from the queue. Running jobs continue."""

    @abstractmethod
    def resume(self, queue: str) -> bool:
        """Allow claims from the queue again; False if it was not paused."""

    @abstractmethod
    def pauses(self) -> Sequence[QueuePause]:
        """The queues that are paused."""
