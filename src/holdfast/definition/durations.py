"""`Duration`: a duration as users write it in Python."""

from datetime import timedelta
from typing import TypeAlias

from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged
from holdfast.units import parse_duration

Duration: TypeAlias = float | timedelta | str


def in_seconds(option: str, duration: Duration) -> float:
    """A duration in seconds: a number, a `timedelta`, or text such as `90s`. An error names the option."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, str):
        try:
            return parse_duration(duration)
        except ValueError as problem:
            raise DefinitionError(f"{option} {abridged(repr(duration))}: {problem}") from None
    if isinstance(duration, bool) or not isinstance(duration, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"{option} must be a number of seconds, a timedelta, or a string such as '90s', '15m', '2h' or '3d', "
            f"not {abridged(repr(duration))}"
        )
    return duration
