"""The registry checks schedules together: their names, their parents, cycles and backends."""

import pytest

from holdfast.cron.schedule import Schedule
from holdfast.cron.scheduler import Scheduler
from holdfast.cron.timing import Every
from holdfast.definition import JobDefinition
from holdfast.errors import DefinitionError


def add(scheduler: Scheduler, name: str, *parents: str, queue: str | None = None) -> None:
    definition = JobDefinition(handler="report", queue=queue)
    scheduler.add(Schedule(name=name, definition=definition, timing=Every(60), depends_on=parents))


def test_schedules_are_listed_as_defined_and_executed_parents_first() -> None:
    scheduler = Scheduler()
    scheduler.define("c").depends_on("b").hourly()
    scheduler.define("b").hourly().depends_on("a")
    scheduler.define("a", {"rows": 1}).hourly()
    assert [one.name for one in scheduler.definitions()] == ["c", "b", "a"]
    assert [one.name for one in scheduler.execution_order()] == ["a", "b", "c"]
    scheduler.clear()
    assert scheduler.definitions() == ()


def test_two_schedules_cannot_have_one_name() -> None:
    scheduler = Scheduler()
    scheduler.define("report").hourly()
    scheduler.define("report").daily()
    with pytest.raises(DefinitionError, match=r"two schedules are named 'report'; .*named\(\.\.\.\)"):
        scheduler.definitions()


def test_an_unknown_parent_is_refused_with_a_suggestion() -> None:
    scheduler = Scheduler()
    add(scheduler, "import")
    add(scheduler, "report", "imports")
    with pytest.raises(DefinitionError, match=r"schedule 'report': it depends on 'imports'.*did you mean 'import'"):
        scheduler.definitions()


def test_a_cycle_is_printed() -> None:
    scheduler = Scheduler()
    add(scheduler, "a", "c")
    add(scheduler, "b", "a")
    add(scheduler, "c", "b")
    with pytest.raises(DefinitionError, match=r"a → c → b → a|b → a → c → b|c → b → a → c"):
        scheduler.definitions()


def test_parents_are_in_the_same_backend() -> None:
    scheduler = Scheduler(lambda queue: "slow" if queue == "reports" else "default")
    add(scheduler, "import")
    add(scheduler, "report", "import", queue="reports")
    with pytest.raises(DefinitionError, match="backend 'slow' and cannot depend on 'import', which is in backend 'def"):
        scheduler.definitions()


def test_a_function_that_is_not_a_definition_is_refused_with_what_to_pass() -> None:
    def report() -> None: ...

    with pytest.raises(DefinitionError, match=r"report is not a job definition; pass report\.define\(\.\.\.\)"):
        Scheduler().schedule(report)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
