"""Settings: one table of keys, read from flags, environment, file and defaults, in that order.

The file is `holdfast.toml`, or `[tool.holdfast]` in `pyproject.toml`, of the nearest directory upward that has one;
outside any project it is the user's own. Keys are written with dashes; underscores mean the same.
"""

import fcntl
import os
import re
import shutil
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec
from msgspec import Struct

from holdfast.errors import ConfigError
from holdfast.values import BackoffStrategy

PROJECT_FILES: Final = ("holdfast.toml", "pyproject.toml")
ENVIRONMENT_PREFIX: Final = "HOLDFAST_"
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_whole_pattern = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_span_pattern = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)")


class Settings(Struct, frozen=True, kw_only=True):
    """Every setting with its value; spans are seconds."""

    url: str = ""
    max_retries: int = 3
    timeout: float = 300.0
    backoff: str = BackoffStrategy.EXPONENTIAL
    backoff_base: float = 2.0
    backoff_max: float = 300.0
    backoff_jitter: float = 0.15
    lease: float = 60.0
    crash_limit: int = 3
    poll_interval: float = 1.0
    reap_interval: float = 10.0
    retain_completed: float = 86400.0
    retain_dead: float = 0.0
    allowed_commands: tuple[str, ...] = ()
    table_prefix: str = "holdfast_"
    signing_key_file: str = ""
    verify: bool = True
    allow_unsigned: bool = False
    middleware: tuple[str, ...] = ()
    allowlist: Mapping[str, tuple[str, ...]] | None = None


class Key(Struct, frozen=True, kw_only=True):
    """One setting: its kind decides how it is written, its bounds what it may be."""

    name: str
    kind: str
    meaning: str
    low: float = 0.0
    high: float = 0.0

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def default(self) -> Any:
        return getattr(Settings(), self.field)


KEYS: Final = {
    key.name: key
    for key in (
        Key(name="url", kind="text", meaning="where the jobs are kept; default: .holdfast/jobs.db in the project"),
        Key(name="max-retries", kind="count", high=1000, meaning="retries after the first run, fixed at enqueue"),
        Key(name="timeout", kind="span", high=366 * 86400, meaning="longest one attempt may take; 0 = no limit"),
        Key(name="backoff", kind="choice", meaning="how the delay grows: none, fixed, linear, exponential"),
        Key(name="backoff-base", kind="number", high=86400, meaning="first delay in seconds, and the multiplier"),
        Key(name="backoff-max", kind="span", high=366 * 86400, meaning="longest delay between two attempts"),
        Key(name="backoff-jitter", kind="number", high=1, meaning="random part of a delay: 0.15 is ±15 %"),
        Key(name="lease", kind="span", low=1, high=86400, meaning="how long a claim holds without being renewed"),
        Key(name="crash-limit", kind="count", low=1, high=100, meaning="deliveries without a verdict that end a job"),
        Key(name="poll-interval", kind="span", low=0.01, high=3600, meaning="longest pause between two looks"),
        Key(name="reap-interval", kind="span", low=0.1, high=3600, meaning="pause between two looks for dead workers"),
        Key(name="retain-completed", kind="span", high=3660 * 86400, meaning="how long completed jobs are kept"),
        Key(name="retain-dead", kind="span", high=3660 * 86400, meaning="how long dead letters are kept; 0 = for ever"),
        Key(name="allowed-commands", kind="words", meaning="programs that command jobs may run, separated by commas"),
        Key(name="table-prefix", kind="text", meaning="what the names of our tables begin with"),
        Key(name="signing-key-file", kind="text", meaning="file with the signing keys, the signing one first"),
        Key(name="verify", kind="flag", meaning="check signatures; false only together with allow-unsigned"),
        Key(name="allow-unsigned", kind="flag", meaning="with verify = false: run jobs that nobody signed"),
        Key(name="middleware", kind="words", meaning="hooks around jobs: MODULE:NAME, or the names of installed ones"),
    )
}


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
        for name in PROJECT_FILES:
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
        config_file=Path(places.user_config_path) / "holdfast.toml",
        data_directory=Path(places.user_state_path),
    )


def _config_file(directory: Path) -> Path:
    own, shared = directory / "holdfast.toml", directory / "pyproject.toml"
    if own.is_file() or not shared.is_file():
        return own
    return shared if _table_of(shared) else own


