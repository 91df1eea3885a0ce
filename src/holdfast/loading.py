"""Imports the user's application, named as `MODULE:NAME`."""

import os
import shlex
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Final

from holdfast.app import Holdfast
from holdfast.config import PROJECT_VARIABLE, find_project
from holdfast.config.trust import is_trusted
from holdfast.errors import ConfigError
from holdfast.plugins import is_reference

_OURS: Final = os.path.dirname(__file__) + os.sep
_PYTHONS: Final = os.path.dirname(os.__file__) + os.sep


def load_app(reference: str) -> Holdfast:
    """The application at `MODULE:NAME`. The current directory and the project's are searched first.

    The current directory is left out if another user can write to it, unless it is the project that was named: it may
    be a directory for uploads, and the application may be named by the settings of another directory.
    """
    module_name, _, attribute = reference.partition(":")
    if not is_reference(reference):
        raise ConfigError(f"{reference!r} is not an application; write MODULE:NAME, such as shop:hf for hf in shop.py")
    project, here = find_project().directory, Path.cwd()
    is_named = bool(os.environ.get(PROJECT_VARIABLE)) and project is not None and here == project.resolve()
    is_searched = is_named or is_trusted(here)
    sys.path[:0] = [*([str(here)] if is_searched else []), *([str(project)] if project else [])]
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not (module_name == problem.name or module_name.startswith(f"{problem.name}.")):
            raise _broken_module(module_name, problem) from problem
        file = module_name.removesuffix(".py")
        hint = f"write  {file}:NAME" if file != module_name else "run this command in the directory that contains it"
        if not is_searched:
            hint = (
                f"{here} was not searched, because another user can write to it; to search it, pass  --project "
                f"{shlex.quote(str(here))}"
            )
        raise ConfigError(f"there is no module '{module_name}'; {hint}") from None
    except (Exception, SystemExit) as problem:
        raise _broken_module(module_name, problem) from problem
    found = _attribute(module, attribute, reference)
    if not isinstance(found, Holdfast):
        raise ConfigError(f"'{reference}' is a {type(found).__name__}, not a Holdfast application")
    found.schedules.origin = module_name.partition(".")[0]
    return found


def _broken_module(module_name: str, problem: BaseException) -> ConfigError:
    """The error of the user's own code, with its last line rather than ours."""
    place = problem if isinstance(problem, SyntaxError) else _place_of(problem)
    where = f"{place.filename}:{place.lineno}"
    return ConfigError(f"cannot import '{module_name}': {type(problem).__name__}: {problem} (at {where})")


def _place_of(problem: BaseException) -> traceback.FrameSummary:
    """The last line of the user's code or an installed package before the error was raised."""
    frames = traceback.extract_tb(problem.__traceback__)
    return next((frame for frame in reversed(frames) if _is_theirs(frame.filename)), frames[-1])


def _is_theirs(file: str) -> bool:
    if file.startswith((_OURS, "<frozen ")):
        return False
    # Installed packages may be below the directory of Python's own library.
    return not file.startswith(_PYTHONS) or "site-packages" in file


def _attribute(module: object, attribute: str, reference: str) -> object:
    if attribute:
        if not hasattr(module, attribute):
            apps = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
            hint = f"; it has {', '.join(apps)}" if apps else ""
            raise ConfigError(f"'{reference}': the module has no '{attribute}'{hint}")
        return getattr(module, attribute)
    apps = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    if len(apps) != 1:
        which = f"has several applications ({', '.join(apps)})" if apps else "has no Holdfast application"
        raise ConfigError(f"module '{reference}' {which}; name one as {reference}:NAME")
    return getattr(module, apps[0])
