"""`JobKit.travel` and its assertions: schedules fire in the time of the test."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast, JobContext
from holdfast.config import Settings
from holdfast.cron.scheduler import Scheduler
from holdfast.testing import JobKit

RAN: list[tuple[str, object]] = []


@pytest.fixture
def app(tmp_path: Path) -> Holdfast:
    RAN.clear()
    hf = Holdfast("sqlite:///real/jobs.db", settings=Settings(), directory=tmp_path)

    @hf.job(cron="0 1 * * *", timezone="Europe/Berlin")
    def nightly(context: JobContext) -> None:
        RAN.append(("nightly", context.scheduled_for))

    @hf.job
    def step(name: str, context: JobContext) -> None:
        RAN.append((name, context.schedule))

    @hf.schedules
    def register(scheduler: Scheduler) -> None:
        scheduler.define("step", {"name": "child"}).named("report").daily_at("06:00").depends_on("import")
        scheduler.define("step", {"name": "parent"}).named("import").every("6h")
        scheduler.define("step", {"name": "inline"}).named("sweep").every("12h").inline().environments("production")

    return hf


@pytest.fixture
def kit(app: Holdfast) -> Iterator[JobKit]:
    with JobKit(app) as kit:
        yield kit


def test_schedules_fire_in_the_time_of_the_test_and_their_jobs_run(kit: JobKit) -> None:
    before = kit.now()
    assert kit.travel("1 day") == {"succeeded": 6}
    assert kit.now() - before >= timedelta(days=1)
    [(_, instant)] = [one for one in RAN if one[0] == "nightly"]
    assert isinstance(instant, datetime)
    assert before < instant <= kit.now()
    assert [one for one in RAN if one[1] == "import"] == [("parent", "import")] * 4
    kit.assert_enqueued("step", {"name": "child"}, count=1)


def test_a_child_runs_after_its_parent_of_the_same_instant(kit: JobKit) -> None:
    kit.travel("1 day")
    child = RAN.index(("child", "report"))
    assert RAN[child - 1] == ("parent", "import")


def test_each_instant_is_run_once_however_the_time_is_divided(kit: JobKit) -> None:
    for _ in range(24):
        kit.travel("1h")
    assert RAN.count(("parent", "import")) == 4


def test_only_those_of_the_environment_run(kit: JobKit) -> None:
    kit.travel("1 day", environment="production")
    assert RAN.count(("inline", "sweep")) == 2
    kit.assert_scheduled("sweep", environment="production")
    kit.refute_scheduled("sweep")


def test_jobs_that_are_not_scheduled_run_when_they_are_due(kit: JobKit, app: Holdfast) -> None:
    app.define("step", {"name": "late"}).delay("2h").dispatch()
    app.define("step", {"name": "later"}).delay("2 d").dispatch()
    kit.travel("3h")
    assert ("late", None) in RAN
    assert ("later", None) not in RAN


def test_a_schedule_that_is_saved_in_the_test_fires_and_a_paused_one_does_not(kit: JobKit, app: Holdfast) -> None:
    app.schedule("dynamic").define("step", {"name": "dynamic"}).every("1h").save()
    kit.assert_scheduled("import")
    app.schedule("import").pause("vendor outage")
    kit.travel("6h")
    assert RAN.count(("dynamic", "dynamic")) == 6
    assert ("parent", "import") not in RAN
    with pytest.raises(AssertionError, match="schedule 'import' does not run: disabled: vendor outage"):
        kit.assert_scheduled("import")


def test_what_would_run_when_is_asserted_in_the_zone_of_the_schedule(kit: JobKit) -> None:
    schedule = kit.assert_scheduled("nightly", at=datetime(2027, 1, 10, 1, 0))
    assert schedule.timing.zone == "Europe/Berlin"
    kit.assert_scheduled("nightly", at=datetime(2027, 1, 10, 0, 0, tzinfo=UTC))
    kit.refute_scheduled("nightly", at=datetime(2027, 1, 10, 1, 0, tzinfo=UTC))
    with pytest.raises(
        AssertionError, match=r"'nightly' is not due at 2027-01-10 02:00:00\+01:00; its next times are \d{4}-"
    ):
        kit.assert_scheduled("nightly", at=datetime(2027, 1, 10, 2, 0))
    with pytest.raises(AssertionError, match="schedule 'nightly' runs at 2027-01-10 01:00:00"):
        kit.refute_scheduled("nightly", at=datetime(2027, 1, 10, 1, 0))


def test_an_unknown_schedule_is_suggested(kit: JobKit) -> None:
    with pytest.raises(AssertionError, match=r"there is no schedule 'nigthly'; did you mean 'nightly'\?"):
        kit.assert_scheduled("nigthly")
    kit.refute_scheduled("nigthly")


def test_a_job_that_fails_on_its_schedule_is_retried_on_the_way(tmp_path: Path) -> None:
    hf = Holdfast(settings=Settings(), directory=tmp_path)

    @hf.job(cron="0 * * * *", max_retries=1)
    def flaky(context: JobContext) -> None:
        if context.attempt == 1:
            raise ValueError("no")

    for inline in (False, True):
        with JobKit(hf, inline=inline) as kit:
            assert kit.travel("2h") == {"retried": 2, "succeeded": 2}


def test_a_schedule_that_a_job_saves_on_the_way_fires(kit: JobKit, app: Holdfast) -> None:
    @app.job(cron="0 * * * *")
    def planner() -> None:
        app.schedule("planned").define("step", {"name": "planned"}).every("30m").save()

    kit.travel("3h")
    assert RAN.count(("planned", "planned")) >= 4
