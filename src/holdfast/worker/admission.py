"""`Admission`: which claimed jobs may run, and how the others are settled. Every kind of worker uses it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from holdfast.clock import Clock
from holdfast.codec import JobMessage
from holdfast.errors import (
    BackendUnavailable,
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
from holdfast.handlers import HandlerRegistry
from holdfast.queues.signing import Signer
from holdfast.state.ownership import check_owned, is_owned, slots_of
from holdfast.units import counted
from holdfast.values import (
    Abandon,
    CancelJob,
    DeadReason,
    Entered,
    Entry,
    EntryOutcome,
    ErrorInfo,
    JobLease,
    Outcome,
    Release,
    Settlement,
)
from holdfast.worker.verdict import momentary, released, skipped

log = logging.getLogger("holdfast.worker")

POSTPONE_S: Final = 60.0

ENTER_LIMIT_S: Final = 5.0
ENTER_AGAIN_S: Final = 1.0

Enter: TypeAlias = Callable[[Sequence[Entry]], Sequence[Entered]]
"""A function that lets jobs enter their slots: the engine's `enter`, retried while it is unavailable."""


class WrongQueue(EnvelopeRejected):
    """The message was signed for another queue or another job: it was moved or copied."""


class Expired(HoldfastError):
    """The job expired before it was claimed."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A job that does not run: how it is settled, and its message, if that could be verified."""

    settlement: Settlement
    message: JobMessage | None = None


class Admitted(Struct, frozen=True, kw_only=True):
    """A claimed batch, judged: the leases of the jobs that may run, their verified messages, and the refused jobs.

    `fences` contains the fence numbers of jobs that hold slots, by job id. `blocked` contains leases that ended because
    a slot was full, and `lost` those that had been lost before their jobs could enter.
    """

    leases: Sequence[JobLease] = ()
    messages: Sequence[JobMessage] = ()
    refusals: Sequence[Refusal] = ()
    fences: Mapping[str, int] = {}
    blocked: Sequence[JobLease] = ()
    lost: Sequence[JobLease] = ()

    def __len__(self) -> int:
        return len(self.leases) + len(self.refusals) + len(self.blocked) + len(self.lost)


