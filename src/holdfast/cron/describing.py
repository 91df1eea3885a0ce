"""Timings in plain words: `every 5 minutes`, `every day at 01:00`, `Mondays at 09:00`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from holdfast.cron.expression import LAST_DAY, Expression

MAX_DESCRIPTION: Final = 200
_SHOWN: Final = 120
_MOST_TIMES: Final = 6
_MONTHS: Final = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WORKDAYS, _WEEKEND = frozenset({1, 2, 3, 4, 5}), frozenset({0, 6})
_ORDINALS: Final = ("last", "first", "second", "third", "fourth", "fifth")
_UNITS: Final = (("d", "day", 86_400), ("h", "hour", 3600), ("m", "minute", 60), ("s", "second", 1))


def describe_expression(expression: str, parsed: Expression) -> str:
    """The words for an expression; if they would be too long, the expression."""
    clock, has_times = _clock(sorted(parsed.minutes), sorted(parsed.hours))
    days = _days(parsed)
    months = "" if len(parsed.months) == 12 else f" in {_runs(parsed.months, _MONTHS.__getitem__)}"
    if has_times:
        words = f"{days or f'every day{months}'} {clock}"
    else:
        words = f"{clock} on {days}" if days else f"{clock}{months}"
    if len(words) <= MAX_DESCRIPTION:
        return words
    return f"at times that match {expression if len(expression) <= _SHOWN else f'{expression[:_SHOWN]}…'}"


def describe_interval(seconds: float) -> str:
    """The words for an interval."""
    for _, unit, length in _UNITS:
        if seconds % length == 0:
            return f"every {unit}" if seconds == length else f"every {seconds // length:.0f} {unit}s"
    return f"every {seconds!r} seconds"


def interval_text(seconds: float) -> str:
    """The interval as `parse_duration` reads it, in the largest unit in which it is a whole number."""
    for symbol, _, length in _UNITS:
        if seconds % length == 0:
            return f"{seconds // length:.0f}{symbol}"
    return f"{seconds!r}s"


def _clock(minutes: list[int], hours: list[int]) -> tuple[str, bool]:
    """The words for the times of a day, and whether they name each of them."""
    minute = minutes[0] if len(minutes) == 1 else None
    pace = _pace(minutes)
    if len(hours) == 24:
        if minute is not None:
            return _at_minute("every hour", minute), False
        return pace or f"at minutes {_runs(minutes, str)} of every hour", False
    if minute is not None and (step := _step(hours, 24)) in range(2, 9):
        return _at_minute(f"every {step} hours", minute), False
    is_range = hours == list(range(hours[0], hours[-1] + 1))
    first, last = _time(hours[0], minutes[0]), _time(hours[-1], minutes[-1])
    times = len(minutes) * len(hours)
    if is_range and pace is not None and times > 2:
        return f"{pace} from {first} to {last}", False
    if is_range and minute is not None and times > 2:
        return f"every hour from {first} to {last}", False
    if times <= (2 if pace else _MOST_TIMES):
        return f"at {_listed(_time(hour, minute) for hour in hours for minute in minutes)}", True
    which = f"at minutes {_runs(minutes, str)}" if minute is None else f"at :{minute:02}"
    return f"{pace or which} in the hours {_runs(hours, str)}", False


def _pace(minutes: list[int]) -> str | None:
    """The interval between these minutes, if it divides the hour evenly."""
    step = _step(minutes, 60)
    if step == 1:
        return "every minute"
    return f"every {step} minutes" if step is not None and step <= 30 else None


def _step(numbers: list[int], whole: int) -> int | None:
    """The step of numbers that divide the whole evenly, beginning with 0."""
    step = whole // len(numbers)
    return step if numbers == list(range(0, whole, step)) and whole % step == 0 and step < whole else None


def _days(parsed: Expression) -> str:
    """The words for the days on which it is due; empty if that is every day of its months."""
    is_any_day = len(parsed.days) == 31
    is_any_weekday = len(parsed.weekdays) == 7
    month_names = "" if len(parsed.months) == 12 else _runs(parsed.months, _MONTHS.__getitem__)
    of_months, in_months = f" of {month_names or 'every month'}", f" in {month_names}" if month_names else ""
    if parsed.needs_both_days:
        if is_any_day and is_any_weekday:
            return ""
        if is_any_weekday:
            return f"{_dates(parsed)}{of_months}"
        weekdays = _weekdays(parsed, of_months, in_months)
        return weekdays if is_any_day else f"{weekdays}, if on {_dates(parsed)}{of_months}"
    if is_any_day or is_any_weekday:
        return ""
    weekdays = _weekdays(parsed, of_months, in_months)
    return f"{_dates(parsed)}{of_months} and {'' if weekdays.startswith('the ') else 'all '}{weekdays}"


def _dates(parsed: Expression) -> str:
    if parsed.days == frozenset(range(1, 32, 2)):
        return "odd days"
    if parsed.days == frozenset(range(2, 31, 2)):
        return "even days"
    special = ("last day" if one == LAST_DAY else "last weekday" for one in parsed.special_days)
    return f"the {_listed([*_run_names(sorted(parsed.days), _ordinal, ' to '), *special])}"


def _weekdays(parsed: Expression, of_months: str, in_months: str) -> str:
    special = [f"the {_ORDINALS[number]} {_WEEKDAYS[day]}{of_months}" for day, number in parsed.special_weekdays]
    if not parsed.weekdays:
        return _listed(special)
    if parsed.weekdays == _WORKDAYS:
        plain = ["weekdays"]
    elif parsed.weekdays == _WEEKEND:
        plain = ["weekends"]
    else:
        from_monday = sorted(day or 7 for day in parsed.weekdays)
        plain = _run_names(from_monday, lambda day: f"{_WEEKDAYS[day % 7]}s", " to ")
    if special:
        plain[-1] += in_months
        return _listed([*plain, *special])
    return f"{_listed(plain)}{in_months}"


def _runs(numbers: Iterable[int], name: Callable[[int], str]) -> str:
    return _listed(_run_names(sorted(numbers), name, "-" if name is str else " to "))


def _run_names(numbers: Sequence[int], name: Callable[[int], str], to: str) -> list[str]:
    """The names of these numbers; three or more in a row are named by the first and the last one."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    names: list[str] = []
    for run in runs:
        names += [f"{name(run[0])}{to}{name(run[-1])}"] if len(run) > 2 else [name(number) for number in run]
    return names


def _listed(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _at_minute(words: str, minute: int) -> str:
    return f"{words} at :{minute:02}" if minute else words


def _time(hour: int, minute: int) -> str:
    return f"{hour:02}:{minute:02}"


def _ordinal(day: int) -> str:
    suffix = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"
