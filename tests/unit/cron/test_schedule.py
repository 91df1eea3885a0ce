"""A schedule equals the result of its builder, in any order, and refuses options that could never work."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from holdfast.cron.schedule import Schedule, ScheduleBuilder
from holdfast.cron.timing import Cron, Every
from holdfast.definition import JobDefinition, definition_of
from holdfast.errors import DefinitionError
from holdfast.values import CatchUp, Overlap

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def builder() -> ScheduleBuilder:
    return ScheduleBuilder(definition_of("report", {"kind": "sales"}, {}))


def hourly(**options: Any) -> Schedule:
    return Schedule(name="hourly", definition=JobDefinition(handler="report"), timing=Cron("0 * * * *"), **options)


def test_every_step_arrives_in_the_schedule() -> None:
    made = (
        builder()
        .named("nightly")
        .queue("reports")
        .daily_at("01:00")
        .timezone("Europe/Berlin")
        .single_instance()
        .depends_on("import", "clean")
        .environments("production")
        .enabled(False)
        .inline()
        .catch_up("all", limit=3)
        .overlap("skip")
        .jitter("30s")
        .starting(NOON)
        .ending(NOON + HOUR)
        .note("for the board")
        .owner("finance")
        .schedule()
    )
    definition = definition_of("report", {"kind": "sales"}, {"queue": "reports", "single_instance": True})
    assert made == Schedule(
        name="nightly",
        definition=definition,
        timing=Cron("0 1 * * *", "Europe/Berlin"),
        depends_on=("import", "clean"),
        environments=("production",),
        enabled=False,
        inline=True,
        catch_up=CatchUp.ALL,
        catch_up_limit=3,
        overlap=Overlap.SKIP,
        jitter=30.0,
        starts_at=NOON,
        ends_at=NOON + HOUR,
        note="for the board",
        owner="finance",
    )


def test_options_of_the_job_and_of_the_schedule_come_in_any_order() -> None:
    steps: list[Callable[[ScheduleBuilder], ScheduleBuilder]] = [
        lambda one: one.named("nightly"),
        lambda one: one.priority(7),
        lambda one: one.hourly(),
        lambda one: one.tags("a"),
    ]
    made: list[Schedule] = []
    for order in permutations(steps):
        one = builder()
        for step in order:
            one = step(one)
        made.append(one.schedule())
    assert all(one == made[0] for one in made)


def test_a_schedule_is_named_like_its_handler_unless_it_has_a_name() -> None:
    assert builder().hourly().schedule().name == "report"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: builder().named("a b"), "not a valid name for a schedule"),
        (lambda: builder().named("x" * 101), "not a valid name for a schedule"),
        (lambda: builder().schedule(), "schedule 'report': the schedule has no timing"),
        (lambda: builder().hourly().id("a").schedule(), "schedule 'report': each of its jobs gets its own id"),
        (lambda: builder().hourly().run_at(NOON).schedule(), "schedule 'report': its job cannot have run_at"),
        (lambda: builder().hourly().expires(NOON).schedule(), "its job cannot have an expiry at a point in time"),
        (lambda: builder().hourly().unique().schedule(), r"its job cannot have unique: .*overlap\('skip'\)"),
        (lambda: builder().environments("Prod!"), "not a valid environment"),
        (lambda: builder().catch_up("some"), "catch_up must be 'none', 'last', 'all', not 'some'"),  # type: ignore[arg-type]
        (lambda: builder().overlap("some"), "overlap must be 'allow', 'skip', 'queue', not 'some'"),  # type: ignore[arg-type]
        (lambda: builder().hourly().catch_up("all", limit=1001).schedule(), "between 1 and 1,000, not 1001"),
        (lambda: builder().hourly().jitter("2d").schedule(), "jitter must be between 0 and 24 hours"),
        (lambda: builder().hourly().starting(datetime(2026, 1, 1)).schedule(), "no time zone"),
        (lambda: builder().hourly().starting(NOON).ending(NOON - HOUR).schedule(), "is before its start"),
        (lambda: builder().hourly().depends_on("a").overlap("queue").schedule(), r"use single_instance\(\)"),
        (lambda: builder().hourly().note("x" * 501).schedule(), "up to 500 printable characters"),
    ],
)
def test_what_could_never_work_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        wrong()


def test_a_schedule_in_code_cannot_be_saved_by_hand() -> None:
    with pytest.raises(RuntimeError, match="the runner stores it"):
        builder().hourly().save()


def test_instants_are_those_between_start_and_end() -> None:
    one = hourly(starts_at=NOON, ends_at=NOON + 2 * HOUR)
    assert one.next_after(NOON - 9 * HOUR) == NOON
    assert one.instants(NOON - HOUR, NOON + 9 * HOUR, 10) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert one.instants(NOON - HOUR, NOON + 9 * HOUR, 2) == [NOON, NOON + HOUR]
    assert one.instants(NOON, NOON + HOUR, 10) == [NOON + HOUR]
    assert one.next_after(NOON + 2 * HOUR) is None


def test_an_instant_belongs_to_a_schedule_exactly() -> None:
    one = hourly(starts_at=NOON)
    assert one.has(NOON)
    assert not one.has(NOON - HOUR)
    assert not one.has(NOON + timedelta(microseconds=1))
    assert Schedule(name="a", definition=JobDefinition(handler="a"), timing=Every(90)).has(NOON)


def test_environments() -> None:
    assert hourly().runs_in("")
    assert hourly(environments=("a", "b")).runs_in("b")
    assert not hourly(environments=("a", "b")).runs_in("")
