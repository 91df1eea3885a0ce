"""Session files: how workers on one host notice at once that another worker has died.

A worker holds a kernel lock (`flock`) on a file named after its session. Its guardians and executor children inherit
the open file, so the lock becomes free when the last process of the worker is gone, however it died, and not before.
Only a free lock on a trustworthy file proves a death. Anything else (a held lock, another boot, a copied file, a
network file system, a file that another user can write) proves nothing: then the lease decides.
"""

import fcntl
import logging
import os
import re
import secrets
import stat
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from holdfast.queues import addresses

log = logging.getLogger("holdfast.sessions")

# The kernel itself implements flock on these. A network file system asks its server, or locks nothing at all.
LOCAL_FILE_SYSTEMS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay"})
ABANDONED_AFTER_S: Final = 60.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_published: Final = re.compile(r"[0-9a-f]{16}")
_unpublished: Final = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]{8}")
_MOST_TEXT: Final = 256
_LEAST_DESCRIPTOR: Final = 3

_open_here: "weakref.WeakSet[SessionFile]" = weakref.WeakSet()


class Unsupported(Exception):
    """Dead workers cannot be detected with this directory; the message says why."""


class Holder(Enum):
    """What a session file says about the processes that hold it."""

    ALIVE = "the lock is held, or nothing can be concluded"
    DEAD = "every process that held the lock is gone"
    NONE = "the lock is free, but was never held for this file: a copy, or a file from before a reboot"


class SessionFile:
    """The session of this worker, locked for as long as a process of it lives.

    Create it before the first child starts, and publish it once the database is known that its jobs are in.
    """

    def __init__(self, directory: Path, session: bytes) -> None:
        _check_directory(directory)
        _remove_abandoned(directory)
        self.session = session
        self._directory = directory
        self._path = directory / f".{session.hex()}.{secrets.token_hex(4)}"
        self._descriptor = _create(self._path)
        _open_here.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, _proof(self._descriptor, session.hex()))
        except BaseException:
            self.close(is_finished=True)
            raise

    def fileno(self) -> int:
        return self._descriptor

    @property
    def is_published(self) -> bool:
        return self._path.name == self.session.hex()

    def publish(self, database: str) -> None:
        """Let the workers of this database see the session."""
        if self._descriptor < 0:
            raise Unsupported("the session belongs to the process that this one was forked from")
        shared = self._directory / database
        _make_private(shared)
        path = shared / self.session.hex()
        self._path.rename(path)
        self._path = path

    def dead_neighbours(self) -> list[bytes]:
        """The sessions of other workers of the same database that are certainly dead."""
        dead: list[bytes] = []
        for session in _sessions(self._path.parent):
            if session != self.session:
                holder = _holder_of(self._path.parent / session.hex(), session.hex())
                if holder is Holder.DEAD:
                    dead.append(session)
                elif holder is Holder.NONE:
                    self.forget(session)
        return dead

    def forget(self, session: bytes) -> None:
        """Remove the file of a session."""
        with suppress(FileNotFoundError):
            (self._path.parent / session.hex()).unlink()

    def close(self, *, is_finished: bool) -> None:
        """Release the lock. A worker that has settled all of its jobs is finished and leaves no file behind."""
        if self._descriptor < 0:
            return
        if is_finished:
            with suppress(OSError):
                self._path.unlink()
        self.close_here()

    def close_here(self) -> None:
        """Close this process's copy of the open file; other processes keep theirs, and the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _create(path: Path) -> int:
    """Create the file, with a descriptor that is none of the standard ones: those are replaced in children."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    finally:
        os.close(descriptor)


def _proof(descriptor: int, session: str) -> bytes:
    """The contents of a session file: the session, the boot, and the very file, so that a copy proves nothing."""
    found = os.fstat(descriptor)
    boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    return f"{session} {boot_id} {found.st_dev} {found.st_ino}\n".encode()


def _holder_of(path: Path, session: str) -> Holder:
    """Who holds this session. An error, and any doubt, counts as alive."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Holder.ALIVE
    try:
        if not _is_ours(os.fstat(descriptor), stat.S_ISREG):
            return Holder.ALIVE
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.fstat(descriptor).st_nlink:  # its worker has just finished and removed it
            return Holder.ALIVE
        is_proven = os.read(descriptor, _MOST_TEXT) == _proof(descriptor, session)
    except OSError:  # BlockingIOError: the lock is held
        return Holder.ALIVE
    else:
        return Holder.DEAD if is_proven else Holder.NONE
    finally:
        os.close(descriptor)


def _sessions(directory: Path) -> list[bytes]:
    try:
        if not _is_ours(directory.stat(follow_symlinks=False), stat.S_ISDIR):
            return []
        return [bytes.fromhex(name) for name in os.listdir(directory) if _published.fullmatch(name)]
    except OSError:
        return []


def _remove_abandoned(directory: Path) -> None:
    """Remove the files of workers that died before they published them. A starting worker's file is young."""
    with suppress(OSError):
        for path in directory.iterdir():
            is_old = _unpublished.fullmatch(path.name) and time.time() - path.lstat().st_mtime > ABANDONED_AFTER_S
            if is_old and _holder_of(path, path.name.split(".")[1]) is not Holder.ALIVE:
                path.unlink()


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of this kind, belongs to this user and cannot be written by any other user."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _check_directory(directory: Path) -> None:
    if sys.platform != "linux":
        raise Unsupported("detecting dead workers requires Linux")
    _make_private(directory)
    kind = addresses.file_system(directory)
    if kind not in LOCAL_FILE_SYSTEMS:
        raise Unsupported(f"{directory} is on {kind or 'an unknown file system'}; file locks are not reliable there")


def _make_private(directory: Path) -> None:
    with suppress(FileExistsError):
        directory.mkdir(mode=0o755, parents=True)
    if not _is_ours(directory.stat(follow_symlinks=False), stat.S_ISDIR):
        raise Unsupported(f"{directory} is not a directory of this user that only this user can write to")


def _close_copies() -> None:
    """A fork of this program is not part of the worker: it must not keep the session alive."""
    for file in list(_open_here):
        file.close_here()


os.register_at_fork(after_in_child=_close_copies)
