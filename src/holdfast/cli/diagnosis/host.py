"""This machine: paths, permissions, file systems, versions, and others who keep the jobs of this project elsewhere."""

import os
import platform
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from holdfast import __version__
from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.words import command
from holdfast.config import KEYS, Project, find_project, read_settings
from holdfast.config.checking import standing_above
from holdfast.deployment import Deployment
from holdfast.errors import HoldfastError
from holdfast.queues.addresses import embedded_file, missing_above, redacted
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.keyfiles import key_path
from holdfast.queues.opening import Mode
from holdfast.state.workers import WorkerRegistry
from holdfast.values import WorkerState

GONE_AT_REBOOT: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
GONE_WITH_THE_CONTAINER: Final = frozenset({"overlay", "aufs"})
BESIDE_A_DATABASE: Final = ("-wal", "-shm")
PROCESSES: Final = Path("/proc")


def database_of(deployment: Deployment) -> Path | None:
    """The file of the jobs, where they are in one."""
    return embedded_file(deployment.url())


def version_findings() -> Findings:
    """What runs here."""
    least = ".".join(map(str, sqlite_file.MIN_VERSION))
    if sqlite3.sqlite_version_info < sqlite_file.MIN_VERSION:
        yield error(
            "versions",
            f"this Python is linked with SQLite {sqlite3.sqlite_version}; Holdfast needs {least} or newer",
            "use a newer build of Python, or an engine on a server",
        )
    else:
        python = platform.python_version()
        yield fine("versions", f"holdfast {__version__}, python {python}, sqlite {sqlite3.sqlite_version}")


def path_findings(deployment: Deployment) -> Findings:
    """Where settings and jobs are, and whether they can be there."""
    project = deployment.project
    where = f"project {project.directory}" if project.directory else "outside of any project: the user's own jobs"
    file = project.config_file if project.config_file.is_file() else f"{project.config_file}, which does not exist"
    yield fine("paths", f"{where}; settings {file}")
    database = database_of(deployment)
    if database is None:
        yield fine("paths", f"jobs {deployment.location()}")
        return
    standing = standing_above(database)
    if not standing.is_dir():
        return  # that is told with the settings
    if not os.access(standing, os.W_OK | os.X_OK):
        yield error(
            "paths",
            f"{standing} cannot be written by this user, and SQLite keeps files beside its database",
            f"let user {os.geteuid()} write there, or choose another url",
        )
    elif database.is_file():
        yield fine("paths", f"jobs {database}")
    elif not database.is_dir() and (missing_above(database) is None or deployment.url() == project.default_url):
        yield note("paths", f"{database} does not exist yet; it is made when it is first needed")


def permission_findings(deployment: Deployment) -> Findings:
    """Who else can read jobs, or put their own among them."""
    if os.name != "posix":
        return
    found = [*_settings_file(deployment)]
    if (database := database_of(deployment)) is not None and database.exists():
        found += [*_directory(database.parent), *_database(database)]
    yield from found or [fine("permissions", "settings and jobs are this user's alone to write")]


def _settings_file(deployment: Deployment) -> Findings:
    """Only here: where a pipeline checks settings, files are often open to all, and nobody works there."""
    path = deployment.project.config_file
    if _mode(path) & stat.S_IWOTH:
        yield error(
            "permissions",
            f"{path} can be written by everybody: whoever does may allow any command, or move the jobs",
            command("chmod", "o-w", path),
        )


def _directory(directory: Path) -> Findings:
    mode = _mode(directory)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield error(
            "permissions",
            f"{directory} can be written by everybody: whoever does may replace the jobs and their key",
            command("chmod", "o-w", directory),
        )


def _database(database: Path) -> Findings:
    owner = database.stat().st_uid
    for path in (database, *(Path(f"{database}{end}") for end in BESIDE_A_DATABASE)):
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            yield error(
                "permissions",
                f"{path} cannot be read and written by this user",
                f"run as its owner, user {path.stat().st_uid}, or  chown {os.geteuid()} {path}",
            )
        elif path.stat().st_uid != owner:
            yield error(
                "permissions",
                f"{path} belongs to user {path.stat().st_uid}, {database.name} to user {owner}: the one of them shuts "
                "the other out; somebody has run a command as another user",
                f"chown {owner} {path}, and run everything as one user",
            )
        if _mode(path) & (stat.S_IROTH | stat.S_IWOTH):
            yield warning(
                "permissions",
                f"{path} is open to everybody on this machine, with the payload of every job",
                command("chmod", "600", path),
            )


