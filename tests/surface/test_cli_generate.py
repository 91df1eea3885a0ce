"""`generate`: what it writes is what systemd, Docker and Compose read."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from holdfast import __version__
from holdfast.cli import cli

from .terminal import Terminal

CHOICES = ("--app", "shop:hf", "--count", "4", "--queue", "mail:3,default", "--user", "shop")


def files(terminal: Terminal, *words: str) -> dict[str, str]:
    answer = terminal("generate", *words, "--json")
    assert answer.code == 0
    assert answer.json["schema"] == "holdfast.files/1"
    return {file["name"]: file["text"] for file in answer.json["files"]}


def entries(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)


def command_of(words: Sequence[str]) -> click.Command:
    command: click.Command | None = cli
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def option_of(words: Sequence[str], name: str) -> dict[str, Any]:
    """What a command says of one of its options."""
    command = command_of(words)
    [option] = [param for param in command.params if name in param.opts]
    return option.to_info_dict()


def is_a_start(words: list[str]) -> None:
    """What is started is a command of ours, with options it knows."""
    context = command_of(words[:2]).make_context("start", words[2:])
    assert context.params["app"] == "shop:hf"
    assert context.params["queues"] == {"mail": 3, "default": 1}
    assert context.params["count"] == 4


def test_the_service_starts_the_worker_as_asked(terminal: Terminal) -> None:
    [(name, text)] = files(terminal, "systemd", *CHOICES).items()
    unit = entries(text)
    assert name == "holdfast-worker.service"
    assert (unit["Type"], unit["User"], unit["WorkingDirectory"]) == ("notify", "shop", str(terminal.project))
    program, *words = shlex.split(unit["ExecStart"])
    assert Path(program).is_file()
    is_a_start(words[words.index("worker") :])
    assert int(unit["TimeoutStopSec"]) > 30 + 10
    assert unit["KillMode"] == "mixed"


@pytest.mark.parametrize("option", ["--queue", "--count", "--concurrency", "--grace"])
@pytest.mark.parametrize("command", ["systemd", "docker", "compose"])
def test_an_option_that_the_worker_has_too_means_the_same(command: str, option: str) -> None:
    assert option_of(("generate", command), option) == option_of(("worker", "start"), option)


def test_a_printed_service_says_where_it_belongs(terminal: Terminal) -> None:
    assert "save it as /etc/systemd/system/shop.service" in terminal("generate", "systemd", "--name", "shop").err
    assert "save it as" not in terminal("generate", "systemd", "--output", ".").err


def test_the_service_may_write_to_every_embedded_database(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "slow jobs").mkdir()
    urls = {"slow": f"sqlite:///{tmp_path}/slow%20jobs/jobs.db", "far": "redis://db", "near": "sqlite:///near.db"}
    terminal.config.write_text("[backends]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()))
    [text] = files(terminal, "systemd").values()
    writable = [line.removeprefix("ReadWritePaths=") for line in text.splitlines() if line.startswith("ReadWrite")]
    assert writable == [str(terminal.project), f'"{tmp_path}/slow jobs"']


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("directory", ["project", "100% $HOME \"quoted\" 'place'"])
def test_systemd_understands_the_service(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, directory: str
) -> None:
    place = tmp_path / directory
    place.mkdir(exist_ok=True)
    (place / "holdfast.toml").touch()
    monkeypatch.chdir(place)
    assert terminal("generate", "systemd", "--app", "shop:hf", "--user", "daemon", "--output", str(tmp_path)).code == 0
    unit = tmp_path / "holdfast-worker.service"
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True
    )
    said = [line for line in checked.stderr.splitlines() if "holdfast" in line]
    assert (checked.returncode, said) == (0, []), checked.stderr


def test_a_grace_without_end_is_waited_for(terminal: Terminal) -> None:
    [text] = files(terminal, "systemd", "--grace", "0").values()
    assert entries(text)["TimeoutStopSec"] == "infinity"


def test_nothing_is_run_by_root(terminal: Terminal) -> None:
    for kind in ("systemd", "docker", "compose"):
        answer = terminal("generate", kind, "--user", "root")
        assert answer.code == 2
        assert "not to be run by root" in answer.err


def instructions(dockerfile: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in dockerfile.splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        assert name.isupper(), line
        found.setdefault(name, []).append(rest)
    return found


def test_the_image_is_not_roots_and_has_a_health_check(terminal: Terminal) -> None:
    made = files(terminal, "docker", *CHOICES)
    assert sorted(made) == [".dockerignore", "Dockerfile"]
    steps = instructions(made["Dockerfile"])
    assert next(iter(steps)) == "FROM"
    assert steps["USER"] == ["10001"]
    assert "useradd" in steps["RUN"][0]
    assert steps["STOPSIGNAL"] == ["SIGTERM"]
    check = json.loads(steps["HEALTHCHECK"][0].partition("CMD ")[2])
    assert check == ["holdfast", "health", "--live", "--url", "http://127.0.0.1:7001"]
    program, *words = json.loads(steps["CMD"][0])
    assert program == "holdfast"
    assert words[-2:] == ["--probe-port", "7001"]
    is_a_start(words)
    assert ".holdfast" in made[".dockerignore"].splitlines()
    assert "*.db" in made[".dockerignore"].splitlines()
    assert "*.key" in made[".dockerignore"].splitlines()


def test_the_image_installs_what_the_project_needs(terminal: Terminal) -> None:
    def installs() -> str:
        return instructions(files(terminal, "docker")["Dockerfile"])["RUN"][1]

    assert installs() == 'pip install --no-cache-dir "holdfast"'
    terminal.write("requirements.txt", "flask\n")
    assert installs() == 'pip install --no-cache-dir "holdfast" -r requirements.txt'
    terminal.write("pyproject.toml", '[project]\nname = "shop"\n')
    terminal.config.write_text('url = "postgresql://db/shop"\n')
    assert installs() == 'pip install --no-cache-dir "holdfast[postgres]" .'


def test_the_image_says_how_to_install_what_is_not_published(terminal: Terminal) -> None:
    terminal.config.write_text('url = "postgresql://db/shop"\n')
    lines = files(terminal, "docker")["Dockerfile"].splitlines()
    install = next(number for number, line in enumerate(lines) if line.startswith("RUN pip install"))
    told = " ".join(line.removeprefix("# ") for line in lines[install - 3 : install])
    assert told.startswith("Holdfast is not published yet.")
    assert "pip wheel --no-deps --wheel-dir . path/to/checkout" in told
    # What is to be written instead is a wheel of this version, and what stands there is what it replaces.
    wheel, replaced = re.findall(r'"([^"]+)"', told)
    assert wheel == f"./holdfast-{__version__}-py3-none-any.whl[postgres]"
    assert f'"{replaced}"' in lines[install]


def service(terminal: Terminal, *words: str) -> dict[str, Any]:
    document = yaml.safe_load(files(terminal, "compose", *words)["compose.yaml"])
    assert sorted(document) == ["services", "volumes"]
    found: list[dict[str, Any]] = list(document["services"].values())
    assert len(found) == 1
    return found[0]


def test_compose_runs_the_same_worker(terminal: Terminal) -> None:
    found = service(terminal, *CHOICES)
    is_a_start(found["command"][1:])
    assert found["user"] == "10001"
    assert found["healthcheck"]["test"][:3] == ["CMD", "holdfast", "health"]
    assert found["environment"] == {"HOLDFAST_URL": "sqlite:////var/lib/holdfast/jobs.db"}
    assert found["volumes"] == ["jobs:/var/lib/holdfast"]
    assert found["stop_grace_period"] == "60s"


def test_compose_asks_for_what_is_secret(terminal: Terminal) -> None:
    terminal.config.write_text('url = "postgresql://ada:hunter2@db/shop"\n')
    answer = terminal("generate", "compose")
    assert "hunter2" not in answer.out + answer.err
    environment = service(terminal)["environment"]
    assert environment["HOLDFAST_URL"].startswith("${HOLDFAST_URL:?")
    assert environment["HOLDFAST_SIGNING_KEY"].startswith("${HOLDFAST_SIGNING_KEY:?")


def test_files_that_are_kept_apart_still_build_the_project(terminal: Terminal) -> None:
    (terminal.project / "deploy").mkdir()
    answer = terminal("generate", "compose", "--output", "deploy")
    assert answer.out.splitlines()[-1] == "✓ deploy/Dockerfile.dockerignore"
    [(name, found)] = yaml.safe_load((terminal.project / "deploy/compose.yaml").read_text())["services"].items()
    assert found["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    answer = terminal("generate", "docker", "--output", "deploy", "--force")
    assert f"docker build -t {name} -f deploy/Dockerfile {terminal.project}" in answer.err


def test_files_are_written_whole_or_not_at_all(terminal: Terminal) -> None:
    terminal.write("Dockerfile", "FROM scratch\n")
    answer = terminal("generate", "compose", "--output", ".")
    assert answer.code == 4
    assert "Dockerfile is there already; nothing was written" in answer.err
    assert not (terminal.project / "compose.yaml").exists()
    answer = terminal("generate", "compose", "--output", ".", "--force")
    assert answer.out.splitlines() == ["✓ compose.yaml", "✓ Dockerfile", "✓ .dockerignore"]
    assert (terminal.project / "Dockerfile").read_text().startswith("FROM python:")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--app", "shop;rm -rf"], "is no application"),
        (["--user", "a b"], "is no name of a user"),
        (["--name", "../x"], "make a name"),
        (["--output", "nowhere"], "nowhere is no directory"),
        (["--count", "0"], "--count"),
    ],
)
def test_what_cannot_be_written_into_a_file_is_refused(terminal: Terminal, words: list[str], why: str) -> None:
    answer = terminal("generate", "systemd", *words)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
