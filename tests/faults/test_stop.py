"""`holdfast worker stop` works through the engine, never by a process id, which another process may have by now."""

import json
import socket
from datetime import UTC, datetime

from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobState, Outcome, WorkerReport

from ..servers.places import every_engine
from .processes import Program, until
from .yard import Entry, Yard


def at_work(yard: Yard) -> tuple[Program, Entry]:
    (id,) = yard.put("gated")
    worker = yard.worker()
    start = yard.wait_for_entry("start", id, by=worker)
    until(yard.workers, "the worker to be known")
    return worker, start


@every_engine
def test_a_stopped_worker_finishes_its_job_and_wait_returns_when_it_has_exited(yard: Yard) -> None:
    worker, start = at_work(yard)
    operator = yard.programs.holdfast("worker", "stop", "--wait")
    until(
        lambda: [view.report.draining for view in yard.workers()] == [True],
        "the worker to drain",
    )
    assert operator.runs
    (idle,) = yard.put("quick")
    yard.open_gate(start)
    operator.succeeded()
    assert not yard.workers()
    assert worker.ended() == 0
    assert (yard.state(start.id), yard.outcomes(start.id)) == (JobState.COMPLETED, [Outcome.SUCCEEDED])
    assert yard.state(idle) is JobState.PENDING


@every_engine
def test_a_worker_stopped_now_hands_its_job_back(yard: Yard) -> None:
    worker, start = at_work(yard)
    yard.programs.holdfast("worker", "stop", "--now", "--wait").succeeded()
    assert worker.ended() == 0
    assert (yard.state(start.id), yard.outcomes(start.id)) == (JobState.PENDING, [Outcome.INTERRUPTED])
    assert yard.ends()[start.id] == 0


def test_a_draining_worker_can_still_be_stopped_immediately(yard: Yard) -> None:
    worker, start = at_work(yard)
    yard.programs.holdfast("worker", "stop").succeeded()
    until(
        lambda: [view.report.draining for view in yard.workers()] == [True],
        "the worker to drain",
    )
    yard.programs.holdfast("worker", "stop", "--now", "--wait").succeeded()
    assert worker.ended() == 0
    assert yard.outcomes(start.id) == [Outcome.INTERRUPTED]


def test_one_of_two_workers_is_stopped_by_its_id(yard: Yard) -> None:
    workers = {worker.pid: worker for worker in (yard.worker(), yard.worker())}
    until(lambda: len(yard.workers()) == 2, "both workers to be known")
    documents = json.loads(yard.programs.holdfast("worker", "list", "--json").succeeded())
    assert {document["pid"] for document in documents} == set(workers)
    leaver = documents[0]
    yard.programs.holdfast("worker", "stop", leaver["id"], "--wait").succeeded()
    assert workers.pop(leaver["pid"]).ended() == 0
    assert all(stayer.runs for stayer in workers.values())


def test_a_worker_that_exited_is_not_signalled_by_its_process_id(yard: Yard) -> None:
    """Another process on the same host has its process id by now."""
    bystander = yard.programs.start("sleep", "1000")
    report = WorkerReport(
        id="0123456789abcdef",
        host=socket.gethostname(),
        pid=bystander.pid,
        version="0",
        started_at=datetime.now(UTC),
        queues=("default",),
        handlers=(),
        processes=1,
        slots=1,
        beat_every_s=5.0,
    )
    WorkerRegistry(yard.hf.backend().state).beat(report)
    yard.programs.holdfast("worker", "stop", "--now", report.id).succeeded()
    assert bystander.runs
