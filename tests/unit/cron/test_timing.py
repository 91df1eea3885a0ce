"""Expressions in a time zone, intervals, and the errors that name what is wrong with them."""

import subprocess
import sys
import time
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from holdfast.cron.expression import parse_expression
from holdfast.cron.timing import Cron, Every, instants, parse_timing
from holdfast.cron.zones import zone_named
from holdfast.errors import DefinitionError

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "timing", "written"),
    [
        ("*/5 * * * *", Cron("*/5 * * * *"), "*/5 * * * *"),
        ("  0  9\t* * mon-fri ", Cron("0 9 * * MON-FRI"), "0 9 * * MON-FRI"),
        ("@hourly", Cron("0 * * * *"), "0 * * * *"),
        ("@Daily", Cron("0 0 * * *"), "0 0 * * *"),
        ("@midnight", Cron("0 0 * * *"), "0 0 * * *"),
        ("@weekly", Cron("0 0 * * 0"), "0 0 * * 0"),
        ("@monthly", Cron("0 0 1 * *"), "0 0 1 * *"),
        ("@yearly", Cron("0 0 1 1 *"), "0 0 1 1 *"),
        ("@annually", Cron("0 0 1 1 *"), "0 0 1 1 *"),
        ("every 90s", Every(90), "every 90s"),
        ("Every 120", Every(120), "every 2m"),
        ("every 1.5 h", Every(5400), "every 90m"),
        ("every 2.000001s", Every(2.000001), "every 2.000001s"),
        ("every 1w", Every(604_800), "every 7d"),
    ],
)
def test_a_timing_is_read_and_written_in_one_spelling(text: str, timing: Cron | Every, written: str) -> None:
    assert parse_timing(text) == timing
    assert timing.text() == written
    assert parse_timing(written) == timing


def test_a_stored_timing_is_checked_and_normalized() -> None:
    assert msgspec.json.decode(b'{"expression": "@daily", "zone": "Europe/Berlin"}', type=Cron) == Cron(
        "0 0 * * *", "Europe/Berlin"
    )
    with pytest.raises(DefinitionError, match="hour '24'"):
        msgspec.json.decode(b'{"expression": "0 24 * * *"}', type=Cron)


