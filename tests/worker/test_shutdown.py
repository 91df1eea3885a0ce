"""Stopping a worker: running jobs may finish, the others are released, and the totals add up."""

import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from holdfast.metrics import InMemoryMetrics
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobState, Outcome, StopOrder, WorkerStatus
from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight
from holdfast.worker.service import Service
from holdfast.worker.shutdown import Shutdown

from ..faults.processes import until
from .floor import Floor


def test_a_drain_lets_running_jobs_finish_and_starts_no_other(floor: Floor) -> None:
    running = floor.put("gated")
    worker = floor.start()
    floor.noted("start", running)
    waiting = floor.put("brief")
    worker.stop()
    until(lambda: worker.supervisor.is_draining, "the worker to drain")
    floor.open_gate(running)
    worker.ended()
    assert floor.state(running) is JobState.COMPLETED
    assert (floor.state(waiting), floor.starts()[waiting]) == (JobState.PENDING, 0)


def test_a_stop_waits_for_a_running_job_however_long_it_takes(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    tend = Shutdown.tend
    tended = Counter[bool]()

    def tend_days_later(shutdown: Shutdown, now: float) -> None:
        tended[shutdown.is_begun] += 1
        tend(shutdown, now + 30 * 86400)

    monkeypatch.setattr(Shutdown, "tend", tend_days_later)
    running = floor.put("gated")
    worker = floor.start()
    floor.noted("start", running)
    worker.stop()
    until(lambda: tended[True] > 2, "the worker to wait")
    floor.open_gate(running)
    worker.ended()
    assert worker.tally == {WorkerStatus.ACKED: 1}
    assert floor.outcomes(running) == [Outcome.SUCCEEDED]


def test_a_drain_hands_back_what_no_child_has_started(floor: Floor) -> None:
    ids = floor.put_many(2, "quick")
    worker = floor.start(program=floor.scripted("idle"), processes=2)
    for id in ids:
        floor.reached(id, JobState.PROCESSING)
    worker.stop()
    worker.ended()
    assert worker.tally == {WorkerStatus.RELEASED: 2}
    for id in ids:
        view = floor.view(id)
        assert (view.state, view.attempts, view.crashes) == (JobState.PENDING, 0, 0)
        assert floor.outcomes(id) == [Outcome.INTERRUPTED]


@pytest.mark.parametrize(("job", "slots"), [("gated", 1), ("gated_async", 2), ("heedful", 2), ("stuck", 1)])
def test_what_still_runs_when_the_grace_is_over_is_handed_back_without_an_attempt(
    floor: Floor, job: str, slots: int
) -> None:
    id = floor.put(job)
    worker = floor.start(grace_s=0.1, concurrency=slots)
    floor.noted("start", id)
    worker.stop()
    worker.ended()
    view = floor.view(id)
    assert (view.state, view.attempts, view.crashes) == (JobState.PENDING, 0, 0)
    assert floor.outcomes(id) == [Outcome.INTERRUPTED]
    assert worker.tally == {WorkerStatus.RELEASED: 1}


def test_a_second_order_hands_back_at_once_what_a_drain_would_wait_for(floor: Floor) -> None:
    ids = [floor.put(job) for job in ("gated", "deaf")]
    worker = floor.start(processes=2, grace_s=0.0)
    for id in ids:
        floor.noted("start", id)
    worker.stop()
    until(lambda: worker.supervisor.is_draining, "the worker to drain")
    assert worker.is_running
    worker.stop(StopOrder.NOW)
    worker.ended()
    for id in ids:
        assert (floor.state(id), floor.view(id).attempts) == (JobState.PENDING, 0)
        assert floor.outcomes(id) == [Outcome.INTERRUPTED]


@pytest.mark.parametrize(("number", "subject"), [(1, "job {}"), (2, "jobs {}, {}")])
def test_jobs_that_do_not_stop_are_killed_and_the_log_and_their_history_say_so(
    floor: Floor, caplog: pytest.LogCaptureFixture, number: int, subject: str
) -> None:
    worker = floor.start(grace_s=0.1, concurrency=2)
    ids = floor.put_many(number, "deaf")
    for id in ids:
        floor.noted("start", id)
    worker.stop()
    worker.ended()
    why = "did not stop before the worker had to exit"
    kills = [line for line in caplog.messages if line.startswith("killing")]
    orders = (ids, ids[::-1])  # the child may have started either first
    assert kills in [[f"killing executor process: {subject.format(*order)} {why}"] for order in orders]
    for id in ids:
        history = floor.engine.get(id)
        assert history is not None
        assert [past.record.note for past in history.attempts] == [f"killed: the job {why}"]


def test_an_operator_can_tell_a_worker_to_leave_through_the_engine(floor: Floor) -> None:
    worker = floor.start()
    until(WorkerRegistry(floor.engine.state).all, "the worker to be known")
    assert WorkerRegistry(floor.engine.state).order_stop(worker.supervisor.id, StopOrder.DRAIN)
    worker.ended()
    assert WorkerRegistry(floor.engine.state).all() == []


def test_signals_drain_and_then_hand_back_and_the_farewell_adds_up(floor: Floor) -> None:
    done = floor.put_many(3, "brief")
    failing = floor.put("fails", max_retries=0)
    worker = floor.process("--count", "2", "--quiet")
    for id in (*done, failing):
        floor.reached(id, JobState.COMPLETED, JobState.DEAD)
    ids: list[str] = []
    for job in ("gated", "deaf"):  # one by one: a job is never given to a child that is busy while another is idle
        ids.append(floor.put(job))
        floor.noted("start", ids[-1])
    worker.send(signal.SIGTERM)
    worker.wait_for("stopping: finishing 2 running jobs; press Ctrl-C again to requeue them")
    floor.open_gate(ids[0])
    floor.reached(ids[0], JobState.COMPLETED)
    assert worker.runs
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    # A job may have been released before, if no slot was free in time; its history shows it.
    outcomes = [outcome for id in (*done, failing, *ids) for outcome in floor.outcomes(id)]
    back = outcomes.count(Outcome.INTERRUPTED)
    assert back >= 1
    assert f"stopped · 4 done · 1 failed for good · {back} requeued · nothing lost" in worker.said + worker.complained
    assert (floor.state(ids[1]), floor.view(ids[1]).attempts) == (JobState.PENDING, 0)


def test_a_signal_that_overtakes_the_report_of_a_start_still_counts_the_job(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    id = floor.put("gated")
    give = ProcessPool.give

    def give_and_stop(pool: ProcessPool, child: ExecutorProcess, flights: Sequence[Flight]) -> None:
        """Send the signal when the job is running, and before the loop can read that it is."""
        give(pool, child, flights)
        floor.noted("start", id)
        signal.raise_signal(signal.SIGTERM)
        floor.open_gate(id)

    monkeypatch.setattr(ProcessPool, "give", give_and_stop)
    service = Service(floor.supervisor(), floor.engine, InMemoryMetrics())
    assert service.run(lambda _: None, lambda: None) == 0
    assert "stopping: finishing 1 running job; press" in capfd.readouterr().err
    assert floor.state(id) is JobState.COMPLETED


def test_a_worker_whose_terminal_is_closed_finishes_what_it_runs(floor: Floor) -> None:
    id = floor.put("gated")
    ours = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # the tests may run with it ignored, and then so would the worker
    try:
        worker = floor.process()
    finally:
        signal.signal(signal.SIGHUP, ours)
    floor.noted("start", id)
    worker.send(signal.SIGHUP)
    worker.wait_for("stopping")
    floor.open_gate(id)
    assert worker.ended() == 0
    assert (floor.state(id), floor.starts()[id]) == (JobState.COMPLETED, 1)


def test_a_worker_that_was_started_to_outlive_its_terminal_does(floor: Floor) -> None:
    id = floor.put("gated")
    ours = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        worker = floor.process()
    finally:
        signal.signal(signal.SIGHUP, ours)
    floor.noted("start", id)
    worker.send(signal.SIGHUP)
    floor.open_gate(id)
    floor.reached(id, JobState.COMPLETED)
    floor.reached(floor.put("brief"), JobState.COMPLETED)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
