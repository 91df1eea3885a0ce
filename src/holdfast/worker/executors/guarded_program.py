"""`GuardedProgram`: a program started below a guardian (`guardian.py`), seen from the process that wants it run.

Nothing of the program outlives this process, and when it is told how the program ended, nothing of it runs any more.
"""

import ctypes
import errno
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import msgspec

from holdfast.handlers.command import signal_name
from holdfast.worker.executors import guardian

PR_GET_CHILD_SUBREAPER: Final = 37
GUARDIAN_DIED: Final = "its guardian died"
UNKILLABLE: Final = "it was killed and did not end"

_GUARDIAN_LEAVES_WITHIN_S: Final = 1.0
_GONE_WITHIN_S: Final = 0.5
_LOOK_EVERY_S: Final = 0.002

# Every guardian that was started and not yet reaped, by its number, which until then is nobody else's.
_guardians: dict[int, subprocess.Popen[bytes]] = {}
# Those among them that nobody asks any more.
_let_go: set[int] = set()


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended: an exit code, a signal, or a problem that kept either from being known."""

    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int = 0
    left: int = 0
    """How many of its processes SIGKILL had not ended when this was said."""
    problem: str = ""


class Inherited(Protocol):
    """A socket or a file for the program."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class GuardedProgram:
    """A program with its guardian. It has an empty stdin, shares stdout and stderr, and has no terminal.

    The program finds what it inherits under the same numbers; here it is closed, so that its end can be heard.
    Watch `fileno()` for reading and call `receive` when it has something, until an `ExitStatus` comes; then `close`.
    """

    def __init__(
        self, argv: Sequence[str], *, environment: Mapping[str, str], inherited: Sequence[Inherited] = ()
    ) -> None:
        reap()
        self.pid: int | None = None
        self.was_fenced = False
        """Whether the guardian has killed it because its time was over."""
        self._heard = b""
        self._has_ended = False
        self._argv = tuple(argv)
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        fds = [each.fileno() for each in inherited]
        numbers = ",".join(map(str, fds)) or "-"
        try:
            self._guardian = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno()), numbers, "--", *argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *fds),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
            for each in inherited:
                each.close()
        _guardians[self._guardian.pid] = self._guardian

    @property
    def guardian_pid(self) -> int:
        return self._guardian.pid

    def fileno(self) -> int:
        return self._control.fileno()

    def kill(self) -> None:
        """Ask for the end of the program and everything below it; `receive` tells when it has come."""
        with suppress(OSError):
            self._control.send(b"kill\n")

    def fence(self, until: float | None) -> None:
        """Have the program killed at that instant of the monotonic clock, unless another word comes before.

        The guardian sees to it by itself: also if this process stands still then.
        """
        with suppress(OSError):
            self._control.send(b"until %a\n" % (math.inf if until is None else until))

    def receive(self) -> ExitStatus | None:
        """How the program ended, once, when nothing of it runs any more; until then, and afterwards, None."""
        if self._has_ended:
            return None
        ended: ExitStatus | None = None
        is_over = self._read()
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            ended = self._understood(line.decode().split()) or ended
        if ended is None and is_over:
            ended = self._ended_without_guardian()
        self._has_ended = ended is not None
        return ended

    def let_go(self) -> None:
        """Whatever still runs is killed. The guardian is reaped later, by `reap`."""
        if self.fileno() != -1:
            self._control.close()
            _let_go.add(self._guardian.pid)

    def close(self) -> None:
        """Let go, and wait for the guardian; should it take long, it is reaped later."""
        self.let_go()
        with suppress(subprocess.TimeoutExpired):
            self._guardian.wait(_GUARDIAN_LEAVES_WITHIN_S)
        reap()

    def _read(self) -> bool:
        """Take in what was said; whether that was all there will ever be."""
        try:
            while said := self._control.recv(4096):
                self._heard += said
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def _understood(self, words: list[str]) -> ExitStatus | None:
        match words:
            case ["started", pid]:
                self.pid = int(pid)
                return None
            case ["fenced"]:
                self.was_fenced = True
                return None
            case ["failed", number]:
                return ExitStatus(problem=f"could not be started: {_reason(int(number))}: {self._argv[0]!r}")
            case ["ended", "-", _, left]:
                return ExitStatus(left=int(left), problem=UNKILLABLE)
            case ["ended", status, max_rss_bytes, left]:
                code = int(status)
                return ExitStatus(
                    exit_code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    max_rss_bytes=int(max_rss_bytes),
                    left=int(left),
                )
            case _:
                raise AssertionError(f"a guardian said {words!r}")

    def _ended_without_guardian(self) -> ExitStatus:
        """The program was killed with its guardian; kill also what can still be told to have come from it."""
        guardian.kill([self._guardian.pid])
        give_up_at = time.monotonic() + _GONE_WITHIN_S
        while (left := self._session()) and time.monotonic() < give_up_at:
            guardian.kill(left)
            time.sleep(_LOOK_EVERY_S)
        return ExitStatus(left=len(left), problem=GUARDIAN_DIED)

    def _session(self) -> list[int]:
        """Who is in the guardian's session; nobody else can be, since the guardian is not yet reaped."""
        session = self._guardian.pid
        try:
            found = guardian.processes()
        except OSError:
            # There is no /proc (macOS): kill the program's group as a whole, there is nothing to count.
            if self.pid is not None:
                guardian.kill([-self.pid])
            return []
        return [pid for pid, it in found.items() if it.session == session and pid != session and not it.is_zombie]


def describe(ended: ExitStatus) -> str:
    """An end in words: "exit code 3", "killed by SIGSEGV", "could not be started: ..."."""
    if ended.problem:
        how = ended.problem
    elif ended.signal is not None:
        how = f"killed by {signal_name(ended.signal)}"
    else:
        how = f"exit code {ended.exit_code}"
    return f"{how} ({ended.left} of its processes could not be killed yet)" if ended.left else how


@contextmanager
def orphans_adopted() -> Generator[bool]:
    """Let orphans below this process become its children meanwhile, for `kill_strays`; False where that cannot be."""
    if not guardian.LINUX:
        yield False
        return
    was = ctypes.c_int()
    guardian.prctl(PR_GET_CHILD_SUBREAPER, ctypes.addressof(was))
    guardian.prctl(guardian.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield True
    finally:
        guardian.prctl(guardian.PR_SET_CHILD_SUBREAPER, was.value)


def children() -> list[int]:
    """Who has this process as its parent, but for the guardians."""
    try:
        return _children_among(guardian.processes())
    except OSError:
        return []


def kill_strays(known_pids: Collection[int] = ()) -> int:
    """Kill and reap every child of this process, with all below it, that is neither a guardian nor known.

    A killed guardian leaves such processes to one that adopts orphans. They have arrived once its `GuardedProgram` is
    closed. Returns how many were found, without waiting; what has not exited yet is reaped by the next call.
    """
    try:
        found = guardian.processes()
    except OSError:
        return 0
    strays = [pid for pid in _children_among(found) if pid not in known_pids]
    for stray in strays:
        guardian.kill([stray, *guardian.descendants(stray, found)])
        with suppress(ChildProcessError):
            os.waitpid(stray, os.WNOHANG)
    return len(strays)


def _children_among(found: Mapping[int, guardian.Process]) -> list[int]:
    me = os.getpid()
    return [pid for pid, process in found.items() if process.parent == me and pid not in _guardians]


def unreaped(guardians: Collection[int]) -> set[int]:
    """Those among these guardians of whom leave is not yet taken. The kernel closes the files of one that dies before
    it gives its children away: until it is reaped, whom it leaves may not be here.
    """
    return {pid for pid in guardians if pid in _guardians}


def reap(*, waits: bool = False) -> None:
    """Take leave of the guardians that were let go and have ended; or wait for each, though not for long."""
    for pid in list(_let_go):
        leaving = _guardians.get(pid)
        if leaving is None:
            continue  # another thread was quicker
        if waits:
            with suppress(subprocess.TimeoutExpired):
                leaving.wait(_GUARDIAN_LEAVES_WITHIN_S)
        if leaving.poll() is not None:
            _let_go.discard(pid)
            _guardians.pop(pid, None)


def _reason(number: int) -> str:
    return os.strerror(number) if number in errno.errorcode else "the reason is not known"
