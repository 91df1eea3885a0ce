"""Real processes: started by a test, waited for by what they do, and ended by their number whatever happens."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
LOOK_EVERY_S = 0.005
_MEMORY = Path("/dev/shm")


def until(look: Callable[[], T], what: str, *, within_s: float = DEADLINE_S) -> T:
    """What `look` answers as soon as it is something; an error that says what was waited for if it never is."""
    give_up_at = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < give_up_at, f"waited {within_s:g} s in vain for: {what}"
        time.sleep(LOOK_EVERY_S)
    return seen


class Program:
    """One process and what it prints, kept in files so that it never waits for a reader."""

    def __init__(self, arguments: list[str], directory: Path, environment: Mapping[str, str], number: int) -> None:
        self._stdout = directory / f"{number}.stdout"
        self._stderr = directory / f"{number}.stderr"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                arguments, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr
            )
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self._stdout.read_text()

    def said_lines(self) -> list[str]:
        """The lines it has finished."""
        return self.said.split("\n")[:-1]

    @property
    def complained(self) -> str:
        return self._stderr.read_text()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

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

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def ended(self, *, within_s: float = DEADLINE_S) -> int:
        """Its exit code; it has to end by itself."""
        return self._process.wait(within_s)

    def succeeded(self) -> str:
        """What it printed; it has to end by itself, and well."""
        code = self.ended()
        assert code == 0, f"exit code {code}:\n{self.said}{self.complained}"
        return self.said

    def bury(self) -> None:
        if self.runs:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


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
        for program in self._started:
            program.bury()


@contextmanager
def quick_directory() -> Generator[Path]:
    """A directory in memory where there is one: a killed process loses nothing there, and nobody waits for a disk."""
    made = tempfile.mkdtemp(prefix="holdfast-", dir=_MEMORY if _MEMORY.is_dir() else None)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made)
