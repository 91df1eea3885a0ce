"""Pressing Tab: what is in the database is not put on the prompt, and nothing of the project is imported."""

import os
import pty
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.state.workers import WorkerRegistry

from ..faults.processes import DEADLINE_S
from ..surface.registry import report
from ..surface.terminal import Terminal

BIN = Path(sys.executable).parent
HOSTILE = "zz;touch$IFS$PWD/PWNED;#"
FORGED = ("zz x", "zz\nplain,zz-injected", "zz'x", "zz$(touch PWNED)", "zz`touch PWNED`", "zz*", "-zz", "zz\x1b[2J")
PLANTED = """\
from pathlib import Path

Path(__file__).with_name("IMPORTED").touch()
hf = Engine = Middleware = None
"""
ENTRY_POINTS = """\
[holdfast.engines]
planted = planted:Engine
[holdfast.middleware]
planted = planted:Middleware
"""


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()


def offered(terminal: Terminal, *words: str, **environment: str) -> list[str]:
    asked = {"COMP_WORDS": " ".join(("holdfast", *words)), "COMP_CWORD": str(len(words))}
    answer = terminal.program(
        program=(str(BIN / "holdfast"),), _HOLDFAST_COMPLETE="bash_complete", **asked, **environment
    )
    assert (answer.code, answer.err) == (0, "")
    return [line for line in answer.out.splitlines() if line]  # Click prints an empty line for nothing


def forge(terminal: Terminal, *names: str) -> None:
    """Write rows with these names as id, queue and handler, as whoever can write the file does."""
    with sqlite3.connect(terminal.database) as connection:
        connection.executemany(
            "INSERT INTO holdfast_jobs (id, queue, job, priority, due_at, accepted_at, state)"
            " VALUES (?, ?, ?, 5, 1, 1, 1)",
            [(name, name, name) for name in names],
        )
    connection.close()


def typed_in_bash(directory: Path, keys: str) -> str:
    """What a real bash with completion shows when these keys are pressed, with Enter after them."""
    bash = shutil.which("bash")
    assert bash is not None
    ours, theirs = pty.openpty()
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb", "HISTFILE": "/dev/null"}
    shell = subprocess.Popen(
        [bash, "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=directory,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        os.write(ours, b'eval "$(holdfast completion show bash)"; echo "rea"dy\n')
        read_until(ours, "\nready")
        os.write(ours, f'{keys}\necho "fin"ished\n'.encode())
        return read_until(ours, "\nfinished")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def read_until(descriptor: int, end: str) -> str:
    shown, deadline = "", time.monotonic() + DEADLINE_S
    while end not in shown.replace("\r", ""):
        is_ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert is_ready, shown
        shown += os.read(descriptor, 65536).decode(errors="replace")
    return shown


@pytest.fixture
def forged(terminal: Terminal) -> Terminal:
    terminal("enqueue", '{"id": "zz-good", "job": "add", "queue": "zz-mail"}')
    forge(terminal, HOSTILE, *FORGED)
    with Holdfast(directory=terminal.project) as hf:
        registry = WorkerRegistry(hf.backend().state)
        registry.beat(report(HOSTILE, queues=FORGED, handlers=(HOSTILE, *FORGED, "zz-send")))
    return terminal


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show", ""], ["plain,zz-good"]),
        (["cancel", "z"], ["plain,zz-good"]),
        (["list", "--queue", "z"], ["plain,zz-mail"]),
        (["list", "--job", "z"], ["plain,zz-send"]),
        (["worker", "show", ""], []),
    ],
)
def test_only_well_formed_names_are_offered(forged: Terminal, words: list[str], expected: list[str]) -> None:
    assert offered(forged, *words) == expected


def test_an_id_in_the_database_is_not_run_by_bash(terminal: Terminal) -> None:
    terminal("enqueue", '{"id": "zz-good", "job": "add"}')
    forge(terminal, HOSTILE)
    # The well-formed id is the only one that fits, so that Tab completes it and Enter shows the job.
    shown = typed_in_bash(terminal.project, "holdfast show zz\t")
    assert "holdfast show zz-good" in shown
    assert "pending" in shown
    terminal("cancel", "zz-good")
    terminal("delete", "zz-good")
    typed_in_bash(terminal.project, "holdfast show zz\t")
    assert not (terminal.project / "PWNED").exists()


@pytest.mark.parametrize("url", ["", 'url = "planted://here"\n', 'url = "redis://127.0.0.1:1"\n'])
def test_nothing_that_the_project_names_is_imported(terminal: Terminal, url: str) -> None:
    terminal("enqueue", '{"id": "job1", "job": "add"}')
    terminal.write("planted.py", PLANTED)
    metadata = terminal.project / "planted-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    terminal.config.write_text(f'{url}app = "planted:hf"\nmiddleware = ["planted"]\nretry-policy = "planted:hf"\n')
    path = {"PYTHONPATH": str(terminal.project)}
    assert offered(terminal, "show", "", **path) == ([] if url else ["plain,job1"])
    assert offered(terminal, "worker", "start", "", **path) == ["plain,planted:hf"]
    for words in (
        ["list", "--queue", ""],
        ["list", "--job", ""],
        ["worker", "stop", ""],
        ["doctor", "--app", ""],
        [""],
    ):
        offered(terminal, *words, **path)
    assert not (terminal.project / "IMPORTED").exists()
