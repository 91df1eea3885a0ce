"""Reading and operating the records that `jobs.py` writes in PostgreSQL."""

from collections.abc import Callable, Iterable, Sequence
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
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.edges import NOTE, NOTE_ENDED, WAIT_AGAIN, note, resolve_soon
from holdfast.queues.engines.postgres.slots import IS_TAKEN, MAY_BE_TAKEN
from holdfast.queues.engines.postgres.statements import NOW, NOW_IS, PostgresStatements, numbers
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
    Outcome,
    Page,
    QueueWait,
    Relatives,
    ReplayAnswer,
    SlotView,
)

T = TypeVar("T")

FORGET: Final = f"""
    UPDATE holdfast.ended_jobs SET state = {FORGOTTEN}, finished_at = :until, digest = :digest, last_error = NULL
    WHERE seq = :seq"""
DROP_MESSAGE: Final = "UPDATE holdfast.jobs SET wire = '' WHERE seq = :seq"

DELETE_ATTEMPTS: Final = "DELETE FROM holdfast.attempts WHERE seq = ANY (:seqs::bigint[])"
DELETE_PROGRESS: Final = "DELETE FROM holdfast.progress WHERE seq = ANY (:seqs::bigint[])"
DELETE_OUTPUTS: Final = "DELETE FROM holdfast.live_output WHERE seq = ANY (:seqs::bigint[])"
DELETE_EDGES: Final = "DELETE FROM holdfast.edges WHERE child = ANY (:seqs::bigint[])"
DELETE_ENDED: Final = "DELETE FROM holdfast.ended_jobs WHERE seq = ANY (:seqs::bigint[])"
DELETE_JOB: Final = "DELETE FROM holdfast.jobs WHERE seq = ANY (:seqs::bigint[])"

FINISHED_BEFORE: Final = f"""
    WITH {NOW_IS}
    SELECT seq, finished_at, {NOW} FROM holdfast.ended_jobs
    WHERE state = :state AND (:age::bigint IS NULL OR finished_at <= {NOW} - :age::bigint)
        AND (:queue::text IS NULL OR queue = :queue)
        AND NOT (:spares_parents AND EXISTS (
            SELECT 1 FROM holdfast.edges AS e JOIN holdfast.open_jobs AS o ON o.seq = e.child
            WHERE e.parent = ended_jobs.seq))
    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED"""

MESSAGE: Final = "SELECT wire FROM holdfast.jobs WHERE seq = :seq"

OLD_TOMBSTONES: Final = f"""
    WITH {NOW_IS}
    SELECT seq FROM holdfast.ended_jobs WHERE state = {FORGOTTEN} AND finished_at <= {NOW}
    ORDER BY finished_at LIMIT :limit FOR UPDATE SKIP LOCKED"""

COUNT: Final = f"""
    WITH {NOW_IS}
    SELECT queue, state, state = {WAITING} AND due_at > {NOW}, count(*) FROM holdfast.open_jobs
    WHERE :queue::text IS NULL OR queue = :queue GROUP BY 1, 2, 3
    UNION ALL
    SELECT queue, state, false, count(*) FROM holdfast.ended_jobs
    WHERE state < {FORGOTTEN} AND (:queue::text IS NULL OR queue = :queue) GROUP BY 1, 2"""

# One step for each queue and priority: the cost does not grow with the waiting jobs.
OLDEST_DUE: Final = f"""
    WITH RECURSIVE {NOW_IS}, oldest (queue, priority, due_at) AS (
        (SELECT queue, priority, due_at FROM holdfast.open_jobs WHERE state <= {FAILED}
         ORDER BY queue, priority, due_at LIMIT 1)
        UNION ALL
        SELECT following.* FROM oldest, LATERAL (
            SELECT j.queue, j.priority, j.due_at FROM holdfast.open_jobs AS j
            WHERE j.state <= {FAILED} AND (j.queue, j.priority) > (oldest.queue, oldest.priority)
            ORDER BY j.queue, j.priority, j.due_at LIMIT 1
        ) AS following
    )
    SELECT queue, due_at, {NOW} FROM oldest"""

_PROGRESS: Final = f"""
    LEFT JOIN holdfast.progress AS p ON p.seq = s.seq AND p.delivery = s.deliveries
        AND s.state IN ({FAILED}, {PROCESSING}, {DEAD}, {CANCELLED})"""

