"""Where settings and the embedded database live: the project of a directory, its file and the table in it."""

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from holdfast.errors import ConfigError

OWN_FILE: Final = "holdfast.toml"
SHARED_FILE: Final = "pyproject.toml"
OUR_TABLE: Final = "tool.holdfast"


class Project(Struct, frozen=True, kw_only=True):
    """Where settings and the embedded database live."""

    directory: Path | None
    config_file: Path
    data_directory: Path

    @property
    def default_url(self) -> str:
        return f"sqlite:///{quote(str(self.data_directory / 'jobs.db'))}"


def find_project(start: Path | None = None) -> Project:
    """The project of a directory: the nearest one upward with a configuration file, else the user's own."""
    here = (start or Path.cwd()).absolute()
    for directory in (here, *here.parents):
        for name in (OWN_FILE, SHARED_FILE):
            if (directory / name).is_file():
                return Project(
                    directory=directory,
                    config_file=_config_file(directory),
                    data_directory=directory / ".holdfast",
                )
    # Imported here: looking up a user's directories costs more than everything above.
    from platformdirs import PlatformDirs

    places = PlatformDirs("holdfast", appauthor=False)
    return Project(
        directory=None,
        config_file=Path(places.user_config_path) / OWN_FILE,
        data_directory=Path(places.user_state_path),
    )


def _config_file(directory: Path) -> Path:
    own, shared = directory / OWN_FILE, directory / SHARED_FILE
    if own.is_file() or not shared.is_file():
        return own
    return shared if _our_table(shared, text_of(shared)) is not None else own


def text_of(path: Path) -> str:
    """What is written in a configuration file; nothing, if there is none."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}; see to its permissions, or remove it") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"cannot read {path}: it is no text in UTF-8 ({problem.reason})") from problem


def table_in(path: Path, text: str) -> dict[str, Any]:
    """Our table in the text of a configuration file; an empty one, if there is none."""
    return _our_table(path, text) or {}


def _our_table(path: Path, text: str) -> dict[str, Any] | None:
    import tomllib  # here: whoever only wants the table of keys reads no file

    try:
        table: dict[str, Any] | None = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from problem
    for part in OUR_TABLE.split(".") if path.name == SHARED_FILE else ():
        table = None if table is None else table.get(part)
        if not isinstance(table, dict | None):  # pyright: ignore[reportUnnecessaryIsInstance] - a file may hold anything
            raise ConfigError(f"[{OUR_TABLE}] in {path} is not a table")
    return table
