"""Options and arguments that several commands share, and opening the backend that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from holdfast.cli import GLOBALS
from holdfast.cli.completion import complete_app, matching
from holdfast.errors import ConfigError, DefinitionError
from holdfast.spelling import did_you_mean
from holdfast.values import JobState

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from holdfast.config import Reading
    from holdfast.deployment import Deployment
    from holdfast.queues.contract import Engine
    from holdfast.state.limits import Usage

F = TypeVar("F", bound=Callable[..., Any])

MAX_WEIGHT: Final = 1000
LEAST_MEMORY: Final = 32 * 1024 * 1024
_SIZE: Final = r"(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?"


def with_options(options: Sequence[Callable[[Any], Any]], command: F) -> F:
    """Add several options to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def url_option(command: F) -> F:
    return click.option(
        "--url",
        metavar="URL",
        callback=given_or_global,
        help="Backend to use: a URL, or the name of a configured backend.",
    )(command)


def app_option(help: str) -> Callable[[F], F]:
    """`--app`, which defaults to the setting `app`."""
    return click.option(
        "--app", metavar="MODULE:NAME", callback=given_or_configured, shell_complete=complete_app, help=help
    )


def given_or_configured(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The given application, or the one in the settings."""
    return value or (None if ctx.resilient_parsing else configured_app())


def configured_app() -> str | None:
    """The setting `app`, if it is set."""
    return configured("app") or None


def configured(name: str) -> Any:
    """The value of one setting."""
    from holdfast.config import KEYS, find_project, read_settings

    # Other problems with the settings are reported where they are used.
    return read_settings(find_project()).of(KEYS[name]).value


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, callback=given_or_global, help="Print JSON.")(command)


def jsonl_option(command: F) -> F:
    return click.option("--jsonl", "as_jsonl", is_flag=True, help="Print one JSON document per line.")(command)


def one_form(given: Mapping[str, bool]) -> None:
    """Raise an error if more than one output format was given. The keys are the names of the options."""
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} cannot be used together; choose one")


def given_or_global(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """The value given after the command, or else the one given before it."""
    return value or ctx.meta.get(f"{GLOBALS}.{param.name}", value)


class Span(click.ParamType[float]):
    """A duration: a number of seconds, or a value such as 90s, 15m, 2h or 3d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from holdfast.config import as_seconds

        try:
            return as_seconds(value)
        except ValueError as problem:
            self.fail(f"{value!r}: {problem}", param, ctx)


def wait_option(*, alone: str, help: str) -> Callable[[F], F]:
    """`--wait [DURATION]`; without a duration it means `alone`."""
    return click.option(
        "--wait",
        "wait_s",
        cls=_WaitOption,
        type=Span(),
        is_flag=False,
        flag_value=alone,
        metavar="[DURATION]",
        help=f"{help.removesuffix('.')}; 0 = no limit.",
    )


class _WaitOption(click.Option):
    flag_value: str


class WithWait(click.Command):
    """A command with `--wait [DURATION]`. A word after it that is not a duration is the next argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = args[: args.index("--")] if "--" in args else args
        for at, (word, following) in enumerate(pairwise(ours)):
            if word == "--wait" and not is_duration(following):
                [alone] = [param.flag_value for param in self.params if isinstance(param, _WaitOption)]
                args = [*args[:at], f"--wait={alone}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


def is_duration(word: str) -> bool:
    """Whether a word is a duration."""
    from holdfast.config import as_seconds

    try:
        as_seconds(word)
    except ValueError:
        return False
    return True


class WeightedQueues(click.ParamType[dict[str, int]]):
    """Queues with their weights: `a:3,b` serves a three times as often as b."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        from holdfast.definition.definition import check_queue

        if isinstance(value, dict):
            return value  # pyright: ignore[reportUnknownVariableType]
        weights: dict[str, int] = {}
        for part in str(value).split(","):
            name, colon, weight = part.strip().partition(":")
            if name in weights:
                self.fail(f"{value!r} lists the queue '{name}' twice; list it once", param, ctx)
            if colon and not (weight.isdecimal() and 1 <= int(weight) <= MAX_WEIGHT):
                self.fail(f"{part!r}: a weight is an integer from 1 to {MAX_WEIGHT}, as in mail:3", param, ctx)
            try:
                weights[check_queue(name)] = int(weight or 1)
            except DefinitionError as problem:
                self.fail(str(problem), param, ctx)
        return weights


def merged_queues(ctx: click.Context, param: click.Parameter, given: tuple[dict[str, int], ...]) -> dict[str, int]:
    """The queues of an option that can be given several times."""
    merged: dict[str, int] = {}
    for weights in given:
        for name, weight in weights.items():
            if name in merged:
                raise click.BadParameter(f"the queue '{name}' is listed twice; list it once", ctx, param)
            merged[name] = weight
    return merged


class Size(click.ParamType[int]):
    """An amount of memory: a number of bytes, or a value such as 500K, 300M or 2G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(_SIZE, str(value).strip().upper())
        if match is None:
            self.fail(
                f"{value!r} is not a size; use a number of bytes, or a value such as 500K, 300M or 2G", param, ctx
            )
        size = int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " "))
        if 0 < size < LEAST_MEMORY:
            self.fail(f"{value!r} is too small: an idle process already needs 32M; 0 = no limit", param, ctx)
        return size


class States(click.ParamType[tuple[JobState, ...]]):
    """Job states, separated by commas."""

    name = "states"
    known: frozenset[JobState] = frozenset(JobState)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        names = [state.value for state in JobState if state in self.known]
        return [CompletionItem(name) for name in matching(names, incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[JobState, ...]:
        try:
            return tuple(JobState(name.strip().lower()) for name in str(value).split(","))
        except ValueError:
            known = ", ".join(JobState)
            hints = [near for name in str(value).split(",") if (near := did_you_mean(name.strip().lower(), JobState))]
            self.fail(f"{value!r} is not a state; {' '.join([*hints, 'known states:'])} {known}", param, ctx)


def settings_at(place: str | None = None) -> Reading:
    """The settings, with `url` replaced by a URL or by that of a named backend."""
    from holdfast.config import KEYS, find_project, read_settings
    from holdfast.config.keys import DEFAULT_BACKEND

    project = find_project()
    reading = read_settings(project)
    if place is None or place == DEFAULT_BACKEND:
        return reading
    backends: Mapping[str, str] = reading.of(KEYS["backends"]).value
    return read_settings(project, {"url": backends.get(place, place)})


class Site(NamedTuple):
    """An open backend: its engine, and its location for people."""

    engine: Engine
    location: str
    deployment: Deployment

    def usage_of(self, queue: str) -> Usage | None:
        """The usage of the rate limit of a queue, if it has one."""
        from holdfast.state.limits import queue_limiter

        rate = self.deployment.settings.rates.get(queue)
        return None if rate is None else queue_limiter(self.engine, queue, rate).usage()


@contextmanager
def existing(url: str | None, *queues: str | None, job: str | None = None, creates: bool = False) -> Generator[Site]:
    """Open a backend: the one at a URL, or else the one that has these queues or this job.

    A missing database file is created only if `creates` is set. Otherwise it counts as empty, or is an error if a URL
    names it. A queue that is not declared is an error, unless the backend knows it.
    """
    from holdfast.deployment import DEFAULT
    from holdfast.queues.addresses import sqlite_path, sqlite_prefix
    from holdfast.queues.opening import Mode

    if url is not None and url.startswith("sqlite:") and not sqlite_prefix(url) and not sqlite_path(url).exists():
        raise ConfigError(
            f"there is no database at {sqlite_path(url)}: pass another --url, or create it with  holdfast migrate"
        )
    deployment = deployment_at(url)
    named = [queue for queue in queues if queue is not None]
    name = DEFAULT
    if url is None:
        name = deployment.name_for_all(named) if named or job is None else deployment.name_for_job(job)
    engine, _ = deployment.open(name, Mode.WRITE if creates else Mode.READ)
    with engine:
        check_queues(deployment, engine, named)
        yield Site(engine, deployment.location(name), deployment)


def check_queues(deployment: Deployment, engine: Engine, queues: Iterable[str]) -> None:
    """Raise for a queue that is not declared. One that this engine knows is accepted: its jobs must stay reachable."""
    from holdfast.cli.selecting import unknown_queues
    from holdfast.config.declared import undeclared

    strange = [queue for queue in queues if undeclared(queue, deployment.settings.queues)]
    for queue in unknown_queues(engine, *strange) if strange else ():
        deployment.check_declared(queue)


def deployment_at(place: str | None) -> Deployment:
    """The backends of the project, or only the one with this URL or name."""
    from holdfast.deployment import Deployment

    deployment = Deployment.configured()
    return deployment if place is None else deployment.at(place)
