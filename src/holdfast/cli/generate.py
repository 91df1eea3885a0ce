"""`holdfast generate`: files that run a worker under systemd, Docker or Compose, filled in from `templates/`."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

import click

from holdfast import __version__
from holdfast.cli import OrderedGroup
from holdfast.cli.failing import REFUSED
from holdfast.cli.options import app_option, with_options
from holdfast.cli.output import note, write, write_lines
from holdfast.cli.worker.options import KILL_AFTER_S, grace_option, queue_option, size_options
from holdfast.errors import ConfigError

# After grace and kill: time to release the remaining jobs.
RELEASE_S: Final = 20.0
UNITS: Final = Path("/etc/systemd/system")
WHEEL: Final = f"holdfast-{__version__}-py3-none-any.whl"


class FileExists(click.ClickException):
    """A different file of that name exists."""

    exit_code = REFUSED


def _like(pattern: str, expected: str) -> Callable[[click.Context, click.Parameter, str], str]:
    def checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise click.BadParameter(f"{value!r}: {expected}", ctx, param)
        return value

    return checked


_user: Final = _like(
    "(?!root$)[a-z_][a-z0-9_-]{0,31}", "use lower-case letters, digits, '-' and '_'; jobs must not run as root"
)
_name: Final = _like("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "use letters, digits, '-', '_' and '.'")
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    app_option("Your application; default: the setting app. Without one, the worker runs command jobs only."),
    queue_option,
    *size_options,
    grace_option,
    click.option(
        "--user", default="holdfast", metavar="NAME", callback=_user, help="User that runs the jobs; default: holdfast."
    ),
    click.option(
        "--name",
        default="holdfast-worker",
        metavar="NAME",
        callback=_name,
        help="Name of the service or image; default: holdfast-worker.",
    ),
    click.option("--output", "-o", metavar="DIR", help="Write the files to this directory instead of printing them."),
    click.option("--force", is_flag=True, help="Overwrite existing files."),
    # Passed by `manage.py holdfast generate`: the directory of manage.py, and the backend in TASKS.
    click.option("--django", type=(str, str), hidden=True),
)


@click.group(cls=OrderedGroup)
def generate() -> None:
    """Generate deployment files for workers: systemd, Docker, Compose."""


def _command(run: Callable[..., None]) -> click.Command:
    return generate.command()(with_options(_OPTIONS, run))


@_command
def systemd(name: str, user: str, output: str | None, force: bool, **given: Any) -> None:
    """Write a systemd service. It restarts a worker that exits or hangs.

    \b
    Examples:
      holdfast generate systemd --app shop:hf --count 4 --user shop
      holdfast generate systemd --app shop:hf --user shop --output /etc/systemd/system
    """
    unit = f"{name}.service"
    worker = _Worker(name=name, user=user, output=output, **given)
    places = worker.written_places()
    values = worker.values() | {"writable": " ".join(_quoted(str(place)) for place in places)}
    _deliver({unit: _filled("worker.service", values)}, output, force=force)
    for place in places:
        if not place.is_dir():
            note(f"first:  install -d -m 700 -o {user} {shlex.quote(str(place))}")
    copy = ""
    if output is None:
        note(f"save it as {UNITS / unit}")
    elif Path(output).resolve() != UNITS:
        copy = f"cp {shlex.quote(str(Path(output) / unit))} {UNITS} && "
    note(f"then:  {copy}systemctl daemon-reload && systemctl enable --now {unit}")


@_command
def docker(force: bool, **given: Any) -> None:
    """Write a Dockerfile. The container does not run as root and has a health check.

    \b
    Examples:
      holdfast generate docker --app shop:hf --output .
    """
    worker = _Worker(**given)
    _deliver(worker.image(), worker.output, force=force)
    worker.mention_wheel()
    file, project = shlex.quote(str(worker.directory / "Dockerfile")), shlex.quote(str(worker.project))
    name = worker.name
    note(f"then:  docker build -t {name} -f {file} {project} && docker run -v {name}:/var/lib/holdfast {name}")


@_command
def compose(force: bool, **given: Any) -> None:
    """Write a Compose file and its Dockerfile.

    \b
    Examples:
      holdfast generate compose --app shop:hf --count 4 --output .
    """
    worker = _Worker(**given)
    files = {"compose.yaml": _filled("compose.yaml", worker.values()), **worker.image()}
    _deliver(files, worker.output, force=force)
    worker.mention_wheel()
    file = shlex.quote(str(worker.directory / "compose.yaml"))
    note(f"then:  docker compose -f {file} up --build --detach")


class _Worker:
    """The worker that was asked for, in the words of systemd and Docker."""

    def __init__(
        self, *, name: str, user: str, output: str | None, django: tuple[str, str] | None, **start: Any
    ) -> None:
        from holdfast.deployment import Deployment

        self.name = name
        self.output = output
        self.directory = Path(output or ".")
        self._user = user
        self._django = django
        self._start = start
        self._deployment = Deployment.configured(directory=django[0] if django else None)
        self._queues = start["queues"] or {self._deployment.settings.default_queue: 1}
        for queue in self._queues:
            self._deployment.check_declared(queue)
        self._found = self._deployment.project.directory
        self.project = Path(django[0]) if django else self._found or Path.cwd()

    def values(self) -> dict[str, str]:
        """The values of the templates."""
        from holdfast.queues.addresses import embedded_file, kind_of

        url = self._deployment.url()
        kind = kind_of(url)
        grace = self._start["grace"]
        stop_s = int(grace + KILL_AFTER_S + RELEASE_S)
        directory = self.directory.resolve() if self.output else self.project
        environment = {"PYTHONSAFEPATH": "1"}
        # In the volume that all containers of the service share, workers notice each other's deaths.
        image_environment = {"PYTHONSAFEPATH": "1", "HOLDFAST_SESSION_DIR": "/var/lib/holdfast/sessions"}
        if self._django is not None or embedded_file(url) is None:
            environment["HOLDFAST_SESSION_DIR"] = f"/var/lib/{self.name}/sessions"
        secrets: dict[str, str] = {}
        # The user of the service does not own the project, so it must be named.
        if self._found is not None:
            environment["HOLDFAST_PROJECT"] = str(self._found)
        if self._found == self.project:
            image_environment["HOLDFAST_PROJECT"] = "/app"
        if self._django is not None:
            # With a safe path, Python does not look for the settings next to manage.py.
            django = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
            environment |= {"PYTHONPATH": str(self.project), **django}
            image_environment |= {"PYTHONPATH": "/app", **django}
        elif embedded_file(url) is not None:
            image_environment["HOLDFAST_URL"] = "sqlite:////var/lib/holdfast/jobs.db"
        else:
            # Secrets do not belong in the files of the project.
            secrets["HOLDFAST_URL"] = f"${{HOLDFAST_URL:?set it to the URL of the jobs, {kind.scheme}://...}}"
            secrets["HOLDFAST_SIGNING_KEY"] = "${HOLDFAST_SIGNING_KEY:?set it to the key that all processes share}"
        return {
            "name": self.name,
            "user": self._user,
            "working_directory": str(self.project).replace("%", "%%"),
            "environment": " ".join(_quoted(f"{name}={value}") for name, value in environment.items()),
            # A dollar sign begins a variable in commands only.
            "start": " ".join(_quoted(word).replace("$", "$$") for word in self._start_words(Path(sys.executable))),
            "stop_s": str(stop_s) if grace else "infinity",
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "wheel": WHEEL,
            "extra": f"[{kind.extra}]" if kind.extra else "",
            "requirements": _requirements(self.project),
            "image_environment": " ".join(f"{name}={value}" for name, value in image_environment.items()),
            "image_start": json.dumps([*self._start_words(Path("python")), "--probe-port", "7001"]),
            "stop_grace_period": f"{stop_s}s" if grace else "8760h",
            "context": json.dumps(os.path.relpath(self.project, directory)),
            "dockerfile": json.dumps(os.path.relpath(directory / "Dockerfile", self.project)),
            "secrets": json.dumps(secrets),
        }

    def _start_words(self, python: Path) -> list[str]:
        """The command that starts the worker, with the program next to this Python."""
        start = self._start
        queues = ",".join(queue if weight == 1 else f"{queue}:{weight}" for queue, weight in self._queues.items())
        sizes = ["--count", str(start["count"]), "--concurrency", str(start["concurrency"])]
        options = ["--queue", queues, *sizes, "--grace", f"{start['grace']:g}s", "--quiet"]
        if self._django is not None:
            words = [str(python), "manage.py", "holdfast", "--backend", self._django[1]]
            return [*words, "worker", "start", *options]
        app = [start["app"]] if start["app"] else []
        return [str(python.with_name("holdfast")), "worker", "start", *app, *options]

    def written_places(self) -> list[Path]:
        """The directories of the embedded databases, which the worker writes to."""
        from holdfast.queues.addresses import embedded_file

        files = [file for url in self._deployment.urls.values() if (file := embedded_file(url)) is not None]
        for file in files:
            if self.project.is_relative_to(file.parent):
                raise ConfigError(
                    f"{file} is not in its own directory, so jobs could overwrite all of {self.project}: move the "
                    f"database, for example to {self.project / '.holdfast' / file.name}"
                )
        return list(dict.fromkeys(file.parent for file in files))

    def image(self) -> dict[str, str]:
        """The Dockerfile, and the list of files that do not belong in the image."""
        # Docker reads .dockerignore in the project, or else the file next to the Dockerfile that has its name.
        is_apart = self.output is not None and self.directory.resolve() != self.project.resolve()
        ignored = "Dockerfile.dockerignore" if is_apart else ".dockerignore"
        return {"Dockerfile": _filled("Dockerfile", self.values()), ignored: _filled("dockerignore", {})}

    def mention_wheel(self) -> None:
        if not (self.project / WHEEL).exists():
            note(f"first:  pip wheel --no-deps --wheel-dir {shlex.quote(str(self.project))} path/to/holdfast/checkout")


def _filled(template: str, values: dict[str, str]) -> str:
    """A template with its values. Each is one line: a line feed in a path would add lines to the file."""
    for value in values.values():
        if not value.isprintable():
            raise ConfigError(f"{value!r} has control characters and cannot be written to a file; rename it")
    text = resources.files("holdfast.cli").joinpath(f"templates/{template}").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _deliver(files: dict[str, str], output: str | None, *, force: bool) -> None:
    """Print the files, or write all of them or none."""
    if output is None:
        for name, text in files.items():
            write_lines([f"# {name}", *text.splitlines(), ""] if len(files) > 1 else text.splitlines())
        return
    directory = Path(output)
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory: create it first, or name another")
    changed = {directory / name: text for name, text in files.items() if not _has(directory / name, text)}
    taken = [str(path) for path in changed if os.path.lexists(path)]
    if taken and not force:
        raise FileExists(f"already exists: {', '.join(taken)}; nothing was written; pass --force to overwrite")
    for path, text in changed.items():
        # Through a link, another file would be written than the one that was named.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if force else os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    for name in files:
        write(f"✓ {directory / name}")


def _has(path: Path, text: str) -> bool:
    return not path.is_symlink() and path.is_file() and path.read_bytes() == text.encode()


def _quoted(word: str) -> str:
    """A word as systemd reads it: % begins a specifier."""
    word = word.replace("\\", "\\\\").replace("%", "%%")
    return word if re.fullmatch(r"[\w@%+=:,./$-]+", word) else '"' + word.replace('"', '\\"') + '"'


def _requirements(project: Path) -> str:
    """The rest of the pip command: the project itself if it is a package, or else its requirements."""
    import tomllib

    with suppress(OSError, ValueError):
        if "project" in tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8")):
            return " ."
    return " -r requirements.txt" if (project / "requirements.txt").is_file() else ""
