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
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.queues.engines.sqlite.connections import file_system

log = logging.getLogger("holdfast.sessions")

# The kernel itself implements flock on these. A network file system asks its server, or locks nothing at all.
LOCAL_FILE_SYSTEMS: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay"})
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_name: Final = re.compile(r"[0-9a-f]{16}")
_MOST_TEXT: Final = 256

_open_here: "weakref.WeakSet[SessionFile]" = weakref.WeakSet()


class Unsupported(Exception):
    """Deaths cannot be noticed in this directory; the message says why."""


class Proof(NamedTuple):
    """What a session file contains: the boot and the file it was written for, so that a copy proves nothing."""

    boot_id: str
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> "Proof":
        found = os.fstat(descriptor)
        return cls(_BOOT_ID.read_text(encoding="ascii").strip(), found.st_dev, found.st_ino)

    def encode(self) -> bytes:
        return f"{self.boot_id} {self.device} {self.inode}\n".encode()


class SessionFile:
    """The session of this worker, locked for as long as a process of it lives.

    It is locked before the first child starts, and published once the database is known whose jobs it stands for.
    """

    def __init__(self, directory: Path, session: bytes) -> None:
        _check_directory(directory)
        self.session = session
        self._directory = directory
        self._path = directory / f".{session.hex()}.{secrets.token_hex(4)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o644)
        _open_here.add(self)
        try:
            os.fchmod(self._descriptor, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, Proof.of(self._descriptor).encode())
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
        shared = self._directory / database
        _make_private(shared)
        path = shared / self.session.hex()
        self._path.rename(path)
        self._path = path

    def dead_neighbours(self) -> list[bytes]:
        """The sessions of other workers of the same database that are certainly dead."""
        others = [session for session in _sessions(self._path.parent) if session != self.session]
        return [session for session in others if self._is_dead(session)]

    def forget(self, session: bytes) -> None:
        """Remove the file of a dead session."""
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

    def _is_dead(self, session: bytes) -> bool:
        try:
            return _is_dead(self._path.parent / session.hex())
        except OSError as problem:
            log.debug("session %s cannot be judged: %s", session.hex(), problem)
            return False


def _is_dead(path: Path) -> bool:
    """Whether every process that held this session is gone. An error, and any doubt, means no."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not _is_ours(os.fstat(descriptor), stat.S_ISREG):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return os.read(descriptor, _MOST_TEXT) == Proof.of(descriptor).encode()
    finally:
        os.close(descriptor)


def _sessions(directory: Path) -> list[bytes]:
    try:
        if not _is_ours(os.stat(directory, follow_symlinks=False), stat.S_ISDIR):
            return []
        names = os.listdir(directory)
    except OSError:
        return []
    return [bytes.fromhex(name) for name in names if _name.fullmatch(name)]


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Whether it is of this kind, belongs to this user and can be written by nobody else."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _check_directory(directory: Path) -> None:
    if sys.platform != "linux":
        raise Unsupported("only Linux tells reliably whether all processes of a worker are gone")
    _make_private(directory)
    kind = file_system(directory)
    if kind not in LOCAL_FILE_SYSTEMS:
        raise Unsupported(f"{directory} is on {kind or 'an unknown file system'}, whose locks prove nothing")


def _make_private(directory: Path) -> None:
    with suppress(FileExistsError):
        directory.mkdir(mode=0o755, parents=True)
    found = directory.stat(follow_symlinks=False)
    if not _is_ours(found, stat.S_ISDIR):
        raise Unsupported(f"{directory} belongs to another user, or others can write it")


def _close_copies() -> None:
    """A fork of this program is not part of the worker: it must not keep the session alive."""
    for file in list(_open_here):
        file.close_here()


os.register_at_fork(after_in_child=_close_copies)
