"""Running coroutine handlers: one event loop, kept from job to job so that what lives on it (connections) does too."""

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
    """An event loop that runs only while a job does. Tasks a job leaves behind stay on it and go on with the next.

    A loop that an interrupt has torn out of its middle is thrown away; the next job gets a new one.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, body: Callable[[], Awaitable[object]], timeout: Timeout) -> object:
        """The value of the coroutine; when its time is up, or `timeout` is interrupted, it is cancelled first."""
        context = contextvars.copy_context()
        if _is_inside_a_loop():
            return _run_beside(body, timeout, context)
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_bounded(body, timeout), context=context)

    def discard(self) -> None:
        """Cancel what is left on the loop and drop it, within a second: something is wrong with it already."""
        self._close(_DISCARD_S)

    def close(self) -> None:
        """Cancel what is left on the loop and close it; a task that refuses to end does not keep us."""
        self._close(_CLOSE_S)

    def _close(self, limit_s: float) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        ended = Timeout(limit_s).run(runner.close)
        if ended.raised is not None:
            # As text: a log record that holds the exception would hold everything that was on the loop.
            _log.warning("abandoned an event loop that could not be closed: %s", repr(ended.raised))


async def run_here(body: Callable[[], Awaitable[object]], guard: Timeout) -> CallResult:
    """Run it as a task of the caller's loop, in a context of its own, beside any number of others.

    It is the caller's too: cancelled, the caller takes it along, and is cancelled itself when it has ended.
    """
    caller = asyncio.current_task()
    asked = caller.cancelling() if caller is not None else 0
    # Not as the result of the task: the loop still holds that while the caller goes on, and all the exception held.
    ended: list[tuple[object, BaseException | None]] = []
    task = asyncio.create_task(_caught(body, guard, ended))
    guard.begin()
    canceller = _Canceller(guard, task)
    raised: BaseException | None = None
    value: object = None
    try:
        await task
        value, raised = ended.pop()
    except asyncio.CancelledError as problem:  # before its first step
        raised = problem
    finally:
        canceller.stop()
    try:
        if caller is not None and caller.cancelling() > asked:
            guard.end()
            raise asyncio.CancelledError
        return guard.end(value, raised)
    finally:
        del raised  # its traceback holds this frame


async def _caught(
    body: Callable[[], Awaitable[object]], guard: Timeout, ended: list[tuple[object, BaseException | None]]
) -> None:
    try:
        ended.append((await body() if guard.stopped_by is None else None, None))
    except BaseException as problem:  # a SystemExit that left its task would stop the loop, and all others with it
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
    """Cancels a task when its time is up or somebody asks; again and again, unless a signal will follow."""

    def __init__(self, guard: Timeout, task: "asyncio.Task[Any]") -> None:
        self._guard = guard
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._timer = self._loop.call_later(guard.limit_s, self._expire) if guard.limit_s > 0 else None
        guard.soften(self._ask)

    def stop(self) -> None:
        self._is_over = True
        self._guard.soften(None)
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _expire(self) -> None:
        self._guard.expire()  # by the loop's clock, which may be a tick ahead of ours
        self._cancel()

    def _cancel(self) -> None:
        if self._is_over:
            return
        if not self._guard.put_off():
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


def _run_beside(body: Callable[[], Awaitable[object]], timeout: Timeout, context: contextvars.Context) -> object:
    """Run it on a thread of its own: a job run inline by a program that is itself inside a loop, which must wait."""
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
