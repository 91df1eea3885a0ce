"""Job options on the command line, derived from `JobOptions`, and as text for people."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, cast, get_args, get_type_hints

import click
import msgspec
from msgspec import Meta

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.enqueue.instants import SpanOrWhen, When
from holdfast.cli.options import Span
from holdfast.cli.words import DEPENDS_ON
from holdfast.definition.backoff import parse_backoff
from holdfast.definition.definition import JobOptions, Option
from holdfast.errors import DefinitionError
from holdfast.rates import parse_rate
from holdfast.units import format_duration
from holdfast.values import JobTraits, OnConflict, OnParentFailure, UniqueScope

LABELS: Final = ("id", "name", "tags", "meta", "trace_id")
"""The options that name and label a job. They make sense for every command that creates one."""


class Declared(NamedTuple):
    """An option as `JobOptions` declares it. A union type is given by its members."""

    option: Option
    types: tuple[Any, ...]
    bounds: Meta | None

    @classmethod
    def of(cls, hint: Any) -> "Declared":
        kind, *extras = get_args(hint)
        options = [extra for extra in extras if isinstance(extra, Option)]
        bounds = [extra for extra in extras if isinstance(extra, Meta)]
        return cls(options[0], get_args(kind) or (kind,), bounds[0] if bounds else None)


DECLARED: Final = {name: Declared.of(hint) for name, hint in get_type_hints(JobOptions, include_extras=True).items()}


class _BackoffText(click.ParamType[str]):
    """A backoff, checked and left as it was written."""

    name = "backoff"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_backoff(str(value))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)
        return str(value)


class _UniqueScope(click.ParamType[Any]):
    """How long a unique key stays taken: `open`, `waiting`, or a duration."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in (UniqueScope.OPEN, UniqueScope.WAITING):
            return value
        try:
            return Span().convert(value, param, ctx)
        except click.BadParameter as problem:
            self.fail(f"{problem.message}; open and waiting are also valid", param, ctx)


class _RateText(click.ParamType[str]):
    """A rate limit, checked and left as it was written."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_rate(str(value))
        except ValueError as problem:
            self.fail(f"{value!r}: {problem}", param, ctx)
        return str(value)


_TYPES: Final[Mapping[str, click.ParamType[Any]]] = {
    "backoff": _BackoffText(),
    "run_at": When(),
    "expires": SpanOrWhen(),
    "unique_for": _UniqueScope(),
    "on_conflict": click.Choice([action.value for action in OnConflict]),
    "on_parent_failure": click.Choice([action.value for action in OnParentFailure]),
    "rate_limit": _RateText(),
}


def job_options(*names: str) -> tuple[Callable[[Any], Any], ...]:
    """The click options for these job options, in this order; without names, for all of them."""
    return tuple(_click_option(name, DECLARED[name]) for name in names or DECLARED)


def take_options(given: dict[str, Any]) -> dict[str, Any]:
    """Remove the job options from the parameters of a command, and return those that were given as JSON fields."""
    from holdfast.cli.arguments import parse_arguments, untyped

    options = {name: given.pop(name) for name in DECLARED if name in given}
    options["tags"] = _split(options["tags"], "an empty tag; write --tag a,b")
    if "after" in options:
        options[DEPENDS_ON] = _split(options.pop("after"), "an empty id; write --depends-on a,b")
    options["meta"] = untyped(parse_arguments(options["meta"], what="--meta"))
    if isinstance(options.get("expires"), datetime):
        options["expires_at"] = options.pop("expires")
    return {name: value for name, value in options.items() if value is not False and value not in (None, [], {})}


_SHOWN_APART: Final = (
    *("name", "priority"),
    *("idempotency_key", "idempotency_ttl", "single_instance", "concurrency_key", "concurrency", "breaker"),
    *("rate_limit", "rate_key", "after", "on_parent_failure"),
)


_NAMES: Final = "|".join(DECLARED)
_LONG_NAMES: Final = "|".join(name for name in DECLARED if "_" in name)
_HERE: Final = (
    rf"(?:^|(?<=: ))(?:{_NAMES})(?= must| has no effect| '[^']*' must)"
    rf"|(?:(?<=without )|(?<=; set )|(?<=leave out ))(?:{_NAMES})\b"
)
# Text in quotes is a value. A name without an underscore may also be an ordinary word, except in these places.
_NAMED: Final = re.compile(rf"""'[^']*'|"[^"]*"|({_HERE}|\b(?:{_LONG_NAMES})\b)""")