OPEN: Final = f"""
    SELECT s.seq, j.id, s.queue, s.state, j.job, j.wire, s.attempts, s.crashes, s.deliveries, j.accepted_at, s.due_at,
        NULL::bigint, s.lease_until, NULL, NULL, s.cancel_request, s.last_error, p.done, p.total, p.message, p.at,
        b.slot, coalesce(b.since, CASE WHEN s.state = {BLOCKED} THEN j.accepted_at END), {NOW}
    FROM holdfast.open_jobs AS s JOIN holdfast.jobs AS j ON j.seq = s.seq {_PROGRESS}
    LEFT JOIN holdfast.blocked AS b ON b.seq = s.seq AND s.state = {BLOCKED}"""

# A job whose row in `jobs` was deleted by hand is still counted, and therefore listed, as damaged.
ENDED: Final = f"""
    SELECT s.seq, coalesce(j.id, 'damaged-' || s.seq), s.queue, s.state, j.job, j.wire, s.attempts, s.crashes,
        s.deliveries, j.accepted_at, s.due_at, s.finished_at, NULL::bigint, s.dead_reason, s.cancel_reason, NULL,
        s.last_error, p.done, p.total, p.message, p.at, NULL, NULL::bigint, {NOW}
    FROM holdfast.ended_jobs AS s LEFT JOIN holdfast.jobs AS j ON j.seq = s.seq {_PROGRESS}"""

ATTEMPTS: Final = """
    SELECT delivery, outcome, started_at, ended_at, error_type, error_message, traceback, output, result, note
    FROM holdfast.attempts WHERE seq = :seq AND outcome IS NOT NULL
    UNION ALL
    SELECT deliveries, :succeeded, started_at, ended_at, NULL, NULL, NULL, NULL, NULL, NULL
    FROM holdfast.ended_jobs WHERE seq = :seq AND started_at IS NOT NULL ORDER BY 1"""

OUTPUTS: Final = "SELECT delivery, start, text FROM holdfast.live_output WHERE seq = :seq"

_WAITS: Final = f"JOIN holdfast.open_jobs AS o ON o.seq = b.seq AND o.state = {BLOCKED}"
_IS_USED: Final = f"""
    EXISTS (SELECT 1 FROM holdfast.places AS p WHERE p.slot = names.slot AND {IS_TAKEN})
    OR EXISTS (SELECT 1 FROM holdfast.blocked AS b {_WAITS} WHERE b.slot = names.slot)"""

# Steps from one slot to the next, no matter how many jobs hold it or wait for it.
USED_SLOTS: Final = f"""
    WITH RECURSIVE {NOW_IS}, names (slot) AS (
        SELECT least((SELECT min(p.slot) FROM holdfast.places AS p WHERE p.slot > :after),
                     (SELECT min(b.slot) FROM holdfast.blocked AS b WHERE b.slot > :after))
        UNION ALL
        SELECT least((SELECT min(p.slot) FROM holdfast.places AS p WHERE p.slot > names.slot),
                     (SELECT min(b.slot) FROM holdfast.blocked AS b WHERE b.slot > names.slot))
        FROM names WHERE names.slot IS NOT NULL
    )
    SELECT slot FROM names WHERE {_IS_USED} LIMIT :limit"""

USED_OF_THESE: Final = f"""
    WITH {NOW_IS}, names AS (SELECT DISTINCT slot COLLATE "C" AS slot FROM unnest(:names::text[]) AS given (slot))
    SELECT slot FROM names WHERE {_IS_USED} ORDER BY slot LIMIT :limit"""

HOLDERS: Final = f"""
    WITH {NOW_IS}
    SELECT p.slot, j.id, p.queue, p.since, CASE WHEN p.owner_token IS NOT NULL THEN p.fence END
    FROM holdfast.places AS p LEFT JOIN holdfast.jobs AS j ON j.seq = p.seq
    WHERE p.slot = ANY (:slots::text[]) AND {IS_TAKEN} ORDER BY p.slot, p.since, p.seq"""

NUMBER_WAITING: Final = f"""
    SELECT b.slot, count(*) FROM holdfast.blocked AS b {_WAITS} WHERE b.slot = ANY (:slots::text[]) GROUP BY b.slot"""

FIRST_WAITING: Final = f"""
    SELECT names.slot, waiting.id, waiting.queue, waiting.since
    FROM unnest(:slots::text[]) WITH ORDINALITY AS names (slot, place) CROSS JOIN LATERAL (
        SELECT b.id, b.queue, b.since, b.lane, b.due_at FROM holdfast.blocked AS b {_WAITS} WHERE b.slot = names.slot
        ORDER BY b.lane, b.due_at, b.id LIMIT :limit
    ) AS waiting
    ORDER BY names.place, waiting.lane, waiting.due_at, waiting.id"""

