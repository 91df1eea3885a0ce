"""`holdfast generate`: what runs workers for you, as files to be kept with your project: systemd, Docker, Compose."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast import __version__
from holdfast.cli.documents import Document
from holdfast.cli.failing import REFUSED
from holdfast.cli.options import given_or_configured, json_option, with_options
from holdfast.cli.output import glyph, print_json, say
from holdfast.cli.worker.options import KILL_AFTER_S, grace_option, queue_option, size_options
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.deployment import Deployment

F = TypeVar("F", bound=Callable[..., Any])

# Beyond grace and kill: to hand the rest back and to say goodbye.
FAREWELL_S: Final = 20.0
PROBE_PORT: Final = 7001
CONTAINER_UID: Final = 10001
CONTAINER_DATA: Final = "/var/lib/holdfast"
WHEEL: Final = f"holdfast-{__version__}-py3-none-any.whl"
_user_pattern: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_name_pattern: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_app_pattern: Final = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_]\w*)?")


class File(Struct, frozen=True, kw_only=True):
    """A file that was generated: its name, and what is in it."""

    name: str
    text: str


class Files(Document, frozen=True, kw_only=True, tag="holdfast.files/1"):
    """What `generate --json` prints."""

    files: tuple[File, ...]


class FileExists(click.ClickException):
    """A file of that name is there already."""

    exit_code = REFUSED


class Wanted(Struct, frozen=True, kw_only=True):
    """What was asked for, by the names of the options."""

    app: str | None
    queues: dict[str, int]
    count: int
    concurrency: int
    grace: float
    user: str | None
    name: str
    output: str | None
    force: bool
    as_json: bool

    @property
    def stop_within_s(self) -> int | None:
        """How long a worker may take to stop, before whoever runs it has a reason to kill it; None is for ever."""
        return int(self.grace + KILL_AFTER_S + FAREWELL_S) if self.grace else None

    def start_words(self) -> list[str]:
        """The command that starts the worker, behind the name of the program."""
        queues = ",".join(name if weight == 1 else f"{name}:{weight}" for name, weight in self.queues.items())
        sizes = ["--count", str(self.count), "--concurrency", str(self.concurrency)]
        app = [self.app] if self.app else []
        return ["worker", "start", *app, "--queue", queues, *sizes, "--grace", f"{self.grace:g}s", "--quiet"]


def _app(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    value = given_or_configured(ctx, param, given)
    if value is not None and not _app_pattern.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no application: write MODULE:NAME, such as shop:hf", ctx, param)
    return value


def _user(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _user_pattern.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no name of a user: small letters, digits, '-' and '_'", ctx, param)
    if value == "root":
        raise click.BadParameter("jobs are not to be run by root; name a user of their own", ctx, param)
    return value


def _name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if not _name_pattern.fullmatch(value):
        raise click.BadParameter(f"{value!r}: letters, digits, '-', '_' and '.' make a name", ctx, param)
    return value


_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--app", metavar="MODULE:NAME", callback=_app, help="Your application; without one, command jobs only."
    ),
    queue_option,
    *size_options,
    grace_option,
    click.option("--user", metavar="NAME", callback=_user, help="Who runs the jobs; never root."),
    click.option("--name", default="holdfast-worker", metavar="NAME", callback=_name, help="What it is called."),
    click.option("--output", "-o", metavar="DIR", help="Write the files there, instead of printing them."),
    click.option("--force", is_flag=True, help="Write over files that are there."),
    json_option,
)


def _options(command: F) -> F:
    return with_options(_OPTIONS, command)


@click.group()
def generate() -> None:
    """Write what runs workers for you."""


@generate.command()
@_options
def systemd(**said: Any) -> None:
    """A service for systemd, which restarts a worker that dies or stands still.

    \b
    Examples:
      holdfast generate systemd --app shop:hf --count 4 --user shop
      holdfast generate systemd --app shop:hf --user shop --output /etc/systemd/system
    """
    from holdfast.deployment import Deployment

    wanted = Wanted(**said)
    name = f"{wanted.name}.service"
    _deliver([File(name=name, text=_unit(wanted, Deployment.configured()))], wanted)
    if wanted.output is None:
        say(f"save it as /etc/systemd/system/{name}")
    say(f"then:  systemctl daemon-reload && systemctl enable --now {name}")


@generate.command()
@_options
def docker(**said: Any) -> None:
    """A Dockerfile: not root, with a health check, stopped without losing a job.

    \b
    Examples:
      holdfast generate docker --app shop:hf --output .
    """
    from holdfast.deployment import Deployment

    wanted = Wanted(**said)
    deployment = Deployment.configured()
    _deliver(_docker_files(wanted, deployment), wanted)
    away = _away(wanted, deployment)
    build = "." if away is None else f"-f {Path(wanted.output or '.') / 'Dockerfile'} {deployment.project.directory}"
    say(f"then:  docker build -t {wanted.name} {build} && docker run -v {wanted.name}:{CONTAINER_DATA} {wanted.name}")


@generate.command()
@_options
def compose(**said: Any) -> None:
    """A Compose file with one worker, and the Dockerfile it is built from.

    \b
    Examples:
      holdfast generate compose --app shop:hf --count 4 --output .
    """
    from holdfast.deployment import Deployment

    wanted = Wanted(**said)
    deployment = Deployment.configured()
    _deliver([File(name="compose.yaml", text=_compose(wanted, deployment)), *_docker_files(wanted, deployment)], wanted)
    say("then:  docker compose up --build --detach")


def _deliver(files: list[File], wanted: Wanted) -> None:
    if wanted.output is not None:
        _write(files, Path(wanted.output), force=wanted.force)
    if wanted.as_json:
        print_json(Files(files=tuple(files)))
    elif wanted.output is None:
        for file in files:
            click.echo(f"# {file.name}\n{file.text}" if len(files) > 1 else file.text, nl=len(files) > 1)
    else:
        for file in files:
            click.echo(f"{glyph('✓', '*')} {Path(wanted.output) / file.name}")


def _write(files: list[File], directory: Path, *, force: bool) -> None:
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory: make it first, or name another")
    there = [str(directory / file.name) for file in files if (directory / file.name).exists()]
    if there and not force:
        raise FileExists(f"{', '.join(there)} is there already; nothing was written: say --force to write over it")
    for file in files:
        (directory / file.name).write_text(file.text, encoding="utf-8")


def _unit(wanted: Wanted, deployment: Deployment) -> str:
    # The program of this very installation, which has what the application imports.
    program = Path(sys.executable).with_name("holdfast")
    start = [str(program)] if program.exists() else [sys.executable, "-m", "holdfast"]
    place = deployment.project.directory
    stop = wanted.stop_within_s
    sections = {
        "Unit": [
            ("Description", f"Holdfast worker{f' of {wanted.app}' if wanted.app else ''}"),
            ("After", "network-online.target"),
            ("Wants", "network-online.target"),
        ],
        "Service": [
            ("Type", "notify"),
            ("NotifyAccess", "main"),
            ("User", wanted.user or _this_user()),
            *([("WorkingDirectory", _escaped(str(place)))] if place else []),
            # For HOLDFAST_URL and HOLDFAST_SIGNING_KEY; it is root's alone to read (chmod 600).
            ("EnvironmentFile", f"-/etc/holdfast/{wanted.name}.env"),
            ("ExecStart", " ".join(_quoted(word) for word in [*start, *wanted.start_words()])),
            ("Restart", "always"),
            ("RestartSec", "2"),
            ("WatchdogSec", "60"),
            # The worker tells its processes itself; what is left after it is killed.
            ("KillMode", "mixed"),
            ("KillSignal", "SIGTERM"),
            ("TimeoutStopSec", "infinity" if stop is None else str(stop)),
            ("UMask", "0077"),
            ("NoNewPrivileges", "yes"),
            ("PrivateTmp", "yes"),
            ("ProtectSystem", "strict"),
            *(("ReadWritePaths", _quoted(str(place))) for place in _written_places(deployment)),
        ],
        "Install": [("WantedBy", "multi-user.target")],
    }
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key}={value}\n" for key, value in lines) for section, lines in sections.items()
    )


def _written_places(deployment: Deployment) -> list[Path]:
    """What a worker writes to: the directory of each embedded database, or, where that is still to be made, the one
    above it.
    """
    from holdfast.queues.addresses import embedded_file

    files = [file for url in deployment.urls.values() if (file := embedded_file(url)) is not None]
    return list(dict.fromkeys(next(place for place in file.parents if place.is_dir()) for file in files))


def _escaped(text: str) -> str:
    """systemd reads % as the beginning of a specifier."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command as systemd reads it: it knows quotes and variables of its own."""
    word = _escaped(word).replace("\\", "\\\\").replace("$", "$$")
    return word if re.fullmatch(r"[\w@%+=:,./$-]+", word) else '"' + word.replace('"', '\\"') + '"'


