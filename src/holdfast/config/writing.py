"""Changing one setting in the configuration file, and nothing else in it: comments, order and spelling stay."""

import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from holdfast.config.keys import Key, key_named
from holdfast.config.kinds import check_value
from holdfast.config.project import OUR_TABLE, SHARED_FILE, table_in, text_of
from holdfast.config.reading import refuse_in_file
from holdfast.errors import ConfigError

# What a member of each table looks like.
_LINES: Final = {
    "allowlist": 'mail = ["send_mail"]',
    "backends": 'reports = "sqlite:///reports.db"',
    "routes": 'nightly = "reports"',
    "engines": 'carrier = "acme_queue:CarrierBackend"',
}


def write_setting(path: Path, name: str, raw: str) -> Any:
    """Set one key in the file, keeping its comments and order; returns the value as it is understood."""
    key = key_named(name)
    refuse_in_file(key)
    if key.is_table:
        raise ConfigError(
            f"{key.name} is a table, which cannot be written from here: write it into {path}, below "
            f"[{f'{OUR_TABLE}.' if path.name == SHARED_FILE else ''}{key.name}], a line like  {_LINES[key.name]}"
        )
    value = check_value(key, raw)
    written: Any = list(cast("tuple[str, ...]", value)) if key.kind == "words" else value

    def put(table: Any, names: list[str]) -> None:
        # The file may spell the key otherwise already: that line is changed, instead of adding a second one.
        table[names[0] if names else key.name] = written

    _change(path, key, put, private=key.shown(value) != value)
    return value


def unset_setting(path: Path, name: str) -> bool:
    """Take one key out of the file; whether it was there."""

    def remove(table: Any, names: list[str]) -> None:
        for spelled in names:
            del table[spelled]

    key = key_named(name)
    if not _spellings(key, table_in(path, text_of(path))):
        return False
    _change(path, key, remove)
    return True


def _spellings(key: Key, table: Any) -> list[str]:
    """The names under which a key stands in a table."""
    return [name for name in table if key.name == name.replace("_", "-").lower()]


def _change(path: Path, key: Key, change: Callable[[Any, list[str]], None], *, private: bool = False) -> None:
    with _locked(path.resolve().parent):
        text = text_of(path)
        wanted = table_in(path, text)  # what cannot be read is not written either
        names = _spellings(key, wanted)
        change(wanted, names)
        changed = _changed(path, text, lambda table: change(table, names))
        if changed is None or not _holds(path, changed, wanted, text):
            raise ConfigError(f"{path} is written in a way that cannot be changed from here: change {key.name} by hand")
        replace_file(path, changed, private=private)


def _changed(path: Path, text: str, change: Callable[[Any], None]) -> str | None:
    """The text with our table changed, or nothing if it cannot be."""
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
    """Whether the new text says what is wanted, and all else that the old one says."""
    try:
        if table_in(path, changed) != wanted:
            return False
    except ConfigError:
        return False
    return path.name != SHARED_FILE or _others(changed) == _others(before)


def _others(text: str) -> dict[str, Any]:
    """What a shared file holds besides our table."""
    import tomllib

    tables = tomllib.loads(text)
    tools = {name: value for name, value in tables.pop("tool", {}).items() if name != "holdfast"}
    return {**tables, "tool": tools}


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


def replace_file(path: Path, text: str, *, private: bool) -> None:
    """Write a file so that whoever reads it meanwhile finds the old or the new one, whole; its mode stays.

    A new one with a secret in it is its owner's alone.
    """
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch(mode=0o600 if private or path.exists() else 0o666)
        temporary.write_bytes(text.encode())  # its line ends stay as they are
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
    finally:
        temporary.unlink(missing_ok=True)
