"""Edges between jobs in PostgreSQL: the rows on which `contract/edges.py` decides.

A job is in `open_jobs` or in `ended_jobs`, and moves between them. So the lock of a child is its row in `jobs`, which
stays: a transaction that turns its edges or replays it holds that lock. The row in `open_jobs` is locked before it, as
by a transaction that reschedules the job. No transaction that resolves notes waits for a lock on a parent.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg

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
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections, conversation
from holdfast.queues.engines.postgres.statements import CLOCK, PostgresStatements, numbers
from holdfast.queues.engines.tables.rows import Row
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
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
from holdfast.values import PARENT_FAILED, EdgeOutcome, JobEnvelope, JobState

EDGES_AT_ONCE: Final = 10_000
NOTES_AT_ONCE: Final = 10_000

NUMBERS: Final = f"""
    SELECT j.id, j.seq FROM holdfast.jobs AS j
    WHERE j.id = ANY (:ids::text[])
        AND NOT EXISTS (SELECT 1 FROM holdfast.ended_jobs AS e WHERE e.seq = j.seq AND e.state = {FORGOTTEN})"""

CONNECT: Final = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(:parents::bigint[], :children::bigint[], :policies::smallint[])
            AS g (parent, child, policy)
    ), noted AS (
        INSERT INTO holdfast.notes (parent) SELECT DISTINCT parent FROM given
    )
    INSERT INTO holdfast.edges (parent, child, policy) SELECT * FROM given ON CONFLICT DO NOTHING"""

# One index entry for each job, whatever plan was made when the table was empty.
NOTE: Final = f"""
    INSERT INTO holdfast.notes (parent)
    SELECT edge.parent FROM unnest(:seqs::bigint[]) AS given (seq) CROSS JOIN LATERAL (
        SELECT e.parent FROM holdfast.edges AS e WHERE e.parent = given.seq AND e.outcome <> {EDGE_MET} LIMIT 1
    ) AS edge"""

NOTE_ENDED: Final = f"""
    {NOTE}
    WHERE coalesce((SELECT false FROM holdfast.open_jobs AS o WHERE o.seq = edge.parent), true)"""

_HAS_CANCELLED: Final = f"""
    EXISTS (SELECT 1 FROM holdfast.edges AS e WHERE e.parent = n.parent AND e.outcome = {EDGE_CANCELLED})"""

# While a transaction that has read the old state of a parent cancels its children, it has locked a note on the parent.
DISMISS: Final = f"""
    WITH found AS MATERIALIZED (
        SELECT n.id, n.parent FROM holdfast.notes AS n
        WHERE EXISTS (SELECT 1 FROM holdfast.open_jobs AS o WHERE o.seq = n.parent) AND NOT {_HAS_CANCELLED}
        ORDER BY n.id LIMIT {NOTES_AT_ONCE} FOR UPDATE OF n SKIP LOCKED
    ), unfinished AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs WHERE seq IN (SELECT parent FROM found) FOR SHARE SKIP LOCKED
    ), others AS MATERIALIZED (
        SELECT parent FROM holdfast.notes WHERE id NOT IN (SELECT id FROM found)
    )
    DELETE FROM holdfast.notes WHERE id IN (
        SELECT id FROM found
        WHERE parent IN (SELECT seq FROM unfinished) AND parent NOT IN (SELECT parent FROM others)
    )"""

LOCK_NOTES: Final = f"""
    SELECT n.id, n.parent FROM holdfast.notes AS n
    WHERE n.parent <> ALL (:passed::bigint[])
        AND (NOT EXISTS (SELECT 1 FROM holdfast.open_jobs AS o WHERE o.seq = n.parent) OR {_HAS_CANCELLED})
    ORDER BY n.id LIMIT :limit FOR UPDATE OF n SKIP LOCKED"""

# One snapshot of both tables: a job that moves between two statements would look deleted.
PARENT_STATES: Final = f"""
    SELECT given.seq, coalesce(o.state, e.state), {CLOCK} FROM unnest(:seqs::bigint[]) AS given (seq)
    LEFT JOIN holdfast.open_jobs AS o ON o.seq = given.seq
    LEFT JOIN holdfast.ended_jobs AS e ON e.seq = given.seq"""

