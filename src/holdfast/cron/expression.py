"""Cron expressions: their five fields, checked one by one, so that an error names the field and says what to write.

Everything is checked before it is expanded. `cronsim` evaluates the expressions that pass.
"""

import re
from typing import Final, NamedTuple

from msgspec import Struct

from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged
from holdfast.spelling import closest

MAX_EXPRESSION: Final = 500
LAST_DAY: Final = "L"
LAST_WEEKDAY: Final = "LW"
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
NICKNAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Field(NamedTuple):
    """One of the five fields: the numbers it can have, and the names of the first ones."""

    title: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        named = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"{self.low}-{self.high}{named}"


FIELDS: Final = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field("month", 1, 12, MONTHS),
    Field("day of week", 0, 7, DAYS),
)
_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = FIELDS
_term = re.compile(r"(?:(\*)|(\d{1,2}|[A-Z]{1,9})(?:-(\d{1,2}|[A-Z]{1,9}))?)(?:/(\d{1,2}))?", re.ASCII)
_nth_weekday = re.compile(r"([0-7]|[A-Z]{3})#([1-5])", re.ASCII)
_last_weekday = re.compile(r"([0-7])L", re.ASCII)


class Expression(Struct, frozen=True):
    """The numbers that each field stands for. Days of the week are 0 (Sunday) to 6."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    special_days: tuple[str, ...] = ()
    """`L`, the last day of the month, or `LW`, its last day from Monday to Friday."""
    special_weekdays: tuple[tuple[int, int], ...] = ()
    """A day of the week and its number in the month, 1 to 5; 0 is the last one."""
    needs_both_days: bool = True
    """Whether a day must match both the day of month and the day of week. If neither starts with `*`, one is enough."""
    runs_every_real_hour: bool = False
    """Whether the hour field starts with `*` or has all hours."""


def normalized(text: str) -> str:
    """The expression in its usual spelling: five fields with one space between them, names in capitals."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"cron must be an expression such as '0 2 * * *', not {abridged(repr(text))}")
    if len(text) > MAX_EXPRESSION:
        raise DefinitionError(f"cron {abridged(text)!r} is longer than {MAX_EXPRESSION} characters; use two schedules")
    stripped = text.strip()
    if stripped.startswith("@"):
        return _meaning_of(stripped)
    fields = text.upper().split()
    if len(fields) != len(FIELDS):
        raise DefinitionError(f"cron {abridged(text)!r} {_count_problem(len(fields))}")
    return " ".join(fields)


def parse_expression(expression: str) -> Expression:
    """The numbers of a normalized expression. An error names the field."""
    minute, hour, day, month, weekday = expression.split()
    hours = _numbers(expression, _HOUR, hour)
    plain_days = [term for term in day.split(",") if term not in (LAST_DAY, LAST_WEEKDAY)]
    days = _numbers(expression, _DAY, ",".join(plain_days)) if plain_days else frozenset[int]()
    special_weekdays: list[tuple[int, int]] = []
    plain_weekdays: list[str] = []
    for term in weekday.split(","):
        if match := _nth_weekday.fullmatch(term):
            special_weekdays.append((_number(expression, _WEEKDAY, term, match[1]) % 7, int(match[2])))
        elif match := _last_weekday.fullmatch(term):
            special_weekdays.append((int(match[1]) % 7, 0))
        else:
            plain_weekdays.append(term)
    weekdays = _numbers(expression, _WEEKDAY, ",".join(plain_weekdays)) if plain_weekdays else frozenset[int]()
    return Expression(
        minutes=_numbers(expression, _MINUTE, minute),
        hours=hours,
        days=days,
        months=_numbers(expression, _MONTH, month),
        weekdays=frozenset(number % 7 for number in weekdays),
        special_days=tuple(sorted({term for term in day.split(",") if term in (LAST_DAY, LAST_WEEKDAY)})),
        special_weekdays=tuple(sorted(set(special_weekdays))),
        needs_both_days=day.startswith("*") or weekday.startswith("*"),
        runs_every_real_hour=hour.startswith("*") or len(hours) == 24,
    )


def _meaning_of(nickname: str) -> str:
    meaning = NICKNAMES.get(nickname.lower())
    if meaning is not None:
        return meaning
    if nickname.lower() == "@reboot":
        raise DefinitionError("cron '@reboot' is not supported; enqueue the job when your program starts")
    near = closest(nickname.lower(), NICKNAMES) if len(nickname) < MAX_EXPRESSION else None
    guess = f"did you mean '{near}'? " if near else ""
    raise DefinitionError(f"cron {abridged(nickname)!r} is not known; {guess}use one of {', '.join(NICKNAMES)}")


def _count_problem(count: int) -> str:
    if count == 6:
        return (
            "has six fields; seconds are not supported: write minute, hour, day of month, month and day of week, "
            "or use every('30s')"
        )
    return (
        f"has {count} field{'' if count == 1 else 's'}; write five: minute, hour, day of month, month and "
        "day of week, such as '0 2 * * *' for every day at 02:00"
    )


def _numbers(expression: str, field: Field, text: str) -> frozenset[int]:
    return frozenset(number for term in text.split(",") for number in _expanded(expression, field, term))


def _expanded(expression: str, field: Field, term: str) -> range:
    match = _term.fullmatch(term)
    if match is None:
        raise _problem(expression, field, term, f"write {_notation(field)}")
    star, first, last, step = match.groups()
    if step is not None and int(step) == 0:
        raise _problem(expression, field, term, "the number after '/' must be at least 1")
    if star and step is not None and int(step) > field.high - field.low + 1:
        raise _problem(expression, field, term, f"the step is longer than the field, {field.low}-{field.high}")
    if star:
        low, high = field.low, field.high
    else:
        low = _number(expression, field, term, first)
        high = _number(expression, field, term, last) if last else (field.high if step else low)
        if high < low:
            raise _problem(expression, field, term, f"a range must be ascending; write {_turned(field, first, last)}")
    return range(low, high + 1, int(step or 1))


def _number(expression: str, field: Field, term: str, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    if not text.isdigit():
        guess = closest(text, field.names)
        raise _problem(expression, field, term, f"did you mean {guess}?" if guess else f"write {_notation(field)}")
    if not field.low <= int(text) <= field.high:
        raise _problem(expression, field, term, f"use {field.range}")
    return int(text)


def _turned(field: Field, first: str, last: str) -> str:
    """The ascending ranges that cover what this range was meant to cover."""
    if field is _WEEKDAY and last in ("0", "SUN"):
        return f"{field.names.index(first) if first in field.names else first}-7"
    highest, lowest = (field.names[-1], field.names[0]) if first in field.names else (field.high, field.low)
    return f"{first}-{highest},{lowest}-{last}" if first != str(highest) else f"{first},{lowest}-{last}"


def _notation(field: Field) -> str:
    forms = f"*, */2, a number ({field.range}), a range such as {field.low + 1}-{field.low + 4}, or a list of them"
    if field is _DAY:
        return f"{forms}; L = last day of the month, LW = its last weekday"
    if field is _WEEKDAY:
        return f"{forms}; MON#2 = second Monday of the month, 5L = its last Friday"
    return forms


def _problem(expression: str, field: Field, term: str, advice: str) -> DefinitionError:
    return DefinitionError(f"cron {abridged(expression)!r}: {field.title} {abridged(term)!r} is not valid; {advice}")
