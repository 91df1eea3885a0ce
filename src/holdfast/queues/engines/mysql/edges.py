"""Edges between jobs in MySQL or MariaDB: the rows on which `contract/edges.py` decides.

The lock of a child is its row in `jobs`: a transaction that turns its edges, replays it or reschedules it holds that
lock. Notes and edges are read without a lock first and then locked, updated or deleted by their primary keys, because
a locking scan would wait for the rows that a caller's open transaction has inserted. If the server can skip locked
rows, no transaction that resolves notes waits for a lock on a parent.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from holdfast.errors import BackendError, UnknownParent
from holdfast.queues.contract import (
    MAX_CHILDREN,
    Change,
    Edge,
    EdgeRows,
    Resolved,
    Turn,
    parents_of,
    resolve,
    resolve_all,
)
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.mysql.connections import MysqlConnections, Session, chunks, pieces
from holdfast.queues.engines.mysql.lanes import PLACE
from holdfast.queues.engines.mysql.statements import MysqlStatements, rows_of_ids
from holdfast.queues.engines.tables.rows import Row, text
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    EDGE_CANCELLED,
    EDGE_MET,
    EDGE_OPEN,
    FORGOTTEN,
    OUTCOME_CODES,
    OUTCOMES,
    POLICY_CODES,
    STATES,
    WAITING,
)
from holdfast.values import PARENT_FAILED, EdgeOutcome, JobEnvelope, JobState, OnParentFailure

NOTES_AT_ONCE: Final = 10_000

NUMBERS: Final = f"SELECT id, seq FROM holdfast_jobs WHERE id IN %s AND state < {FORGOTTEN}"

# The key exists only if the table was damaged: numbers are not assigned again.
INSERT_EDGES: Final = f"""
    INSERT INTO holdfast_edges (parent, child, policy) VALUES (%s, %s, %s)
    ON DUPLICATE KEY UPDATE policy = VALUES(policy), outcome = {EDGE_OPEN}"""
INSERT_NOTES: Final = "INSERT INTO holdfast_notes (parent) VALUES (%s)"

# The lowest and the highest outcome are one lookup each in the index, however many children a job has.
IS_UNMET: Final = f"GROUP BY parent HAVING MIN(outcome) = {EDGE_OPEN} OR MAX(outcome) = {EDGE_CANCELLED}"
UNMET: Final = f"SELECT parent FROM holdfast_edges FORCE INDEX (by_parent) WHERE parent IN %s {IS_UNMET}"
UNFINISHED: Final = f"""
    SELECT seq FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s AND state < {COMPLETED}"""

_HAS_CANCELLED: Final = f"""
    EXISTS (SELECT 1 FROM holdfast_edges AS e FORCE INDEX (by_parent)
            WHERE e.parent = n.parent AND e.outcome = {EDGE_CANCELLED})"""

UNNEEDED: Final = f"""
    SELECT STRAIGHT_JOIN n.id FROM holdfast_notes AS n FORCE INDEX (PRIMARY)
    JOIN holdfast_jobs AS j FORCE INDEX (PRIMARY) ON j.seq = n.parent AND j.state < {COMPLETED}
    WHERE NOT {_HAS_CANCELLED} ORDER BY n.id LIMIT {NOTES_AT_ONCE}"""
LOCK_UNFINISHED: Final = f"{UNFINISHED} FOR UPDATE"
# While a transaction that has read the old state of a parent cancels its children, it has locked a note on the parent.
STILL_NEEDED: Final = f"""
    SELECT parent, id FROM holdfast_notes FORCE INDEX (by_parent) WHERE parent IN %(seqs)s
    UNION ALL SELECT parent, 0 FROM holdfast_edges FORCE INDEX (by_parent)
    WHERE parent IN %(seqs)s AND outcome = {EDGE_CANCELLED} GROUP BY parent"""

NOTES: Final = f"""
    SELECT n.id, n.parent FROM holdfast_notes AS n FORCE INDEX (PRIMARY)
    LEFT JOIN holdfast_jobs AS j ON j.seq = n.parent
    WHERE n.id > %s AND (j.seq IS NULL OR j.state >= {COMPLETED} OR {_HAS_CANCELLED}) ORDER BY n.id LIMIT %s"""
LOCK_NOTES: Final = "SELECT id, parent FROM holdfast_notes FORCE INDEX (PRIMARY) WHERE id IN %s FOR UPDATE"
DELETE_NOTES: Final = "DELETE n FROM holdfast_notes AS n FORCE INDEX (PRIMARY) WHERE n.id IN %s"
PARENT_STATES: Final = "SELECT seq, state FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s"
LOCK_PARENTS: Final = f"{PARENT_STATES} FOR UPDATE"

EDGES: Final = """
    SELECT parent, child FROM holdfast_edges FORCE INDEX (by_parent)
    WHERE parent IN %s AND outcome = %s AND policy = %s LIMIT %s"""
KNOWN_CHILDREN: Final = "SELECT seq FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s"
LOCK_CHILDREN: Final = f"""
    SELECT seq, state, COALESCE(cancel_reason = '{PARENT_FAILED}', 0) FROM holdfast_jobs FORCE INDEX (PRIMARY)
    WHERE seq IN %s FOR UPDATE"""
TURN: Final = """
    UPDATE holdfast_edges FORCE INDEX (PRIMARY) SET outcome = %s WHERE (parent, child) IN %s AND outcome = %s"""
CHILD_OUTCOMES: Final = """
    SELECT child, outcome FROM holdfast_edges FORCE INDEX (by_child) WHERE child IN %s GROUP BY child, outcome"""

RELEASE: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET state = {WAITING},{PLACE}
    WHERE seq IN %s AND state = {BLOCKED}"""
