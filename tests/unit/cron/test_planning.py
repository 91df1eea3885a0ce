"""Plans: what is done with each instant, for every policy, and that nothing is lost or run twice."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from holdfast.cron.planning import (
    AT_ONCE,
    NOT_RUNNING,
    SUPERSEDED,
    Decision,
    Due,
    ParentRun,
    PreviousRun,
    Refusal,
    WaitFor,
    due_of,
    is_overdue,
    jitter_of,
    job_id_of,
    ledger_ttl,
    plan,
    shown,
)
from holdfast.cron.schedule import Schedule
from holdfast.cron.timing import Cron, Every, Timing
from holdfast.definition import JobDefinition
from holdfast.values import CatchUp, OnParentFailure, Overlap, TickOutcome

FIRED, LATE, SKIPPED, MISSED = TickOutcome
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
A_DAY_S = 86_400.0


MINUTELY = Every(60)
BEFORE = NOON - timedelta(seconds=1)


def at(seconds: float) -> datetime:
    """A time near noon."""
    return NOON + timedelta(seconds=seconds)


def schedule(timing: Timing = MINUTELY, **options: Any) -> Schedule:
    return Schedule(name="report", definition=JobDefinition(handler="report"), timing=timing, **options)


def planned(one: Schedule, now: datetime, through: datetime = BEFORE, **state: Any) -> list[Decision]:
    return plan(one, due_of(one, through, now), now, **state)


def in_short(decisions: list[Decision]) -> list[tuple[TickOutcome, int, int]]:
    """The outcome, the instant in seconds after noon, and the number of instants of each decision."""
    return [(one.outcome, round((one.instant - NOON).total_seconds()), one.count) for one in decisions]


def test_nothing_is_due_before_the_next_instant() -> None:
    assert planned(schedule(), at(59), through=at(0)) == []
    assert planned(schedule(), at(-1)) == []


@pytest.mark.parametrize(
    ("late_s", "outcome", "recorded_s"), [(0, FIRED, 0), (10, FIRED, 0), (10.5, LATE, 10.5), (300, LATE, 300)]
)
def test_an_instant_is_run_late_for_five_minutes(late_s: float, outcome: TickOutcome, recorded_s: float) -> None:
    hourly = schedule(Every(3600))
    assert planned(hourly, at(late_s)) == [Decision(instant=NOON, outcome=outcome, late_s=recorded_s)]


@pytest.mark.parametrize(("catch_up", "outcome"), [(CatchUp.NONE, MISSED), (CatchUp.LAST, LATE), (CatchUp.ALL, LATE)])
def test_after_five_minutes_the_policy_decides(catch_up: CatchUp, outcome: TickOutcome) -> None:
    [decision] = planned(schedule(Every(3600), catch_up=catch_up), at(300.5))
    assert decision.outcome is outcome
    assert decision.reason == (NOT_RUNNING if outcome is MISSED else "")


def test_of_several_recent_instants_only_the_last_is_run() -> None:
    decisions = planned(schedule(), at(185))
    assert in_short(decisions) == [(MISSED, 120, 3), (FIRED, 180, 1)]
    assert decisions[0].first == NOON
    assert decisions[0].reason == SUPERSEDED


def test_without_catching_up_old_instants_are_missed_for_another_reason() -> None:
    decisions = planned(schedule(), at(485))
    assert in_short(decisions) == [(MISSED, 180, 4), (MISSED, 420, 4), (FIRED, 480, 1)]
    assert [one.reason for one in decisions] == [NOT_RUNNING, SUPERSEDED, ""]


def test_catching_up_the_last_one() -> None:
    decisions = planned(schedule(Every(3600), catch_up=CatchUp.LAST), at(3 * 3600 + 1800))
    assert in_short(decisions) == [(MISSED, 2 * 3600, 3), (LATE, 3 * 3600, 1)]
    assert decisions[0].reason == "no runner was running; catch-up is limited to the last run"
    assert decisions[1].late_s == 1800


def test_catching_up_all_runs_the_last_ones_in_their_order() -> None:
    decisions = planned(schedule(Every(3600), catch_up=CatchUp.ALL, catch_up_limit=2), at(3 * 3600 + 5))
    assert in_short(decisions) == [(MISSED, 3600, 2), (LATE, 2 * 3600, 1), (FIRED, 3 * 3600, 1)]
    assert decisions[0].reason == "no runner was running; catch-up is limited to 2 runs"


def test_a_refused_schedule_skips_all_instants_with_the_reason() -> None:
    [decision] = planned(schedule(catch_up=CatchUp.ALL), at(125), refusal="disabled by ann: broken")
    assert (decision.outcome, decision.count, decision.reason) == (SKIPPED, 3, "disabled by ann: broken")


PREVIOUS = PreviousRun(instant=at(-60), job_id="report@1", is_open=True)
DONE = PreviousRun(instant=at(-60), job_id="report@1", is_open=False)


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("previous", [None, DONE])
def test_a_previous_run_that_has_finished_does_not_matter(overlap: Overlap, previous: PreviousRun | None) -> None:
    assert planned(schedule(overlap=overlap), at(0), previous=previous) == [Decision(instant=NOON, outcome=FIRED)]


def test_an_overlapping_run_is_allowed_skipped_or_queued() -> None:
    [allowed] = planned(schedule(), at(0), previous=PREVIOUS)
    assert (allowed.outcome, allowed.after) == (FIRED, ())
    [skipped] = planned(schedule(overlap=Overlap.SKIP), at(0), previous=PREVIOUS)
    assert (skipped.outcome, skipped.reason) == (SKIPPED, "the run of 2026-01-01 11:59 UTC has not finished")
    [queued] = planned(schedule(overlap=Overlap.QUEUE), at(0), previous=PREVIOUS)
    assert (queued.outcome, queued.after, queued.on_parent_failure) == (FIRED, ("report@1",), OnParentFailure.RUN)


def test_runs_that_are_caught_up_together_overlap() -> None:
    def decided(overlap: Overlap) -> list[Decision]:
        return planned(schedule(catch_up=CatchUp.ALL, overlap=overlap), at(120))

    assert in_short(decided(Overlap.SKIP)) == [(LATE, 0, 1), (SKIPPED, 120, 2)]
    queued = decided(Overlap.QUEUE)
    assert [one.after for one in queued] == [(), (job_id_of("report", at(0)),), (job_id_of("report", at(60)),)]


def family(run: ParentRun) -> Callable[[str, datetime], ParentRun]:
    return lambda name, _: run if name == "import" else None


def test_a_child_waits_for_a_parent_that_runs_at_the_same_instant() -> None:
    child = schedule(depends_on=("import", "other"))
    [decision] = planned(child, at(0), parents=family(WaitFor("import@1")))
    assert (decision.outcome, decision.after, decision.on_parent_failure) == (
        FIRED,
        ("import@1",),
        OnParentFailure.CANCEL,
    )
    [decision] = planned(child, at(0), parents=family(None))
    assert (decision.outcome, decision.after) == (FIRED, ())


def test_a_child_is_skipped_with_its_parent() -> None:
    [decision] = planned(schedule(depends_on=("import",)), at(0), parents=family(Refusal("disabled by ann")))
    assert (decision.outcome, decision.reason) == (SKIPPED, "its parent 'import' did not run: disabled by ann")


def test_parents_are_asked_only_for_instants_that_would_run() -> None:
    asked: list[datetime] = []

    def parent(_name: str, instant: datetime) -> ParentRun:
        asked.append(instant)
        return None

    planned(schedule(depends_on=("import",)), at(125), parents=parent)
    assert asked == [at(120)]


def test_dates_limit_the_instants() -> None:
    limited = schedule(starts_at=at(60), ends_at=at(120), catch_up=CatchUp.ALL)
    assert in_short(planned(limited, at(600))) == [(LATE, 60, 1), (LATE, 120, 1)]


def test_a_long_backlog_is_decided_in_parts() -> None:
    every_second = schedule(Every(1), catch_up=CatchUp.ALL, catch_up_limit=3)
    now = at(5000)
    due = due_of(every_second, at(-1), now)
    assert due.more
    assert len(due.instants) == AT_ONCE + 1
    [missed] = plan(every_second, due, now)
    assert (missed.outcome, missed.count) == (MISSED, AT_ONCE + 1)
    rest = due_of(every_second, at(4990), now)
    assert rest == Due(instants=tuple(at(4991 + one) for one in range(10)))
    assert in_short(plan(every_second, rest, now)) == [
        (MISSED, 4997, 7),
        (FIRED, 4998, 1),
        (FIRED, 4999, 1),
        (FIRED, 5000, 1),
    ]


@given(
    catch_up=st.sampled_from(CatchUp),
    limit=st.integers(1, 20),
    overlap=st.sampled_from(Overlap),
    previous=st.sampled_from([None, PREVIOUS, DONE]),
    refusal=st.sampled_from(["", "disabled"]),
    interval=st.sampled_from([1.0, 7.0, 60.0, 3600.0]),
    late=st.floats(0, 8000),
    parent=st.sampled_from([None, WaitFor("import@1"), Refusal("disabled")]),
)
def test_every_instant_is_decided_once_and_at_most_the_limit_is_run(
    catch_up: CatchUp,
    limit: int,
    overlap: Overlap,
    previous: PreviousRun | None,
    refusal: str,
    interval: float,
    late: float,
    parent: ParentRun,
) -> None:
    depends_on = () if overlap is Overlap.QUEUE else ("import",)
    options: dict[str, Any] = {"catch_up": catch_up, "catch_up_limit": limit, "overlap": overlap}
    one = schedule(Every(interval), depends_on=depends_on, **options)
    now, through = at(late), at(-1)
    expected = one.instants(through, now, 100_000)
    decided: list[datetime] = []
    run = 0
    while True:
        due = due_of(one, through, now)
        if not due.instants:
            break
        decisions = plan(one, due, now, refusal=refusal, previous=previous, parents=family(parent))
        for decision in decisions:
            covered = [instant for instant in due.instants if decision.covers(instant)]
            assert len(covered) == decision.count
            decided += covered
            run += decision.outcome.has_job
            assert bool(decision.reason) == (not decision.outcome.has_job)
        through = due.instants[-1]
    assert decided == expected
    assert run <= (limit if catch_up is CatchUp.ALL else 1)
    if expected and not refusal and overlap is not Overlap.SKIP and not isinstance(parent, Refusal):
        assert run >= (catch_up is not CatchUp.NONE or (now - expected[-1]).total_seconds() <= 300)


def test_ids_name_the_schedule_and_the_instant() -> None:
    assert job_id_of("nightly", NOON) == "nightly@20260101T120000Z"
    assert job_id_of("nightly", at(0.25)) == "nightly@20260101T120000.250000Z"


def test_jitter_is_the_same_for_every_runner_and_below_its_limit() -> None:
    shaken = schedule(jitter=30.0)
    delays = [jitter_of(shaken, at(60 * minute)) for minute in range(200)]
    assert delays == [jitter_of(shaken, at(60 * minute)) for minute in range(200)]
    assert all(0 <= delay <= 30 for delay in delays)
    assert min(delays) < 5 < 25 < max(delays)
    assert jitter_of(schedule(), NOON) == 0


@pytest.mark.parametrize(
    ("timing", "ttl"),
    [
        (Every(1), 5000),
        (Every(60), 5000 * 60),
        (Every(3600), 30 * A_DAY_S),
        (Cron("0 1 * * *"), 40 * A_DAY_S),
        (Every(7 * 86_400), 40 * 7 * A_DAY_S),
    ],
)
def test_the_ledger_is_retained_for_a_number_of_runs(timing: Timing, ttl: float) -> None:
    one = schedule(timing)
    first = one.next_after(NOON)
    assert first is not None
    assert ledger_ttl(one, first) == ttl


def test_a_schedule_is_overdue_once_it_can_only_be_missed() -> None:
    assert not is_overdue(schedule(), at(0), at(60 + 300))
    assert is_overdue(schedule(), at(0), at(60 + 301))
    assert not is_overdue(schedule(ends_at=NOON), at(0), at(10_000))


def test_instants_in_sentences() -> None:
    assert shown(NOON) == "2026-01-01 12:00 UTC"
    assert shown(at(5)) == "2026-01-01 12:00:05 UTC"
