"""Reading and operating the records that `jobs.py` writes in MySQL or MariaDB."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from holdfast.clock import duration_us
from holdfast.codec import content_digest
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
)
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session, chunks, pieces
from holdfast.queues.engines.mysql.edges import note, resolve_soon, wait_again
from holdfast.queues.engines.mysql.lanes import GONE, LANE_OF_STATE, LAST_WAITING, PLACE
from holdfast.queues.engines.mysql.slots import IS_TAKEN, QUEUES, MysqlSlots, best_rows
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
    text,
    view,
)
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
    CODES,
    COMPLETED,
    DEAD,
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

# How many messages, which may be large, are in memory at a time.
MESSAGES_AT_ONCE: Final = 50

FORGET: Final = f"""
    UPDATE holdfast_jobs SET state = {FORGOTTEN}, finished_at = %s, digest = %s, last_error = NULL, wire = '',{PLACE}
    WHERE seq = %s"""

DELETE_JOBS: Final = "DELETE FROM holdfast_jobs WHERE seq IN %s"
DELETE_ATTEMPTS: Final = "DELETE FROM holdfast_attempts WHERE seq IN %s"
DELETE_PROGRESS: Final = "DELETE FROM holdfast_progress WHERE seq IN %s"
DELETE_OUTPUTS: Final = "DELETE FROM holdfast_live_output WHERE seq IN %s"
# The hint prevents a scan of a small table, which would wait for the edges that a caller's transaction has stored.
DELETE_EDGES: Final = "DELETE e FROM holdfast_edges AS e FORCE INDEX (by_child) WHERE e.child IN %s"

LOCK_FINISHED: Final = f"""
    SELECT seq, finished_at FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane = %(lane)s AND mark = %(mark)s AND since <= %(before)s AND (%(queue)s IS NULL OR queue = %(queue)s)
        AND NOT (%(spares_parents)s AND EXISTS (
            SELECT 1 FROM holdfast_edges AS e FORCE INDEX (PRIMARY)
            JOIN holdfast_jobs AS c FORCE INDEX (PRIMARY) ON c.seq = e.child AND c.state < {COMPLETED}
            WHERE e.parent = holdfast_jobs.seq))
    ORDER BY since LIMIT %(limit)s FOR UPDATE"""

MESSAGES: Final = "SELECT seq, wire FROM holdfast_jobs WHERE seq IN %s"

COUNT: Final = f"""
    SELECT CONVERT(queue USING utf8mb4), state, state = {WAITING} AND since > {CLOCK}, COUNT(*)
    FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane < {GONE} AND (%(queue)s IS NULL OR queue = %(queue)s) GROUP BY 1, 2, 3"""

# One lookup for each lane of a queue: the cost does not grow with the waiting jobs.
OLDEST_DUE: Final = f"""
    SELECT (SELECT CONVERT(j.queue USING utf8mb4) FROM holdfast_jobs AS j FORCE INDEX (by_turn)
            WHERE j.lane = oldest.lane AND j.mark = oldest.mark AND j.since = oldest.since LIMIT 1),
           oldest.since
    FROM (SELECT lane, mark, MIN(since) AS since FROM holdfast_jobs FORCE INDEX (by_turn)
          WHERE lane <= {LAST_WAITING} GROUP BY lane, mark) AS oldest"""

VIEW_COLUMNS: Final = f"""
    j.seq, CONVERT(j.id USING utf8mb4), CONVERT(j.queue USING utf8mb4), j.state, j.job, j.wire, j.attempts, j.crashes,
    j.deliveries, j.accepted_at, j.due_at, CASE WHEN j.state >= {COMPLETED} THEN j.finished_at END, j.lease_until,
    j.dead_reason, j.cancel_reason, j.cancel_request, j.last_error, p.done, p.total, p.message, p.at,
    CONVERT(b.slot USING utf8mb4), COALESCE(b.since, CASE WHEN j.state = {BLOCKED} THEN j.accepted_at END)
    FROM holdfast_jobs AS j
    LEFT JOIN holdfast_progress AS p ON p.seq = j.seq AND p.delivery = j.deliveries
        AND j.state IN ({FAILED}, {PROCESSING}, {DEAD}, {CANCELLED})
    LEFT JOIN holdfast_blocked AS b ON b.seq = j.seq AND j.state = {BLOCKED}"""

ATTEMPTS: Final = """
    SELECT delivery, outcome, started_at, ended_at, error_type, error_message, traceback, output, result, note
    FROM holdfast_attempts WHERE seq = %s AND outcome IS NOT NULL ORDER BY delivery"""

OUTPUTS: Final = "SELECT delivery, start, text FROM holdfast_live_output WHERE seq = %s"

CANCEL_WAITING: Final = f"""
    UPDATE holdfast_jobs
    SET state = {CANCELLED}, cancel_reason = %(reason)s, cancel_request = NULL, finished_at = %(now)s,{PLACE}
    WHERE id = %(id)s AND state IN ({WAITING}, {FAILED}, {BLOCKED})"""
# A second request without a reason leaves the first reason as it is.
REQUEST_CANCEL: Final = f"""
    UPDATE holdfast_jobs SET cancel_request = COALESCE(NULLIF(%(reason)s, ''), cancel_request, '')
    WHERE id = %(id)s AND state = {PROCESSING}"""

# A transaction that turns the edges of the job holds this lock: see `edges.py`.
LOCK_JOB: Final = "SELECT seq, state FROM holdfast_jobs WHERE id = %s FOR UPDATE"

MESSAGE_OF: Final = f"""
    SELECT wire FROM holdfast_jobs
    WHERE id = %s AND state IN ({DEAD}, {CANCELLED}) AND NOT ignore_expiry FOR UPDATE"""

REPLAY: Final = f"""
    UPDATE holdfast_jobs
    SET state = {WAITING}, attempts = 0, crashes = 0, due_at = %(now)s, dead_reason = NULL, cancel_reason = NULL,
        finished_at = 0, expired = 0, ignore_expiry = ignore_expiry OR %(ignore_expiry)s,{PLACE}
    WHERE id = %(id)s AND state IN ({DEAD}, {CANCELLED}) AND (NOT expired OR %(ignore_expiry)s)"""

# The names of a page of slots, after a given name. Each takes one lookup in an index.
SLOT_NAMES: Final = """
    (SELECT slot FROM holdfast_places FORCE INDEX (PRIMARY) WHERE slot > %(after)s GROUP BY slot ORDER BY slot
     LIMIT %(limit)s)
    UNION (SELECT slot FROM holdfast_blocked FORCE INDEX (by_turn) WHERE slot > %(after)s GROUP BY slot ORDER BY slot
           LIMIT %(limit)s)
    ORDER BY slot LIMIT %(limit)s"""

HOLDERS: Final = f"""
    SELECT p.slot, j.id, p.queue, p.since, CASE WHEN p.owner_token IS NOT NULL THEN p.fence END
    FROM holdfast_places AS p FORCE INDEX (PRIMARY) JOIN holdfast_jobs AS j ON j.seq = p.seq
    WHERE p.slot IN %s AND {IS_TAKEN} ORDER BY p.since, p.seq"""

COUNT_WAITERS: Final = f"""
    SELECT b.slot, COUNT(*) FROM holdfast_blocked AS b FORCE INDEX (by_turn)
    JOIN holdfast_jobs AS j ON j.seq = b.seq AND j.state = {BLOCKED}
    WHERE b.slot IN %s GROUP BY b.slot"""

FIRST_WAITERS: Final = f"""
    (SELECT STRAIGHT_JOIN b.slot, b.queue, b.lane, b.due_at, b.id, b.since
     FROM holdfast_blocked AS b FORCE INDEX (by_turn) JOIN holdfast_jobs AS j ON j.seq = b.seq AND j.state = {BLOCKED}
     WHERE b.slot = %s AND b.queue = %s ORDER BY b.lane, b.due_at, b.id LIMIT %s)"""

_KEY_IS_UNUSED: Final = f"u.until <= %(now)s AND (j.seq IS NULL OR j.state >= {COMPLETED})"
UNUSED_KEYS: Final = f"""
    SELECT u.name FROM holdfast_uniques AS u LEFT JOIN holdfast_jobs AS j ON j.id = u.id
    WHERE {_KEY_IS_UNUSED} LIMIT %(limit)s"""
LOCK_UNUSED_KEYS: Final = "SELECT name FROM holdfast_uniques FORCE INDEX (PRIMARY) WHERE name IN %(names)s FOR UPDATE"
# Read after the lock, because a job may have been stored with the key in the meantime.
STILL_UNUSED_KEYS: Final = f"""
    SELECT u.name FROM holdfast_uniques AS u FORCE INDEX (PRIMARY) LEFT JOIN holdfast_jobs AS j ON j.id = u.id
    WHERE u.name IN %(names)s AND {_KEY_IS_UNUSED}"""
DELETE_KEYS: Final = "DELETE u FROM holdfast_uniques AS u FORCE INDEX (PRIMARY) WHERE u.name IN %(names)s"

# If jobs wait for the slot, `repair` promotes one before it deletes such a place.
UNUSED_PLACES: Final = f"""
    SELECT p.slot FROM holdfast_places AS p LEFT JOIN holdfast_jobs AS j ON j.seq = p.seq
    WHERE NOT COALESCE({IS_TAKEN}, 0)
        AND NOT EXISTS (SELECT 1 FROM holdfast_blocked AS b FORCE INDEX (by_turn) WHERE b.slot = p.slot)
    LIMIT %(limit)s"""

# A slot whose size an operator has set is retained.
_SLOT_IS_IDLE: Final = """s.fence <= %(before)s AND s.size IS NULL
        AND NOT EXISTS (SELECT 1 FROM holdfast_places AS p FORCE INDEX (PRIMARY) WHERE p.slot = s.name)
        AND NOT EXISTS (SELECT 1 FROM holdfast_blocked AS b FORCE INDEX (by_turn) WHERE b.slot = s.name)"""
IDLE_SLOTS: Final = f"SELECT s.name FROM holdfast_slots AS s WHERE {_SLOT_IS_IDLE} LIMIT %(limit)s"
LOCK_IDLE_SLOTS: Final = "SELECT name FROM holdfast_slots FORCE INDEX (PRIMARY) WHERE name IN %(names)s FOR UPDATE"
STILL_IDLE_SLOTS: Final = f"""
    SELECT s.name FROM holdfast_slots AS s FORCE INDEX (PRIMARY) WHERE s.name IN %(names)s AND {_SLOT_IS_IDLE}"""
DELETE_SLOTS: Final = "DELETE s FROM holdfast_slots AS s FORCE INDEX (PRIMARY) WHERE s.name IN %(names)s"

# Of these edges, the jobs at the other end.
PARENTS: Final = f"""
    SELECT CONVERT(j.id USING utf8mb4), j.state, j.due_at > {CLOCK}, e.policy, e.outcome
    FROM holdfast_edges AS e FORCE INDEX (by_child) JOIN holdfast_jobs AS j ON j.seq = e.parent
    WHERE e.child = (SELECT seq FROM holdfast_jobs WHERE id = %(id)s) AND j.state < {FORGOTTEN}
    ORDER BY j.seq LIMIT %(limit)s"""
CHILDREN: Final = f"""
    SELECT CONVERT(j.id USING utf8mb4), j.state, j.due_at > {CLOCK}, e.policy, e.outcome
    FROM holdfast_edges AS e FORCE INDEX (PRIMARY) JOIN holdfast_jobs AS j ON j.seq = e.child
    WHERE e.parent = (SELECT seq FROM holdfast_jobs WHERE id = %(id)s) AND j.state < {FORGOTTEN}
    ORDER BY e.child LIMIT %(limit)s"""

NUMBER_OF_RELATIVES: Final = f"""
    SELECT (SELECT COUNT(*) FROM holdfast_edges AS e WHERE e.child = j.seq AND e.outcome = {EDGE_OPEN}),
        (SELECT COUNT(*) FROM holdfast_edges AS e WHERE e.parent = j.seq)
    FROM holdfast_jobs AS j WHERE j.id = %(id)s"""

CONDITIONS: Final = {
    "queue": "j.queue = %(queue)s",
    "job": "j.job = %(job)s",
    "ids": "j.id IN %(ids)s",
    "dead_reason": "j.dead_reason = %(dead_reason)s",
    "accepted_from": "j.accepted_at >= %(accepted_from)s",
    "accepted_before": "j.accepted_at < %(accepted_before)s",
    "finished_from": f"j.state >= {COMPLETED} AND j.finished_at >= %(finished_from)s",
    "finished_before": f"j.state >= {COMPLETED} AND j.finished_at < %(finished_before)s",
    "after_finished": (
        "(j.finished_at < %(after_finished)s OR j.finished_at = %(after_finished)s AND j.seq < %(after_seq)s)"
    ),
    "after_seq": "j.seq < %(after_seq)s",
}


class MysqlRecords(Records):
    """The records in a MySQL or MariaDB database."""

    def __init__(self, connections: MysqlConnections, policy: LeasePolicy) -> None:
        super().__init__(policy)
        self._connections = connections

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        return counted(self._connections.run(lambda session: session.rows(self._sql(COUNT), {"queue": queue})))

    def oldest_waits(self) -> dict[str, QueueWait]:
        def read(session: Session) -> tuple[Sequence[Row], int]:
            return session.rows(self._sql(OLDEST_DUE)), session.now()

        return oldest_waits(*self._connections.run(read))

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        chosen, query = conditions(where, after, CONDITIONS)
        by_finish = is_by_finish(where)
        newest_first = "j.finished_at DESC, j.seq DESC" if by_finish else "j.seq DESC"
        asked = " AND ".join([_states_condition(where.states), *chosen])
        statement = f"SELECT {VIEW_COLUMNS} WHERE {asked} ORDER BY {newest_first} LIMIT %(limit)s"

        def read(session: Session) -> tuple[Sequence[Row], int]:
            now = session.now()
            return session.rows(self._sql(statement), query | {"now": now, "limit": limit + 1}), now

        rows, now = self._connections.run(read)
        return page(rows, now, limit=limit, by_finish=by_finish)

    def get(self, job_id: str) -> JobHistory | None:
        statement = f"SELECT {VIEW_COLUMNS} WHERE j.id = %s AND j.state < {FORGOTTEN}"

        def read(session: Session) -> JobHistory | None:
            row = session.row(self._sql(statement), (job_id,))
            if row is None:
                return None
            outputs = session.rows(self._sql(OUTPUTS), (row[0],))
            attempts = session.rows(self._sql(ATTEMPTS), (row[0],))
            return history(view(row, session.now()), attempts, outputs, row[5])

        return self._connections.run(read)

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        def read(session: Session) -> list[SlotView]:
            if names is not None:
                return self._slot_views(session, [name.encode() for name in sorted(names)])[:limit]
            views: list[SlotView] = []
            last = after.encode()
            while len(views) < limit:
                found = session.rows(self._sql(SLOT_NAMES), {"after": last, "limit": limit})
                views += self._slot_views(session, [name for (name,) in found])
                if len(found) < limit:
                    break
                last = found[-1][0]
            return views[:limit]

        return self._connections.run(read)

    def _slot_views(self, session: Session, names: Sequence[bytes]) -> list[SlotView]:
        """The slots among these that jobs hold or wait for."""
        views: list[SlotView] = []
        for some in pieces(names):
            holders = session.rows(self._sql(HOLDERS), (some,))
            waiting = session.rows(self._sql(COUNT_WAITERS), (some,))
            pairs = [(slot, queue) for slot, queue in session.rows(self._sql(QUEUES), (some,))]
            first: dict[bytes, list[Row]] = {}
            for slot, queue, _, _, id, since in best_rows(session, self._sql(FIRST_WAITERS), pairs, SHOWN_WAITERS):
                first.setdefault(slot, []).append((slot, id, queue, since))
            waiters = [row for rows in first.values() for row in rows[:SHOWN_WAITERS]]
            views += slot_views(holders, waiting, waiters)
        return views

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        query = {"id": job_id, "limit": limit}

        def read(session: Session) -> Relatives:
            statements = (PARENTS, CHILDREN, NUMBER_OF_RELATIVES)
            return relatives(*(session.rows(self._sql(statement), query) for statement in statements))

        return self._connections.run(read)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        def change(session: Session) -> tuple[CancelAnswer, bool]:
            query = {"id": job_id, "reason": reason, "now": session.now()}
            # Locked first, so that a job that is claimed or released between the two statements is not missed.
            locked = session.row(self._sql(LOCK_JOB), (job_id,))
            if locked is not None and session.run(self._sql(CANCEL_WAITING), query):
                return CancelAnswer.CANCELLED, note(session, self._sql, locked[:1])
            if session.run(self._sql(REQUEST_CANCEL), query):
                return CancelAnswer.REQUESTED, False
            is_unknown = locked is None or locked[1] == FORGOTTEN
            return CancelAnswer.UNKNOWN if is_unknown else CancelAnswer.TOO_LATE, False

        return self._transact_noting(change)

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        def change(session: Session) -> tuple[ReplayAnswer, bool]:
            locked, now = session.row(self._sql(LOCK_JOB), (job_id,)), session.now()
            if locked is None:
                return not_replayed(None), False
            seq, state = locked
            wire = session.row(self._sql(MESSAGE_OF), (job_id,))
            if wire is not None and not ignore_expiry and has_expired(wire[0], now):
                return ReplayAnswer.EXPIRED, False
            query = {"id": job_id, "now": now, "ignore_expiry": ignore_expiry}
            if not session.run(self._sql(REPLAY), query):
                return not_replayed(STATES.get(state)), False
            wait_again(session, self._sql, seq)
            return ReplayAnswer.REPLAYED, note(session, self._sql, [seq])

        return self._transact_noting(change)

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        ended = "SELECT seq FROM holdfast_jobs WHERE id = %s AND state IN %s FOR UPDATE"
        codes = [CODES[state] for state in check_purge(states)]

        def change(session: Session) -> tuple[bool, bool]:
            row = session.row(self._sql(ended), (job_id, codes))
            if row is None:
                return False, False
            self._leave_tombstones(session, [(row[0], session.now() + duration_us(TOMBSTONE_S))])
            return True, note(session, self._sql, row)

        return self._transact_noting(change)

    def delete(self, outdated: Outdated) -> int:
        def delete(session: Session) -> tuple[int, bool]:
            now = session.now()
            spares = outdated.spares_parents
            found = self._lock_finished(
                session, CODES[outdated.state], outdated.queue, outdated.before(now), spares_parents=spares
            )
            stones, rest = outdated.parted(found, now)
            self._leave_tombstones(session, stones)
            self._delete(session, rest)
            return len(found), note(session, self._sql, [seq for seq, _ in found])

        return self._transact_noting(delete)

    def _transact_noting(self, work: Callable[[Session], tuple[T, bool]]) -> T:
        """Run `work(session)` in a transaction. If it left a note, which it also returns, resolve it."""
        answer, has_notes = self._connections.transact(work)
        if has_notes:
            resolve_soon(self._connections)
        return answer

    def delete_tombstones(self) -> int:
        def drop(session: Session) -> int:
            old = self._lock_finished(session, FORGOTTEN, None, session.now(), spares_parents=False)
            for seqs in chunks(seq for seq, _ in old):
                session.run(self._sql(DELETE_JOBS), (seqs,))
            return len(old)

        return self._connections.transact(drop)

    def delete_unused(self) -> int:
        keys = self._delete_by_name(UNUSED_KEYS, LOCK_UNUSED_KEYS, STILL_UNUSED_KEYS, DELETE_KEYS, limit=PRUNE_BATCH)
        places = self._delete_places(PRUNE_BATCH - keys)
        slots = self._delete_by_name(
            IDLE_SLOTS, LOCK_IDLE_SLOTS, STILL_IDLE_SLOTS, DELETE_SLOTS, limit=PRUNE_BATCH - keys - places
        )
        return keys + places + slots

    def _delete_by_name(self, find: str, lock: str, check: str, delete: str, *, limit: int) -> int:
        """Find rows without locking them, then lock them and delete those that are still unused. A row that is already
        locked is in use.
        """

        def times(session: Session) -> dict[str, int]:
            now = session.now()
            return {"now": now, "before": now - duration_us(IDLE_SLOT_S)}

        def read(session: Session) -> list[bytes]:
            return sorted(name for (name,) in session.rows(self._sql(find), {**times(session), "limit": limit}))

        def drop(session: Session, names: Sequence[bytes]) -> int:
            query = times(session)
            skip = " SKIP LOCKED" if self._connections.skips_locked else ""
            for statement in (self._sql(lock) + skip, self._sql(check)):
                names = [name for (name,) in session.rows(statement, {**query, "names": names})] if names else []
            return session.run(self._sql(delete), {"names": names}) if names else 0

        lists = pieces(self._connections.run(read))
        return sum(self._connections.transact(partial(drop, names=names)) for names in lists)

    def _delete_places(self, limit: int) -> int:
        found = self._connections.run(lambda session: session.rows(self._sql(UNUSED_PLACES), {"limit": limit}))

        def drop(session: Session, names: Sequence[str]) -> int:
            rows = MysqlSlots(session, self._connections)
            rows.lock(names)
            return rows.delete_unused(names)

        lists = pieces(sorted({text(name) for (name,) in found}))
        return sum(self._connections.transact(partial(drop, names=names)) for names in lists)

    def _lock_finished(
        self, session: Session, state: int, queue: str | None, before: int, *, spares_parents: bool
    ) -> Sequence[Row]:
        """The oldest in a state (number, when it finished); one that is locked is being deleted or replayed."""
        lock = self._sql(LOCK_FINISHED) + (" SKIP LOCKED" if self._connections.skips_locked else "")
        query = {"lane": state + LANE_OF_STATE, "mark": bytes(16), "before": before, "queue": queue}
        return session.rows(lock, {**query, "limit": PRUNE_BATCH, "spares_parents": spares_parents})

    def _leave_tombstones(self, session: Session, stones: Sequence[tuple[int, int]]) -> None:
        """Replace these (number, expiry) by tombstones."""
        until = dict(stones)
        for some in pieces(sorted(until), MESSAGES_AT_ONCE):
            for seq, wire in session.rows(self._sql(MESSAGES), (some,)):
                session.run(self._sql(FORGET), (until[seq], content_digest(wire), seq))
        for some in chunks(until):
            for statement in (DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS, DELETE_EDGES):
                session.run(self._sql(statement), (some,))

    def _delete(self, session: Session, seqs: Sequence[int]) -> None:
        for some in chunks(seqs):
            for statement in (DELETE_JOBS, DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS, DELETE_EDGES):
                session.run(self._sql(statement), (some,))

    def _sql(self, statement: str) -> str:
        return self._connections.sql(statement)


def _states_condition(states: Iterable[JobState]) -> str:
    any_of = " OR ".join(_state_condition(state) for state in dict.fromkeys(states))
    return f"j.state < {FORGOTTEN} AND ({any_of})" if any_of else f"j.state < {FORGOTTEN}"


def _state_condition(state: JobState) -> str:
    if state is JobState.SCHEDULED:
        return f"(j.state = {WAITING} AND j.due_at > %(now)s)"
    if state is JobState.PENDING:
        return f"(j.state = {WAITING} AND j.due_at <= %(now)s)"
    # By its lane, the first column of the index.
    code = CODES[state]
    return f"j.lane = {code + LANE_OF_STATE}" if code >= PROCESSING else f"j.state = {code}"
