"""What each end of a run means, run by real children: the lines of the table of ends."""

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.clock import from_us
from holdfast.handlers import COMMAND_KEY
from holdfast.values import (
    Ack,
    AttemptRecord,
    CancelAnswer,
    DeadReason,
    JobState,
    Outcome,
    WorkerStatus,
)

from ..faults.processes import until
from ..servers.places import every_engine, every_engine_with
from .floor import Floor

LEASE_S = 2.4


def test_a_job_that_returns_is_completed_with_its_result(floor: Floor) -> None:
    id = floor.put("brief")
    floor.work()
    view, (record,) = floor.view(id), floor.records(id)
    assert (view.state, view.attempts, view.crashes) == (JobState.COMPLETED, 0, 0)
    assert record.outcome is Outcome.SUCCEEDED
    assert record.result == str(floor.ledger("end")[0].pid).encode()


def test_a_job_that_raises_is_retried_and_dead_after_its_last_retry(floor: Floor) -> None:
    id = floor.put("fails", max_retries=2)
    floor.work()
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 3, DeadReason.FAILED)
    assert floor.outcomes(id) == [Outcome.FAILED] * 3
    assert floor.starts()[id] == 3
    assert view.last_error == "ValueError: no luck"


def test_what_a_handler_does_not_retry_is_dead_at_once(floor: Floor) -> None:
    id = floor.put("fails_for_good")
    floor.work()
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 1, DeadReason.NO_RETRY)
    assert floor.starts()[id] == 1


def test_a_job_past_its_timeout_is_interrupted_and_its_child_lives_on(floor: Floor) -> None:
    id = floor.put("gated", timeout=0.2, max_retries=1)
    floor.work(kill_after_s=60.0)
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 2, DeadReason.TIMEOUT)
    assert floor.outcomes(id) == [Outcome.TIMEOUT] * 2
    assert len({entry.pid for entry in floor.ledger("start")}) == 1


@pytest.mark.parametrize("job", ["gated_async", "heedful"])
def test_a_job_past_its_timeout_hears_of_it_in_a_coroutine_and_on_a_thread(floor: Floor, job: str) -> None:
    id = floor.put(job, timeout=0.2, max_retries=0)
    floor.work(concurrency=2, kill_after_s=60.0)
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 1, DeadReason.TIMEOUT)
    assert floor.outcomes(id) == [Outcome.TIMEOUT]


@every_engine_with("job", "deaf", "stuck")
def test_a_job_past_its_timeout_that_hears_nothing_is_killed_with_its_child(floor: Floor, job: str) -> None:
    id = floor.put(job, timeout=0.2, max_retries=1)
    floor.work()
    view = floor.view(id)
    assert (view.state, view.attempts, view.crashes) == (JobState.DEAD, 2, 0)
    assert view.dead_reason is DeadReason.TIMEOUT
    assert floor.outcomes(id) == [Outcome.TIMEOUT] * 2
    assert "was killed" in (view.last_error or "")
    assert len({entry.pid for entry in floor.ledger("start")}) == 2


def test_a_job_that_the_kernel_kills_for_its_memory_is_dead_after_its_last_retry(
    floor: Floor, small_group: Path
) -> None:
    id = floor.put("hogs", {"group": str(small_group)}, max_retries=2)
    others = floor.put_many(20, "brief")
    floor.work(processes=2)
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 3, DeadReason.FAILED)
    assert [record.error.message for record in floor.records(id) if record.error] == ["killed by SIGKILL"] * 3
    assert floor.starts() == {id: 3, **dict.fromkeys(others, 1)}
    assert {floor.state(other) for other in others} == {JobState.COMPLETED}


