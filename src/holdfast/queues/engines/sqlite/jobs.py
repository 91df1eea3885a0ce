"""Moving jobs in one SQLite file, shared by any number of threads and processes of one machine.

Accepted means committed and synced. Writers take turns, so every verb is one short `BEGIN IMMEDIATE` transaction over
a whole batch, and polling an empty queue only reads. The engine's clock is the host's; `connections.py` opens the file.
"""

import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import chain, count, groupby
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.clock import Clock, duration_us
from holdfast.codec import content_digest
from holdfast.errors import IdConflict, StateConflict
from holdfast.queues.contract import (
    EFFECT_OF_ACK,
    EngineTransaction,
    Jobs,
    LeasePolicy,
    LockedSlots,
    extras_of,
    find_duplicates,
    left_slots,
    resolve,
    resolve_all,
    slot_names,
    take_once,
)
from holdfast.queues.engines.sqlite.connections import SqliteFile, as_json
from holdfast.queues.engines.sqlite.damage import REPAIR, dead_letter
from holdfast.queues.engines.sqlite.edges import SqliteEdges, connect
from holdfast.queues.engines.sqlite.notes import note_ended
from holdfast.queues.engines.sqlite.records import DELETE_JOB
from holdfast.queues.engines.sqlite.slots import STOP_WAITING, TO_REPAIR, SqliteSlots, SqliteUniques
from holdfast.queues.engines.sqlite.state import write_cells
from holdfast.queues.engines.sqlite.transactions import SqliteCaller, SqliteStatements, SqliteTransaction
from holdfast.queues.engines.tables.rows import (
    LONG_US,
    MANY,
    Row,
    ack_token,
    alone_if_suspect,
    dues,
    effect_query,
    end_key,
    end_row,
    lease_state,
    leased,
    output_report,
    pauses,
    progress_report,
    reap_query,
    reaped_row,
    session_query,
)
from holdfast.queues.engines.tables.states import (
    BLOCKED,
    CANCELLED,
    COMPLETED,
    DEAD,
    EDGE_OPEN,
    FAILED,
    FORGOTTEN,
    PROCESSING,
    WAITING,
)
from holdfast.values import (
    Accepted,
    Ack,
    CellWrite,
    Entered,
    Entry,
    JobEnvelope,
    JobLease,
    LeaseState,
    LiveOutput,
    Outcome,
    Progress,
    QueuePause,
    Settlement,
)

# How long a wait relies on the last poll: after this, it checks for due times that moved and commits it missed.
LOOK_EVERY_S: Final = 1.0

# The maximum number of slots that one transaction repairs.
SLOTS_AT_ONCE: Final = 100

# A data version is meaningful only on the connection that read it.
_Seen: TypeAlias = tuple[sqlite3.Connection, int]

