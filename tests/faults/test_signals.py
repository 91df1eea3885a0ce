"""Workers that are shutting down, and workers that were stopped for too long."""

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine, every_engine_with
from .processes import Program, stopped, until
from .yard import Entry, Yard


def at_work(yard: Yard) -> tuple[Program, Entry, str]:
    """A worker that has started its first job; a second job is waiting."""
    first, second = yard.put("gated", 2)
    worker = yard.worker()
    return worker, yard.wait_for_entry("start", first, by=worker), second


@every_engine_with("number", signal.SIGTERM, signal.SIGINT)
def test_a_signal_lets_the_running_job_finish_and_starts_no_other(yard: Yard, number: signal.Signals) -> None:
    worker, first, second = at_work(yard)
    worker.send(number)
    worker.wait_for("stopping")
    yard.open_gate(first)
    assert worker.ended() == 0
    assert (yard.state(first.id), yard.outcomes(first.id)) == (JobState.COMPLETED, [Outcome.SUCCEEDED])
    assert yard.history(first.id).attempts[0].record.output == ""
    assert (yard.state(second), yard.outcomes(second)) == (JobState.PENDING, [])
    assert "1 done · nothing lost" in worker.complained


@every_engine
def test_a_second_signal_gives_the_running_job_back(yard: Yard) -> None:
    worker, first, second = at_work(yard)
    # Two different signals: the system may merge two of the same kind.
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    job = yard.history(first.id).job
    assert (job.state, job.attempts, job.crashes) == (JobState.PENDING, 0, 0)
    assert yard.outcomes(first.id) == [Outcome.INTERRUPTED]
    assert yard.ends()[first.id] == 0
    assert yard.state(second) is JobState.PENDING
    assert "1 requeued · nothing lost" in worker.complained


def test_a_job_whose_grace_ran_out_is_given_back(yard: Yard) -> None:
    (id,) = yard.put("gated")
    worker = yard.worker("--grace", "100ms")
    yard.wait_for_entry("start", id, by=worker)
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert (yard.state(id), yard.outcomes(id)) == (JobState.PENDING, [Outcome.INTERRUPTED])


@every_engine
@pytest.mark.parametrize("seed", [30])
def test_workers_asked_to_leave_at_any_moment_start_no_job_twice(yard: Yard, seed: int) -> None:
    dice = random.Random(seed)
    ids = yard.put("brief", 200)
    # A job that is not released would not be requeued in time.
    workers = [yard.worker(lease_s=600) for _ in range(2)]
    for _ in range(30 if yard.is_on_file else 4):
        ids += yard.put("brief", 15)  # on average as many as the test waits for, so that jobs are always waiting
        reached = len(yard.ledger()) + dice.randint(0, 30)
        until(lambda: len(yard.ledger()) >= reached, "the workers to make progress")  # noqa: B023
        leaver = workers.pop(0)
        leaver.send(dice.choice([signal.SIGTERM, signal.SIGINT]))
        workers.append(yard.worker(lease_s=600))
        assert leaver.ended() == 0
        assert "nothing lost" in leaver.complained
        assert not yard.unfinished(by=leaver)
    until(lambda: yard.are_done(len(ids)), "every job to be completed")
    assert Counter(entry.id for entry in yard.ledger()) == Counter(ids * 2), "one start and one end of each"
    for id in ids:
        *before, last = yard.outcomes(id)
        assert last is Outcome.SUCCEEDED
        assert set(before) <= {Outcome.INTERRUPTED}, "handed back before it was started"


@pytest.mark.parametrize("seed", [3])
def test_workers_stopped_twice_at_any_moment_lose_no_job(yard: Yard, seed: int) -> None:
    dice = random.Random(seed)
    ids = yard.put("brief", 50)
    workers = [yard.worker("--count", "2", lease_s=600) for _ in range(2)]
    interrupted: list[str] = []
    for number in range(18):
        ids += yard.put("slow", 4) + yard.put("brief", 4)
        if number % 3:
            reached = len(yard.ledger()) + dice.randint(0, 4)
            until(lambda: len(yard.ledger()) >= reached, "the workers to make progress")  # noqa: B023
            leaver = workers.pop(0)
        else:
            # One that is in the middle of a job, however fast or slow the machine is.
            [id] = yard.put("slow_once")
            [start] = until(lambda: yard.entries("start", id), "a worker to start the job")  # noqa: B023
            leaver = workers.pop([worker.pid for worker in workers].index(start.worker))
            interrupted.append(id)
        leaver.send(signal.SIGTERM)
        if dice.random() < 0.5:
            leaver.wait_for("stopping")
        leaver.send(signal.SIGINT)
        workers.append(yard.worker("--count", "2", lease_s=600))
        assert leaver.ended() == 0
        assert "nothing lost" in leaver.complained
    ids += interrupted
    until(lambda: yard.are_done(len(ids)), "every job to be completed")
    starts, ends = yard.starts(), yard.ends()
    for id in ids:
        *before, last = yard.outcomes(id)
        assert last is Outcome.SUCCEEDED
        assert set(before) <= {Outcome.INTERRUPTED}
        assert ends[id] <= len(starts[id]) <= 1 + len(before)
        assert yard.history(id).job.attempts == 0
    for id in interrupted:
        assert len(starts[id]) > 1, "it was released in the middle of its run"


