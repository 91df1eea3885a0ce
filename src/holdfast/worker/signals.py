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
from typing import Final, TypeAlias

Act: TypeAlias = Callable[[signal.Signals], None]

# The thread may itself be waiting for the main thread to get on; then the main thread must not wait for long.
PATIENCE_S: Final = 0.2


@contextmanager
def heard(act: Act, numbers: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)) -> Generator[None]:
    """Call `act`, on a thread of its own, for each of these signals that comes while the block runs."""
    listener = _Listener(frozenset(numbers), act)
    before = {number: signal.signal(number, listener.came) for number in listener.numbers}
    wakeup_before = signal.set_wakeup_fd(listener.writable, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
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
        self._thread = threading.Thread(target=self._listen, name="holdfast-signals", daemon=True)
        self._thread.start()

    def came(self, signum: int, frame: FrameType | None) -> None:
        """The handler on the main thread."""
        with self._changed:
            self._came += 1
            expected = self._came
            self._changed.wait_for(lambda: self._answered >= expected, PATIENCE_S)

    def close(self) -> None:
        os.close(self.writable)
        self._thread.join()
        os.close(self._readable)

    def _listen(self) -> None:
        while numbers := os.read(self._readable, 64):
            for number in numbers:
                if number in self.numbers:
                    self._act(signal.Signals(number))
                    with self._changed:
                        self._answered += 1
                        self._changed.notify_all()