def _this_user() -> str:
    import getpass

    with suppress(OSError, KeyError):
        if (user := getpass.getuser()) != "root" and _user_pattern.fullmatch(user):
            return user
    return "holdfast"


def _docker_files(wanted: Wanted, deployment: Deployment) -> list[File]:
    ignored = [".git", ".venv", "__pycache__", ".holdfast", "*.db", "*.key", "*.env", ""]
    return [
        File(name="Dockerfile", text=_dockerfile(wanted, deployment)),
        File(
            name=".dockerignore" if _away(wanted, deployment) is None else "Dockerfile.dockerignore",
            text="\n".join(ignored),
        ),
    ]


def _dockerfile(wanted: Wanted, deployment: Deployment) -> str:
    import json

    from holdfast.queues.addresses import embedded_file, kind_of

    user = wanted.user or "holdfast"
    kind = kind_of(deployment.url())
    extra = f"[{kind.extra}]" if kind.extra else ""
    start = ["holdfast", *wanted.start_words(), "--probe-port", str(PROBE_PORT)]
    check = ["holdfast", "health", "--live", "--url", f"http://127.0.0.1:{PROBE_PORT}"]
    lines = [
        f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim",
        f"RUN useradd --system --uid {CONTAINER_UID} --create-home --home-dir {CONTAINER_DATA} {user}",
        "WORKDIR /app",
        "COPY . .",
        "# Holdfast is not published yet. Until it is, make a wheel of your checkout, beside this file:",
        "#   pip wheel --no-deps --wheel-dir . path/to/checkout",
        f'# and write "./{WHEEL}{extra}" for "holdfast{extra}" in the next line.',
        f'RUN pip install --no-cache-dir "holdfast{extra}"{_dependencies(deployment.project.directory)}',
        *([f"ENV HOLDFAST_URL=sqlite:///{CONTAINER_DATA}/jobs.db"] if embedded_file(deployment.url()) else []),
        f"VOLUME {CONTAINER_DATA}",
        f"USER {CONTAINER_UID}",
        "STOPSIGNAL SIGTERM",
        f"HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD {json.dumps(check)}",
        f"CMD {json.dumps(start)}",
    ]
    return "\n".join(lines) + "\n"


