"""The runner, one tick at a time, on the memory engine: what is enqueued and recorded, and who may change it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.clock import to_us
from holdfast.cron.runner import AT_ONCE, CronRunner, Happened, inline_queue
from holdfast.cron.schedule import Schedule
from holdfast.cron.stored import Definitions, Schedules
from holdfast.cron.templates import seal_template
from holdfast.cron.timing import Cron, Every, Timing
from holdfast.definition import JobDefinition, definition_of
from holdfast.errors import BackendError, BackendUnavailable, DefinitionError
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.state.schedules import (
    CHANGES,
    CURSORS,
    SCHEDULES,
    ProblemKind,
    RunResult,
    StoredSchedule,
    tick_key,
)
from holdfast.testing import memory_lab
from holdfast.testing.lab import Lab
from holdfast.values import (
    Abandon,
    Ack,
    CatchUp,
    Cell,
    DeadReason,
    Drop,
    JobFilter,
    JobState,
    Overlap,
    Put,
    ScheduleSource,
    TickOutcome,
)
from holdfast.worker.verdict import carrying

FIRED, LATE, SKIPPED, MISSED = TickOutcome
KEYRING = Keyring([SigningKey(b"the key of the laboratory, 32 bytes")])
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTELY, HOURLY = Every(60), Cron("0 * * * *")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with memory_lab() as lab:
        lab.advance(0.5)
        yield lab


@pytest.fixture
def schedules(lab: Lab) -> Schedules:
    return Schedules(lab.engine, KEYRING)


@pytest.fixture
def runner(lab: Lab) -> CronRunner:
    return CronRunner(lab.engine, KEYRING)


def schedule(name: str, timing: Timing = MINUTELY, payload: object = None, **options: Any) -> Schedule:
    return Schedule(name=name, definition=definition_of("report", payload, {}), timing=timing, **options)


def advance_to(lab: Lab, seconds: float) -> None:
    """Move the clock to this many seconds after the start."""
    lab.advance(seconds - (lab.now() - START).total_seconds())


def in_short(happened: list[Happened]) -> list[tuple[str, TickOutcome, int, int]]:
    return [(one.schedule, one.outcome, round((one.instant - START).total_seconds()), one.count) for one in happened]


def run(lab: Lab, *ids: str, queue: str = "default") -> None:
    """Run these jobs as a worker would; they must be the next ones."""
    for id in ids:
        lease = lab.take(id, queue=queue)
        assert lab.engine.settle([carrying(Ack(lease=lease, record=lab.record()), KEYRING.open(lease.wire))]) == [True]


def test_a_schedule_fires_at_its_instants_from_now_on(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    assert schedules.save(schedule("a", payload={"rows": 7}))
    assert runner.tick() == []
    advance_to(lab, 59.9)
    assert runner.tick() == []
    advance_to(lab, 60)
    assert in_short(runner.tick()) == [("a", FIRED, 60, 1)]
    assert runner.tick() == []
    [job] = lab.engine.find(JobFilter()).jobs
    assert (job.id, job.job, job.name, job.schedule) == ("a@20260101T000100Z", "report", "a", "a")
    assert job.scheduled_for == START + timedelta(seconds=60)
    assert bytes(job.payload) == b'{"rows":7}'
    [entry] = schedules.history("a")
    assert (entry.instant, entry.tick.outcome, entry.tick.job_id) == (job.scheduled_for, FIRED, job.id)


def test_the_worker_stores_the_result_in_its_settlement(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a"))
    advance_to(lab, 60)
    runner.tick()
    run(lab, "a@20260101T000100Z")
    [entry] = schedules.history("a")
    assert entry.result == RunResult(state=JobState.COMPLETED, finished_us=to_us(lab.now()))
    advance_to(lab, 120)
    runner.tick()
    lease = lab.take("a@20260101T000200Z")
    dead = Abandon(lease=lease, reason=DeadReason.FAILED, record=lab.record())
    assert lab.engine.settle([carrying(dead, KEYRING.open(lease.wire))]) == [True]
    assert schedules.history("a")[0].result == RunResult(
        state=JobState.DEAD, finished_us=to_us(lab.now()), reason="failed"
    )


def test_a_result_that_no_worker_stored_is_stored_at_the_next_tick(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("a"))
    advance_to(lab, 60)
    runner.tick()
    lab.engine.cancel("a@20260101T000100Z", "not today")
    cancelled_us = to_us(lab.now())
    advance_to(lab, 120)
    runner.tick()
    assert schedules.history("a")[1].result == RunResult(
        state=JobState.CANCELLED, finished_us=cancelled_us, reason="not today"
    )


def test_the_history_shows_at_once_that_a_job_was_cancelled(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a"))
    advance_to(lab, 60)
    runner.tick()
    assert schedules.history("a")[0].result is None
    lab.engine.cancel("a@20260101T000100Z", "not today")
    [view] = schedules.views(["a"], history=1)
    result = view.history[0].result
    assert result is not None
    assert (result.state, result.reason) == (JobState.CANCELLED, "not today")


def test_any_number_of_runners_fire_once(lab: Lab, schedules: Schedules) -> None:
    schedules.save(schedule("a"))
    schedules.save(schedule("b"))
    runners = [CronRunner(lab.engine, KEYRING) for _ in range(4)]
    for one in runners:
        one.tick()
    advance_to(lab, 60)
    assert [len(one.tick()) for one in runners] == [2, 0, 0, 0]


def test_a_runner_that_lost_the_race_fires_the_rest(
    lab: Lab, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.save(schedule("a"))
    schedules.save(schedule("b", HOURLY))
    slow, fast = CronRunner(lab.engine, KEYRING), CronRunner(lab.engine, KEYRING)
    advance_to(lab, 3600)
    commit = slow._commit  # pyright: ignore[reportPrivateUsage] - between its reads and its commit

    def late(*arguments: Any) -> list[Happened]:
        monkeypatch.undo()
        assert in_short(fast.tick(only=["a"])) == [
            ("a", MISSED, 3240, 54),
            ("a", MISSED, 3540, 5),
            ("a", FIRED, 3600, 1),
        ]
        return commit(*arguments)

    monkeypatch.setattr(slow, "_commit", late)
    assert in_short(slow.tick()) == [("b", FIRED, 3600, 1)]


def test_a_disabled_schedule_is_skipped_with_the_reason_until_it_is_enabled(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("a"))
    schedules.disable("a", reason="migration", by="ann")
    advance_to(lab, 60)
    [skipped] = runner.tick()
    assert (skipped.outcome, skipped.reason) == (SKIPPED, "disabled by ann: migration")
    schedules.enable("a")
    advance_to(lab, 120)
    assert in_short(runner.tick()) == [("a", FIRED, 120, 1)]


def test_a_switch_wins_over_the_definition(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", enabled=False))
    advance_to(lab, 60)
    assert runner.tick()[0].reason == "disabled in its definition"
    schedules.enable("a")
    advance_to(lab, 120)
    assert in_short(runner.tick()) == [("a", FIRED, 120, 1)]
    with pytest.raises(DefinitionError, match=r"there is no schedule 'b'; known schedules: a"):
        schedules.disable("b")


def test_a_missed_schedule_is_a_problem_with_a_count(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", HOURLY))
    advance_to(lab, 2 * 3600 + 400)
    assert in_short(runner.tick()) == [("a", MISSED, 2 * 3600, 2)]
    [view] = schedules.views(["a"])
    assert view.problem is not None
    assert (view.problem.kind, view.problem.count) == (ProblemKind.MISSED, 2)
    advance_to(lab, 3 * 3600 + 400)
    runner.tick()
    assert schedules.views(["a"])[0].problem == msgspec.structs.replace(
        view.problem, count=3, at_us=to_us(START + timedelta(hours=3))
    )


def test_an_instant_that_a_later_one_replaced_is_no_problem(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a"))
    advance_to(lab, 125)
    assert in_short(runner.tick()) == [("a", MISSED, 60, 1), ("a", FIRED, 120, 1)]
    assert schedules.views(["a"])[0].problem is None


def test_a_schedule_runs_only_in_its_environments(lab: Lab, schedules: Schedules) -> None:
    schedules.save(schedule("a", environments=("production",)))
    advance_to(lab, 60)
    assert CronRunner(lab.engine, KEYRING, environment="staging").tick() == []
    assert schedules.history("a") == []
    assert in_short(CronRunner(lab.engine, KEYRING, environment="production").tick()) == [("a", FIRED, 60, 1)]


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE])
def test_a_run_waits_for_the_previous_one_or_is_skipped(
    lab: Lab, schedules: Schedules, runner: CronRunner, overlap: Overlap
) -> None:
    schedules.save(schedule("a", overlap=overlap))
    advance_to(lab, 60)
    runner.tick()
    lease = lab.take("a@20260101T000100Z")
    advance_to(lab, 110)
    lab.engine.renew(lease)
    advance_to(lab, 120)
    [second] = runner.tick()
    if overlap is Overlap.SKIP:
        assert (second.outcome, second.reason) == (SKIPPED, "the run of 2026-01-01 00:01 UTC has not finished")
        lab.engine.ack(lease)
        advance_to(lab, 180)
        assert in_short(runner.tick()) == [("a", FIRED, 180, 1)]
    else:
        assert lab.view("a@20260101T000200Z").state is JobState.BLOCKED
        lab.engine.abandon(lease, DeadReason.FAILED)
        assert lab.view("a@20260101T000200Z").state is JobState.PENDING


def test_a_child_waits_for_its_parent_of_the_same_instant(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("import", Every(120)))
    schedules.save(schedule("report", depends_on=("import",)))
    advance_to(lab, 60)
    assert in_short(runner.tick()) == [("report", FIRED, 60, 1)]
    assert lab.view("report@20260101T000100Z").state is JobState.PENDING
    advance_to(lab, 120)
    assert in_short(runner.tick()) == [("import", FIRED, 120, 1), ("report", FIRED, 120, 1)]
    assert lab.view("report@20260101T000200Z").after == ("import@20260101T000200Z",)
    assert lab.view("report@20260101T000200Z").state is JobState.BLOCKED
    run(lab, "report@20260101T000100Z", "import@20260101T000200Z", "report@20260101T000200Z")


def test_a_child_is_skipped_with_its_parent_and_cancelled_if_it_fails(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("import"))
    schedules.save(schedule("report", depends_on=("import",)))
    schedules.disable("import", reason="broken")
    advance_to(lab, 60)
    reason = "its parent 'import' did not run: disabled: broken"
    assert [(one.outcome, one.reason) for one in runner.tick()] == [(SKIPPED, "disabled: broken"), (SKIPPED, reason)]
    schedules.enable("import")
    advance_to(lab, 120)
    runner.tick()
    lab.engine.abandon(lab.take("import@20260101T000200Z"), DeadReason.FAILED)
    assert lab.view("report@20260101T000200Z").state is JobState.CANCELLED


def test_a_child_waits_for_a_parent_that_another_runner_fired(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("import"))
    schedules.save(schedule("report", depends_on=("import",)))
    advance_to(lab, 60)
    # Limited to the parent, as if that runner had been killed before its next commit.
    assert in_short(runner.tick(only=["import"])) == [("import", FIRED, 60, 1)]
    assert in_short(CronRunner(lab.engine, KEYRING).tick()) == [("report", FIRED, 60, 1)]
    assert lab.view("report@20260101T000100Z").after == ("import@20260101T000100Z",)
    advance_to(lab, 120)
    runner.tick(only=["import"])
    lab.engine.cancel("import@20260101T000200Z", "no")
    [skipped] = CronRunner(lab.engine, KEYRING).tick()
    assert (skipped.outcome, skipped.reason) == (SKIPPED, "its parent 'import' did not run: its job is cancelled")
    advance_to(lab, 180)
    runner.tick(only=["import"])
    run(lab, "import@20260101T000100Z", "report@20260101T000100Z", "import@20260101T000300Z")
    CronRunner(lab.engine, KEYRING).tick()
    assert lab.view("report@20260101T000300Z").after == ()


def test_jitter_delays_the_job_and_not_the_entry(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", jitter=30.0))
    advance_to(lab, 60)
    [happened] = runner.tick()
    assert happened.outcome is FIRED
    delay = (lab.view("a@20260101T000100Z").due_at - happened.instant).total_seconds()
    assert 0 < delay < 30


def test_an_inline_job_is_in_the_private_queue_and_has_one_attempt(lab: Lab, schedules: Schedules) -> None:
    schedules.save(schedule("a", inline=True))
    schedules.save(schedule("b", inline=True, environments=("production",)))
    retried = Schedule(name="c", definition=JobDefinition(handler="x", max_retries=2), timing=MINUTELY, inline=True)
    schedules.save(retried)
    advance_to(lab, 60)
    assert len(CronRunner(lab.engine, KEYRING, environment="production").tick()) == 3
    jobs = {job.schedule: (job.queue, job.max_retries) for job in lab.engine.find(JobFilter()).jobs}
    assert jobs == {
        "a": ("schedules-inline", 0),
        "b": (inline_queue("production"), 0),
        "c": ("schedules-inline", 2),
    }


def test_runs_that_are_caught_up_become_one_job_each(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", HOURLY, catch_up=CatchUp.ALL, catch_up_limit=2))
    advance_to(lab, 3 * 3600 + 60)
    assert in_short(runner.tick()) == [("a", MISSED, 3600, 1), ("a", LATE, 7200, 1), ("a", LATE, 10_800, 1)]
    assert sorted(lab.ids()) == ["a@20260101T020000Z", "a@20260101T030000Z"]


def test_a_long_backlog_takes_several_ticks(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", Every(1)))
    advance_to(lab, 2500)
    ticks = [in_short(runner.tick()) for _ in range(4)]
    assert [one[-1][1] for one in ticks[:3]] == [MISSED, MISSED, FIRED]
    assert sum(one[3] for tick in ticks for one in tick) == 2500
    assert ticks[3] == []


# Altered schedules.


def store(lab: Lab, name: str, template: bytes) -> None:
    """Write a template as someone with access to the database, but without the key, would."""
    stored = StoredSchedule(template=template.decode(errors="replace"), source=ScheduleSource.STORED)
    lab.engine.state.write(
        [Put(kind=SCHEDULES, key=name, value=msgspec.json.encode(stored)), Put(kind=CHANGES, key="all")]
    )


def template_of(lab: Lab, name: str) -> bytes:
    [cell] = lab.engine.state.read(SCHEDULES, [name])
    return msgspec.json.decode(cell.value, type=StoredSchedule).template.encode()


def alterations(lab: Lab, schedules: Schedules) -> dict[str, bytes]:
    """Templates that must not be fired under the name `a`."""
    schedules.save(schedule("a", payload="old"))
    old = template_of(lab, "a")
    schedules.save(schedule("a", payload="new"))
    genuine = template_of(lab, "a")
    schedules.save(schedule("b"))
    other = Keyring([SigningKey(b"the key of the laboratory, 32 bytes", installation="staging")])
    return {
        "altered": genuine.replace(b"every 1m", b"every 9m").replace(b'"new"', b'"bad"'),
        "renamed": template_of(lab, "b"),
        "replayed": old,
        "of another installation": seal_template(schedule("a"), 2**60, other),
        "unsigned": genuine[: genuine.rindex(b',"_sig"')] + b"}",
        "a message": lab.envelope("a").wire,
        "empty": b"",
    }


@pytest.mark.parametrize(
    "kind", ["altered", "renamed", "replayed", "of another installation", "unsigned", "a message", "empty"]
)
@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_template_that_was_not_signed_for_this_schedule_never_fires(
    lab: Lab, schedules: Schedules, runner: CronRunner, kind: str, is_fresh: bool, caplog: pytest.LogCaptureFixture
) -> None:
    template = alterations(lab, schedules)[kind]
    if not is_fresh:
        runner.tick()
    store(lab, "a", template)
    for minute in (1, 2, 3):
        advance_to(lab, 60 * minute)
        runner.step()
    assert {job.schedule for job in lab.engine.find(JobFilter()).jobs} == {"b"}
    assert schedules.history("a") == []
    problem = schedules.views(["a"])[0].problem
    assert problem is not None
    assert problem.kind is ProblemKind.ALTERED
    assert len([line for line in caplog.messages if "schedule 'a' cannot be fired" in line]) == 1


@pytest.mark.parametrize("kind", ["altered", "replayed"])
def test_an_altered_schedule_is_not_run_on_request(
    lab: Lab, schedules: Schedules, runner: CronRunner, kind: str
) -> None:
    store(lab, "a", alterations(lab, schedules)[kind])
    with pytest.raises(DefinitionError, match="there is no schedule 'a' that can be run"):
        runner.run_now("a")
    problem = schedules.views(["a"])[0].problem
    assert problem is not None
    assert problem.kind is ProblemKind.ALTERED


@pytest.mark.parametrize("kind", ["altered", "replayed"])
def test_an_altered_schedule_fires_again_once_it_is_replaced(
    lab: Lab, schedules: Schedules, runner: CronRunner, kind: str
) -> None:
    store(lab, "a", alterations(lab, schedules)[kind])
    advance_to(lab, 60)
    runner.step()
    schedules.save(schedule("a", payload="new"))
    assert schedules.views(["a"])[0].problem is None
    advance_to(lab, 120)
    runner.step()
    assert [job.id for job in lab.engine.find(JobFilter()).jobs if job.schedule == "a"] == ["a@20260101T000200Z"]


def test_a_template_with_an_unknown_key_is_left_to_other_runners(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    theirs = Keyring([SigningKey(b"another key of another program, 32 b")])
    Schedules(lab.engine, theirs).save(schedule("a"))
    advance_to(lab, 60)
    assert runner.tick() == []
    problem = schedules.views(["a"])[0].problem
    assert problem is not None
    assert problem.kind is ProblemKind.UNREADABLE
    both = Keyring([*KEYRING.keys, *theirs.keys])
    assert in_short(CronRunner(lab.engine, both).tick()) == [("a", FIRED, 60, 1)]


def test_a_child_waits_until_a_runner_that_can_read_its_parent_fires_both(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    ours, theirs = KEYRING.keys[0], SigningKey(b"another key of another program, 32 b")
    Schedules(lab.engine, Keyring([theirs])).save(schedule("parent"))
    newer = CronRunner(lab.engine, Keyring([ours, theirs]))
    newer.schedules.save(schedule("child", depends_on=("parent",)))
    advance_to(lab, 60)
    assert runner.tick() == []
    assert schedules.history("child") == []
    assert in_short(newer.tick()) == [("parent", FIRED, 60, 1), ("child", FIRED, 60, 1)]


def test_jobs_that_are_run_now_wait_for_those_of_their_parents(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("import"))
    schedules.save(schedule("report", depends_on=("import",)))
    jobs = runner.run_now("report", "import")
    assert lab.view(jobs["report"]).after == (jobs["import"],)
    assert lab.view(runner.run_now("report")["report"]).after == ()


def test_without_schedules_the_clock_of_the_engine_is_not_read(
    lab: Lab, runner: CronRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.step()
    reads: list[str] = []
    read = lab.engine.state.read

    def noted(kind: str, *given: Any, **options: Any) -> list[Cell]:
        reads.append(kind)
        return read(kind, *given, **options)

    monkeypatch.setattr(lab.engine.state, "read", noted)
    monkeypatch.setattr(lab.engine, "describe", lambda: pytest.fail("the clock was read"))
    for number in range(1, 11):
        advance_to(lab, 6 * number)
        runner.step()
    assert reads == [CHANGES] * 10


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_schedule_without_a_cursor_fires_from_now_on(
    lab: Lab, schedules: Schedules, runner: CronRunner, is_damaged: bool
) -> None:
    schedules.save(schedule("a"))
    cell = Put(kind=CURSORS, key="a", value=b"{") if is_damaged else Drop(kind=CURSORS, key="a")
    lab.engine.state.write([cell])
    advance_to(lab, 90)
    assert runner.tick() == []
    advance_to(lab, 120)
    assert in_short(runner.tick()) == [("a", FIRED, 120, 1)]


# Failures.


def test_a_definition_that_cannot_be_enqueued_does_not_stop_the_others(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    for name in ("a", "b", "c"):
        schedules.save(schedule(name))
    # Another job has the id that the job of `b` would get.
    lab.put("b@20260101T000100Z")
    advance_to(lab, 60)
    happened = {one.schedule: one for one in runner.tick()}
    assert {name: one.outcome for name, one in happened.items()} == {"a": FIRED, "b": MISSED, "c": FIRED}
    assert "its job could not be enqueued: job 'b@20260101T000100Z' already exists" in happened["b"].reason
    problem = schedules.views(["b"])[0].problem
    assert problem is not None
    assert problem.kind is ProblemKind.FAILED
    advance_to(lab, 120)
    assert {one.outcome for one in runner.tick()} == {FIRED}


def test_a_schedule_that_keeps_failing_fills_no_memory(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("b"))
    sizes: set[int] = set()
    for minute in (1, 2, 3):
        lab.put(f"b@20260101T000{minute}00Z")
        advance_to(lab, 60 * minute)
        runner.step()
        sizes.add(len(runner._reported))  # pyright: ignore[reportPrivateUsage]
    assert sizes == {1}


@pytest.mark.parametrize("failing", ["accept", "find"])
def test_a_schedule_that_the_engine_refuses_does_not_stop_the_others(
    lab: Lab, schedules: Schedules, runner: CronRunner, failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        schedules.save(schedule(name))
    advance_to(lab, 60)
    runner.step()
    advance_to(lab, 120)
    with pytest.MonkeyPatch.context() as patched:
        call = getattr(lab.engine, failing)

        def refusing(asked: Any, **options: Any) -> Any:
            ids = asked.ids if isinstance(asked, JobFilter) else [one.id for one in asked]
            if any(id.startswith("b@") for id in ids):
                # `find` reads an id from a cursor, which is not signed and may be damaged.
                raise BackendError("the packet is too large") if failing == "accept" else ValueError("a NUL")
            return call(asked, **options)

        patched.setattr(lab.engine, failing, refusing)
        assert 0 < runner.step() <= 1
    assert [len(schedules.history(name)) for name in ("a", "b", "c")] == [2, 1, 2]
    assert len([line for line in caplog.messages if "schedule 'b' cannot be fired: " in line]) == 1
    advance_to(lab, 149)
    runner.step()
    assert len(schedules.history("b")) == 1
    advance_to(lab, 150)
    runner.step()
    assert schedules.history("b")[0].tick.outcome is LATE


def test_an_engine_that_is_unavailable_delays_the_schedules(
    lab: Lab,
    schedules: Schedules,
    runner: CronRunner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedules.save(schedule("a"))
    runner.step()
    advance_to(lab, 60)
    with monkeypatch.context() as patched:

        def unavailable(*_: object, **__: object) -> None:
            raise BackendUnavailable("no route to host")

        patched.setattr(lab.engine, "accept", unavailable)
        assert [runner.step() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
        # Ten hours later.
        assert {runner.step() for _ in range(1200)} == {30}
    assert "schedules cannot be fired: no route to host; retrying in 30 s" in caplog.text
    advance_to(lab, 65)
    runner.step()
    assert [entry.tick.outcome for entry in schedules.history("a")] == [FIRED]


# Changes.


def test_changes_are_noticed_within_a_second(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", HOURLY))
    runner.step()
    schedules.save(schedule("a"))
    schedules.save(schedule("b"))
    assert runner.next_at == START + timedelta(hours=1)
    lab.advance(1)
    runner.step()
    assert runner.next_at == START + timedelta(minutes=1)
    assert schedules.remove("a")
    assert not schedules.remove("a")
    advance_to(lab, 60)
    runner.step()
    assert lab.ids() == ["b@20260101T000100Z"]


def test_a_new_timing_applies_from_now_on_and_the_old_one_is_accounted_for(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("a", HOURLY))
    advance_to(lab, 3700)
    schedules.save(schedule("a", MINUTELY))
    advance_to(lab, 3720)
    assert in_short(runner.tick()) == [("a", FIRED, 3720, 1)]
    fired, skipped = schedules.history("a")
    assert fired.tick.outcome is FIRED
    assert (skipped.tick.outcome, skipped.tick.reason) == (SKIPPED, "the schedule was changed before it ran")


def test_a_schedule_that_is_new_in_an_environment_applies_from_now_on(lab: Lab, schedules: Schedules) -> None:
    runner = CronRunner(lab.engine, KEYRING, environment="staging")
    schedules.save(schedule("a", HOURLY, environments=("production",), catch_up=CatchUp.ALL))
    advance_to(lab, 24 * 3600 + 1)
    schedules.save(schedule("a", HOURLY, environments=("production", "staging"), catch_up=CatchUp.ALL))
    assert runner.tick() == []
    [entry] = schedules.history("a")
    assert (entry.tick.outcome, entry.tick.count, entry.tick.reason) == (
        SKIPPED,
        24,
        "the schedule was changed before it ran",
    )
    advance_to(lab, 25 * 3600)
    assert in_short(runner.tick()) == [("a", FIRED, 25 * 3600, 1)]


def test_a_new_payload_leaves_the_timing_alone(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a", HOURLY, payload=1))
    advance_to(lab, 3605)
    assert schedules.save(schedule("a", HOURLY, payload=2))
    assert not schedules.save(schedule("a", HOURLY, payload=2))
    assert in_short(runner.tick()) == [("a", FIRED, 3600, 1)]
    assert bytes(lab.view("a@20260101T010000Z").payload) == b"2"


def test_parents_are_checked_when_a_schedule_is_saved_or_removed(schedules: Schedules) -> None:
    with pytest.raises(DefinitionError, match="schedule 'a': it depends on 'b', which does not exist"):
        schedules.save(schedule("a", depends_on=("b",)))
    schedules.save(schedule("b"))
    schedules.save(schedule("a", depends_on=("b",)))
    with pytest.raises(DefinitionError, match="depend on each other"):
        schedules.save(schedule("b", depends_on=("a",)))
    with pytest.raises(DefinitionError, match="schedule 'b' cannot be removed, because 'a' depends on it"):
        schedules.remove("b")


# Builds.


def defined(*names: str, build: str, payload: object = None, origin: str = "shop") -> Definitions:
    return Definitions(
        source=ScheduleSource.CODE,
        origin=origin,
        build=build,
        schedules=tuple(schedule(name, payload=payload) for name in names),
    )


def test_the_newest_build_defines_the_schedules(lab: Lab, schedules: Schedules) -> None:
    old, new = defined("a", "b", build="1", payload=1), defined("a", "c", build="2", payload=2)
    assert schedules.reconcile(old).saved == ("a", "b")
    lab.advance(10)
    done = schedules.reconcile(new)
    assert (done.saved, done.vanished, done.refused) == (("a", "c"), ("b",), ())
    lab.advance(10)
    assert not schedules.reconcile(old).is_newest
    assert {view.name: view.build for view in schedules.views()} == {"a": "2", "b": "1", "c": "2"}
    # The newer one is still in use, even if the older one starts again later.
    lab.advance(100)
    schedules.beat(new)
    lab.advance(100)
    assert not schedules.reconcile(old).is_newest
    # It is rolled back.
    lab.advance(100)
    done = schedules.reconcile(old)
    assert (done.is_newest, done.saved, done.vanished) == (True, ("a", "b"), ("c",))
    # And deployed again.
    assert schedules.reconcile(new).is_newest


def test_a_vanished_schedule_is_skipped_and_shown_until_it_is_removed(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.reconcile(defined("a", "b", build="1"))
    schedules.reconcile(defined("a", build="2"))
    advance_to(lab, 60)
    happened = {one.schedule: one for one in runner.tick()}
    assert (happened["b"].outcome, happened["b"].reason) == (SKIPPED, "no longer defined in the code")
    assert happened["a"].outcome is FIRED
    view = schedules.views(["b"])[0]
    assert view.vanished_at is not None
    assert view.refusal == "no longer defined in the code"
    assert schedules.reconcile(defined("a", "b", build="3")).saved == ("b",)
    assert schedules.views(["b"])[0].vanished_at is None


def test_without_a_build_the_schedules_themselves_are_the_build() -> None:
    one, same, other = defined("a", build=""), defined("a", build=""), defined("a", build="", payload=1)
    assert one.build == same.build != other.build


def test_a_name_that_is_defined_elsewhere_is_refused_and_the_others_are_stored(schedules: Schedules) -> None:
    schedules.save(schedule("a"))
    done = schedules.reconcile(defined("a", "b", build="1"))
    assert done.saved == ("b",)
    assert done.refused[0].startswith("schedule 'a' is already defined at run time; choose another name")
    with pytest.raises(DefinitionError, match="schedule 'b' is already defined in the code of 'shop'"):
        schedules.save(schedule("b", payload=1))
    assert "in the code of 'shop'" in schedules.reconcile(defined("b", build="1", origin="blog")).refused[0]


def test_a_runner_stores_what_its_program_defines_and_reports_its_build(lab: Lab, schedules: Schedules) -> None:
    new = CronRunner(lab.engine, KEYRING, definitions=[defined("a", build="2")])
    new.step()
    assert [view.name for view in schedules.views()] == ["a"]
    old = CronRunner(lab.engine, KEYRING, definitions=[defined("b", build="1")])
    lab.engine.state.write([Put(kind="schedule-builds", key="shop/1", value=b'{"since_us":1}')])
    old.step()
    for _ in range(10):
        lab.advance(29)
        new.step()
        old.step()
    assert {view.name for view in schedules.views()} == {"a"}
    for _ in range(6):
        lab.advance(29)
        old.step()
    assert {view.name: view.vanished_at is None for view in schedules.views()} == {"a": False, "b": True}


def test_definitions_that_cannot_be_stored_do_not_stop_the_others(
    lab: Lab, schedules: Schedules, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    schedules.save(schedule("a"))
    runner = CronRunner(
        lab.engine, KEYRING, definitions=[defined("b", build="1"), defined("c", build="1", origin="blog")]
    )
    reconcile = runner.schedules.reconcile

    def broken(what: Definitions) -> Any:
        if what.origin == "shop":
            raise RuntimeError("a bug")
        return reconcile(what)

    monkeypatch.setattr(runner.schedules, "reconcile", broken)
    runner.step()
    advance_to(lab, 60)
    runner.step()
    assert sorted(lab.ids()) == ["a@20260101T000100Z", "c@20260101T000100Z"]
    assert "schedules defined in shop could not be stored; retrying in 30 s" in caplog.text


def test_definitions_are_compared_again_only_after_a_change(
    lab: Lab, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CronRunner(lab.engine, KEYRING, definitions=[defined("a", build="1")])
    compared: list[str] = []
    reconcile = runner.schedules.reconcile

    def counting(what: Definitions) -> Any:
        compared.append(what.origin)
        return reconcile(what)

    monkeypatch.setattr(runner.schedules, "reconcile", counting)
    for _ in range(10):
        runner.step()
        lab.advance(30)
    assert compared == ["shop"]
    schedules.remove("a")
    runner.step()
    assert compared == ["shop"] * 2
    assert [view.name for view in schedules.views()] == ["a"]


# The clock and the cost.


def test_the_loop_never_sleeps_past_the_next_instant(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    assert runner.step() == 5
    schedules.save(schedule("a"))
    lab.advance(5)
    assert 0 < runner.step() <= 1
    while lab.now() < START + timedelta(minutes=10):
        pause = runner.step()
        assert pause > 0
        assert runner.next_at is not None
        assert lab.now() + timedelta(seconds=pause) <= runner.next_at + timedelta(milliseconds=1)
        lab.advance(pause)
    fired = [entry for entry in schedules.history("a", 100) if entry.tick.outcome is FIRED]
    assert len(fired) in (9, 10)
    assert all(entry.tick.late_s == 0 for entry in fired)


def test_a_clock_that_is_set_back_fires_nothing_twice(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("a"))
    advance_to(lab, 120)
    runner.tick()
    lab.set_back(90)
    for _ in range(40):
        lab.advance(runner.step())
    assert len(schedules.history("a")) == len({entry.instant for entry in schedules.history("a")})
    advance_to(lab, 180)
    runner.step()
    assert schedules.history("a")[0].instant == START + timedelta(minutes=3)


def test_a_clock_that_jumps_forward_is_noticed_within_half_a_minute(
    lab: Lab, schedules: Schedules, runner: CronRunner
) -> None:
    schedules.save(schedule("a", HOURLY))
    runner.step()
    # The wall clock alone: the monotonic one does not move.
    lab.set_back(-(3600 + 200))
    waited = 0.0
    while not schedules.history("a"):
        pause = runner.step()
        lab.advance(pause)
        waited += pause
        assert waited < 32
    assert schedules.history("a")[0].tick.outcome is LATE


def test_a_run_of_the_loop_stops_when_it_is_asked_to(runner: CronRunner) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    runner.run(wait)
    assert waits == [0, 5, 5]


def test_a_preview_changes_nothing(lab: Lab, schedules: Schedules, runner: CronRunner) -> None:
    schedules.save(schedule("import"))
    schedules.save(schedule("report", depends_on=("import",)))
    later = START + timedelta(minutes=1)
    expected = [("import", FIRED, 60, 1), ("report", FIRED, 60, 1)]
    assert in_short(runner.preview(later)) == expected
    assert lab.ids() == []
    assert schedules.history("import") == []
    assert in_short(runner.tick(later)) == expected


def test_many_schedules_are_fired_in_batches(lab: Lab, schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number:04}" for number in range(2 * AT_ONCE + 1)]
    schedules.reconcile(defined(*names, build="1"))
    runner = CronRunner(lab.engine, KEYRING)
    runner.tick()
    calls = {"accept": 0, "read": 0}

    def count(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, counting)

    count(lab.engine, "accept")
    count(lab.engine.state, "read")
    advance_to(lab, 60)
    assert len(runner.tick()) == len(names)
    assert calls == {"accept": 3, "read": 9}
    calls["read"] = 0
    runner.step()
    for _ in range(20):
        lab.advance(1)
        runner.step()
    assert calls == {"accept": 3, "read": 21}


def test_ledger_keys_sort_the_newest_first() -> None:
    keys = [tick_key("a", us) for us in (0, 1, 10**15, 2**62)]
    assert keys == sorted(keys, reverse=True)
