"""Jobs that read the results of their parents, in real children, which open the engine only for that."""

import json

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine
from .floor import Floor, runs


def returned(floor: Floor, id: str) -> object:
    """What the last attempt of a job returned."""
    result = floor.records(id)[-1].result
    assert result is not None
    return json.loads(result)


@every_engine
def test_a_child_process_reads_what_the_parents_returned(floor: Floor) -> None:
    parents = floor.put_many(3, "brief")
    child = floor.put("gathers", after=parents)
    floor.process("--count", "2")
    floor.reached(child, JobState.COMPLETED)
    assert returned(floor, child) == {entry.id: entry.pid for entry in floor.ledger("end") if entry.id in parents}


@every_engine
def test_jobs_that_share_a_child_read_at_the_same_time(floor: Floor) -> None:
    parents = floor.put_many(5, "brief")
    plain = [floor.put("gathers", {"gate": "open"}, after=parents) for _ in range(4)]
    coroutines = [floor.put("gathers_async", after=parents) for _ in range(4)]
    floor.process("--count", "1", "--concurrency", "8")
    for id in plain:
        floor.noted("start", id)
    floor.open_gate("open")
    for id in (*plain, *coroutines):
        floor.reached(id, JobState.COMPLETED)
    pids = {entry.id: entry.pid for entry in floor.ledger("end") if entry.id in parents}
    assert [returned(floor, id) for id in (*plain, *coroutines)] == [pids] * 8


@every_engine
def test_the_next_worker_reads_them_again_after_the_first_was_killed(floor: Floor) -> None:
    parent = floor.put("brief")
    child = floor.put("gathers", {"gate": "open"}, after=[parent])
    first = floor.process(lease_s=2)
    started = floor.noted("start", child)
    first.kill()
    floor.process(lease_s=2)
    again = floor.noted("start", child, times=2)
    assert not runs(started.pid)
    floor.open_gate("open")
    floor.reached(child, JobState.COMPLETED)
    assert floor.outcomes(child) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert returned(floor, child) == {parent: next(entry.pid for entry in floor.ledger("end") if entry.id == parent)}
    assert again.pid != started.pid


@every_engine
def test_a_parent_that_failed_has_an_error_instead_of_a_result(floor: Floor) -> None:
    parents = [floor.put("fails", id="dead", max_retries=0), floor.put("gives_up", id="cancelled"), floor.put("quick")]
    child = floor.put("gathers", after=parents, on_parent_failure="run")
    floor.process()
    floor.reached(child, JobState.COMPLETED)
    assert returned(floor, child) == {"dead": "JobFailed", "cancelled": "JobCancelled", parents[2]: None}