@every_engine
@pytest.mark.parametrize(
    ("signal_number", "how"),
    [(0, "exit code 7"), (signal.SIGSEGV, "killed by SIGSEGV"), (signal.SIGKILL, "killed by SIGKILL")],
)
def test_a_job_that_ends_its_process_is_dead_after_its_last_retry(floor: Floor, signal_number: int, how: str) -> None:
    id = floor.put("dies", {"signal_number": int(signal_number)}, max_retries=1)
    other = floor.put("brief")
    floor.work()
    view = floor.view(id)
    assert (view.state, view.attempts, view.crashes) == (JobState.DEAD, 2, 0)
    assert view.dead_reason is DeadReason.FAILED
    assert floor.outcomes(id) == [Outcome.CRASHED] * 2
    assert [record.error.message for record in floor.records(id) if record.error] == [how] * 2
    assert [record.output for record in floor.records(id)] == ["its last words\n"] * 2
    assert floor.starts()[id] == 2
    assert (floor.state(other), floor.starts()[other]) == (JobState.COMPLETED, 1)


def test_a_copy_that_a_job_makes_of_its_process_runs_nothing(floor: Floor) -> None:
    """The jobs that wait after it do not count, and the killed job cannot change its own outcome."""
    many = floor.put_many(100, "quick")
    floor.work()  # learns that they are quick, so that the next ones wait in the child
    before, forking, after = floor.put_many(100, "quick"), floor.put("forks"), floor.put_many(300, "quick")
    worker = floor.work()
    assert floor.ends() == dict.fromkeys([*many, *before, forking, *after], 1)
    assert floor.outcomes(forking) == [Outcome.SUCCEEDED]
    assert worker.tally[WorkerStatus.ACKED] == 401


def test_a_child_that_says_what_cannot_be_understood_is_killed_and_others_go_on(floor: Floor) -> None:
    id, other = floor.put("babbles", max_retries=1), floor.put("gated", {"gate": "open"})
    worker = floor.start(burst=True, processes=2)
    floor.reached(id, JobState.DEAD)
    floor.open_gate("open")
    worker.ended()
    assert floor.outcomes(id) == [Outcome.CRASHED] * 2
    assert (floor.state(other), floor.starts()[other]) == (JobState.COMPLETED, 1)


def test_a_worker_that_is_to_leave_when_there_is_nothing_to_do_waits_for_a_retry_that_is_due(floor: Floor) -> None:
    """Even if the retry becomes due while the worker waits for jobs and a child is idle."""
    id = floor.put("dies_at_gate", {"gate": "open"}, max_retries=1)
    worker = floor.start(burst=True, processes=2)
    until(lambda: floor.engine.calls["claim"] > 5, "the worker to look for more")
    floor.open_gate("open")
    worker.ended()
    assert (floor.state(id), floor.starts()[id]) == (JobState.DEAD, 2)


@every_engine
def test_of_several_jobs_in_a_process_that_died_none_is_blamed_and_each_waits(floor: Floor) -> None:
    ids = [floor.put(job, {"gate": "both"}, backoff=[1000.0]) for job in ("gated", "dies_at_gate")]
    worker = floor.start(concurrency=2)
    pids = {floor.noted("start", id).pid for id in ids}
    assert len(pids) == 1
    os.kill(pids.pop(), signal.SIGKILL)
    for id in ids:
        view = floor.reached(id, JobState.SCHEDULED)
        assert (view.attempts, view.crashes) == (0, 1)
        assert floor.outcomes(id) == [Outcome.CRASHED]
        assert "killed by SIGKILL, with 2 jobs started" in (view.last_error or "")
        assert view.due_at > from_us(floor.engine.clock.now_us()) + timedelta(seconds=100)
    until(lambda: worker.tally == {WorkerStatus.RELEASED: 2}, "the worker to have counted them")


