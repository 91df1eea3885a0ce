"""The delays between retries, as users write them in Python, in JSON, in the settings and on the command line."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import DefinitionError
from holdfast.spelling import did_you_mean
from holdfast.units import parse_duration
from holdfast.values import Backoff, BackoffStrategy

BackoffLike: TypeAlias = Backoff | Duration | Sequence[Duration]
PARAMETERS: Final[Mapping[BackoffStrategy, tuple[str, ...]]] = {
    BackoffStrategy.NONE: (),
    BackoffStrategy.FIXED: ("base",),
    BackoffStrategy.LINEAR: ("base", "max", "jitter"),
    BackoffStrategy.EXPONENTIAL: ("base", "multiplier", "max", "jitter"),
}
"""The parameters that have an effect on the delays of each strategy. A list of delays has none."""
_DEFAULTS: Final = Backoff()
_HOW: Final = "multiplier=, max= and jitter=, as in exponential:2s,multiplier=3,max=10m,jitter=10%"


def as_backoff(backoff: BackoffLike) -> Backoff:
    """The `Backoff` that a user's value stands for. One duration is a fixed delay."""
    if isinstance(backoff, Backoff):
        return backoff
    if isinstance(backoff, str):
        try:
            return parse_backoff(backoff)
        except ValueError as problem:
            raise DefinitionError(f"backoff {backoff!r}: {problem}") from None
    if not isinstance(backoff, Sequence):
        return Backoff(strategy=BackoffStrategy.FIXED, base=float(in_seconds("backoff", backoff)))
    if not backoff:
        raise DefinitionError("the list of backoff delays is empty; use the strategy 'none' to retry at once")
    return Backoff(delays=tuple(float(in_seconds("backoff delay", delay)) for delay in backoff))


def parse_backoff(text: str) -> Backoff:
    """Parse `fixed:10s`, `exponential:2s,multiplier=3,max=10m,jitter=10%`, a delay, or a list of delays: `1s,5s,1m`.

    The ValueError explains the format.
    """
    with suppress(ValueError):
        delays = tuple(map(parse_duration, text.split(",")))
        return Backoff(delays=delays) if delays[1:] else Backoff(strategy=BackoffStrategy.FIXED, base=delays[0])
    name, colon, given = text.partition(":")
    if name.strip() not in list(BackoffStrategy):
        guess = f" {near}" if (near := did_you_mean(name, BackoffStrategy)) else ""
        raise ValueError(
            f"{name!r} is not a backoff strategy;{guess} use {', '.join(BackoffStrategy)}, or a list of delays"
        )
    strategy = BackoffStrategy(name.strip())
    values: dict[str, Any] = {}
    for at, part in enumerate(given.split(",") if colon else ()):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals and at == 0:
            name, value = "base", name
        if not strategies_with(name) or name in values:
            raise ValueError(f"{part!r} is not valid here; after the strategy you can set its base, {_HOW}")
        if name not in PARAMETERS[strategy]:
            raise ValueError(without_effect(name, strategy))
        values[name] = _parameter(name, value)
    return Backoff(strategy=strategy, **values)


def contradiction_in(backoff: Backoff) -> str | None:
    """The contradiction in this backoff, if there is one: a parameter without effect, or a base above the cap."""
    used = () if backoff.delays else PARAMETERS[backoff.strategy]
    for name in PARAMETERS[BackoffStrategy.EXPONENTIAL]:
        if name not in used and getattr(backoff, name) != getattr(_DEFAULTS, name):
            return f"backoff {without_effect(name, 'a list of delays' if backoff.delays else backoff.strategy)}"
    if "max" in used and 0 < backoff.max < backoff.base:
        return (
            f"the backoff base, {backoff.base:g} s, is longer than the max, {backoff.max:g} s; set a longer max, "
            "as in exponential:10m,max=2h"
        )
    return None


def without_effect(name: str, backoff: str) -> str:
    """The explanation of a parameter that this backoff does not use."""
    return f"{name} has no effect with {backoff}; use it with {' or '.join(strategies_with(name))}"


def strategies_with(name: str) -> tuple[BackoffStrategy, ...]:
    """The strategies that have this parameter."""
    return tuple(strategy for strategy, names in PARAMETERS.items() if name in names)


def _parameter(name: str, value: str) -> float:
    if name in ("base", "max"):
        try:
            return parse_duration(value)
        except ValueError as problem:
            raise ValueError(f"{name} {value!r}: {problem}") from None
    try:
        return float(value[:-1]) / 100 if name == "jitter" and value.endswith("%") else float(value)
    except ValueError:
        raise ValueError(f"{name} {value!r} is not a number; set {_HOW}") from None
