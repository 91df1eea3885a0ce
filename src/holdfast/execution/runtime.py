"""`JobRuntime`: runs exactly one attempt of one job and says what it came to. It never sleeps and never retries."""

import contextvars
import logging
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from inspect import isawaitable
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MappingProxyType
from typing import Any, Final, Self

import msgspec

from holdfast.clock import SYSTEM_CLOCK, Clock, from_us
from holdfast.codec import JobMessage
from holdfast.definition.definition import MAX_SPAN_S
from holdfast.errors import CommandForbidden, DefinitionError, HandlerError, PayloadRejected
from holdfast.execution.coroutines import Coroutines
from holdfast.execution.output import Output, Tee
from holdfast.execution.timeout import REPEAT_S, Ended, JobInterrupted, Timeout, handlers_kept
from holdfast.execution.verdict import Run, failed, judge
from holdfast.handlers import Handler, HandlerRegistry, JobContext
from holdfast.values import ExecutionResult, JobLease

AFTER_RUN_S: Final = 5.0
_NO_META: Final = MappingProxyType[str, Any]({})
_YET_TO_RUN: Final[tuple[type, ...]] = (CoroutineType, GeneratorType, AsyncGeneratorType)
_log = logging.getLogger("holdfast.execution")


class JobRuntime:
    """Runs attempts of the handlers in a registry.

    Entered as a context manager it keeps its signal handlers from job to job, which makes short jobs cheaper; without,
    it leaves no trace between two runs but the event loop of coroutine handlers, until `close()`. Plain handlers may
    run on several threads at once; coroutine handlers on one at a time, since they share the loop.
    """

    def __init__(self, registry: HandlerRegistry, *, clock: Clock = SYSTEM_CLOCK, tee: Tee | None = None) -> None:
        self._registry = registry
        self._clock = clock
        self._tee = tee
        self._coroutines = Coroutines()
        self._running: dict[str, Timeout] = {}
        self._kept = ExitStack()

    def run(
        self, message: JobMessage, lease: JobLease, *, is_cancelled: Callable[[], bool] | None = None
    ) -> ExecutionResult:
        """Run one attempt of the job. Whatever the handler does becomes the result; it is not raised.

        Raised are `UnknownHandler`, `HandlerForbidden` and `CommandForbidden`, before anything has run, and
        KeyboardInterrupt for a real Ctrl-C; one that the handler itself raises is a failed run.
        """
        handler = self._registry.resolve_for(message.job, message.queue)
        attempt = _Attempt(message, handler, self._clock, self._tee)
        try:
            context = attempt.context(lease, is_cancelled)
            handler.check(context.payload)
        except (HandlerError, CommandForbidden, KeyboardInterrupt):
            raise
        except BaseException as problem:
            return attempt.refused(problem)
        try:
            return self._run(attempt, context)
        except Exception as problem:
            # Nothing in there should raise; if it does, that is one failed run, not the end of the worker.
            _log.exception("the attempt of job '%s' could not be judged", message.identifier)
            return attempt.refused(problem)

    def interrupt(self, job_id: str, why: JobInterrupted) -> bool:
        """Stop the attempt of that job, from any thread; False if it is not running here (any more)."""
        timeout = self._running.get(job_id)
        return timeout is not None and timeout.interrupt(why)

    def close(self) -> None:
        """Close the event loop and give the signal handlers back."""
        self._coroutines.close()
        self._kept.close()

    def __enter__(self) -> Self:
        self._kept.enter_context(handlers_kept())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, attempt: "_Attempt", context: JobContext) -> ExecutionResult:
        handler, output, job_id = attempt.handler, attempt.output, attempt.message.identifier
        with output.redirected():
            self._running[job_id] = attempt.timeout
            try:
                # How the call ended stays nameless: an exception holds the frames it passed and, through them, this
                # one; with a name for it here, all of them would live until the next garbage collection.
                result = attempt.judged(self._call(handler, attempt.timeout, lambda: attempt.body(context)))
            finally:
                # Unless the job was delivered again meanwhile, and is running here a second time.
                if self._running.get(job_id) is attempt.timeout:
                    del self._running[job_id]
            if not attempt.prepared or type(handler).after_run is Handler.after_run:
                return result
            self._after_run(attempt, context, result)
        return msgspec.structs.replace(result, output=output.text())

    def _after_run(self, attempt: "_Attempt", context: JobContext, result: ExecutionResult) -> None:
        """Tell the handler; it has what is left of the job's time, and at least a little, but no say any more."""
        handler = attempt.handler
        limit_s = max(attempt.limit_s - result.duration_s, AFTER_RUN_S) if attempt.limit_s else 0.0
        timeout = _timeout_for(handler, limit_s)
        _log_failed_hook(self._call(handler, timeout, lambda: handler.after_run(context, result)), context, result)

    def _call(self, handler: Handler, timeout: Timeout, body: Callable[[], object]) -> Ended:
        """Call it on this thread, or run the coroutine it makes on our loop, in a context of its own."""
        if not handler.is_async:
            return timeout.run(lambda: contextvars.copy_context().run(body))
        try:
            return self._swept(timeout.run(lambda: self._coroutines.run(lambda: _awaited(body), timeout)))
        except KeyboardInterrupt:
            self._coroutines.discard()
            raise

    def _swept(self, ended: Ended) -> Ended:
        if ended.was_raised:
            self._coroutines.discard()
        return ended


