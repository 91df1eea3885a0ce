"""Finds plugins: objects that a setting names as `MODULE:NAME` or by the name of an entry point.

Each kind of plugin has its own group of entry points. A plugin is imported only if a setting or a URL names it.
"""

import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.errors import ConfigError, HoldfastError
from holdfast.spelling import did_you_mean


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of plugin: its name in messages, its group of entry points, and the plugins that Holdfast includes."""

    what: str
    group: str
    ours: Mapping[str, str] = {}


MIDDLEWARE: Final = Kind(
    what="middleware", group="holdfast.middleware", ours={"otel": "holdfast.tracing:OpenTelemetry"}
)
HANDLERS: Final = Kind(what="handler", group="holdfast.handlers")
RETRY_POLICIES: Final = Kind(what="retry policy", group="holdfast.retry_policies")
METRICS: Final = Kind(
    what="metrics collector",
    group="holdfast.metrics",
    ours={
        "memory": "holdfast.metrics:InMemoryMetrics",
        "prometheus": "holdfast.metrics.prometheus:PrometheusMetrics",
    },
)
ENGINES: Final = Kind(what="engine", group="holdfast.engines")


def load(kind: Kind, name: str, directory: Path | None = None) -> object:
    """Import the plugin with this name. `directory`, the project's, is also searched for its module."""
    reference = _reference(kind, name)
    module_name, _, attribute = reference.partition(":")
    if reference == name and directory is not None and str(directory) not in sys.path:
        sys.path.append(str(directory))
    try:
        found: object = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except HoldfastError:
        raise
    except Exception as problem:
        source = "" if reference == name else f" from {reference}"
        raise ConfigError(
            f"cannot load the {kind.what} '{name}'{source}: {type(problem).__name__}: {problem}"
        ) from problem
    return found


def make(kind: Kind, name: str, directory: Path | None = None) -> object:
    """Import the plugin with this name. If it is a class, create an instance."""
    found = load(kind, name, directory)
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except TypeError as problem:
        raise ConfigError(
            f"cannot create the {kind.what} '{name}' without arguments ({problem}); name an object instead of a class"
        ) from problem
    except HoldfastError:
        raise
    except Exception as problem:
        raise ConfigError(f"cannot create the {kind.what} '{name}': {type(problem).__name__}: {problem}") from problem


def check(kind: Kind, name: str, directory: Path | None = None) -> None:
    """Raise if there is no such entry point, or no such top-level package. Nothing is imported."""
    reference = _reference(kind, name)
    if not is_reference(reference):
        raise ConfigError(f"{name!r} is not a valid {kind.what}; write MODULE:NAME")
    package = reference.partition(":")[0].partition(".")[0]
    if not has_package(package, [] if directory is None else [directory]):
        raise ConfigError(f"cannot find the {kind.what} '{name}': there is no module '{package}'")


def is_reference(text: str) -> bool:
    """Whether this can be the name of a module, or of an object in one: `MODULE:NAME`."""
    module_name, colon, attribute = text.partition(":")
    return all(part.isidentifier() for name in (module_name, attribute if colon else "_") for part in name.split("."))


def has_package(name: str, directories: Iterable[Path]) -> bool:
    """Whether there is a top-level package or module of this name, also in these directories. Nothing is imported."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if name in sys.modules or find_spec(name) is not None:
        return True
    return PathFinder.find_spec(name, list(map(str, directories))) is not None


def published(kind: Kind, name: str) -> str | None:
    """The location of the installed plugin with this name, as `MODULE:NAME`; None if there is none."""
    if name in kind.ours:
        return kind.ours[name]
    from importlib.metadata import entry_points  # here: importing it takes longer than all of ours

    return next((point.value for point in entry_points(group=kind.group, name=name)), None)


def _reference(kind: Kind, name: str) -> str:
    """The plugin as `MODULE:NAME`."""
    reference = published(kind, name) or name
    if not reference.partition(":")[2]:
        raise ConfigError(f"there is no {kind.what} '{name}'; {_hint(kind, name)}")
    return reference


def _hint(kind: Kind, name: str) -> str:
    from importlib.metadata import entry_points

    known = sorted({*kind.ours, *(point.name for point in entry_points(group=kind.group))})
    if near := did_you_mean(name, known):
        return near
    installed = f" or one of the installed ones: {', '.join(known)}" if known else "; no package provides one"
    return f"write MODULE:NAME{installed}"
