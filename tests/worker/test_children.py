"""Children come and go: replaced when they have done enough, waited for when they cannot start, and never orphaned."""

import logging
import os
import re
import signal
import sys
from collections import Counter

import pytest

from holdfast.handlers import COMMAND_KEY
from holdfast.units import parse_duration
from holdfast.values import JobState, Outcome, WorkerStatus
from holdfast.worker.executors.process import ExecutorProcess, Program
from holdfast.worker.sessions import SessionFile

from ..faults.processes import ROOT, until
from .floor import Floor, runs

# A command with a child, which starts its own session if the first argument is "away".
FAMILY = f"""
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.faults.ledgers import append_line
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleeper, start_new_session=sys.argv[1] == "away")
append_line(Path(os.environ["FLOOR"], "ledger"), "grandchild", "command", os.getpid(), child.pid)
time.sleep(1000)
"""


def test_a_child_is_replaced_after_so_many_jobs_and_nothing_is_lost_or_repeated(floor: Floor) -> None:
    ids = floor.put_many(12, "brief")
    worker = floor.work(max_jobs_per_child=4)
    assert floor.ends() == Counter(ids)
    assert list(Counter(entry.pid for entry in floor.ledger("end")).values()) == [4, 4, 4]
    assert {tuple(set(floor.outcomes(id)) - {Outcome.INTERRUPTED}) for id in ids} == {(Outcome.SUCCEEDED,)}
    assert worker.tally[WorkerStatus.ACKED] == 12


@pytest.mark.parametrize(
    ("options", "nicer", "policy"),
    [((), 5, os.SCHED_BATCH), (("--nice", "9"), 9, os.SCHED_BATCH), (("--nice", "0"), 0, os.SCHED_OTHER)],
    ids=["by default", "as told", "not at all"],
)
def test_jobs_step_back_behind_their_worker(floor: Floor, options: tuple[str, ...], nicer: int, policy: int) -> None:
    worker = floor.process(*options)
    child = floor.noted("start", floor.put("gated")).pid
    ours, its = os.getpriority(os.PRIO_PROCESS, worker.pid), os.getpriority(os.PRIO_PROCESS, child)
    assert its - ours == nicer
    assert os.sched_getscheduler(child) == policy


def test_a_child_with_several_slots_is_replaced_too_after_what_it_is_running(floor: Floor) -> None:
    slow = floor.put("gated")
    worker = floor.start(concurrency=2, max_jobs_per_child=3)
    pid = floor.noted("start", slow).pid
    for id in floor.put_many(6, "brief"):
        floor.reached(id, JobState.COMPLETED)
    assert runs(pid)
    assert Counter(entry.pid for entry in floor.ledger("end"))[pid] == 3
    floor.open_gate(slow)
    floor.reached(slow, JobState.COMPLETED)
    until(lambda: not runs(pid), "the child to leave")
    until(lambda: worker.tally[WorkerStatus.ACKED] == 7, "the worker to have counted them")


def test_a_child_that_has_grown_too_large_is_replaced_between_jobs(floor: Floor) -> None:
    ids = [floor.put("grows", {"size": 80 * 2**20}) for _ in range(3)]
    floor.work(max_memory_bytes=100 * 2**20)
    assert floor.ends() == Counter(ids)
    assert len({entry.pid for entry in floor.ledger("end")}) == 3
    assert {tuple(set(floor.outcomes(id)) - {Outcome.INTERRUPTED}) for id in ids} == {(Outcome.SUCCEEDED,)}


