"""Waiting for commits of other connections to an SQLite file without polling (Linux: inotify).

The kernel reports writes to the write-ahead log. A write is not yet a commit: the writer syncs the log first, and then
makes the commit visible in shared memory, which the kernel does not report. So after a write, the waiting thread polls
at growing intervals (docs/decisions/0013-waking-by-inotify.md).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.clock import Clock

# How often to poll without inotify.
WAIT_STEP_S: Final = 0.01
# After a write: how soon to check for its commit, and after which part of the time since then to check again.
FIRST_LOOK_S: Final = 0.0002
LOOK_AGAIN_AFTER: Final = 1 / 4
# Others may commit all the time: they wake a thread at most this often.
PAUSE_S: Final = 0.003

IN_MODIFY: Final = 0x002
IN_CREATE: Final = 0x100
IN_MOVED_TO: Final = 0x080
IN_ONLYDIR: Final = 0x01000000
IN_Q_OVERFLOW: Final = 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024


class Inotify:
    """Reports writes to one log by any process, and to the next log of that name if this one is deleted."""

    def __init__(self, log: Path) -> None:
        self._name = os.fsencode(log.name)
        self._log = os.fsencode(log)
        self.descriptor = -1
        self.descriptor = _checked("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._directory = self._watch(os.fsencode(log.parent), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR)
            self._watch_log()
        except BaseException:
            self.close()
            raise

    def _watch(self, path: bytes, mask: int) -> int:
        return _checked("inotify_add_watch", self.descriptor, path, mask)

    def _watch_log(self) -> None:
        """Watch the log if it exists; the watch on the directory reports when it is created."""
        with suppress(FileNotFoundError):
            self._watch(self._log, IN_MODIFY)

    def take(self) -> bool:
        """Whether the log was written or created since the last call."""
        is_written = False
        while self.descriptor >= 0:
            try:
                events = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            place = 0
            while place < len(events):
                watch, mask, _, length = _EVENT.unpack_from(events, place)
                name = events[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
                place += _EVENT.size + length
                if watch == self._directory and name == self._name:
                    with suppress(OSError):
                        self._watch_log()
                    is_written = True
                elif mask & (IN_MODIFY | IN_Q_OVERFLOW):
                    is_written = True
        return is_written

    def close(self) -> None:
        """Close the descriptor; a forked child closes its own copy."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class CommitWatch:
    """Lets one thread wait for commits of other connections. Each thread needs its own, to receive every write."""

    def __init__(self, log: Path, clock: Clock) -> None:
        self._clock = clock
        self._inotify = _inotify_of(log)
        self._written_at: float | None = None
        self._changed_at = float("-inf")

    def wait(self, seconds: float, has_changed: Callable[[], bool], wake: int | None) -> bool:
        """Wait that long, or until another connection has committed; True as soon as `wake` is readable.

        After a write, this polls until its commit is visible, even across several waits.
        """
        give_up_at = self._clock.monotonic() + seconds
        is_new = self._note_writes()
        while (left := give_up_at - self._clock.monotonic()) > 0:
            if self._rest(min(left, self._until_next_look()), wake):
                return True
            is_new = self._note_writes() or is_new
            if has_changed():
                # Writers take turns: without a new write since the last check, the change is the last write's commit.
                if not is_new:
                    self._written_at = None
                return self._pause(wake)
            is_new = False
        return False

    def close(self) -> None:
        """Close the descriptor."""
        if self._inotify is not None:
            self._inotify.close()

    def _note_writes(self) -> bool:
        if self._inotify is None or not self._inotify.take():
            return False
        self._written_at = self._clock.monotonic()
        return True

    def _until_next_look(self) -> float:
        if self._inotify is None:
            return WAIT_STEP_S
        if self._written_at is None:
            return float("inf")
        return max(FIRST_LOOK_S, (self._clock.monotonic() - self._written_at) * LOOK_AGAIN_AFTER)

    def _rest(self, seconds: float, wake: int | None) -> bool:
        """Wait that long, or until the log is written; returns whether `wake` is readable."""
        descriptors = [] if wake is None else [wake]
        # If the next check is near anyway, further writes need not be reported.
        if self._inotify is not None and self._inotify.descriptor >= 0 and seconds > PAUSE_S:
            descriptors.append(self._inotify.descriptor)
        return wake in self._clock.wait(seconds, descriptors)

    def _pause(self, wake: int | None) -> bool:
        """Wait if the last change was only a moment ago; returns whether `wake` is readable."""
        left = self._changed_at + PAUSE_S - self._clock.monotonic()
        is_woken = left > 0 and self._rest(left, wake)
        self._changed_at = self._clock.monotonic()
        return is_woken


def _inotify_of(log: Path) -> Inotify | None:
    """None if inotify is not available, or if the user's limit (usually 128) is reached."""
    try:
        return Inotify(log)
    except OSError:
        return None


def _checked(function: str, *arguments: int | bytes) -> int:
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), function)
    except (AttributeError, TypeError) as missing:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from missing
    answer: int = call(*arguments)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer
