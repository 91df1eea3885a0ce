"""`GuardedProgram`: a program started below a guardian (`guardian.py`), seen from the process that started it.

None of the program's processes outlives this process, and once its exit status is reported, none of them is left.
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
UNKILLABLE: Final = "it was killed and did not exit"

_GUARDIAN_EXITS_WITHIN_S: Final = 1.0
_GONE_WITHIN_S: Final = 0.5
_CHECK_EVERY_S: Final = 0.002

# Every guardian that was started and not yet reaped, by its pid, which the kernel does not reuse until then.
_guardians: dict[int, subprocess.Popen[bytes]] = {}
# The guardians among them whose program was let go.
_let_go: set[int] = set()


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program: an exit code, a signal, or the problem why neither is known."""

    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int = 0
    left: int = 0
    """The number of its processes that had not exited after SIGKILL when this was reported."""
    problem: str = ""


class Inherited(Protocol):
    """A socket or a file for the program."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class GuardedProgram:
    """A program with its guardian. It has an empty stdin, shares stdout and stderr, and has no terminal.

    The program inherits the given descriptors under the same numbers; they are closed here, so that their other ends
    notice when the program exits. `shared` descriptors stay open here, in the guardian and in the program. Wait for
    `fileno()` to be readable and call `receive` until it returns an `ExitStatus`; then `close`.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        inherited: Sequence[Inherited] = (),
        shared: Sequence[int] = (),
    ) -> None:
        reap()
        self.pid: int | None = None
        self.was_fenced = False
        """Whether the guardian has killed it because its fence was reached."""
        self._received = b""
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
                pass_fds=(theirs.fileno(), *fds, *shared),
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
        """Have the program and all its descendants killed; `receive` reports when they are gone."""
        with suppress(OSError):
            self._control.send(b"kill\n")

    def fence(self, until: float | None) -> None:
        """Have the program killed at that time of the monotonic clock, unless this is called again before.

        The guardian does it by itself, even if this process is stopped at that time.
        """
        with suppress(OSError):
            self._control.send(b"until %a\n" % (math.inf if until is None else until))

    def receive(self) -> ExitStatus | None:
        """The exit status, once, when none of the program's processes is left; None before and after that."""
        if self._has_ended:
            return None
        ended: ExitStatus | None = None
        is_over = self._read()
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            ended = self._on_line(line.decode().split()) or ended
        if ended is None and is_over:
            ended = self._ended_without_guardian()
        self._has_ended = ended is not None
        return ended

    def let_go(self) -> None:
        """Have the guardian kill what is still running. The guardian itself is reaped later, by `reap`."""
        if self.fileno() != -1:
            self._control.close()
            _let_go.add(self._guardian.pid)

    def close(self) -> None:
        """Let go, and wait a moment for the guardian; if it takes longer, it is reaped later."""
        self.let_go()
        with suppress(subprocess.TimeoutExpired):
            self._guardian.wait(_GUARDIAN_EXITS_WITHIN_S)
        reap()

    def _read(self) -> bool:
        """Read from the guardian. Returns whether it has closed the socket."""
        try:
            while chunk := self._control.recv(4096):
                self._received += chunk
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
        return True

    def _on_line(self, words: list[str]) -> ExitStatus | None:
        match words:
            case ["started", pid]:
                self.pid = int(pid)
                return None
            case ["fenced"]:
                self.was_fenced = True
                return None
            case ["failed", number]:
                return ExitStatus(problem=f"could not be started: {_error_text(int(number))}: {self._argv[0]!r}")
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
                raise AssertionError(f"a guardian sent {words!r}")

    def _ended_without_guardian(self) -> ExitStatus:
        """The guardian was killed, and the program with it. Kill the descendants that can still be found."""
        guardian.kill([self._guardian.pid])
        give_up_at = time.monotonic() + _GONE_WITHIN_S
        while (left := self._session()) and time.monotonic() < give_up_at:
            guardian.kill(left)
            time.sleep(_CHECK_EVERY_S)
        return ExitStatus(left=len(left), problem=GUARDIAN_DIED)

    def _session(self) -> list[int]:
        """The processes in the guardian's session. Its number cannot be reused before the guardian is reaped."""
        session = self._guardian.pid
        try:
            found = guardian.processes()
        except OSError:
            # There is no /proc (macOS): kill the program's whole group; there is nothing to count.
            if self.pid is not None:
                guardian.kill([-self.pid])
            return []
        return [pid for pid, it in found.items() if it.session == session and pid != session and not it.is_zombie]


def describe(ended: ExitStatus) -> str:
    """An exit status in words: "exit code 3", "killed by SIGSEGV", "could not be started: ..."."""
    if ended.problem:
        how = ended.problem
    elif ended.signal is not None:
        how = f"killed by {signal_name(ended.signal)}"
    else:
        how = f"exit code {ended.exit_code}"
    return f"{how} ({ended.left} of its processes could not be killed yet)" if ended.left else how


@contextmanager
def orphans_adopted() -> Generator[bool]:
    """Make orphans below this process its children while the block runs, for `kill_strays`. False if not on Linux."""
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
    """The child processes of this process, except guardians."""
    try:
        return _children_among(guardian.processes())
    except OSError:
        return []


def kill_strays(known_pids: Collection[int] = ()) -> int:
    """Kill and reap every child of this process, with its descendants, that is neither a guardian nor known.

    When a guardian is killed, its descendants become children of the process that adopts orphans. They have arrived
    once its `GuardedProgram` is closed. Returns how many were found, without waiting; those that have not exited yet
    are reaped by the next call.
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
    """Those among these guardians that are not reaped yet. The kernel closes the files of a dying process before it
    reparents its children: until a guardian is reaped, its descendants may not have arrived here.
    """
    return {pid for pid in guardians if pid in _guardians}


def reap(*, waits: bool = False) -> None:
    """Reap the guardians that were let go and have exited; if it `waits`, give each of them a moment to exit."""
    for pid in list(_let_go):
        exiting = _guardians.get(pid)
        if exiting is None:
            continue  # another thread has reaped it
        if waits:
            with suppress(subprocess.TimeoutExpired):
                exiting.wait(_GUARDIAN_EXITS_WITHIN_S)
        if exiting.poll() is not None:
            _let_go.discard(pid)
            _guardians.pop(pid, None)


def _error_text(number: int) -> str:
    return os.strerror(number) if number in errno.errorcode else "unknown error"
