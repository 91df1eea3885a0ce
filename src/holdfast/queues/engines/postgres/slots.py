"""Slots and unique keys in PostgreSQL: the rows on which `contract/slots.py` and `contract/uniques.py` decide.

A transaction locks the rows of its slots or keys in byte order. Everything else is read afterwards, in new statements,
which see what other transactions committed while it waited. All transactions lock slots, then leased jobs, then blocked
jobs, then cells. Blocked jobs that are already locked are skipped: a caller that enqueues in its own transaction may
hold these locks for minutes. A lease that looks expired is still valid if its renewal is not committed yet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.queues.contract import Crowd, Place, SlotRow, SlotRows, UniqueRow, UniqueRows, Waiter
from holdfast.queues.contract.slots import PROMOTE_AT_ONCE, JobNumber
from holdfast.queues.contract.state import CellName, StoredCell, cell_of
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.edges import NOTE_ENDED
from holdfast.queues.engines.postgres.statements import CLOCK, NOW, NOW_IS, PostgresStatements, numbers
from holdfast.queues.engines.tables.rows import MANY, NEVER, Row
from holdfast.queues.engines.tables.states import BLOCKED, CANCELLED, FAILED, FORGOTTEN, PROCESSING, STATES, WAITING
from holdfast.values import Cell, JobLease, JobState

CREATE_SLOTS: Final = """
    INSERT INTO holdfast.slots (name, fence)
    SELECT name, 0 FROM unnest(:names::text[]) AS given (name) ORDER BY name COLLATE "C"
    ON CONFLICT (name) DO NOTHING"""

# The clock is read for each row after it was locked, so the last reading is later than every wait.
LOCK_SLOTS: Final = f"""
    WITH locked AS MATERIALIZED (
        SELECT name, fence, size, closed_until FROM holdfast.slots
        WHERE name = ANY (:names::text[]) ORDER BY name FOR UPDATE
    )
    SELECT name, least(fence, {NEVER - 1}), size, closed_until, {CLOCK} FROM locked"""

RESIZE: Final = """
    UPDATE holdfast.slots AS s SET size = given.size, closed_until = given.closed_until
    FROM unnest(:names::text[], :sizes::integer[], :closed::bigint[]) AS given (name, size, closed_until)
    WHERE s.name = given.name"""

# Those that nobody else has locked.
FREE_SLOTS: Final = """
    WITH locked AS MATERIALIZED (
        SELECT name FROM holdfast.slots WHERE name = ANY (:names::text[]) ORDER BY name FOR UPDATE SKIP LOCKED
    )
    SELECT name FROM unnest(:names::text[]) AS given (name)
    WHERE name IN (SELECT name FROM locked)
        OR NOT EXISTS (SELECT 1 FROM holdfast.slots AS s WHERE s.name = given.name)"""

LOCK_HELD: Final = """
    SELECT seq, owner_token FROM holdfast.open_jobs
    WHERE seq = ANY (:seqs::bigint[]) AND lease_until > :now
        AND (seq, owner_token) IN (SELECT * FROM unnest(:seqs::bigint[], :tokens::bytea[]))
    ORDER BY seq FOR UPDATE"""

LIVE_CELLS: Final = """
    SELECT c.kind, c.key, c.value, c.version, c.expires_at
    FROM unnest(:kinds::text[], :keys::text[]) AS given (kind, key)
    JOIN holdfast.cells AS c ON c.kind = given.kind AND c.key = given.key
    WHERE c.expires_at IS NULL OR c.expires_at > :now"""

# Whether a place `p` is taken. The job of a promotion is due, or was claimed and is about to enter. It may have been
# released in this transaction, after `now` was read.
_IS_TAKEN: Final = f"""
    EXISTS (SELECT 1 FROM holdfast.open_jobs AS o WHERE o.seq = p.seq AND CASE
        WHEN p.owner_token IS NOT NULL THEN o.owner_token = p.owner_token AND o.lease_until > {{least}}
        WHEN o.state = {PROCESSING} THEN o.queue = p.queue AND o.lease_until > {{now}}
        ELSE o.queue = p.queue AND o.state <= {FAILED} AND o.due_at <= {CLOCK} END)"""
IS_TAKEN: Final = _IS_TAKEN.format(now=NOW, least=NOW)
"""Whether a place `p` is taken, by the clock of the statement."""
MAY_BE_TAKEN: Final = _IS_TAKEN.format(now=NOW, least=0)
"""Whether a place `p` may be taken: if its lease looks expired, the renewal may not be committed yet."""

PLACES: Final = f"""
    SELECT p.slot, p.seq, p.queue, p.owner_token, p.fence, coalesce(p.until, 0),
        {_IS_TAKEN.format(now=":now::bigint", least=":now::bigint")}, {_IS_TAKEN.format(now=":now::bigint", least=0)}
    FROM holdfast.places AS p WHERE p.slot = ANY (:names::text[])"""

# A renewal that is not committed yet has locked its row, and one that waits for our lock finds the lease expired.
LOCK_EXPIRED: Final = """
    SELECT seq, owner_token FROM holdfast.open_jobs
    WHERE seq = ANY (:seqs::bigint[]) AND lease_until <= :now
        AND (seq, owner_token) IN (SELECT * FROM unnest(:seqs::bigint[], :tokens::bytea[]))
    ORDER BY seq FOR UPDATE SKIP LOCKED"""

TAKE: Final = """
    WITH taken AS (
        INSERT INTO holdfast.places (slot, seq, queue, owner_token, fence, since)
        SELECT *, :now::bigint
        FROM unnest(:slots::text[], :seqs::bigint[], :queues::text[], :tokens::bytea[], :fences::bigint[])
        ON CONFLICT (slot, seq) DO UPDATE SET queue = excluded.queue, owner_token = excluded.owner_token,
            fence = excluded.fence, since = excluded.since, until = NULL
    )
    UPDATE holdfast.slots AS s SET fence = given.fence
    FROM unnest(:names::text[], :last_fences::bigint[]) AS given (name, fence) WHERE s.name = given.name"""

FREE: Final = """
    DELETE FROM holdfast.places
    WHERE (slot, seq) IN (SELECT * FROM unnest(:slots::text[], :seqs::bigint[]))"""

RESERVE: Final = """
    UPDATE holdfast.places SET owner_token = NULL, fence = 0, since = :now, until = :until
    WHERE (slot, seq) IN (SELECT * FROM unnest(:slots::text[], :seqs::bigint[]))"""

# A job has one row, which may replace a stale one. If cancellation was requested, the job is cancelled instead.
BLOCK: Final = f"""
    WITH cancelled AS (
        DELETE FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND cancel_request IS NOT NULL RETURNING *
    ), gone AS (
        INSERT INTO holdfast.ended_jobs (seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error,
            state, finished_at, cancel_reason)
        SELECT seq, due_at, attempts, crashes, deliveries, ignore_expiry, queue, last_error, {CANCELLED}, :now,
            cancel_request
        FROM cancelled ON CONFLICT (seq) DO NOTHING
    ), ended AS (
        UPDATE holdfast.open_jobs AS o SET state = {BLOCKED}, owner_token = NULL
        FROM unnest(:seqs::bigint[], :slots::text[], :sizes::integer[]) AS given (seq, slot, size)
        WHERE o.seq = given.seq AND o.cancel_request IS NULL
        RETURNING o.seq, o.due_at, o.priority, o.queue, o.id, given.slot, given.size
    )
    INSERT INTO holdfast.blocked (seq, slot, queue, lane, due_at, id, size, since)
    SELECT seq, slot, queue, 9 - priority, due_at, id, size, :now FROM ended ORDER BY seq
    ON CONFLICT (seq) DO UPDATE SET slot = excluded.slot, queue = excluded.queue, lane = excluded.lane,
        due_at = excluded.due_at, id = excluded.id, size = excluded.size, since = excluded.since"""

# One index entry for each queue, however many jobs wait in it.
WAITING_QUEUES: Final = """
    WITH RECURSIVE pairs AS (
        SELECT name, (SELECT min(queue) FROM holdfast.blocked AS b WHERE b.slot = name) AS queue
        FROM unnest(:names::text[]) AS given (name)
        UNION ALL
        SELECT name, (SELECT min(b.queue) FROM holdfast.blocked AS b WHERE b.slot = name AND b.queue > pairs.queue)
        FROM pairs WHERE queue IS NOT NULL
    )
    SELECT name, queue FROM pairs WHERE queue IS NOT NULL"""

BEST: Final = """
    SELECT given.slot, best.seq, given.queue, best.size
    FROM unnest(:slots::text[], :queues::text[], :aheads::bigint[]) WITH ORDINALITY AS given (slot, queue, ahead, place)
    CROSS JOIN LATERAL (
        SELECT seq, size, lane, due_at, id FROM holdfast.blocked AS b
        WHERE b.slot = given.slot AND b.queue = given.queue AND b.size > given.ahead AND seq <> ALL (:passed::bigint[])
        ORDER BY lane, due_at, id LIMIT :limit
    ) AS best
    ORDER BY given.place, best.lane, best.due_at, best.id"""

# A row is deleted only if its slot matches: a job that has since been blocked on another slot still waits for that one.
# If another transaction has locked a job, the job and its row are left alone; it will be promoted later.
PROMOTE: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(:seqs::bigint[], :slots::text[]) AS given (seq, slot)
    ), ready AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs WHERE seq = ANY (:seqs::bigint[]) AND state = {BLOCKED}
        ORDER BY seq FOR UPDATE SKIP LOCKED
    ), stale AS MATERIALIZED (
        SELECT seq FROM given
        WHERE NOT EXISTS (SELECT 1 FROM holdfast.open_jobs AS o WHERE o.seq = given.seq AND o.state = {BLOCKED})
    ), gone AS (
        DELETE FROM holdfast.blocked AS b USING given
        WHERE b.seq = given.seq AND b.slot = given.slot
            AND b.seq IN (SELECT seq FROM ready UNION ALL SELECT seq FROM stale)
        RETURNING b.seq, b.slot, b.queue
    ), promoted AS (
        UPDATE holdfast.open_jobs AS o SET state = {WAITING} FROM gone JOIN ready ON ready.seq = gone.seq
        WHERE o.seq = gone.seq AND o.state = {BLOCKED} RETURNING o.seq
    ), marked AS (
        INSERT INTO holdfast.places (slot, seq, queue, fence, since, until)
        SELECT gone.slot, gone.seq, gone.queue, 0, :now, :until FROM gone JOIN promoted ON promoted.seq = gone.seq
        ON CONFLICT (slot, seq) DO UPDATE SET queue = excluded.queue, owner_token = NULL, fence = excluded.fence,
            since = excluded.since, until = excluded.until
    )
    SELECT gone.seq, gone.queue, promoted.seq IS NOT NULL FROM gone LEFT JOIN promoted ON promoted.seq = gone.seq"""