def test_a_child_that_cannot_start_is_tried_again_ever_later_until_it_can(
    floor: Floor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    make = ExecutorProcess.__init__

    def spied(self: ExecutorProcess, program: Program, slots: int, session: SessionFile | None = None) -> None:
        events.append("started")
        make(self, program, slots, session)

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "could not start" in record.getMessage():
                events.append("failed")

    listening = Listening()
    monkeypatch.setattr(ExecutorProcess, "__init__", spied)
    monkeypatch.setattr(logging.getLogger("holdfast.executors"), "handlers", [listening])
    (floor.directory / "broken").touch()
    id = floor.put("brief")
    worker = floor.start()
    until(lambda: events.count("failed") >= 2, "two starts to fail")
    assert "the application is broken" in (dict(worker.supervisor.readiness())["executors"] or "")
    assert floor.view(id).deliveries == 0, "nothing is claimed that nobody can run"
    (floor.directory / "broken").unlink()
    floor.reached(id, JobState.COMPLETED)
    assert dict(worker.supervisor.readiness())["executors"] is None
    assert events == ["started", "failed"] * events.count("failed") + ["started"]
    pauses = [parse_duration(found) for found in re.findall(r"could not start, retrying in ([\d.]+ m?s)", caplog.text)]
    assert pauses == sorted(pauses)
    assert len(set(pauses)) > 1


@pytest.mark.parametrize("program", [("/nowhere/python",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_a_program_that_is_no_executor_is_told_of(floor: Floor, program: tuple[str, ...]) -> None:
    worker = floor.start(program=Program(argv=program, environment={}))
    until(lambda: dict(worker.supervisor.readiness())["executors"] != "none is ready yet", "the problem")
    problem = dict(worker.supervisor.readiness())["executors"] or ""
    assert ("No such file" in problem) or problem == "exit code 3"


def test_a_grandchild_is_gone_when_a_timeout_has_killed_its_job(floor: Floor) -> None:
    id = floor.put("parent", timeout=3.0, max_retries=0)
    floor.start()
    grandchild = int(floor.noted("grandchild", id).words[0])
    assert runs(grandchild)
    floor.reached(id, JobState.DEAD)
    assert not runs(grandchild)


def test_a_grandchild_is_gone_when_its_child_has_died(floor: Floor) -> None:
    id = floor.put("parent", max_retries=0)
    floor.start()
    grandchild = int(floor.noted("grandchild", id).words[0])
    floor.open_gate(id)
    floor.reached(id, JobState.DEAD)
    assert not runs(grandchild)


def test_nothing_of_a_worker_is_left_when_it_was_killed(floor: Floor) -> None:
    id = floor.put("parent")
    worker = floor.process()
    noted = floor.noted("grandchild", id)
    pids = [noted.pid, int(noted.words[0])]
    assert all(map(runs, pids))
    worker.kill()
    until(lambda: not any(map(runs, pids)), "everything below the worker to be gone")


def test_the_child_of_a_command_is_gone_when_that_was_interrupted(floor: Floor) -> None:
    argv = [sys.executable, "-c", FAMILY, "here"]
    id = floor.put(COMMAND_KEY, {"argv": argv})
    floor.start(commands=[sys.executable], kill_after_s=60.0)
    noted = floor.noted("grandchild", "command")
    floor.engine.cancel(id)
    floor.reached(id, JobState.CANCELLED)
    assert not any(map(runs, [noted.pid, int(noted.words[0])]))


def test_the_child_of_a_command_is_gone_when_its_executor_has_died(floor: Floor) -> None:
    argv = [sys.executable, "-c", FAMILY, "away"]
    id = floor.put(COMMAND_KEY, {"argv": argv}, max_retries=0)
    floor.start(commands=[sys.executable])
    noted = floor.noted("grandchild", "command")
    os.kill(_parent(noted.pid), signal.SIGKILL)
    floor.reached(id, JobState.DEAD)
    assert not any(map(runs, [noted.pid, int(noted.words[0])]))


def test_the_child_of_a_command_is_gone_when_the_worker_was_killed(floor: Floor) -> None:
    floor.put(COMMAND_KEY, {"argv": [sys.executable, "-c", FAMILY, "away"]})
    worker = floor.process("--allow", sys.executable)
    noted = floor.noted("grandchild", "command")
    pids = [noted.pid, int(noted.words[0])]
    worker.kill()
    until(lambda: not any(map(runs, pids)), "everything below the worker to be gone")


def test_progress_and_log_of_a_running_job_are_kept(floor: Floor) -> None:
    id = floor.put("reports")
    floor.start()
    progress = until(lambda: floor.view(id).progress, "the progress")
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (3, 10, "rows")
    assert floor.state(id) is JobState.PROCESSING
    floor.open_gate(id)
    floor.reached(id, JobState.COMPLETED)
    assert floor.records(id)[0].output == "INFO holdfast.job: three of ten\nprinted\n"


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
