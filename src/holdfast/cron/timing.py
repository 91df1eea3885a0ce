"""When a schedule is due: `Cron`, an expression in a time zone, or `Every`, an interval. Nothing here reads a clock.

When the clocks are changed, an expression with wildcard hours (`*`, `*/2`) is due at every real time that matches it.
All others have fixed times: a time in the gap is due once, at the first instant after the gap; a time in the overlap is
due once, at its first occurrence. Unlike in Debian's cron, wildcard minutes make no difference: `*/15 2 * * *` would
otherwise never be due on the day of the gap. `cronsim` therefore only computes local times.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from holdfast.clock import from_us, to_us
from holdfast.cron.describing import describe_expression, describe_interval, interval_text
from holdfast.cron.expression import Expression, normalized, parse_expression
from holdfast.cron.zones import change_between, end_of_gap, occurrences, shown_at, zone_named
from holdfast.definition.durations import in_seconds
from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged

MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 366 * 86_400.0
_EVERY: Final = "every "


class Cron(Struct, frozen=True):
    """A cron expression with five fields, or `@hourly` to `@yearly`, in a time zone."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        expression = normalized(self.expression)
        msgspec.structs.force_setattr(self, "expression", expression)
        _parsed(expression)
        if next(_matches_after(expression, datetime(2000, 1, 1)), None) is None:
            raise DefinitionError(
                f"cron {abridged(expression)!r} is never due: no day matches its day of month, month and day of week"
            )
        zone_named(self.zone)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first instant after this one at which it is due, in UTC; None if it is never due again."""
        if instant.tzinfo is None:
            raise ValueError(f"{instant.isoformat()} has no time zone; pass an aware datetime")
        zone = zone_named(self.zone)
        with suppress(OverflowError):
            if _parsed(self.expression).runs_every_real_hour:
                return self._next_real(instant, zone)
            return self._next_fixed(instant, zone)
        return None

    def text(self) -> str:
        """The notation that `parse_timing` reads."""
        return self.expression

    def describe(self) -> str:
        """In plain words, such as `every day at 01:00`, without the time zone."""
        return describe_expression(self.expression, _parsed(self.expression))

    def _next_fixed(self, instant: datetime, zone: tzinfo) -> datetime | None:
        for local in _matches_after(self.expression, shown_at(instant, zone)):
            found = occurrences(local, zone)
            due = found[0] if found else end_of_gap(local, zone)
            if due > instant:
                return due
        return None

    def _next_real(self, instant: datetime, zone: tzinfo) -> datetime | None:
        local = shown_at(instant, zone)
        due = self._first_shown(instant, local, zone)
        again = occurrences(local, zone)[-1]
        if again > instant:
            # The clocks will be set back to before this local time, so matches up to it come a second time.
            change = change_between(instant, again, zone)
            a_second = timedelta(seconds=1)
            repeated = self._first_shown(change - a_second, shown_at(change, zone) - a_second, zone)
            due = min(filter(None, (due, repeated)), default=None)
        return due

    def _first_shown(self, instant: datetime, local: datetime, zone: tzinfo) -> datetime | None:
        """The first instant after this one at which the local time matches and is later than this local time."""
        for match in _matches_after(self.expression, local):
            for due in occurrences(match, zone):
                if due > instant:
                    return due
        return None


class Every(Struct, frozen=True):
    """A fixed interval. It is due at the multiples of the interval since 1970-01-01 00:00 UTC."""

    seconds: float

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "seconds", float(in_seconds("every", self.seconds)))
        if not MIN_INTERVAL_S <= self.seconds <= MAX_INTERVAL_S:
            raise DefinitionError(
                f"every must be between {MIN_INTERVAL_S:g} s and {MAX_INTERVAL_S / 86_400:g} days, "
                f"not {self.seconds:.15g} seconds"
            )

    @property
    def zone(self) -> str:
        """UTC: an interval does not depend on a time zone."""
        return "UTC"

    def next_after(self, instant: datetime) -> datetime | None:
        """The first instant after this one at which it is due, in UTC; None if it is never due again."""
        interval_us = round(self.seconds * 1_000_000)
        due = from_us((to_us(instant) // interval_us + 1) * interval_us)
        return due if due > instant else None

    def text(self) -> str:
        """The notation that `parse_timing` reads."""
        return f"{_EVERY}{interval_text(self.seconds)}"

    def describe(self) -> str:
        """In plain words, such as `every 90 seconds`."""
        return describe_interval(self.seconds)


Timing: TypeAlias = Cron | Every


def parse_timing(text: str, zone: str = "UTC") -> Timing:
    """The timing that a text stands for: `*/5 * * * *`, `@daily` or `every 90s`."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(
            f"a schedule must be a cron expression such as '0 2 * * *', or 'every 90s', not {abridged(repr(text))}"
        )
    if not text.strip().lower().startswith(_EVERY):
        return Cron(text, zone)
    if zone != "UTC":
        raise DefinitionError(f"timezone has no effect with {abridged(text)!r}; leave it out, or use a cron expression")
    return Every(in_seconds("every", text.strip()[len(_EVERY) :]))


def instants(timing: Timing, after: datetime, until: datetime | None, limit: int) -> list[datetime]:
    """The instants after one and up to another at which it is due, at most this many, the earliest ones first."""
    found: list[datetime] = []
    due = timing.next_after(after) if limit > 0 else None
    while due is not None and (until is None or due <= until):
        found.append(due)
        due = timing.next_after(due) if len(found) < limit else None
    return found


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Expression:
    return parse_expression(expression)


def _matches_after(expression: str, local: datetime) -> Iterator[datetime]:
    """The local times that match, as if the clocks were never changed."""
    from cronsim import CronSim, CronSimError  # imported here: most commands need no schedules

    # cronsim refuses most expressions that never match, and gives up on the others after 50 years.
    with suppress(OverflowError, CronSimError):
        yield from CronSim(expression, local)