# Only reads, without locks: one index entry for each slot and queue, no matter how many jobs wait in it.
FREE_PLACES: Final = f"""
    WITH RECURSIVE {NOW_IS}, pairs AS (
        (SELECT slot, queue FROM holdfast.blocked ORDER BY slot, queue LIMIT 1)
        UNION ALL
        SELECT following.slot, following.queue FROM pairs CROSS JOIN LATERAL (
            SELECT b.slot, b.queue FROM holdfast.blocked AS b WHERE (b.slot, b.queue) > (pairs.slot, pairs.queue)
            ORDER BY b.slot, b.queue LIMIT 1
        ) AS following
    )
    SELECT DISTINCT pairs.slot FROM pairs LEFT JOIN holdfast.slots AS s ON s.name = pairs.slot
    CROSS JOIN LATERAL (
        SELECT max(first.size) AS size FROM (
            SELECT b.size FROM holdfast.blocked AS b WHERE b.slot = pairs.slot AND b.queue = pairs.queue
            ORDER BY b.lane, b.due_at, b.id LIMIT {PROMOTE_AT_ONCE}
        ) AS first
    ) AS best
    WHERE coalesce(s.closed_until, 0) <= {NOW} AND coalesce(s.size, best.size) > (
        SELECT count(*) FROM holdfast.places AS p
        WHERE p.slot = pairs.slot AND (p.owner_token IS NOT NULL OR p.queue = pairs.queue) AND {IS_TAKEN}
    )
    ORDER BY 1 LIMIT :limit"""