def test_suspects_run_alone_and_only_the_guilty_one_dies(floor: Floor) -> None:
    guilty = floor.put("dies_at_gate", {"gate": "die"}, max_retries=1)
    innocent = floor.put("gated", {"gate": "end"}, max_retries=0)
    floor.start(concurrency=2)
    for id in (guilty, innocent):
        floor.noted("start", id)
    others = floor.put_many(10, "brief")
    floor.open_gate("die")
    floor.noted("start", innocent, times=2)
    floor.open_gate("end")
    floor.reached(guilty, JobState.DEAD)
    for id in (innocent, *others):
        floor.reached(id, JobState.COMPLETED)
    # Blamed for none of the first deaths, since it was not alone then, and for each one after that.
    assert floor.starts()[guilty] == 3
    assert floor.view(guilty).attempts == 2
    assert floor.outcomes(innocent) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    alone = [entry.id for entry in floor.ledger("start", "end")]
    at = len(alone) - 1 - alone[::-1].index(innocent)
    assert alone[at - 1] == innocent, "nothing was started beside the suspect"


def test_the_neighbour_of_a_killed_job_is_handed_back_and_runs_again(floor: Floor) -> None:
    neighbour = floor.put("gated")
    worker = floor.start(concurrency=2)
    floor.noted("start", neighbour)
    deaf = floor.put("deaf", timeout=0.2, max_retries=0)
    floor.reached(deaf, JobState.DEAD)
    again = floor.noted("start", neighbour, times=2)
    assert again.pid != floor.noted("start", neighbour).pid
    assert floor.outcomes(neighbour) == [Outcome.INTERRUPTED]
    floor.open_gate(neighbour)
    view = floor.reached(neighbour, JobState.COMPLETED)
    assert (view.attempts, view.crashes) == (0, 0)
    until(lambda: worker.tally.get(WorkerStatus.RELEASED) == 1, "the hand-back to be counted")


@every_engine
def test_a_job_that_ends_its_whole_worker_is_dead_at_the_crash_limit_and_never_started_again(floor: Floor) -> None:
    neighbour = floor.put("gated")
    first = floor.process("--count", "2", lease_s=2)
    floor.noted("start", neighbour)
    guilty = floor.put("kills_worker", {"gate": "die"})
    floor.noted("start", guilty)
    others = floor.put_many(3, "brief")
    floor.open_gate("die")
    until(lambda: not first.runs, "the worker to be killed")
    floor.open_gate(neighbour)
    for _ in range(2):
        worker = floor.process("--count", "2", lease_s=2)
        until(lambda: not worker.runs, "the worker to be killed")  # noqa: B023
    last = floor.process("--count", "2", lease_s=2)
    view = floor.reached(guilty, JobState.DEAD)
    assert (view.dead_reason, view.attempts, view.crashes) == (DeadReason.CRASH_LOOP, 0, 3)
    for id in (neighbour, *others):
        floor.reached(id, JobState.COMPLETED)
    assert floor.starts()[guilty] == 3
    last.send(signal.SIGTERM)
    assert last.ended() == 0


@every_engine
def test_a_cancelled_job_is_interrupted_long_before_its_lease_is_renewed(floor: Floor) -> None:
    floor.open(lease_s=3600)
    id = floor.put("gated")
    floor.start(kill_after_s=60.0)
    floor.noted("start", id)
    assert floor.engine.cancel(id, "not needed") is CancelAnswer.REQUESTED
    view = floor.reached(id, JobState.CANCELLED)
    assert (view.attempts, view.cancel_reason) == (0, "not needed")
    assert floor.outcomes(id) == [Outcome.CANCELLED]
    assert floor.engine.calls["renew_many"] == 0


@pytest.mark.parametrize(("job", "slots"), [("gated_async", 2), ("gated_async", 1), ("heedful", 2)])
def test_a_cancelled_job_hears_of_it_in_a_coroutine_and_on_a_thread(floor: Floor, job: str, slots: int) -> None:
    floor.open(lease_s=LEASE_S)
    id = floor.put(job)
    floor.start(concurrency=slots, kill_after_s=60.0)
    floor.noted("start", id)
    floor.engine.cancel(id)
    floor.reached(id, JobState.CANCELLED)
    assert floor.outcomes(id) == [Outcome.CANCELLED]
    assert bool(floor.ledger("heard")) is (job == "heedful")


