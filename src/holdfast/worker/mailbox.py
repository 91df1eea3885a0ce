"""`Mailbox`: callbacks that other threads post to the worker loop."""

import selectors
import threading
from collections import deque
from collections.abc import Callable

from holdfast.worker.wake_pipe import WakePipe


class Mailbox:
    """Posting wakes the loop if it is waiting on the selector; the loop then runs what was posted."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._actions: deque[Callable[[], None]] = deque()
        self._pipe = WakePipe()
        self._lock = threading.Lock()
        self._is_closed = False
        selector.register(self._pipe, selectors.EVENT_READ, self._on_wake)

    def post(self, action: Callable[[], None]) -> None:
        """Run this on the loop's thread. Any thread may post, even one that outlives the loop."""
        self._actions.append(action)
        with self._lock:
            if not self._is_closed:
                self._pipe.wake()

    def open(self) -> None:
        """Run what was posted, on the loop's thread."""
        while self._actions:
            self._actions.popleft()()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._pipe.close()

    def _on_wake(self, _events: int) -> None:
        self._pipe.drain()
