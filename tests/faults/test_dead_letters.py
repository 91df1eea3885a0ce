"""Copies of dead letters, whatever is killed: each death has one."""

import msgspec
import pytest

from holdfast import DeadLetter
from holdfast.values import DeadReason, JobFilter, JobState, Outcome

from ..servers.places import every_engine_with
from .processes import Program, until
from .test_once import database_of
from .yard import Yard

LEASE_S = 3600
TO = "failed_jobs"
STEPS = ("before settle", "after settle")


def starting(yard: Yard, **settings: str) -> Program:
    """Start a worker that copies dead letters."""
    return yard.starting(lease_s=LEASE_S, HOLDFAST_DEAD_LETTER_TO=TO, **settings)


def letters(yard: Yard) -> list[DeadLetter]:
    """The letters in the queue for dead letters."""
    copies = yard.hf.backend().find(JobFilter(queue=TO), limit=100).jobs
    return [msgspec.json.decode(copy.payload, type=dict[str, DeadLetter])["letter"] for copy in copies]


def die(yard: Yard, step: str, **settings: str) -> None:
    """Let a worker begin and kill itself at this step."""
    doomed = starting(yard, DIE=step, **settings)
    until(lambda: not doomed.runs, "the worker to be killed")


@every_engine_with("step", *STEPS)
def test_a_job_dies_together_with_its_copy(yard: Yard, step: str) -> None:
    [id] = yard.put("broken", max_retries=0)
    die(yard, step)
    is_dead = step == "after settle"
    assert (yard.state(id) is JobState.DEAD, len(letters(yard))) == (is_dead, is_dead)
    starting(yard)
    until(lambda: yard.state(id) is JobState.DEAD, "the job to be dead")
    assert yard.outcomes(id) == [*([] if is_dead else [Outcome.CRASHED]), Outcome.FAILED]
    [letter] = letters(yard)
    assert (letter.id, letter.reason, letter.attempts) == (id, DeadReason.FAILED, 1)


@pytest.mark.parametrize("place", ["sqlite", "postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("step", STEPS)
def test_what_a_dead_job_wrote_is_rolled_back_and_its_copy_is_stored(yard: Yard, step: str) -> None:
    table = f"{yard.place.prefix}effects"
    yard.hf.create_schema()
    with database_of(yard) as connection:
        connection.cursor().execute(f"CREATE TABLE {table} (id varchar(63))")
    [id] = yard.put("half", payload={"table": table}, max_retries=0)
    die(yard, step)
    starting(yard)
    until(lambda: yard.state(id) is JobState.DEAD, "the job to be dead")
    assert [letter.id for letter in letters(yard)] == [id]
    with database_of(yard) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT count(*) FROM {table}")
        assert cursor.fetchone()[0] == 0


@every_engine_with("step", "before accept", "after reap", "after accept")
def test_each_job_that_the_reaper_ended_is_copied(yard: Yard, step: str) -> None:
    ids = yard.put("quick", 3)
    yard.claim_and_forget("default", 3, lease_s=1)
    until(lambda: all(yard.has_lease_ended(id) for id in ids), "the leases to expire")
    die(yard, step, HOLDFAST_CRASH_LIMIT="1")
    assert {yard.state(id) for id in ids} == {JobState.DEAD}
    assert len(letters(yard)) == (3 if step == "after accept" else 0)
    starting(yard, HOLDFAST_CRASH_LIMIT="1")
    until(lambda: len(letters(yard)) == 3, "the copies")
    assert {letter.id for letter in letters(yard)} == {*ids}
    assert {letter.reason for letter in letters(yard)} == {DeadReason.CRASH_LOOP}
    assert yard.ledger() == []