INSERT_JOB: Final = """
    INSERT INTO holdfast_jobs (queue, job, priority, trace_id, accepted_at, seq, id, due_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""

INSERT_MESSAGE: Final = "INSERT INTO holdfast_messages (seq, wire) VALUES (?, ?)"

# A row costs half as much in a statement that inserts many; common values are then passed only once.
ROWS_AT_ONCE: Final = 100
# A statement holds its last parameters in memory, which must not be a hundred large messages.
SMALL_WIRE_BYTES: Final = 16 * 1024

INSERT_LIKE_JOBS: Final = f"""
    INSERT INTO holdfast_jobs (queue, job, priority, trace_id, accepted_at, seq, id, due_at)
    SELECT ?, ?, ?, ?, ?, column1, column2, column3 FROM (VALUES {", ".join(["(?, ?, ?)"] * ROWS_AT_ONCE)})
    WHERE true ON CONFLICT (id) DO NOTHING"""

INSERT_MESSAGES: Final = f"""
    INSERT INTO holdfast_messages (seq, wire) VALUES {", ".join(["(?, ?)"] * ROWS_AT_ONCE)}"""

DELETE_FROM: Final = "DELETE FROM holdfast_jobs WHERE seq >= ? AND seq < ?"

# A larger number was not assigned by Holdfast, and no other could follow it.
# The number of a deleted parent stays unused for as long as it has edges.
NEXT_SEQ: Final = f"""
    SELECT max((SELECT coalesce(max(seq), 0) FROM holdfast_jobs WHERE seq < {2**62}),
               (SELECT CAST(coalesce(max(parent), 0) AS INTEGER) FROM holdfast_edges WHERE parent < {2**62})) + 1"""

KNOWN: Final = """
    SELECT seq, state, CAST(coalesce(finished_at, 0) AS INTEGER), digest,
        coalesce((SELECT CAST(wire AS BLOB) FROM holdfast_messages AS m WHERE m.seq = j.seq), x'')
    FROM holdfast_jobs AS j WHERE id = ?"""

RESCHEDULE: Final = f"""
    UPDATE holdfast_jobs
    SET state = CASE WHEN EXISTS (SELECT 1 FROM holdfast_edges AS e WHERE e.child = seq AND e.outcome = {EDGE_OPEN})
                     THEN {BLOCKED} ELSE {WAITING} END,
        queue = :queue, job = :job, priority = :priority, trace_id = :trace_id, due_at = :due
    WHERE id = :id AND state IN ({WAITING}, {FAILED}, {BLOCKED})
    RETURNING seq"""

REPLACE_MESSAGE: Final = "INSERT OR REPLACE INTO holdfast_messages (seq, wire) VALUES (?, ?)"

# One index range per priority, best first, each in due order: jobs that are not due yet cost nothing.
CANDIDATES: Final = (
    " UNION ALL ".join(
        f"""SELECT * FROM (
        SELECT seq, crashes FROM holdfast_jobs
        WHERE state <= {FAILED} AND queue = :queue AND priority = {priority} AND due_at <= :now
        ORDER BY due_at, id LIMIT :limit)"""
        for priority in range(9, -1, -1)
    )
    + " LIMIT :limit"
)

# Numbers sort before texts, so this skips a due time that is not a number.
NEXT_DUE: Final = " UNION ALL ".join(
    f"""SELECT * FROM (
        SELECT due_at FROM holdfast_jobs
        WHERE state <= {FAILED} AND queue = :queue AND priority = {priority} AND due_at < ''
        ORDER BY due_at LIMIT 1)"""
    for priority in range(10)
)

STAMPED: Final = f"""
    SELECT 1 FROM holdfast_jobs
    WHERE state = {PROCESSING} AND owner_token = :token AND queue = :queue AND lease_until > :now LIMIT 1"""

IS_PAUSED: Final = "SELECT 1 FROM holdfast_pauses WHERE queue = ?"

CLAIM: Final = f"""
    UPDATE holdfast_jobs
    SET state = {PROCESSING}, owner_token = :token, deliveries = min(deliveries, {MANY}) + 1,
        claimed_at = :now, lease_us = :lease, lease_until = :now + :lease
    WHERE seq IN (SELECT value FROM json_each(:seqs))"""

# The same as one row: a claim needs only the list, and whether a suspect is in it.
CHOSEN: Final = f"SELECT json_group_array(seq), coalesce(max(crashes), 0), count(*) FROM ({CANDIDATES})"

_LEASED: Final = f"""
    FROM holdfast_jobs AS j LEFT JOIN holdfast_messages AS m ON m.seq = j.seq
    WHERE j.state = {PROCESSING} AND j.owner_token = :token AND j.queue = :queue"""

# Values that all jobs of a new claim share are not read from each row.
LEASES: Final = f"""
    SELECT j.seq, coalesce(j.id, ''), coalesce(CAST(m.wire AS BLOB), x''), :lease, :now, j.deliveries,
           coalesce(j.attempts, 0), coalesce(j.crashes, 0), j.ignore_expiry, :lease
    {_LEASED}"""

LEASED_BEFORE: Final = f"""
    SELECT j.seq, CAST(coalesce(j.id, '') AS TEXT), coalesce(CAST(m.wire AS BLOB), x''),
           CAST(coalesce(j.lease_us, :lease) AS INTEGER), CAST(coalesce(j.claimed_at, :now) AS INTEGER),
           CAST(coalesce(j.deliveries, 1) AS INTEGER), CAST(coalesce(j.attempts, 0) AS INTEGER),
           CAST(coalesce(j.crashes, 0) AS INTEGER), j.ignore_expiry,
           min(CAST(j.lease_until AS INTEGER) - :now, CAST(coalesce(j.lease_us, :lease) AS INTEGER))
    {_LEASED} AND j.lease_until > :now ORDER BY j.seq"""

ACK: Final = f"""
    UPDATE holdfast_jobs
    SET state = {COMPLETED}, crashes = 0, finished_at = :now, cancel_request = NULL, last_error = NULL
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now"""

# Which jobs ACK changed, if not all: an earlier acknowledgement has an attempt by now, this one not yet.
ACKED: Final = f"""
    SELECT seq FROM holdfast_jobs AS j
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND owner_token = :token AND state = {COMPLETED} AND finished_at = :now
        AND NOT EXISTS (SELECT 1 FROM holdfast_attempts AS a
                        WHERE a.seq = j.seq AND a.delivery = j.deliveries AND a.owner_token = :token)"""

END: Final = f"""
    UPDATE holdfast_jobs
    SET state = :state, attempts = min(coalesce(attempts, 0), {MANY}) + :attempt, finished_at = :now,
        cancel_request = NULL, crashes = CASE WHEN :keeps_crashes THEN coalesce(crashes, 0) ELSE 0 END,
        last_error = CASE WHEN :state <> {COMPLETED} THEN coalesce(:error, last_error) END,
        dead_reason = :dead_reason, expired = :expired,
        cancel_reason = CASE WHEN :state = {CANCELLED} THEN coalesce(nullif(:cancel_reason, ''), cancel_request, '') END
    WHERE seq = :seq AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now"""

# Back to waiting, unless an operator wants the job cancelled or its crashes have reached the limit.
_MOVE_ON: Final = f"""
    SET state = CASE WHEN cancel_request IS NOT NULL THEN {CANCELLED}
                     WHEN :crash AND crashes + 1 >= :crash_limit THEN {DEAD} ELSE :state END,
        finished_at = CASE WHEN cancel_request IS NOT NULL OR (:crash AND crashes + 1 >= :crash_limit) THEN :now END,
        dead_reason = CASE WHEN cancel_request IS NULL AND :crash AND crashes + 1 >= :crash_limit THEN 'crash-loop' END,
        cancel_reason = cancel_request, cancel_request = NULL, expired = 0, due_at = :due,
        crashes = CASE WHEN :crash THEN min(coalesce(crashes, 0), {MANY}) + 1
                       WHEN :keeps_crashes THEN coalesce(crashes, 0) ELSE 0 END,
        last_error = coalesce(:error, last_error)"""

GIVE_BACK: Final = f"""
    UPDATE holdfast_jobs {_MOVE_ON}, attempts = min(coalesce(attempts, 0), {MANY}) + :attempt
    WHERE seq = :seq AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now"""

SETTLED_AS: Final = """
    SELECT 1 FROM holdfast_attempts WHERE seq = ? AND delivery = ? AND owner_token = ? AND verdict = ?"""

# Only the settlement of a delivery writes its row: one that is already there is damage.
INSERT_ATTEMPT: Final = """
    INSERT OR REPLACE INTO holdfast_attempts
        (seq, delivery, owner_token, verdict, outcome, started_at, ended_at,
         error_type, error_message, traceback, output, result, note)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# An attempt that records its output makes the output reported while it ran redundant.
