"""`Mailbox`: what other threads want the worker's loop to do, as its next thing."""

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Mailbox:
    """Whoever posts wakes the loop, if it waits on the selector; the loop opens what has come."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._actions: deque[Callable[[], None]] = deque()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self._lock = threading.Lock()
        self._is_closed = False
        selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakes)

    def post(self, action: Callable[[], None]) -> None:
        """Let the loop do this; from any thread, also from one that is left behind when the loop is over."""
        self._actions.append(action)
        with self._lock, suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._wake_in, b"\0")

    def open(self) -> None:
        """Do what was posted, on the loop's thread."""
        while self._actions:
            self._actions.popleft()()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.close(self._wake_in)
            os.close(self._wake_out)

    def _drain_wakes(self, _events: int) -> None:
        try:
            while os.read(self._wake_out, 4096):
                pass
        except BlockingIOError:
            return
