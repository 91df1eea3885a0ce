"""Checks who can change a project that was found and not named.

Settings decide which code is imported, which commands may run and where jobs are stored. A file that another user can
write to must not take effect only because of the current directory, as in git's CVE-2022-24765.
"""

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path
from typing import Final

from holdfast.errors import ConfigError

PROJECT_VARIABLE: Final = "HOLDFAST_PROJECT"


def refuse_untrusted(file: Path) -> None:
    """Raise unless a file belongs to this user or root, and no other user can change it or put another in its place.

    The same goes for its directory and, if the file is a link, for the link's target and the directory of that.
    """
    target = file.resolve()
    for path in dict.fromkeys((file.parent, file, target.parent, target)):
        if (found := _weakness(path)) is not None:
            what, remedy = found
            directory = shlex.quote(str(file.parent))
            raise ConfigError(
                f"refusing to use {file}: {what}, so another user may have written it. {remedy}. If you trust this "
                "project (for example a checkout in a container or CI job that belongs to another uid, or with sudo), "
                f"select it explicitly:  holdfast --project {directory} …  or  {PROJECT_VARIABLE}={directory}"
            )


def is_trusted(directory: Path) -> bool:
    """Whether a directory belongs to this user or root, and no other user can write to it."""
    return _weakness(directory) is None


def _weakness(path: Path) -> tuple[str, str] | None:
    """Why another user may have changed a path, and how its owner can fix that."""
    status, quoted = path.lstat(), shlex.quote(str(path))
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        owner, user = _user(status.st_uid), _user(os.geteuid())
        return f"{path} belongs to {owner}, and you are {user}", f"Run the command as {owner}"
    if stat.S_ISLNK(status.st_mode):  # everyone can write through a link; its target is checked as well
        return None
    if mode & stat.S_ISVTX and mode & stat.S_IWOTH:
        remedy = f"Move the project from {path} to a directory that only you can write to"
        return f"every user can create files in {path} (mode {mode:04o})", remedy
    if mode & stat.S_IWOTH:
        return f"every user can write to {path} (mode {mode:04o})", f"Fix it with  chmod o-w {quoted}"
    if mode & stat.S_IWGRP and not _is_private(status.st_gid, status.st_uid):
        what = f"group {_group(status.st_gid)} can write to {path} (mode {mode:04o})"
        return what, f"Fix it with  chmod g-w {quoted}"
    return None


def _is_private(gid: int, uid: int) -> bool:
    """Whether a group is the private group of a user: the primary group, with the user's name and no other member."""
    try:
        owner, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return owner.pw_gid == gid and owner.pw_name == group.gr_name and not set(group.gr_mem) - {owner.pw_name}


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
