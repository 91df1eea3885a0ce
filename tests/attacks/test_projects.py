"""Settings that another user has planted, or could have: they decide nothing for whoever stands below them."""

import grp
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.cli.failing import USAGE

from ..surface.terminal import Terminal

PROGRAM = (sys.executable, "-P", "-m", "holdfast")
NOBODY = 65534
PLANTED = """\
url = "evil://x"
app = "evil:hf"
middleware = ["evil:hf"]
handlers = ["evil.resize=evil:hf"]
metrics = "evil:hf"
retry-policy = "evil:hf"
allowed-commands = ["touch"]
verify = false
allow-unsigned = true
[engines]
evil = "evil_engine:make"
"""
EVIL = 'from pathlib import Path\nPath(__file__).with_name("PWNED").touch()\nhf = make = resize = None\n'
ENGINE = EVIL.replace("PWNED", "OPENED")
READING = (
    "list",
    "show job1",
    "status",
    "logs job1",
    "queue list",
    "dlq list",
    "worker list",
    "health",
    "doctor",
    "backend info",
    "migrate --dry-run",
    "top --json",
    "config check",
    "config list",
    "config get lease",
    "config path",
)
CHANGING = (
    "enqueue {}",
    "run -- true",
    "worker start --burst",
    "cancel job1",
    "retry job1",
    "delete job1",
    "migrate",
    "generate systemd",
    "config set lease 5s",
    "config unset lease",
)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()