CANCEL: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY)
    SET state = {CANCELLED}, cancel_reason = '{PARENT_FAILED}', cancel_request = NULL, finished_at = %s,{PLACE}
    WHERE seq IN %s AND state = {BLOCKED}"""
REOPEN: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET state = {BLOCKED}, cancel_reason = NULL, finished_at = 0,{PLACE}
    WHERE seq IN %s AND state = {CANCELLED} AND cancel_reason = '{PARENT_FAILED}'"""

UNMET_PARENTS: Final = f"""
    SELECT parent, outcome FROM holdfast_edges FORCE INDEX (by_child)
    WHERE child = %s AND outcome IN ({EDGE_OPEN}, {EDGE_CANCELLED})"""
BLOCK_AGAIN: Final = f"UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET state = {BLOCKED},{PLACE} WHERE seq = %s"

PARENT_OUTCOMES: Final = """
    SELECT parent, child, outcome FROM holdfast_edges FORCE INDEX (by_child) WHERE child IN %s"""


class MysqlEdges(EdgeRows):
    """The edges in a MySQL or MariaDB database. If `waits` is False, children that other transactions have locked are
    passed over: their parents are added to `passed`, and the notes on these stay, as do those on parents that change.
    """

    def __init__(self, session: Session, connections: MysqlConnections, *, passed: set[JobNumber], waits: bool) -> None:
        self._session = session
        self._sql = connections.sql
        self._skip = " SKIP LOCKED" if connections.skips_locked else ""
        self._passed = passed
        self._waits = waits
        self._notes: Sequence[Row] = ()
        self._states: dict[JobNumber, int] = {}
        self._has_more = False
        self.now_us = 0

    def dismiss(self) -> None:
        found = [id for (id,) in self._session.rows(self._sql(UNNEEDED))]
        notes: dict[int, int] = dict(self._rows(LOCK_NOTES + self._skip, found))
        unfinished = {seq for (seq,) in self._rows(LOCK_UNFINISHED + self._skip, notes.values())}
        for seqs in chunks(unfinished):
            rows = self._session.rows(self._sql(STILL_NEEDED), {"seqs": seqs})
            unfinished -= {parent for parent, id in rows if id not in notes}
        self._run(DELETE_NOTES, [id for id, parent in notes.items() if parent in unfinished])

    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        self._notes, last = (), 0
        while not self._notes and (found := self._session.rows(self._sql(NOTES), (last, limit))):
            ids = [id for id, parent in found if parent not in self._passed]
            self._notes, last = self._rows(LOCK_NOTES + self._skip, ids), found[-1][0]
        if not self._notes:
            return {}
        self._states = dict(self._rows(PARENT_STATES, [parent for _, parent in self._notes]))
        self.now_us = self._session.now()
        return {parent: STATES.get(self._states.get(parent, FORGOTTEN)) for _, parent in self._notes}

    def edges(self, turns: Sequence[Turn], limit: int) -> list[Edge]:
        groups: dict[tuple[EdgeOutcome, OnParentFailure], dict[JobNumber, EdgeOutcome]] = {}
        for one in turns:
            groups.setdefault((one.before, one.on_failure), {})[one.parent] = one.after
        found: list[Edge] = []
        for (before, on_failure), afters in groups.items():
            query = (sorted(map(int, afters)), OUTCOME_CODES[before], POLICY_CODES[on_failure], limit - len(found))
            rows = self._session.rows(self._sql(EDGES), query)
            found += [Edge(parent, child, before, afters[parent]) for parent, child in rows]
        if self._waits or not found:
            return found
        self._has_more = len(found) == limit
        children = [one.child for one in found]
        locked = {seq for seq, *_ in self._rows(LOCK_CHILDREN + self._skip, children)}
        others = {seq for (seq,) in self._rows(KNOWN_CHILDREN, children)} - locked
        self._passed |= {one.parent for one in found if one.child in others}
        return [one for one in found if one.child not in others]

    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        return {
            seq: STATES[state]
            for seq, state, has_failed_parent in self._rows(LOCK_CHILDREN, children)
            if state == BLOCKED or (state == CANCELLED and has_failed_parent)
        }

    def turn(self, edges: Sequence[Edge]) -> None:
        groups: dict[tuple[EdgeOutcome, EdgeOutcome], list[tuple[int, int]]] = {}
        for one in edges:
            groups.setdefault((one.before, one.after), []).append((int(one.parent), int(one.child)))
        for (before, after), pairs in groups.items():
            for some in pieces(sorted(pairs)):
                self._session.run(self._sql(TURN), (OUTCOME_CODES[after], some, OUTCOME_CODES[before]))

    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        return {(child, OUTCOMES[outcome]) for child, outcome in self._rows(CHILD_OUTCOMES, children)}

    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        match change:
            case Change.RELEASE:
                self._run(RELEASE, children)
            case Change.CANCEL:
                self._run(CANCEL, children, self.now_us)
                note(self._session, self._sql, children)
            case Change.REOPEN:
                self._run(REOPEN, children)
                note(self._session, self._sql, children)

    def forget(self, parents: Sequence[JobNumber]) -> None:
        if self._has_more:
            return
        # A transaction that replays or deletes a parent may have looked for its edges before one was committed. Only
        # this note leads to that edge, so it stays until the parent is unlocked and its state is read again.
        known = [parent for parent in parents if self._states.get(parent, FORGOTTEN) != FORGOTTEN]
        states: dict[JobNumber, int] = dict(self._rows(LOCK_PARENTS + self._skip, known))
        self._passed |= {parent for parent in known if states.get(parent) != self._states[parent]}
        done = set(parents) - self._passed
        self._run(DELETE_NOTES, [id for id, parent in self._notes if parent in done])

    def _rows(self, statement: str, numbers: Iterable[JobNumber]) -> list[Row]:
        return [row for some in chunks(numbers) for row in self._session.rows(self._sql(statement), (some,))]

    def _run(self, statement: str, numbers: Iterable[JobNumber], *values: Any) -> None:
        for some in chunks(numbers):
            self._session.run(self._sql(statement), (*values, some))


