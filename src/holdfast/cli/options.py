"""Options and arguments that several commands share, and opening the application they name."""

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.config import find_project, parse_span
from holdfast.definition.definition import check_queue
from holdfast.errors import ConfigError, DefinitionError
from holdfast.queues.opening import sqlite_path, sqlite_prefix
from holdfast.values import JobState

F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    return click.option("--url", metavar="URL", help="Where the jobs are, instead of the configured place.")(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


class Span(click.ParamType[float]):
    """A time span: seconds, or like 90s, 15m, 2h, 3d."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_span(value)
        except ValueError as problem:
            self.fail(f"{value!r}: {problem}", param, ctx)


class QueueNames(click.ParamType[tuple[str, ...]]):
    """Queues, separated by commas."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        try:
            return tuple(dict.fromkeys(check_queue(name.strip()) for name in str(value).split(",")))
        except DefinitionError as problem:
            self.fail(str(problem), param, ctx)


class States(click.ParamType[tuple[JobState, ...]]):
    """Job states, separated by commas."""

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[JobState, ...]:
        try:
            return tuple(JobState(name.strip().lower()) for name in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no state; choose from {', '.join(JobState)}", param, ctx)


def existing(url: str | None) -> Holdfast:
    """The application to look at. A file named by mistake is an error here, not a new and empty database."""
    hf = Holdfast(url)
    if url is not None and url.startswith("sqlite:") and not sqlite_prefix(url) and not sqlite_path(url).exists():
        raise ConfigError(f"there is no database at {sqlite_path(url)}")
    return hf


def load_app(reference: str) -> Holdfast:
    """The application at `module:attribute`, imported from the working directory like Python itself would."""
    module_name, _, attribute = reference.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{reference!r} is no application: write MODULE:NAME, such as shop:hf for hf in shop.py")
    project = find_project().directory
    sys.path[:0] = [str(Path.cwd()), *([str(project)] if project else [])]
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not (module_name == problem.name or module_name.startswith(f"{problem.name}.")):
            raise _broken_module(module_name, problem) from problem
        file = module_name.removesuffix(".py")
        hint = f"for {module_name} write  {file}:NAME" if file != module_name else "run this where it can be imported"
        raise ConfigError(f"there is no module '{module_name}' here: {hint}") from None
    except Exception as problem:
        raise _broken_module(module_name, problem) from problem
    found = _attribute(module, attribute, reference)
    if not isinstance(found, Holdfast):
        raise ConfigError(f"'{reference}' is a {type(found).__name__}, not a Holdfast application")
    return found


def _broken_module(module_name: str, problem: Exception) -> ConfigError:
    """The failure of the user's own code, told by its own last line rather than by our frames."""
    place = problem if isinstance(problem, SyntaxError) else traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{place.filename}:{place.lineno}"
    return ConfigError(f"cannot import '{module_name}': {type(problem).__name__}: {problem} (at {where})")


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