class _Attempt:
    """One run while it is being made: what is known of it before, and whether `before_run` has returned."""

    def __init__(self, message: JobMessage, handler: Handler, clock: Clock, tee: Tee | None) -> None:
        self.message = message
        self.handler = handler
        self.limit_s = min(max(message.timeout, 0.0), MAX_SPAN_S)
        self.timeout = _timeout_for(handler, self.limit_s)
        self.output = Output(tee=tee)
        self.prepared = False
        self._clock = clock
        self._started_at = from_us(clock.now_us())
        self._started = clock.monotonic()

    def context(self, lease: JobLease, is_cancelled: Callable[[], bool] | None) -> JobContext:
        message = self.message
        try:
            payload = self.handler.decode(bytes(message.payload))
            meta = _meta_of(message)
        except Exception as problem:
            raise PayloadRejected(f"the payload does not fit handler '{message.job}': {problem}") from problem
        return JobContext(
            id=message.identifier,
            job=message.job,
            queue=message.queue,
            attempt=lease.attempts + 1,
            payload=payload,
            name=message.name,
            meta=meta,
            tags=message.tags,
            deadline=self._started_at + timedelta(seconds=self.limit_s) if self.limit_s else None,
            trace_id=message.trace_id,
            stop_asked=_any_of(self.timeout.stop_asked, is_cancelled),
            output=self.output.write,
            hold=self.timeout.held_back,
        )

    def body(self, context: JobContext) -> object:
        """The guarded part. Of a coroutine handler it is the coroutine, made but not begun."""
        if self.handler.is_async:
            return self._body_async(context)
        self.handler.before_run(context)
        self.prepared = True
        return _finished(self.handler.handle(context))

    async def _body_async(self, context: JobContext) -> object:
        await _awaited(lambda: self.handler.before_run(context))
        self.prepared = True
        return _finished(await _awaited(lambda: self.handler.handle(context)))

    def judged(self, ended: Ended) -> ExecutionResult:
        return judge(ended, self._run_until_now(), self.handler.no_retry)

    def refused(self, problem: BaseException) -> ExecutionResult:
        """The payload was not fit to run. It will not get better, so a refusal of the payload is not retried."""
        return failed(problem, self._run_until_now(), no_retry=isinstance(problem, DefinitionError))

    def _run_until_now(self) -> Run:
        # By the monotonic clock: the wall clock may be set back meanwhile, and no run takes less than no time.
        taken = timedelta(seconds=self._clock.monotonic() - self._started)
        return Run(
            handler=self.message.job,
            started_at=self._started_at,
            ended_at=self._started_at + taken,
            output=self.output.text(),
        )


def _timeout_for(handler: Handler, limit_s: float) -> Timeout:
    """A coroutine is cancelled by its loop first; the signal comes only if that did not help."""
    return Timeout(limit_s, grace_s=REPEAT_S if handler.is_async else 0.0)


def _log_failed_hook(ended: Ended, context: JobContext, result: ExecutionResult) -> None:
    problem = ended.raised or ended.stopped_by
    if problem is not None:
        _log.error(
            "after_run of handler '%s' failed for job '%s'; its verdict (%s) stands",
            context.job,
            context.id,
            result.outcome,
            exc_info=problem,
        )


async def _awaited(body: Callable[[], object]) -> object:
    value = body()
    return await value if isawaitable(value) else value


def _finished(value: object) -> object:
    """The value, unless it is something that has yet to run: taken as a result, its work would never be done."""
    if type(value) in _YET_TO_RUN:
        close = getattr(value, "close", None)
        if close is not None:
            close()
        raise TypeError(
            f"the handler returned a {type(value).__name__}, which nobody runs: declare the handler with async def, "
            "or return the finished value"
        )
    return value


def _meta_of(message: JobMessage) -> MappingProxyType[str, Any]:
    raw = bytes(message.meta)
    return _NO_META if raw == b"{}" else MappingProxyType(msgspec.json.decode(raw, type=dict[str, Any]))


def _any_of(ours: Callable[[], bool], theirs: Callable[[], bool] | None) -> Callable[[], bool]:
    return ours if theirs is None else lambda: ours() or theirs()
