"""Changes one setting in the configuration file and preserves everything else in it, including comments and order."""

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from holdfast.config.keys import Key, key_named
from holdfast.config.kinds import check_value
from holdfast.config.project import OUR_TABLE, SHARED_FILE, table_in, text_of
from holdfast.config.reading import refuse_in_file
from holdfast.errors import ConfigError

# An example line for each table.
_LINES: Final = {
    "allowlist": 'mail = ["send_mail"]',
    "backends": 'reports = "sqlite:///reports.db"',
    "routes": 'nightly = "reports"',
    "dead-letter-queues": 'mail = "failed_mail"',
    "engines": 'carrier = "acme_queue:CarrierBackend"',
    "limits": 'mail = "60/min"',
    "schedules": 'backup = {cron = "0 2 * * *", command = ["backup"]}',
}


def write_setting(path: Path, name: str, raw: str, *, judge: Callable[[Key, str], None] | None = None) -> Any:
    """Set one key in the file and return its parsed value.

    `judge` receives the key and the new text of the file, and raises if it must not be written.
    """
    key = key_named(name)
    refuse_in_file(key)
    if key.is_table:
        raise ConfigError(
            f"{key.name} is a table and can only be edited by hand: in {path}, below "
            f"[{f'{OUR_TABLE}.' if path.name == SHARED_FILE else ''}{key.name}], add a line like  {_LINES[key.name]}"
        )
    value = check_value(key, raw)
    written: Any = list(cast("tuple[str, ...]", value)) if key.kind in ("words", "queues") else value

    def put(table: Any, names: list[str]) -> None:
        # The key may already be in the file with underscores: change that line instead of adding a second one.
        table[names[0] if names else key.name] = written

    _change(path, key, put, private=key.shown(value) != value, judge=judge)
    return value


def unset_setting(path: Path, name: str) -> bool:
    """Remove one key from the file; whether it was there."""

    def remove(table: Any, names: list[str]) -> None:
        for spelled in names:
            del table[spelled]

    key = key_named(name)
    if not _spellings(key, table_in(path, text_of(path))):
        return False
    _change(path, key, remove)
    return True


def _spellings(key: Key, table: Any) -> list[str]:
    """The spellings of a key that a table contains."""
    return [name for name in table if key.name == name.replace("_", "-").lower()]


def _change(
    path: Path,
    key: Key,
    change: Callable[[Any, list[str]], None],
    *,
    private: bool = False,
    judge: Callable[[Key, str], None] | None = None,
) -> None:
    with _locked(path.resolve().parent):
        text = text_of(path)
        wanted = table_in(path, text)
        names = _spellings(key, wanted)
        change(wanted, names)
        changed = _changed(path, text, lambda table: change(table, names))
        if changed is None or not _holds(path, changed, wanted, text):
            raise ConfigError(f"{path} cannot be changed without losing part of it; edit {key.name} by hand")
        if judge is not None:
            judge(key, changed)
        replace_file(path, changed, private=private)


def _changed(path: Path, text: str, change: Callable[[Any], None]) -> str | None:
    """The text with our table changed; None if that is not possible."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        table: Any = document
        if path.name == SHARED_FILE:
            for part in OUR_TABLE.split("."):
                table = table.setdefault(part, tomlkit.table())
        change(table)
        return tomlkit.dumps(document)
    except TOMLKitError:
        return None


def _holds(path: Path, changed: str, wanted: dict[str, Any], before: str) -> bool:
    """Whether the new text has the wanted settings and everything else that the old text has."""
    try:
        if table_in(path, changed) != wanted:
            return False
    except ConfigError:
        return False
    return path.name != SHARED_FILE or _others(changed) == _others(before)


def _others(text: str) -> dict[str, Any]:
    """Everything in `pyproject.toml` except our table."""
    import tomllib

    tables = tomllib.loads(text)
    tools = {name: value for name, value in tables.pop("tool", {}).items() if name != "holdfast"}
    return {**tables, "tool": tools}


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Hold the lock of a directory, so that two writers do not undo each other's changes."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, *, private: bool) -> None:
    """Replace a file in one step and preserve its mode. If it is new and `private`, only its owner can read it.

    Other users may be able to write to the directory, so the temporary file has an unpredictable name and is opened
    only if it is new.
    """
    path = path.resolve()  # if it is a link, write to its target
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666 if mode is None and not private else 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:  # binary, so that line ends are preserved
                file.write(text.encode())
                if mode is not None:
                    os.fchmod(descriptor, mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
