"""`generate`: what it writes is what systemd, Docker and Compose read."""

import json
import shlex
import shutil
import subprocess
import sys
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


def files(terminal: Terminal, kind: str, *words: str) -> dict[str, str]:
    """The files that the command writes, by name."""
    place = terminal.project
    before = {path.name for path in place.iterdir()}
    assert terminal("generate", kind, *words, "--output", ".").code == 0
    made = [path for path in place.iterdir() if path.name not in before]
    texts = {path.name: path.read_text() for path in made}
    for path in made:
        path.unlink()
    return texts


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
    assert unit["TimeoutStopSec"] == "infinity"
    assert unit["KillMode"] == "mixed"


@pytest.mark.parametrize("option", ["--queue", "--count", "--concurrency", "--grace"])
@pytest.mark.parametrize("command", ["systemd", "docker", "compose"])
def test_an_option_that_the_worker_has_too_means_the_same(command: str, option: str) -> None:
    assert option_of(("generate", command), option) == option_of(("worker", "start"), option)


def test_the_next_steps_of_a_service_fit_where_it_was_written(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = terminal("generate", "systemd", "--name", "shop", "--user", "ada")
    assert printed.err.splitlines() == [
        f"first:  install -d -m 700 -o ada {terminal.project}/.holdfast",
        "save it as /etc/systemd/system/shop.service",
        "then:  systemctl daemon-reload && systemctl enable --now shop.service",
    ]
    terminal("enqueue", '{"job": "add"}')
    (terminal.project / "a b").mkdir()
    assert terminal("generate", "systemd", "--output", "a b").err.splitlines() == [
        "then:  cp 'a b/holdfast-worker.service' /etc/systemd/system && systemctl daemon-reload && "
        "systemctl enable --now holdfast-worker.service"
    ]
    monkeypatch.setattr("holdfast.cli.generate.UNITS", terminal.project / "a b")
    assert "cp " not in terminal("generate", "systemd", "--output", "a b").err


def test_the_service_may_write_to_the_databases_and_nothing_else(terminal: Terminal, tmp_path: Path) -> None:
    urls = {"slow": f"sqlite:///{tmp_path}/slow%20$jobs/jobs.db", "far": "redis://db"}
    terminal.config.write_text("[backends]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items()))
    [text] = files(terminal, "systemd").values()
    assert entries(text)["ReadWritePaths"] == f'{terminal.project}/.holdfast "{tmp_path}/slow $jobs"'
    assert entries(text)["ProtectSystem"] == "strict"
    for url in ("sqlite:///near.db", f"sqlite:///{tmp_path}/above.db"):
        terminal.config.write_text(f'url = "{url}"\n')
        refused = terminal("generate", "systemd")
        assert (refused.code, refused.out) == (2, "")
        assert f"move the database, for example to {terminal.project}/.holdfast/" in refused.err


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


@pytest.mark.parametrize(
    ("words", "systemd", "compose"),
    [((), "infinity", "8760h"), (("--grace", "0"), "infinity", "8760h"), (("--grace", "2m"), "150", "150s")],
)
def test_the_stop_timeout_is_longer_than_the_grace_period(
    terminal: Terminal, words: Sequence[str], systemd: str, compose: str
) -> None:
    [unit] = files(terminal, "systemd", *words).values()
    assert entries(unit)["TimeoutStopSec"] == systemd
    made = files(terminal, "compose", *words)
    [service] = yaml.safe_load(made["compose.yaml"])["services"].values()
    assert service["stop_grace_period"] == compose
    assert "terminationGracePeriodSeconds" in made["Dockerfile"]


def test_the_files_start_a_worker_of_the_default_queue_and_of_declared_ones_only(terminal: Terminal) -> None:
    terminal.config.write_text('default-queue = "mail"\nqueues = ["mail", "reports"]\n')
    [unit] = files(terminal, "systemd").values()
    assert " --queue mail " in entries(unit)["ExecStart"]
    answer = terminal("generate", "systemd", "--queue", "report")
    assert (answer.code, answer.err) == (2, "holdfast: queue 'report' is not declared; did you mean 'reports'?\n")


def test_nothing_is_run_by_root(terminal: Terminal) -> None:
    for kind in ("systemd", "docker", "compose"):
        answer = terminal("generate", kind, "--user", "root")
        assert answer.code == 2
        assert "jobs must not run as root" in answer.err


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


def test_the_image_installs_what_the_project_needs(terminal: Terminal) -> None:
    wheel = f"/wheels/holdfast-{__version__}-py3-none-any.whl"

    def installs() -> str:
        return instructions(files(terminal, "docker")["Dockerfile"])["RUN"][1]

    assert installs() == f'pip install --no-cache-dir "{wheel}"'
    terminal.write("requirements.txt", "flask\n")
    assert installs() == f'pip install --no-cache-dir "{wheel}" -r requirements.txt'
    terminal.write("pyproject.toml", '[project]\nname = "shop"\n')
    terminal.config.write_text('url = "postgresql://db/shop"\n')
    assert installs() == f'pip install --no-cache-dir "{wheel}[postgres]" .'


def test_the_wheel_is_asked_for_until_it_is_there(terminal: Terminal) -> None:
    first = f"first:  pip wheel --no-deps --wheel-dir {terminal.project} path/to/holdfast/checkout"
    assert first in terminal("generate", "docker").err
    assert first in terminal("generate", "compose").err
    terminal.write(f"holdfast-{__version__}-py3-none-any.whl", "")
    assert "first:" not in terminal("generate", "compose").err


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
    assert found["environment"] == {}
    assert found["volumes"] == ["jobs:/var/lib/holdfast"]
    assert found["stop_grace_period"] == "8760h"


def test_compose_asks_for_what_is_secret(terminal: Terminal) -> None:
    terminal.config.write_text('url = "postgresql://ada:hunter2@db/shop"\n')
    answer = terminal("generate", "compose")
    assert "hunter2" not in answer.out + answer.err
    environment = service(terminal)["environment"]
    assert environment["HOLDFAST_URL"].startswith("${HOLDFAST_URL:?")
    assert environment["HOLDFAST_SIGNING_KEY"].startswith("${HOLDFAST_SIGNING_KEY:?")


def test_the_image_has_its_database_in_the_volume(terminal: Terminal) -> None:
    steps = instructions(files(terminal, "docker")["Dockerfile"])
    assert steps["ENV"] == [
        "PYTHONSAFEPATH=1 HOLDFAST_SESSION_DIR=/var/lib/holdfast/sessions HOLDFAST_PROJECT=/app "
        "HOLDFAST_URL=sqlite:////var/lib/holdfast/jobs.db"
    ]
    assert steps["VOLUME"] == ["/var/lib/holdfast"]


def test_files_in_another_directory_still_build_the_project(terminal: Terminal) -> None:
    (terminal.project / "deploy").mkdir()
    answer = terminal("generate", "compose", "--output", "deploy")
    assert answer.out.splitlines()[-1] == "✓ deploy/Dockerfile.dockerignore"
    assert answer.err.splitlines()[-1] == "then:  docker compose -f deploy/compose.yaml up --build --detach"
    [(name, found)] = yaml.safe_load((terminal.project / "deploy/compose.yaml").read_text())["services"].items()
    assert found["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    # The same files once more are no conflict.
    answer = terminal("generate", "docker", "--output", "deploy")
    assert answer.code == 0
    assert f"docker build -t {name} -f deploy/Dockerfile {terminal.project}" in answer.err


def test_files_are_written_whole_or_not_at_all(terminal: Terminal) -> None:
    terminal.write("Dockerfile", "FROM scratch\n")
    answer = terminal("generate", "compose", "--output", ".")
    assert answer.code == 4
    assert "already exists: Dockerfile; nothing was written" in answer.err
    assert not (terminal.project / "compose.yaml").exists()
    answer = terminal("generate", "compose", "--output", ".", "--force")
    assert answer.out.splitlines() == ["✓ compose.yaml", "✓ Dockerfile", "✓ .dockerignore"]
    assert "FROM python:" in (terminal.project / "Dockerfile").read_text()


def test_the_application_of_the_settings_is_started(terminal: Terminal) -> None:
    terminal.config.write_text('app = "shop:hf"\n')
    [text] = files(terminal, "systemd").values()
    assert "worker start shop:hf --queue" in entries(text)["ExecStart"]


def test_a_django_project_is_started_by_its_own_command(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    django = ("--django", str(terminal.project), "slow")
    [text] = files(terminal, "systemd", *django).values()
    unit = entries(text)
    assert unit["WorkingDirectory"] == str(terminal.project)
    assert unit["Environment"] == (
        "PYTHONSAFEPATH=1 HOLDFAST_SESSION_DIR=/var/lib/holdfast-worker/sessions "
        f"HOLDFAST_PROJECT={terminal.project} PYTHONPATH={terminal.project} "
        "DJANGO_SETTINGS_MODULE=shop.settings"
    )
    assert unit["ExecStart"].startswith(
        f"{sys.executable} manage.py holdfast --backend slow worker start --queue default"
    )
    steps = instructions(files(terminal, "docker", *django)["Dockerfile"])
    # Django's own settings name the database.
    assert steps["ENV"] == [
        "PYTHONSAFEPATH=1 HOLDFAST_SESSION_DIR=/var/lib/holdfast/sessions HOLDFAST_PROJECT=/app PYTHONPATH=/app "
        "DJANGO_SETTINGS_MODULE=shop.settings"
    ]
    assert json.loads(steps["CMD"][0])[:6] == ["python", "manage.py", "holdfast", "--backend", "slow", "worker"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--user", "a b"], "use lower-case letters"),
        (["--name", "../x"], "use letters, digits"),
        (["--output", "nowhere"], "nowhere is not a directory"),
        (["--count", "0"], "--count"),
    ],
)
def test_what_cannot_be_written_into_a_file_is_refused(terminal: Terminal, words: list[str], why: str) -> None:
    answer = terminal("generate", "systemd", *words)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
