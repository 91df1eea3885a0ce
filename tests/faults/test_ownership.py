"""Keys and the processes that hold them: whatever is killed or stopped, nothing overlaps or waits forever."""

import os
import signal
from collections.abc import Sequence

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine
from .processes import Program, lives, stopped, until
from .test_once import database_of
from .yard import Entry, Yard

LEASE_S = 3600
STEPS = ("before enter", "after enter", "before settle", "after settle")


def overlaps(entries: Sequence[Entry], ids: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of these jobs of which one started while the other was running."""
    running: list[str] = []
    found: list[tuple[str, str]] = []
    for entry in entries:
        if entry.id not in ids:
            continue
        if entry.what == "start":
            found += [(entry.id, other) for other in running]
            running.append(entry.id)
        else:
            running.remove(entry.id)
    return found


@every_engine
def test_jobs_with_one_key_never_overlap(yard: Yard) -> None:
    by_key = {key: yard.put("brief", 8, concurrency_key=key) for key in ("a", "b")}
    alone = yard.put("brief", 8, single_instance=True)
    yard.put("brief", 8)
    for _ in range(2):
        yard.worker("--count", "2")
    until(lambda: yard.are_done(32), "all jobs to be completed")
    for ids in (*by_key.values(), alone):
        assert overlaps(yard.ledger(), ids) == []
    assert set(yard.ends().values()) == {1}
    assert yard.hf.backend().slots() == []


@every_engine
def test_as_many_jobs_run_at_once_as_the_key_allows(yard: Yard) -> None:
    ids = yard.put("gated", 3, concurrency_key="a", concurrency=2)
    worker = yard.worker("--count", "3")
    first, second = (yard.wait_for_entry("start", id, by=worker) for id in ids[:2])
    until(lambda: yard.state(ids[2]) is JobState.BLOCKED, "the third to be blocked")
    yard.open_gate(first)
    yard.open_gate(yard.wait_for_entry("start", ids[2], by=worker))
    yard.open_gate(second)
    until(lambda: yard.are_done(3), "all jobs to be completed")


def finish(yard: Yard, number: int, by: Program) -> list[Entry]:
    """Open the gates of this many runs of this worker, one after the other. Returns their starts."""
    starts: list[Entry] = []
    while len(starts) < number:
        begun = until(lambda: _begun(yard, by)[len(starts) :], "the next run")  # noqa: B023
        assert len(begun) == 1, "two jobs with one key are running"
        yard.open_gate(begun[0])
        yard.wait_for_entry("end", begun[0].id, by)
        starts += begun
    return starts


def _begun(yard: Yard, by: Program) -> list[Entry]:
    return [entry for entry in yard.ledger() if (entry.what, entry.worker) == ("start", by.pid)]


@every_engine
def test_the_next_job_runs_when_the_worker_of_the_holder_is_killed(yard: Yard) -> None:
    """The leases are longer than the test: the key is not freed by time."""
    holder, waiting = (yard.put("gated", single_instance=True)[0] for _ in range(2))
    dead = yard.worker(lease_s=LEASE_S)
    first = yard.wait_for_entry("start", holder, by=dead)
    heir = yard.worker("--count", "2", lease_s=LEASE_S)
    until(lambda: yard.state(waiting) is JobState.BLOCKED, "the second job to be blocked")
    for pid in (dead.pid, *dead.below()):
        os.kill(pid, signal.SIGKILL)
    starts = finish(yard, 2, by=heir)
    assert not lives(first.pid)
    assert {start.id for start in starts} == {holder, waiting}
    until(lambda: yard.are_done(2), "both jobs to be completed")
    assert yard.outcomes(holder) == [Outcome.CRASHED, Outcome.SUCCEEDED]


@every_engine
def test_a_holder_that_stands_still_past_its_lease_neither_keeps_nor_frees_the_key(yard: Yard) -> None:
    """The guardian kills its run before the lease can pass on."""
    holder, waiting = (yard.put("gated", concurrency_key="a")[0] for _ in range(2))
    sleeper = yard.worker("--count", "2", lease_s=4)
    first = yard.wait_for_entry("start", holder, by=sleeper)
    until(lambda: yard.state(waiting) is JobState.BLOCKED, "the second job to be blocked")
    with stopped(sleeper.pid):
        heir = yard.worker("--count", "2", lease_s=LEASE_S)
        until(lambda: _begun(yard, heir), "the next run")
        assert not lives(first.pid)
    starts = finish(yard, 2, by=heir)
    assert {start.id for start in starts} == {holder, waiting}
    until(lambda: yard.are_done(2), "both jobs to be completed")


def die(yard: Yard, step: str) -> None:
    """Let a worker begin and kill itself at this step."""
    doomed = yard.starting(lease_s=LEASE_S, DIE=step)
    until(lambda: not doomed.runs, "the worker to be killed")


@every_engine
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_any_step_leaves_no_key_behind(yard: Yard, step: str) -> None:
    """Each job ends once, and the one that waits for the key runs, although no lease expires."""
    ids = yard.put("quick", 3, concurrency_key="a")
    die(yard, step)
    yard.worker(lease_s=LEASE_S)
    until(lambda: yard.are_done(3), "every job to be completed")
    outcomes = [yard.outcomes(id) for id in ids]
    assert all(one[-1] is Outcome.SUCCEEDED and set(one[:-1]) <= {Outcome.CRASHED} for one in outcomes)
    crashes = [] if step == "after settle" else [Outcome.CRASHED]
    assert outcomes[0] == [*crashes, Outcome.SUCCEEDED]
    assert yard.hf.backend().slots() == []


@every_engine
@pytest.mark.parametrize("step", STEPS)
def test_a_done_key_survives_a_kill_at_any_step(yard: Yard, step: str) -> None:
    first, second = (yard.put("quick", idempotency_key="order-7")[0] for _ in range(2))
    die(yard, step)
    yard.worker(lease_s=LEASE_S)
    until(lambda: yard.are_done(2), "both jobs to be completed")
    outcomes = [yard.outcomes(id)[-1] for id in (first, second)]
    assert sorted(outcomes) == [Outcome.SKIPPED, Outcome.SUCCEEDED]
    # The run before the kill may have ended; a job outside the database is run at least once.
    assert sum(yard.ends().values()) == (2 if step == "before settle" else 1)


@pytest.mark.parametrize("place", ["sqlite", "postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("step", STEPS)
def test_an_effect_in_the_same_database_happens_once_whatever_is_killed(yard: Yard, step: str) -> None:
    table = f"{yard.place.prefix}effects"
    yard.hf.create_schema()
    with database_of(yard) as connection:
        connection.cursor().execute(f"CREATE TABLE {table} (id varchar(63))")
    ids = [yard.put("pays", payload={"table": table}, idempotency_key="order-7")[0] for _ in range(3)]
    die(yard, step)
    yard.worker(lease_s=LEASE_S)
    until(lambda: yard.are_done(3), "all jobs to be completed")
    with database_of(yard) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT id FROM {table}")
        [(payer,)] = cursor.fetchall()
    results = {yard.hf.handle(id).result() for id in ids}
    assert payer in ids
    assert len(results) == 1
    assert results.pop().startswith("fence ")