@every_engine_with("who", "worker", "worker and child")
def test_a_worker_that_was_stopped_longer_than_its_lease_cannot_settle_what_another_has_done(
    yard: Yard, who: str
) -> None:
    (id,) = yard.put("gated")
    sleeper = yard.worker(lease_s=2)
    late = yard.wait_for_entry("start", id, by=sleeper)
    with ExitStack() as standing_still:
        standing_still.enter_context(stopped(sleeper.pid))
        if who == "worker and child":
            standing_still.enter_context(stopped(late.pid))
        other = yard.worker()
        start = yard.wait_for_entry("start", id, by=other)
        yard.open_gate(start)
        until(lambda: yard.state(id) is JobState.COMPLETED, "the other worker to complete the job")
        before = yard.history(id)
    yard.open_gate(late)
    sleeper.wait_for("lease lost before the job was settled")
    assert yard.history(id) == before
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert yard.hf.handle(id).result(0) == start.pid
    assert [entry.pid for entry in yard.entries("end", id)] == [start.pid, late.pid]


@every_engine
def test_a_verdict_reached_while_the_worker_was_stopped_is_refused(yard: Yard) -> None:
    (id,) = yard.put("gated")
    sleeper = yard.worker(lease_s=2)
    late = yard.wait_for_entry("start", id, by=sleeper)
    with stopped(sleeper.pid):
        yard.open_gate(late)
        yard.wait_for_entry("end", id, by=sleeper)
        other = yard.worker()
        start = yard.wait_for_entry("start", id, by=other)
    sleeper.wait_for("lease lost before the job was settled")
    assert yard.state(id) is JobState.PROCESSING
    yard.open_gate(start)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the other worker to complete the job")
    assert yard.hf.handle(id).result(0) == start.pid
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]


def test_a_stopped_child_does_not_cost_its_worker_the_lease(yard: Yard) -> None:
    (id,) = yard.put("gated")
    worker = yard.worker(lease_s=3)
    start = yard.wait_for_entry("start", id, by=worker)
    with stopped(start.pid):
        began = yard.history(id).job.lease_until
        assert began is not None
        until(lambda: yard.hf.backend().clock.now_us() > began.timestamp() * 1e6, "the first lease to be over")
        yard.hf.backend().reap_expired()
    yard.open_gate(start)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert (yard.outcomes(id), len(yard.starts()[id])) == ([Outcome.SUCCEEDED], 1)


@every_engine
def test_a_stopped_worker_cannot_settle_its_job_after_the_lease_expired(yard: Yard) -> None:
    (id,) = yard.put("gated")
    sleeper = yard.worker("--max-jobs", "1", lease_s=2)
    late = yard.wait_for_entry("start", id, by=sleeper)
    with stopped(sleeper.pid):
        until(lambda: yard.has_lease_ended(id), "the lease to end")
    yard.open_gate(late)
    assert sleeper.ended() == 0
    assert "lease lost before the job was settled" in sleeper.said
    yard.hf.backend().reap_expired()  # unless the sleeper has done so itself
    assert (yard.state(id), yard.outcomes(id)) == (JobState.PENDING, [Outcome.CRASHED])


def test_a_signal_to_a_child_alone_replaces_it_and_loses_nothing(yard: Yard) -> None:
    worker, first, second = at_work(yard)
    os.kill(first.pid, signal.SIGTERM)
    yard.open_gate(first)
    until(lambda: yard.state(first.id) is JobState.COMPLETED, "the running job to finish")
    start = yard.wait_for_entry("start", second, by=worker)
    assert start.pid != first.pid
    yard.open_gate(start)
    until(lambda: yard.are_done(2), "both jobs to be completed")
    assert yard.outcomes(first.id) == [Outcome.SUCCEEDED]
