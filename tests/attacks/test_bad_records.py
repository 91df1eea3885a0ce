"""One bad record never stops a worker: its neighbours run, the commands show them, and it is not lost.

Each case damages the record of one job, or a row beside it, past the engine: as a bad disk, a backup restored by half
or a program in another language would. No case is expected to fail.
"""

import pytest

from ..surface.terminal import Terminal
from . import damage_mysql, damage_postgres, damage_redis, damage_sqlite
from .cases import BAD, BEFORE, MESSAGES, Case, Fate, Stage, case, parametrized
from .site import InMemory, Site, application, check_commands, check_waiting

CORPUS = {"sqlite": damage_sqlite, "postgres": damage_postgres, "mysql": damage_mysql, "redis": damage_redis}
REFUSED = {"postgres": damage_postgres.REFUSED, "mysql": damage_mysql.REFUSED}
FINISHED = (Stage.DONE, Stage.DEAD)

pytestmark = pytest.mark.timeout(20)
every_case = pytest.mark.parametrize(
    ("engine", "case"),
    [
        one
        for engine, damage in CORPUS.items()
        for one in parametrized(engine, damage.CASES, damage.IMPOSSIBLE, REFUSED.get(engine, frozenset()))
    ],
)
cases_for_a_worker = pytest.mark.parametrize(
    ("engine", "case"),
    [
        pytest.param(engine, case, id=f"{engine}: {case.name}")
        for engine, damage in CORPUS.items()
        for case in damage.CASES
        if case.with_worker
    ],
)

APP = """
from pathlib import Path
from holdfast import Holdfast
from holdfast.handlers import JobContext

hf = Holdfast()

@hf.job
def note(context: JobContext) -> str:
    with Path("ran").open("a") as ran:
        ran.write(context.id + "\\n")
    return "done"
"""


@pytest.mark.parametrize(
    ("engine", "case"),
    [
        pytest.param(engine, case, id=f"{engine}: {case.name}")
        for engine, names in REFUSED.items()
        for case in CORPUS[engine].CASES
        if case.name in names
    ],
)
def test_the_schema_refuses_what_no_worker_could_reach(site: Site, case: Case) -> None:
    with pytest.raises(Exception, match=r"(?i)check constraint|CONSTRAINT .* failed"):
        site.put(case)


@every_case
def test_a_worker_goes_on(site: Site, case: Case) -> None:
    site.put(case)
    site.work()
    site.check(case)


@every_case
def test_a_worker_that_claims_in_batches_goes_on(site: Site, case: Case) -> None:
    site.put(case)
    if case.stage is Stage.LEASED:
        site.repeat_the_claim()
    site.check_maintenance()
    site.work_in_batches()
    site.check(case)


@every_case
def test_commands_show_what_can_be_shown(site: Site, case: Case, terminal: Terminal) -> None:
    site.put(case)
    check_commands(terminal)
    if case.stage in FINISHED:
        check_waiting(terminal)


@every_case
def test_producers_and_operators_go_on(site: Site, case: Case) -> None:
    site.put(case)
    site.check_enqueueing()
    if case.stage in FINISHED:
        site.check_result()
    site.check_operating()
    site.check_maintenance()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_commands_mark_a_damaged_record(site: Site, terminal: Terminal) -> None:
    site.put(next(case for case in damage_sqlite.CASES if case.name == "accepted_at is a text"))
    shown = terminal("show", BAD, "--json").json
    assert shown["damaged"] is True
    assert "damaged" in shown["why"][0]
    assert "damaged record" in terminal("list", "--columns", "id,error").out
    assert terminal("show", BEFORE, "--json").json["damaged"] is False


@cases_for_a_worker
def test_a_worker_with_processes_goes_on(site: Site, case: Case, terminal: Terminal) -> None:
    site.put(case)
    terminal.write("app.py", APP)
    ended = terminal.program("worker", "start", "app", "--burst")
    assert ended.code == 0, ended.err
    site.ran += (terminal.project / "ran").read_text().split()
    site.check(case)


@pytest.mark.parametrize("wire", MESSAGES.values(), ids=MESSAGES)
def test_a_worker_of_the_memory_engine_goes_on(wire: bytes) -> None:
    """Only the engine reaches its records, but a producer may hand it any message."""
    hf, ran = application("memory:")
    with hf:
        site = Site(hf, InMemory(hf), ran)
        site.accept(wire)
        site.work()
        site.check(case("any message", Stage.WAITING, Fate.DIES))
