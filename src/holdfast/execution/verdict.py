"""What an attempt came to, judged from how its call ended. Pure: the same ending is always the same verdict."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.codec import encode_payload
from holdfast.execution.failure import describe_error, name_of, traceback_of
from holdfast.execution.output import cut
from holdfast.execution.timeout import Ended, JobCancelRequested, JobInterrupted, JobTimeout
from holdfast.handlers import Cancel, Snooze
from holdfast.values import RESULT_LIMIT, ErrorInfo, ExecutionResult, Outcome

_NOTE_LIMIT: Final = 1024


class Run(Struct, frozen=True, kw_only=True):
    """What every verdict on a run repeats."""

    handler: str
    started_at: datetime
    ended_at: datetime
    output: str = ""

    def result(self, outcome: Outcome, **rest: Any) -> ExecutionResult:
        return ExecutionResult(
            handler=self.handler,
            outcome=outcome,
            started_at=self.started_at,
            ended_at=self.ended_at,
            output=self.output,
            **rest,
        )


def judge(ended: Ended, run: Run, no_retry: Collection[type[BaseException]] = ()) -> ExecutionResult:
    """The result. An interrupt asked for in time decides; then what was raised; then what was returned."""
    if ended.stopped_by is not None:
        return _stopped(ended.stopped_by, ended.raised, run, no_retry)
    said = ended.value if ended.raised is None else ended.raised
    if isinstance(said, Snooze):
        return run.result(Outcome.SNOOZED, snooze_s=said.delay_s)
    if isinstance(said, Cancel):
        return run.result(Outcome.CANCELLED, cancel_reason=cut(said.reason, _NOTE_LIMIT))
    if ended.raised is not None:
        return failed(ended.raised, run, no_retry=isinstance(ended.raised, tuple(no_retry)))
    kept, note = _kept(ended.value)
    return run.result(Outcome.SUCCEEDED, result=kept, note=note)


def failed(error: BaseException, run: Run, *, no_retry: bool) -> ExecutionResult:
    """The result of a run that raised."""
    return run.result(Outcome.FAILED, error=describe_error(error), no_retry=no_retry)


def _stopped(
    why: JobInterrupted, raised: BaseException | None, run: Run, no_retry: Collection[type[BaseException]]
) -> ExecutionResult:
    match why:
        case JobTimeout():
            where = traceback_of(raised) if raised is not None else ""
            error = ErrorInfo(type=name_of(type(why)), message=why.reason, traceback=where)
            return run.result(Outcome.TIMEOUT, error=error, no_retry=isinstance(why, tuple(no_retry)))
        case JobCancelRequested():
            return run.result(Outcome.CANCELLED, cancel_reason=cut(why.reason, _NOTE_LIMIT))
        case _:
            return run.result(Outcome.INTERRUPTED, note=cut(why.reason, _NOTE_LIMIT))


def _kept(value: object) -> tuple[bytes | None, str]:
    """The returned value as JSON, or why it is not kept: the run has succeeded either way."""
    if value is None:
        return None, ""
    try:
        size = len(msgspec.json.encode(value))
        if size > RESULT_LIMIT:
            return None, f"result not kept: {size:,} bytes, limit {RESULT_LIMIT:,}"
        return bytes(encode_payload(value, what="it")), ""
    except Exception as problem:  # the value is the handler's, and so is the code that may run while it is written
        return None, cut(f"result not kept: not JSON ({problem})", _NOTE_LIMIT)
