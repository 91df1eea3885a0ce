"""The delays between retries, as users write them in Python, in JSON and on the command line."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from holdfast.errors import DefinitionError
from holdfast.spelling import did_you_mean
from holdfast.units import parse_duration
from holdfast.values import Backoff, BackoffStrategy

BackoffLike: TypeAlias = Backoff | BackoffStrategy | str | Sequence[float]
_SETTINGS: Final = ("base", "multiplier", "max", "jitter")
_HOW: Final = "multiplier=, max= and jitter=, as in exponential:2s,multiplier=3,max=10m,jitter=10%"


def as_backoff(backoff: BackoffLike) -> Backoff:
    """The `Backoff` that a user's value stands for."""
    if isinstance(backoff, Backoff):
        return backoff
    if isinstance(backoff, str):
        try:
            return parse_backoff(backoff)
        except ValueError as problem:
            raise DefinitionError(f"backoff {backoff!r}: {problem}") from None
    if not backoff:
        raise DefinitionError("the list of backoff delays is empty; use the strategy 'none' to retry at once")
    try:
        return Backoff(delays=tuple(float(delay) for delay in backoff))
    except (TypeError, ValueError):
        raise DefinitionError(f"backoff delays must be numbers of seconds, not {backoff!r}") from None


def parse_backoff(text: str) -> Backoff:
    """Parse `fixed:10s`, `exponential:2s,multiplier=3,max=10m,jitter=10%`, or a list of delays: `1s,5s,1m`.

    The ValueError explains the format.
    """
    parts = text.split(",")
    with suppress(ValueError):
        return Backoff(delays=tuple(map(parse_duration, parts)))
    strategy, colon, settings = text.partition(":")
    if strategy.strip() not in list(BackoffStrategy):
        guess = f" {near}" if (near := did_you_mean(strategy, BackoffStrategy)) else ""
        raise ValueError(
            f"{strategy!r} is not a backoff strategy;{guess} use {', '.join(BackoffStrategy)}, or a list of delays"
        )
    values: dict[str, Any] = {}
    for at, part in enumerate(settings.split(",") if colon else ()):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals and at == 0:
            name, value = "base", name
        if name not in _SETTINGS or name in values:
            raise ValueError(f"{part!r} is not valid here; after the strategy you can set its base, {_HOW}")
        values[name] = _setting(name, value)
    return Backoff(strategy=BackoffStrategy(strategy.strip()), **values)


def _setting(name: str, value: str) -> float:
    if name in ("base", "max"):
        try:
            return parse_duration(value)
        except ValueError as problem:
            raise ValueError(f"{name} {value!r}: {problem}") from None
    try:
        return float(value[:-1]) / 100 if name == "jitter" and value.endswith("%") else float(value)
    except ValueError:
        raise ValueError(f"{name} {value!r} is not a number; set {_HOW}") from None
