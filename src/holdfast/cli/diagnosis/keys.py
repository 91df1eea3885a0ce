"""Signing keys: what jobs and version control know of them. Whether they can be used is told with the settings."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.diagnosis.host import key_file_beside
from holdfast.config import KEYS
from holdfast.deployment import Deployment
from holdfast.errors import HoldfastError
from holdfast.queues.addresses import kind_of
from holdfast.queues.keyfiles import KEY_FILE_VARIABLE, KEY_VARIABLE, find_keyring, read_keyring
from holdfast.queues.signing import Keyring

GIT_ANSWERS_WITHIN_S: Final = 2.0


def key_findings(deployment: Deployment, known: frozenset[str], *, has_jobs: bool) -> Findings:
    """`known` are the fingerprints of the keys that have signed jobs there."""
    if not deployment.settings.verify:
        return
    named = os.environ.get(KEY_FILE_VARIABLE) or deployment.settings.signing_key_file
    given = deployment.signing_key
    is_given = bool(os.environ.get(KEY_VARIABLE)) or given is not None
    file = None if is_given else Path(named).expanduser() if named else key_file_beside(deployment)
    installation = deployment.settings.installation
    try:
        is_there = file is not None and file.exists()
        ring = find_keyring(given, installation=installation, configured_file=deployment.settings.signing_key_file)
        ring = ring or (read_keyring(file, installation=installation) if file is not None and is_there else None)
    except (HoldfastError, OSError):
        return  # that is told with the settings
    if file is not None and not is_there and known:
        yield error(
            "keys",
            f"{file} is missing, and the jobs beside it were signed with it: none of them can be run",
            f"restore it, or give the key in {KEY_VARIABLE}",
        )
        return
    if file is not None and is_there and _would_be_committed(file):
        yield warning(
            "keys",
            f"{file} is not kept out of version control: who reads the history could sign jobs",
            f"write  {file.name}  into {file.parent / '.gitignore'}, and the database beside it, too",
        )
    if ring is not None:
        yield from _ring(deployment, ring, known, has_jobs=has_jobs, is_from_elsewhere=is_given or bool(named))
    elif not kind_of(deployment.url()).needs_key:
        yield note("keys", "there is no signing key yet; one is made when it is first needed")


def _would_be_committed(file: Path) -> bool:
    """Whether git would take the file into its history; not so where there is no git."""
    if (git := shutil.which("git")) is None:
        return False
    asked = [git, "-C", str(file.parent), "check-ignore", "--quiet", file.name]
    try:
        answer = subprocess.run(asked, capture_output=True, timeout=GIT_ANSWERS_WITHIN_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 1  # 0 is ignored, and 128 no repository


def _ring(
    deployment: Deployment, ring: Keyring, known: frozenset[str], *, has_jobs: bool, is_from_elsewhere: bool
) -> Findings:
    ours = {key.fingerprint for key in ring.keys}
    if known and not known & ours and has_jobs:
        yield error(
            "keys",
            "the jobs there were signed with another key or for an installation other than "
            f"'{deployment.settings.installation}': a worker would reject every one",
            f"also pass the old key, after the new one:  {KEY_VARIABLE}=new,old; or set the installation to the name "
            f"that the jobs were signed for:  {KEYS['installation'].variable}=NAME",
        )
        return
    beside = key_file_beside(deployment)
    if is_from_elsewhere and beside is not None and beside.exists() and not _shares(deployment, beside, ours):
        yield warning(
            "keys",
            f"a key is given here, and another one lies in {beside}: whoever is started without the first signs with "
            "the second, and the two reject each other's jobs",
            f"give the key to all of the project, and remove {beside} when nothing it signed is left",
        )
    yield fine("keys", f"signs with key {ring.kid}, verifies with {len(ring.keys)}")


def _shares(deployment: Deployment, file: Path, ours: set[str]) -> bool:
    try:
        beside = read_keyring(file, installation=deployment.settings.installation)
        return bool({key.fingerprint for key in beside.keys} & ours)
    except HoldfastError:
        return False
