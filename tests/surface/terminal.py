"""A terminal in a project of its own: the command line called in this process, or started as the program it is."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli import main

from ..faults.processes import DEADLINE_S

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Answer(NamedTuple):
    """What a command left: its exit code, its data, its remarks."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The error of a command that was to speak JSON: one document on stderr, and nothing on stdout."""
        assert self.out == ""
        document: dict[str, Any] = json.loads(self.err)
        assert list(document) == ["schema", "error"]
        assert document["schema"] == "holdfast.error/1"
        error: dict[str, str] = document["error"]
        return error


class _Keyboard(io.TextIOWrapper):
    """A stdin that somebody types."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """Stands in the directory `project`, whose `holdfast.toml` is empty; HOME and its like are there too."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.project = directory / "project"
        self.home = directory / "home"
        self.database = self.project / ".holdfast" / "jobs.db"
        self.config = self.project / "holdfast.toml"
        self.project.mkdir()
        self.home.mkdir()
        self.config.touch()
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._started: list[subprocess.Popen[str]] = []
        self._screens: list[Screen] = []
        for name in [name for name in os.environ if name.startswith("HOLDFAST")]:
            monkeypatch.delenv(name)
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(self.home))
        for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
            monkeypatch.setenv(f"XDG_{kind}_HOME", str(self.home / kind.lower()))
        monkeypatch.setenv("PYTHONIOENCODING", "utf-8")
        monkeypatch.chdir(self.project)

    def __call__(self, *words: str, stdin: str | bytes = b"", typed: str | None = None) -> Answer:
        """Run a command in this process: with something on stdin, or with somebody at the keyboard."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        keyboard = None if typed is None else _Keyboard(io.BytesIO(typed.encode()), encoding="utf-8")
        piped = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8")
        self._monkeypatch.setattr(sys, "stdin", keyboard or piped)
        self._capsys.readouterr()
        with undone(self.project):
            code = self.call(*words)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)

    def call(self, *words: str) -> int:
        """Run a command in this process with stdin, stdout and stderr as they are, and return its exit code."""
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        code = ended.value.code
        assert isinstance(code, int)
        return code

    def start(self, *words: str, program: tuple[str, ...] = (), **environment: str) -> "subprocess.Popen[str]":
        """Start the program itself; what it prints can be read while it runs."""
        process = subprocess.Popen(
            [*(program or (sys.executable, "-m", "holdfast")), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env={**os.environ, **environment},
        )
        self._started.append(process)
        return process

    def program(self, *words: str, stdin: str = "", program: tuple[str, ...] = (), **environment: str) -> Answer:
        """Run the program itself to its end."""
        return ended(self.start(*words, program=program, **environment), stdin)

    def on_screen(self, *words: str, columns: int = 80, stdout: int | None = None, **environment: str) -> "Screen":
        """Start the program with a terminal of its own; its stdout may go elsewhere."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            text=True,
            cwd=self.project,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        os.close(theirs)
        self._started.append(process)
        screen = Screen(process, ours)
        self._screens.append(screen)
        return screen

    def close(self) -> None:
        """End what a failed test has left running: twice asked, a worker takes its job's processes with it."""
        for process in self._started:
            for _ in range(2):
                process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        for screen in self._screens:
            os.close(screen.descriptor)

    def write(self, name: str, text: str | bytes) -> Path:
        """A file of the project."""
        path = self.project / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def jobs(self) -> list[dict[str, Any]]:
        """Every job there is, oldest first; none before there is a database."""
        if not self.database.exists():
            return []
        found: list[dict[str, Any]] = self("list", "--json", "--limit", "10000").json
        return found[::-1]

    def job(self, job_id: str) -> dict[str, Any]:
        """One job with its history."""
        found: dict[str, Any] = self("show", job_id, "--json").json
        return found


class Screen:
    """What a program has written to its terminal, control characters included."""

    def __init__(self, process: "subprocess.Popen[str]", descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.text = ""

    def wait_for(self, text: str) -> None:
        """Read on until this text has come."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.text:
            assert self._reads_on(deadline), f"{text!r} did not come:\n{self.text!r}"

    def ended(self) -> int:
        """The exit code, once the program has ended and all it wrote is read."""
        deadline = time.monotonic() + DEADLINE_S
        while self._reads_on(deadline):
            pass
        return self.process.wait(DEADLINE_S)

    @property
    def rows(self) -> list[str]:
        """The lines as somebody would see them: a carriage return writes over what was there."""
        seen: list[str] = []
        for line in self.text.replace("\r\n", "\n").split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            seen.append("".join(cells).rstrip())
        return seen

    def _reads_on(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.descriptor], [], [], left)[0]:
            return False
        try:
            said = os.read(self.descriptor, 65536)
        except OSError:  # so Linux says that the program has closed its end
            return False
        self.text += said.decode(errors="replace")
        return bool(said)


def ended(process: "subprocess.Popen[str]", stdin: str = "") -> Answer:
    """What a program left when it ended."""
    out, err = process.communicate(stdin, timeout=DEADLINE_S)
    return Answer(process.returncode, out, err)


@contextmanager
def undone(project: Path) -> Generator[None]:
    """Take back what a program may do to its process, because it ends: signal handlers, import paths, modules."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    path = list(sys.path)
    modules = set(sys.modules)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.path[:] = path
        sys.path_importer_cache.pop(str(project), None)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(project)):
                del sys.modules[name]
