"""Leases while children run: held as long as it takes, given up in time, and what an engine that is away changes."""

from typing import Any

import pytest

from holdfast.errors import BackendUnavailable
from holdfast.values import JobState, Outcome, Release, StopOrder, WorkerStatus
from holdfast.worker import dispatcher

from ..faults.processes import stopped, until
from ..servers.places import every_engine, every_engine_with
from .floor import Floor, runs

LEASE_S = 2.4


@every_engine
def test_a_job_ten_times_as_long_as_its_lease_runs_once_whether_it_sleeps_or_keeps_the_interpreter(
    floor: Floor,
) -> None:
    floor.open(lease_s=2.0)
    ids = [floor.put(job, {"seconds": 20.0}) for job in ("sleeps", "keeps_interpreter")]
    floor.work(processes=2, reap_interval_s=0.1)
    for id in ids:
        view = floor.view(id)
        assert (view.state, view.deliveries, floor.starts()[id]) == (JobState.COMPLETED, 1, 1)


@every_engine
def test_a_fenced_job_is_killed_before_its_lease_can_pass_to_another(floor: Floor) -> None:
    floor.open(lease_s=4.0)
    id = floor.put("deaf", fence=True)
    floor.start(reap_interval_s=3600.0)
    pid = floor.noted("start", id).pid
    floor.engine.down = {"renew_many"}

    def is_killed() -> bool:
        can_pass = floor.engine.reap_expired() > 0
        is_gone = not runs(pid)
        assert is_gone or not can_pass, "another worker could have run the job at the same time"
        return is_gone

    until(is_killed, "the child to be killed")
    assert set(floor.outcomes(id)) <= {Outcome.CRASHED}, "the worker must not report an outcome of the job"
    floor.engine.down.clear()
    until(lambda: floor.engine.reap_expired() or floor.outcomes(id), "the lease to end")
    floor.noted("start", id, times=2)
    assert floor.outcomes(id) == [Outcome.CRASHED]
    assert floor.view(id).crashes == 1


@every_engine
def test_a_job_that_did_not_ask_for_a_fence_runs_on_and_its_late_verdict_is_refused(floor: Floor) -> None:
    floor.open(lease_s=0.5)
    id = floor.put("gated")
    worker = floor.start(reap_interval_s=3600.0)
    pid = floor.noted("start", id).pid
    floor.engine.down = {"renew_many"}
    until(lambda: floor.engine.reap_expired(), "the lease to end")
    assert runs(pid)
    floor.engine.down.clear()
    floor.open_gate(id)
    assert floor.noted("end", id).pid == pid
    until(lambda: worker.tally.get(WorkerStatus.LOST_LEASE), "the verdict to be refused")
    floor.reached(id, JobState.COMPLETED)
    assert floor.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]


@every_engine
def test_a_fenced_job_is_killed_in_time_though_its_worker_stands_still(floor: Floor) -> None:
    """Its guardian kills it, so the next worker does not run the job at the same time."""
    id = floor.put("gated", fence=True)
    first = floor.process(lease_s=2)
    pid = floor.noted("start", id).pid
    with stopped(first.pid):
        floor.process(lease_s=2)
        floor.noted("start", id, times=2)
        assert not runs(pid), "the first run was still there when the second began"
    floor.open_gate(id)
    floor.reached(id, JobState.COMPLETED)
    assert floor.view(id).attempts == 0


def test_a_worker_that_was_told_to_gives_up_on_an_engine_that_does_not_answer(floor: Floor) -> None:
    id = floor.put("brief")
    floor.engine.down |= {"claim", "state"}
    supervisor = floor.supervisor(give_up_after_s=0.3)
    with pytest.raises(BackendUnavailable, match="engine unavailable for"):
        supervisor.run()
    assert floor.state(id) is JobState.PENDING


