"""`Intake`: which fetched messages may run, and what becomes of those that may not."""

from typing import Final

from msgspec import Struct

from holdfast.clock import Clock
from holdfast.codec import JobMessage
from holdfast.errors import (
    BadSignature,
    CommandForbidden,
    EnvelopeRejected,
    HandlerForbidden,
    HoldfastError,
    NewerWire,
    UnknownHandler,
    UnknownKey,
    UnknownMember,
)
from holdfast.queues.signing import Signer
from holdfast.values import (
    Abandon,
    AttemptRecord,
    Cancel,
    DeadReason,
    ErrorInfo,
    JobLease,
    Outcome,
    Release,
    Settlement,
)

POSTPONE_S: Final = 60.0


class WrongQueue(EnvelopeRejected):
    """The message was signed for another queue or another job: somebody moved or copied it."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A message that does not run: how it is settled, and the handler it names, if that could be read."""

    settlement: Settlement
    job: str | None = None


class Intake:
    """Verifies before anything is parsed, and judges expiry by the moment of the claim."""

    def __init__(self, signer: Signer, clock: Clock) -> None:
        self._signer = signer
        self._clock = clock

    def admit(self, lease: JobLease) -> JobMessage | Refusal:
        """The message, if it may run; else the settlement that ends it or puts it off."""
        try:
            message = self._signer.open(lease.wire)
            if message.queue != lease.queue or message.identifier != lease.id:
                raise _moved(message, lease)
        except HoldfastError as problem:
            return Refusal(settlement=self.refusal(lease, problem))
        if message.expires_at is not None and lease.claimed_at >= message.expires_at and not lease.ignore_expiry:
            record = self.record(Outcome.EXPIRED)
            settlement = Cancel(lease=lease, reason="expired", expired=True, record=record)
            return Refusal(settlement=settlement, job=message.job)
        return message

    def refusal(self, lease: JobLease, problem: HoldfastError) -> Settlement:
        """What to do with a message that cannot be run: later, if a deploy can mend it, else never."""
        error = ErrorInfo(type=type(problem).__name__, message=str(problem))
        match problem:
            case UnknownHandler() | UnknownKey() | NewerWire() | UnknownMember():
                # Another worker of the queue may be able to: soon at first, then ever more seldom.
                puts_off = max(0, lease.delivery - lease.attempts - 1)
                delay = min(POSTPONE_S, 2.0 ** min(puts_off, 10))
                return Release(lease=lease, delay=delay, record=self.record(Outcome.POSTPONED, error))
            case BadSignature():
                reason = DeadReason.BAD_SIGNATURE
            case WrongQueue():
                reason = DeadReason.WRONG_QUEUE
            case HandlerForbidden() | CommandForbidden():
                reason = DeadReason.HANDLER_FORBIDDEN
            case _:
                reason = DeadReason.UNDECODABLE
        return Abandon(lease=lease, reason=reason, record=self.record(Outcome.REJECTED, error))

    def handed_back(
        self, lease: JobLease, note: str = "", *, delay: float = 0.0, unstarted: bool = False
    ) -> Settlement:
        """The settlement of a job that was not run, or not to its end, through no fault of its own."""
        record = self.record(Outcome.INTERRUPTED, note=note)
        return Release(lease=lease, delay=delay, unstarted=unstarted, record=record)

    def record(self, outcome: Outcome, error: ErrorInfo | None = None, *, note: str = "") -> AttemptRecord:
        """The record of an attempt that took no time."""
        now_us = self._clock.now_us()
        return AttemptRecord(outcome=outcome, started_us=now_us, ended_us=now_us, error=error, note=note)


def _moved(message: JobMessage, lease: JobLease) -> WrongQueue:
    if message.queue != lease.queue:
        return WrongQueue(f"the message was signed for queue '{message.queue}', not for '{lease.queue}'")
    return WrongQueue(f"the message was signed for job '{message.identifier}', not for '{lease.id}'")