class Admission:
    """Verifies a message before anything parses it, then checks its queue and id, its expiry and its handler, and lets
    the job enter its slots, if it has any.

    It only reads what it was created with, so any thread may call it.
    """

    def __init__(self, signer: Signer, registry: HandlerRegistry, clock: Clock) -> None:
        self._signer = signer
        self._registry = registry
        self._clock = clock

    def admit(self, leases: Sequence[JobLease], enter: Enter) -> Admitted:
        """Judge jobs that were claimed together. An error that one of them causes rejects that job alone."""
        # Two lists instead of one of pairs: a tuple for each job shows in the throughput.
        runnable: list[JobLease] = []
        messages: list[JobMessage] = []
        refusals: list[Refusal] = []
        has_owned = False
        for lease in leases:
            verified = None
            try:
                message = self._signer.open(lease.wire)
                _check_place(message, lease)
                if is_owned(message):
                    check_owned(message)
                verified = message
                _check_expiry(message, lease)
                self._registry.resolve_for(message.job, message.queue)
            except Exception as problem:
                if not isinstance(problem, HoldfastError):
                    log.exception("job %s could not be admitted because of an error; dead-lettering it", lease.id)
                refusals.append(Refusal(settlement=refused(lease, problem, self._clock.now_us()), message=verified))
            else:
                runnable.append(lease)
                messages.append(message)
                has_owned = has_owned or is_owned(message)
        admitted = Admitted(leases=runnable, messages=messages, refusals=refusals)
        return self._with_slots(admitted, enter) if has_owned else admitted

    def _with_slots(self, admitted: Admitted, enter: Enter) -> Admitted:
        """The batch after its jobs have asked for their slots. Jobs without slots are unaffected."""
        runnable: list[JobLease] = []
        messages: list[JobMessage] = []
        refusals = [*admitted.refusals]
        fences: dict[str, int] = {}
        blocked: list[JobLease] = []
        lost: list[JobLease] = []
        answers = self._enter(admitted, enter)
        for lease, message in zip(admitted.leases, admitted.messages, strict=True):
            answer = answers.get(lease.id, _NO_SLOTS)
            if answer is None:
                refusals.append(self._try_again(lease))
                continue
            match answer.outcome:
                case EntryOutcome.ENTERED:
                    runnable.append(lease)
                    messages.append(message)
                    fences[lease.id] = answer.fence
                case EntryOutcome.SPARED:
                    settlement = skipped(lease, message, answer.cell, self._clock.now_us())
                    refusals.append(Refusal(settlement=settlement, message=message))
                case EntryOutcome.BLOCKED:
                    blocked.append(lease)
                case EntryOutcome.LOST:
                    lost.append(lease)
                case _:
                    assert_never(answer.outcome)
        return Admitted(
            leases=runnable, messages=messages, refusals=refusals, fences=fences, blocked=blocked, lost=lost
        )

    def _try_again(self, lease: JobLease) -> Refusal:
        """Release a job that could not enter its slots. It does not leave them, which could also fail: if it entered
        after all, its place ends with its lease.
        """
        note = "it could not enter its slots"
        now_us = self._clock.now_us()
        return Refusal(settlement=released(lease, now_us, note, delay=ENTER_AGAIN_S, unstarted=True))

    def _enter(self, admitted: Admitted, enter: Enter) -> Mapping[str, Entered | None]:
        """The engine's answers for the jobs that have slots, by job id; None if there was no answer in time. A slot may
        be locked by a process that does not respond, and must not hold up jobs without slots.
        """
        entries = [
            Entry(lease=lease, slots=slots_of(message))
            for lease, message in zip(admitted.leases, admitted.messages, strict=True)
            if is_owned(message)
        ]
        try:
            answers = enter(entries)
        except BackendUnavailable as problem:
            log.warning(
                "%s could not enter their slots; releasing them for %g s: %s",
                counted(len(entries), "job"),
                ENTER_AGAIN_S,
                problem,
            )
            return {entry.lease.id: None for entry in entries}
        return {entry.lease.id: answer for entry, answer in zip(entries, answers, strict=True)}


_NO_SLOTS: Final = Entered(outcome=EntryOutcome.ENTERED)


def refused(lease: JobLease, problem: Exception, now_us: int) -> Settlement:
    """The settlement of a job that cannot run: postponed if a deployment can fix it, else cancelled or dead."""
    error = ErrorInfo(type=type(problem).__name__, message=str(problem))
    match problem:
        case Expired():
            return CancelJob(lease=lease, reason="expired", expired=True, record=momentary(Outcome.EXPIRED, now_us))
        case UnknownHandler() | UnknownKey() | NewerWire() | UnknownMember():
            # Another worker of the queue may be able to run it: retry soon at first, then less and less often.
            times_postponed = max(0, lease.delivery - lease.attempts - 1)
            delay = min(POSTPONE_S, 2.0 ** min(times_postponed, 10))
            return Release(lease=lease, delay=delay, record=momentary(Outcome.POSTPONED, now_us, error))
        case BadSignature():
            reason = DeadReason.BAD_SIGNATURE
        case WrongQueue():
            reason = DeadReason.WRONG_QUEUE
        case HandlerForbidden() | CommandForbidden():
            reason = DeadReason.HANDLER_FORBIDDEN
        case _:
            reason = DeadReason.UNDECODABLE
    return Abandon(lease=lease, reason=reason, record=momentary(Outcome.REJECTED, now_us, error))


def _check_place(message: JobMessage, lease: JobLease) -> None:
    if message.queue != lease.queue:
        raise WrongQueue(f"the message was signed for queue '{message.queue}', not for '{lease.queue}'")
    if message.identifier != lease.id:
        raise WrongQueue(f"the message was signed for job '{message.identifier}', not for '{lease.id}'")


def _check_expiry(message: JobMessage, lease: JobLease) -> None:
    if message.expires_at is not None and lease.claimed_at >= message.expires_at and not lease.ignore_expiry:
        raise Expired