def connect(session: MysqlStatements, connections: MysqlConnections, children: Sequence[JobEnvelope]) -> None:
    """Store the edges of jobs that were just stored, and notes on their parents. Nothing is locked."""
    ids = sorted({*parents_of(children), *(one.id for one in children)})
    numbers: dict[str, int] = {text(id): seq for id, seq in rows_of_ids(session, connections, NUMBERS, ids)}
    edges: list[tuple[int, int, int]] = []
    for one in children:
        for parent in one.after:
            if parent not in numbers:
                raise UnknownParent(one.id, parent)
            edges.append((numbers[parent], numbers[one.id], POLICY_CODES[one.on_parent_failure]))
    session.insert(connections.sql(INSERT_EDGES), sorted(edges))
    session.insert(connections.sql(INSERT_NOTES), sorted({(parent,) for parent, *_ in edges}))


def note(session: Session, sql: Callable[[str], str], seqs: Collection[JobNumber]) -> bool:
    """Leave notes on those of these jobs that have edges to turn, and return whether there are any."""
    parents = [row for some in chunks(seqs) for row in session.rows(sql(UNMET), (some,))]
    session.insert(sql(INSERT_NOTES), parents)
    return bool(parents)


def note_ended(session: Session, sql: Callable[[str], str], seqs: Collection[JobNumber]) -> bool:
    """The same for those that have ended or were deleted."""
    parents = [parent for some in chunks(seqs) for (parent,) in session.rows(sql(UNMET), (some,))]
    return note_parents(session, sql, parents)


