"""The verdict on each attempt: turns its result into the settlement that is sent to the engine. Pure functions."""

import logging
import math
from typing import Final, assert_never

import msgspec

from holdfast.codec import JobMessage
from holdfast.definition.definition import MAX_DURATION_S
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.metrics import End
from holdfast.rates import Rate
from holdfast.state.ownership import done_marks, first_run, is_owned, slot_names_of
from holdfast.state.schedules import result_of_run
from holdfast.units import format_duration
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    Cell,
    DeadReason,
    ErrorInfo,
    ExecutionResult,
    JobLease,
    Nack,
    Outcome,
    Release,
    Settlement,
)

log = logging.getLogger("holdfast.worker")

_RELEASES: Final = {
    Outcome.SNOOZED: End.SNOOZED,
    Outcome.POSTPONED: End.POSTPONED,
    Outcome.RATE_LIMITED: End.RATE_LIMITED,
}
_REJECTIONS: Final = {
    DeadReason.BAD_SIGNATURE: End.REJECTED_SIGNATURE,
    DeadReason.UNDECODABLE: End.REJECTED_UNDECODABLE,
    DeadReason.WRONG_QUEUE: End.REJECTED_WRONG_QUEUE,
    DeadReason.HANDLER_FORBIDDEN: End.REJECTED_HANDLER_FORBIDDEN,
}


def verdict_on(result: ExecutionResult, message: JobMessage, lease: JobLease, retry: RetryPolicy) -> Settlement:
    """The settlement of one attempt. Whether and when to retry is decided here; the engine stores it."""
    record = result.record()
    match result.outcome:
        case Outcome.SUCCEEDED:
            return succeeded(lease, record)
        case Outcome.SNOOZED:
            return Release(lease=lease, delay=result.snooze_s or 0.0, record=record)
        case Outcome.CANCELLED:
            return CancelJob(lease=lease, reason=result.cancel_reason or "", record=record)
        case Outcome.INTERRUPTED:
            return Release(lease=lease, record=record)
        case _:
            return _failure(result, record, message, lease, retry)


def carrying(settlement: Settlement, message: JobMessage | None) -> Settlement:
    """The settlement, extended for a scheduled job, whose result goes to the ledger of its schedule, and for a job that
    has slots: the job leaves them, and a success marks its idempotency key as completed. Every settlement passes
    through here before it is sent.
    """
    if message is None:
        return settlement
    if message.schedule is not None:
        settlement = msgspec.structs.replace(
            settlement, writes=(*settlement.writes, *result_of_run(message, settlement))
        )
    if not is_owned(message):
        return settlement
    record = settlement.record
    if record is not None and record.outcome is Outcome.SKIPPED:
        return settlement
    marks = done_marks(message, record) if isinstance(settlement, Ack) else ()
    return msgspec.structs.replace(settlement, leaves=slot_names_of(message), writes=(*settlement.writes, *marks))


def succeeded(lease: JobLease, record: AttemptRecord) -> Ack:
    """The settlement of a success, whether a child reports it in full or in a batch."""
    return Ack(lease=lease, record=record)


def skipped(lease: JobLease, message: JobMessage, cell: Cell | None, now_us: int) -> Ack:
    """The settlement of a job whose idempotency key another job has completed, with that job's result."""
    first = None if cell is None else first_run(cell)
    by = f" by job '{first.job_id}'" if first is not None and first.job_id else ""
    record = momentary(Outcome.SKIPPED, now_us, note=f"idempotency key '{message.idempotency_key}' was completed{by}")
    return Ack(lease=lease, record=msgspec.structs.replace(record, result=None if first is None else first.result))


def put_off(lease: JobLease, rate: Rate, wait_s: float, now_us: int) -> Release:
    """The settlement of a job that its rate limit puts off until its turn."""
    delay = min(wait_s, MAX_DURATION_S)
    note = f"put off for {format_duration(delay)} by the rate limit of {rate}"
    record = momentary(Outcome.RATE_LIMITED, now_us, note=note)
    return Release(lease=lease, delay=delay, unstarted=True, record=record)


def released(lease: JobLease, now_us: int, note: str = "", *, delay: float = 0.0, unstarted: bool = False) -> Release:
    """The settlement of a job that was not run, or was interrupted."""
    record = momentary(Outcome.INTERRUPTED, now_us, note=note)
    return Release(lease=lease, delay=delay, unstarted=unstarted, record=record)


def momentary(outcome: Outcome, now_us: int, error: ErrorInfo | None = None, *, note: str = "") -> AttemptRecord:
    """The record of an attempt that took no time."""
    return AttemptRecord(outcome=outcome, started_us=now_us, ended_us=now_us, error=error, note=note)


def policy_of(message: JobMessage, default: RetryPolicy) -> RetryPolicy:
    """The job's own backoff, which is signed, or else the worker's policy."""
    return default if message.backoff is None else BackoffPolicy(message.backoff)


def _failure(
    result: ExecutionResult, record: AttemptRecord, message: JobMessage, lease: JobLease, retry: RetryPolicy
) -> Settlement:
    if result.no_retry:
        return Abandon(lease=lease, reason=DeadReason.NO_RETRY, record=record)
    if lease.attempts >= message.max_retries:
        reason = DeadReason.TIMEOUT if result.outcome is Outcome.TIMEOUT else DeadReason.FAILED
        return Abandon(lease=lease, reason=reason, record=record)
    # `attempts` runs failed before this one, so the next is number attempts + 2.
    return Nack(lease=lease, delay=_delay(retry, lease.attempts + 2, result.error), record=record)


def suspected(lease: JobLease, record: AttemptRecord, retry: RetryPolicy) -> Settlement:
    """The settlement of one of several jobs whose process died: any of them may be to blame, so none is failed."""
    return Release(lease=lease, delay=_delay(retry, lease.crashes + 2, record.error), crashed=True, record=record)


def _delay(retry: RetryPolicy, attempt: int, error: ErrorInfo | None) -> float:
    """The policy's delay, or the default policy's if that is not a valid one: policies may be user code."""
    try:
        delay = float(retry.delay(attempt, error))
    except Exception:
        log.exception("the retry policy failed; using the default policy")
        delay = math.nan
    if not math.isfinite(delay):
        delay = BackoffPolicy().delay(attempt, error)
    return min(max(delay, 0.0), MAX_DURATION_S)


def has_run(settlement: Settlement) -> bool:
    """Whether a settlement ends an attempt that ran. A job that was cancelled or released before it started has a
    momentary record.
    """
    record = settlement.record
    if record is None:
        return False
    match record.outcome:
        case Outcome.SKIPPED | Outcome.REJECTED | Outcome.EXPIRED | Outcome.POSTPONED | Outcome.RATE_LIMITED:
            return False
        case Outcome.CANCELLED | Outcome.INTERRUPTED:
            return record.started_us != record.ended_us
        case _:
            return True


def end_of(settlement: Settlement) -> End:
    """How a delivery ended whose settlement was applied."""
    match settlement:
        case Ack(record=record):
            is_skipped = record is not None and record.outcome is Outcome.SKIPPED
            return End.SKIPPED_IDEMPOTENT if is_skipped else End.SUCCEEDED
        case Nack():
            return End.REQUEUED
        case Release(record=record):
            return End.RELEASED if record is None else _RELEASES.get(record.outcome, End.RELEASED)
        case Abandon(reason=reason):
            return _REJECTIONS.get(reason, End.FAILED_PERMANENTLY)
        case CancelJob(expired=is_expired):
            return End.EXPIRED if is_expired else End.CANCELLED
        case _:
            assert_never(settlement)
