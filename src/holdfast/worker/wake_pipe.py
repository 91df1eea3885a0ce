"""`WakePipe`: lets any thread wake a thread that waits on file descriptors."""

import os
from contextlib import suppress


class WakePipe:
    """A pipe that is readable after `wake`, until `drain`."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)

    def fileno(self) -> int:
        return self._readable

    def wake(self) -> None:
        with suppress(BlockingIOError):  # full: it has been woken often enough
            os.write(self._writable, b"\0")

    def drain(self) -> bool:
        """Make it unreadable again. Returns whether there was a wake-up."""
        try:
            return bool(os.read(self._readable, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._writable)
        os.close(self._readable)
