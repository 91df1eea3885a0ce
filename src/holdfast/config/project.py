"""Finds the project of a directory: its configuration file, the table in it, and the place of its embedded database."""

import os
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from msgspec import Struct

from holdfast.config.trust import PROJECT_VARIABLE, refuse_untrusted
from holdfast.errors import ConfigError

OWN_FILE: Final = "holdfast.toml"
SHARED_FILE: Final = "pyproject.toml"
OUR_TABLE: Final = "tool.holdfast"
# Another user's file may be of any size.
_MOST_BYTES: Final = 1024 * 1024


class Project(Struct, frozen=True, kw_only=True):
    """Where settings and the embedded database are stored."""

    directory: Path | None
    config_file: Path
    data_directory: Path

    @classmethod
    def at(cls, directory: Path) -> Self:
        """The project in this directory."""
        return cls(directory=directory, config_file=_config_file(directory), data_directory=directory / ".holdfast")

    @property
    def default_url(self) -> str:
        return f"sqlite:///{quote(str(self.data_directory / 'jobs.db'))}"


def find_project(start: Path | None = None) -> Project:
    """The project of a directory: the nearest one upward with a configuration file, or else the user's own.

    Without `start`, it is the directory that `HOLDFAST_PROJECT` names, or else the project of the current directory.
    A directory that is named is trusted; a project that is found elsewhere must pass `refuse_untrusted`.
    """
    if start is None and (named := os.environ.get(PROJECT_VARIABLE)):
        return _named_project(Path(named).expanduser().absolute())
    here = (start or Path.cwd()).absolute()
    for directory in (here, *here.parents):
        files = [file for file in (directory / OWN_FILE, directory / SHARED_FILE) if file.is_file()]
        if files and ((start is not None and directory == here) or _is_trusted(directory, files[0])):
            return Project.at(directory)
    return user_project()


def user_project() -> Project:
    """The user's own configuration file and jobs, outside any project."""
    # Imported here: looking up a user's directories costs more than finding a project.
    from platformdirs import PlatformDirs

    places = PlatformDirs("holdfast", appauthor=False)
    return Project(
        directory=None,
        config_file=Path(places.user_config_path) / OWN_FILE,
        data_directory=Path(places.user_state_path),
    )


def _named_project(directory: Path) -> Project:
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory: set --project or {PROJECT_VARIABLE} to a project directory")
    return Project.at(directory)


def _is_trusted(directory: Path, file: Path) -> bool:
    """Raise if a project must not be used.

    Return False for an untrusted `pyproject.toml` that has nothing to do with Holdfast: it is skipped, because it may
    be in a directory that many users share.
    """
    data = directory / ".holdfast"
    try:
        refuse_untrusted(file)
    except ConfigError:
        if file.name == SHARED_FILE and not os.path.lexists(data) and not _mentions_holdfast(file):
            return False
        raise
    # A directory is trusted, because only the project's owner or root can have created it.
    if data.is_symlink() and data.exists():
        refuse_untrusted(data)
    return True


def _mentions_holdfast(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES)
    except OSError:
        return False
    return b"holdfast" in text or len(text) == _MOST_BYTES


def _config_file(directory: Path) -> Path:
    own, shared = directory / OWN_FILE, directory / SHARED_FILE
    if own.is_file() or not shared.is_file():
        return own
    return shared if _our_table(shared, text_of(shared)) is not None else own


def text_of(path: Path) -> str:
    """The text of a configuration file; empty if the file does not exist."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}; fix its permissions, or remove it") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"cannot read {path}: it is not valid UTF-8 ({problem.reason})") from problem


def table_in(path: Path, text: str) -> dict[str, Any]:
    """Our table in the text of a configuration file; empty if there is none."""
    return _our_table(path, text) or {}


def _our_table(path: Path, text: str) -> dict[str, Any] | None:
    import tomllib  # here: commands that need only the table of keys read no file

    try:
        table: dict[str, Any] | None = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from problem
    for part in OUR_TABLE.split(".") if path.name == SHARED_FILE else ():
        table = None if table is None else table.get(part)
        if not isinstance(table, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance] - a file may hold anything
            raise ConfigError(f"[{OUR_TABLE}] in {path} is not a table")
    return table
