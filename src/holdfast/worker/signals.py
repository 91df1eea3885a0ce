"""Hearing signals at once, whatever the main thread is doing.

Python runs a signal handler on the main thread between two steps of the interpreter; a job that has just entered a
blocking system call would keep it waiting for as long as the call lasts. So a thread acts on signals: the interpreter's
C code writes the number of each to a pipe the moment it comes. The handler on the main thread only waits for that
thread, so that whatever the main thread does next comes after the signal.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

Act: TypeAlias = Callable[[signal.Signals], None]

# The thread may itself be waiting for the main thread to get on; then the main thread must not wait for long.
PATIENCE_S: Final = 0.2
_END: Final = b"\0"


@contextmanager
def handling_signals(act: Act, numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> Generator[None]:
    """Call `act`, on a thread of its own, for each of these signals that comes while the block runs."""
    listener = _Listener(frozenset(numbers), act)
    listener.take_over()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        listener.give_back()
        listener.close()


class _Listener:
    """The pipe, and the thread at its end."""

    def __init__(self, numbers: frozenset[signal.Signals], act: Act) -> None:
        self.numbers = numbers
        self._act = act
        self._readable, self.writable = os.pipe()
        os.set_blocking(self.writable, False)
        self._changed = threading.Condition()
        self._came = 0
        self._answered = 0
        self._handlers: dict[signal.Signals, Any] = {}
        self._wakeup = -1
        self._thread = threading.Thread(target=self._listen, name="holdfast-signals", daemon=True)
        self._thread.start()

    def take_over(self) -> None:
        self._handlers = {number: signal.signal(number, self._came_to_main) for number in self.numbers}
        self._wakeup = signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False)

    def give_back(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def leave_in_child(self) -> None:
        """A forked child must not write into the parent's pipe: a signal to it would stop the parent."""
        self.give_back()
        os.close(self.writable)
        os.close(self._readable)

    def _came_to_main(self, signum: int, frame: FrameType | None) -> None:
        """The handler on the main thread."""
        # An event loop that has used signals of its own leaves nobody connected to the pipe.
        if signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False) != self.writable:
            os.write(self.writable, bytes([signum]))
        with self._changed:
            self._came += 1
            expected = self._came
            self._changed.wait_for(lambda: self._answered >= expected, PATIENCE_S)

    def close(self) -> None:
        # A byte, not the end of the pipe: a child that was forked meanwhile may keep the pipe open.
        os.write(self.writable, _END)
        self._thread.join()
        os.close(self.writable)
        os.close(self._readable)

    def _listen(self) -> None:
        while numbers := os.read(self._readable, 64):
            for number in numbers:
                if number == _END[0]:
                    return
                if number in self.numbers:
                    self._act(signal.Signals(number))
                    with self._changed:
                        self._answered += 1
                        self._changed.notify_all()


_listeners: list[_Listener] = []


def _after_fork_in_child() -> None:
    while _listeners:
        _listeners.pop().leave_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