DELETE_LIVE_OUTPUT: Final = "DELETE FROM holdfast_live_output WHERE seq = ? AND delivery = ?"

# Most attempts record only that they succeeded, and when: these are written many at once.
INSERT_SUCCESS: Final = """
    INSERT OR REPLACE INTO holdfast_attempts (owner_token, verdict, outcome, seq, delivery, started_at, ended_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""

INSERT_SUCCESSES: Final = f"""
    INSERT OR REPLACE INTO holdfast_attempts (owner_token, verdict, outcome, seq, delivery, started_at, ended_at)
    SELECT ?, ?, ?, column1, column2, column3, column4 FROM (VALUES {", ".join(["(?, ?, ?, ?)"] * ROWS_AT_ONCE)})"""

RENEW: Final = f"""
    UPDATE holdfast_jobs SET lease_until = :now + min(lease_us, {LONG_US})
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now
    RETURNING seq, cancel_request IS NOT NULL"""

LEASE_STATES: Final = f"""
    SELECT seq, cancel_request IS NOT NULL FROM holdfast_jobs
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now"""

REPORT_PROGRESS: Final = f"""
    INSERT INTO holdfast_progress (seq, delivery, done, total, message, at)
    SELECT seq, deliveries, :done, :total, :message, :now FROM holdfast_jobs
    WHERE seq = :seq AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now
    ON CONFLICT (seq) DO UPDATE SET delivery = excluded.delivery, done = excluded.done, total = excluded.total,
        message = excluded.message, at = excluded.at"""

REPORT_OUTPUT: Final = f"""
    INSERT INTO holdfast_live_output (seq, delivery, start, text)
    SELECT seq, deliveries, :start, :text FROM holdfast_jobs
    WHERE seq = :seq AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now
    ON CONFLICT (seq, delivery) DO UPDATE SET start = excluded.start, text = excluded.text"""

# If the clock was set back, such a lease would expire that much too late.
CLAMP: Final = f"""
    UPDATE holdfast_jobs SET lease_until = :now + lease_us
    WHERE state = {PROCESSING} AND lease_until > :now + 2 * lease_us AND (:queue IS NULL OR queue = :queue)
        AND (:seq IS NULL OR seq = :seq)"""

EXPIRED: Final = f"""
    SELECT seq FROM holdfast_jobs
    WHERE state = {PROCESSING} AND (:queue IS NULL OR queue = :queue)
        AND (lease_until <= :now OR lease_until > :now + 2 * lease_us)"""

HAS_EXPIRED: Final = f"{EXPIRED} LIMIT 1"

EXPIRE: Final = f"""
    UPDATE holdfast_jobs SET lease_until = :now
    WHERE state = {PROCESSING} AND owner_token BETWEEN :first AND :last AND lease_until > :now
        AND (:seq IS NULL OR seq = :seq)"""

LEASED_BY: Final = f"SELECT seq FROM holdfast_jobs WHERE state = {PROCESSING} AND owner_token BETWEEN :first AND :last"

REAP: Final = f"""
    UPDATE holdfast_jobs {_MOVE_ON}, owner_token = NULL
    WHERE state = {PROCESSING} AND lease_until <= :now AND (:queue IS NULL OR queue = :queue)
        AND (:seq IS NULL OR seq = :seq)
    RETURNING seq, deliveries, coalesce(claimed_at, :now)"""

PAUSE: Final = "INSERT OR REPLACE INTO holdfast_pauses (queue, reason, since) VALUES (?, ?, ?)"
RESUME: Final = "DELETE FROM holdfast_pauses WHERE queue = ?"
PAUSES: Final = "SELECT queue, reason, since FROM holdfast_pauses ORDER BY queue"


class SqliteJobs(Jobs):
    """Jobs in an SQLite file."""

    def __init__(self, file: SqliteFile, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy, clock)
        self._file = file

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        if tx is None:
            return self._file.transact(lambda connection, now: self._accept(connection, envelopes, writes, now))
        with SqliteCaller(tx, self._file) as connection:
            return self._store(connection, envelopes, self.clock.now_us())

    def _accept(
        self, connection: SqliteStatements, envelopes: Sequence[JobEnvelope], writes: Sequence[CellWrite], now: int
    ) -> list[Accepted]:
        if writes and write_cells(connection, self._sql, writes, now) is None:
            raise StateConflict("a condition on shared state did not hold; nothing was enqueued")
        accepted = self._store(connection, envelopes, now) if envelopes else []
        if any(one.after for one in envelopes):
            resolve(SqliteEdges(connection, self._sql, now))
        return accepted

    def _store(self, connection: SqliteStatements, envelopes: Sequence[JobEnvelope], now: int) -> list[Accepted]:
        """Insert these jobs, except for those whose unique key another job has."""
        if all(one.unique is None for one in envelopes):
            created = self._insert(connection, envelopes, now)
            return [Accepted(id=one.id, created=new) for one, new in zip(envelopes, created, strict=True)]
        duplicates = find_duplicates(envelopes, SqliteUniques(connection, self._sql, now))
        others = [one for one in envelopes if one.id not in duplicates]
        new = iter(self._insert(connection, others, now) if others else [])
        return [
            Accepted(id=duplicates[one.id], created=False)
            if one.id in duplicates
            else Accepted(id=one.id, created=next(new))
            for one in envelopes
        ]

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        if tx is None:
            return self._file.transact(lambda connection, now: self._reschedule(connection, envelopes, now))
        with SqliteCaller(tx, self._file) as connection:
            return self._reschedule(connection, envelopes, self.clock.now_us())

    def _reschedule(self, connection: SqliteStatements, envelopes: Sequence[JobEnvelope], now: int) -> list[bool]:
        times = dues(envelopes, now)
        return [self._reschedule_one(connection, one, due) for one, due in zip(envelopes, times, strict=True)]

    def _reschedule_one(self, connection: SqliteStatements, envelope: JobEnvelope, due: int) -> bool:
        """Rewrite a job. A damaged record is repaired first: a strict table would refuse to update it."""
        query = {
            "id": envelope.id,
            "queue": envelope.queue,
            "job": envelope.job,
            "priority": envelope.priority,
            "trace_id": envelope.trace_id,
            "due": due,
        }
        try:
            changed = connection.execute(self._sql(RESCHEDULE), query).fetchall()
        except sqlite3.IntegrityError:
            connection.execute(self._sql(REPAIR), {"id": envelope.id, "seq": None})
            changed = connection.execute(self._sql(RESCHEDULE), query).fetchall()
        connection.executemany(self._sql(STOP_WAITING), changed)
        connection.executemany(self._sql(REPLACE_MESSAGE), [(seq, envelope.wire) for (seq,) in changed])
        return bool(changed)

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        return SqliteTransaction(self._file, self.clock, self._settle, job_id, delivery)

    def _insert(self, connection: SqliteStatements, envelopes: Sequence[JobEnvelope], now: int) -> list[bool]:
        """Insert these jobs, and the edges of those that are new."""
        created = self._insert_all(connection, envelopes, now)
        if children := [one for one, is_new in zip(envelopes, created, strict=True) if is_new and one.after]:
            connect(connection, self._sql, children)
        return created

    def _insert_all(self, connection: SqliteStatements, envelopes: Sequence[JobEnvelope], now: int) -> list[bool]:
        """Insert all at once; only if an id is already known, insert them one by one."""
        sql = self._sql
        start: int = connection.execute(sql(NEXT_SEQ)).fetchone()[0]
        times = dues(envelopes, now)
        alike: dict[Row, list[Row]] = {}
        for seq, due, one in zip(count(start), times, envelopes):
            alike.setdefault((one.queue, one.job, one.priority, one.trace_id, now), []).append((seq, one.id, due))
        one_job, many_jobs = sql(INSERT_JOB), sql(INSERT_LIKE_JOBS)
        new = sum(_insert_rows(connection, one_job, many_jobs, rows, common) for common, rows in alike.items())
        if new == len(envelopes):
            wires = [one.wire for one in envelopes]
            many_messages = sql(INSERT_MESSAGES) if max(map(len, wires)) <= SMALL_WIRE_BYTES else None
            _insert_rows(connection, sql(INSERT_MESSAGE), many_messages, list(enumerate(wires, start)))
            return [True] * new
        # Cheaper than a savepoint, which would copy every page that is changed after it.
        connection.execute(sql(DELETE_FROM), (start, start + len(envelopes)))
        return [
            self._insert_one(connection, one, seq, due, now) for seq, due, one in zip(count(start), times, envelopes)
        ]

    def _insert_one(self, connection: SqliteStatements, envelope: JobEnvelope, seq: int, due: int, now: int) -> bool:
        known = connection.execute(self._sql(KNOWN), (envelope.id,)).fetchone()
        if known is not None:
            known_seq, state, finished_at, digest, wire = known
            if state != FORGOTTEN or finished_at > now:
                if (digest if state == FORGOTTEN else content_digest(wire)) != content_digest(envelope.wire):
                    raise IdConflict(envelope.id)
                return False
            connection.execute(self._sql(DELETE_JOB), (as_json([known_seq]),))
        row = (envelope.queue, envelope.job, envelope.priority, envelope.trace_id, now, seq, envelope.id, due)
        connection.execute(self._sql(INSERT_JOB), row)
        connection.execute(self._sql(INSERT_MESSAGE), (seq, envelope.wire))
        return True

    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        """Read before locking: an idle worker must not block those that have jobs."""
        token = bytes.fromhex(owner_token)
        now = self.clock.now_us()

        def look(connection: sqlite3.Connection) -> bool:
            query = {"queue": queue, "token": token, "now": now, "limit": 1}
            return (
                connection.execute(self._sql(CANDIDATES), query).fetchone() is not None
                and connection.execute(self._sql(IS_PAUSED), (queue,)).fetchone() is None
            ) or connection.execute(self._sql(STAMPED), query).fetchone() is not None

        if not self._file.run(look):
            return []
        asked_at = self.clock.monotonic()
        rows = self._file.transact(lambda connection, now: self._stamp(connection, queue, limit, token, now))
        return leased(rows, queue, owner_token, asked_at)

    def _stamp(self, connection: sqlite3.Connection, queue: str, limit: int, token: bytes, now: int) -> list[Row]:
        sql = self._sql
        lease = duration_us(self.policy.lease_s)
        query = {"queue": queue, "token": token, "now": now, "lease": lease, "limit": limit}
        stamped = connection.execute(sql(LEASED_BEFORE), query).fetchall()
        if stamped or limit <= 0 or connection.execute(sql(IS_PAUSED), (queue,)).fetchone():
            return stamped
        held = "[]"
        while held == "[]":  # every chosen job was dead-lettered: choose again
            seqs, crashes, number = connection.execute(sql(CHOSEN), query).fetchone()
            if crashes:
                seqs = as_json(alone_if_suspect(connection.execute(sql(CANDIDATES), query).fetchall()))
            if not number:
                return []
            held = self._hold(connection, query, seqs)
        rows = {row[0]: row for row in connection.execute(sql(LEASES), query)}
        return [rows[seq] for seq in msgspec.json.decode(held)]

    def _hold(self, connection: sqlite3.Connection, query: dict[str, Any], seqs: str) -> str:
        """Stamp these and return those that could be. A damaged record is dead-lettered; the others go on."""
        try:
            connection.execute(self._sql(CLAIM), {**query, "seqs": seqs})
        except sqlite3.IntegrityError as problem:
            chosen: list[int] = msgspec.json.decode(seqs)
            if len(chosen) > 1:
                each = [msgspec.json.decode(self._hold(connection, query, f"[{seq}]")) for seq in chosen]
                return as_json([seq for held in each for seq in held])
            dead_letter(connection, self._sql, chosen[0], query["now"], problem)
            return "[]"
        return seqs

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        def enter(connection: sqlite3.Connection, now: int) -> list[Entered]:
            return LockedSlots(SqliteSlots(connection, self._sql, now), slot_names(entries)).enter(entries)

        return self._file.transact(enter)

    def repair(self) -> int:
        """Read before locking: most calls find nothing, and should not wait for other writers."""
        found = [name for (name,) in self._file.rows(TO_REPAIR, {"now": self.clock.now_us(), "limit": SLOTS_AT_ONCE})]
        names = [name for name in found if name is not None]

        def promote(connection: sqlite3.Connection, now: int) -> int:
            rows = SqliteSlots(connection, self._sql, now)
            rows.free_dead(names)
            return LockedSlots(rows, names).promote()

        promoted = self._file.transact(promote) if names else 0
        return promoted + (self._resolve_all() if None in found else 0)

    def _resolve_all(self) -> int:
        self._file.transact(lambda connection, now: SqliteEdges(connection, self._sql, now).dismiss())
        return resolve_all(
            lambda: self._file.transact(lambda connection, now: resolve(SqliteEdges(connection, self._sql, now)))
        )

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        # The watch starts before the first poll, so that a commit after that poll is noticed.
        watch = self._file.watch()
        while True:
            seen, due = self._file.run(lambda connection: self._next_due(connection, queues))
            left = min(give_up_at - self.clock.monotonic(), LOOK_EVERY_S)
            if due is not None:
                left = min(left, (due - self.clock.now_us()) / 1e6)
            # Each poll is a separate read: between two of them the connection can be closed for a fork.
            if left <= 0 or watch.wait(left, partial(self._has_changed, seen), wake):
                return

    def _next_due(self, connection: sqlite3.Connection, queues: Sequence[str]) -> tuple[_Seen, int | None]:
        """The data version, and when the next job of these queues is due."""
        seen = connection, self._file.data_version(connection)
        dues = [
            due
            for queue in queues
            if connection.execute(self._sql(IS_PAUSED), (queue,)).fetchone() is None
            for (due,) in connection.execute(self._sql(NEXT_DUE), {"queue": queue})
        ]
        return seen, min(dues, default=None)

    def _has_changed(self, seen: _Seen) -> bool:
        return self._file.run(lambda connection: (connection, self._file.data_version(connection))) != seen

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return self._file.transact(lambda connection, now: self._settle(connection, settlements, now))

    def _settle(self, connection: SqliteStatements, settlements: Sequence[Settlement], now: int) -> list[bool]:
        """Settle in order; acknowledgements of one claim, which are nearly all, share one statement."""
        fresh: list[bool] = []
        applied: list[Settlement] = []
        for token, run in groupby(settlements, key=ack_token):
            batch = list(run)
            if token is not None:
                new = self._ack_all(connection, batch, token, now)
            else:
                new = [self._settle_one(connection, one, now) for one in batch]
            # At once: a repetition later in the batch is recognised by it.
            ended = batch if all(new) else [one for one, is_new in zip(batch, new, strict=True) if is_new]
            self._insert_ends(connection, ended)
            self._apply_extras(connection, ended, now)
            applied += ended
            fresh += new
        if left := [one for one in applied if one.leaves]:
            LockedSlots(SqliteSlots(connection, self._sql, now), left_slots(left)).leave(left)
        if applied:
            self._resolve_ended(connection, applied, now)
        if all(fresh):
            return fresh
        # A settlement that changed nothing may be a repetition, even of one in this batch: the attempts are stored.
        return [is_new or self._settled_before(connection, one) for one, is_new in zip(settlements, fresh, strict=True)]

    def _resolve_ended(self, connection: SqliteStatements, applied: Sequence[Settlement], now: int) -> None:
        """Leave notes on the jobs that have ended, and resolve them together with those of new children."""
        is_noted = note_ended(connection, self._sql, [one.lease.token for one in applied])
        if is_noted or any(job.after for one in applied for job in one.enqueues):
            resolve(SqliteEdges(connection, self._sql, now))

    def _apply_extras(self, connection: SqliteStatements, ended: Sequence[Settlement], now: int) -> None:
        """Apply the writes and accept the jobs of settlements that were just applied."""
        writes, enqueues = extras_of(ended)
        if writes:
            write_cells(connection, self._sql, writes, now)
        if enqueues:
            self._store(connection, enqueues, now)

    def _insert_ends(self, connection: SqliteStatements, settlements: Sequence[Settlement]) -> None:
        successes: dict[str, list[Row]] = {}
        others: list[Row] = []
        with_output: list[Row] = []
        for one in settlements:
            lease, record = one.lease, one.record
            if type(one) is Ack and record is not None and record.is_plain_success:
                rows = successes.setdefault(lease.owner_token, [])
                rows.append((lease.token, lease.delivery, record.started_us, record.ended_us))
            else:
                others.append(end_row(one))
                if record is not None and record.output:
                    with_output.append((lease.token, lease.delivery))
        for token, rows in successes.items():
            common = (bytes.fromhex(token), EFFECT_OF_ACK.verdict, Outcome.SUCCEEDED.value)
            _insert_rows(connection, self._sql(INSERT_SUCCESS), self._sql(INSERT_SUCCESSES), rows, common)
        connection.executemany(self._sql(INSERT_ATTEMPT), others)
        connection.executemany(self._sql(DELETE_LIVE_OUTPUT), with_output)

    def _ack_all(self, connection: SqliteStatements, batch: Sequence[Settlement], token: str, now: int) -> list[bool]:
        seqs = [one.lease.token for one in batch]
        query = {"seqs": as_json(seqs), "token": bytes.fromhex(token), "now": now}
        if connection.execute(self._sql(ACK), query).rowcount == len(seqs):
            return [True] * len(seqs)
        settled = {seq for (seq,) in connection.execute(self._sql(ACKED), query).fetchall()}
        return [take_once(settled, int(seq)) for seq in seqs]

    def _settle_one(self, connection: SqliteStatements, settlement: Settlement, now: int) -> bool:
        query = effect_query(settlement, self.policy.crash_limit)
        query |= {"now": now, "due": now + query["delay"]}
        statement = END if query["state"] >= COMPLETED else GIVE_BACK
        return connection.execute(self._sql(statement), query).rowcount == 1

    def _settled_before(self, connection: SqliteStatements, settlement: Settlement) -> bool:
        return connection.execute(self._sql(SETTLED_AS), end_key(settlement)).fetchone() is not None

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        if not settlements:
            return [], self.claim_now(queue, limit, owner_token)
        token = bytes.fromhex(owner_token)
        asked_at = self.clock.monotonic()

        def both(connection: sqlite3.Connection, now: int) -> tuple[list[bool], list[Row]]:
            answers = self._settle(connection, settlements, now)
            return answers, self._stamp(connection, queue, limit, token, now)

        answers, rows = self._file.transact(both)
        return answers, leased(rows, queue, owner_token, asked_at)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._file.transact(lambda connection, now: self._states(connection, RENEW, leases, now))

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        now = self.clock.now_us()
        return self._file.run(lambda connection: self._states(connection, LEASE_STATES, leases, now))

    def _states(
        self, connection: sqlite3.Connection, statement: str, leases: Sequence[JobLease], now: int
    ) -> list[LeaseState]:
        """The state of each lease, given those that the statement finds held; one statement per claim."""
        held: dict[tuple[str, Any], bool] = {}
        by_token = sorted(leases, key=lambda lease: lease.owner_token)
        for token, group in groupby(by_token, key=lambda lease: lease.owner_token):
            seqs = as_json([lease.token for lease in group])
            query = {"seqs": seqs, "token": bytes.fromhex(token), "now": now}
            for seq, cancel in connection.execute(self._sql(statement), query).fetchall():
                held[token, seq] = bool(cancel)
        return [lease_state(held.get((lease.owner_token, lease.token))) for lease in leases]

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        return self._report(REPORT_PROGRESS, [progress_report(*one) for one in reports])

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        return self._report(REPORT_OUTPUT, [output_report(*one) for one in reports])

    def _report(self, statement: str, reports: Sequence[dict[str, Any]]) -> list[bool]:
        def keep(connection: sqlite3.Connection, now: int) -> list[bool]:
            return [connection.execute(self._sql(statement), {**one, "now": now}).rowcount == 1 for one in reports]

        return self._file.transact(keep)

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        def expire(connection: sqlite3.Connection, now: int) -> int:
            queries = [{**session_query(session), "now": now, "seq": None} for session in sessions]
            return sum(self._expire(connection, query) for query in queries)

        # Most calls find nothing, and should not wait for other writers.
        if not any(self._file.rows(f"{LEASED_BY} LIMIT 1", session_query(session)) for session in sessions):
            return 0
        return self._file.transact(expire)

    def _expire(self, connection: sqlite3.Connection, query: dict[str, Any]) -> int:
        """End the leases of this range of tokens. That of a damaged record ends in its own time."""
        try:
            return connection.execute(self._sql(EXPIRE), query).rowcount
        except sqlite3.IntegrityError:
            if query["seq"] is not None:
                return 0
            leased = connection.execute(self._sql(LEASED_BY), query).fetchall()
            return sum(self._expire(connection, {**query, "seq": seq}) for (seq,) in leased)

    def reap_expired(self, queue: str | None = None) -> int:
        if not self._file.rows(HAS_EXPIRED, {"queue": queue, "now": self.clock.now_us()}):
            return 0

        def reap(connection: sqlite3.Connection, now: int) -> int:
            query = reap_query(queue, self.policy.crash_limit)
            reaped = self._reap(connection, {**query, "seq": None, "now": now, "due": now})
            connection.executemany(self._sql(INSERT_ATTEMPT), [reaped_row(row, now) for row in reaped])
            if note_ended(connection, self._sql, [row[0] for row in reaped]):
                resolve(SqliteEdges(connection, self._sql, now))
            return len(reaped)

        return self._file.transact(reap)

    def _reap(self, connection: sqlite3.Connection, query: dict[str, Any]) -> list[Row]:
        """Requeue these and return their rows. A damaged record is dead-lettered; the others go on."""
        try:
            connection.execute(self._sql(CLAMP), query)
            return connection.execute(self._sql(REAP), query).fetchall()
        except sqlite3.IntegrityError as problem:
            if query["seq"] is None:
                expired = connection.execute(self._sql(EXPIRED), query).fetchall()
                return [row for (seq,) in expired for row in self._reap(connection, {**query, "seq": seq})]
            dead_letter(connection, self._sql, query["seq"], query["now"], problem)
            return []

    def pause(self, queue: str, reason: str = "") -> None:
        self._file.transact(lambda connection, now: connection.execute(self._sql(PAUSE), (queue, reason, now)))

    def resume(self, queue: str) -> bool:
        return self._file.transact(lambda connection, _: connection.execute(self._sql(RESUME), (queue,)).rowcount) == 1

    def pauses(self) -> Sequence[QueuePause]:
        return pauses(self._file.rows(PAUSES))

    def _sql(self, statement: str) -> str:
        return self._file.sql(statement)


def _insert_rows(
    connection: SqliteStatements, one: str, many: str | None, rows: Sequence[Row], common: Row = ()
) -> int:
    """Insert the rows, each after the common values, many at once if possible; returns how many were new."""
    done = new = 0
    if many is not None:
        for done in range(ROWS_AT_ONCE, len(rows) + 1, ROWS_AT_ONCE):
            values = chain(common, *rows[done - ROWS_AT_ONCE : done])
            new += connection.execute(many, list(values)).rowcount
    return new + connection.executemany(one, [(*common, *row) for row in rows[done:]]).rowcount
