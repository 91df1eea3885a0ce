"""Processes killed at any point: every accepted job is run, and every finished run is recorded."""

import random
import time
from collections import Counter

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine
from .processes import Slayer, stopped, until
from .yard import Yard

KILLS = 100
KILLS_ON_A_SERVER = 10


@every_engine
def test_a_job_that_was_running_when_everything_was_killed_completes_after_a_restart(yard: Yard) -> None:
    producer = yard.producer("gated", 1)
    id = until(producer.said_lines, "the producer to enqueue")[0]
    producer.kill()
    first = yard.worker(lease_s=2)
    yard.wait_for_entry("start", id, by=first)
    first.kill()
    assert yard.state(id) is JobState.PROCESSING

    second = yard.worker()
    until(lambda: yard.state(id) is JobState.PROCESSING and yard.history(id).job.deliveries == 2, "another delivery")
    start = yard.wait_for_entry("start", id, by=second)
    yard.open_gate(start)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert yard.hf.handle(id).result(0) == start.pid
    assert yard.ends()[id] == 1


@every_engine
def test_every_job_that_a_killed_producer_enqueued_is_stored(yard: Yard) -> None:
    for _ in range(5 if yard.is_on_file else 2):
        producer = yard.producer("quick", 1_000_000)
        until(lambda: len(producer.said_lines()) > 30, "the producer to enqueue some jobs")  # noqa: B023
        producer.kill()
        assert {yard.state(id) for id in producer.said_lines()} == {JobState.PENDING}


@every_engine
def test_a_killed_child_costs_its_job_one_attempt_and_no_other_job_anything(yard: Yard) -> None:
    """The worker settles the job immediately: the lease would not have expired for a minute."""
    gated = yard.put("gated")[0]
    behind = yard.put("quick", 20)
    worker = yard.worker()
    start = yard.wait_for_entry("start", gated, by=worker)
    Slayer().kill(start.pid)
    again = until(lambda: [entry for entry in yard.entries("start", gated) if entry != start], "another run")[0]
    yard.open_gate(again)
    until(lambda: yard.are_done(21), "every job to be completed")
    job = yard.history(gated).job
    assert (job.attempts, job.crashes) == (1, 0)
    assert yard.outcomes(gated) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    error = yard.history(gated).attempts[0].record.error
    assert error is not None
    assert "SIGKILL" in error.message
    assert yard.ends() == Counter([gated, *behind])
    for id in behind:
        assert yard.history(id).job.attempts == 0
    assert worker.runs


@every_engine
@pytest.mark.parametrize("seed", [20])
def test_children_guardians_and_workers_killed_at_any_moment_lose_no_job(yard: Yard, seed: int) -> None:
    dice = random.Random(seed)
    kills = KILLS if yard.is_on_file else KILLS_ON_A_SERVER
    ids = yard.put("brief", 5 * kills)
    slayer = Slayer()
    counts = ("2", "1")
    workers = [yard.worker("--count", count, lease_s=2) for count in counts]
    while len(slayer.victims) < kills:
        ids += yard.put("brief", 15)  # on average as many as the test waits for, so that jobs are always waiting
        reached = len(yard.ledger()) + dice.randint(0, 30)
        until(lambda: len(yard.ledger()) >= reached, "the workers to make progress")  # noqa: B023
        place = dice.randrange(len(workers))
        victim, kind = workers[place], dice.choice(["child", "child", "child", "child", "guardian", "worker"])
        kin = victim.kin()
        if kind == "worker":
            slayer.kill(victim.pid)
            victim.kill()
            workers[place] = yard.starting("--count", counts[place], lease_s=2)
        elif kin:
            pair = dice.choice(kin)
            slayer.kill(pair.guardian if kind == "guardian" else pair.child)
    assert len(ids) >= 20 * kills
    until(lambda: yard.are_done(len(ids)), "every job to be completed")

    ends, starts = yard.ends(), yard.starts()
    rerun = 0
    for id in ids:
        *before, last = yard.outcomes(id)
        assert last is Outcome.SUCCEEDED
        # A job that a dead child had not started is recorded as interrupted.
        assert set(before) <= {Outcome.CRASHED, Outcome.INTERRUPTED}
        assert 1 <= ends[id] <= len(starts[id]) <= 1 + before.count(Outcome.CRASHED)
        for start in starts[id][:-1]:
            assert start.pid in slayer.doomed, f"job {id} ran again though {start.pid} was not killed"
            rerun += 1
    assert set(ends) == set(ids)
    assert rerun >= kills // 4, "most of those killed were in the middle of a job"
    for worker in workers:
        until(lambda: not worker.zombies(), "the worker to take note of every end")  # noqa: B023


def test_verdicts_that_were_written_count_though_their_child_was_killed_before_they_were_read(yard: Yard) -> None:
    """The worker is stopped during this, so that it receives many verdicts and the exit of the child together."""
    ids: list[str] = []
    slayer = Slayer()
    worker = yard.worker()
    for _ in range(10):
        ids += yard.put("quick", 2500)  # more than one child receives, so that some are unfinished when it is killed
        reached = len(yard.ledger()) + 200
        until(lambda: len(yard.ledger()) >= reached, "the worker to get on")  # noqa: B023
        with stopped(worker.pid):
            _wait_until_quiet(yard)
            slayer.kill(yard.ledger()[-1].pid)
    until(lambda: yard.are_done(len(ids)), "every job to be completed")
    again = yard.ends() - Counter(ids)
    assert again.total() <= len(slayer.victims), "only a job that was between its end and its verdict is run again"


def _wait_until_quiet(yard: Yard) -> None:
    """Wait until the children have run all jobs they received: the ledger did not grow between two checks."""
    seen = -1

    def is_quiet() -> bool:
        nonlocal seen
        before, seen = seen, len(yard.ledger())
        return seen == before

    until(is_quiet, "the children to have nothing left to do")


def test_workers_killed_in_the_middle_of_reaping_leave_every_orphan_to_the_next(yard: Yard) -> None:
    """They process another queue, so only reaping can change these jobs."""
    dice = random.Random(8)
    queues = [f"round-{number}" for number in range(8)]
    ids: list[str] = []
    for queue in queues:
        orphans = yard.put("quick", 150, queue=queue)
        yard.claim_and_forget(queue, len(orphans), lease_s=1)
        ids += orphans
        until(lambda: yard.has_lease_ended(orphans[-1]), "the leases to end")  # noqa: B023
        reaper = yard.worker("--queue", "elsewhere", lease_s=1)
        time.sleep(dice.uniform(0.0, 0.05))
        reaper.kill()

    yard.worker("--queue", ",".join(queues), lease_s=1)
    until(lambda: {yard.state(id) for id in ids} == {JobState.COMPLETED}, "every job to be completed")
    assert yard.ends() == Counter(ids)
    for id in ids:
        assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
