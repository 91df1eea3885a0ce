"""Signing keys: do they fit the jobs, and are they safe? Unusable keys are reported with the settings."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.diagnosis.host import database_of
from holdfast.config import KEYS
from holdfast.deployment import Deployment
from holdfast.errors import HoldfastError
from holdfast.queues.addresses import kind_of
from holdfast.queues.keyfiles import KEY_FILE_VARIABLE, KEY_VARIABLE, find_keyring, key_path, read_keyring
from holdfast.queues.signing import Keyring
from holdfast.units import counted

GIT_TIMEOUT_S: Final = 2.0


def key_findings(deployment: Deployment, known: frozenset[str], *, has_jobs: bool) -> Findings:
    """Check the keys; `known` are the fingerprints of the keys that have signed jobs."""
    if not deployment.settings.verify:
        return
    named = os.environ.get(KEY_FILE_VARIABLE) or deployment.settings.signing_key_file
    given = deployment.signing_key
    is_given = bool(os.environ.get(KEY_VARIABLE)) or given is not None
    file = None if is_given else Path(named).expanduser() if named else _default_file(deployment)
    installation = deployment.settings.installation
    try:
        is_there = file is not None and file.exists()
        ring = find_keyring(given, installation=installation, configured_file=deployment.settings.signing_key_file)
        ring = ring or (read_keyring(file, installation=installation) if file is not None and is_there else None)
    except (HoldfastError, OSError):
        return  # reported with the settings
    if file is not None and not is_there and known:
        yield error(
            "keys",
            f"{file} is missing, and the jobs were signed with it: none of them can run",
            f"restore it, or set the key in {KEY_VARIABLE}",
        )
        return
    if file is not None and is_there and _would_be_committed(file):
        yield warning(
            "keys",
            f"git does not ignore {file}: everyone who can read the repository could sign jobs",
            f"add {file.name} and the database to {file.parent / '.gitignore'}",
        )
    if ring is not None:
        yield from _ring(deployment, ring, known, has_jobs=has_jobs, is_from_elsewhere=is_given or bool(named))
    elif not kind_of(deployment.url()).needs_key:
        yield note("keys", "no signing key yet; it is created when first needed")


def _default_file(deployment: Deployment) -> Path | None:
    """The key file next to an embedded database."""
    database = database_of(deployment)
    return None if database is None else key_path(database)


def _would_be_committed(file: Path) -> bool:
    """Whether git would commit the file. False where there is no git."""
    if (git := shutil.which("git")) is None:
        return False
    asked = [git, "-C", str(file.parent), "check-ignore", "--quiet", file.name]
    try:
        answer = subprocess.run(asked, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 1  # 0: ignored; 128: not a repository


def _ring(
    deployment: Deployment, ring: Keyring, known: frozenset[str], *, has_jobs: bool, is_from_elsewhere: bool
) -> Findings:
    ours = {key.fingerprint for key in ring.keys}
    if known and not known & ours and has_jobs:
        yield error(
            "keys",
            "the jobs were signed with another key or for an installation other than "
            f"'{deployment.settings.installation}': workers will reject all of them",
            f"also pass the old key, after the new one:  {KEY_VARIABLE}=new,old; or set the installation to the name "
            f"that the jobs were signed for:  {KEYS['installation'].variable}=NAME",
        )
        return
    beside = _default_file(deployment)
    if is_from_elsewhere and beside is not None and beside.exists() and not _shares(deployment, beside, ours):
        yield warning(
            "keys",
            f"this process has a key, but {beside} contains another one: processes that use the file reject the jobs "
            "of this one, and this one rejects theirs",
            f"give every process the same key, and remove {beside} once no job that it signed is left",
        )
    yield fine("keys", f"signing with key {ring.kid}; {counted(len(ring.keys), 'trusted key')}")


def _shares(deployment: Deployment, file: Path, ours: set[str]) -> bool:
    try:
        beside = read_keyring(file, installation=deployment.settings.installation)
        return bool({key.fingerprint for key in beside.keys} & ours)
    except HoldfastError:
        return False