EDGES: Final = f"""
    SELECT turn.parent, found.child, turn.before, turn.after
    FROM unnest(:parents::bigint[], :policies::smallint[], :befores::smallint[], :afters::smallint[])
        AS turn (parent, policy, before, after)
    CROSS JOIN LATERAL (
        SELECT e.child FROM holdfast.edges AS e
        WHERE e.parent = turn.parent AND e.outcome = turn.before AND e.policy = turn.policy AND e.outcome <> {EDGE_MET}
        ORDER BY e.child LIMIT :limit
    ) AS found
    LIMIT :limit"""

LOCK_BLOCKED: Final = f"""
    SELECT seq FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED}
    ORDER BY seq FOR UPDATE"""
LOCK_CHILDREN: Final = "SELECT seq FROM holdfast.jobs WHERE seq = ANY (:seqs::bigint[]) ORDER BY seq FOR UPDATE"

# Those that no other transaction has locked.
FREE_CHILDREN: Final = f"""
    WITH blocked AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED}
        ORDER BY seq FOR UPDATE SKIP LOCKED
    ), jobs AS MATERIALIZED (
        SELECT seq FROM holdfast.jobs WHERE seq = ANY (:seqs::bigint[]) ORDER BY seq FOR UPDATE SKIP LOCKED
    )
    SELECT seq FROM unnest(:seqs::bigint[]) AS given (seq)
    WHERE (seq IN (SELECT seq FROM jobs) OR NOT EXISTS (SELECT 1 FROM holdfast.jobs AS j WHERE j.seq = given.seq))
        AND (seq IN (SELECT seq FROM blocked) OR NOT EXISTS (
            SELECT 1 FROM holdfast.open_jobs AS o WHERE o.seq = given.seq AND o.state = {BLOCKED}))"""

CHILD_STATES: Final = f"""
    SELECT seq, state FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED}
    UNION ALL
    SELECT seq, state FROM holdfast.ended_jobs
    WHERE seq = ANY (:seqs::bigint[]) AND state = {CANCELLED} AND cancel_reason = '{PARENT_FAILED}'"""

TURN: Final = """
    UPDATE holdfast.edges AS e SET outcome = turn.after
    FROM unnest(:parents::bigint[], :children::bigint[], :befores::smallint[], :afters::smallint[])
        AS turn (parent, child, before, after)
    WHERE e.parent = turn.parent AND e.child = turn.child AND e.outcome = turn.before"""

CHILD_OUTCOMES: Final = "SELECT DISTINCT child, outcome FROM holdfast.edges WHERE child = ANY (:seqs::bigint[])"

RELEASE: Final = f"""
    UPDATE holdfast.open_jobs SET state = {WAITING} WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED}
    RETURNING queue"""

CANCEL: Final = f"""
    WITH cancelled AS (
        DELETE FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED} RETURNING *
    )
    INSERT INTO holdfast.ended_jobs (seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error,
        state, finished_at, cancel_reason)
    SELECT seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error, {CANCELLED}, :now,
        '{PARENT_FAILED}'
    FROM cancelled ON CONFLICT (seq) DO NOTHING"""

REOPEN: Final = f"""
    WITH revived AS (
        DELETE FROM holdfast.ended_jobs
        WHERE seq = ANY (:seqs::bigint[]) AND state = {CANCELLED} AND cancel_reason = '{PARENT_FAILED}' RETURNING *
    )
    INSERT INTO holdfast.open_jobs (seq, id, priority, queue, due_at, attempts, crashes, deliveries, ignore_expiry,
        last_error, state)
    SELECT j.seq, j.id, j.priority, j.queue, revived.due_at, revived.attempts, revived.crashes, revived.deliveries,
        revived.ignore_expiry, revived.last_error, {BLOCKED}
    FROM revived JOIN holdfast.jobs AS j ON j.seq = revived.seq ON CONFLICT (seq) DO NOTHING"""