def file_system_findings(deployment: Deployment) -> Findings:
    """Whether SQLite can keep what it promises where the file is."""
    database = database_of(deployment)
    if database is None:
        return
    kind = sqlite_file.file_system(database)
    if kind in sqlite_file.NETWORK_FILE_SYSTEMS:
        yield error(
            "file system",
            f"{database} is on a network file system ({kind}), where SQLite's locks cannot be trusted: two workers "
            "can run the same job, and the file can be damaged",
            "keep the file on a local disk, or use PostgreSQL, MySQL or Redis",
        )
    elif kind in GONE_AT_REBOOT:
        yield warning(
            "file system",
            f"{database} is in memory ({kind}): every job is gone when the machine restarts",
            "keep the file on a disk",
        )
    elif kind in GONE_WITH_THE_CONTAINER:
        yield note(
            "file system",
            f"{database} is in a container's own layer ({kind}): every job is gone with the container",
            "mount a volume there, if the container is not to be kept",
        )
    else:
        yield fine("file system", kind or "this system does not tell which one it is")


def elsewhere_findings(deployment: Deployment) -> Findings:
    """Others of this project who look for jobs in another place: the classic reason why a job never runs."""
    found = [*_variable(deployment), *_forgotten_files(deployment), *_workers_elsewhere(deployment)]
    yield from found or [fine("one place", "nobody else of this project was found to use another place")]


def _variable(deployment: Deployment) -> Findings:
    if deployment.url() != deployment.settings.url:
        return  # --url, or the application, decides
    without = _written_url(deployment.project) or deployment.project.default_url
    if without != deployment.url():
        yield warning(
            "one place",
            f"HOLDFAST_URL is set here; without it, {redacted(without)} would be used instead of "
            f"{deployment.location()}",
            f"write the place into {deployment.project.config_file}, where all of the project find it",
        )


def _forgotten_files(deployment: Deployment) -> Findings:
    ours = database_of(deployment)
    for path in _candidates(deployment.project):
        if ours is not None and path.resolve() == ours.resolve():
            continue
        waiting, live = _contents(deployment, path)
        if waiting or live:
            yield warning(
                "one place",
                f"{path} has {waiting:,} unfinished jobs and {live:,} live workers, but here the jobs are in "
                f"{deployment.location()}",
                f"see what it is:  {command('holdfast', 'status', '--url', f'sqlite:///{path}')}  "
                "- and let all of the project use one url",
            )


def _candidates(project: Project) -> Iterator[Path]:
    """Where jobs of this project would be if a process did not know its settings, or was started elsewhere."""
    here = project.directory or Path.cwd()
    places = [place / ".holdfast" for place in (here, *here.parents)]
    for directory in dict.fromkeys([*places, find_project(Path("/")).data_directory]):
        with suppress(OSError):
            if (directory / "jobs.db").is_file():
                yield directory / "jobs.db"


def _contents(deployment: Deployment, path: Path) -> tuple[int, int]:
    """Unfinished jobs and live workers of a file; nothing of what cannot be looked at without changing it."""
    place = deployment.at(f"sqlite:///{quote(str(path))}")
    with suppress(HoldfastError), place.open(mode=Mode.READ).engine as engine:
        said = engine.describe()
        if said.schema and said.schema == said.known_schema:
            counts = engine.counts().values()
            waiting = sum(number for states in counts for state, number in states.items() if not state.is_final)
            live = sum(view.state is not WorkerState.LOST for view in WorkerRegistry(engine.state).all())
            return waiting, live
    return 0, 0


def _workers_elsewhere(deployment: Deployment) -> Findings:
    ours = database_of(deployment)
    for pid in _workers_of(deployment.project):
        for path in _databases_of(pid):
            if ours is None or path != ours.resolve():
                yield error(
                    "one place",
                    f"process {pid} is a worker of this project and works {path}, but here the jobs are in "
                    f"{deployment.location()}: it will not run them",
                    "stop one of the two, and start it again with the url of the other",
                )


def _workers_of(project: Project) -> Iterator[int]:
    """Processes of this machine that look like workers started within the project, as far as we may know."""
    for entry in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_ours = any(Path(os.fsdecode(word)).name in ("holdfast", "queuectl") for word in words[:4])
            if is_ours and words.count(b"worker") and words.count(b"start"):
                started_in = Path(os.readlink(entry / "cwd"))
                if project.directory is not None and find_project(started_in).directory == project.directory:
                    yield int(entry.name)


def _databases_of(pid: int) -> set[Path]:
    """The databases a process has open: SQLite holds on to the log beside each."""
    found: set[Path] = set()
    with suppress(OSError):
        for descriptor in (PROCESSES / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                if target.endswith("-wal"):
                    found.add(Path(target.removesuffix("-wal")))
    return found


def _written_url(project: Project) -> str:
    # Whatever else may be wrong with the file, or be set by variables alone.
    return str(read_settings(project, environment={}).of(KEYS["url"]).value)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def key_file_beside(deployment: Deployment) -> Path | None:
    """Where the key of an embedded database lies."""
    database = database_of(deployment)
    return None if database is None else key_path(database)
