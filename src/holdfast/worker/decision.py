"""What each end of a run means: an execution's result becomes the settlement the engine is asked for. Pure."""

from typing import assert_never

from holdfast.codec import JobMessage
from holdfast.execution.retry import RetryPolicy
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    Cancel,
    DeadReason,
    ExecutionResult,
    JobLease,
    Nack,
    Outcome,
    Release,
    Settlement,
    WorkerStatus,
)


def decide(result: ExecutionResult, message: JobMessage, lease: JobLease, retry: RetryPolicy) -> Settlement:
    """The settlement of one attempt; retries are decided here and live in the engine."""
    record = result.record()
    match result.outcome:
        case Outcome.SUCCEEDED:
            return Ack(lease=lease, record=record)
        case Outcome.SNOOZED:
            return Release(lease=lease, delay=result.snooze_s or 0.0, record=record)
        case Outcome.CANCELLED:
            return Cancel(lease=lease, reason=result.cancel_reason or "", record=record)
        case Outcome.INTERRUPTED:
            return Release(lease=lease, record=record)
        case _:
            return _failure(result, record, message, lease, retry)


def _failure(
    result: ExecutionResult, record: AttemptRecord, message: JobMessage, lease: JobLease, retry: RetryPolicy
) -> Settlement:
    if result.no_retry:
        return Abandon(lease=lease, reason=DeadReason.NO_RETRY, record=record)
    if lease.attempts >= message.max_retries:
        reason = DeadReason.TIMEOUT if result.outcome is Outcome.TIMEOUT else DeadReason.FAILED
        return Abandon(lease=lease, reason=reason, record=record)
    # `attempts` runs have failed before this one, so the next is number attempts + 2.
    return Nack(lease=lease, delay=retry.delay(lease.attempts + 2, result.error), record=record)


def status_of(settlement: Settlement) -> WorkerStatus:
    """How the worker reports a settlement that went through."""
    match settlement:
        case Ack():
            return WorkerStatus.ACKED
        case Nack():
            return WorkerStatus.REQUEUED
        case Release():
            return WorkerStatus.RELEASED
        case Abandon(reason=reason):
            return WorkerStatus.DEAD_LETTERED if reason.follows_a_run else WorkerStatus.REJECTED
        case Cancel():
            return WorkerStatus.CANCELLED
        case _:
            assert_never(settlement)
