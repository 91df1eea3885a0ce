"""A guardian starts one program and leaves nothing of it behind.

`guarded_program.py` runs it by its path as `python -I -S guardian.py CONTROL_FD INHERITED_FDS -- PROGRAM...`, as the
leader of its own session. It imports little, and nothing of Holdfast, because every executor child has one.

On the control socket it says `started PID` and, when nothing of the program runs any more, `ended STATUS MAX_RSS LEFT`;
or `failed ERRNO` if the program could not be started. Whatever it hears there, and be it the end, means: kill.
"""

import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

# A process in an uninterruptible system call does not hear SIGKILL: then the report is made, and the killing goes on.
PATIENCE_S = 5.0
LOOK_EVERY_S = 0.01
LOOK_ON_EVERY_S = 1.0
LONGEST_WAIT_S = 3600.0

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

DEAF_TO = (
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
    """One program, everything that descends from it, and the socket to whoever asked for it."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._asker = os.getppid()
        self._program = 0
        self._status: int | None = None
        self._max_rss_bytes = 0
        self._heard = b""
        self._fence_at = math.inf
        self._listen()
        if LINUX:
            # Orphans below it become its children instead of init's, so that each can be found and reaped.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            # Should someone else hold a copy of the asker's socket, its end will not be heard; the asker's death is.
            prctl(PR_SET_PDEATHSIG, signal.SIGCHLD)

    def guard(self, argv: list[str], inherited: list[int]) -> None:
        """Run the program until it ends or is to be killed; return when nothing of it is left."""
        error = self._start(argv)
        for fd in inherited:
            os.close(fd)
        if error:
            self._say(f"failed {error}")
            return
        self._say(f"started {self._program}")
        while self._reap() and self._status is None and os.getppid() == self._asker:
            left_s = self._fence_at - time.monotonic()
            if left_s <= 0:
                self._say("fenced")
                break
            if self._control in self._wait(min(left_s, LONGEST_WAIT_S)) and not self._obeyed():
                break
        self._events.unregister(self._control)
        self._leave_nothing()

    def _obeyed(self) -> bool:
        """Take in what the asker says: until when the program may run. Any other word, or none, is its end."""
        said = b""
        with suppress(OSError):  # it left without having read what we said
            said = os.read(self._control, 4096)
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            word, _, until = line.partition(b" ")
            if word != b"until":
                return False
            self._fence_at = float(until)
        return bool(said)

    def _listen(self) -> None:
        """Ended children and words of the asker both wake it, at once."""
        for number in DEAF_TO:
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
        """The descriptors that have something to say."""
        ready = {fd for fd, _ in self._events.poll(None if at_most_s is None else at_most_s * 1000)}
        if self._bell in ready:
            os.read(self._bell, 4096)
        return ready

    def _start(self, argv: list[str]) -> int:
        """Start the program; 0, or the number of the error that kept it from starting."""
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
        # Both ends close when a program is executed.
        refusal = os.read(readable, 16)
        os.close(readable)
        if refusal:
            os.waitpid(self._program, 0)
        return int(refusal or 0)

    def _reap(self) -> bool:
        """Take leave of every child that has ended; whether there are others."""
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

    def _leave_nothing(self) -> None:
        """Kill until nothing is left, and then say how the program ended."""
        reported = False
        give_up_at = time.monotonic() + PATIENCE_S
        while self._reap() or self._group_lives():
            # Found anew each time: what is killed may have forked meanwhile.
            left = self._kill()
            if not reported and time.monotonic() > give_up_at:
                self._report(left)
                reported = True
            self._wait(LOOK_ON_EVERY_S if reported else LOOK_EVERY_S)
        if not reported:
            self._report(0)

    def _group_lives(self) -> bool:
        """Without a subreaper, having no children does not mean that the program has no descendants."""
        if LINUX:
            return False
        with suppress(OSError):
            os.killpg(self._program, 0)
            return True
        return False

    def _kill(self) -> int:
        """Kill every descendant there is at this moment; how many there were."""
        try:
            found = processes()
        except OSError:
            # There is no /proc (macOS): what has left the program's process group is not found.
            kill([-self._program])
            return 1
        left = descendants(os.getpid(), found)
        # A process that forks and ends, over and over, is gone whenever its number is reached; its group is not. No
        # stranger is in it: a group is within a session, and the sessions below the guardian began there.
        groups = {found[pid].group for pid in left} - {0, 1, os.getpgrp()}
        kill([-group for group in groups])
        kill(left)
        # If there are only zombies, one must have living threads: it could be reaped otherwise.
        return sum(not found[pid].is_zombie for pid in left) or 1

    def _report(self, left: int) -> None:
        self._say(f"ended {'-' if self._status is None else self._status} {self._max_rss_bytes} {left}")

    def _say(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._control, f"{line}\n".encode())


def _become(argv: list[str], guardian: int) -> None:
    """Execute the program in this forked process, with nothing of the guardian's but the descriptors it shall have."""
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(127)
    # A signal the program sends to its own group does not reach the guardian.
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
        # Before these stands the name in parentheses, and it may contain parentheses and spaces itself.
        state, parent, group, session = stat[stat.rindex(b")") + 1 :].split(None, 4)[:4]
        self.is_zombie = state == b"Z"
        self.parent, self.group, self.session = int(parent), int(group), int(session)


def processes() -> dict[int, Process]:
    """Every process there is, by its number; an OSError where there is no /proc."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                found[int(name)] = Process(stat.read())
    return found


def descendants(ancestor: int, among: dict[int, Process]) -> list[int]:
    """Its children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid, process in among.items():
        children.setdefault(process.parent, []).append(pid)
    below = children.pop(ancestor, [])
    for pid in below:
        below += children.pop(pid, ())
    return below


def kill(targets: Iterable[int]) -> None:
    """SIGKILL to these processes, a negative number standing for a group; some may have ended before."""
    for target in targets:
        with suppress(OSError):
            os.kill(target, signal.SIGKILL)


def main() -> None:
    control, inherited, _, *argv = sys.argv[1:]
    Guardian(int(control)).guard(argv, [int(fd) for fd in inherited.split(",") if fd != "-"])


if __name__ == "__main__":
    main()