@every_engine
def test_verdicts_are_read_and_timeouts_kept_while_the_engine_does_not_answer(floor: Floor) -> None:
    """Lingering children are read first: none is killed for a job that has already finished."""
    quick = floor.put_many(400, "quick", timeout=2.0)
    hung = floor.put("deaf", timeout=2.0, max_retries=0)
    floor.put_many(400, "quick", timeout=2.0)
    floor.start(kill_after_s=0.3)
    pid = floor.noted("start", hung).pid
    floor.engine.down |= {"exchange", "settle", "claim"}
    until(lambda: not runs(pid), "the child to be killed")
    floor.engine.down.clear()
    floor.reached(hung, JobState.DEAD)
    assert floor.outcomes(hung) == [Outcome.TIMEOUT]
    for id in quick:
        floor.reached(id, JobState.COMPLETED)
    assert set(floor.ends().values()) == {1}


def test_renewals_that_fail_for_less_than_a_lease_cost_a_fenced_job_nothing(floor: Floor) -> None:
    floor.open(lease_s=9.0)
    id = floor.put("gated", fence=True)
    floor.start()
    floor.noted("start", id)
    floor.engine.down = {"renew_many"}
    seen = floor.engine.calls["renew_many"]
    until(lambda: floor.engine.calls["renew_many"] > seen, "a renewal to fail")
    floor.engine.down.clear()
    until(lambda: floor.engine.calls["renew_many"] > seen + 1, "a renewal")
    floor.open_gate(id)
    floor.reached(id, JobState.COMPLETED)
    assert floor.outcomes(id) == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("options", [{"fence": True}, {"concurrency_key": "a"}, {"single_instance": True}])
def test_a_fenced_job_is_killed_when_its_lease_was_taken(floor: Floor, options: Any) -> None:
    """A job that holds a key is fenced as well: the next one with that key may start."""
    floor.open(lease_s=LEASE_S)
    id = floor.put("deaf", **options)
    worker = floor.start(reap_interval_s=3600.0)
    pid = floor.noted("start", id).pid
    with floor.stranger() as connection:
        connection.execute("UPDATE holdfast_jobs SET owner_token = x'00'")
    until(lambda: not runs(pid), "the child to be killed")
    until(lambda: worker.supervisor.unsettled == 1, "the job to be let go")
    assert floor.outcomes(id) == []
    assert worker.tally == {}


def test_a_suspect_runs_in_a_child_of_its_own_beside_others(floor: Floor) -> None:
    running = floor.put("gated")
    suspect = _suspect(floor, "brief", crashes=1, queue="late")
    floor.start(processes=2, queues={"default": 1, "late": 1})
    floor.reached(suspect, JobState.COMPLETED)
    floor.noted("start", running)
    assert floor.view(suspect).crashes == 0
    assert floor.state(running) is JobState.PROCESSING


def test_a_suspect_in_its_last_life_runs_when_nothing_else_does(floor: Floor) -> None:
    suspect = _suspect(floor, "brief", crashes=2, queue="late")
    floor.engine.pause("late")
    running = floor.put("gated")
    floor.start(processes=2, queues={"default": 1, "late": 1})
    floor.noted("start", running)
    floor.engine.resume("late")
    floor.reached(suspect, JobState.PROCESSING)
    other = floor.put("brief")
    floor.open_gate(running)
    floor.reached(suspect, JobState.COMPLETED)
    floor.reached(other, JobState.COMPLETED)
    order = [(entry.what, entry.id) for entry in floor.ledger()]
    at = order.index(("start", suspect))
    assert order[at - 1 : at + 2] == [("end", running), ("start", suspect), ("end", suspect)]


def test_a_suspect_that_cannot_run_alone_here_is_left_to_another_worker(floor: Floor) -> None:
    suspect = _suspect(floor, "brief", crashes=1, queue="late")
    floor.engine.pause("late")
    running = floor.put("gated", {"gate": "end"})
    worker = floor.start(concurrency=2, queues={"default": 1, "late": 1})
    floor.noted("start", running)
    floor.engine.resume("late")
    until(lambda: worker.tally.get(WorkerStatus.RELEASED), "the suspect to be handed back")
    view = floor.view(suspect)
    assert (view.attempts, view.crashes, floor.starts()[suspect]) == (0, 1, 0)
    assert floor.outcomes(suspect) == [Outcome.INTERRUPTED]
    assert view.due_at > view.accepted_at
    floor.open_gate("end")
    floor.reached(suspect, JobState.COMPLETED)


