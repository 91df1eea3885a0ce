"""Modules that another user has planted in the current directory: no process of a worker imports them."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..surface.terminal import Terminal, ended

PROGRAM = (sys.executable, "-P", "-m", "holdfast")
PLANTS = ("msgspec.py", "socket.py", "click.py", "selectors.py", "holdfast/__init__.py")
PLANTED = "from pathlib import Path\nPath({path!r}).touch()\nraise SystemExit(3)\n"


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()


@pytest.fixture(params=["in a project", "outside any project"])
def marker(request: pytest.FixtureRequest, terminal: Terminal) -> Path:
    """The file that a planted module creates."""
    if request.param == "outside any project":
        terminal.config.unlink()
    marker = terminal.home / "PWNED"
    for plant in PLANTS:
        path = terminal.project / plant
        path.parent.mkdir(exist_ok=True)
        path.write_text(PLANTED.format(path=str(marker)))
    return marker


def test_a_worker_and_its_executors_import_nothing_from_the_current_directory(terminal: Terminal, marker: Path) -> None:
    assert terminal.program("enqueue", '{"job": "unknown"}', program=PROGRAM).code == 0
    answer = terminal.program("worker", "start", "--burst", program=PROGRAM)
    assert (answer.code, marker.exists()) == (0, False), answer.err


def test_a_worker_that_reloads_imports_nothing_from_the_current_directory(terminal: Terminal, marker: Path) -> None:
    process = terminal.start("worker", "start", "--reload", program=PROGRAM)
    assert process.stderr is not None
    shown = ""
    for line in process.stderr:
        shown += line
        if line.startswith(("queues default", "the worker exited")):
            break
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert (code, marker.exists()) == (0, False), shown + err


def test_an_application_of_the_settings_is_not_searched_where_others_can_write(terminal: Terminal) -> None:
    """Below the project is a directory for uploads, and the operator stands there."""
    uploads = terminal.project / "uploads"
    uploads.mkdir()
    marker = terminal.home / "PWNED"
    for name in ("shop.py", "colorsys.py"):
        (uploads / name).write_text(PLANTED.format(path=str(marker)))
    terminal.write("shop.py", "import colorsys\nfrom holdfast import Holdfast\nhf = Holdfast()\n")
    terminal.config.write_text('app = "shop:hf"\n')
    stand_there = ("env", "-C", str(uploads), *PROGRAM)
    answer = terminal.program("worker", "start", "--burst", program=stand_there)
    assert (answer.code, marker.exists()) == (2, True)  # a directory of this user's is searched
    marker.unlink()
    uploads.chmod(0o777)
    for words in (["worker", "start", "--burst"], ["doctor"], ["worker", "start", "shop:hf", "--burst"]):
        answer = terminal.program(*words, program=stand_there)
        assert (answer.code, marker.exists()) == (0, False), answer.err
    answer = terminal.program("worker", "start", "nowhere:hf", program=stand_there)
    why = "was not searched, because another user can write to it"
    assert f"there is no module 'nowhere'; {uploads} {why}; to search it, pass  --project {uploads}" in answer.err
    # Naming the project says nothing about the directory where the operator stands.
    answer = terminal.program("--project", str(terminal.project), "worker", "start", "--burst", program=stand_there)
    assert (answer.code, marker.exists()) == (0, False), answer.err


def test_the_plants_work_where_the_current_directory_is_searched(terminal: Terminal, marker: Path) -> None:
    answer = terminal.program("version", program=(sys.executable, "-m", "holdfast"))
    assert (answer.code, marker.exists()) == (3, True)
