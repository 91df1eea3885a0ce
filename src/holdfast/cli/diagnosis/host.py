"""This machine: versions, paths, permissions, file systems, and other databases with jobs of this project."""

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
from holdfast.config import KEYS, Project, read_settings, user_project
from holdfast.config.checking import standing_above
from holdfast.deployment import Deployment
from holdfast.errors import HoldfastError
from holdfast.queues import addresses
from holdfast.queues.addresses import embedded_file, missing_above, redacted
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.opening import Mode
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted
from holdfast.values import WorkerState

GONE_AT_REBOOT: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
GONE_WITH_THE_CONTAINER: Final = frozenset({"overlay", "aufs"})
SIDE_FILES: Final = ("-wal", "-shm")


def database_of(deployment: Deployment) -> Path | None:
    """The database file, if the jobs are in one."""
    return embedded_file(deployment.url())


def version_findings() -> Findings:
    """The versions of Holdfast, Python and SQLite."""
    least = ".".join(map(str, sqlite_file.MIN_VERSION))
    if sqlite3.sqlite_version_info < sqlite_file.MIN_VERSION:
        yield error(
            "versions",
            f"this Python has SQLite {sqlite3.sqlite_version}; Holdfast needs {least} or newer",
            "use a newer build of Python, or another engine",
        )
    else:
        python = platform.python_version()
        yield fine("versions", f"holdfast {__version__}, python {python}, sqlite {sqlite3.sqlite_version}")


def path_findings(deployment: Deployment) -> Findings:
    """The location of settings and jobs, and whether this user can write there."""
    project = deployment.project
    where = f"project {project.directory}" if project.directory else "not in a project; using the per-user database"
    file = project.config_file if project.config_file.is_file() else f"{project.config_file}, which does not exist"
    yield fine("paths", f"{where}; settings {file}")
    database = database_of(deployment)
    if database is None:
        yield fine("paths", f"jobs {deployment.location()}")
        return
    standing = standing_above(database)
    if not standing.is_dir():
        return  # reported with the settings
    if not os.access(standing, os.W_OK | os.X_OK):
        yield error(
            "paths",
            f"this user cannot write to {standing}, and SQLite creates files next to its database",
            f"let user {os.geteuid()} write to it, or choose another url",
        )
    elif database.is_file():
        yield fine("paths", f"jobs {database}")
    elif not database.is_dir() and (missing_above(database) is None or deployment.url() == project.default_url):
        yield note("paths", f"{database} does not exist yet; it is created when first needed")


def permission_findings(deployment: Deployment) -> Findings:
    """Whether other users can read or change jobs and settings."""
    if os.name != "posix":
        return
    found = [*_settings_file(deployment)]
    if (database := database_of(deployment)) is not None and database.exists():
        found += [*_directory(database.parent), *_database(database)]
    yield from found or [fine("permissions", "only this user can change settings and jobs")]


def _settings_file(deployment: Deployment) -> Findings:
    """Not part of `config check`: in a CI pipeline files are often writable by everyone, and no worker runs there."""
    path = deployment.project.config_file
    if _mode(path) & stat.S_IWOTH:
        yield error(
            "permissions",
            f"everyone can write to {path}, so any user could allow any command or redirect the jobs",
            command("chmod", "o-w", path),
        )


def _directory(directory: Path) -> Findings:
    mode = _mode(directory)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield error(
            "permissions",
            f"everyone can write to {directory}, so any user could replace the jobs and their key",
            command("chmod", "o-w", directory),
        )


def _database(database: Path) -> Findings:
    owner = database.stat().st_uid
    for path in (database, *(Path(f"{database}{end}") for end in SIDE_FILES)):
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            yield error(
                "permissions",
                f"this user cannot read and write {path}",
                f"run as its owner, user {path.stat().st_uid}, or  chown {os.geteuid()} {path}",
            )
        elif path.stat().st_uid != owner:
            yield error(
                "permissions",
                f"{path} belongs to user {path.stat().st_uid}, but {database.name} to user {owner}: a command was run "
                "as another user, and the two lock each other out",
                f"chown {owner} {path}  and run everything as one user",
            )
        if _mode(path) & (stat.S_IROTH | stat.S_IWOTH):
            yield warning(
                "permissions",
                f"every user of this machine can access {path} and the payloads in it",
                command("chmod", "600", path),
            )


