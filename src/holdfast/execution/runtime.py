"""`JobRuntime`: runs exactly one attempt of one job and returns its result. It never sleeps and never retries."""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from contextvars import Token, copy_context
from datetime import datetime
from functools import partial
from inspect import isawaitable
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MappingProxyType
from typing import Any, Final, Protocol, Self, TypeAlias

import msgspec

from holdfast.clock import MICROSECONDS, SYSTEM_CLOCK, Clock, duration_us, from_us
from holdfast.codec import JobMessage
from holdfast.definition.definition import MAX_DURATION_S
from holdfast.errors import CommandForbidden, DefinitionError, HandlerError, NotSupported, PayloadRejected
from holdfast.execution.coroutines import Coroutines, run_here
from holdfast.execution.logs import listen, logs_captured
from holdfast.execution.outcome import attempt_result, failed
from holdfast.execution.output import Output, Tee, outside_the_job, streams_installed
from holdfast.execution.timeout import REPEAT_S, CallResult, JobInterrupted, Timeout, handlers_installed
from holdfast.handlers import Handler, HandlerRegistry, Host, JobContext
from holdfast.handlers.results import ParentResults, ReadJob
from holdfast.middleware import Middleware, Running, around_run
from holdfast.queues.contract import EngineTransaction
from holdfast.state.ownership import done_marks, slot_names_of
from holdfast.state.schedules import RunResult, ledger_result
from holdfast.values import ExecutionResult, JobHistory, JobState, Outcome, Progress

OnProgress: TypeAlias = Callable[[str, Progress], None]
OnOutput: TypeAlias = Callable[[str, Output], None]
OnEnded: TypeAlias = Callable[[str, CallResult], None]
Transactions: TypeAlias = Callable[[str, int], EngineTransaction]
AFTER_RUN_S: Final = 5.0
_SUCCEEDED: Final = Outcome.SUCCEEDED
_NO_META: Final = MappingProxyType[str, Any]({})
_YET_TO_RUN: Final[tuple[type, ...]] = (CoroutineType, GeneratorType, AsyncGeneratorType)
_log = logging.getLogger("holdfast.execution")


class Claimed(Protocol):
    """The part of a lease that a run needs: the delivery number, the number of failed runs, and the fence number."""

    @property
    def attempts(self) -> int: ...

    @property
    def delivery(self) -> int: ...

    @property
    def fence(self) -> int: ...


