"""`Admission`: which claimed jobs may run, and how the others are settled. Every kind of worker uses it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.codec import JobMessage
from holdfast.errors import (
    BackendError,
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
from holdfast.state.limits import Start, bucket_of, check_rated, rate_of
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
from holdfast.worker.verdict import momentary, put_off, released, skipped

log = logging.getLogger("holdfast.worker")

POSTPONE_S: Final = 60.0

ENTER_AGAIN_S: Final = 1.0

Enter: TypeAlias = Callable[[Sequence[Entry]], Sequence[Entered]]
"""A function that lets jobs enter their slots: the engine's `enter`, retried while it is unavailable."""

Pay: TypeAlias = Callable[[Sequence[Start]], Sequence[float]]
"""A function that returns how long each job has to wait for its rate limit: `waits_of`, retried in the same way."""


class WrongQueue(EnvelopeRejected):
    """The message was signed for another queue or another job: it was moved or copied."""


class Expired(HoldfastError):
    """The job expired before it was claimed."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A job that does not run: how it is settled, and its message, if that could be verified."""

    settlement: Settlement
    message: JobMessage | None = None


class Admitted(Struct, frozen=True, kw_only=True):
    """A claimed batch after admission: the leases and verified messages of the jobs that may run, and the refused jobs.

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
    the job enter its slots, if it has any, and checks its rate limit.

    It only reads what it was created with, so any thread may call it.
    """

    def __init__(self, signer: Signer, registry: HandlerRegistry, clock: Clock) -> None:
        self._signer = signer
        self._registry = registry
        self._clock = clock

    def admit(self, leases: Sequence[JobLease], enter: Enter, pay: Pay) -> Admitted:
        """Admit or refuse jobs that were claimed together. An error caused by one of them rejects only that job."""
        # Two lists instead of one of pairs: a tuple for each job shows in the throughput.
        runnable: list[JobLease] = []
        messages: list[JobMessage] = []
        refusals: list[Refusal] = []
        has_owned = has_rated = False
        for lease in leases:
            verified = None
            try:
                message = self._signer.open(lease.wire)
                _check_place(message, lease)
                if is_owned(message):
                    check_owned(message)
                if message.rate_limit is not None:
                    check_rated(message)
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
                has_rated = has_rated or message.rate_limit is not None
        admitted = Admitted(leases=runnable, messages=messages, refusals=refusals)
        if has_owned:
            admitted = self._with_slots(admitted, enter)
        # After the slots: a blocked job must take neither a token nor a place in the line.
        return self._within_rates(admitted, pay) if has_rated else admitted

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
                refusals.append(self._try_again(lease, "it could not enter its slots"))
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

    def _try_again(self, lease: JobLease, note: str) -> Refusal:
        """Release a job that could not enter its slots, or whose rate limit could not be checked. It does not leave its
        slots, which could also fail: its place expires with its lease.
        """
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
                "could not enter the slots of %s; releasing for %g s: %s",
                counted(len(entries), "job"),
                ENTER_AGAIN_S,
                problem,
            )
            return {entry.lease.id: None for entry in entries}
        return {entry.lease.id: answer for entry, answer in zip(entries, answers, strict=True)}

    def _within_rates(self, admitted: Admitted, pay: Pay) -> Admitted:
        """The batch without the jobs that their rate limits put off. They leave the slots that they have entered."""
        rates = {
            lease.id: rate
            for lease, message in zip(admitted.leases, admitted.messages, strict=True)
            if (rate := rate_of(message)) is not None
        }
        starts = [
            Start(job_id=lease.id, delivery=lease.delivery, bucket=bucket_of(message), rate=rates[lease.id])
            for lease, message in zip(admitted.leases, admitted.messages, strict=True)
            if lease.id in rates
        ]
        if not starts:  # all of them are blocked
            return admitted
        waits = self._waits(starts, pay)
        runnable: list[JobLease] = []
        messages: list[JobMessage] = []
        refusals = [*admitted.refusals]
        for lease, message in zip(admitted.leases, admitted.messages, strict=True):
            wait_s = waits.get(lease.id, 0.0)
            if wait_s is None:
                refusals.append(self._try_again(lease, "its rate limit could not be checked"))
            elif not wait_s:
                runnable.append(lease)
                messages.append(message)
            else:
                settlement = put_off(lease, rates[lease.id], wait_s, self._clock.now_us())
                refusals.append(Refusal(settlement=settlement, message=message))
        return replace(admitted, leases=runnable, messages=messages, refusals=refusals)

    def _waits(self, starts: Sequence[Start], pay: Pay) -> Mapping[str, float | None]:
        """How long each job has to wait for its rate limit, by its id; None if that could not be checked, which must
        not hold up the jobs without a limit.
        """
        try:
            return {start.job_id: wait_s for start, wait_s in zip(starts, pay(starts), strict=True)}
        except BackendError as problem:
            log.warning(
                "could not check the rate limits of %s; releasing for %g s: %s",
                counted(len(starts), "job"),
                ENTER_AGAIN_S,
                problem,
            )
            return {start.job_id: None for start in starts}


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
