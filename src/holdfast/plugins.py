"""What others bring along: an object that a setting names, by `MODULE:NAME` or as a package has published it.

A package publishes one under an entry point of the group that the kind names. Nothing is loaded that no setting or
URL asks for.
"""

import inspect
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.errors import ConfigError, HoldfastError


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of plugin: what it is called in a sentence, the group of its entry points, and those of our own."""

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
    """The object of that name: one that is installed, or `MODULE:NAME`.

    `directory` is where the project's own modules are; without a project, that is where one stands.
    """
    reference = published(kind, name) or name
    module_name, _, attribute = reference.partition(":")
    if not attribute:
        raise ConfigError(unknown(kind, name))
    home = str(directory or Path.cwd())
    if reference == name and home not in sys.path:  # what is installed needs no help to be found
        sys.path.append(home)
    try:
        found: object = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except HoldfastError:
        raise
    except Exception as problem:
        source = "" if reference == name else f" from {reference}"
        raise ConfigError(
            f"the {kind.what} '{name}' cannot be loaded{source}: {type(problem).__name__}: {problem}"
        ) from problem
    return found


def make(kind: Kind, name: str, directory: Path | None = None) -> object:
    """The same; of a class, an object of it."""
    found = load(kind, name, directory)
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except TypeError as problem:
        raise ConfigError(
            f"the {kind.what} '{name}' cannot be made without arguments ({problem}): name an object instead of a class"
        ) from problem
    except HoldfastError:
        raise
    except Exception as problem:
        raise ConfigError(f"the {kind.what} '{name}' cannot be made: {type(problem).__name__}: {problem}") from problem


def published(kind: Kind, name: str) -> str | None:
    """Where the installed one of that name is, as `MODULE:NAME`; None if there is none."""
    if name in kind.ours:
        return kind.ours[name]
    from importlib.metadata import entry_points  # here: importing it takes longer than all of ours

    return next((point.value for point in entry_points(group=kind.group, name=name)), None)


def names(kind: Kind) -> tuple[str, ...]:
    """Those that are installed."""
    from importlib.metadata import entry_points

    return tuple(sorted({*kind.ours, *(point.name for point in entry_points(group=kind.group))}))


def unknown(kind: Kind, name: str) -> str:
    """That there is none of that name, and what to write."""
    return f"there is no {kind.what} '{name}': {_hint(kind, name)}"


def _hint(kind: Kind, name: str) -> str:
    known = names(kind)
    near = get_close_matches(name, known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    installed = f", or one of those installed: {', '.join(known)}" if known else "; none is installed under a name"
    return f"write MODULE:NAME{installed}"