class JobRuntime:
    """Runs attempts of the handlers in a registry.

    Entered as a context manager, it leaves its signal handlers, its streams and its log handler in place from job to
    job, which makes short jobs cheaper. Otherwise only the event loop of coroutine handlers stays between runs, until
    `close()`. Plain handlers may `run` on several threads at once; coroutine handlers on one at a time, since they
    share the loop. `run_async` runs any number of coroutine handlers at once, on the caller's loop.

    `tee` receives what jobs print, as it is printed. `on_output` is called when the output of a job has grown, and
    `on_progress` when a job reports progress; if they fail, the job continues. `transactions` opens the transaction
    for `context.transaction()`, which is completed after a successful run. `read` reads the parents of a job, for
    `context.results`. The hooks of `middleware` run within the
    job's timeout. `on_ended`, for tests, receives the value or the exception of each run.
    """

    def __init__(
        self,
        registry: HandlerRegistry,
        *,
        clock: Clock = SYSTEM_CLOCK,
        tee: Tee | None = None,
        on_output: OnOutput | None = None,
        on_progress: OnProgress | None = None,
        transactions: Transactions | None = None,
        read: ReadJob | None = None,
        middleware: Iterable[Middleware] = (),
        on_ended: OnEnded | None = None,
    ) -> None:
        self.registry = registry
        self.hooks = around_run(middleware)
        self.clock = clock
        self.tee = tee
        self.on_output = on_output
        self.on_progress = on_progress
        self.transactions = transactions
        self.read = read
        self.on_ended = on_ended
        self.logs_starts = _log.isEnabledFor(logging.DEBUG)
        self.running: dict[str, Timeout] = {}
        self._coroutines = Coroutines()
        self._installed = ExitStack()
        self._is_entered = False

    def run(self, message: JobMessage, lease: Claimed) -> ExecutionResult:
        """Run one attempt of the job. An exception of the handler becomes part of the result; it is not raised.

        Raises `UnknownHandler`, `HandlerForbidden` and `CommandForbidden` before anything has run, and
        KeyboardInterrupt on a real Ctrl-C; a KeyboardInterrupt raised by the handler itself is a failed run.
        """
        attempt = _Attempt(self, message, lease)
        refusal = attempt.prepare()
        if refusal is not None:
            return refusal
        try:
            if self._is_entered:
                listen()
                return self._run(attempt)
            with logs_captured():
                return self._run(attempt)
        except Exception as problem:
            return attempt.unknown_outcome(problem)

    async def run_async(self, message: JobMessage, lease: Claimed) -> ExecutionResult:
        """Run a coroutine handler as a task of the caller's loop, next to any number of others.

        A task that exceeds its timeout or is interrupted is cancelled, and again every second until it stops. If the
        caller itself is cancelled, so is the handler; then there is no result, and CancelledError is raised.
        """
        attempt = _Attempt(self, message, lease)
        if not attempt.handler.is_async:
            raise TypeError(
                f"handler '{message.job}' is not a coroutine function and would block the event loop; use run()"
            )
        refusal = attempt.prepare()
        if refusal is not None:
            return refusal
        try:
            with logs_captured():
                return await self._run_async(attempt)
        except Exception as problem:
            return attempt.unknown_outcome(problem)

    def interrupt(self, job_id: str, why: JobInterrupted) -> bool:
        """Stop the attempt of that job, from any thread. Returns False if it is not running here."""
        timeout = self.running.get(job_id)
        return timeout is not None and timeout.interrupt(why)

    def close(self) -> None:
        """Close the event loop and restore the signal handlers, the streams and the log handler."""
        self._coroutines.close()
        self._is_entered = False
        self._installed.close()

    def __enter__(self) -> Self:
        self._installed.enter_context(handlers_installed())
        self._installed.enter_context(streams_installed())
        self._installed.enter_context(logs_captured())
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Neither of these stores a `CallResult` in a variable: its exception refers to this frame, and the frame would then
    # refer to the exception. Both would live until the next garbage collection.
    def _run(self, attempt: "_Attempt") -> ExecutionResult:
        handler = attempt.handler
        with attempt:
            guarded = attempt.hooked if self.hooks else attempt.body
            result = attempt.result(self._call(handler, attempt.timeout, guarded))
            if attempt.has_transaction:
                result = attempt.committed(result)
            if not attempt.wants_after_run:
                return result
            body = partial(handler.after_run, attempt.context, result)
            _log_failed_hook(self._call(handler, attempt.timeout_after(result), body), attempt.context, result)
        return attempt.with_all_output(result)

    async def _run_async(self, attempt: "_Attempt") -> ExecutionResult:
        handler = attempt.handler
        with attempt:
            guarded = attempt.hooked if self.hooks else attempt.body
            result = attempt.result(await run_here(partial(_awaited, guarded), attempt.timeout))
            if attempt.has_transaction:
                result = attempt.committed(result)
            if not attempt.wants_after_run:
                return result
            body = partial(handler.after_run, attempt.context, result)
            ended = await run_here(partial(_awaited, body), attempt.timeout_after(result))
            _log_failed_hook(ended, attempt.context, result)
        return attempt.with_all_output(result)

    def _call(self, handler: Handler, timeout: Timeout, body: Callable[[], object]) -> CallResult:
        """Call the body on this thread, or run its coroutine on our loop, in its own context."""
        if not handler.is_async:
            return timeout.run(copy_context().run, body)
        try:
            return self._swept(timeout.run(self._coroutines.run, partial(_awaited, body), timeout))
        except KeyboardInterrupt:
            self._coroutines.discard()
            raise

    def _swept(self, ended: CallResult) -> CallResult:
        if ended.was_raised:
            self._coroutines.discard()
        return ended