def as_typed(message: str, words: Sequence[str]) -> str:
    """The message of an error with the flags of job options instead of their names, if the user typed a flag for the
    one that it names first. In JSON, options have the same names as in Python.
    """
    typed = {word.partition("=")[0] for word in words}
    found = [match[1] for match in _NAMED.finditer(message) if match[1]]
    if not found or not typed.intersection(_flags_of(found[0])):
        return message

    def flag(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        flags = _flags_of(match[1])
        return next((one for one in flags if one in typed), flags[0])

    return _NAMED.sub(flag, message)


def trait_facts(job: JobTraits) -> dict[str, str]:
    """The options that a job carries, for people: those that were set, except for its name and priority."""
    facts: dict[str, str] = {}
    for field in msgspec.structs.fields(JobTraits):
        value: Any = getattr(job, field.name)
        if field.name not in _SHOWN_APART and value not in (field.default, {}):
            facts[field.name.replace("_", " ")] = _shown(value)
    if job.rate_limit is not None:
        facts["rate limit"] = job.rate_limit + ("" if job.rate_key is None else f" for the key '{job.rate_key}'")
    if job.after:
        facts["depends on"] = ", ".join(job.after)
    if job.on_parent_failure is not OnParentFailure.CANCEL:
        facts["on failure"] = f"{job.on_parent_failure} if a job that it depends on fails"
    keys = _keys(job)
    return {**facts, "keys": ", ".join(keys)} if keys else facts


def _keys(job: JobTraits) -> list[str]:
    """The keys that determine whether and when the job can run."""
    keys: list[str] = []
    if job.idempotency_key is not None:
        ttl = "" if job.idempotency_ttl is None else f" (for {format_duration(job.idempotency_ttl)})"
        keys.append(f"idempotency {job.idempotency_key}{ttl}")
    if job.single_instance:
        keys.append("single instance")
    if job.concurrency_key is not None:
        limit = "" if job.concurrency == 1 else f" ({job.concurrency} at a time)"
        keys.append(f"concurrency {job.concurrency_key}{limit}")
    if job.breaker is not None:
        keys.append(f"circuit breaker {job.breaker}")
    return keys


def _shown(value: Any) -> str:
    match value:
        case True:
            return "yes"
        case str():
            return value
        case tuple():
            return ", ".join(cast("tuple[str, ...]", value))
        case datetime():
            return value.isoformat()
        case msgspec.Raw():
            return bytes(value).decode(errors="replace")
        case _:
            return msgspec.json.encode(value).decode()


def _click_option(name: str, declared: Declared) -> Callable[[Any], Any]:
    option, types, bounds = declared
    attributes: dict[str, Any] = {"help": option.help, "metavar": option.metavar}
    if name in _TYPES:
        attributes["type"] = _TYPES[name]
    elif name in ("tags", "meta", "after"):
        attributes["multiple"] = True
        if name == "after":
            attributes["shell_complete"] = complete_job_ids
    elif types == (bool,):
        attributes["is_flag"] = True
    elif timedelta in types:
        attributes |= {"type": Span(), "metavar": "DURATION"}
    elif types == (int,) and bounds is not None:
        attributes["type"] = click.IntRange(cast("int", bounds.ge), cast("int", bounds.le))
    return click.option(*_flags_of(name), name, **attributes)


def _flags_of(name: str) -> tuple[str, ...]:
    return DECLARED[name].option.flags or (f"--{name.replace('_', '-')}",)


def _split(given: tuple[str, ...], problem: str) -> list[str]:
    """The tags or ids of all words. A word may contain several, separated by commas."""
    parts = [part.strip() for word in given for part in word.split(",")]
    if "" in parts:
        raise DefinitionError(f"{','.join(given)!r} contains {problem}")
    return parts