@pytest.mark.parametrize(
    ("timing", "instant", "due"),
    [
        (Cron("0 9 * * MON"), NEW_YEAR, datetime(2026, 1, 5, 9, tzinfo=UTC)),
        (Cron("0 9 * * *", "America/New_York"), NEW_YEAR, datetime(2026, 1, 1, 14, tzinfo=UTC)),
        (Cron("0 9 * * *", "Asia/Kolkata"), NEW_YEAR, datetime(2026, 1, 1, 3, 30, tzinfo=UTC)),
        (Cron("0 0 29 2 *"), NEW_YEAR, datetime(2028, 2, 29, tzinfo=UTC)),
        (Cron("0 0 * 2 MON#5"), NEW_YEAR, datetime(2044, 2, 29, tzinfo=UTC)),
        (Cron("0 0 L * *"), NEW_YEAR, datetime(2026, 1, 31, tzinfo=UTC)),
        (Cron("0 0 LW * *"), NEW_YEAR, datetime(2026, 1, 30, tzinfo=UTC)),
        (Cron("0 0 * * 5L"), NEW_YEAR, datetime(2026, 1, 30, tzinfo=UTC)),
        (Cron("0 0 * * 7"), NEW_YEAR, datetime(2026, 1, 4, tzinfo=UTC)),
        (Cron("0 0 13 * 5"), NEW_YEAR, datetime(2026, 1, 2, tzinfo=UTC)),
        (Cron("0 0 */2 * 5"), NEW_YEAR, datetime(2026, 1, 9, tzinfo=UTC)),
        (Cron("* * * * *"), NEW_YEAR, NEW_YEAR + timedelta(minutes=1)),
        (Cron("* * * * *"), NEW_YEAR - timedelta(microseconds=1), NEW_YEAR),
        (Every(90), NEW_YEAR, NEW_YEAR + timedelta(seconds=90)),
        (Every(90), NEW_YEAR + timedelta(microseconds=1), NEW_YEAR + timedelta(seconds=90)),
        (Every(90), NEW_YEAR - timedelta(microseconds=1), NEW_YEAR),
        (Every(1.5), datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (Every(7), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_the_next_instant(timing: Cron | Every, instant: datetime, due: datetime) -> None:
    found = timing.next_after(instant)
    assert found == due
    assert found is not None
    assert found.tzinfo is UTC
    assert timing.next_after(instant.astimezone(timezone(timedelta(hours=-7)))) == due


@pytest.mark.parametrize(
    "timing", [Cron("* * * * *"), Cron("0 0 1 1 *", "Asia/Tokyo"), Cron("0 * * * *", "Asia/Tokyo")]
)
def test_at_the_end_of_the_calendar_it_is_never_due_again(timing: Cron) -> None:
    assert timing.next_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)) is None


def test_an_interval_ends_with_the_calendar() -> None:
    assert Every(90).next_after(datetime.max.replace(tzinfo=UTC)) is None


@pytest.mark.parametrize("timing", [Cron("* * * * *"), Cron("0 1 * * *"), Every(90)])
def test_an_instant_needs_a_time_zone(timing: Cron | Every) -> None:
    with pytest.raises(ValueError, match="2026-01-01T00:00:00 has no time zone; pass an aware datetime"):
        timing.next_after(datetime(2026, 1, 1))


def test_instants_after_one_and_up_to_another() -> None:
    hourly = Cron("0 * * * *")
    hours = [NEW_YEAR + timedelta(hours=number) for number in range(1, 6)]
    assert instants(hourly, NEW_YEAR, hours[2], 10) == hours[:3]
    assert instants(hourly, NEW_YEAR, hours[2], 2) == hours[:2]
    assert instants(hourly, NEW_YEAR, None, 5) == hours
    assert instants(hourly, NEW_YEAR, None, 0) == []
    assert instants(hourly, hours[2], NEW_YEAR, 5) == []


NOTATION = r"; write \*, \*/2, a number"


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("60 * * * *", "minute '60' is not valid; use 0-59"),
        ("-1 * * * *", f"minute '-1' is not valid{NOTATION}"),
        ("*/0 * * * *", "minute '[*]/0' is not valid; the number after '/' must be at least 1"),
        ("*/75 * * * *", "minute '[*]/75' is not valid; the step is longer than the field, 0-59"),
        ("? * * * *", f"minute '[?]' is not valid{NOTATION}"),
        ("٣ * * * *", f"minute '٣' is not valid{NOTATION}"),
        ("1,,2 * * * *", f"minute '' is not valid{NOTATION}"),
        ("0 24 * * *", "hour '24' is not valid; use 0-23"),
        ("0 22-2 * * *", "hour '22-2' is not valid; a range must be ascending; write 22-23,0-2"),
        ("0 23-2 * * *", "hour '23-2' is not valid; a range must be ascending; write 23,0-2"),
        ("0 0 0 * *", "day of month '0' is not valid; use 1-31"),
        ("0 0 L/2 * *", "day of month 'L/2' is not valid; .*; L = last day of the month, LW = its last weekday"),
        ("0 0 1--100000000 * *", f"day of month '1--100000000' is not valid{NOTATION}"),
        ("0 0 1-99999999999 * *", f"day of month '1-99999999999' is not valid{NOTATION}"),
        ("0 0 1 13 *", "month '13' is not valid; use 1-12 or JAN-DEC"),
        ("0 0 1 FEBR *", "month 'FEBR' is not valid; did you mean FEB?"),
        ("0 0 1 NOV-FEB *", "month 'NOV-FEB' is not valid; a range must be ascending; write NOV-DEC,JAN-FEB"),
        ("0 0 * * 8", "day of week '8' is not valid; use 0-7 or SUN-SAT"),
        ("0 0 * * MONDAY", "day of week 'MONDAY' is not valid; did you mean MON?"),
        ("0 0 * * FRI-SUN", "day of week 'FRI-SUN' is not valid; a range must be ascending; write 5-7"),
        ("0 0 * * FRI-MON", "day of week 'FRI-MON' is not valid; a range must be ascending; write FRI-SAT,SUN-MON"),
        (
            "0 0 * * MON#6",
            "day of week 'MON#6' is not valid; .* MON#2 = second Monday of the month, 5L = its last Friday",
        ),
        ("0 0 * * XYZ#1", "day of week 'XYZ#1' is not valid"),
        ("* * * *", "has 4 fields; write five: minute, hour, day of month, month and day of week"),
        ("*", "has 1 field; write five"),
        ("", "cron '' has 0 fields; write five"),
        ("* * * * * *", r"has six fields; seconds are not supported: .* or use every\('30s'\)"),
        ("* * * * * * *", "has 7 fields"),
        ("@dayly", "cron '@dayly' is not known; did you mean '@daily'"),
        ("@reboot", "cron '@reboot' is not supported; enqueue the job when your program starts"),
        ("0 0 30 2 *", "is never due: no day matches its day of month, month and day of week"),
        ("0 0 31 4,6,9,11 *", "is never due"),
        ("0 0 */30 2 1#2", "is never due"),
        ("9" * 10_000, r"cron '9+\.\.\. \(10,000 characters\)' is longer than 500 characters"),
        ("@" * 10_000, "is longer than 500 characters"),
    ],
)
def test_an_error_names_the_field_and_says_what_to_write(expression: str, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(DefinitionError, match=problem):
        parse_timing(expression)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "a schedule must be a cron expression such as '0 2 [*] [*] [*]', or 'every 90s', not None"),
        ("every often", "every 'often': must be a number of seconds, or a value such as 90s"),
        ("every 0s", "every must be between 1 s and 366 days, not 0 seconds"),
        ("every 999999d", "every must be between 1 s and 366 days"),
        ("every" + "9" * 10_000, "is longer than 500 characters"),
        ("every " + "9" * 10_000, "every must be between 1 s and 366 days, not inf seconds"),
    ],
)
def test_an_interval_that_cannot_be_used(text: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        parse_timing(text)


def test_an_interval_has_no_time_zone() -> None:
    with pytest.raises(DefinitionError, match="timezone has no effect with 'every 90s'; leave it out, or use a cron"):
        parse_timing("every 90s", "Europe/Berlin")


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("Berlin", "did you mean 'Europe/Berlin'?"),
        ("New York", "did you mean 'America/New_York'?"),
        ("+01:00", "use a name of the IANA database, such as Europe/Berlin or UTC"),
        ("localtime", "use a name of the IANA database"),
        ("posixrules", "use a name of the IANA database"),
        ("right/Europe/Berlin", "did you mean 'Europe/Berlin'?"),
        ("../../../etc/passwd", "use a name of the IANA database"),
        ("/etc/localtime", "use a name of the IANA database"),
        ("Europe", "did you mean"),
        ("", "use a name of the IANA database"),
        ("x" * 10_000, "use a name of the IANA database"),
        ("Europe/Berlin\x00", "did you mean 'Europe/Berlin'?"),
    ],
)
def test_an_unknown_zone_gets_a_suggestion(name: str, guess: str) -> None:
    with pytest.raises(DefinitionError, match=r"timezone '.*' is not known; ") as refused:
        Cron("0 0 * * *", name)
    assert guess in str(refused.value)