class _Attempt:
    """One attempt while it runs. Inside the block, its output is captured and its timeout is found by the job's id."""

    context: JobContext
    is_prepared = False
    _caught: Token[Any]

    def __init__(self, runtime: JobRuntime, message: JobMessage, lease: Claimed) -> None:
        self.message = message
        self._lease = lease
        self.handler = handler = runtime.registry.resolve_for(message.job, message.queue)
        limit_s = message.timeout
        self.limit_s = limit_s = limit_s if 0.0 < limit_s < MAX_DURATION_S else min(max(limit_s, 0.0), MAX_DURATION_S)
        self.timeout = timeout = _timeout_for(handler, limit_s)
        self.output = output = Output(tee=runtime.tee)
        output.about = (message, lease)
        self._runtime = runtime
        self._started_us = started_us = runtime.clock.now_us()
        self._host = _Host(runtime, timeout, output, message, lease.delivery, lease.fence, started_us)
        self._started = runtime.clock.monotonic()

    def prepare(self) -> ExecutionResult | None:
        """Create the context. Returns the result of a failed run if the payload is rejected."""
        try:
            context = self._context()
            self.handler.check(context.payload)
            self.context = context
            if self._runtime.logs_starts:
                _log.debug("job %s (%s) started, attempt %d", context.id, self.message.job, context.attempt)
        except (HandlerError, CommandForbidden, KeyboardInterrupt):
            raise
        except BaseException as problem:
            return self._refused(problem)
        return None

    def _context(self) -> JobContext:
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
            attempt=self._lease.attempts + 1,
            payload=payload,
            name=message.name,
            meta=meta,
            tags=message.tags,
            trace_id=message.trace_id,
            schedule=message.schedule,
            scheduled_for=message.scheduled_for,
            host=self._host,
        )

    def __enter__(self) -> None:
        if self._runtime.on_output is not None:
            self.output.tee = self._pass_on
        self._caught = self.output.catch()
        self._runtime.running[self.message.identifier] = self.timeout

    def __exit__(self, *_: object) -> None:
        # Unless the job was delivered again in the meantime, and is running here a second time.
        running = self._runtime.running
        if running.get(self.message.identifier) is self.timeout:
            del running[self.message.identifier]
        if self.has_transaction:
            self._host.roll_back()
        self.output.let_go(self._caught)
        self.output.tee = None  # it refers to us: the cycle would live until the next garbage collection

    def _pass_on(self, text: str) -> None:
        """Pass on what is printed at once: if the process dies, it is all that is known about the run."""
        runtime = self._runtime
        if runtime.tee is not None:
            runtime.tee(text)
        if runtime.on_output is not None:
            with self.timeout.held_back():  # an interrupt in the middle of a frame would corrupt the connection
                runtime.on_output(self.message.identifier, self.output)

    def body(self) -> object:
        """The part that the timeout guards; for a coroutine handler, a coroutine that is not started yet."""
        handler, context = self.handler, self.context
        if handler.is_async:
            return self._body_async()
        handler.before_run(context)
        self.is_prepared = True
        value = handler.handle(context)
        return value if value is None else _finished(value)

    def hooked(self) -> object:
        """The guarded part, with the hooks of the middleware around it."""
        if self.handler.is_async:
            return self._hooked_async()
        with Running(self._runtime.hooks, self.context) as running:
            running.value = value = self.body()
        return value

    async def _hooked_async(self) -> object:
        with Running(self._runtime.hooks, self.context) as running:
            running.value = value = await self._body_async()
        return value

    async def _body_async(self) -> object:
        await _awaited(partial(self.handler.before_run, self.context))
        self.is_prepared = True
        return _finished(await _awaited(partial(self.handler.handle, self.context)))

    @property
    def wants_after_run(self) -> bool:
        return type(self.handler).after_run is not Handler.after_run and self.is_prepared

    def timeout_after(self, result: ExecutionResult) -> Timeout:
        """The timeout of `after_run`: the rest of the job's timeout, but at least a few seconds."""
        limit_s = max(self.limit_s - result.duration_s, AFTER_RUN_S) if self.limit_s else 0.0
        return _timeout_for(self.handler, limit_s)

    def result(self, ended: CallResult) -> ExecutionResult:
        if self._runtime.on_ended is not None:
            self._runtime.on_ended(self.message.identifier, ended)
        return attempt_result(ended, self._returned(), self.handler.no_retry)

    @property
    def has_transaction(self) -> bool:
        """Whether the handler has opened a transaction that is still open."""
        return self._host.opened is not None

    def committed(self, result: ExecutionResult) -> ExecutionResult:
        """Complete the transaction of a successful run. Returns the result; a failed commit is a failed run."""
        try:
            if result.success:
                self._host.complete(result)
        except Exception as problem:
            return failed(problem, msgspec.structs.replace(result, result=None, note=""), no_retry=False)
        return result

    def with_all_output(self, result: ExecutionResult) -> ExecutionResult:
        """The result with the output that `after_run` has added."""
        return msgspec.structs.replace(result, output=self.output.text())

    def unknown_outcome(self, problem: Exception) -> ExecutionResult:
        """The result if the runtime itself raised, which it should not: a failed run, not the end of the worker."""
        _log.exception("could not determine the outcome of job '%s'", self.message.identifier)
        return self._refused(problem)

    def _refused(self, problem: BaseException) -> ExecutionResult:
        if self._runtime.on_ended is not None:
            self._runtime.on_ended(self.message.identifier, CallResult(raised=problem))
        # A retry would have the same payload, so a rejected payload is not retried.
        return failed(problem, self._returned(), no_retry=isinstance(problem, DefinitionError))

    def _returned(self) -> ExecutionResult:
        """The result of a handler that returned None now."""
        # By the monotonic clock: the wall clock may be set back during the run.
        taken_us = round((self._runtime.clock.monotonic() - self._started) * MICROSECONDS)
        return ExecutionResult(
            handler=self.message.job,
            outcome=_SUCCEEDED,
            started_us=self._started_us,
            ended_us=self._started_us + taken_us,
            output=self.output.text(),
        )