# Unused rows of each kind are found and locked first. The next statement checks whether they are still unused: a row
# may have been used while the first statement was waiting, or between its snapshot and the lock.
_IS_OVER: Final = f"""
    u.until <= {NOW} AND NOT EXISTS (
        SELECT 1 FROM holdfast.jobs AS j JOIN holdfast.open_jobs AS o ON o.seq = j.seq WHERE j.id = u.id)"""
LOCK_KEYS_OVER: Final = f"""
    WITH {NOW_IS} SELECT u.key FROM holdfast.uniques AS u WHERE {_IS_OVER} LIMIT :limit FOR UPDATE SKIP LOCKED"""
DELETE_KEYS: Final = f"""
    WITH {NOW_IS} DELETE FROM holdfast.uniques AS u WHERE u.key = ANY (:keys::text[]) AND {_IS_OVER}"""

LOCK_PLACES_LEFT: Final = f"""
    WITH {NOW_IS}
    SELECT p.slot, p.seq FROM holdfast.places AS p WHERE NOT ({MAY_BE_TAKEN}) LIMIT :limit FOR UPDATE SKIP LOCKED"""
DELETE_PLACES: Final = f"""
    WITH {NOW_IS}
    DELETE FROM holdfast.places AS p
    WHERE (p.slot, p.seq) IN (SELECT * FROM unnest(:slots::text[], :seqs::bigint[])) AND NOT ({MAY_BE_TAKEN})"""

_IS_IDLE: Final = f"""
    s.fence <= {NOW} - {duration_us(IDLE_SLOT_S)} AND s.size IS NULL
    AND NOT EXISTS (SELECT 1 FROM holdfast.places AS p WHERE p.slot = s.name)
    AND NOT EXISTS (SELECT 1 FROM holdfast.blocked AS b WHERE b.slot = s.name)"""
LOCK_IDLE_SLOTS: Final = f"""
    WITH {NOW_IS} SELECT s.name FROM holdfast.slots AS s WHERE {_IS_IDLE} LIMIT :limit FOR UPDATE SKIP LOCKED"""
DELETE_SLOTS: Final = f"""
    WITH {NOW_IS} DELETE FROM holdfast.slots AS s WHERE s.name = ANY (:names::text[]) AND {_IS_IDLE}"""

# Of these edges, the jobs at the other end.
_RELATIVES: Final = f"""
    SELECT j.id, coalesce(o.state, d.state), o.due_at > {NOW}, e.policy, e.outcome
    FROM holdfast.edges AS e JOIN holdfast.jobs AS j ON j.seq = e.{{relative}}
    LEFT JOIN holdfast.open_jobs AS o ON o.seq = j.seq LEFT JOIN holdfast.ended_jobs AS d ON d.seq = j.seq
    WHERE e.{{job}} = (SELECT seq FROM holdfast.jobs WHERE id = :id)
        AND coalesce(o.state, d.state, {FORGOTTEN}) < {FORGOTTEN}
    ORDER BY j.seq LIMIT :limit"""
PARENTS: Final = f"WITH {NOW_IS} {_RELATIVES.format(relative='parent', job='child')}"
CHILDREN: Final = f"WITH {NOW_IS} {_RELATIVES.format(relative='child', job='parent')}"

NUMBER_OF_RELATIVES: Final = f"""
    SELECT (SELECT count(*) FROM holdfast.edges AS e WHERE e.child = j.seq AND e.outcome = {EDGE_OPEN}),
        (SELECT count(*) FROM holdfast.edges AS e WHERE e.parent = j.seq)
    FROM holdfast.jobs AS j WHERE j.id = :id"""

STATE_OF: Final = """
    SELECT coalesce(o.state, e.state) FROM holdfast.jobs AS j
    LEFT JOIN holdfast.open_jobs AS o ON o.seq = j.seq LEFT JOIN holdfast.ended_jobs AS e ON e.seq = j.seq
    WHERE j.id = :id"""

_OF_ID: Final = "seq = (SELECT seq FROM holdfast.jobs WHERE id = :id)"

LOCK_ENDED: Final = f"""
    WITH {NOW_IS} SELECT seq, {NOW} FROM holdfast.ended_jobs
    WHERE {_OF_ID} AND state = ANY (:states::bigint[]) FOR UPDATE"""