# One read for all that `repair` does: these slots, and null if there are notes on jobs with edges.
UNDONE: Final = f"""
    (SELECT slot FROM ({FREE_PLACES}) AS free)
    UNION ALL SELECT NULL WHERE EXISTS (SELECT 1 FROM holdfast.notes)"""

CREATE_KEYS: Final = """
    INSERT INTO holdfast.uniques (key, id, until)
    SELECT key, '', 0 FROM unnest(:keys::text[]) AS given (key) ORDER BY key COLLATE "C"
    ON CONFLICT (key) DO NOTHING"""

LOCK_KEYS: Final = f"""
    WITH locked AS MATERIALIZED (
        SELECT key, id, until FROM holdfast.uniques WHERE key = ANY (:keys::text[]) ORDER BY key FOR UPDATE
    )
    SELECT key, id, until, {CLOCK} FROM locked"""

# Claims skip locked rows, so these jobs do not start. A row that another transaction has locked may be about to start,
# so it is locked after that commit, unless the job runs by then: the lease of a running job could not be renewed.
LOCK_UNSTARTED: Final = f"""
    SELECT seq FROM holdfast.open_jobs
    WHERE seq = ANY (ARRAY(SELECT seq FROM holdfast.jobs WHERE id = ANY (:ids::text[]))) AND state <> {PROCESSING}
    ORDER BY seq FOR UPDATE"""

