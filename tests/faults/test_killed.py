"""Processes killed without a warning, anywhere: what was accepted is done, and what was done is known to be."""

import random
from collections import Counter

from holdfast.values import JobState, Outcome

from .processes import Program, until
from .yard import Yard


def test_a_job_that_was_running_when_everything_was_killed_completes_after_a_restart(yard: Yard) -> None:
    producer = yard.producer("gated", 1)
    id = until(producer.said_lines, "the producer to enqueue")[0]
    producer.kill()
    first = yard.worker(lease_s=1)
    yard.wait_for_entry("start", id, by=first)
    first.kill()
    assert yard.state(id) is JobState.PROCESSING

    second = yard.worker()
    until(lambda: yard.state(id) is JobState.PROCESSING and yard.history(id).job.deliveries == 2, "another delivery")
    yard.wait_for_entry("start", id, by=second)
    yard.open_gate(second)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert yard.hf.handle(id).result(0) == second.pid
    assert yard.ends()[id] == 1


def test_every_job_a_killed_producer_was_told_of_is_kept(yard: Yard) -> None:
    for _ in range(5):
        producer = yard.producer("quick", 1_000_000)
        until(lambda: len(producer.said_lines()) > 30, "the producer to enqueue some jobs")  # noqa: B023
        producer.kill()
        assert {yard.state(id) for id in producer.said_lines()} == {JobState.PENDING}


def test_four_workers_on_one_file_run_ten_thousand_jobs_once_each(yard: Yard) -> None:
    ids = [id for _ in range(10) for id in yard.put("quick", 1000)]
    workers = [yard.worker("--burst") for _ in range(4)]
    for worker in workers:
        worker.succeeded()
    assert yard.ends() == Counter(ids)
    assert yard.counts() == {JobState.COMPLETED: 10_000}
    shares = Counter(entry.pid for entry in yard.ledger())
    assert len(shares) == 4, "every worker had a share of the work"


def test_workers_killed_at_any_moment_lose_no_job_and_record_no_end_that_was_not(yard: Yard) -> None:
    dice = random.Random(20)
    ids = yard.put("brief", 500)
    workers = [yard.worker(lease_s=1) for _ in range(3)]
    for _ in range(20):
        reached = len(yard.ledger()) + dice.randint(5, 40)
        until(lambda: len(yard.ledger()) >= reached or _is_done(yard, ids), "the workers to get on")  # noqa: B023
        victim = _one_at_work(yard, workers, dice)
        workers.remove(victim)
        victim.kill()
        workers.append(yard.worker(lease_s=1))
    until(lambda: _is_done(yard, ids), "every job to be completed")

    ends = yard.ends()
    starts = Counter(entry.id for entry in yard.ledger() if entry.what == "start")
    killed = 0
    for id in ids:
        crashes = yard.history(id).job.deliveries - 1
        assert yard.outcomes(id) == [Outcome.CRASHED] * crashes + [Outcome.SUCCEEDED]
        assert 1 <= ends[id] <= starts[id] <= crashes + 1
        killed += crashes
    assert killed >= 5, "most workers were killed in the middle of a job"
    assert set(ends) == set(ids)


def _one_at_work(yard: Yard, workers: list[Program], dice: random.Random) -> Program:
    """A worker inside a job, if there is one: killing those that are only starting would show little."""
    latest = {entry.pid: entry.what for entry in yard.ledger()}
    return dice.choice([worker for worker in workers if latest.get(worker.pid) == "start"] or workers)


def _is_done(yard: Yard, ids: list[str]) -> bool:
    return yard.counts() == {JobState.COMPLETED: len(ids)}