LOCK_ENDED: Final = "SELECT seq, state FROM holdfast.ended_jobs WHERE seq = ANY (:seqs::bigint[]) FOR SHARE SKIP LOCKED"

FORGET_NOTES: Final = "DELETE FROM holdfast.notes WHERE id = ANY (:ids::bigint[])"

# For a job that was just replayed, under the lock of its row in `jobs`: it runs although these parents have failed.
WAIT_AGAIN: Final = f"""
    WITH disregarded AS (
        UPDATE holdfast.edges SET outcome = {EDGE_MET} WHERE child = :seq AND outcome = {EDGE_CANCELLED}
    )
    UPDATE holdfast.open_jobs SET state = {BLOCKED} WHERE seq = :seq AND EXISTS (
        SELECT 1 FROM holdfast.edges AS e WHERE e.child = :seq AND e.outcome = {EDGE_OPEN})"""


class PostgresEdges(EdgeRows):
    """The edges in a PostgreSQL database. If `waits` is False, children that other transactions have locked are passed
    over: their parents are added to `passed`, and the notes on these stay.
    """

    def __init__(
        self,
        connection: Connection,
        sql: Callable[[str], bytes],
        announcements: Announcements,
        *,
        passed: set[JobNumber],
        waits: bool,
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._announcements = announcements
        self._passed = passed
        self._waits = waits
        self._notes: Sequence[Row] = ()
        self._codes: Mapping[JobNumber, int] = {}
        self._has_more = False
        self.now_us = 0

    def dismiss(self) -> None:
        self._connection.execute(self._sql(DISMISS))

    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        self._notes = self._rows(LOCK_NOTES, {"limit": limit, "passed": numbers(self._passed)})
        if not self._notes:
            return {}
        rows = self._rows(PARENT_STATES, {"seqs": numbers({parent for _, parent in self._notes})})
        self.now_us = rows[0][-1]
        self._codes = {seq: FORGOTTEN if code is None else code for seq, code, _ in rows}
        states = {seq: STATES.get(code) for seq, code in self._codes.items()}
        return {parent: states[parent] for _, parent in self._notes}

    def edges(self, turns: Sequence[Turn], limit: int) -> list[Edge]:
        query = {
            "parents": numbers(one.parent for one in turns),
            "policies": numbers(POLICY_CODES[one.on_failure] for one in turns),
            "befores": numbers(OUTCOME_CODES[one.before] for one in turns),
            "afters": numbers(OUTCOME_CODES[one.after] for one in turns),
            "limit": limit,
        }
        rows = self._rows(EDGES, query)
        found = [Edge(parent, child, OUTCOMES[before], OUTCOMES[after]) for parent, child, before, after in rows]
        if self._waits or not found:
            return found
        self._has_more = len(found) == limit
        free = {seq for (seq,) in self._rows(FREE_CHILDREN, {"seqs": numbers({one.child for one in found})})}
        self._passed |= {one.parent for one in found if one.child not in free}
        return [one for one in found if one.child in free]

    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        query = {"seqs": numbers(children)}
        self._connection.execute(self._sql(LOCK_BLOCKED), query)
        self._connection.execute(self._sql(LOCK_CHILDREN), query)
        return {seq: STATES[code] for seq, code in self._rows(CHILD_STATES, query)}

    def turn(self, edges: Sequence[Edge]) -> None:
        query = {
            "parents": numbers(one.parent for one in edges),
            "children": numbers(one.child for one in edges),
            "befores": numbers(OUTCOME_CODES[one.before] for one in edges),
            "afters": numbers(OUTCOME_CODES[one.after] for one in edges),
        }
        self._connection.execute(self._sql(TURN), query)

    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        return {(child, OUTCOMES[code]) for child, code in self._rows(CHILD_OUTCOMES, {"seqs": numbers(children)})}

    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        query = {"seqs": numbers(children), "now": self.now_us}
        match change:
            case Change.RELEASE:
                # Announced at once, even if the workers were woken just now: nothing else may wake them again.
                queues = {queue for (queue,) in self._rows(RELEASE, query)}
                self._announcements.announce_now(self._connection, queues)
            case Change.CANCEL:
                self._connection.execute(self._sql(CANCEL), query)
                self._connection.execute(self._sql(NOTE_ENDED), query)
            case Change.REOPEN:
                self._connection.execute(self._sql(REOPEN), query)
                self._connection.execute(self._sql(NOTE), query)

    def forget(self, parents: Sequence[JobNumber]) -> None:
        if self._has_more:
            return
        # A transaction that replays or deletes a parent may have looked for its edges before one was committed. Only
        # this note leads to that edge, so it stays until the parent is unlocked and its state is read again.
        known = {one: code for one in parents if (code := self._codes[one]) != FORGOTTEN}
        codes: dict[JobNumber, int] = dict(self._rows(LOCK_ENDED, {"seqs": numbers(known)}))
        self._passed |= {one for one, code in known.items() if codes.get(one) != code}
        done = set(parents) - self._passed
        query = {"ids": numbers(id for id, parent in self._notes if parent in done)}
        self._connection.execute(self._sql(FORGET_NOTES), query)

    def _rows(self, statement: str, query: dict[str, Any]) -> Sequence[Row]:
        return self._connection.execute(self._sql(statement), query).fetchall()


def connect(connection: PostgresStatements, connections: PostgresConnections, children: Sequence[JobEnvelope]) -> None:
    """Store the edges of jobs that were just stored, and notes on their parents. Nothing is locked."""
    ids = list(dict.fromkeys([*parents_of(children), *(one.id for one in children)]))
    seqs: dict[str, int] = dict(connection.execute(connections.sql(NUMBERS), {"ids": ids}).fetchall())
    # The snapshot of a caller's transaction may be older than a parent.
    if missing := [id for id in ids if id not in seqs]:
        seqs |= dict(connections.rows(NUMBERS, {"ids": missing}))
    edges: list[tuple[int, int, int]] = []
    for one in children:
        for parent in one.after:
            if parent not in seqs:
                raise UnknownParent(one.id, parent)
            edges.append((seqs[parent], seqs[one.id], POLICY_CODES[one.on_parent_failure]))
    # In parts, for the same reason as the jobs.
    for start in range(0, len(edges), EDGES_AT_ONCE):
        columns = zip(*edges[start : start + EDGES_AT_ONCE], strict=True)
        query: dict[str, Any] = dict(zip(("parents", "children", "policies"), map(numbers, columns), strict=True))
        connection.execute(connections.sql(CONNECT), query)


def note(connection: Connection, sql: Callable[[str], bytes], statement: str, seqs: Collection[JobNumber]) -> bool:
    """Leave notes on those of these jobs that the statement selects, and return whether there are any."""
    return bool(seqs) and connection.execute(sql(statement), {"seqs": numbers(seqs)}).rowcount > 0


def resolve_notes(connections: PostgresConnections, announcements: Announcements, limit: int | None = None) -> int:
    """Do what the notes imply, in transactions of their own, until there are none or `limit` edges were changed.
    Returns how many edges were changed.
    """
    passed: set[JobNumber] = set()
    waits = True

    def rows(connection: Connection) -> PostgresEdges:
        return PostgresEdges(connection, connections.sql, announcements, passed=passed, waits=waits)

    def resolving(connection: Connection) -> Resolved:
        nonlocal waits
        try:
            with conversation(connection):
                return resolve(rows(connection))
        except psycopg.errors.LockNotAvailable:
            # A caller's transaction may hold the lock on a child for long. Other children do not wait for it.
            waits = False
            raise

    connections.run(lambda connection: rows(connection).dismiss())
    return resolve_all(lambda: connections.run(resolving), limit)


def resolve_soon(connections: PostgresConnections, announcements: Announcements) -> None:
    """Resolve the notes of a transaction that was just committed. `repair` completes whatever this leaves undone."""
    with suppress(BackendError):
        resolve_notes(connections, announcements, MAX_CHILDREN)
