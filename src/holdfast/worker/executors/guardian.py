"""The guardian: starts one program and makes sure that none of its processes is left behind.

`guarded_program.py` runs it by its path as `python -I -S guardian.py CONTROL_FD INHERITED_FDS -- PROGRAM...`, as the
leader of its own session. It imports little, and nothing of Holdfast, because every executor child has one.

On the control socket it sends `started PID` and, once none of the program's processes is left, `ended STATUS MAX_RSS
LEFT`; or `failed ERRNO` if the program could not be started. It receives `until TIME`, which sets the fence. Any other
line, and the end of the socket, means: kill.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

# A process in an uninterruptible system call does not react to SIGKILL: then the end is reported, and killing goes on.
PATIENCE_S = 5.0
CHECK_EVERY_S = 0.01
SLOW_CHECK_EVERY_S = 1.0
LONGEST_WAIT_S = 3600.0

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

IGNORED_SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE),
    *(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP),
)

if LINUX:
    import ctypes

    _prctl = ctypes.CDLL(None, use_errno=True).prctl
    _prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def prctl(option: int, value: int) -> None:
        if _prctl(option, value, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


class Guardian:
    """One program, its descendants, and the socket to the parent, which asked for the program."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._parent = os.getppid()
        self._program = 0
        self._status: int | None = None
        self._max_rss_bytes = 0
        self._received = b""
        self._fence_at = math.inf
        self._listen()
        if LINUX:
            # Orphans become children of the guardian instead of init, so that each can be found and reaped.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            # If another process has a copy of the parent's socket, it stays open when the parent dies. This reports it.
            prctl(PR_SET_PDEATHSIG, signal.SIGCHLD)

    def guard(self, argv: list[str], inherited: list[int]) -> None:
        """Run the program until it exits or is to be killed. Returns when none of its processes is left."""
        error = self._start(argv)
        for fd in inherited:
            os.close(fd)
        if error:
            self._send(f"failed {error}")
            return
        self._send(f"started {self._program}")
        while self._reap() and self._status is None and os.getppid() == self._parent:
            left_s = self._fence_at - time.monotonic()
            if left_s <= 0:
                self._send("fenced")
                break
            if self._control in self._wait(min(left_s, LONGEST_WAIT_S)) and not self._may_go_on():
                break
        self._events.unregister(self._control)
        self._kill_all()

    def _may_go_on(self) -> bool:
        """Read from the parent: a new fence. Any other line, or the end of the socket, is the end of the program."""
        chunk = b""
        with suppress(OSError):  # the parent exited without reading what we sent
            chunk = os.read(self._control, 4096)
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            word, _, until = line.partition(b" ")
            if word != b"until":
                return False
            self._fence_at = float(until)
        return bool(chunk)

    def _listen(self) -> None:
        """Let exited children and messages from the parent wake the guardian at once."""
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._bell, ring = os.pipe()
        for fd in (self._bell, ring):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        os.set_inheritable(self._control, False)
        self._events = select.poll()
        self._events.register(self._control, select.POLLIN)
        self._events.register(self._bell, select.POLLIN)

    def _wait(self, at_most_s: float | None = None) -> set[int]:
        """The readable descriptors."""
        ready = {fd for fd, _ in self._events.poll(None if at_most_s is None else at_most_s * 1000)}
        if self._bell in ready:
            os.read(self._bell, 4096)
        return ready

    def _start(self, argv: list[str]) -> int:
        """Start the program. Returns 0, or the errno if it could not be started."""
        guardian = os.getpid()
        readable, writable = os.pipe()
        self._program = os.fork()
        if self._program == 0:
            try:
                _become(argv, guardian)
            except OSError as error:
                os.write(writable, b"%d" % (error.errno or 0))
            finally:
                os._exit(127)
        os.close(writable)
        # Both ends are closed when the program is executed.
        refusal = os.read(readable, 16)
        os.close(readable)
        if refusal:
            os.waitpid(self._program, 0)
        return int(refusal or 0)

    def _reap(self) -> bool:
        """Reap every child that has exited. Returns whether there are others."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._program:
                self._status = os.waitstatus_to_exitcode(status)
                self._max_rss_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _kill_all(self) -> None:
        """Kill until no process is left, then report how the program ended."""
        reported = False
        give_up_at = time.monotonic() + PATIENCE_S
        while self._reap() or self._group_lives():
            # Found again each time: a process may have forked before it was killed.
            left = self._kill()
            if not reported and time.monotonic() > give_up_at:
                self._report(left)
                reported = True
            self._wait(SLOW_CHECK_EVERY_S if reported else CHECK_EVERY_S)
        if not reported:
            self._report(0)

    def _group_lives(self) -> bool:
        """Whether the program's group has processes. Without a subreaper, its descendants are not our children."""
        if LINUX:
            return False
        with suppress(OSError):
            os.killpg(self._program, 0)
            return True
        return False

    def _kill(self) -> int:
        """Kill every current descendant. Returns how many there were."""
        try:
            found = processes()
        except OSError:
            # There is no /proc (macOS): processes that have left the program's group are not found.
            kill([-self._program])
            return 1
        left = descendants(os.getpid(), found)
        # A process that forks and exits, over and over, is gone by the time its pid is reached; its group is not. The
        # group contains only descendants: it is part of a session, and these sessions began below the guardian.
        groups = {found[pid].group for pid in left} - {0, 1, os.getpgrp()}
        kill([-group for group in groups])
        kill(left)
        # If there are only zombies, one of them must have living threads, or it would have been reaped.
        return sum(not found[pid].is_zombie for pid in left) or 1

    def _report(self, left: int) -> None:
        self._send(f"ended {'-' if self._status is None else self._status} {self._max_rss_bytes} {left}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._control, f"{line}\n".encode())


def _become(argv: list[str], guardian: int) -> None:
    """Execute the program in this forked process, with default signal handlers and only the inherited descriptors."""
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(127)
    # In its own group, so that a signal which the program sends to its group does not reach the guardian.
    os.setpgid(0, 0)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(argv[0], argv)  # noqa: S606


class Process:
    """One line of /proc/PID/stat."""

    __slots__ = ("group", "is_zombie", "parent", "session")

    def __init__(self, stat: bytes) -> None:
        # The fields follow the name in parentheses, which may itself contain parentheses and spaces.
        state, parent, group, session = stat[stat.rindex(b")") + 1 :].split(None, 4)[:4]
        self.is_zombie = state == b"Z"
        self.parent, self.group, self.session = int(parent), int(group), int(session)


def processes() -> dict[int, Process]:
    """All processes by pid. Raises OSError where there is no /proc."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                found[int(name)] = Process(stat.read())
    return found


def descendants(ancestor: int, among: dict[int, Process]) -> list[int]:
    """The children of a process, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid, process in among.items():
        children.setdefault(process.parent, []).append(pid)
    below = children.pop(ancestor, [])
    for pid in below:
        below += children.pop(pid, ())
    return below


def kill(targets: Iterable[int]) -> None:
    """Send SIGKILL to these pids; a negative number is a group. Those that are gone are ignored."""
    for target in targets:
        with suppress(OSError):
            os.kill(target, signal.SIGKILL)


def main() -> None:
    control, inherited, _, *argv = sys.argv[1:]
    Guardian(int(control)).guard(argv, [int(fd) for fd in inherited.split(",") if fd != "-"])


if __name__ == "__main__":
    main()