class _Host(Host, msgspec.Struct):
    """The interface of an attempt for its context. Every job creates one, so it is a cheap struct."""

    runtime: JobRuntime
    timeout: Timeout
    output: Output
    message: JobMessage
    delivered: int
    held_fence: int
    started_us: int
    opened: EngineTransaction | None = None
    has_failed: bool = False

    @property
    def delivery(self) -> int:
        return self.delivered

    @property
    def fence(self) -> int:
        return self.held_fence

    @property
    def deadline(self) -> datetime | None:
        limit_s = self.timeout.limit_s
        return from_us(self.started_us + duration_us(limit_s)) if limit_s else None

    def stop_asked(self) -> bool:
        return self.timeout.stop_asked()

    def stop_reason(self) -> BaseException | None:
        return self.timeout.reason()

    def write(self, text: str) -> None:
        self.output.write(text)

    def held_back(self) -> AbstractContextManager[None]:
        return self.timeout.held_back()

    @property
    def results(self) -> ParentResults:
        return ParentResults(self.message.after, self._read) if self.message.after else super().results

    def _read(self, job_id: str) -> JobHistory | None:
        if self.runtime.read is None:
            raise NotSupported("context.results is available only when a worker runs the job")
        with self.timeout.held_back():  # an interrupt in the middle could break the engine's connection
            return self.runtime.read(job_id)

    def transaction(self) -> Any:
        if self.opened is None:
            if self.runtime.transactions is None:
                return super().transaction()
            with self.timeout.held_back():  # an interrupt in the middle would leave the transaction open
                self.opened = self.runtime.transactions(self.message.identifier, self.delivered)
        return self.opened.connection

    def complete(self, ended: ExecutionResult) -> None:
        """Commit the transaction together with the job's completion, the slots it leaves, its idempotency mark and the
        result in the ledger of its schedule.
        """
        opened, self.opened = self.opened, None
        if opened is not None:
            record = ended.record()
            result = RunResult(state=JobState.COMPLETED, finished_us=record.ended_us)
            writes = (*done_marks(self.message, record), *ledger_result(self.message, result))
            opened.complete(record, leaves=slot_names_of(self.message), writes=writes)

    def roll_back(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.roll_back()

    def report(self, progress: Progress) -> None:
        if self.runtime.on_progress is None:
            return
        # Without interrupts: one in the middle of a frame would corrupt the connection to the worker.
        with self.timeout.held_back(), outside_the_job():
            try:
                self.runtime.on_progress(self.message.identifier, progress)
            except Exception:
                if not self.has_failed:
                    _log.warning(
                        "progress of job '%s' could not be reported; the job continues",
                        self.message.identifier,
                        exc_info=True,
                    )
                self.has_failed = True


def _timeout_for(handler: Handler, limit_s: float) -> Timeout:
    """A coroutine is cancelled by its loop first; the signal follows only if that did not help."""
    return Timeout(limit_s, grace_s=REPEAT_S, repeat_s=REPEAT_S) if handler.is_async else Timeout(limit_s)


def _log_failed_hook(ended: CallResult, context: JobContext, result: ExecutionResult) -> None:
    problem = ended.raised or ended.stopped_by
    if problem is not None:
        _log.error(
            "after_run of handler '%s' failed for job '%s'; its outcome is still %s",
            context.job,
            context.id,
            result.outcome,
            exc_info=problem,
        )


async def _awaited(body: Callable[[], object]) -> object:
    value = body()
    return await value if isawaitable(value) else value


def _finished(value: object) -> object:
    """The value, unless it is a coroutine or generator: as a result, its work would never be done."""
    if type(value) in _YET_TO_RUN:
        close = getattr(value, "close", None)
        if close is not None:
            close()
        raise TypeError(
            f"the handler returned a {type(value).__name__}, which would never run; declare the handler with "
            "async def, or return a plain value"
        )
    return value


def _meta_of(message: JobMessage) -> MappingProxyType[str, Any]:
    raw = bytes(message.meta)
    return _NO_META if raw == b"{}" else MappingProxyType(msgspec.json.decode(raw, type=dict[str, Any]))