# A worker may be releasing the job right now. Under this lock its state cannot change.
HOLD_STILL: Final = f"SELECT 1 FROM holdfast.open_jobs WHERE {_OF_ID} FOR UPDATE"

CANCEL_WAITING: Final = f"""
    WITH {NOW_IS}, waiting AS (
        DELETE FROM holdfast.open_jobs WHERE {_OF_ID} AND state IN ({WAITING}, {FAILED}, {BLOCKED}) RETURNING *
    )
    INSERT INTO holdfast.ended_jobs (seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error,
        state, finished_at, cancel_reason)
    SELECT seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error, {CANCELLED}, {NOW}, :reason
    FROM waiting ON CONFLICT (seq) DO NOTHING RETURNING seq"""
# A second request without a reason leaves the first reason as it is.
REQUEST_CANCEL: Final = f"""
    UPDATE holdfast.open_jobs SET cancel_request = coalesce(nullif(:reason, ''), cancel_request, '')
    WHERE {_OF_ID} AND state = {PROCESSING}"""

# A transaction that turns the edges of the job holds this lock: see `edges.py`.
LOCK_CHILD: Final = "SELECT 1 FROM holdfast.jobs WHERE id = :id FOR UPDATE"

MESSAGE_OF: Final = f"""
    WITH {NOW_IS}
    SELECT j.wire, {NOW} FROM holdfast.jobs AS j JOIN holdfast.ended_jobs AS e ON e.seq = j.seq
    WHERE j.id = :id AND e.state IN ({DEAD}, {CANCELLED}) AND NOT e.ignore_expiry"""

REPLAY: Final = f"""
    WITH {NOW_IS}, over AS (
        DELETE FROM holdfast.ended_jobs
        WHERE {_OF_ID} AND state IN ({DEAD}, {CANCELLED}) AND (NOT expired OR :ignore_expiry) RETURNING *
    )
    INSERT INTO holdfast.open_jobs (seq, id, priority, queue, due_at, attempts, crashes, deliveries, ignore_expiry,
        last_error)
    SELECT j.seq, j.id, j.priority, j.queue, {NOW}, 0, 0, over.deliveries, over.ignore_expiry OR :ignore_expiry,
        over.last_error
    FROM over JOIN holdfast.jobs AS j ON j.seq = over.seq ON CONFLICT (seq) DO NOTHING RETURNING seq, queue"""

CONDITIONS: Final = {
    "queue": "s.queue = :queue",
    "job": "j.job = :job",
    "ids": "j.id = ANY (:ids)",
    "dead_reason": "s.dead_reason = :dead_reason",
    "accepted_from": "j.accepted_at >= :accepted_from",
    "accepted_before": "j.accepted_at < :accepted_before",
    "finished_from": "s.finished_at >= :finished_from",
    "finished_before": "s.finished_at < :finished_before",
    "after_finished": "(s.finished_at, s.seq) < (:after_finished, :after_seq)",
    "after_seq": "s.seq < :after_seq",
}