def _dependencies(project: Path | None) -> str:
    """What else pip is to install: the project itself where it is a package, else what it lists."""
    import tomllib

    if project is None:
        return ""
    with suppress(OSError, ValueError):
        if "project" in tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8")):
            return " ."
    return " -r requirements.txt" if (project / "requirements.txt").is_file() else ""


def _away(wanted: Wanted, deployment: Deployment) -> tuple[str, str] | None:
    """The ways from the files to the project and back, if they are written elsewhere than into its directory."""
    project = deployment.project.directory
    if wanted.output is None or project is None or Path(wanted.output).resolve() == project.resolve():
        return None
    output = Path(wanted.output).resolve()
    return os.path.relpath(project.resolve(), output), os.path.relpath(output, project.resolve())


def _build(wanted: Wanted, deployment: Deployment) -> list[str]:
    import json

    away = _away(wanted, deployment)
    if away is None:
        return ["    build: ."]
    there, back = away
    return [
        "    build:",
        f"      context: {json.dumps(there)}",
        f"      dockerfile: {json.dumps(f'{back}/Dockerfile')}",
    ]


def _compose(wanted: Wanted, deployment: Deployment) -> str:
    import json

    from holdfast.queues.addresses import embedded_file, kind_of

    stop = wanted.stop_within_s
    # A server and its key are named by whoever starts it: neither belongs into a file that is kept with the project.
    environment = (
        {"HOLDFAST_URL": f"sqlite:///{CONTAINER_DATA}/jobs.db"}
        if embedded_file(deployment.url())
        else {
            "HOLDFAST_URL": f"${{HOLDFAST_URL:?where the jobs are, {kind_of(deployment.url()).scheme}://…}}",
            "HOLDFAST_SIGNING_KEY": "${HOLDFAST_SIGNING_KEY:?the same key for all who use these jobs}",
        }
    )
    lines = [
        "services:",
        f"  {wanted.name}:",
        *_build(wanted, deployment),
        "    init: true",
        "    restart: unless-stopped",
        f"    user: {json.dumps(str(CONTAINER_UID))}",
        f"    command: {json.dumps(['holdfast', *wanted.start_words(), '--probe-port', str(PROBE_PORT)])}",
        "    environment:",
        *(f"      {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in environment.items()),
        f"    stop_grace_period: {'8760h' if stop is None else f'{stop}s'}",
        "    read_only: true",
        "    tmpfs: [/tmp]",
        "    cap_drop: [ALL]",
        "    security_opt: [no-new-privileges:true]",
        "    volumes:",
        f"      - jobs:{CONTAINER_DATA}",
        "    healthcheck:",
        f'      test: ["CMD", "holdfast", "health", "--live", "--url", "http://127.0.0.1:{PROBE_PORT}"]',
        "      interval: 30s",
        "      timeout: 10s",
        "      start_period: 30s",
        "volumes:",
        "  jobs:",
    ]
    return "\n".join(lines) + "\n"
