"""Signing keys: missing, open to others, or not those the jobs were signed with."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.app import Holdfast
from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.diagnosis.host import key_file_beside
from holdfast.errors import HoldfastError
from holdfast.queues.addresses import engine_of
from holdfast.queues.keyfiles import KEY_FILE_VARIABLE, KEY_VARIABLE, find_keyring, is_open, read_keyring
from holdfast.queues.signing import Keyring

GIT_ANSWERS_WITHIN_S: Final = 2.0
MAKE_ONE = "make one with  python -c 'import secrets; print(secrets.token_hex(32))'"


def key_findings(
    hf: Holdfast, known: frozenset[str], *, has_jobs: bool, environment: Mapping[str, str] | None = None
) -> Findings:
    """`known` are the fingerprints of the keys that have signed jobs there."""
    environment = os.environ if environment is None else environment
    if not hf.settings.verify:
        yield warning(
            "keys",
            "signatures are switched off: whoever can write the queue can have any registered handler run",
            "remove verify = false and allow-unsigned = true",
        )
        return
    named = environment.get(KEY_FILE_VARIABLE) or hf.settings.signing_key_file
    is_given = bool(environment.get(KEY_VARIABLE)) or _given(hf) is not None
    file = None if is_given else Path(named).expanduser() if named else key_file_beside(hf)
    if file is not None and (found := list(_file(file, is_named=bool(named), signed=bool(known)))):
        yield from found
        return
    if file is not None and _would_be_committed(file):
        yield warning(
            "keys",
            f"{file} is not kept out of version control: who reads the history could sign jobs",
            f"write  {file.name}  into {file.parent / '.gitignore'}, and the database beside it, too",
        )
    try:
        ring = find_keyring(_given(hf), environment=environment, configured_file=hf.settings.signing_key_file)
        ring = ring or (read_keyring(file) if file is not None and file.exists() else None)
    except HoldfastError as problem:
        yield error("keys", str(problem), "give a key of at least 32 characters, the same to all who use these jobs")
        return
    if ring is None:
        yield from _none(hf)
    else:
        yield from _ring(hf, ring, known, has_jobs=has_jobs, is_from_elsewhere=is_given or bool(named))


def _given(hf: Holdfast) -> str | None:
    """The key an application was made with. It is nobody's business but here, so it is no part of its interface."""
    given: str | None = getattr(hf, "_signing_key", None)
    return given


def _file(file: Path, *, is_named: bool, signed: bool) -> Findings:
    try:
        status = file.stat()
    except FileNotFoundError:
        if is_named:
            yield error("keys", f"{file} is to hold the signing keys and is not there", f"put it there, or {MAKE_ONE}")
        elif signed:
            yield error(
                "keys",
                f"{file} is missing, and the jobs beside it were signed with it: none of them can be run",
                f"restore it, or give the key in {KEY_VARIABLE}",
            )
        return
    except OSError as problem:
        yield error("keys", f"{file} cannot be read: {problem.strerror}", "let this user read it, and nobody else")
        return
    if is_open(status):
        yield error(
            "keys",
            f"{file} holds signing keys and others can read it: they could sign jobs of their own",
            f"chmod 600 {file}",
        )


def _would_be_committed(file: Path) -> bool:
    """Whether git would take the file into its history; not so where there is no git."""
    if not file.exists() or (git := shutil.which("git")) is None:
        return False
    asked = [git, "-C", str(file.parent), "check-ignore", "--quiet", file.name]
    try:
        answer = subprocess.run(asked, capture_output=True, timeout=GIT_ANSWERS_WITHIN_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 1  # 0 is ignored, and 128 no repository


def _none(hf: Holdfast) -> Findings:
    match engine_of(hf.url):
        case "sqlite" | "memory" | "sync":
            yield note("keys", "there is no signing key yet; one is made when it is first needed")
        case _:
            yield error(
                "keys",
                f"there is no signing key, and {hf.location} is shared with other machines",
                f"set {KEY_VARIABLE} to the same key everywhere; {MAKE_ONE}",
            )


def _ring(hf: Holdfast, ring: Keyring, known: frozenset[str], *, has_jobs: bool, is_from_elsewhere: bool) -> Findings:
    ours = {key.fingerprint for key in ring.keys}
    if known and not known & ours and has_jobs:
        yield error(
            "keys",
            "the jobs there were signed with another key than the one given here: a worker would reject every one",
            f"give the old key too, behind the new one:  {KEY_VARIABLE}=new,old",
        )
        return
    beside = key_file_beside(hf)
    if is_from_elsewhere and beside is not None and beside.exists() and not _shares(beside, ours):
        yield warning(
            "keys",
            f"a key is given here, and another one lies in {beside}: whoever is started without the first signs with "
            "the second, and the two reject each other's jobs",
            f"give the key to all of the project, and remove {beside} when nothing it signed is left",
        )
    yield fine("keys", f"signs with key {ring.kid}, verifies with {len(ring.keys)}")


def _shares(file: Path, ours: set[str]) -> bool:
    try:
        return bool({key.fingerprint for key in read_keyring(file).keys} & ours)
    except HoldfastError:
        return False
