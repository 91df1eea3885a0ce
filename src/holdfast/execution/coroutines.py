"""Running coroutine handlers: one event loop, kept from job to job so that what lives on it (connections) does too."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.execution.timeout import Timeout

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
            _log.warning("an event loop was given up, not closed: %s", repr(ended.raised))


async def _bounded(body: Callable[[], Awaitable[object]], guard: Timeout) -> object:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        cancel = task.cancel
        guard.gently = lambda: loop.call_soon_threadsafe(cancel)
    limit = asyncio.timeout(guard.limit_s or None)
    try:
        async with limit:
            return await body()
    finally:
        guard.gently = None
        if limit.expired():  # by the loop's clock, which may be a tick ahead of ours
            guard.expire()


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
