"""Finds signing keys: in an argument, the environment or a file. Only the embedded engine generates its own."""

import os
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.errors import BackendUnavailable, ConfigError
from holdfast.queues.signing import Keyring, SigningKey

KEY_VARIABLE: Final = "HOLDFAST_SIGNING_KEY"
KEY_FILE_VARIABLE: Final = "HOLDFAST_SIGNING_KEY_FILE"
KEY_FILE_NAME: Final = "signing.key"
KEY_FACTS: Final = "signing-key"
"""The kind of the facts with the fingerprints of the keys that signed an engine's jobs."""


def find_keyring(
    explicit: str | None = None,
    *,
    installation: str,
    environment: Mapping[str, str] | None = None,
    configured_file: str = "",
) -> Keyring | None:
    """The keys this process was given: by argument, by variable, by a file named in a variable or in the settings."""
    environment = os.environ if environment is None else environment
    if explicit is not None:
        return Keyring.parse(explicit, installation=installation)
    if text := environment.get(KEY_VARIABLE):
        return Keyring.parse(text, installation=installation)
    if named := environment.get(KEY_FILE_VARIABLE) or configured_file:
        return read_keyring(Path(named).expanduser(), installation=installation)
    return None


def read_keyring(path: Path, *, installation: str) -> Keyring:
    """The keys in a file that only its owner can read."""
    return Keyring.parse(read_secret(path, "the signing keys", encoding="ascii"), installation=installation)


def read_secret(path: Path, what: str, *, encoding: str = "utf-8") -> str:
    """The text of a file that only its owner can read; an empty file is refused."""
    try:
        status = path.stat()
        text = path.read_text(encoding=encoding)
    except OSError as problem:
        raise ConfigError(f"cannot read {what} in {path}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"cannot read {what} in {path}: it is not {encoding.upper()} text") from problem
    if is_open(status):
        raise ConfigError(f"{path} holds {what} and others can read it:  chmod 600 {shlex.quote(str(path))}")
    if not text.strip():
        raise ConfigError(f"cannot read {what} in {path}: it is empty")
    return text


def is_open(status: os.stat_result) -> bool:
    """Whether other users can read or write a file. If another user owns it and our group may read it, it was provided
    that way, as Kubernetes (with `fsGroup`) and systemd do.
    """
    handed = stat.S_IRGRP if os.name == "posix" and status.st_uid != os.geteuid() else 0
    return os.name == "posix" and bool(status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~handed)


def keyring_next_to(database: Path, *, installation: str) -> Keyring:
    """The key next to an embedded database, generated when the first process needs it."""
    path = key_path(database)
    try:
        if not path.exists():
            _generate(path)
    except OSError as problem:
        raise BackendUnavailable(
            f"cannot write to {path.parent} ({problem.strerror}): choose another location with --url or HOLDFAST_URL"
        ) from problem
    return read_keyring(path, installation=installation)


def key_path(database: Path) -> Path:
    """The file with the key of an embedded database."""
    return database.parent / KEY_FILE_NAME


def _generate(path: Path) -> None:
    """Write a new key. If two processes do so at once, one wins, and neither reads half a key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(SigningKey.generate_text() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        pass  # another process was first, and its key is used
    finally:
        temporary.unlink()