@every_engine_with("job", "deaf", "stuck")
def test_a_cancelled_job_that_hears_nothing_is_killed(floor: Floor, job: str) -> None:
    floor.open(lease_s=LEASE_S)
    id = floor.put(job)
    floor.start()
    floor.noted("start", id)
    floor.engine.cancel(id)
    view = floor.reached(id, JobState.CANCELLED)
    assert (view.attempts, view.crashes) == (0, 0)
    assert floor.outcomes(id) == [Outcome.CANCELLED]
    other = floor.put("brief")
    floor.reached(other, JobState.COMPLETED)


@pytest.mark.parametrize("manner", ["idle", "late"])
def test_a_cancelled_job_that_waits_in_a_child_does_not_get_to_its_end(floor: Floor, manner: str) -> None:
    floor.open(lease_s=LEASE_S)
    id = floor.put("quick")
    floor.start(program=floor.scripted(manner))
    floor.reached(id, JobState.PROCESSING)
    floor.engine.cancel(id)
    floor.reached(id, JobState.CANCELLED)
    assert floor.outcomes(id) == [Outcome.CANCELLED]


def test_a_job_may_snooze_and_give_up(floor: Floor) -> None:
    snoozed, given_up = floor.put("snoozes"), floor.put("gives_up")
    worker = floor.work()
    view = floor.view(snoozed)
    assert (view.state, view.attempts) == (JobState.SCHEDULED, 0)
    assert view.due_at > from_us(floor.engine.clock.now_us()) + timedelta(seconds=900)
    assert (floor.state(given_up), floor.view(given_up).cancel_reason) == (JobState.CANCELLED, "not wanted any more")
    assert worker.tally == {WorkerStatus.RELEASED: 1, WorkerStatus.CANCELLED: 1}


def test_a_command_that_is_not_allowed_is_dead_without_an_attempt(floor: Floor) -> None:
    id = floor.put(COMMAND_KEY, {"argv": ["rm", "everything"]})
    worker = floor.work(commands=["true"])
    view = floor.view(id)
    assert (view.state, view.attempts, view.dead_reason) == (JobState.DEAD, 0, DeadReason.HANDLER_FORBIDDEN)
    assert floor.outcomes(id) == [Outcome.REJECTED]
    assert worker.tally == {WorkerStatus.REJECTED: 1}


@pytest.mark.parametrize("known_to_the_worker", [False, True])
def test_a_job_whose_handler_is_not_here_is_put_off(floor: Floor, known_to_the_worker: bool) -> None:
    id = floor.put("elsewhere")
    floor.work(unknown_to_children="elsewhere" if known_to_the_worker else "")
    view = floor.view(id)
    assert (view.attempts, view.crashes) == (0, 0)
    assert set(floor.outcomes(id)) == {Outcome.POSTPONED}
    assert view.due_at > view.accepted_at + timedelta(seconds=0.9)


@every_engine
def test_a_verdict_that_comes_after_the_lease_was_lost_changes_nothing(floor: Floor) -> None:
    floor.open(lease_s=0.5)
    floor.engine.down = {"renew_many"}
    id = floor.put("gated")
    worker = floor.start(reap_interval_s=3600.0)
    floor.noted("start", id)
    until(lambda: floor.engine.reap_expired(), "the lease to end")
    lease = floor.engine.fetch("default")
    assert lease is not None
    assert lease.id == id
    now = floor.engine.clock.now_us()
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now, ended_us=now, result=b'"theirs"')
    assert floor.engine.settle([Ack(lease=lease, record=record)]) == [True]
    floor.open_gate(id)
    until(lambda: worker.tally == {WorkerStatus.LOST_LEASE: 1}, "the verdict to be refused")
    assert floor.state(id) is JobState.COMPLETED
    assert floor.records(id)[-1].result == b'"theirs"'