# A job that was running a moment ago may have been released since: we have not locked it, so it counts as running.
STATES_OF: Final = f"""
    SELECT j.id, CASE WHEN o.seq IS NULL THEN e.state WHEN o.seq = ANY (:locked::bigint[]) THEN o.state
                      ELSE {PROCESSING} END
    FROM holdfast.jobs AS j LEFT JOIN holdfast.open_jobs AS o ON o.seq = j.seq
        LEFT JOIN holdfast.ended_jobs AS e ON e.seq = j.seq
    WHERE j.id = ANY (:ids::text[])"""

STORE_KEYS: Final = """
    UPDATE holdfast.uniques AS u SET id = given.id, until = given.until
    FROM unnest(:keys::text[], :ids::text[], :instants::bigint[]) AS given (key, id, until) WHERE u.key = given.key"""


class PostgresSlots(SlotRows):
    """The slots in a PostgreSQL database."""

    def __init__(
        self, connection: PostgresStatements, sql: Callable[[str], bytes], announcements: Announcements
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._announcements = announcements
        self._passed: set[JobNumber] = set()
        self.now_us = 0

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        rows = _lock(self._connection, self._sql, (CREATE_SLOTS, LOCK_SLOTS), {"names": list(names)})
        self.now_us = rows[-1][-1]
        return {name: SlotRow(fence, size, closed_until) for name, fence, size, closed_until, _ in rows}

    def resize(self, slots: Mapping[str, SlotRow]) -> None:
        query = {
            "names": list(slots),
            "sizes": numbers("NULL" if row.size is None else row.size for row in slots.values()),
            "closed": numbers(row.closed_until_us for row in slots.values()),
        }
        self._connection.execute(self._sql(RESIZE), query)

    def held(self, leases: Sequence[JobLease]) -> set[tuple[JobNumber, str]]:
        return self._claims(LOCK_HELD, ((one.token, one.owner_token) for one in leases))

    def cells(self, names: Sequence[CellName]) -> Mapping[CellName, Cell]:
        query = {"kinds": [kind for kind, _ in names], "keys": [key for _, key in names], "now": self.now_us}
        return {
            (kind, key): cell_of((kind, key), StoredCell(bytes(value), version, expires_us), self.now_us)
            for kind, key, value, version, expires_us in self._rows(LIVE_CELLS, query)
        }

    def places(self, names: Sequence[str]) -> list[Place]:
        taken: list[Place] = []
        others: list[Place] = []
        doubtful: list[Place] = []
        for slot, seq, queue, token, fence, until_us, is_taken, has_lease in self._rows(
            PLACES, {"names": list(names), "now": self.now_us}
        ):
            place = Place(slot, seq, queue, None if token is None else bytes(token).hex(), fence, until_us)
            (taken if is_taken else doubtful if has_lease else others).append(place)
        if doubtful:
            expired = self._expired(doubtful)
            for place in doubtful:
                (others if (place.number, place.owner_token) in expired else taken).append(place)
        if others:
            self.free([(place.slot, place.number) for place in others])
        return taken

    def _expired(self, places: Sequence[Place]) -> set[tuple[JobNumber, str]]:
        """Lock the jobs of these places, and return the (number, owner token) of those whose leases have expired."""
        return self._claims(LOCK_EXPIRED, ((place.number, place.owner_token or "") for place in places))

    def _claims(self, statement: str, claims: Iterable[tuple[JobNumber, str]]) -> set[tuple[JobNumber, str]]:
        asked = list(claims)
        tokens = [bytes.fromhex(token) for _, token in asked]
        query = {"seqs": numbers(seq for seq, _ in asked), "tokens": tokens, "now": self.now_us}
        return {(seq, bytes(token).hex()) for seq, token in self._rows(statement, query)}

    def take(self, places: Sequence[Place]) -> None:
        # A message may name a slot twice, but each place is stored once.
        chosen = {(one.slot, one.number): one for one in places}.values()
        last = {one.slot: one.fence for one in places}
        query = {
            "slots": [one.slot for one in chosen],
            "seqs": numbers(one.number for one in chosen),
            "queues": [one.queue for one in chosen],
            "tokens": [bytes.fromhex(one.owner_token or "") for one in chosen],
            "fences": numbers(one.fence for one in chosen),
            "names": list(last),
            "last_fences": numbers(last.values()),
            "now": self.now_us,
        }
        self._connection.execute(self._sql(TAKE), query)

    def free(self, places: Sequence[tuple[str, JobNumber]]) -> None:
        query = {"slots": [slot for slot, _ in places], "seqs": numbers(seq for _, seq in places)}
        self._connection.execute(self._sql(FREE), query)

    def reserve(self, places: Sequence[tuple[str, JobNumber]], until_us: int) -> None:
        query = {
            "slots": [slot for slot, _ in places],
            "seqs": numbers(seq for _, seq in places),
            "now": self.now_us,
            "until": until_us,
        }
        self._connection.execute(self._sql(RESERVE), query)

    def block(self, waiters: Sequence[Waiter]) -> None:
        chosen = {one.number: one for one in waiters}.values()
        query = {
            "seqs": numbers(one.number for one in chosen),
            "slots": [one.slot for one in chosen],
            "sizes": numbers(min(one.size, MANY) for one in chosen),
            "now": self.now_us,
        }
        self._connection.execute(self._sql(BLOCK), query)
        # Those that were cancelled may have children. This is so rare that the note is left to `repair`.
        self._connection.execute(self._sql(NOTE_ENDED), query)

    def queues(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(slot, queue) for slot, queue in self._rows(WAITING_QUEUES, {"names": list(names)})]

    def best(self, crowds: Sequence[Crowd], limit: int) -> list[Waiter]:
        query = {
            "slots": [one.slot for one in crowds],
            "queues": [one.queue for one in crowds],
            "aheads": numbers(one.ahead for one in crowds),
            "passed": numbers(self._passed),
            "limit": limit,
        }
        return [Waiter(*row) for row in self._rows(BEST, query)]

    def promote(self, waiters: Sequence[Waiter], until_us: int) -> set[JobNumber]:
        query = {
            "seqs": numbers(one.number for one in waiters),
            "slots": [one.slot for one in waiters],
            "now": self.now_us,
            "until": until_us,
        }
        rows = self._rows(PROMOTE, query)
        self._passed |= {one.number for one in waiters} - {seq for seq, _, _ in rows}
        # Announced at once, even if the workers were woken just now: there may be no other job that wakes them again.
        self._announcements.announce_now(self._connection, {queue for _, queue, is_promoted in rows if is_promoted})
        return {seq for seq, _, is_promoted in rows if is_promoted}

    def _rows(self, statement: str, query: dict[str, Any]) -> Sequence[Row]:
        return self._connection.execute(self._sql(statement), query).fetchall()


class PostgresUniques(UniqueRows):
    """The unique keys in a PostgreSQL database."""

    def __init__(self, connection: PostgresStatements, sql: Callable[[str], bytes]) -> None:
        self._connection = connection
        self._sql = sql
        self.now_us = 0

    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        rows = _lock(self._connection, self._sql, (CREATE_KEYS, LOCK_KEYS), {"keys": list(keys)})
        self.now_us = rows[-1][-1]
        return {key: UniqueRow(key, job_id, until_us) for key, job_id, until_us, _ in rows}

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        query: dict[str, Any] = {"ids": list(ids)}
        locked = self._connection.execute(self._sql(LOCK_UNSTARTED), query).fetchall()
        query["locked"] = numbers(seq for (seq,) in locked)
        rows = self._connection.execute(self._sql(STATES_OF), query).fetchall()
        return {job_id: None if code == FORGOTTEN else STATES.get(code) for job_id, code in rows}

    def store(self, rows: Sequence[UniqueRow]) -> None:
        query = {
            "keys": [one.key for one in rows],
            "ids": [one.job_id for one in rows],
            "instants": numbers(min(one.until_us, NEVER) for one in rows),
        }
        self._connection.execute(self._sql(STORE_KEYS), query)


def _lock(
    connection: PostgresStatements, sql: Callable[[str], bytes], statements: tuple[str, str], query: dict[str, Any]
) -> Sequence[Row]:
    """Create the missing rows, lock all rows in order and return them. A row may be deleted in between."""
    create, lock = statements
    [names] = query.values()
    while True:
        connection.execute(sql(create), query)
        rows = connection.execute(sql(lock), query).fetchall()
        if len(rows) == len(names):
            return rows