class PostgresRecords(Records):
    """The records in a PostgreSQL database."""

    def __init__(self, connections: PostgresConnections, announcements: Announcements, policy: LeasePolicy) -> None:
        super().__init__(policy)
        self._connections = connections
        self._announcements = announcements

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        return counted(self._connections.rows(COUNT, {"queue": queue}))

    def oldest_waits(self) -> dict[str, QueueWait]:
        rows = self._connections.rows(OLDEST_DUE)
        return oldest_waits([row[:-1] for row in rows], rows[0][-1] if rows else 0)

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        chosen, query = conditions(where, after, CONDITIONS)
        chosen = [*_states_conditions(where.states), *chosen]
        query["ids"] = list(where.ids)
        by_finish = is_by_finish(where)
        newest_first = "s.finished_at DESC, s.seq DESC" if by_finish else "s.seq DESC"
        rest = f"WHERE {' AND '.join(chosen)} ORDER BY {newest_first} LIMIT :limit"
        parts = [f"({part} {rest})" for part in _parts(where)]
        if not parts:
            return Page(jobs=(), next=None)
        # Each part is as long as a whole page, so the newest of both are among them.
        whole = parts[0] if len(parts) == 1 else f"{' UNION ALL '.join(parts)} ORDER BY 1 DESC LIMIT :limit"
        query["limit"] = limit + 1
        rows = self._connections.rows(f"WITH {NOW_IS} {whole}", query)
        now = rows[0][-1] if rows else 0
        return page([row[:-1] for row in rows], now, limit=limit, by_finish=by_finish)

    def get(self, job_id: str) -> JobHistory | None:
        text = f"WITH {NOW_IS} {OPEN} WHERE j.id = :id UNION ALL {ENDED} WHERE j.id = :id AND s.state < {FORGOTTEN}"

        def read(connection: Connection) -> JobHistory | None:
            row = connection.execute(self._sql(text), {"id": job_id}).fetchone()
            if row is None:
                return None
            query = {"seq": row[0], "succeeded": Outcome.SUCCEEDED.value}
            outputs = connection.execute(self._sql(OUTPUTS), {"seq": row[0]}).fetchall()
            attempts = connection.execute(self._sql(ATTEMPTS), query).fetchall()
            return history(view(row[:-1], row[-1]), map(_decoded, attempts), outputs, row[5])

        return self._connections.transact(read)

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        used = USED_SLOTS if names is None else USED_OF_THESE
        query = {"names": list(names or ()), "after": after, "limit": limit}

        def read(connection: Connection) -> list[SlotView]:
            chosen = [slot for (slot,) in connection.execute(self._sql(used), query).fetchall()]
            these = {"slots": chosen, "limit": SHOWN_WAITERS}
            statements = (HOLDERS, NUMBER_WAITING, FIRST_WAITING)
            rows = [connection.execute(self._sql(statement), these).fetchall() for statement in statements]
            return slot_views(*rows)

        return self._connections.transact(read)

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        query = {"id": job_id, "limit": limit}

        def read(connection: Connection) -> Relatives:
            statements = (PARENTS, CHILDREN, NUMBER_OF_RELATIVES)
            return relatives(*(connection.execute(self._sql(statement), query).fetchall() for statement in statements))

        return self._connections.transact(read)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        def change(connection: Connection) -> tuple[CancelAnswer, bool]:
            query = {"id": job_id, "reason": reason}
            connection.execute(self._sql(HOLD_STILL), query)
            if cancelled := connection.execute(self._sql(CANCEL_WAITING), query).fetchone():
                return CancelAnswer.CANCELLED, note(connection, self._sql, NOTE_ENDED, cancelled)
            if connection.execute(self._sql(REQUEST_CANCEL), query).rowcount:
                return CancelAnswer.REQUESTED, False
            is_unknown = self._state(connection, job_id) is None
            return CancelAnswer.UNKNOWN if is_unknown else CancelAnswer.TOO_LATE, False

        return self._transact_noting(change)

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        def change(connection: Connection) -> tuple[ReplayAnswer, bool]:
            connection.execute(self._sql(LOCK_CHILD), {"id": job_id})
            message = connection.execute(self._sql(MESSAGE_OF), {"id": job_id}).fetchone()
            if message is not None and not ignore_expiry and has_expired(*message):
                return ReplayAnswer.EXPIRED, False
            query = {"id": job_id, "ignore_expiry": ignore_expiry}
            replayed = connection.execute(self._sql(REPLAY), query).fetchone()
            if replayed is None:
                return not_replayed(self._state(connection, job_id)), False
            seq, queue = replayed
            connection.execute(self._sql(WAIT_AGAIN), {"seq": seq})
            self._announcements.announce(connection, [queue])
            return ReplayAnswer.REPLAYED, note(connection, self._sql, NOTE, [seq])

        return self._transact_noting(change)

    def _state(self, connection: Connection, job_id: str) -> JobState | None:
        row = connection.execute(self._sql(STATE_OF), {"id": job_id}).fetchone()
        return None if row is None else STATES.get(row[0])

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        query = {"id": job_id, "states": numbers(CODES[state] for state in check_purge(states))}

        def change(connection: Connection) -> tuple[bool, bool]:
            row = connection.execute(self._sql(LOCK_ENDED), query).fetchone()
            if row is None:
                return False, False
            self._leave_tombstones(connection, [(row[0], row[1] + duration_us(TOMBSTONE_S))])
            return True, note(connection, self._sql, NOTE_ENDED, row[:1])

        return self._transact_noting(change)

    def delete(self, outdated: Outdated) -> int:
        query = {"state": CODES[outdated.state], "queue": outdated.queue, "age": outdated.age_us, "limit": PRUNE_BATCH}
        query["spares_parents"] = outdated.spares_parents

        def delete(connection: Connection) -> tuple[int, bool]:
            found = connection.execute(self._sql(FINISHED_BEFORE), query).fetchall()
            if found:
                stones, rest = outdated.parted([row[:-1] for row in found], found[0][-1])
                self._leave_tombstones(connection, stones)
                drop_records(connection, self._sql, rest)
            return len(found), note(connection, self._sql, NOTE_ENDED, [row[0] for row in found])

        return self._transact_noting(delete)

    def _transact_noting(self, work: Callable[[Connection], tuple[T, bool]]) -> T:
        """Run `work(connection)` in a transaction. If it left a note, which it also returns, resolve it."""
        answer, has_notes = self._connections.transact(work)
        if has_notes:
            resolve_soon(self._connections, self._announcements)
        return answer

    def delete_tombstones(self) -> int:
        def drop(connection: Connection) -> int:
            old = connection.execute(self._sql(OLD_TOMBSTONES), {"limit": PRUNE_BATCH}).fetchall()
            drop_records(connection, self._sql, [seq for (seq,) in old])
            return len(old)

        return self._connections.transact(drop)

    def delete_unused(self) -> int:
        return self._connections.transact_briefly(self._delete_unused)

    def _delete_unused(self, connection: Connection) -> int:
        """Delete up to `PRUNE_BATCH` rows in all: keys, then places, then slots, whose places are gone by then."""
        keys = self._lock_unused(connection, LOCK_KEYS_OVER, 0)
        if keys:
            connection.execute(self._sql(DELETE_KEYS), {"keys": [key for (key,) in keys]})
        left = self._lock_unused(connection, LOCK_PLACES_LEFT, len(keys))
        if left:
            query = {"slots": [slot for slot, _ in left], "seqs": numbers(seq for _, seq in left)}
            connection.execute(self._sql(DELETE_PLACES), query)
        idle = self._lock_unused(connection, LOCK_IDLE_SLOTS, len(keys) + len(left))
        if idle:
            connection.execute(self._sql(DELETE_SLOTS), {"names": [name for (name,) in idle]})
        return len(keys) + len(left) + len(idle)

    def _lock_unused(self, connection: Connection, statement: str, found: int) -> list[Row]:
        return connection.execute(self._sql(statement), {"limit": PRUNE_BATCH - found}).fetchall()

    def _leave_tombstones(self, connection: Connection, stones: Sequence[tuple[int, int]]) -> None:
        """Replace these (number, expiry) by tombstones. Messages are read one by one: they may be large."""
        for seq, until in stones:
            message = connection.execute(self._sql(MESSAGE), {"seq": seq}).fetchone()
            digest = content_digest(message[0] if message else b"")
            connection.execute(self._sql(FORGET), {"seq": seq, "until": until, "digest": digest})
            connection.execute(self._sql(DROP_MESSAGE), {"seq": seq})
        seqs = numbers(seq for seq, _ in stones)
        for statement in (DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS, DELETE_EDGES):
            connection.execute(self._sql(statement), {"seqs": seqs})

    def _sql(self, statement: str) -> bytes:
        return self._connections.sql(statement)


