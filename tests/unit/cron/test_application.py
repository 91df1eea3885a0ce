"""Schedules of an application: in its code, at run time, and run inline."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Holdfast, JobContext, JobState
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.cron.scheduler import Scheduler
from holdfast.cron.timing import Cron
from holdfast.errors import BackendUnavailable, DefinitionError
from holdfast.values import JobFilter, TickOutcome
from holdfast.worker.schedules import ScheduleDaemon, ScheduleThread

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def hf(clock: ManualClock, tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast("memory://", settings=Settings(), clock=clock, directory=tmp_path) as app:
        yield app


def test_a_job_with_cron_is_scheduled_under_its_key(hf: Holdfast, clock: ManualClock) -> None:
    @hf.job(cron="*/5 * * * *", timezone="Europe/Berlin", queue="mail", key="cleanup")
    def clean(days: int = 7) -> None: ...

    [schedule] = hf.schedules.definitions()
    assert (schedule.name, schedule.timing) == ("cleanup", Cron("*/5 * * * *", "Europe/Berlin"))
    runner = hf.cron_runner()
    runner.step()
    clock.advance(300)
    runner.step()
    [job] = hf.backend().find(JobFilter()).jobs
    assert (job.id, job.queue, job.name) == ("cleanup@20260101T120500Z", "mail", "cleanup")


def test_a_handler_sees_its_schedule_and_instant(hf: Holdfast, clock: ManualClock) -> None:
    seen: list[tuple[str | None, datetime | None]] = []

    @hf.job(cron="0 * * * *")
    def clean(context: JobContext) -> None:
        seen.append((context.schedule, context.scheduled_for))

    runner = hf.cron_runner()
    runner.step()
    clock.advance(3600)
    [fired] = runner.tick()
    with hf.worker() as worker:
        hf.loop(worker, burst=True).run()
    assert seen == [(clean.key, NOON.replace(hour=13))]
    [entry] = hf.stored_schedules().history(clean.key)
    assert entry.tick.job_id == fired.job_id
    assert entry.result is not None
    assert entry.result.state is JobState.COMPLETED


def test_a_job_that_commits_its_own_transaction_stores_its_result_with_it(clock: ManualClock, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Holdfast(url, settings=Settings(), clock=clock, directory=tmp_path, signing_key="k" * 32) as hf:

        @hf.job(cron="0 * * * *")
        def clean(context: JobContext) -> None:
            context.transaction()

        runner = hf.cron_runner()
        runner.step()
        clock.advance(3600)
        runner.step()
        with hf.worker() as worker:
            hf.loop(worker, burst=True).run()
        [entry] = hf.stored_schedules().history(clean.key)
        assert entry.result is not None
        assert entry.result.state is JobState.COMPLETED


def test_a_job_with_cron_needs_defaults_and_a_valid_expression(hf: Holdfast) -> None:
    with pytest.raises(DefinitionError, match="a job with cron is called without arguments, so each needs a default"):

        @hf.job(cron="0 * * * *")
        def needs(days: int) -> None: ...

    with pytest.raises(DefinitionError, match="hour"):

        @hf.job(cron="0 25 * * *")
        def wrong() -> None: ...

    with pytest.raises(DefinitionError, match="timezone has no effect without cron"):

        @hf.job(timezone="Europe/Berlin")
        def alone() -> None: ...

    with pytest.raises(DefinitionError, match="its job cannot have unique"):

        @hf.job(cron="0 * * * *", unique=True)
        def once() -> None: ...


def test_registering_functions_are_called_once_when_the_schedules_are_needed(hf: Holdfast) -> None:
    calls: list[str] = []

    @hf.schedules
    def first(scheduler: Scheduler) -> None:
        calls.append("first")
        scheduler.define("report", {"kind": "sales"}).named("nightly").daily_at("01:00").depends_on("import")

    @hf.schedules
    def second(scheduler: Scheduler) -> None:
        calls.append("second")
        scheduler.define("import").daily_at("01:00")

    assert calls == []
    assert [one.name for one in hf.schedules.definitions()] == ["nightly", "import"]
    assert hf.schedules.definitions()
    assert calls == ["first", "second"]
    assert callable(first)
    assert callable(second)


def test_schedules_are_stored_in_the_backend_of_their_queue(clock: ManualClock, tmp_path: Path) -> None:
    with Holdfast(
        "memory://",
        backends={"other": "memory://"},
        routes={"slow": "other"},
        settings=Settings(),
        clock=clock,
        directory=tmp_path,
    ) as hf:
        hf.schedule("a").define("report").queue("slow").hourly().save()
        hf.schedule("b").define("report").hourly().save()
        assert [view.name for view in hf.stored_schedules("other").views()] == ["a"]
        assert [view.name for view in hf.stored_schedules().views()] == ["b"]
        hf.schedule("a").pause("not now", by="ann")
        assert hf.stored_schedules("other").views()[0].refusal == "disabled by ann: not now"

        @hf.job(cron="0 * * * *", queue="slow")
        def clean() -> None: ...

        assert [one.name for one in hf.declared_schedules("other").schedules] == [clean.key]
        assert hf.declared_schedules().schedules == ()


def test_a_schedule_is_created_changed_paused_and_removed_at_run_time(hf: Holdfast, clock: ManualClock) -> None:
    @hf.job
    def report(kind: str) -> None: ...

    made = hf.schedule("nightly").job(report, "sales").daily_at("13:00").owner("finance").save()
    assert made.name == "nightly"
    runner = hf.cron_runner()
    runner.step()
    clock.advance(3600)
    assert [one.outcome for one in runner.tick()] == [TickOutcome.FIRED]
    hf.schedule("nightly").pause()
    clock.advance(86_400)
    assert [one.outcome for one in runner.tick()] == [TickOutcome.SKIPPED]
    hf.schedule("nightly").resume()
    clock.advance(86_400)
    assert [one.outcome for one in runner.tick()] == [TickOutcome.FIRED]
    assert hf.schedule("nightly").remove()
    assert not hf.schedule("nightly").remove()
    with pytest.raises(DefinitionError, match="there is no schedule 'nightly'"):
        hf.schedule("nightly").pause()


def test_a_command_that_no_worker_would_run_is_refused(hf: Holdfast) -> None:
    with pytest.raises(DefinitionError, match="schedule 'backup': "):
        hf.schedule("backup").define("command", {"argv": ["rm", "-rf"]}).hourly().save()


def test_a_job_can_be_run_now(hf: Holdfast) -> None:
    hf.schedule("nightly").define("report", {"kind": "sales"}).daily().save()
    runner = hf.cron_runner()
    history = hf.backend().get(runner.run_now("nightly")["nightly"])
    assert history is not None
    job = history.job
    assert (job.schedule, job.scheduled_for, job.name) == ("nightly", None, "nightly")
    with pytest.raises(DefinitionError, match="there is no schedule 'daily' that can be run"):
        runner.run_now("daily")


def test_the_thread_of_a_worker_fires_until_it_is_stopped(tmp_path: Path) -> None:
    with Holdfast("memory://", settings=Settings(), directory=tmp_path) as hf:
        hf.schedule("a").define("report").every("1s").save()
        runner = hf.cron_runner()
        fired = threading.Event()
        tick = runner.tick

        def noticed() -> None:
            if tick():
                fired.set()

        runner.tick = noticed  # type: ignore[assignment,method-assign]
        with ScheduleThread(runner):
            assert fired.wait(30)
        stopped_at = len(hf.stored_schedules().history("a"))
        assert stopped_at >= 1


def test_a_daemon_runs_inline_jobs_with_one_attempt_and_records_how_they_ended(tmp_path: Path) -> None:
    with Holdfast("memory://", settings=Settings(), directory=tmp_path) as hf:
        attempts: list[int] = []

        @hf.job
        def failing(context: JobContext) -> None:
            attempts.append(context.attempt)
            daemon.stop()
            raise ValueError("broken")

        hf.schedule("inline").job(failing).every("1s").inline().save()
        runner = hf.cron_runner()
        daemon = ScheduleDaemon(runner, lambda queues: hf.loop(hf.worker(), queues))
        daemon.run()
        assert attempts == [1]
        entry = next(one for one in hf.stored_schedules().history("inline") if one.result is not None)
        assert entry.result is not None
        assert (entry.result.state, entry.result.reason) == (JobState.DEAD, "ValueError: broken")


def test_a_daemon_outlives_an_outage_while_it_runs_inline_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Holdfast("memory://", settings=Settings(), directory=tmp_path) as hf:

        @hf.job
        def quick() -> None:
            daemon.stop()

        hf.schedule("inline").job(quick).every("1s").inline().save()
        reap, outages = hf.backend().reap_expired, ["no route to host"]

        def unavailable_once() -> int:
            if outages:
                raise BackendUnavailable(outages.pop())
            return reap()

        monkeypatch.setattr(hf.backend(), "reap_expired", unavailable_once)
        daemon = ScheduleDaemon(hf.cron_runner(), lambda queues: hf.loop(hf.worker(), queues, burst=True))
        daemon.run()
        assert "inline jobs cannot be run: no route to host; retrying in 1 s" in caplog.text
        jobs = hf.backend().find(JobFilter()).jobs
        assert JobState.COMPLETED in {job.state for job in jobs}
