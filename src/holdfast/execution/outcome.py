"""Determines the outcome of an attempt from how its call ended. Pure functions."""

from collections.abc import Collection
from typing import Final

from msgspec.structs import replace

from holdfast.codec import encode_payload, encode_value
from holdfast.definition.definition import MAX_DURATION_S
from holdfast.errors import CircuitOpen, RateLimited
from holdfast.execution.failure import describe_error, name_of, traceback_of
from holdfast.execution.output import cut
from holdfast.execution.timeout import CallResult, JobCancelRequested, JobInterrupted, JobTimeout
from holdfast.handlers import Cancel, Snooze
from holdfast.values import RESULT_LIMIT, ErrorInfo, ExecutionResult, Outcome

_NOTE_LIMIT: Final = 1024


def attempt_result(
    ended: CallResult, returned: ExecutionResult, no_retry: Collection[type[BaseException]] = ()
) -> ExecutionResult:
    """The result of an attempt: an interrupt that was requested in time decides, then an exception, then the value.

    `returned` is the result of a handler that returned None; the other results are copies of it with changes.
    """
    if ended.stopped_by is not None:
        return _stopped(ended.stopped_by, ended.raised, returned, no_retry)
    value = ended.value if ended.raised is None else ended.raised
    if value is None:
        return returned
    if isinstance(value, Snooze):
        return replace(returned, outcome=Outcome.SNOOZED, snooze_s=value.delay_s)
    if isinstance(value, Cancel):
        return replace(returned, outcome=Outcome.CANCELLED, cancel_reason=cut(value.reason, _NOTE_LIMIT))
    if isinstance(ended.raised, RateLimited | CircuitOpen):
        delay_s = min(max(ended.raised.retry_after, 0.0), MAX_DURATION_S)
        return replace(returned, outcome=Outcome.SNOOZED, snooze_s=delay_s, note=cut(str(ended.raised), _NOTE_LIMIT))
    if ended.raised is not None:
        return failed(ended.raised, returned, no_retry=isinstance(ended.raised, tuple(no_retry)))
    encoded, note = _encoded(ended.value)
    return replace(returned, result=encoded, note=note)


def failed(error: BaseException, returned: ExecutionResult, *, no_retry: bool) -> ExecutionResult:
    """The result of a run that raised."""
    return replace(returned, outcome=Outcome.FAILED, error=describe_error(error), no_retry=no_retry)


def _stopped(
    why: JobInterrupted,
    raised: BaseException | None,
    returned: ExecutionResult,
    no_retry: Collection[type[BaseException]],
) -> ExecutionResult:
    match why:
        case JobTimeout():
            where = traceback_of(raised) if raised is not None else ""
            error = ErrorInfo(type=name_of(type(why)), message=why.reason, traceback=where)
            is_listed = isinstance(why, tuple(no_retry))
            return replace(returned, outcome=Outcome.TIMEOUT, error=error, no_retry=is_listed)
        case JobCancelRequested():
            return replace(returned, outcome=Outcome.CANCELLED, cancel_reason=cut(why.reason, _NOTE_LIMIT))
        case _:
            return replace(returned, outcome=Outcome.INTERRUPTED, note=cut(why.reason, _NOTE_LIMIT))


def _encoded(value: object) -> tuple[bytes | None, str]:
    """The returned value as JSON, or the reason why it is not stored; the run has succeeded either way."""
    try:
        size = len(encode_value(value))
        if size > RESULT_LIMIT:
            return None, f"the result was not stored: it has {size:,} bytes, and the limit is {RESULT_LIMIT:,}"
        return bytes(encode_payload(value, what="it")), ""
    except Exception as problem:  # encoding the handler's value may run the handler's code
        return None, cut(f"the result was not stored: it is not JSON ({problem})", _NOTE_LIMIT)