def file_system_findings(deployment: Deployment) -> Findings:
    """Whether the file system is safe for an SQLite database."""
    database = database_of(deployment)
    if database is None:
        return
    kind = addresses.file_system(database)
    if kind in sqlite_file.NETWORK_FILE_SYSTEMS:
        yield error(
            "file system",
            f"{database} is on a network file system ({kind}), where SQLite's locks are unreliable: two workers can "
            "run the same job, and the file can be corrupted",
            "move the file to a local disk, or use PostgreSQL, MySQL or Redis",
        )
    elif kind in GONE_AT_REBOOT:
        yield warning(
            "file system",
            f"{database} is in memory ({kind}): all jobs are lost when the machine restarts",
            "move the file to a disk",
        )
    elif kind in GONE_WITH_THE_CONTAINER:
        yield note(
            "file system",
            f"{database} is in a container's own layer ({kind}): all jobs are lost when the container is removed",
            "mount a volume there",
        )
    else:
        yield fine("file system", kind or "unknown")


def elsewhere_findings(deployment: Deployment) -> Findings:
    """Find other databases with jobs of this project: the classic reason why a job never runs."""
    found = [*_variable(deployment), *_other_files(deployment)]
    yield from found or [fine("one place", "found no other database with jobs of this project")]


def _variable(deployment: Deployment) -> Findings:
    if deployment.url() != deployment.settings.url:
        return  # --url, or the application, decides
    without = _written_url(deployment.project) or deployment.project.default_url
    if without != deployment.url():
        yield warning(
            "one place",
            f"HOLDFAST_URL is set; processes without it use {redacted(without)} instead of {deployment.location()}",
            f"set the url in {deployment.project.config_file}, where every process of the project reads it",
        )


def _other_files(deployment: Deployment) -> Findings:
    ours = database_of(deployment)
    for path in _candidates(deployment.project):
        if ours is not None and path.resolve() == ours.resolve():
            continue
        waiting, live = _contents(deployment, path)
        if waiting or live:
            yield warning(
                "one place",
                f"{path} has {counted(waiting, 'unfinished job')} and {counted(live, 'live worker')}, but the jobs of "
                f"this project are in {deployment.location()}",
                f"see  {command('holdfast', 'status', '--url', f'sqlite:///{path}')}  and use one url for the whole "
                "project",
            )


def _candidates(project: Project) -> Iterator[Path]:
    """The default databases of a process that ignores the settings, or that was started in another directory."""
    here = project.directory or Path.cwd()
    places = [place / ".holdfast" for place in (here, *here.parents)]
    for directory in dict.fromkeys([*places, user_project().data_directory]):
        with suppress(OSError):
            if (directory / "jobs.db").is_file():
                yield directory / "jobs.db"


def _contents(deployment: Deployment, path: Path) -> tuple[int, int]:
    """The numbers of unfinished jobs and of live workers in a file. A schema of another version counts as empty."""
    place = deployment.at(f"sqlite:///{quote(str(path))}")
    with suppress(HoldfastError), place.open(mode=Mode.READ).engine as engine:
        info = engine.describe()
        if info.schema and info.schema == info.known_schema:
            counts = engine.counts().values()
            waiting = sum(number for states in counts for state, number in states.items() if not state.is_final)
            live = sum(view.state is not WorkerState.LOST for view in WorkerRegistry(engine.state).all())
            return waiting, live
    return 0, 0


def _written_url(project: Project) -> str:
    # Only the file counts here, and other problems with it do not matter.
    return str(read_settings(project, environment={}).of(KEYS["url"]).value)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0
