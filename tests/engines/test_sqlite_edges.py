"""Edges in an SQLite file: rows that a verb reads, numbers that are assigned again, and damaged rows."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.queues.contract import TOMBSTONE_S
from holdfast.queues.engines.sqlite import edges, jobs, notes, records
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.testing.lab import Lab, sqlite_lab
from holdfast.testing.laws.dependencies import complete, kill, states
from holdfast.values import Ack, JobState, OnParentFailure

from ..attacks.cases import LARGEST, NOT_UTF8
from ..attacks.damage_sqlite import SqliteStore
from .sqlite_site import plan_of, steps_of

BLOCKED, PENDING, CANCELLED, DEAD = JobState.BLOCKED, JobState.PENDING, JobState.CANCELLED, JobState.DEAD


@pytest.fixture
def lab(quick_path: Path) -> Iterator[Lab]:
    with sqlite_lab(quick_path) as lab:
        yield lab


# Rows that a verb reads.


@pytest.mark.parametrize(
    ("statement", "step"),
    [
        pytest.param(notes.NOTE_ENDED, "edges_by_parent (parent=? AND outcome=?)", id="NOTE_ENDED"),
        pytest.param(notes.NOTE_REOPENED, "edges_by_parent (parent=? AND outcome=?)", id="NOTE_REOPENED"),
        pytest.param(edges.EDGES, "edges_by_parent (parent=? AND outcome=? AND policy=?)", id="EDGES"),
        pytest.param(edges.PARENTS, "edges_by_parent (parent=? AND outcome=? AND policy=?)", id="PARENTS"),
        pytest.param(edges.EDGE_OUTCOMES, "PRIMARY KEY (child=?)", id="EDGE_OUTCOMES"),
        pytest.param(edges.TURN, "PRIMARY KEY (child=? AND parent=?)", id="TURN"),
        pytest.param(jobs.NEXT_SEQ, "edges_by_parent (parent<?)", id="NEXT_SEQ"),
        pytest.param(records.COUNT_BLOCKED, "edges_open", id="COUNT_BLOCKED"),
        pytest.param(records.DELETE_EDGES, "PRIMARY KEY (child=?)", id="DELETE_EDGES"),
    ],
)
def test_a_statement_finds_its_edges_through_an_index(path: Path, statement: str, step: str) -> None:
    plan = plan_of(path, statement)
    assert [one for one in plan if one.endswith(step)], plan


def test_no_call_reads_the_edges_of_other_jobs(quick_path: Path) -> None:
    few, many = (_steps_of_an_ack(quick_path.with_name(f"{number}.db"), number) for number in (10, 10_000))
    assert many == pytest.approx(few, rel=0.05)


def _steps_of_an_ack(path: Path, others: int) -> int:
    """The work of completing a parent with one child, next to a parent with many children."""
    with sqlite_lab(path) as lab:
        lab.put("other", queue="other")
        lab.engine.accept([lab.envelope(f"c{at}", after=("other",), queue="other") for at in range(others)])
        lab.put("parent")
        lab.put("child", after=("parent",))
        end = Ack(lease=lab.take("parent"), record=lab.record())
        assert isinstance(lab.engine, SqliteEngine)
        return steps_of(lab.engine, lambda: lab.engine.settle([end]))


# Numbers that are assigned again.


def test_a_new_job_does_not_inherit_the_children_of_a_deleted_one(lab: Lab) -> None:
    child = lab.envelope("child", after=("parent",), on_parent_failure=OnParentFailure.WAIT)
    lab.engine.accept([child, lab.envelope("parent")])
    kill(lab, "parent")
    assert lab.engine.discard("parent")
    lab.advance(TOMBSTONE_S)
    lab.engine.prune()
    lab.put("new")
    assert lab.engine.relatives("new").child_count == 0
    kill(lab, "new")
    lab.engine.replay("new")
    lab.engine.repair()
    assert states(lab, "child") == [CANCELLED]


def test_a_new_job_does_not_inherit_the_parents_of_a_deleted_one(lab: Lab) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",))
    lab.engine.cancel("child")
    assert lab.engine.discard("child", states=[CANCELLED])
    lab.advance(TOMBSTONE_S)
    lab.engine.prune()
    lab.put("new")
    assert lab.engine.relatives("new").parents == ()
    assert lab.engine.relatives("parent").child_count == 0


# Damaged rows.


def test_a_damaged_child_is_dead_lettered_and_its_siblings_run(lab: Lab, quick_path: Path) -> None:
    lab.put("parent")
    lab.put("a", "b", after=("parent",))
    lab.put("grandchild", after=("a",))
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_jobs SET attempts = 'many' WHERE id = 'a'")
    complete(lab, "parent")
    assert states(lab, "a", "b") == [DEAD, PENDING]
    lab.engine.repair()
    assert states(lab, "grandchild") == [CANCELLED]


def _values() -> Iterator[tuple[str, Any]]:
    """Columns of edges, and values that no engine writes there."""
    for column in ("parent", "child", "policy", "outcome"):
        for value in ("x", 0.5, NOT_UTF8, LARGEST, -LARGEST):
            yield column, value


@pytest.mark.parametrize(("column", "value"), list(_values()))
def test_a_damaged_edge_does_not_stop_the_others(lab: Lab, quick_path: Path, column: str, value: object) -> None:
    lab.put("parent", "other")
    lab.put("bad", after=("parent",))
    with closing(SqliteStore(quick_path)) as store:
        store.execute(f"UPDATE holdfast_edges SET {column} = ?", value)
        store.execute("INSERT INTO holdfast_notes SELECT seq FROM holdfast_jobs WHERE id = 'parent'")
    lab.put("good", after=("parent",))
    lab.engine.repair()
    for id in ("bad", "good", "parent"):
        lab.engine.relatives(id)
        assert lab.engine.get(id) is not None
    kill(lab, "parent")
    assert states(lab, "good") == [CANCELLED]
    lab.engine.replay("parent")
    lab.engine.repair()
    assert states(lab, "good") == [BLOCKED]
    complete(lab, "other", "parent")
    lab.engine.cancel("bad")
    lab.engine.replay("bad")
    assert "good" in [lease.id for lease in lab.claim()]
    assert lab.engine.repair() == 0


def test_a_damaged_policy_does_not_stop_a_replay(lab: Lab, quick_path: Path) -> None:
    lab.put("parent")
    lab.put("child", after=("parent",))
    kill(lab, "parent")
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_edges SET policy = 'x'")
    lab.engine.replay("child")
    complete(lab, "child")