def note_parents(session: Session, sql: Callable[[str], str], parents: Collection[JobNumber]) -> bool:
    """The same for jobs that have edges to turn."""
    unfinished = {seq for some in chunks(parents) for (seq,) in session.rows(sql(UNFINISHED), (some,))}
    ended = sorted((parent,) for parent in parents if parent not in unfinished)
    session.insert(sql(INSERT_NOTES), ended)
    return bool(ended)


def wait_again(session: Session, sql: Callable[[str], str], seq: JobNumber) -> None:
    """Block a job that was just replayed, and is locked, if it waits for others. Failed parents no longer count."""
    unmet = session.rows(sql(UNMET_PARENTS), (seq,))
    for some in pieces([(parent, seq) for parent, outcome in unmet if outcome == EDGE_CANCELLED]):
        session.run(sql(TURN), (EDGE_MET, some, EDGE_CANCELLED))
    if any(outcome == EDGE_OPEN for _, outcome in unmet):
        session.run(sql(BLOCK_AGAIN), (seq,))


def waiting_for_parents(
    session: MysqlStatements, connections: MysqlConnections, seqs: Collection[JobNumber]
) -> set[JobNumber]:
    """Those of these jobs, which are locked, that wait for parents. The outcomes in a caller's snapshot may be old, but
    only the snapshot has the edges of the caller's own jobs.
    """

    def read(session: MysqlStatements) -> dict[tuple[int, int], int]:
        lists = (session.rows(connections.sql(PARENT_OUTCOMES), (some,)) for some in chunks(seqs))
        return {(parent, child): outcome for rows in lists for parent, child, outcome in rows}

    outcomes = read(session)
    if not isinstance(session, Session):
        outcomes |= connections.run(read)
    return {child for (_, child), outcome in outcomes.items() if outcome == EDGE_OPEN}


def resolve_notes(connections: MysqlConnections, limit: int | None = None) -> int:
    """Do what the notes imply, in transactions of their own, until there are none or `limit` edges were changed.
    Returns how many edges were changed.
    """
    passed: set[JobNumber] = set()
    waits = True

    def rows(session: Session) -> MysqlEdges:
        return MysqlEdges(session, connections, passed=passed, waits=waits)

    def resolving(session: Session) -> Resolved:
        nonlocal waits
        try:
            return resolve(rows(session))
        except pymysql.OperationalError as problem:
            if problem.args[0] == ER.LOCK_WAIT_TIMEOUT:
                # A caller's transaction may hold the lock on a child for long. Other children do not wait for it.
                waits = not connections.skips_locked
            raise

    connections.transact(lambda session: rows(session).dismiss())
    return resolve_all(lambda: connections.transact(resolving), limit)


def resolve_soon(connections: MysqlConnections) -> None:
    """Resolve the notes of a transaction that was just committed. `repair` completes whatever this leaves undone."""
    with suppress(BackendError):
        resolve_notes(connections, MAX_CHILDREN)
