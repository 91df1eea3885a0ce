"""Real processes: started by a test, observed by their output, and finally killed by their process id."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.worker.executors import guardian

from .ledgers import GrowingFile, text_of

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
LOOK_EVERY_S = 0.005
_MEMORY = Path("/dev/shm")


def until(look: Callable[[], T], what: str, *, within_s: float = DEADLINE_S) -> T:
    """The first true result of `look`; raises an error that names what was expected if there is none in time."""
    give_up_at = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < give_up_at, f"waited {within_s:g} s in vain for: {what}"
        time.sleep(LOOK_EVERY_S)
    return seen


def parent_of(pid: int) -> int:
    """The id of its parent; 0 if it has exited."""
    try:
        return guardian.Process(Path(f"/proc/{pid}/stat").read_bytes()).parent
    except OSError:
        return 0


def lives(pid: int) -> bool:
    """Whether it is running or stopped; a zombie is neither."""
    try:
        return not guardian.Process(Path(f"/proc/{pid}/stat").read_bytes()).is_zombie
    except OSError:
        return False


def stands_still(pid: int) -> bool:
    """Whether all its threads are stopped."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one has just exited
        return False
    return all(stat.rpartition(")")[2].split()[0] in "TZ" for stat in stats)


def stop(pid: int) -> None:
    """Stop this process. All its threads are stopped when this returns: until then, they react to what happens."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stands_still(pid), "it to stand still")


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """Stop this process during the block."""
    try:
        stop(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def descriptors_of(pid: int) -> Counter[str]:
    """Its open descriptors: the names of files, and the numbers of sockets and pipes."""
    names: Counter[str] = Counter()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            names[os.readlink(f"/proc/{pid}/fd/{fd}").split(":[")[0]] += 1
    return names


def resident_of(pid: int) -> int:
    """Its resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def living_in(directory: Path) -> list[int]:
    """Every process with this working directory: all descendants of a program that was started there."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd") == str(directory):
                found.append(int(name))
    return found


class Kin(NamedTuple):
    """A guardian and its executor child."""

    guardian: int
    child: int


class Program:
    """One process and its output, which goes to files so that the process never waits for a reader."""

    def __init__(self, arguments: list[str], directory: Path, environment: Mapping[str, str], number: int) -> None:
        self._stdout = directory / f"{number}.stdout"
        self._stderr = directory / f"{number}.stderr"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                arguments, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
            )
        self.pid = self._process.pid
        self._lines = GrowingFile(self._stdout)

    @property
    def said(self) -> str:
        return text_of(self._stdout)

    def said_lines(self) -> list[str]:
        """The complete lines of its output."""
        return self._lines.lines()

    @property
    def complained(self) -> str:
        return text_of(self._stderr)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kin(self) -> list[Kin]:
        """The running guardians and children of a worker."""
        found = {pid: it for pid, it in guardian.processes().items() if not it.is_zombie}
        guardians = {pid for pid, it in found.items() if it.parent == self.pid}
        return [Kin(it.parent, pid) for pid, it in found.items() if it.parent in guardians]

    def below(self) -> list[int]:
        """All its descendants, including zombies."""
        return guardian.descendants(self.pid, guardian.processes())

    def zombies(self) -> list[int]:
        """Its descendants that have exited but were not reaped."""
        found = guardian.processes()
        return [pid for pid in guardian.descendants(self.pid, found) if found[pid].is_zombie]

    def wait_for(self, text: str, *, within_s: float = DEADLINE_S) -> None:
        """Wait until it has printed that text."""

        def has_said_it() -> bool:
            everything = self.said + self.complained
            assert text in everything or self.runs, f"it ended without saying {text!r}:\n{everything}"
            return text in everything

        until(has_said_it, f"{text!r} from process {self.pid}", within_s=within_s)

    def tell(self, text: str = "go") -> None:
        """Write one line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Send SIGKILL, and wait until it has exited."""
        self._process.kill()
        self._process.wait()

    def ended(self, *, within_s: float = DEADLINE_S) -> int:
        """Its exit code; it must exit by itself."""
        return self._process.wait(within_s)

    def succeeded(self) -> str:
        """Its output; it must exit by itself, with code 0."""
        code = self.ended()
        assert code == 0, f"exit code {code}:\n{self.said}{self.complained}"
        return self.said

    def bury(self) -> None:
        if self.runs:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Slayer:
    """Kills with SIGKILL, and records which processes must exit as a result."""

    def __init__(self) -> None:
        self.victims: list[int] = []
        self.doomed: set[int] = set()

    def kill(self, pid: int) -> None:
        """Kill this process; the descendants of a worker or a guardian must exit as well."""
        self.doomed |= {pid, *guardian.descendants(pid, guardian.processes())}
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.victims.append(pid)


class Programs:
    """Starts Python programs in one directory, with only the settings given here."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self._started: list[Program] = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        imports = os.pathsep.join([*filter(None, [inherited.get("PYTHONPATH")]), str(ROOT)])
        self._environment = inherited | settings | {"PYTHONPATH": imports}

    def start(self, *command: str, **settings: str) -> Program:
        program = Program(list(command), self.directory, self._environment | settings, len(self._started))
        self._started.append(program)
        return program

    def module(self, *arguments: str, **settings: str) -> Program:
        """Start a Python module with its arguments."""
        return self.start(sys.executable, "-m", *arguments, **settings)

    def holdfast(self, *arguments: str, **settings: str) -> Program:
        """Start the command line."""
        return self.module("holdfast", *arguments, **settings)

    def end_all(self) -> None:
        """Kill all remaining processes, and check that none of their descendants survives."""
        for program in self._started:
            program.bury()
        try:
            until(lambda: not living_in(self.directory), "everything that was started here to be gone")
        finally:
            guardian.kill(living_in(self.directory))


@contextmanager
def quick_directory() -> Generator[Path]:
    """A directory in memory if possible: a killed process loses nothing there, and no test waits for a disk."""
    made = tempfile.mkdtemp(prefix="holdfast-", dir=_MEMORY if _MEMORY.is_dir() else None)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made)
