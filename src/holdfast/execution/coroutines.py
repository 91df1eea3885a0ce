"""Runs coroutine handlers on one event loop, which is reused from job to job so that connections on it stay usable."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

from holdfast.execution.timeout import CallResult, Timeout

_DISCARD_S: Final = 1.0
_CLOSE_S: Final = 5.0
_log = logging.getLogger("holdfast.execution")


class Coroutines:
    """An event loop that runs only while a job does. Tasks that a job leaves behind continue during the next job.

    A loop that was interrupted by an exception is discarded, and the next job gets a new one.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, body: Callable[[], Awaitable[object]], timeout: Timeout) -> object:
        """Run the coroutine and return its value. When its timeout expires or is interrupted, it is cancelled first."""
        context = contextvars.copy_context()
        if _is_inside_a_loop():
            return _run_on_thread(body, timeout, context)
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_bounded(body, timeout), context=context)

    def discard(self) -> None:
        """Cancel the remaining tasks and discard the loop, within a second: it is already in an unknown state."""
        self._close(_DISCARD_S)

    def close(self) -> None:
        """Cancel the remaining tasks and close the loop, without waiting long for a task that refuses to end."""
        self._close(_CLOSE_S)

    def _close(self, limit_s: float) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        ended = Timeout(limit_s).run(runner.close)
        if ended.raised is not None:
            # As text: a log record with the exception would keep everything on the loop alive.
            _log.warning("abandoned an event loop that could not be closed: %s", repr(ended.raised))


async def run_here(body: Callable[[], Awaitable[object]], guard: Timeout) -> CallResult:
    """Run the coroutine as a task of the caller's loop, in its own context, next to any number of others.

    If the caller is cancelled, so is the task; once the task has ended, the cancellation of the caller continues.
    """
    caller = asyncio.current_task()
    asked = caller.cancelling() if caller is not None else 0
    # Not as the result of the task: the loop would keep it, and everything an exception refers to, alive for a while.
    ended: list[tuple[object, BaseException | None]] = []
    task = asyncio.create_task(_caught(body, guard, ended))
    guard.begin()
    canceller = _Canceller(guard, task)
    raised: BaseException | None = None
    value: object = None
    try:
        await task
        value, raised = ended.pop()
    except asyncio.CancelledError as problem:  # the task was cancelled before its first step
        raised = problem
    finally:
        canceller.stop()
    try:
        if caller is not None and caller.cancelling() > asked:
            guard.end()
            raise asyncio.CancelledError
        return guard.end(value, raised)
    finally:
        del raised  # its traceback refers to this frame


async def _caught(
    body: Callable[[], Awaitable[object]], guard: Timeout, ended: list[tuple[object, BaseException | None]]
) -> None:
    try:
        ended.append((await body() if guard.stopped_by is None else None, None))
    except BaseException as problem:  # a SystemExit that escaped its task would stop the loop and all other tasks
        ended.append((None, problem))


async def _bounded(body: Callable[[], Awaitable[object]], guard: Timeout) -> object:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - for the type checkers: a runner makes one
    guard.thread = threading.get_ident()
    canceller = _Canceller(guard, task)
    try:
        return await body()
    finally:
        canceller.stop()


class _Canceller:
    """Cancels a task when its timeout expires or is interrupted. Without a signal to follow, it repeats that."""

    def __init__(self, guard: Timeout, task: "asyncio.Task[Any]") -> None:
        self._guard = guard
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._timer = self._loop.call_later(guard.limit_s, self._expire) if guard.limit_s > 0 else None
        guard.set_gentle_stop(self._ask)

    def stop(self) -> None:
        self._is_over = True
        self._guard.set_gentle_stop(None)
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _expire(self) -> None:
        self._guard.expire()  # the loop's clock may be a tick ahead of ours
        self._cancel()

    def _cancel(self) -> None:
        if self._is_over:
            return
        if not self._guard.defer():
            self._task.cancel()
        if not self._guard.is_on_main:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(self._guard.repeat_s, self._cancel)


def _is_inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_on_thread(body: Callable[[], Awaitable[object]], timeout: Timeout, context: contextvars.Context) -> object:
    """Run the coroutine on a new thread and wait, for a job that is run inline by code inside an event loop."""
    ended: list[object] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            ended.append(context.run(asyncio.run, _bounded(body, timeout)))
        except BaseException as problem:
            raised.append(problem)

    thread = threading.Thread(target=work, name="holdfast-coroutine", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised.pop()
    return ended.pop()
