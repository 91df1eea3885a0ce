"""The methods that set when a schedule is due, and their combinations."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.cron.frequencies import Frequencies
from holdfast.cron.timing import Cron, Every
from holdfast.definition import JobBuilder
from holdfast.errors import DefinitionError

Choose = Callable[[Frequencies], Frequencies]

ALONE: list[tuple[Choose, str]] = [
    (lambda on: on.cron("*/5 8-18 * * mon-fri"), "*/5 8-18 * * MON-FRI"),
    (lambda on: on.cron(" @daily "), "0 0 * * *"),
    (lambda on: on.every_minute(), "* * * * *"),
    (lambda on: on.every_minutes(1), "* * * * *"),
    (lambda on: on.every_minutes(12), "*/12 * * * *"),
    (lambda on: on.every_five_minutes(), "*/5 * * * *"),
    (lambda on: on.every_fifteen_minutes(), "*/15 * * * *"),
    (lambda on: on.every_thirty_minutes(), "*/30 * * * *"),
    (lambda on: on.hourly(), "0 * * * *"),
    (lambda on: on.hourly_at(0), "0 * * * *"),
    (lambda on: on.hourly_at(59), "59 * * * *"),
    (lambda on: on.between_hours(9, 17), "0 9-17 * * *"),
    (lambda on: on.between_hours(9, 9), "0 9-9 * * *"),
    (lambda on: on.daily(), "0 0 * * *"),
    (lambda on: on.daily_at("08:05"), "5 8 * * *"),
    (lambda on: on.daily_at("23:59"), "59 23 * * *"),
    (lambda on: on.weekly(), "0 0 * * 0"),
    (lambda on: on.weekly("03:30"), "30 3 * * 0"),
    (lambda on: on.sundays(), "0 0 * * 0"),
    (lambda on: on.mondays(), "0 0 * * 1"),
    (lambda on: on.tuesdays(), "0 0 * * 2"),
    (lambda on: on.wednesdays(), "0 0 * * 3"),
    (lambda on: on.thursdays(), "0 0 * * 4"),
    (lambda on: on.fridays(), "0 0 * * 5"),
    (lambda on: on.saturdays(), "0 0 * * 6"),
    (lambda on: on.sundays("09:00"), "0 9 * * 0"),
    (lambda on: on.mondays("09:00"), "0 9 * * 1"),
    (lambda on: on.tuesdays("09:00"), "0 9 * * 2"),
    (lambda on: on.wednesdays("09:00"), "0 9 * * 3"),
    (lambda on: on.thursdays("09:00"), "0 9 * * 4"),
    (lambda on: on.fridays("09:00"), "0 9 * * 5"),
    (lambda on: on.saturdays("09:00"), "0 9 * * 6"),
    (lambda on: on.weekdays(), "0 0 * * 1-5"),
    (lambda on: on.weekdays("18:15"), "15 18 * * 1-5"),
    (lambda on: on.weekends(), "0 0 * * 6-7"),
    (lambda on: on.weekends("10:00"), "0 10 * * 6-7"),
    (lambda on: on.monthly(), "0 0 1 * *"),
    (lambda on: on.monthly("04:00"), "0 4 1 * *"),
    (lambda on: on.days_of_month([15, 1, 15]), "0 0 1,15 * *"),
    (lambda on: on.months([12, 6]), "0 0 * 6,12 *"),
    (lambda on: on.quarterly(), "0 0 1 */3 *"),
    (lambda on: on.quarterly("05:00"), "0 5 1 */3 *"),
    (lambda on: on.yearly(), "0 0 1 1 *"),
    (lambda on: on.yearly("06:00"), "0 6 1 1 *"),
]

TOGETHER: list[tuple[Choose, Choose, str]] = [
    (lambda on: on.mondays(), lambda on: on.daily_at("09:00"), "0 9 * * 1"),
    (lambda on: on.weekdays(), lambda on: on.hourly(), "0 * * * 1-5"),
    (lambda on: on.weekdays(), lambda on: on.every_minutes(15), "*/15 * * * 1-5"),
    (lambda on: on.between_hours(9, 17), lambda on: on.every_minutes(15), "*/15 9-17 * * *"),
    (lambda on: on.between_hours(9, 17), lambda on: on.hourly_at(30), "30 9-17 * * *"),
    (lambda on: on.between_hours(9, 17), lambda on: on.every_minute(), "* 9-17 * * *"),
    (lambda on: on.between_hours(9, 17), lambda on: on.weekends(), "0 9-17 * * 6-7"),
    (lambda on: on.monthly(), lambda on: on.daily_at("04:00"), "0 4 1 * *"),
    (lambda on: on.months([6, 7]), lambda on: on.daily(), "0 0 * 6,7 *"),
    (lambda on: on.months([6, 7]), lambda on: on.fridays("16:00"), "0 16 * 6,7 5"),
    (lambda on: on.months([2]), lambda on: on.days_of_month([1, 29]), "0 0 1,29 2 *"),
    (lambda on: on.quarterly(), lambda on: on.hourly(), "0 * 1 */3 *"),
    (lambda on: on.months([1]), lambda on: on.every_five_minutes(), "*/5 * * 1 *"),
]

CONFLICTS: list[tuple[Choose, Choose, str]] = [
    (lambda on: on.daily(), lambda on: on.monthly(), "the day of month"),
    (lambda on: on.daily(), lambda on: on.mondays(), "the day of week"),
    (lambda on: on.daily(), lambda on: on.hourly(), "the minute"),
    (lambda on: on.daily_at("01:00"), lambda on: on.between_hours(1, 2), "the hour"),
    (lambda on: on.mondays(), lambda on: on.thursdays(), "the day of week"),
    (lambda on: on.mondays("09:00"), lambda on: on.every_minutes(5), "the minute"),
    (lambda on: on.hourly(), lambda on: on.every_minute(), "the minute"),
    (lambda on: on.cron("0 9 * * *"), lambda on: on.weekdays(), "the day of week"),
    (lambda on: on.quarterly(), lambda on: on.months([1]), "the month"),
]

WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda on: on.every_minutes(7), r"every_minutes\(7\): 7 does not divide 60, .* use every\('7m'\)"),
    (lambda on: on.every_minutes(0), "every_minutes must be between 1 and 30, not 0"),
    (lambda on: on.every_minutes(60), "every_minutes must be between 1 and 30, not 60"),
    (lambda on: on.every_minutes("5"), "every_minutes must be an integer from 1 to 30, not '5'"),
    (lambda on: on.every_minutes(True), "every_minutes must be an integer from 1 to 30, not True"),
    (lambda on: on.every_minutes(2.5), "every_minutes must be an integer from 1 to 30, not 2.5"),
    (lambda on: on.hourly_at(60), "hourly_at must be between 0 and 59, not 60"),
    (lambda on: on.hourly_at(-1), "hourly_at must be between 0 and 59, not -1"),
    (lambda on: on.hourly_at(None), "hourly_at must be an integer from 0 to 59, not None"),
    (lambda on: on.between_hours(9, 24), "between_hours must be between 0 and 23, not 24"),
    (lambda on: on.between_hours("9", 17), "between_hours must be an integer from 0 to 23, not '9'"),
    (
        lambda on: on.between_hours(22, 2),
        r"first hour is later than the last one; .* cron\('0 22-23,0-2 \* \* \*'\)",
    ),
    (lambda on: on.days_of_month([]), r"days_of_month is empty; pass at least one day of month"),
    (lambda on: on.days_of_month([0]), "days_of_month must be between 1 and 31, not 0"),
    (lambda on: on.days_of_month([1, 32]), "days_of_month must be between 1 and 31, not 32"),
    (lambda on: on.days_of_month(1), r"days_of_month must be a list of numbers, such as \[1, 7\], not 1"),
    (lambda on: on.days_of_month("1,15"), "days_of_month must be a list of numbers, .* not '1,15'"),
    (lambda on: on.months([]), "months is empty; pass at least one month"),
    (lambda on: on.months([13]), "months must be between 1 and 12, not 13"),
    (lambda on: on.months(["jan"]), "months must be an integer from 1 to 12, not 'jan'"),
    (lambda on: on.every("often"), "every 'often': must be a number of seconds, or a value such as 90s"),
    (lambda on: on.every(0.5), "every must be between 1 s and 366 days, not 0.5 seconds"),
    (lambda on: on.every("400d"), "every must be between 1 s and 366 days, not 34560000 seconds"),
    (lambda on: on.every(float("nan")), "every must be between 1 s and 366 days, not nan seconds"),
    (lambda on: on.every(None), "every must be a number of seconds, a timedelta, or a string"),
    (lambda on: on.cron("0 25 * * *"), "hour '25' is not valid; use 0-23"),
    (lambda on: on.cron(None), "cron must be an expression such as '0 2 [*] [*] [*]', not None"),
    (lambda on: on.timezone("Europe/Berln"), "timezone 'Europe/Berln' is not known; did you mean 'Europe/Berlin'"),
    (lambda on: on.timezone(None), "timezone must be the name of a time zone, such as Europe/Berlin or UTC"),
]

DAYS: list[Choose] = [lambda on: on.monthly(), lambda on: on.days_of_month([13]), lambda on: on.yearly()]
WEEKDAYS: list[Choose] = [lambda on: on.fridays(), lambda on: on.weekdays(), lambda on: on.weekly()]
EVERY_HOUR: Choose = lambda on: on.every("1h")  # noqa: E731
OTHERS: list[Choose] = [
    lambda on: on.daily(),
    lambda on: on.mondays(),
    lambda on: on.timezone("UTC"),
    lambda on: on.cron("@daily"),
]
NOTHING: list[Choose] = [lambda on: on, lambda on: on.timezone("Europe/Berlin")]


@pytest.mark.parametrize(("choose", "expression"), ALONE, ids=lambda one: one if isinstance(one, str) else "")
def test_each_method_becomes_its_expression(choose: Choose, expression: str) -> None:
    frequencies = Frequencies()
    assert choose(frequencies) is frequencies
    assert frequencies.timing() == Cron(expression, "UTC")


def test_every_method_is_in_the_table() -> None:
    called: set[str] = set()

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: called.add(name)

    recorder: Any = Recorder()
    for choose, _ in ALONE:
        choose(recorder)
    methods = {name for name in vars(Frequencies) if not name.startswith("_")}
    assert methods - called == {"every", "timezone", "timing"}


@pytest.mark.parametrize(("first", "second", "expression"), TOGETHER)
def test_methods_together_mean_the_same_in_any_order(first: Choose, second: Choose, expression: str) -> None:
    assert second(first(Frequencies())).timing() == first(second(Frequencies())).timing() == Cron(expression)


@pytest.mark.parametrize(("first", "second", "field"), CONFLICTS)
def test_a_field_is_set_once(first: Choose, second: Choose, field: str) -> None:
    for one, other in ((first, second), (second, first)):
        frequencies = one(Frequencies())
        timing = frequencies.timing()
        with pytest.raises(
            DefinitionError, match=rf"\(\) sets {field}, which .*\(\) has already set; leave out one of"
        ):
            other(frequencies)
        assert frequencies.timing() == timing


@pytest.mark.parametrize("choose", OTHERS)
def test_an_interval_stands_alone(choose: Choose) -> None:
    for one, other in ((choose, EVERY_HOUR), (EVERY_HOUR, choose)):
        with pytest.raises(DefinitionError, match=r"every\(\) cannot be combined with \w+\(\); leave out one of them"):
            other(one(Frequencies()))


@pytest.mark.parametrize("choose", [EVERY_HOUR, *OTHERS])
def test_a_method_is_called_once(choose: Choose) -> None:
    with pytest.raises(DefinitionError, match=r"\(\) was called twice; leave out one of the calls"):
        choose(choose(Frequencies()))


@pytest.mark.parametrize("day", DAYS)
@pytest.mark.parametrize("weekday", WEEKDAYS)
def test_methods_that_cron_would_combine_with_or_are_refused(day: Choose, weekday: Choose) -> None:
    for one, other in ((day, weekday), (weekday, day)):
        with pytest.raises(DefinitionError, match="in cron, a day needs to match only one of them"):
            other(one(Frequencies()))


def test_an_expression_may_have_both_days() -> None:
    assert Frequencies().cron("0 0 13 * 5").timing().text() == "0 0 13 * 5"


def test_a_time_zone_goes_before_or_after() -> None:
    timing = Cron("0 1 * * *", "Europe/Berlin")
    assert Frequencies().timezone("Europe/Berlin").daily_at("01:00").timing() == timing
    assert Frequencies().daily_at("01:00").timezone("Europe/Berlin").timing() == timing
    assert Frequencies().cron("0 1 * * *").timezone("Europe/Berlin").timing() == timing


@pytest.mark.parametrize(("interval", "seconds"), [("90s", 90.0), (90, 90.0), ("2h", 7200.0), ("1d", 86_400.0)])
def test_an_interval(interval: str | float, seconds: float) -> None:
    assert Frequencies().every(interval).timing() == Every(seconds)


def test_a_builder_of_jobs_can_have_them() -> None:
    class Builder(JobBuilder, Frequencies):
        pass

    shared = {name for name in vars(JobBuilder).keys() & vars(Frequencies).keys() if not name.startswith("__")}
    assert shared == set()
    builder = Builder("report").mondays("09:00")
    assert builder.queue("mail") is builder
    assert (builder.definition().queue, builder.timing().text()) == ("mail", "0 9 * * 1")


def test_two_builders_do_not_share_their_fields() -> None:
    one, other = Frequencies().mondays(), Frequencies().daily_at("01:00")
    assert (one.timing().text(), other.timing().text()) == ("0 0 * * 1", "0 1 * * *")


@pytest.mark.parametrize("choose", NOTHING)
def test_a_schedule_needs_a_timing(choose: Choose) -> None:
    with pytest.raises(DefinitionError, match=r"the schedule has no timing; call daily_at\('01:00'\)"):
        choose(Frequencies()).timing()


def test_days_that_never_occur_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"cron '0 0 30 2 \*' is never due"):
        Frequencies().days_of_month([30]).months([2]).timing()


TIMED = sorted({name for name in vars(Frequencies) if name.endswith(("days", "ly"))} - {"daily", "hourly"})


@pytest.mark.parametrize("method", [*TIMED, "daily_at", "weekends"])
@pytest.mark.parametrize(
    "time", ["9:00", "24:00", "09:60", "0900", "09:00:00", "9 am", "tomorrow", "", " 09:00", "٠٩:٠٠"]
)
def test_a_time_is_two_digits_each(method: str, time: str) -> None:
    with pytest.raises(DefinitionError, match=rf"{method}: .* is not a time; write HH:MM with two digits each"):
        getattr(Frequencies(), method)(time)


@pytest.mark.parametrize("time", [9, 9.3, True, b"09:00"])
def test_a_time_is_text(time: object) -> None:
    with pytest.raises(DefinitionError, match=r"daily_at: .* is not a time"):
        Frequencies().daily_at(time)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("choose", "problem"), WRONG)
def test_an_error_names_the_method_and_says_what_to_write(choose: Callable[[Any], object], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        choose(Frequencies())
