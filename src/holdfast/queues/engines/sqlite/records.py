"""Reading and operating the records that `jobs.py` writes in an SQLite file."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.clock import Clock, duration_us
from holdfast.codec import content_digest
from holdfast.errors import BackendError
from holdfast.queues.contract import (
    IDLE_SLOT_S,
    PRUNE_BATCH,
    SHOWN_RELATIVES,
    SHOWN_WAITERS,
    TOMBSTONE_S,
    LeasePolicy,
    Outdated,
    Records,
    check_purge,
    has_expired,
    resolve,
)
from holdfast.queues.engines.sqlite.connections import SqliteFile, as_json
from holdfast.queues.engines.sqlite.damage import REPAIR
from holdfast.queues.engines.sqlite.edges import SqliteEdges
from holdfast.queues.engines.sqlite.notes import note_ended, note_reopened
from holdfast.queues.engines.sqlite.slots import DELETE_WAITERS, IS_TAKEN, STOP_WAITING
from holdfast.queues.engines.tables.rows import (
    Row,
    conditions,
    counted,
    history,
    is_by_finish,
    not_replayed,
    oldest_waits,
    page,
    relatives,
    slot_views,
    view,
)
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
    CODES,
    COMPLETED,
    DEAD,
    EDGE_CANCELLED,
    EDGE_MET,
    EDGE_OPEN,
    FAILED,
    FORGOTTEN,
    PROCESSING,
    STATES,
    WAITING,
)
from holdfast.values import (
    CancelAnswer,
    JobFilter,
    JobHistory,
    JobState,
    Page,
    QueueWait,
    Relatives,
    ReplayAnswer,
    SlotView,
)

T = TypeVar("T")

FORGET: Final = f"""
    UPDATE holdfast_jobs SET state = {FORGOTTEN}, finished_at = :until, digest = :digest, last_error = NULL
    WHERE seq = :seq"""

DELETE_MESSAGE: Final = "DELETE FROM holdfast_messages WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_ATTEMPTS: Final = "DELETE FROM holdfast_attempts WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_PROGRESS: Final = "DELETE FROM holdfast_progress WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_OUTPUTS: Final = "DELETE FROM holdfast_live_output WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_PLACES: Final = "DELETE FROM holdfast_places WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_EDGES: Final = "DELETE FROM holdfast_edges WHERE child IN (SELECT value FROM json_each(?))"
DELETE_JOB: Final = "DELETE FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?))"

# The number of a deleted job may be assigned again, and the next job must not inherit anything.
_DELETE_THE_REST: Final = (
    DELETE_MESSAGE,
    DELETE_ATTEMPTS,
    DELETE_PROGRESS,
    DELETE_OUTPUTS,
    DELETE_PLACES,
    DELETE_WAITERS,
    DELETE_EDGES,
)

FINISHED_BEFORE: Final = f"""
    SELECT seq, finished_at FROM holdfast_jobs AS j
    WHERE state >= {COMPLETED} AND state = :state AND finished_at <= :before AND (:queue IS NULL OR queue = :queue)
        AND NOT (:spares_parents AND EXISTS (
            SELECT 1 FROM holdfast_edges AS e JOIN holdfast_jobs AS child ON child.seq = e.child
            WHERE e.parent = j.seq AND child.state < {COMPLETED}))
    ORDER BY finished_at LIMIT :limit"""

MESSAGE: Final = "SELECT coalesce(CAST(wire AS BLOB), x'') FROM holdfast_messages WHERE seq = ?"

OLD_TOMBSTONES: Final = f"""
    SELECT seq FROM holdfast_jobs WHERE state >= {COMPLETED} AND state = {FORGOTTEN} AND finished_at <= ?
    ORDER BY finished_at LIMIT ?"""

COUNT_WAITING: Final = f"""
    SELECT queue, count(*), count(*) FILTER (WHERE state = {WAITING} AND due_at > :now),
           count(*) FILTER (WHERE state = {FAILED})
    FROM holdfast_jobs WHERE state <= {FAILED} GROUP BY queue"""
COUNT_WAITING_IN: Final = f"""
    SELECT queue, count(*), count(*) FILTER (WHERE state = {WAITING} AND due_at > :now),
           count(*) FILTER (WHERE state = {FAILED})
    FROM holdfast_jobs WHERE state <= {FAILED} AND queue = :queue GROUP BY queue"""
# One lookup for each queue and priority: the cost does not grow with the waiting jobs.
OLDEST_DUE: Final = f"""
    WITH RECURSIVE waiting (queue) AS (
        SELECT min(queue) FROM holdfast_jobs WHERE state <= {FAILED}
        UNION ALL
        SELECT (SELECT min(queue) FROM holdfast_jobs WHERE state <= {FAILED} AND queue > waiting.queue)
        FROM waiting WHERE queue IS NOT NULL
    ), priorities (priority) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))
    SELECT queue, (SELECT min(due_at) FROM holdfast_jobs AS j
                   WHERE state <= {FAILED} AND j.queue = waiting.queue AND j.priority = priorities.priority)
    FROM waiting CROSS JOIN priorities WHERE queue IS NOT NULL"""
COUNT_LEASED: Final = f"""
    SELECT queue, {PROCESSING}, false, count(*) FROM holdfast_jobs
    WHERE state = {PROCESSING} AND (:queue IS NULL OR queue = :queue) GROUP BY 1"""
# No index of jobs finds the blocked ones: they wait for a slot or for another job.
_MAYBE_BLOCKED: Final = f"""
    SELECT seq FROM holdfast_blocked UNION SELECT child FROM holdfast_edges WHERE outcome = {EDGE_OPEN}"""
# The order of the join matters.
COUNT_BLOCKED: Final = f"""
    SELECT j.queue, {BLOCKED}, false, count(*)
    FROM ({_MAYBE_BLOCKED}) AS b CROSS JOIN holdfast_jobs AS j ON j.seq = b.seq
    WHERE j.state = {BLOCKED} AND (:queue IS NULL OR j.queue = :queue) GROUP BY 1"""
# One queue after the other: counting the entries of an index is faster than grouping them.
COUNT_FINISHED: Final = f"""
    WITH RECURSIVE ended (queue) AS (
        SELECT min(queue) FROM holdfast_jobs WHERE state >= {COMPLETED} AND state = :state
        UNION ALL
        SELECT (SELECT min(queue) FROM holdfast_jobs
                WHERE state >= {COMPLETED} AND state = :state AND queue > ended.queue)
        FROM ended WHERE queue IS NOT NULL
    )
    SELECT queue, :state, false, (SELECT count(*) FROM holdfast_jobs j
                                  WHERE state >= {COMPLETED} AND state = :state AND j.queue = ended.queue)
    FROM ended WHERE queue IS NOT NULL"""
COUNT_FINISHED_IN: Final = f"""
    SELECT queue, state, false, count(*) FROM holdfast_jobs
    WHERE state >= {COMPLETED} AND state IN ({COMPLETED}, {DEAD}, {CANCELLED}) AND queue = :queue GROUP BY state"""

VIEW_COLUMNS: Final = f"""
    j.seq, j.id, j.queue, j.state, j.job, coalesce(CAST(m.wire AS BLOB), x''), j.attempts, j.crashes, j.deliveries,
    j.accepted_at, j.due_at, j.finished_at, j.lease_until, j.dead_reason, j.cancel_reason, j.cancel_request,
    j.last_error, p.done, p.total, p.message, p.at, b.slot,
    coalesce(b.since, CASE WHEN j.state = {BLOCKED} THEN j.accepted_at END)
    FROM holdfast_jobs AS j LEFT JOIN holdfast_messages AS m ON m.seq = j.seq
    LEFT JOIN holdfast_progress AS p ON p.seq = j.seq AND p.delivery = j.deliveries
        AND j.state IN ({FAILED}, {PROCESSING}, {DEAD}, {CANCELLED})
    LEFT JOIN holdfast_blocked AS b ON b.seq = j.seq AND j.state = {BLOCKED}"""

ATTEMPTS: Final = """
    SELECT delivery, outcome, started_at, ended_at, error_type, error_message, traceback, output, result, note
    FROM holdfast_attempts WHERE seq = ? AND outcome IS NOT NULL ORDER BY delivery"""

OUTPUTS: Final = "SELECT delivery, start, text FROM holdfast_live_output WHERE seq = ?"

# Steps from slot to slot, without reading the thousands of jobs that may wait for one.
USED_SLOTS: Final = f"""
    WITH RECURSIVE known (slot) AS (
        SELECT min(slot) FROM (
            SELECT min(slot) AS slot FROM holdfast_places WHERE slot > :after AND slot < x''
            UNION ALL SELECT min(slot) FROM holdfast_blocked WHERE slot > :after AND slot < x'')
        UNION ALL
        SELECT (SELECT min(slot) FROM (
            SELECT min(p.slot) AS slot FROM holdfast_places AS p WHERE p.slot > known.slot AND p.slot < x''
            UNION ALL SELECT min(b.slot) FROM holdfast_blocked AS b WHERE b.slot > known.slot AND b.slot < x''))
        FROM known WHERE slot IS NOT NULL
    )
    SELECT slot FROM known
    WHERE slot IS NOT NULL
        AND (EXISTS (SELECT 1 FROM holdfast_places AS p WHERE p.slot = known.slot AND {IS_TAKEN})
             OR EXISTS (SELECT 1 FROM holdfast_blocked AS b CROSS JOIN holdfast_jobs AS j ON j.seq = b.seq
                        WHERE b.slot = known.slot AND j.state = {BLOCKED}))
    LIMIT :limit"""

HOLDERS: Final = f"""
    SELECT p.slot, j.id, p.queue, CAST(coalesce(p.since, 0) AS INTEGER),
           CASE WHEN p.owner_token IS NOT NULL THEN CAST(coalesce(p.fence, 0) AS INTEGER) END
    FROM holdfast_places AS p CROSS JOIN holdfast_jobs AS j ON j.seq = p.seq
    WHERE p.slot IN (SELECT value FROM json_each(:slots)) AND {IS_TAKEN}
    ORDER BY p.slot, p.since, p.seq"""

COUNT_WAITERS: Final = f"""
    SELECT b.slot, count(*) FROM holdfast_blocked AS b CROSS JOIN holdfast_jobs AS j ON j.seq = b.seq
    WHERE b.slot IN (SELECT value FROM json_each(:slots)) AND j.state = {BLOCKED} GROUP BY 1"""

FIRST_WAITERS: Final = f"""
    SELECT slot, id, queue, since FROM (
        SELECT b.slot, j.id, j.queue, CAST(coalesce(b.since, 0) AS INTEGER) AS since,
               row_number() OVER (PARTITION BY b.slot ORDER BY b.lane, b.due_at, b.id) AS turn
        FROM holdfast_blocked AS b CROSS JOIN holdfast_jobs AS j ON j.seq = b.seq
        WHERE b.slot IN (SELECT value FROM json_each(:slots)) AND j.state = {BLOCKED})
    WHERE turn <= :shown ORDER BY slot, turn"""

_IS_UNUSED_KEY: Final = f"""CAST(u.until AS INTEGER) <= :now
        AND NOT EXISTS (SELECT 1 FROM holdfast_jobs AS j WHERE j.id = u.id AND j.state < {COMPLETED})"""

UNUSED_KEYS: Final = f"SELECT u.key FROM holdfast_uniques AS u WHERE {_IS_UNUSED_KEY} LIMIT :limit"

DELETE_UNUSED_KEY: Final = f"DELETE FROM holdfast_uniques AS u WHERE u.key = :name AND {_IS_UNUSED_KEY}"

# If jobs wait for the slot, `repair` finds it by this row.
_IS_UNUSED_PLACE: Final = f"""{IS_TAKEN} IS NOT TRUE
        AND NOT EXISTS (SELECT 1 FROM holdfast_blocked AS b WHERE b.slot = p.slot)"""

UNUSED_PLACES: Final = f"SELECT p.slot, p.seq FROM holdfast_places AS p WHERE {_IS_UNUSED_PLACE} LIMIT :limit"

DELETE_UNUSED_PLACE: Final = f"""
    DELETE FROM holdfast_places AS p WHERE p.slot = :name AND p.seq = :seq AND {_IS_UNUSED_PLACE}"""

_IS_UNUSED_SLOT: Final = """CAST(s.fence AS INTEGER) <= :idle AND s.size IS NULL
        AND NOT EXISTS (SELECT 1 FROM holdfast_places AS p WHERE p.slot = s.name)
        AND NOT EXISTS (SELECT 1 FROM holdfast_blocked AS b WHERE b.slot = s.name)"""

UNUSED_SLOTS: Final = f"SELECT s.name FROM holdfast_slots AS s WHERE {_IS_UNUSED_SLOT} LIMIT :limit"

DELETE_UNUSED_SLOT: Final = f"DELETE FROM holdfast_slots AS s WHERE s.name = :name AND {_IS_UNUSED_SLOT}"

_UNUSED: Final = (
    (UNUSED_KEYS, DELETE_UNUSED_KEY),
    (UNUSED_PLACES, DELETE_UNUSED_PLACE),
    (UNUSED_SLOTS, DELETE_UNUSED_SLOT),
)

CANCEL_WAITING: Final = f"""
    UPDATE holdfast_jobs SET state = {CANCELLED}, cancel_reason = :reason, cancel_request = NULL, finished_at = :now
    WHERE id = :id AND state IN ({WAITING}, {FAILED}, {BLOCKED})
    RETURNING seq"""
# A second request without a reason leaves the first reason as it is.
REQUEST_CANCEL: Final = f"""
    UPDATE holdfast_jobs SET cancel_request = coalesce(nullif(:reason, ''), cancel_request, '')
    WHERE id = :id AND state = {PROCESSING}"""

MESSAGE_OF: Final = f"""
    SELECT coalesce(CAST(m.wire AS BLOB), x'') FROM holdfast_jobs AS j JOIN holdfast_messages AS m ON m.seq = j.seq
    WHERE j.id = ? AND j.state IN ({DEAD}, {CANCELLED}) AND NOT j.ignore_expiry"""

REPLAY: Final = f"""
    UPDATE holdfast_jobs
    SET state = CASE WHEN EXISTS (SELECT 1 FROM holdfast_edges AS e WHERE e.child = seq AND e.outcome = {EDGE_OPEN})
                     THEN {BLOCKED} ELSE {WAITING} END,
        attempts = 0, crashes = 0, due_at = :now, dead_reason = NULL, cancel_reason = NULL,
        finished_at = NULL, expired = 0, ignore_expiry = ignore_expiry OR :ignore_expiry
    WHERE id = :id AND state IN ({DEAD}, {CANCELLED}) AND (NOT expired OR :ignore_expiry)
    RETURNING seq"""

# A replayed job no longer waits for parents that have failed. A damaged row cannot be updated, only replaced.
DISREGARD_FAILED: Final = f"""
    INSERT OR REPLACE INTO holdfast_edges (parent, child, policy, outcome)
    SELECT parent, child, CAST(policy AS INTEGER), {EDGE_MET} FROM holdfast_edges
    WHERE child = ? AND outcome = {EDGE_CANCELLED} AND typeof(parent) = 'integer'"""

_NUMBER_OF: Final = f"(SELECT seq FROM holdfast_jobs WHERE id = :id AND state < {FORGOTTEN})"

PARENTS: Final = f"""
    SELECT j.id, j.state, j.due_at > :now, e.policy, e.outcome
    FROM holdfast_edges AS e CROSS JOIN holdfast_jobs AS j ON j.seq = e.parent
    WHERE e.child = {_NUMBER_OF} AND j.state < {FORGOTTEN} ORDER BY e.parent LIMIT :limit"""

CHILDREN: Final = f"""
    SELECT j.id, j.state, j.due_at > :now, e.policy, e.outcome
    FROM (SELECT child, policy, outcome FROM holdfast_edges
          WHERE parent = {_NUMBER_OF} ORDER BY child LIMIT :limit) AS e
        CROSS JOIN holdfast_jobs AS j ON j.seq = e.child
    ORDER BY e.child"""

COUNT_RELATIVES: Final = f"""
    SELECT (SELECT count(*) FROM holdfast_edges WHERE child = {_NUMBER_OF} AND outcome = {EDGE_OPEN}),
           (SELECT count(*) FROM holdfast_edges WHERE parent = {_NUMBER_OF})"""

CONDITIONS: Final = {
    "queue": "j.queue = :queue",
    "job": "j.job = :job",
    "ids": "j.id IN (SELECT value FROM json_each(:ids))",
    "dead_reason": "j.dead_reason = :dead_reason",
    "accepted_from": "j.accepted_at >= :accepted_from",
    "accepted_before": "j.accepted_at < :accepted_before",
    "finished_from": "j.finished_at >= :finished_from",
    "finished_before": "j.finished_at < :finished_before",
    "after_finished": "(j.finished_at, j.seq) < (:after_finished, :after_seq)",
    "after_seq": "j.seq < :after_seq",
}


class SqliteRecords(Records):
    """The records in an SQLite file."""

    def __init__(self, file: SqliteFile, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy)
        self._file = file
        self._clock = clock

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        query = {"queue": queue, "now": self._clock.now_us()}
        waiting = COUNT_WAITING if queue is None else COUNT_WAITING_IN

        def read(connection: sqlite3.Connection) -> list[Row]:
            rows: list[Row] = []
            for name, total, later, failed in connection.execute(self._sql(waiting), query):
                rows += [(name, WAITING, False, total - later - failed), (name, WAITING, True, later)]
                rows.append((name, FAILED, False, failed))
            rows += connection.execute(self._sql(COUNT_LEASED), query)
            rows += connection.execute(self._sql(COUNT_BLOCKED), query)
            if queue is not None:
                return rows + connection.execute(self._sql(COUNT_FINISHED_IN), query).fetchall()
            for state in (COMPLETED, DEAD, CANCELLED):
                rows += connection.execute(self._sql(COUNT_FINISHED), {"state": state})
            return rows

        # One snapshot: a job that changes its state is counted once.
        return counted(self._file.snapshot(read))

    def oldest_waits(self) -> dict[str, QueueWait]:
        rows = self._file.snapshot(lambda connection: connection.execute(self._sql(OLDEST_DUE)).fetchall())
        return oldest_waits(rows, self._clock.now_us())

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        chosen, query = conditions(where, after, CONDITIONS)
        query |= {"now": self._clock.now_us(), "ids": as_json(where.ids)}
        by_finish = is_by_finish(where)
        newest_first = "j.finished_at DESC, j.seq DESC" if by_finish else "j.seq DESC"
        # The index orders finished jobs within each state: a query over several states would read and sort all of them.
        apart = [(state,) for state in dict.fromkeys(where.states)] if by_finish else [where.states]
        parts = [
            f"SELECT {VIEW_COLUMNS} WHERE {' AND '.join([_states_condition(states), *chosen])} "
            f"ORDER BY {newest_first} LIMIT :limit"
            for states in apart
        ]
        statement = parts[0] if len(parts) == 1 else _merged(parts)
        query["limit"] = limit + 1
        return page(self._file.rows(statement, query), query["now"], limit=limit, by_finish=by_finish)

    def get(self, job_id: str) -> JobHistory | None:
        statement = f"SELECT {VIEW_COLUMNS} WHERE j.id = ? AND j.state < {FORGOTTEN}"

        def read(connection: sqlite3.Connection) -> JobHistory | None:
            row = connection.execute(self._sql(statement), (job_id,)).fetchone()
            if row is None:
                return None
            outputs = connection.execute(self._sql(OUTPUTS), (row[0],)).fetchall()
            attempts = connection.execute(self._sql(ATTEMPTS), (row[0],)).fetchall()
            return history(view(row, self._clock.now_us()), attempts, outputs, row[5])

        return self._file.run(read)

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        query: dict[str, Any] = {"now": self._clock.now_us(), "after": after, "limit": limit, "shown": SHOWN_WAITERS}
        statements = [self._sql(one) for one in (HOLDERS, COUNT_WAITERS, FIRST_WAITERS)]

        def read(connection: sqlite3.Connection) -> list[SlotView]:
            used = [row[0] for row in connection.execute(self._sql(USED_SLOTS), query)] if names is None else names
            query["slots"] = as_json(list(used))
            holders, waiting, waiters = (connection.execute(one, query).fetchall() for one in statements)
            return slot_views(holders, waiting, waiters)

        return self._file.snapshot(read)[:limit]

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        query = {"id": job_id, "limit": limit, "now": self._clock.now_us()}

        def read(connection: sqlite3.Connection) -> Relatives:
            statements = (PARENTS, CHILDREN, COUNT_RELATIVES)
            return relatives(*(connection.execute(self._sql(one), query).fetchall() for one in statements))

        return self._file.snapshot(read)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        def change(connection: sqlite3.Connection, now: int) -> CancelAnswer:
            query = {"id": job_id, "reason": reason, "now": now}
            if cancelled := connection.execute(self._sql(CANCEL_WAITING), query).fetchall():
                connection.executemany(self._sql(STOP_WAITING), cancelled)
                self._resolve_ended(connection, [seq for (seq,) in cancelled], now)
                return CancelAnswer.CANCELLED
            if connection.execute(self._sql(REQUEST_CANCEL), query).rowcount:
                return CancelAnswer.REQUESTED
            return CancelAnswer.UNKNOWN if self._state(connection, job_id) is None else CancelAnswer.TOO_LATE

        return self._change(job_id, change)

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        def change(connection: sqlite3.Connection, now: int) -> ReplayAnswer:
            wire = connection.execute(self._sql(MESSAGE_OF), (job_id,)).fetchone()
            if wire is not None and not ignore_expiry and has_expired(wire[0], now):
                return ReplayAnswer.EXPIRED
            query = {"id": job_id, "now": now, "ignore_expiry": ignore_expiry}
            if replayed := connection.execute(self._sql(REPLAY), query).fetchall():
                connection.executemany(self._sql(DISREGARD_FAILED), replayed)
                if note_reopened(connection, self._sql, [seq for (seq,) in replayed]):
                    resolve(SqliteEdges(connection, self._sql, now))
                return ReplayAnswer.REPLAYED
            return not_replayed(self._state(connection, job_id))

        return self._change(job_id, change)

    def _change(self, job_id: str, change: Callable[[sqlite3.Connection, int], T]) -> T:
        """Change a record. A damaged one is repaired first: a strict table would refuse to update it."""

        def repair_and_change(connection: sqlite3.Connection, now: int) -> T:
            connection.execute(self._sql(REPAIR), {"id": job_id, "seq": None})
            return change(connection, now)

        try:
            return self._file.transact(change)
        except BackendError as problem:
            if not isinstance(problem.__cause__, sqlite3.IntegrityError):
                raise
        return self._file.transact(repair_and_change)

    def _state(self, connection: sqlite3.Connection, job_id: str) -> JobState | None:
        row = connection.execute(self._sql("SELECT state FROM holdfast_jobs WHERE id = ?"), (job_id,)).fetchone()
        return None if row is None else STATES.get(row[0])

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        codes = as_json([CODES[state] for state in check_purge(states)])
        ended = "SELECT seq FROM holdfast_jobs WHERE id = ? AND state IN (SELECT value FROM json_each(?))"

        def change(connection: sqlite3.Connection, now: int) -> bool:
            row = connection.execute(self._sql(ended), (job_id, codes)).fetchone()
            if row is None:
                return False
            self._leave_tombstones(connection, [(row[0], now + duration_us(TOMBSTONE_S))])
            self._resolve_ended(connection, [row[0]], now)
            return True

        return self._file.transact(change)

    def delete(self, outdated: Outdated) -> int:
        def delete(connection: sqlite3.Connection, now: int) -> int:
            query = {
                "state": CODES[outdated.state],
                "queue": outdated.queue,
                "before": outdated.before(now),
                "limit": PRUNE_BATCH,
                "spares_parents": outdated.spares_parents,
            }
            found = connection.execute(self._sql(FINISHED_BEFORE), query).fetchall()
            stones, rest = outdated.parted(found, now)
            self._leave_tombstones(connection, stones)
            self._delete(connection, rest)
            self._resolve_ended(connection, [seq for seq, _ in found], now)
            return len(found)

        return self._file.transact(delete)

    def _resolve_ended(self, connection: sqlite3.Connection, seqs: Sequence[int], now: int) -> None:
        """Leave notes on these jobs, which were cancelled or deleted, and resolve them."""
        if note_ended(connection, self._sql, seqs):
            resolve(SqliteEdges(connection, self._sql, now))

    def _leave_tombstones(self, connection: sqlite3.Connection, stones: Sequence[tuple[int, int]]) -> None:
        """Replace these (number, expiry) by tombstones. Messages are read one by one: they may be large."""
        for seq, until in stones:
            message = connection.execute(self._sql(MESSAGE), (seq,)).fetchone()
            digest = content_digest(message[0] if message else b"")
            self._forget(connection, {"seq": seq, "until": until, "digest": digest})
        seqs = as_json([seq for seq, _ in stones])
        for statement in _DELETE_THE_REST:
            connection.execute(self._sql(statement), (seqs,))

    def _forget(self, connection: sqlite3.Connection, query: dict[str, Any]) -> None:
        try:
            connection.execute(self._sql(FORGET), query)
        except sqlite3.IntegrityError:
            connection.execute(self._sql(REPAIR), {"id": None, "seq": query["seq"]})
            connection.execute(self._sql(FORGET), query)

    def _delete(self, connection: sqlite3.Connection, seqs: Sequence[int]) -> None:
        for statement in (DELETE_JOB, *_DELETE_THE_REST):
            connection.execute(self._sql(statement), (as_json(seqs),))

    def delete_tombstones(self) -> int:
        def drop(connection: sqlite3.Connection, now: int) -> int:
            old = connection.execute(self._sql(OLD_TOMBSTONES), (now, PRUNE_BATCH)).fetchall()
            connection.execute(self._sql(DELETE_JOB), (as_json([seq for (seq,) in old]),))
            return len(old)

        # Read first: a read does not block writers.
        return self._file.transact(drop) if self._file.rows(OLD_TOMBSTONES, (self._clock.now_us(), 1)) else 0

    def delete_unused(self) -> int:
        """Read before locking: there can be many rows in use, and writers must not wait while they are read."""
        deleted = 0
        for unused, statement in _UNUSED:
            query = {**_instants(self._clock.now_us()), "limit": PRUNE_BATCH - deleted}
            if found := self._file.rows(unused, query):
                deleted += self._file.transact(partial(self._delete_unused, statement, found))
        return deleted

    def _delete_unused(self, statement: str, found: Sequence[Row], connection: sqlite3.Connection, now: int) -> int:
        """Delete those that are still unused."""
        queries = [{"name": row[0], "seq": row[-1], **_instants(now)} for row in found]
        return connection.executemany(self._sql(statement), queries).rowcount

    def _sql(self, statement: str) -> str:
        return self._file.sql(statement)


def _instants(now: int) -> dict[str, int]:
    return {"now": now, "idle": now - duration_us(IDLE_SLOT_S)}


def _merged(parts: Sequence[str]) -> str:
    """The newest of several lists of finished jobs."""
    finished_at, seq = 12, 1  # their places in `VIEW_COLUMNS`
    together = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
    return f"{together} ORDER BY {finished_at} DESC, {seq} DESC LIMIT :limit"


def _states_condition(states: Iterable[JobState]) -> str:
    any_of = " OR ".join(_state_condition(state) for state in dict.fromkeys(states))
    return f"j.state < {FORGOTTEN} AND ({any_of})" if any_of else f"j.state < {FORGOTTEN}"


def _state_condition(state: JobState) -> str:
    if state is JobState.SCHEDULED:
        return f"(j.state = {WAITING} AND j.due_at > :now)"
    if state is JobState.PENDING:
        return f"(j.state = {WAITING} AND j.due_at <= :now)"
    if state is JobState.BLOCKED:
        return f"(j.state = {BLOCKED} AND j.seq IN ({_MAYBE_BLOCKED}))"
    # The partial index of finished jobs is used only if its condition is part of the query.
    return f"(j.state = {CODES[state]}{f' AND j.state >= {COMPLETED}' if state.is_final else ''})"
