"""`generate`: the files give an attacker nothing, whatever the directory of the project is called or holds."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import __version__

from ..surface.terminal import Terminal

KINDS = ("systemd", "docker", "compose")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()


def dockerfile(terminal: Terminal) -> list[str]:
    assert terminal("generate", "docker", "--output", ".").code == 0
    return (terminal.project / "Dockerfile").read_text().splitlines()


def test_the_image_installs_a_wheel_that_was_copied_and_nothing_by_name(terminal: Terminal) -> None:
    lines = [line for line in dockerfile(terminal) if not line.startswith("#")]
    wheel = f"holdfast-{__version__}-py3-none-any.whl"
    copied, installed = f"COPY {wheel} /wheels/", f'RUN pip install --no-cache-dir "/wheels/{wheel}"'
    # The exact name: where a pattern matches nothing, BuildKit copies nothing and goes on.
    assert copied in lines
    assert [line for line in lines if "pip" in line] == [installed]
    assert lines.index(copied) < lines.index(installed)


@pytest.mark.parametrize(
    "secret", [".holdfast/jobs.db", "a/b/.holdfast/x", "a/signing.key", "a/jobs.db-wal", "a/prod.env", "a/.env.local"]
)
def test_no_secret_gets_into_the_image_from_any_depth(terminal: Terminal, secret: str) -> None:
    dockerfile(terminal)
    patterns = (terminal.project / ".dockerignore").read_text().splitlines()
    assert all(pattern.startswith("**/") for pattern in patterns)
    path = Path(secret)
    names = [pattern.removeprefix("**/") for pattern in patterns]
    assert any(part.match(name) for name in names for part in (path, *path.parents))


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_with_a_line_feed_adds_no_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = terminal.project / "x\nUser=root\n#"
    place.mkdir()
    (place / "holdfast.toml").touch()
    monkeypatch.chdir(place)
    answer = terminal("generate", kind)
    assert (answer.code, answer.out) == (2, "")
    assert "has control characters" in answer.err


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_link_is_not_written_through(terminal: Terminal, tmp_path: Path, force: tuple[str, ...]) -> None:
    target = tmp_path / "target"
    (terminal.project / "Dockerfile").symlink_to(target)
    assert terminal("generate", "docker", "--output", ".", *force).code != 0
    assert not target.exists()
    target.write_text("mine")
    assert terminal("generate", "docker", "--output", ".", *force).code != 0
    assert target.read_text() == "mine"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_the_service_is_confined(terminal: Terminal) -> None:
    assert terminal("generate", "systemd", "--output", ".").code == 0
    unit = terminal.project / "holdfast-worker.service"
    # In tenths: 3.0 of 10, where a service without any of these lines has 9.6.
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
