"""A worker as a program fires schedules: its children run all jobs, and the ledger records them."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, JobState
from holdfast.config import Settings
from holdfast.state.schedules import RunResult
from holdfast.values import JobFilter

from ..faults.processes import Programs, until

KEY = "a key for the schedules of this test only"
SHOP = f"""
from holdfast import Holdfast

hf = Holdfast("sqlite:///jobs.db", signing_key="{KEY}", directory=".")


@hf.job(key="clean")
def clean() -> None: ...


@hf.job(key="report")
def report() -> None:
    raise ValueError("broken")


@hf.schedules
def register(scheduler) -> None:
    scheduler.schedule(clean.define()).every("1s")
    scheduler.define("report").every("1s").inline()
"""
START = """
import msgspec

from holdfast.executor import Setup
from holdfast.worker.executors.process import python_program
from holdfast.worker.options import WorkerOptions
from shop import hf

setup = msgspec.json.encode(Setup(app="shop:hf")).decode()
service = hf.workers.service(
    hf.engines.get(),
    python_program("holdfast.executor", [setup]),
    WorkerOptions(queues={"default": 1}),
    schedules=hf.cron_runner(),
)
raise SystemExit(service.run(lambda _: print("started", flush=True), lambda: None))
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "start.py").write_text(START)
    programs = Programs(tmp_path)
    yield programs
    programs.end_all()


def result_of(hf: Holdfast, name: str) -> RunResult:
    """The result of a run of a schedule, as soon as there is one."""
    found = until(
        lambda: [entry.result for entry in hf.stored_schedules().history(name) if entry.result is not None],
        f"the result of a run of '{name}'",
    )
    return found[0]


def test_two_workers_fire_schedules_run_their_jobs_and_record_the_results(programs: Programs, tmp_path: Path) -> None:
    workers = [programs.start(sys.executable, "start.py") for _ in range(2)]
    for worker in workers:
        worker.wait_for("started")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Holdfast(url, signing_key=KEY, settings=Settings(), directory=tmp_path) as hf:
        assert result_of(hf, "clean").state is JobState.COMPLETED
        inline = result_of(hf, "report")
        assert (inline.state, inline.reason) == (JobState.DEAD, "ValueError: broken")
        for worker in workers:
            worker.send(signal.SIGTERM)
            assert worker.ended() == 0
        ids = [job.id for job in hf.backend().find(JobFilter(), limit=1000).jobs]
        fired = [
            entry.tick.job_id
            for name in ("clean", "report")
            for entry in hf.stored_schedules().history(name, 1000)
            if entry.tick.job_id is not None
        ]
        assert sorted(ids) == sorted(fired)
        assert {view.origin for view in hf.stored_schedules().views()} == {"shop"}
