"""`Frequencies`: the methods that set when a schedule is due, such as `daily_at("01:00")`.

Each method sets its own fields of a cron expression, in any order, and each field can be set once. The defaults do not
depend on the order either: without a time, it is midnight; without an hour, every hour; without a minute, the full
hour; and without a day, every day.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from holdfast.cron.expression import FIELDS, Field
from holdfast.cron.timing import Cron, Every, Timing
from holdfast.cron.zones import zone_named
from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged

_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = FIELDS
_ZONE: Final = "time zone"
_TIME: Final = r"([01][0-9]|2[0-3]):([0-5][0-9])"


class _Setting(NamedTuple):
    value: str
    method: str


class Frequencies:
    """Sets when a schedule is due. `timing()` returns the immutable value."""

    _settings: Mapping[str, _Setting] = MappingProxyType({})
    _interval: Every | None = None

    def cron(self, expression: str) -> Self:
        """A cron expression with five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly` or `@yearly`."""
        values = Cron(expression).expression.split()
        return self._choose("cron", {field.title: value for field, value in zip(FIELDS, values, strict=True)})

    def every(self, interval: Duration) -> Self:
        """At every multiple of this interval, such as `90s`, since 1970-01-01 00:00 UTC."""
        every = Every(in_seconds("every", interval))
        self._choose("every", dict.fromkeys([*(field.title for field in FIELDS), _ZONE], ""))
        self._interval = every
        return self

    def timezone(self, name: str) -> Self:
        """The IANA time zone of the times, such as `Europe/Berlin`; default: UTC."""
        zone_named(name)
        return self._choose("timezone", {_ZONE: name})

    def every_minute(self) -> Self:
        return self._choose("every_minute", {_MINUTE.title: "*"})

    def every_minutes(self, minutes: int) -> Self:
        """At minute 0 of each hour, and then at this interval in minutes. The interval must divide 60."""
        _check("every_minutes", minutes, 1, 30)
        if 60 % minutes:
            raise DefinitionError(
                f"every_minutes({minutes}): {minutes} does not divide 60, so the last interval of each hour would be "
                f"shorter; use every('{minutes}m')"
            )
        return self._choose("every_minutes", {_MINUTE.title: "*" if minutes == 1 else f"*/{minutes}"})

    def every_five_minutes(self) -> Self:
        return self.every_minutes(5)

    def every_fifteen_minutes(self) -> Self:
        return self.every_minutes(15)

    def every_thirty_minutes(self) -> Self:
        return self.every_minutes(30)

    def hourly(self) -> Self:
        """At the start of each hour."""
        return self._choose("hourly", {_MINUTE.title: "0"})

    def hourly_at(self, minute: int) -> Self:
        """At this minute of each hour."""
        return self._choose("hourly_at", {_MINUTE.title: str(_check("hourly_at", minute, 0, 59))})

    def between_hours(self, first: int, last: int) -> Self:
        """In the hours from the first to the last, inclusive; at the full hour if no minute is set."""
        _check("between_hours", first, 0, 23)
        _check("between_hours", last, 0, 23)
        if last < first:
            raise DefinitionError(
                f"between_hours({first}, {last}): the first hour is later than the last one; to run past midnight, use "
                f"cron('0 {first}-23,0-{last} * * *')"
            )
        return self._choose("between_hours", {_HOUR.title: f"{first}-{last}"})

    def daily(self) -> Self:
        """Every day at 00:00."""
        return self._choose("daily", {**_at("daily", "00:00"), _DAY.title: "*", _WEEKDAY.title: "*"})

    def daily_at(self, time: str) -> Self:
        """At this time, `HH:MM`, on each of the days; without days, every day."""
        return self._choose("daily_at", _at("daily_at", time))

    def weekly(self, time: str | None = None) -> Self:
        """Sundays, at this time, `HH:MM`."""
        return self._choose("weekly", {_WEEKDAY.title: "0", **_at("weekly", time)})

    def sundays(self, time: str | None = None) -> Self:
        return self._choose("sundays", {_WEEKDAY.title: "0", **_at("sundays", time)})

    def mondays(self, time: str | None = None) -> Self:
        return self._choose("mondays", {_WEEKDAY.title: "1", **_at("mondays", time)})

    def tuesdays(self, time: str | None = None) -> Self:
        return self._choose("tuesdays", {_WEEKDAY.title: "2", **_at("tuesdays", time)})

    def wednesdays(self, time: str | None = None) -> Self:
        return self._choose("wednesdays", {_WEEKDAY.title: "3", **_at("wednesdays", time)})

    def thursdays(self, time: str | None = None) -> Self:
        return self._choose("thursdays", {_WEEKDAY.title: "4", **_at("thursdays", time)})

    def fridays(self, time: str | None = None) -> Self:
        return self._choose("fridays", {_WEEKDAY.title: "5", **_at("fridays", time)})

    def saturdays(self, time: str | None = None) -> Self:
        return self._choose("saturdays", {_WEEKDAY.title: "6", **_at("saturdays", time)})

    def weekdays(self, time: str | None = None) -> Self:
        """Mondays to Fridays, at this time, `HH:MM`."""
        return self._choose("weekdays", {_WEEKDAY.title: "1-5", **_at("weekdays", time)})

    def weekends(self, time: str | None = None) -> Self:
        """Saturdays and Sundays, at this time, `HH:MM`."""
        return self._choose("weekends", {_WEEKDAY.title: "6-7", **_at("weekends", time)})

    def monthly(self, time: str | None = None) -> Self:
        """On the first day of the month, at this time, `HH:MM`."""
        return self._choose("monthly", {_DAY.title: "1", **_at("monthly", time)})

    def days_of_month(self, days: Collection[int]) -> Self:
        """On these days of the month, such as `[1, 15]`. Days that a month does not have are skipped."""
        return self._choose("days_of_month", {_DAY.title: _list("days_of_month", days, _DAY)})

    def months(self, months: Collection[int]) -> Self:
        """In these months only, such as `[3, 6, 9, 12]`."""
        return self._choose("months", {_MONTH.title: _list("months", months, _MONTH)})

    def quarterly(self, time: str | None = None) -> Self:
        """On the first day of January, April, July and October, at this time, `HH:MM`."""
        return self._choose("quarterly", {_DAY.title: "1", _MONTH.title: "*/3", **_at("quarterly", time)})

    def yearly(self, time: str | None = None) -> Self:
        """On January 1, at this time, `HH:MM`."""
        return self._choose("yearly", {_DAY.title: "1", _MONTH.title: "1", **_at("yearly", time)})

    def timing(self) -> Timing:
        """The timing. It is an error if none was set, or if its days never occur."""
        if self._interval is not None:
            return self._interval
        values = {title: setting.value for title, setting in self._settings.items()}
        zone = values.pop(_ZONE, "UTC")
        if not values:
            raise DefinitionError(
                "the schedule has no timing; call daily_at('01:00'), every('90s'), cron('0 2 * * *') or another method "
                "that sets one"
            )
        hour = values.get(_HOUR.title, "*" if _MINUTE.title in values else "0")
        minute = values.get(_MINUTE.title, "0")
        days = (values.get(field.title, "*") for field in (_DAY, _MONTH, _WEEKDAY))
        return Cron(" ".join((minute, hour, *days)), zone)

    def _choose(self, method: str, values: Mapping[str, str]) -> Self:
        for title in values:
            if (earlier := self._settings.get(title)) is not None:
                raise DefinitionError(_conflict(title, earlier.method, method))
        settings = {**self._settings, **{title: _Setting(value, method) for title, value in values.items()}}
        day, weekday = settings.get(_DAY.title), settings.get(_WEEKDAY.title)
        if day is not None and weekday is not None and day.method != weekday.method:
            raise DefinitionError(
                f"{day.method}() sets the day of month and {weekday.method}() the day of week; in cron, a day "
                "needs to match only one of them. Leave out one of them, write cron('0 0 * * MON#1') for the first "
                "Monday of the month, or write the expression with cron()"
            )
        self._settings = settings
        return self


def _conflict(title: str, earlier: str, method: str) -> str:
    if earlier == method:
        return f"{method}() was called twice; leave out one of the calls"
    if "every" in (earlier, method):
        return f"every() cannot be combined with {earlier if method == 'every' else method}(); leave out one of them"
    return (
        f"{method}() sets the {title}, which {earlier}() has already set; leave out one of them, or write both as one "
        "expression with cron()"
    )


def _at(method: str, time: str | None) -> dict[str, str]:
    """The hour and the minute of a time, without leading zeros."""
    if time is None:
        return {}
    match = re.fullmatch(_TIME, time, re.ASCII) if isinstance(time, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None:
        raise DefinitionError(
            f"{method}: {abridged(repr(time))} is not a time; write HH:MM with two digits each, such as '09:00'"
        )
    return {_HOUR.title: str(int(match[1])), _MINUTE.title: str(int(match[2]))}


def _list(method: str, numbers: Collection[int], field: Field) -> str:
    if isinstance(numbers, str | int) or not isinstance(numbers, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{method} must be a list of numbers, such as [1, 7], not {abridged(repr(numbers))}")
    if not numbers:
        raise DefinitionError(f"{method} is empty; pass at least one {field.title}, such as [1]")
    return ",".join(str(number) for number in sorted({_check(method, one, field.low, field.high) for one in numbers}))


def _check(method: str, number: int, low: int, high: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"{method} must be an integer from {low} to {high}, not {abridged(repr(number))}")
    if not low <= number <= high:
        raise DefinitionError(f"{method} must be between {low} and {high}, not {abridged(str(number))}")
    return number
