"""Instants when the clocks change, compared with an oracle that walks through every minute of UTC.

With HOLDFAST_LONG=1 in the environment the oracle walks through all of ten years, not only the days around each change.
"""

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from holdfast.cron.timing import Cron, instants

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
MINUTE: Final = timedelta(minutes=1)
BEGIN, END = datetime(2016, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
WARM_UP: Final = timedelta(hours=6)
AROUND: Final = timedelta(hours=20)
ZONES: Final = (
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # changed at midnight until 2019
    "America/Santiago",  # changes at midnight
    "Asia/Kolkata",  # never changes
    "Asia/Tehran",  # changed at midnight until 2022; half an hour off
    "Australia/Lord_Howe",  # changes by 30 minutes
    "Africa/Casablanca",  # sets the clocks back during Ramadan
)
EXPRESSIONS: Final = (
    "30 2 * * *",
    "0 0 * * *",
    "15 0,1,2,3 * * *",
    "*/15 2 * * *",
    "*/20 0-5 * * 0,1",
    "0 0-23 * * *",
    "5 0-22 * * *",
    "0 * * * *",
    "*/10 * * * *",
    "* 1 * * *",
    "0 */2 * * *",
    "10,40 */3 * * 0",
    "*/30 * * * 0",
    "45 1 1-7 * *",
    "0 0 13 * 0",
    "30 23 */2 * 6",
)
RANGES: Final = (range(60), range(24), range(1, 32), range(1, 13), range(8))


class Oracle:
    """The documented rule, minute by minute: wildcard hours match what a clock shows; any other match counts once, in
    the first minute at which a clock shows it or has passed it.
    """

    def __init__(self, expression: str) -> None:
        parts = expression.split()
        minutes, hours, self.days, self.months, self.weekdays = map(self.numbers, parts, RANGES)
        self.times = {(hour, minute) for hour in hours for minute in minutes}
        self.is_strict = parts[2].startswith("*") or parts[4].startswith("*")
        self.is_wild = parts[1].startswith("*") or len(hours) == 24
        self.matching_dates: dict[date, bool] = {}

    @staticmethod
    def numbers(field: str, whole: range) -> set[int]:
        found: set[int] = set()
        for term in field.split(","):
            reach, _, step = term.partition("/")
            first, _, last = reach.partition("-")
            within = whole if reach == "*" else range(int(first), int(last or first) + 1)
            found.update(within[:: int(step or 1)])
        return found

    def matches(self, local: datetime) -> bool:
        if (local.hour, local.minute) not in self.times:
            return False
        day = local.date()
        if day not in self.matching_dates:
            by_day, by_weekday = day.day in self.days, bool({day.isoweekday() % 7, day.isoweekday()} & self.weekdays)
            is_day = (by_day and by_weekday) if self.is_strict else (by_day or by_weekday)
            self.matching_dates[day] = is_day and day.month in self.months
        return self.matching_dates[day]

    def due(self, minutes: list[tuple[datetime, datetime]]) -> Iterator[datetime]:
        passed = minutes[0][1]
        for instant, local in minutes:
            if self.is_wild:
                if self.matches(local):
                    yield instant
                continue
            is_due = False
            while passed < local:
                passed += MINUTE
                is_due |= self.matches(passed)
            if is_due:
                yield instant


def minutes_of(zone: str, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute of UTC, and what a clock in this zone shows then."""
    information = ZoneInfo(zone)
    count = (end - begin) // MINUTE
    walk = (begin + MINUTE * number for number in range(count + 1))
    return [(instant, instant.astimezone(information).replace(tzinfo=None)) for instant in walk]


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The hours of the ten years in which the clocks of a zone change."""
    information = ZoneInfo(zone)
    hours = [BEGIN + timedelta(hours=number) for number in range((END - BEGIN) // timedelta(hours=1))]
    offsets = [hour.astimezone(information).utcoffset() for hour in hours]
    return tuple(hours[at] for at in range(1, len(hours)) if offsets[at] != offsets[at - 1])


def windows(zone: str) -> list[tuple[datetime, datetime]]:
    if IS_LONG:
        return [(datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 3, tzinfo=UTC)) for year in range(2016, 2026)]
    return [(change - AROUND, change + AROUND) for change in changes(zone) or (BEGIN + timedelta(days=60),)]


@pytest.mark.timeout(3600 if IS_LONG else 120)
@pytest.mark.parametrize("zone", ZONES)
def test_ten_years_are_due_as_documented(zone: str) -> None:
    checked = 0
    for begin, end in windows(zone):
        minutes = minutes_of(zone, begin - WARM_UP, end)
        for expression in EXPRESSIONS:
            expected = [instant for instant in Oracle(expression).due(minutes) if instant > begin]
            assert instants(Cron(expression, zone), begin, end, 1_000_000) == expected, (expression, begin)
            checked += len(expected)
    assert checked > 400


def test_the_clocks_of_these_zones_do_change() -> None:
    assert {zone: len(changes(zone)) for zone in ZONES} == {
        "Europe/Berlin": 20,
        "America/New_York": 20,
        "America/Sao_Paulo": 7,
        "America/Santiago": 20,
        "Asia/Kolkata": 0,
        "Asia/Tehran": 14,
        "Australia/Lord_Howe": 20,
        "Africa/Casablanca": len(changes("Africa/Casablanca")),
    }
    assert len(changes("Africa/Casablanca")) >= 18


numbers = st.sampled_from
fields = st.tuples(
    numbers(["*", "*/7", "*/15", "0", "30", "0,15,45", "10-20"]),
    numbers(["*", "*/2", "*/5", "0", "2", "1,3", "0-5", "23", "0-23"]),
    numbers(["*", "*", "1", "13,28", "*/2", "25-31"]),
    numbers(["*", "*", "3,10", "*/3", "2-4"]),
    numbers(["*", "*", "0", "1-5", "6,7", "*/2"]),
)


@settings(max_examples=1000 if IS_LONG else 60, deadline=None)
@given(
    fields,
    st.sampled_from([zone for zone in ZONES if zone != "Asia/Kolkata"]),
    st.integers(min_value=0, max_value=100),
    st.integers(min_value=-20 * 3600 * 10**6, max_value=20 * 3600 * 10**6),
)
def test_the_next_instant_is_never_earlier_and_skips_none(
    parts: tuple[str, ...], zone: str, number: int, offset_us: int
) -> None:
    expression, near = " ".join(parts), changes(zone)
    instant = near[number % len(near)] + timedelta(microseconds=offset_us)
    begin = instant.replace(second=0, microsecond=0) - WARM_UP
    end = begin + WARM_UP + timedelta(days=1)
    expected = [due for due in Oracle(expression).due(minutes_of(zone, begin, end)) if due > instant]
    timing = Cron(expression, zone)
    found = instants(timing, instant, end, 10_000)
    assert found == expected
    assert all(earlier < later for earlier, later in zip([instant, *found], found, strict=False))
    later = timing.next_after(end)
    assert later is not None
    assert later > end


def berlin(expression: str, first: datetime, count: int) -> list[str]:
    due = instants(Cron(expression, "Europe/Berlin"), first.replace(tzinfo=UTC), None, count)
    return [f"{instant:%d. %H:%M}" for instant in due]


GAP, OVERLAP = datetime(2026, 3, 28, 12), datetime(2026, 10, 24, 12)  # at 01:00 UTC of the next day


@pytest.mark.parametrize(
    ("expression", "first", "due"),
    [
        ("30 2 * * *", GAP, ["29. 01:00", "30. 00:30"]),
        ("0,15,30,45 2 * * *", GAP, ["29. 01:00", "30. 00:00", "30. 00:15"]),
        ("0 2,3 * * *", GAP, ["29. 01:00", "30. 00:00", "30. 01:00"]),
        ("0 */2 * * *", GAP.replace(hour=22, minute=30), ["28. 23:00", "29. 02:00", "29. 04:00"]),
        ("30 * * * *", GAP.replace(hour=23), ["28. 23:30", "29. 00:30", "29. 01:30"]),
        ("30 2 * * *", OVERLAP, ["25. 00:30", "26. 01:30"]),
        ("0 3 * * *", OVERLAP, ["25. 02:00", "26. 02:00"]),
        ("*/30 2 * * *", OVERLAP, ["25. 00:00", "25. 00:30", "26. 01:00"]),
        ("30 * * * *", OVERLAP.replace(hour=23), ["24. 23:30", "25. 00:30", "25. 01:30", "25. 02:30"]),
        ("0 */2 * * *", OVERLAP.replace(hour=22, minute=30), ["25. 00:00", "25. 01:00", "25. 03:00"]),
    ],
)
def test_a_change_of_the_clocks_in_berlin(expression: str, first: datetime, due: list[str]) -> None:
    assert berlin(expression, first, len(due)) == due


def test_a_day_that_a_zone_leaves_out_is_due_at_its_end() -> None:
    # Samoa went from December 29 to December 31, 2011: that day began at 10:00 UTC.
    found = instants(Cron("0 9 * * *", "Pacific/Apia"), datetime(2011, 12, 29, tzinfo=UTC), None, 3)
    assert [f"{instant:%d. %H:%M}" for instant in found] == ["29. 19:00", "30. 10:00", "30. 19:00"]


def test_within_the_second_half_of_an_overlap_a_fixed_time_has_passed() -> None:
    timing = Cron("45 2 * * *", "Europe/Berlin")
    assert timing.next_after(datetime(2026, 10, 25, 1, 10, tzinfo=UTC)) == datetime(2026, 10, 26, 1, 45, tzinfo=UTC)