def belong_to_another(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let files belong to another user. Only root can give files away; any other user becomes another one instead."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def belong_to_a_team(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let a group with other members write a directory. Without root, the group there is gets a member."""
    path.chmod(0o775)
    if os.geteuid() == 0:
        os.chown(path, -1, NOBODY)
    else:

        def team(gid: int) -> grp.struct_group:
            return grp.struct_group(("team", "x", gid, ["ada"]))

        monkeypatch.setattr(grp, "getgrgid", team)


def _sticky(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    shared.chmod(0o1777)


def _open(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    shared.chmod(0o777)


def _open_file(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    (shared / "holdfast.toml").chmod(0o666)


def _foreign(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    belong_to_another(monkeypatch, shared, *shared.glob("*.*"))


def _foreign_file(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    belong_to_another(monkeypatch, shared / "holdfast.toml")


def _foreign_target(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    target = (shared / "holdfast.toml").rename(shared.parent / "settings.toml")
    (shared / "holdfast.toml").symlink_to(target)
    belong_to_another(monkeypatch, target)


WAYS: dict[str, Callable[[pytest.MonkeyPatch, Path], None]] = {
    "a directory like /tmp": _sticky,
    "an open directory": _open,
    "the directory of a team": belong_to_a_team,
    "the directory of another user": _foreign,
    "a file of another user": _foreign_file,
    "an open file": _open_file,
    "a link to a file of another user": _foreign_target,
}


@pytest.fixture(params=WAYS)
def shared(request: pytest.FixtureRequest, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory above the current one with planted settings."""
    shared = terminal.project.parent / "shared"
    (shared / "build").mkdir(parents=True)
    (shared / "holdfast.toml").write_text(PLANTED)
    for name in ("evil.py", "evil_engine.py"):
        (shared / name).write_text(EVIL)
    WAYS[request.param](monkeypatch, shared)
    monkeypatch.chdir(shared / "build")
    return shared


@pytest.mark.parametrize("words", [*READING, *CHANGING])
def test_no_command_uses_settings_that_another_user_can_write(terminal: Terminal, shared: Path, words: str) -> None:
    before = (shared / "holdfast.toml").read_text()
    answer = terminal(*words.split())
    assert (answer.code, answer.out) == (USAGE, "")
    assert f"refusing to use {shared}/holdfast.toml: " in answer.err
    assert f"--project {shared} …  or  HOLDFAST_PROJECT={shared}" in answer.err
    assert not (shared / "PWNED").exists()
    assert not (shared / ".holdfast").exists()
    assert (shared / "holdfast.toml").read_text() == before


def test_a_program_does_not_use_them_either(shared: Path) -> None:
    with pytest.raises(Exception, match="refusing to use"):
        Holdfast()
    with pytest.raises(Exception, match="refusing to use"):
        Holdfast(directory=shared / "build")  # only the directory itself is named


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_pressing_tab_uses_and_prints_nothing(terminal: Terminal, mode: int) -> None:
    terminal.write("evil_engine.py", EVIL)
    terminal.config.write_text(PLANTED)
    terminal.project.chmod(mode)
    asked = {"COMP_WORDS": "holdfast show ", "COMP_CWORD": "2", "_HOLDFAST_COMPLETE": "bash_complete"}
    answer = terminal.program(program=PROGRAM, **asked)
    assert (answer.code, answer.out.strip(), answer.err) == (0, "", "")
    assert not (terminal.project / "PWNED").exists()


@pytest.mark.parametrize("words", ["--project {} config get lease", "config get lease --project {}"])
def test_a_project_that_the_operator_names_is_used(terminal: Terminal, shared: Path, words: str) -> None:
    (shared / "holdfast.toml").write_text("lease = 77\n")
    assert terminal(*words.format(shared).split())[:2] == (0, "77\n")
    assert "HOLDFAST_PROJECT" not in os.environ


def test_the_option_takes_precedence_over_the_variable(
    terminal: Terminal, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "holdfast.toml").write_text("lease = 77\n")
    terminal.config.write_text("lease = 66\n")
    monkeypatch.setenv("HOLDFAST_PROJECT", str(shared))
    assert terminal("config", "get", "lease").out == "77\n"
    monkeypatch.setenv("HOLDFAST_PROJECT", str(terminal.project))
    assert terminal("config", "get", "lease").out == "66\n"
    assert terminal("--project", "..", "config", "get", "lease").out == "77\n"
    assert os.environ["HOLDFAST_PROJECT"] == str(terminal.project)
    assert terminal("--project", "nowhere", "list").code == USAGE


APP = """\
import os
from pathlib import Path
from holdfast import Holdfast
hf = Holdfast()
@hf.job
def note():
    Path(__file__).with_name("ran").write_text(os.environ["HOLDFAST_PROJECT"])
"""


def test_a_named_project_is_that_of_the_executors_as_well(terminal: Terminal, tmp_path: Path) -> None:
    terminal.write("shop.py", APP)
    terminal.config.write_text('app = "shop:hf"\n')
    terminal.project.chmod(0o1777)
    program = (*PROGRAM, "--project", ".")
    assert terminal.program("enqueue", '{"job": "note"}', program=program).code == 0
    answer = terminal.program("worker", "start", "--burst", program=program)
    assert answer.code == 0, answer.err
    assert (terminal.project / "ran").read_text() == str(terminal.project)


def test_generated_files_name_the_project(terminal: Terminal) -> None:
    terminal.project.chmod(0o1777)
    unit = terminal("--project", str(terminal.project), "generate", "systemd").out
    assert f"HOLDFAST_PROJECT={terminal.project}" in unit
    assert "HOLDFAST_PROJECT=/app" in terminal("generate", "docker", "--project", str(terminal.project)).out


@pytest.mark.parametrize("url", ["", 'url = "evil://x"\n'])
@pytest.mark.parametrize("words", READING)
def test_reading_imports_no_more_than_the_engine_of_the_url(terminal: Terminal, url: str, words: str) -> None:
    """In a repository that was only cloned, and so belongs to this user."""
    terminal("enqueue", '{"id": "job1", "job": "add"}')
    terminal.write("evil.py", EVIL)
    terminal.write("evil_engine.py", ENGINE)
    terminal.config.write_text(PLANTED.replace('url = "evil://x"\napp = "evil:hf"\n', url))
    terminal(*words.split())
    assert not (terminal.project / "PWNED").exists()
    assert (terminal.project / "OPENED").exists() == (bool(url) and not words.startswith("config"))


def test_checking_settings_finds_plugins_without_importing_them(terminal: Terminal) -> None:
    for name in ("evil.py", "evil_engine.py"):
        terminal.write(name, EVIL)
    terminal.config.write_text(PLANTED)
    answer = terminal("config", "check")
    assert (answer.code, "cannot find" in answer.out) == (0, False), answer.out
    terminal.config.write_text(PLANTED.replace("evil:hf", "gone:hf").replace("evil_engine", "gone"))
    answer = terminal("config", "check")
    assert answer.code == USAGE
    for sentence in (
        "cannot find the engine 'gone:make': there is no module 'gone'",
        "cannot find the middleware 'gone:hf'",
        "cannot find the handler 'gone:hf'",
        "cannot find the retry policy 'gone:hf'",
        "cannot find the metrics collector 'gone:hf'",
    ):
        assert sentence in answer.out
    assert not (terminal.project / "PWNED").exists()


def test_doctor_knows_the_handlers_of_the_settings_without_importing_them(terminal: Terminal) -> None:
    terminal.write("evil.py", EVIL)
    terminal.write("shop.py", "from holdfast import Holdfast\nhf = Holdfast()\n")
    terminal.config.write_text('app = "shop:hf"\nhandlers = ["evil.resize=evil:resize"]\n')
    terminal("enqueue", '{"job": "evil.resize"}')
    terminal("enqueue", '{"job": "evil.other"}')
    answer = terminal("doctor")
    assert "1 waiting job cannot be run by shop:hf: no handler 'evil.other'" in answer.out
    assert "no handler 'evil.resize'" not in answer.out
    assert not (terminal.project / "PWNED").exists()


@pytest.mark.parametrize("plant", ["link", "file"])
def test_a_planted_temporary_file_is_not_written_through(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    """`config set` in a directory that others can write, which the operator has named."""
    target = terminal.project.parent / "target"
    target.write_text("mine")
    terminal.project.chmod(0o777)
    monkeypatch.setenv("HOLDFAST_PROJECT", str(terminal.project))

    def planted_at(name: str) -> None:
        path = terminal.project / name
        if plant == "link":
            path.symlink_to(target)
        else:
            path.write_text("theirs")
            path.chmod(0o666)

    planted_at(f".holdfast.toml.{os.getpid()}")
    terminal.config.unlink()
    assert terminal("config", "set", "url", "postgresql://ada:hunter2@db/shop").code == 0
    assert target.read_text() == "mine"
    assert not terminal.config.is_symlink()
    status = terminal.config.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o600)
    # Even a name that was guessed is not opened.

    def guessed(size: int) -> str:
        return "guessed"

    monkeypatch.setattr("secrets.token_hex", guessed)
    planted_at(".holdfast.toml.guessed")
    before = terminal.config.read_text()
    answer = terminal("config", "set", "lease", "5s")
    assert (answer.code, answer.err.splitlines()[0]) == (5, f"holdfast: {terminal.config}: File exists")
    assert (target.read_text(), terminal.config.read_text()) == ("mine", before)
    assert os.path.lexists(terminal.project / ".holdfast.toml.guessed")