def load_settings(
    project: Project, flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Flags, then the environment, then the file, then defaults. Every value is checked, wherever it came from."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for name, raw in _table_of(project.config_file).items():
        where = f"in {project.config_file}"
        if name == "allowlist":
            values["allowlist"] = _allowlist(raw, where)
        else:
            key = key_named(name, where)
            if key.field in values:
                raise ConfigError(f"{key.name} is there twice {where}, with a dash and with an underscore: keep one")
            values[key.field] = _anchored(key, check_value(key, raw, where), project.config_file.parent)
    for key in KEYS.values():
        variable = f"{ENVIRONMENT_PREFIX}{key.field.upper()}"
        if variable in environment:
            values[key.field] = check_value(key, environment[variable], f"in ${variable}")
    for name, raw in (flags or {}).items():
        if raw is not None:
            key = key_named(name, "on the command line")
            values[key.field] = check_value(key, raw, "on the command line")
    settings = Settings(**values)
    if not settings.verify and not settings.allow_unsigned:
        raise ConfigError(
            "verify = false lets anybody who can write the queue run any registered handler; "
            "if that is what you want, set allow-unsigned = true beside it"
        )
    return settings


def _anchored(key: Key, value: Any, directory: Path) -> Any:
    """A relative path in a file means: relative to that file, not to wherever somebody happens to be."""
    if key.name == "signing-key-file":
        return str(directory / Path(value).expanduser()) if value else value
    if key.name == "url" and value.startswith("sqlite:///") and not value.startswith("sqlite:////"):
        path = value.removeprefix("sqlite:///")
        return value if path.startswith(("~", ":")) else f"sqlite:///{quote(str(directory), safe='/')}/{path}"
    return value


def key_named(name: str, where: str = "") -> Key:
    """The key of that name, dashes or underscores."""
    normal = name.replace("_", "-").lower()
    if normal in KEYS:
        return KEYS[normal]
    near = get_close_matches(normal, KEYS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(KEYS)}"
    raise ConfigError(f"there is no setting '{name}'{f' ({where})' if where else ''}; {hint}")


def check_value(key: Key, raw: Any, where: str = "") -> Any:
    """The value of a key, from text or from TOML, or a `ConfigError` that names the key, the value and the range."""
    try:
        value = _parse(key, raw)
    except ValueError as problem:
        raise ConfigError(f"{key.name} = {raw!r}{f' {where}' if where else ''}: {problem}") from None
    if key.high and not key.low <= value <= key.high:
        raise ConfigError(
            f"{key.name} = {raw}{f' {where}' if where else ''} is out of range: "
            f"it must be between {_bound(key, key.low)} and {_bound(key, key.high)}"
        )
    return value


def _bound(key: Key, value: float) -> str:
    """A bound as it could be written in the file."""
    if key.kind != "span" or not value:
        return f"{value:g}"
    return f"{value:g}s" if value % 86400 else f"{value / 86400:g}d"


def _parse(key: Key, raw: Any) -> Any:
    match key.kind:
        case "text":
            return _text(raw)
        case "count":
            return _whole(raw)
        case "number":
            return _number(raw)
        case "span":
            return parse_span(raw)
        case "flag":
            return _flag(raw)
        case "words":
            return _words(raw)
        case _:
            if raw not in list(BackoffStrategy):
                raise ValueError(f"choose one of {', '.join(BackoffStrategy)}")
            return str(raw)


def parse_span(raw: object) -> float:
    """Seconds from a number, or from text such as `90s`, `15m`, `2h`, `3d`."""
    if isinstance(raw, str):
        match = _span_pattern.fullmatch(raw.strip().lower())
        if match is None:
            raise ValueError("write a time span as seconds or like 90s, 15m, 2h, 3d")
        return float(match[1]) * _UNITS[match[2]]
    return _number(raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("write it as text")
    return raw


def _whole(raw: object) -> int:
    if isinstance(raw, bool) or not (isinstance(raw, int) or (isinstance(raw, str) and _whole_pattern.fullmatch(raw))):
        raise ValueError("write a whole number")
    return int(raw)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("write a number")
    try:
        return float(raw)
    except ValueError:
        raise ValueError("write a number") from None


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    flags = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if not isinstance(raw, str) or raw.lower() not in flags:
        raise ValueError("write true or false")
    return flags[raw.lower()]


def _words(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        raw = raw.split(",")
    if not isinstance(raw, list | tuple) or not all(isinstance(word, str) for word in cast("list[object]", raw)):
        raise ValueError("write a list of words")
    return tuple(word.strip() for word in cast("list[str]", raw) if word.strip())


def _allowlist(raw: object, where: str) -> Mapping[str, tuple[str, ...]]:
    try:
        return msgspec.convert(raw, dict[str, tuple[str, ...]])
    except msgspec.ValidationError as problem:
        raise ConfigError(f"[allowlist] {where} maps queues to lists of handler keys: {problem}") from problem


def _table_of(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from problem
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from problem
    if path.name == "pyproject.toml":
        for part in ("tool", "holdfast"):
            table = table.get(part, {})
            if not isinstance(table, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - a file may hold anything
                raise ConfigError(f"[tool.holdfast] in {path} is not a table")
    return table


def write_setting(path: Path, name: str, raw: str) -> Any:
    """Set one key in the file, keeping its comments and order; returns the value as it is understood."""
    import tomlkit

    key = key_named(name)
    value = check_value(key, raw)
    with _locked(path.resolve().parent):
        _table_of(path)  # what cannot be read is not written either
        document = tomlkit.parse(path.read_bytes().decode()) if path.is_file() else tomlkit.document()
        table: Any = document
        if path.name == "pyproject.toml":
            for part in ("tool", "holdfast"):
                table = table.setdefault(part, tomlkit.table())
        # The file may spell the key with underscores already: change that line instead of adding a second one.
        spelled = key.field if key.field in table else key.name
        table[spelled] = list(cast("tuple[str, ...]", value)) if key.kind == "words" else value
        _replace(path, tomlkit.dumps(document))
    return value


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """One writer of a directory's settings at a time, or the slower of two would undo the other's change."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever reads it meanwhile finds the old or the new one, whole; its mode stays."""
    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode())  # its line ends stay as they are
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
