"""Handles signals at once, whatever the main thread is doing.

Python runs signal handlers on the main thread, between two bytecode instructions: a job that has just entered a
blocking system call would delay them until the call returns. So a separate thread acts on signals. The interpreter's
C code writes the number of each signal to a pipe as soon as it arrives. The handler on the main thread only waits for
that thread, so that the main thread continues after the signal was acted on.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeAlias

Act: TypeAlias = Callable[[signal.Signals], None]

# The thread may itself be waiting for the main thread, so the main thread must not wait for long.
PATIENCE_S: Final = 0.2
_END: Final = b"\0"


@contextmanager
def handling_signals(act: Act, numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> Generator[None]:
    """Call `act` on a separate thread for each of these signals that arrives while the block runs."""
    listener = _Listener(frozenset(numbers), act)
    listener.install()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        listener.restore()
        listener.close()


class _Listener:
    """The pipe, and the thread that reads from it."""

    def __init__(self, numbers: frozenset[signal.Signals], act: Act) -> None:
        self.numbers = numbers
        self._act = act
        self._readable, self.writable = os.pipe()
        os.set_blocking(self.writable, False)
        self._changed = threading.Condition()
        self._received = 0
        self._handled = 0
        self._handlers: dict[signal.Signals, Any] = {}
        self._wakeup = -1
        self._thread = threading.Thread(target=self._listen, name="holdfast-signals", daemon=True)
        self._thread.start()

    def install(self) -> None:
        self._handlers = {number: signal.signal(number, self._on_main_thread) for number in self.numbers}
        self._wakeup = signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False)

    def restore(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def remove_in_child(self) -> None:
        """Detach a forked child from the parent's pipe: a signal to the child would stop the parent."""
        self.restore()
        os.close(self.writable)
        os.close(self._readable)

    def _on_main_thread(self, signum: int, frame: FrameType | None) -> None:
        # An event loop that handled signals itself may have disconnected the pipe.
        if signal.set_wakeup_fd(self.writable, warn_on_full_buffer=False) != self.writable:
            os.write(self.writable, bytes([signum]))
        with self._changed:
            self._received += 1
            expected = self._received
            self._changed.wait_for(lambda: self._handled >= expected, PATIENCE_S)

    def close(self) -> None:
        # A byte, not the end of the pipe: a child that was forked in the meantime may still have the pipe open.
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
                        self._handled += 1
                        self._changed.notify_all()


_listeners: list[_Listener] = []


def _after_fork_in_child() -> None:
    while _listeners:
        _listeners.pop().remove_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