def test_a_worker_goes_on_after_its_last_suspect_was_fenced(floor: Floor) -> None:
    floor.open(lease_s=LEASE_S)
    id = _suspect(floor, "deaf", crashes=2, fence=True)
    floor.start(reap_interval_s=3600.0)
    pid = floor.noted("start", id).pid
    floor.engine.down = {"renew_many"}
    until(lambda: not runs(pid), "the child to be killed")
    floor.engine.down.clear()
    floor.reached(floor.put("brief"), JobState.COMPLETED)


def test_a_child_kept_free_for_a_suspect_works_again_when_that_is_cancelled(floor: Floor) -> None:
    floor.open(lease_s=LEASE_S)
    id = _suspect(floor, "brief", crashes=2, queue="late")
    floor.engine.pause("late")
    running = floor.put("gated")
    floor.start(processes=2, queues={"default": 1, "late": 1})
    floor.noted("start", running)
    floor.engine.resume("late")
    floor.reached(id, JobState.PROCESSING)
    floor.engine.cancel(id)
    renewals = floor.engine.calls["renew_many"]
    until(lambda: floor.engine.calls["renew_many"] > renewals + 1, "the worker to hear of it")
    floor.open_gate(running)
    floor.reached(id, JobState.CANCELLED)
    for each in [floor.put("meets", {"number": 2}) for _ in range(2)]:
        floor.reached(each, JobState.COMPLETED)
    assert not floor.starts()[id]


@every_engine
def test_verdicts_wait_for_an_engine_that_is_away(floor: Floor) -> None:
    ids = [floor.put("gated", {"gate": "end"}) for _ in range(2)]
    worker = floor.start(processes=2)
    for id in ids:
        floor.noted("start", id)
    floor.engine.down = {"exchange", "settle", "claim", "state"}
    floor.open_gate("end")
    for id in ids:
        floor.noted("end", id)
    refused = floor.engine.calls["exchange"] + floor.engine.calls["settle"]
    until(
        lambda: floor.engine.calls["exchange"] + floor.engine.calls["settle"] > refused + 1,
        "the worker to try in vain",
    )
    assert {floor.state(id) for id in ids} == {JobState.PROCESSING}
    assert dict(worker.supervisor.readiness())["engine"] is not None
    floor.engine.down.clear()
    for id in ids:
        floor.reached(id, JobState.COMPLETED)
        assert (floor.view(id).deliveries, floor.starts()[id]) == (1, 1)


@every_engine_with("verb", "exchange", "claim")
def test_a_lost_answer_loses_no_job_and_repeats_none(floor: Floor, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a brief job can seem slow, and those behind it would be released and delivered again.
    monkeypatch.setattr(dispatcher, "RELEASE_AFTER_S", 3600.0)
    monkeypatch.setattr(dispatcher, "RELEASE_ANYWAY_S", 3600.0)
    floor.engine.lost_answers[verb] = 3
    ids = floor.put_many(100, "brief")
    worker = floor.work()
    assert floor.engine.lost_answers[verb] == 0
    assert worker.tally == {WorkerStatus.ACKED: 100}
    assert {(floor.view(id).deliveries, floor.starts()[id]) for id in ids} == {(1, 1)}


def test_a_worker_that_can_fetch_nothing_leaves_when_told_to(floor: Floor) -> None:
    floor.engine.down = {"claim"}
    worker = floor.start(grace_s=0.0)
    until(lambda: floor.engine.calls["claim"], "the worker to try in vain")
    worker.stop(StopOrder.DRAIN)
    worker.ended()


def _suspect(floor: Floor, job: str, *, crashes: int, queue: str = "default", fence: bool = False) -> str:
    """A job that was delivered so often without a verdict."""
    id = floor.put(job, queue=queue, fence=fence)
    for _ in range(crashes):
        lease = floor.engine.fetch(queue)
        assert lease is not None
        assert floor.engine.settle([Release(lease=lease, crashed=True)]) == [True]
    return id
