"""Calls of the MySQL engine that pause before one of their statements."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from pymysql.cursors import Cursor

from ..faults.processes import until
from .test_mysql import Aside, waiting_for_locks

TO_THE_END = 1000


class Stepping(Aside):
    """A call in another thread, which pauses before one of its statements."""

    def __init__(self, call: Callable[[], object], *, pause_before: int) -> None:
        self._left = pause_before
        self.is_paused = threading.Event()
        self._goes_on = threading.Event()
        super().__init__(call)

    def step(self) -> None:
        if self._left == 0:
            self.is_paused.set()
            assert self._goes_on.wait(60)
        self._left -= 1

    def has_stopped(self) -> bool:
        return self.is_paused.is_set() or not self.is_alive()

    def go_on(self) -> None:
        self._goes_on.set()


@contextmanager
def steps_through() -> Generator[None]:
    """Lets calls pause before their statements."""
    execute = Cursor.execute

    def step(self: Cursor, query: str, args: Any = None) -> int:
        thread = threading.current_thread()
        if isinstance(thread, Stepping):
            thread.step()
        return execute(self, query, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cursor, "execute", step)
        yield


def interleaved(
    watch: Cursor, first: Callable[[], object], second: Callable[[], object], steps: tuple[int, int]
) -> tuple[object, object]:
    """The answers of two calls: the first executes this many statements, then the second, and then both continue."""
    leading = Stepping(first, pause_before=steps[0])
    until(leading.has_stopped, "the first call to pause")
    following = Stepping(second, pause_before=steps[1])
    until(lambda: following.has_stopped() or waiting_for_locks(watch) > 0, "the second call to pause or to wait")
    for call in (leading, following):
        call.go_on()
    return leading.answer(), following.answer()