def drop_records(connection: PostgresStatements, sql: Callable[[str], bytes], seqs: Sequence[int]) -> None:
    """Delete everything stored about these jobs, `ended_jobs` first: all transactions lock in this order."""
    for statement in (DELETE_ENDED, DELETE_JOB, DELETE_ATTEMPTS, DELETE_PROGRESS, DELETE_OUTPUTS, DELETE_EDGES):
        connection.execute(sql(statement), {"seqs": numbers(seqs)})


def _decoded(row: Row) -> Row:
    *others, output, result, note = row
    return (*others, None if output is None else bytes(output).decode(errors="replace"), result, note)


def _parts(where: JobFilter) -> list[str]:
    """The queries that can find such jobs: among the open ones, the finished ones, or both."""
    is_ended = [state.is_final for state in where.states]
    asks_for_end = (where.dead_reason, where.finished_from, where.finished_before) != (None, None, None)
    has_open = not asks_for_end and not (is_ended and all(is_ended))
    return [OPEN] * has_open + [ENDED] * (not is_ended or any(is_ended))


def _states_conditions(states: Iterable[JobState]) -> list[str]:
    any_of = " OR ".join(_state_condition(state) for state in dict.fromkeys(states))
    return [f"s.state < {FORGOTTEN}", f"({any_of})"] if any_of else [f"s.state < {FORGOTTEN}"]


def _state_condition(state: JobState) -> str:
    if state is JobState.SCHEDULED:
        return f"(s.state = {WAITING} AND s.due_at > {NOW})"
    if state is JobState.PENDING:
        return f"(s.state = {WAITING} AND s.due_at <= {NOW})"
    return f"s.state = {CODES[state]}"
