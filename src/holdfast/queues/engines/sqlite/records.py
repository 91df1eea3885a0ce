"""Reading and operating the embedded engine: what people and pruning ask of the file that `sqlite.py` writes."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from holdfast.clock import Clock, from_us, span_us, to_us
from holdfast.codec import content_digest
from holdfast.queues.contract import TOMBSTONE_S, check_purge, has_expired
from holdfast.queues.engines.sqlite.connections import SqliteFile
from holdfast.queues.engines.tables.retention import Outdated, Retention
from holdfast.queues.engines.tables.rows import (
    CANCELLED,
    CODES,
    COMPLETED,
    DEAD,
    PRUNE_BATCH,
    STATES,
    history,
    not_replayed,
    page,
    view,
)
from holdfast.values import (
    CancelAnswer,
    JobFilter,
    JobHistory,
    JobState,
    Page,
    QueuePause,
    ReplayAnswer,
)

FORGET: Final = """
    UPDATE holdfast_jobs SET state = 7, finished_at = :until, digest = :digest, last_error = NULL WHERE seq = :seq"""

DELETE_MESSAGE: Final = "DELETE FROM holdfast_messages WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_ATTEMPTS: Final = "DELETE FROM holdfast_attempts WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_PROGRESS: Final = "DELETE FROM holdfast_progress WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_OUTPUTS: Final = "DELETE FROM holdfast_live_output WHERE seq IN (SELECT value FROM json_each(?))"
DELETE_JOB: Final = "DELETE FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?))"

FINISHED_BEFORE: Final = """
    SELECT seq, finished_at FROM holdfast_jobs
    WHERE state >= 4 AND state = :state AND finished_at <= :before AND (:queue IS NULL OR queue = :queue)
    ORDER BY finished_at LIMIT :limit"""

MESSAGE: Final = "SELECT wire FROM holdfast_messages WHERE seq = ?"

OLD_TOMBSTONES: Final = """
    SELECT seq FROM holdfast_jobs WHERE state >= 4 AND state = 7 AND finished_at <= ? ORDER BY finished_at LIMIT ?"""

COUNT_WAITING: Final = """
    SELECT queue, count(*), count(*) FILTER (WHERE state = 0 AND due_at > :now), count(*) FILTER (WHERE state = 1)
    FROM holdfast_jobs WHERE state <= 1 GROUP BY queue"""
COUNT_WAITING_IN: Final = """
    SELECT queue, count(*), count(*) FILTER (WHERE state = 0 AND due_at > :now), count(*) FILTER (WHERE state = 1)
    FROM holdfast_jobs WHERE state <= 1 AND queue = :queue GROUP BY queue"""
COUNT_LEASED: Final = """
    SELECT queue, count(*) FROM holdfast_jobs WHERE state = 2 AND (:queue IS NULL OR queue = :queue) GROUP BY 1"""
# From one queue to the next, and the number of each: entries of an index are counted faster than they are grouped.
COUNT_FINISHED: Final = """
    WITH RECURSIVE ended (queue) AS (
        SELECT min(queue) FROM holdfast_jobs WHERE state >= 4 AND state = :state
        UNION ALL
        SELECT (SELECT min(queue) FROM holdfast_jobs WHERE state >= 4 AND state = :state AND queue > ended.queue)
        FROM ended WHERE queue IS NOT NULL
    )
    SELECT queue, (SELECT count(*) FROM holdfast_jobs j WHERE state >= 4 AND state = :state AND j.queue = ended.queue)
    FROM ended WHERE queue IS NOT NULL"""
COUNT_FINISHED_IN: Final = """
    SELECT state, count(*) FROM holdfast_jobs
    WHERE state >= 4 AND state IN (4, 5, 6) AND queue = :queue GROUP BY state"""

VIEW_COLUMNS: Final = """
    j.seq, j.id, j.queue, j.state, j.job, coalesce(m.wire, x''), j.attempts, j.crashes, j.deliveries, j.accepted_at,
    j.due_at, j.finished_at, j.lease_until, j.dead_reason, j.cancel_reason, j.cancel_request, j.last_error,
    p.done, p.total, p.message, p.at
    FROM holdfast_jobs AS j LEFT JOIN holdfast_messages AS m ON m.seq = j.seq
    LEFT JOIN holdfast_progress AS p ON p.seq = j.seq AND p.delivery = j.deliveries AND j.state IN (1, 2, 5, 6)"""

ATTEMPTS: Final = """
    SELECT delivery, outcome, started_at, ended_at, error_type, error_message, traceback, output, result, note
    FROM holdfast_attempts WHERE seq = ? AND outcome IS NOT NULL ORDER BY delivery"""

OUTPUTS: Final = "SELECT delivery, start, text FROM holdfast_live_output WHERE seq = ?"

CANCEL_WAITING: Final = """
    UPDATE holdfast_jobs SET state = 6, cancel_reason = :reason, finished_at = :now
    WHERE id = :id AND state IN (0, 1, 3)"""
# Asking again without a reason does not take the first one back.
REQUEST_CANCEL: Final = """
    UPDATE holdfast_jobs SET cancel_request = coalesce(nullif(:reason, ''), cancel_request, '')
    WHERE id = :id AND state = 2"""

MESSAGE_OF: Final = """
    SELECT m.wire FROM holdfast_jobs AS j JOIN holdfast_messages AS m ON m.seq = j.seq
    WHERE j.id = ? AND j.state IN (5, 6) AND NOT j.ignore_expiry"""

REPLAY: Final = """
    UPDATE holdfast_jobs
    SET state = 0, attempts = 0, crashes = 0, due_at = :now, dead_reason = NULL, cancel_reason = NULL,
        finished_at = NULL, expired = 0, ignore_expiry = ignore_expiry OR :ignore_expiry
    WHERE id = :id AND state IN (5, 6) AND (NOT expired OR :ignore_expiry)"""


class SqliteInspector(Retention):
    """The reading side of `SqliteBackend`."""

    file: SqliteFile
    clock: Clock
    _sql: Callable[[str], str]

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        query = {"queue": queue, "now": self.clock.now_us()}
        numbers: dict[str, dict[JobState, int]] = {}

        def add(name: str, state: JobState, number: int) -> None:
            if number:
                numbers.setdefault(name, {})[state] = number

        def read(connection: sqlite3.Connection) -> None:
            try:
                connection.execute("BEGIN")  # one snapshot: a job that moves meanwhile is counted once
                waiting_jobs = COUNT_WAITING if queue is None else COUNT_WAITING_IN
                for name, total, later, failed in connection.execute(self._sql(waiting_jobs), query):
                    add(name, JobState.PENDING, total - later - failed)
                    add(name, JobState.SCHEDULED, later)
                    add(name, JobState.FAILED, failed)
                for name, number in connection.execute(self._sql(COUNT_LEASED), query):
                    add(name, JobState.PROCESSING, number)
                if queue is None:
                    for state in (COMPLETED, DEAD, CANCELLED):
                        for name, number in connection.execute(self._sql(COUNT_FINISHED), {"state": state}):
                            add(name, STATES[state], number)
                else:
                    for state, number in connection.execute(self._sql(COUNT_FINISHED_IN), query):
                        add(queue, STATES[state], number)
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

        self.file.read(read)
        return numbers

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        conditions, query = self._conditions(where)
        by_finish = bool(where.states) and all(state.is_final for state in where.states)
        if after is not None:
            finished, seq = (int(part) for part in after.split("."))
            conditions.append(
                "(j.finished_at, j.seq) < (:after_finished, :after_seq)" if by_finish else "j.seq < :after_seq"
            )
            query |= {"after_finished": finished, "after_seq": seq}
        newest_first = "j.finished_at DESC, j.seq DESC" if by_finish else "j.seq DESC"
        # In the index, what has finished is in order within each state: together they would all be read and sorted.
        apart = [(state,) for state in dict.fromkeys(where.states)] if by_finish else [where.states]
        parts = [
            f"SELECT {VIEW_COLUMNS} WHERE {' AND '.join([_states_condition(states), *conditions])} "
            f"ORDER BY {newest_first} LIMIT :limit"
            for states in apart
        ]
        text = parts[0] if len(parts) == 1 else _merged(parts)
        query["limit"] = limit + 1
        rows = self.file.read(lambda connection: connection.execute(self._sql(text), query).fetchall())
        return page(rows, query["now"], limit=limit, by_finish=by_finish)

    def _conditions(self, where: JobFilter) -> tuple[list[str], dict[str, Any]]:
        query: dict[str, Any] = {"now": self.clock.now_us()}
        conditions: list[str] = []
        if where.queue is not None:
            conditions.append("j.queue = :queue")
            query["queue"] = where.queue
        if where.job is not None:
            conditions.append("j.job = :job")
            query["job"] = where.job
        if where.ids:
            conditions.append("j.id IN (SELECT value FROM json_each(:ids))")
            query["ids"] = json.dumps(where.ids)
        if where.dead_reason is not None:
            conditions.append("j.dead_reason = :dead_reason")
            query["dead_reason"] = where.dead_reason
        if where.accepted_from is not None:
            conditions.append("j.accepted_at >= :accepted_from")
            query["accepted_from"] = to_us(where.accepted_from)
        if where.accepted_before is not None:
            conditions.append("j.accepted_at < :accepted_before")
            query["accepted_before"] = to_us(where.accepted_before)
        if where.finished_from is not None:
            conditions.append("j.finished_at >= :finished_from")
            query["finished_from"] = to_us(where.finished_from)
        if where.finished_before is not None:
            conditions.append("j.finished_at < :finished_before")
            query["finished_before"] = to_us(where.finished_before)
        return conditions, query

    def get(self, job_id: str) -> JobHistory | None:
        text = f"SELECT {VIEW_COLUMNS} WHERE j.id = ? AND j.state < 7"

        def read(connection: sqlite3.Connection) -> JobHistory | None:
            row = connection.execute(self._sql(text), (job_id,)).fetchone()
            if row is None:
                return None
            outputs = connection.execute(self._sql(OUTPUTS), (row[0],)).fetchall()
            attempts = connection.execute(self._sql(ATTEMPTS), (row[0],)).fetchall()
            return history(view(row, self.clock.now_us()), attempts, outputs)

        return self.file.read(read)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        def change(connection: sqlite3.Connection, now: int) -> CancelAnswer:
            query = {"id": job_id, "reason": reason, "now": now}
            if connection.execute(self._sql(CANCEL_WAITING), query).rowcount:
                return CancelAnswer.CANCELLED
            if connection.execute(self._sql(REQUEST_CANCEL), query).rowcount:
                return CancelAnswer.REQUESTED
            return CancelAnswer.UNKNOWN if self._state(connection, job_id) is None else CancelAnswer.TOO_LATE

        return self.file.write(change)

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        def change(connection: sqlite3.Connection, now: int) -> ReplayAnswer:
            wire = connection.execute(self._sql(MESSAGE_OF), (job_id,)).fetchone()
            if wire is not None and not ignore_expiry and has_expired(wire[0], now):
                return ReplayAnswer.EXPIRED
            query = {"id": job_id, "now": now, "ignore_expiry": ignore_expiry}
            if connection.execute(self._sql(REPLAY), query).rowcount:
                return ReplayAnswer.REPLAYED
            return not_replayed(self._state(connection, job_id))

        return self.file.write(change)

    def _state(self, connection: sqlite3.Connection, job_id: str) -> JobState | None:
        row = connection.execute(self._sql("SELECT state FROM holdfast_jobs WHERE id = ?"), (job_id,)).fetchone()
        return None if row is None else STATES.get(row[0])

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        codes = json.dumps([CODES[state] for state in check_purge(states)])
        ended = "SELECT seq FROM holdfast_jobs WHERE id = ? AND state IN (SELECT value FROM json_each(?))"

        def change(connection: sqlite3.Connection, now: int) -> bool:
            row = connection.execute(self._sql(ended), (job_id, codes)).fetchone()
            if row is None:
                return False
            self._leave_tombstones(connection, [(row[0], now + span_us(TOMBSTONE_S))])
            return True

        return self.file.write(change)

    def pause(self, queue: str, reason: str = "") -> None:
        statement = self._sql("INSERT OR REPLACE INTO holdfast_pauses (queue, reason, since) VALUES (?, ?, ?)")
        self.file.write(lambda connection, now: connection.execute(statement, (queue, reason, now)))

    def resume(self, queue: str) -> bool:
        statement = self._sql("DELETE FROM holdfast_pauses WHERE queue = ?")
        return self.file.write(lambda connection, _: connection.execute(statement, (queue,)).rowcount) == 1

    def pauses(self) -> Sequence[QueuePause]:
        query = self._sql("SELECT queue, reason, since FROM holdfast_pauses ORDER BY queue")
        rows = self.file.read(lambda connection: connection.execute(query).fetchall())
        return tuple(QueuePause(queue=queue, reason=reason, since=from_us(since)) for queue, reason, since in rows)

    def facts(self, kind: str) -> frozenset[str]:
        query = self._sql("SELECT fact FROM holdfast_facts WHERE kind = ?")
        return frozenset(fact for (fact,) in self.file.read(lambda connection: connection.execute(query, (kind,))))

    def add_facts(self, kind: str, facts: Iterable[str]) -> None:
        rows = [(kind, fact) for fact in facts]
        statement = self._sql("INSERT OR IGNORE INTO holdfast_facts (kind, fact) VALUES (?, ?)")
        self.file.write(lambda connection, _: connection.executemany(statement, rows))

    def _forget_some(self, outdated: Outdated) -> int:
        def forget(connection: sqlite3.Connection, now: int) -> int:
            query = {
                "state": outdated.state,
                "queue": outdated.queue,
                "before": outdated.before(now),
                "limit": PRUNE_BATCH,
            }
            found = connection.execute(self._sql(FINISHED_BEFORE), query).fetchall()
            stones, rest = outdated.parted(found, now)
            self._leave_tombstones(connection, stones)
            self._delete(connection, rest)
            return len(found)

        return self.file.write(forget)

    def _leave_tombstones(self, connection: sqlite3.Connection, stones: Sequence[tuple[int, int]]) -> None:
        """Leave nothing else of these (number, until when). Messages are read one by one: they may be large."""
        for seq, until in stones:
            message = connection.execute(self._sql(MESSAGE), (seq,)).fetchone()
            digest = content_digest(message[0] if message else b"")
            connection.execute(self._sql(FORGET), {"seq": seq, "until": until, "digest": digest})
        seqs = json.dumps([seq for seq, _ in stones])
        for statement in (DELETE_MESSAGE, DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS):
            connection.execute(self._sql(statement), (seqs,))

    def _delete(self, connection: sqlite3.Connection, seqs: Sequence[int]) -> None:
        for statement in (DELETE_JOB, DELETE_MESSAGE, DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS):
            connection.execute(self._sql(statement), (json.dumps(seqs),))

    def _drop_some_tombstones(self) -> int:
        def drop(connection: sqlite3.Connection, now: int) -> int:
            old = connection.execute(self._sql(OLD_TOMBSTONES), (now, PRUNE_BATCH)).fetchall()
            connection.execute(self._sql(DELETE_JOB), (json.dumps([seq for (seq,) in old]),))
            return len(old)

        # Looked for first: whoever only reads keeps nobody from writing.
        now = self.clock.now_us()
        any_old = self.file.read(lambda connection: connection.execute(self._sql(OLD_TOMBSTONES), (now, 1)).fetchone())
        return self.file.write(drop) if any_old else 0


def _merged(parts: Sequence[str]) -> str:
    """The newest of several lists of finished jobs."""
    finished_at, seq = 12, 1  # their places in `VIEW_COLUMNS`
    together = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)
    return f"{together} ORDER BY {finished_at} DESC, {seq} DESC LIMIT :limit"


def _states_condition(states: Iterable[JobState]) -> str:
    any_of = " OR ".join(_state_condition(state) for state in dict.fromkeys(states))
    return f"j.state < 7 AND ({any_of})" if any_of else "j.state < 7"


def _state_condition(state: JobState) -> str:
    if state is JobState.SCHEDULED:
        return "(j.state = 0 AND j.due_at > :now)"
    if state is JobState.PENDING:
        return "(j.state = 0 AND j.due_at <= :now)"
    # The partial index of finished jobs is used only where its own condition is spelled out.
    return f"(j.state = {CODES[state]}{' AND j.state >= 4' if state.is_final else ''})"