@pytest.fixture
def no_zone_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath([str(tmp_path)])
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("no_zone_data")
def test_without_zone_data_only_utc_is_known() -> None:
    assert Cron("0 0 * * *", "UTC").next_after(NEW_YEAR) == NEW_YEAR + timedelta(days=1)
    with pytest.raises(DefinitionError, match="this host has no time zone data; install the package tzdata"):
        zone_named("Antarctica/Troll")


def test_what_is_not_needed_is_not_imported() -> None:
    script = (
        "import sys; from holdfast.cron.frequencies import Frequencies; from holdfast.cron.timing import Every;"
        "Every(90).describe(); Frequencies().every('90s');"
        "print(sorted({'cronsim', 'zoneinfo', 'difflib'} & {*sys.modules}));"
        "Frequencies().daily().timing(); print(sorted({'cronsim', 'zoneinfo', 'difflib'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "['cronsim']"]


def test_an_expression_is_parsed_as_cronsim_parses_it() -> None:
    from cronsim import CronSim

    for expression in ("*/7 3/5 1-9/2 feb,*/5 1-5", "0 0 31,1-4 */12 sun,5-7", "5/60 */24 */31 1 */3", "1 1 5 5 0/2"):
        theirs = CronSim(expression, datetime(2026, 1, 1))
        ours = parse_expression(expression.upper())
        assert [*map(set, (ours.minutes, ours.hours, ours.days, ours.months))] == [
            theirs.minutes,
            theirs.hours,
            theirs.days,
            theirs.months,
        ]
        assert ours.weekdays == {day % 7 for day in theirs.weekdays if isinstance(day, int)}
        assert ours.needs_both_days == theirs.day_and
