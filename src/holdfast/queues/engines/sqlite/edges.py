"""Edges between jobs in an SQLite file, in the open transaction of a verb.

There is one writer at a time: no parent can finish, and no child can change, while a transaction reads these rows. So
nothing is locked, and the transaction that leaves a note resolves it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from holdfast.errors import UnknownParent
from holdfast.queues.contract import Change, Edge, EdgeRows, Turn, parents_of
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.sqlite.connections import as_json
from holdfast.queues.engines.sqlite.damage import change_jobs
from holdfast.queues.engines.sqlite.notes import note_ended, note_reopened
from holdfast.queues.engines.sqlite.transactions import SqliteStatements
from holdfast.queues.engines.tables.rows import Row
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD,
    EDGE_CANCELLED,
    FORGOTTEN,
    OUTCOME_CODES,
    OUTCOMES,
    POLICY_CODES,
    STATES,
    WAITING,
)
from holdfast.values import PARENT_FAILED, EdgeOutcome, JobEnvelope, JobState

NUMBERS: Final = f"""
    SELECT id, seq FROM holdfast_jobs WHERE id IN (SELECT value FROM json_each(?)) AND state < {FORGOTTEN}"""

INSERT_EDGE: Final = "INSERT INTO holdfast_edges (parent, child, policy) VALUES (?, ?, ?)"

BLOCK_CHILDREN: Final = f"UPDATE holdfast_jobs SET state = {BLOCKED} WHERE seq IN (SELECT value FROM json_each(?))"

# Edges that cannot be turned, because they are damaged, must not keep a note alive.
_HAS_CANCELLED: Final = f"""
    EXISTS (SELECT 1 FROM holdfast_edges AS e
            WHERE e.parent = n.parent AND e.outcome = {EDGE_CANCELLED} AND e.policy IN (0, 1, 2)
                AND typeof(e.child) = 'integer')"""

DISMISS: Final = f"""
    DELETE FROM holdfast_notes AS n
    WHERE EXISTS (SELECT 1 FROM holdfast_jobs AS j
                  WHERE j.seq = n.parent AND j.state NOT IN ({COMPLETED}, {DEAD}, {CANCELLED}, {FORGOTTEN}))
        AND NOT {_HAS_CANCELLED}"""

# A state that Holdfast does not write is treated as unfinished.
PARENTS: Final = f"""
    SELECT n.parent, j.state
    FROM holdfast_notes AS n LEFT JOIN holdfast_jobs AS j ON j.seq = n.parent AND j.state <> {FORGOTTEN}
    WHERE j.seq IS NULL OR j.state IN ({COMPLETED}, {DEAD}, {CANCELLED}) OR {_HAS_CANCELLED}
    ORDER BY n.parent LIMIT ?"""

# A row whose child is not a number cannot be updated.
EDGES: Final = """
    SELECT child FROM holdfast_edges
    WHERE parent = ? AND outcome = ? AND policy = ? AND typeof(child) = 'integer' ORDER BY child LIMIT ?"""

CHILDREN: Final = f"""
    SELECT seq, state FROM holdfast_jobs
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND (state = {BLOCKED} OR state = {CANCELLED} AND cancel_reason = '{PARENT_FAILED}')
    ORDER BY seq"""

TURN: Final = "UPDATE holdfast_edges SET outcome = ? WHERE child = ? AND parent = ? AND outcome = ?"

EDGE_OUTCOMES: Final = """
    SELECT DISTINCT child, outcome FROM holdfast_edges WHERE child IN (SELECT value FROM json_each(:seqs))"""

RELEASE: Final = f"""
    UPDATE holdfast_jobs SET state = {WAITING}
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = {BLOCKED} RETURNING seq"""

CANCEL: Final = f"""
    UPDATE holdfast_jobs
    SET state = {CANCELLED}, cancel_reason = '{PARENT_FAILED}', cancel_request = NULL, finished_at = :now
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = {BLOCKED} RETURNING seq"""

REOPEN: Final = f"""
    UPDATE holdfast_jobs SET state = {BLOCKED}, cancel_reason = NULL, finished_at = NULL
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = {CANCELLED} RETURNING seq"""

FORGET: Final = "DELETE FROM holdfast_notes WHERE parent IN (SELECT value FROM json_each(:seqs))"


class SqliteEdges(EdgeRows):
    """The edges in an SQLite file."""

    def __init__(self, connection: SqliteStatements, sql: Callable[[str], str], now_us: int) -> None:
        self._connection = connection
        self._sql = sql
        self.now_us = now_us

    def dismiss(self) -> None:
        self._connection.execute(self._sql(DISMISS))

    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        rows = self._connection.execute(self._sql(PARENTS), (limit,)).fetchall()
        return {parent: None if state is None else STATES.get(state, JobState.BLOCKED) for parent, state in rows}

    def edges(self, turns: Sequence[Turn], limit: int) -> list[Edge]:
        found: list[Edge] = []
        for parent, on_failure, before, after in turns:
            query = (parent, OUTCOME_CODES[before], POLICY_CODES[on_failure], limit - len(found))
            children = self._connection.execute(self._sql(EDGES), query)
            found += [Edge(parent, child, before, after) for (child,) in children]
        return found

    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        return {seq: STATES[state] for seq, state in self._rows(CHILDREN, children)}

    def turn(self, edges: Sequence[Edge]) -> None:
        rows = [(OUTCOME_CODES[one.after], one.child, one.parent, OUTCOME_CODES[one.before]) for one in edges]
        self._connection.executemany(self._sql(TURN), rows)

    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        rows = self._rows(EDGE_OUTCOMES, children)
        return {(child, OUTCOMES.get(outcome, EdgeOutcome.OPEN)) for child, outcome in rows}

    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        match change:
            case Change.RELEASE:
                self._change(RELEASE, children)
            case Change.CANCEL:
                note_ended(self._connection, self._sql, self._change(CANCEL, children))
            case Change.REOPEN:
                note_reopened(self._connection, self._sql, self._change(REOPEN, children))

    def forget(self, parents: Sequence[JobNumber]) -> None:
        self._connection.execute(self._sql(FORGET), {"seqs": as_json(parents)})

    def _change(self, statement: str, numbers: Sequence[JobNumber]) -> list[JobNumber]:
        return list(change_jobs(self._connection, self._sql, statement, numbers, self.now_us))

    def _rows(self, statement: str, numbers: Sequence[JobNumber]) -> list[Row]:
        return self._connection.execute(self._sql(statement), {"seqs": as_json(numbers)}).fetchall()


def connect(connection: SqliteStatements, sql: Callable[[str], str], children: Sequence[JobEnvelope]) -> None:
    """Add the edges of jobs that were just stored, and block these jobs."""
    ids = as_json([*parents_of(children), *(one.id for one in children)])
    numbers: dict[str, int] = dict(connection.execute(sql(NUMBERS), (ids,)).fetchall())
    edges = [edge for child in children for edge in _edges(child, numbers)]
    connection.executemany(sql(INSERT_EDGE), edges)
    connection.execute(sql(BLOCK_CHILDREN), (as_json([numbers[one.id] for one in children]),))
    note_ended(connection, sql, list({parent for parent, _, _ in edges}))


def _edges(child: JobEnvelope, numbers: Mapping[str, int]) -> Iterable[tuple[int, int, int]]:
    for parent in child.after:
        if parent not in numbers:
            raise UnknownParent(child.id, parent)
        yield numbers[parent], numbers[child.id], POLICY_CODES[child.on_parent_failure]
