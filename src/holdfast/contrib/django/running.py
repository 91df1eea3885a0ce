"""Runs a task: passes its arguments and context, sends Django's signals, and closes connections as after a request."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries
from django.utils import timezone

from holdfast.contrib.django.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from holdfast.contrib.django.results import Call, enqueued_of, result_of_run
from holdfast.errors import CircuitOpen
from holdfast.execution.failure import traceback_of
from holdfast.execution.timeout import JobCancelRequested, JobInterrupted, JobTimeout
from holdfast.handlers import Cancel, Handler, JobContext, Snooze


class ResultNotJson(TypeError):
    """The task returned a value that is not JSON. It has run, so it is not run again."""


class _Run:
    """One attempt and its `TaskResult`, for plain functions and coroutines."""

    def __init__(self, task: "Task[..., Any]", alias: str, context: JobContext) -> None:
        self._context = context
        self.result: TaskResult[Any] = result_of_run(task, alias, context)
        call: Call = context.payload
        self.args = [TaskContext(task_result=self.result), *call.args] if task.takes_context else call.args
        self.kwargs = call.kwargs

    def returned(self, value: object) -> object:
        """The value to store. The result is final now, unless the task runs again."""
        stopped = self._context.host.stop_reason()
        if stopped is not None or isinstance(value, Snooze | Cancel):
            self.ended(stopped if stopped is not None else cast("Snooze | Cancel", value))
            return value
        try:
            value = normalize_json(value)
        except (TypeError, ValueError) as problem:
            raise ResultNotJson(
                f"the task has run, but its return value cannot be stored as JSON: {problem}"
            ) from problem
        self._finish(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return value

    def ended(self, error: BaseException) -> None:
        """Record the error in the result, if this was the last run."""
        # A coroutine is stopped by a cancellation, which does not contain the reason.
        error = self._context.host.stop_reason() or error
        if self._ends(error):
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            self.result.errors.append(TaskError(exception_class_path=path, traceback=traceback_of(error)))
            self._finish(TaskResultStatus.FAILED)

    def _ends(self, error: BaseException) -> bool:
        match error:
            case Cancel() | JobCancelRequested() | ResultNotJson():
                return True
            case Snooze() | CircuitOpen():
                return False
            case JobInterrupted() if not isinstance(error, JobTimeout):
                return False
            case _:
                enqueued = enqueued_of(self._context.meta)
                return enqueued is not None and self._context.attempt > enqueued.max_retries

    def _finish(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "finished_at", timezone.now())
        object.__setattr__(self.result, "status", status)


class TaskHandler(Handler):
    """Runs a task that is a plain function."""

    payload_type = Call
    no_retry = (ResultNotJson,)

    def __init__(self, task: "Task[..., Any]", alias: str, sender: type) -> None:
        self.task = task
        self._alias = alias
        self._sender = sender

    def handle(self, context: JobContext) -> object:
        with connections_as_in_a_request():
            run = _Run(self.task, self._alias, context)
            task_started.send(self._sender, task_result=run.result)
            try:
                return run.returned(self.task.func(*run.args, **run.kwargs))
            except BaseException as error:
                run.ended(error)
                raise
            finally:
                # Robust: the task has run, even if a receiver fails.
                if run.result.is_finished:
                    task_finished.send_robust(self._sender, task_result=run.result)


class AsyncTaskHandler(TaskHandler):
    """Runs a task that is a coroutine function. Signals and connections use the thread of Django's sync code."""

    async def handle(self, context: JobContext) -> object:
        renew = sync_to_async(_renew_connections)
        await renew()
        try:
            run = _Run(self.task, self._alias, context)
            await task_started.asend(self._sender, task_result=run.result)
            function = cast("Callable[..., Awaitable[object]]", self.task.func)
            try:
                return run.returned(await function(*run.args, **run.kwargs))
            except BaseException as error:
                run.ended(error)
                raise
            finally:
                if run.result.is_finished:
                    await task_finished.asend_robust(self._sender, task_result=run.result)
        finally:
            await renew()


def handler_of(task: "Task[..., Any]", alias: str, sender: type) -> Handler:
    """The handler that runs a task."""
    kind = AsyncTaskHandler if iscoroutinefunction(task.func) else TaskHandler
    return kind(task, alias, sender)


@contextmanager
def connections_as_in_a_request() -> Generator[None]:
    """Close connections that are broken or older than CONN_MAX_AGE, before and after the block, as around a request."""
    _renew_connections()
    try:
        yield
    finally:
        _renew_connections()


def _renew_connections() -> None:
    reset_queries()
    close_old_connections()
