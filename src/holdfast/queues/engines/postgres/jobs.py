"""Moving jobs in a PostgreSQL database, shared by any number of machines.

Every verb is one transaction and, for a batch of any size, one or two round trips (a few more if jobs enter or leave
slots, or if a settlement enqueues jobs); none is open while a handler runs. The clock is the server's. A claim locks
the rows it takes and skips rows that are locked, so workers never wait for each other. `connections.py` opens
connections and retries transactions; `docs/schema.md` describes the tables.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

import psycopg

from holdfast.clock import MICROSECONDS, Clock, duration_us, to_us
from holdfast.codec import content_digest
from holdfast.errors import BackendError, IdConflict
from holdfast.queues.contract import (
    EFFECT_OF_ACK,
    LEASE_EXPIRED,
    PRUNE_BATCH,
    EngineTransaction,
    Jobs,
    LeasePolicy,
    LockedSlots,
    extras_of,
    find_duplicates,
    left_slots,
    slot_names,
    take_once,
    until_done,
)
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import (
    LAST_LOCK_TIMEOUT_S,
    Connection,
    PostgresConnections,
    conversation,
    limits,
    sent_together,
)
from holdfast.queues.engines.postgres.edges import NOTE_ENDED, connect, note, resolve_notes, resolve_soon
from holdfast.queues.engines.postgres.records import drop_records
from holdfast.queues.engines.postgres.slots import FREE_SLOTS, UNDONE, PostgresSlots, PostgresUniques
from holdfast.queues.engines.postgres.state import write_cells
from holdfast.queues.engines.postgres.statements import CLOCK, NOW, NOW_IS, PostgresStatements, numbers
from holdfast.queues.engines.postgres.transactions import PostgresCaller, PostgresTransaction
from holdfast.queues.engines.tables.rows import (
    LONG_US,
    MANY,
    Row,
    effect_query,
    end_key,
    end_row,
    lease_state,
    leased,
    output_report,
    pauses,
    progress_report,
    reap_query,
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
    Nack,
    Outcome,
    Progress,
    QueuePause,
    Release,
    Settlement,
)

# How often a waiting worker polls, less and less often: notifications are hints and may be lost.
FIRST_LOOK_S: Final = 0.005
LOOK_EVERY_S: Final = 0.5
INSERTS_AT_ONCE: Final = 5000
REPAIRS_AT_ONCE: Final = 100

_Sent: TypeAlias = tuple[list[Settlement], psycopg.Cursor[Row]]
"""Settlements that one statement applies, and the cursor with its result."""

_GIVEN: Final = """given AS MATERIALIZED (
        SELECT * FROM unnest(:ids::text[], :queues::text[], :jobs::text[], :priorities::smallint[], :traces::text[],
            :delays::bigint[], :instants::bigint[], :wires::bytea[]) WITH ORDINALITY
            AS g (id, queue, job, priority, trace_id, delay_us, run_at, wire, place)
    )"""

# Jobs given together are due a microsecond after each other, which preserves their order.
_DUE: Final = f"""
            CASE WHEN delay_us > 0 THEN {NOW} + delay_us WHEN run_at > {NOW} THEN run_at
                 ELSE {NOW} - :number + place END"""

INSERT: Final = f"""
    WITH {NOW_IS}, {_GIVEN}, new AS (
        INSERT INTO holdfast.jobs (id, queue, job, priority, trace_id, wire, accepted_at, due_at)
        SELECT id, queue, job, priority, trace_id, wire, {NOW},{_DUE}
        FROM given ORDER BY place ON CONFLICT (id) DO NOTHING RETURNING seq, due_at, priority, id, queue
    ), opened AS (
        INSERT INTO holdfast.open_jobs (seq, due_at, priority, id, queue) SELECT * FROM new
    )
    SELECT id FROM new"""

# Jobs with parents are blocked from the start.
INSERT_WITH_CHILDREN: Final = INSERT.replace(
    "(seq, due_at, priority, id, queue) SELECT * FROM new",
    f"""(seq, due_at, priority, id, queue, state)
        SELECT new.*, CASE WHEN id IN (SELECT unnest(:children::text[])) THEN {BLOCKED} ELSE {WAITING} END FROM new""",
)

INSERT_AND_ANNOUNCE: Final = INSERT.replace("SELECT id FROM new", "SELECT id, pg_notify(:channel, queue) FROM new")

# A row in `blocked` remains as a stale row, because it would have to be locked before the job. Only a blocked job can
# have an open edge: if the job was released while this statement waited for its lock, the edges are read as they were.
RESCHEDULE: Final = f"""
    WITH {NOW_IS}, {_GIVEN}, chosen AS MATERIALIZED (
        SELECT o.seq, o.state, given.*,{_DUE} AS due_at
        FROM given JOIN holdfast.jobs AS j ON j.id = given.id JOIN holdfast.open_jobs AS o ON o.seq = j.seq
        WHERE o.state <> {PROCESSING} ORDER BY o.seq FOR UPDATE OF o
    ), moved AS (
        UPDATE holdfast.open_jobs AS o
        SET state = CASE WHEN chosen.state = {BLOCKED} AND EXISTS (
                SELECT 1 FROM holdfast.edges AS e WHERE e.child = chosen.seq AND e.outcome = {EDGE_OPEN}
            ) THEN {BLOCKED} ELSE {WAITING} END,
            due_at = chosen.due_at, priority = chosen.priority, queue = chosen.queue
        FROM chosen WHERE o.seq = chosen.seq
    ), written AS (
        UPDATE holdfast.jobs AS j
        SET due_at = chosen.due_at, priority = chosen.priority, queue = chosen.queue, job = chosen.job,
            trace_id = chosen.trace_id, wire = chosen.wire
        FROM chosen WHERE j.seq = chosen.seq
    )
    SELECT id FROM chosen"""

# One statement without locks: it reads both tables in one snapshot.
KNOWN: Final = f"""
    WITH {NOW_IS}
    SELECT j.seq, j.id, e.state, e.finished_at <= {NOW}, e.digest, j.wire
    FROM holdfast.jobs AS j LEFT JOIN holdfast.ended_jobs AS e ON e.seq = j.seq
    WHERE j.id = ANY (:ids::text[])"""

LEASE_COLUMNS: Final = f"""
    o.seq, o.id, coalesce((SELECT wire FROM holdfast.jobs AS j WHERE j.seq = o.seq), ''), coalesce(o.lease_us, :lease),
    coalesce(o.claimed_at, {NOW}), o.deliveries, o.attempts, o.crashes, o.ignore_expiry,
    least(o.lease_until - {NOW}, o.lease_us), o.priority, o.due_at"""

# One index range for each priority, best first, each in due order: jobs that are not due yet cost nothing. The list is
# complete before any row is stamped, so no plan can take more than the limit. A suspect comes alone. A job that was
# rescheduled since this statement began is locked in its new version, but its message would be read in the old one;
# such a job is left alone, because the UPDATE does not find the new version at its place in the table.
CLAIM: Final = f"""
    WITH {NOW_IS}, held AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs
        WHERE state = {PROCESSING} AND owner_token = :token AND queue = :queue AND lease_until > {NOW}
    ), chosen AS MATERIALIZED (
        SELECT best.at, best.crashes FROM generate_series(9, 0, -1) AS rank (priority) CROSS JOIN LATERAL (
            SELECT ctid AS at, crashes FROM holdfast.open_jobs
            WHERE state <= {FAILED} AND queue = :queue AND priority = rank.priority AND due_at <= {NOW}
            ORDER BY due_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
        ) AS best
        WHERE NOT EXISTS (SELECT 1 FROM held) AND NOT EXISTS (SELECT 1 FROM holdfast.pauses WHERE queue = :queue)
        LIMIT :limit
    ), placed AS MATERIALIZED (
        SELECT at, crashes, row_number() OVER () AS place FROM chosen
    ), picked AS MATERIALIZED (
        SELECT at FROM placed
        WHERE place = 1 OR place < (SELECT coalesce(min(place), {2**31}) FROM placed WHERE crashes > 0)
    ), o AS (
        UPDATE holdfast.open_jobs
        SET state = {PROCESSING}, owner_token = :token, deliveries = least(deliveries, {MANY}) + 1,
            claimed_at = {NOW}, lease_us = :lease, lease_until = {NOW} + :lease
        WHERE ctid = ANY (ARRAY(SELECT at FROM picked)) RETURNING *
    )
    SELECT {LEASE_COLUMNS} FROM o
    UNION ALL SELECT {LEASE_COLUMNS} FROM holdfast.open_jobs AS o WHERE o.seq = ANY (ARRAY(SELECT seq FROM held))"""

# A claim that is repeated while its first copy is still running waits here, and then sees the rows it has stamped.
GATE: Final = "SELECT pg_advisory_xact_lock(:gate)"

# A prepared statement is planned once, perhaps while there are few jobs; the plan must also suit a million.
PLAN_ONCE: Final = b"""
    SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
        set_config('enable_bitmapscan', 'off', true)"""

NEXT_DUE: Final = f"""
    WITH {NOW_IS}
    SELECT min(greatest(best.due_at, 0)) - {NOW}
    FROM unnest(:queues::text[]) AS asked (queue) CROSS JOIN generate_series(9, 0, -1) AS rank (priority)
    CROSS JOIN LATERAL (
        SELECT due_at FROM holdfast.open_jobs AS o
        WHERE state <= {FAILED} AND o.queue = asked.queue AND o.priority = rank.priority ORDER BY due_at LIMIT 1
    ) AS best
    WHERE NOT EXISTS (SELECT 1 FROM holdfast.pauses AS p WHERE p.queue = asked.queue)"""

ACK: Final = f"""
    WITH {NOW_IS}, held AS (
        DELETE FROM holdfast.open_jobs
        WHERE seq = ANY (:seqs::bigint[]) AND owner_token = :token AND lease_until > {NOW}
        RETURNING seq, due_at, attempts, deliveries, ignore_expiry, queue
    ), ended AS (
        INSERT INTO holdfast.ended_jobs (seq, due_at, attempts, deliveries, ignore_expiry, queue, crashes, state,
            owner_token, finished_at, started_at, ended_at)
        SELECT held.*, 0, {COMPLETED}, :token, {NOW}, told.started_at, told.ended_at
        FROM held JOIN unnest(:seqs::bigint[], :starts::bigint[], :ends::bigint[]) AS told (seq, started_at, ended_at)
            ON told.seq = held.seq
    )
    SELECT seq FROM held"""

# Only the settlement of a delivery writes its record: one of a job that is still held is damage.
DELETE_FOREIGN: Final = """
    DELETE FROM holdfast.attempts AS a USING holdfast.open_jobs AS o
    WHERE a.seq = :seq AND o.seq = :seq AND a.delivery = o.deliveries AND o.owner_token = :token"""

_KEEP_ATTEMPT: Final = """
    kept AS (
        INSERT INTO holdfast.attempts (seq, delivery, owner_token, verdict, outcome, started_at, ended_at,
            error_type, error_message, traceback, output, result, note)
        SELECT seq, deliveries, :token, :verdict, :outcome, :started_at, :ended_at,
            :error_type, :error_message, :traceback, :output, :result, :note
        FROM held
    ), told AS (
        DELETE FROM holdfast.live_output AS l USING held
        WHERE :output::bytea IS NOT NULL AND l.seq = held.seq AND l.delivery = held.deliveries
    ) SELECT seq FROM held"""

END: Final = f"""
    WITH {NOW_IS}, held AS (
        DELETE FROM holdfast.open_jobs
        WHERE seq = :seq AND owner_token = :token AND lease_until > {NOW} RETURNING *
    ), ended AS (
        INSERT INTO holdfast.ended_jobs (seq, due_at, deliveries, ignore_expiry, queue, state, attempts, finished_at,
            crashes, last_error, dead_reason, expired, cancel_reason)
        SELECT seq, due_at, deliveries, ignore_expiry, queue, :state, least(attempts, {MANY}) + :attempt, {NOW},
            CASE WHEN :keeps_crashes THEN crashes ELSE 0 END,
            CASE WHEN :state <> {COMPLETED} THEN coalesce(:error, last_error) END, :dead_reason, :expired,
            CASE WHEN :state = {CANCELLED} THEN coalesce(nullif(:cancel_reason, ''), cancel_request, '') END
        FROM held
    ), {_KEEP_ATTEMPT}"""

# Back to waiting, unless an operator wants the job cancelled or its crashes have reached the limit.
_NEXT_STATE: Final = f"""
    CASE WHEN cancel_request IS NOT NULL THEN {CANCELLED} WHEN :crash AND crashes >= :crash_limit - 1 THEN {DEAD}
         ELSE :state END AS next_state"""

_MOVE_ON: Final = f"""
    back AS (
        UPDATE holdfast.open_jobs AS o
        SET state = next_state, attempts = least(o.attempts, {MANY}) + :attempt, due_at = {NOW} + :delay,
            owner_token = NULL,
            crashes = CASE WHEN :crash THEN least(o.crashes, {MANY}) + 1 WHEN :keeps_crashes THEN o.crashes ELSE 0 END,
            last_error = coalesce(:error, o.last_error)
        FROM held WHERE o.seq = held.seq AND next_state < {COMPLETED}
    ), gone AS (
        DELETE FROM holdfast.open_jobs AS o USING held WHERE o.seq = held.seq AND next_state >= {COMPLETED}
    ), ended AS (
        INSERT INTO holdfast.ended_jobs (seq, due_at, deliveries, ignore_expiry, queue, state, attempts, finished_at,
            crashes, last_error, dead_reason, cancel_reason)
        SELECT seq, due_at, deliveries, ignore_expiry, queue, next_state, least(attempts, {MANY}) + :attempt, {NOW},
            CASE WHEN :crash THEN least(crashes, {MANY}) + 1 WHEN :keeps_crashes THEN crashes ELSE 0 END,
            coalesce(:error, last_error), CASE WHEN next_state = {DEAD} THEN 'crash-loop' END, cancel_request
        FROM held WHERE next_state >= {COMPLETED} ON CONFLICT (seq) DO NOTHING
    )"""

GIVE_BACK: Final = f"""
    WITH {NOW_IS}, held AS MATERIALIZED (
        SELECT *, {_NEXT_STATE} FROM holdfast.open_jobs
        WHERE seq = :seq AND owner_token = :token AND lease_until > {NOW} FOR UPDATE
    ), {_MOVE_ON}, {_KEEP_ATTEMPT}"""

SETTLED_AS: Final = """
    SELECT 1 FROM holdfast.attempts
    WHERE seq = :seq AND delivery = :delivery AND owner_token = :token AND verdict = :verdict
    UNION ALL SELECT 1 FROM holdfast.ended_jobs
    WHERE seq = :seq AND deliveries = :delivery AND owner_token = :token AND :ack::text = :verdict"""

# First by number alone, so that only the primary key is used.
_OF_CLAIMS: Final = (
    "seq = ANY (:seqs::bigint[]) AND (seq, owner_token) IN (SELECT * FROM unnest(:seqs::bigint[], :tokens::bytea[]))"
)

# Every transaction locks in the same order, so that no two wait for each other. While this one waits, the lease may
# expire and its place may be given to another job, so the clock is read after the wait.
RENEW: Final = f"""
    WITH held AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs WHERE {_OF_CLAIMS} ORDER BY seq FOR UPDATE
    )
    UPDATE holdfast.open_jobs SET lease_until = {CLOCK} + least(lease_us, {LONG_US})
    WHERE seq = ANY (ARRAY(SELECT seq FROM held)) AND lease_until > {CLOCK}
    RETURNING seq, owner_token, cancel_request IS NOT NULL"""

LEASE_STATES: Final = f"""
    WITH {NOW_IS} SELECT seq, owner_token, cancel_request IS NOT NULL FROM holdfast.open_jobs
    WHERE {_OF_CLAIMS} AND lease_until > {NOW}"""

REPORT_PROGRESS: Final = f"""
    WITH {NOW_IS}
    INSERT INTO holdfast.progress (seq, delivery, done, total, message, at)
    SELECT seq, deliveries, :done, :total, :message, {NOW} FROM holdfast.open_jobs
    WHERE seq = :seq AND owner_token = :token AND lease_until > {NOW}
    ON CONFLICT (seq) DO UPDATE SET delivery = excluded.delivery, done = excluded.done, total = excluded.total,
        message = excluded.message, at = excluded.at"""

REPORT_OUTPUT: Final = f"""
    WITH {NOW_IS}
    INSERT INTO holdfast.live_output (seq, delivery, start, text)
    SELECT seq, deliveries, :start, :text FROM holdfast.open_jobs
    WHERE seq = :seq AND owner_token = :token AND lease_until > {NOW}
    ON CONFLICT (seq, delivery) DO UPDATE SET start = excluded.start, text = excluded.text"""

# If the server's clock was set back, such a lease would expire that much too late.
CLAMP: Final = f"""
    WITH {NOW_IS}, ahead AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs
        WHERE state = {PROCESSING} AND lease_until > {NOW} + 2::float8 * lease_us
            AND (:queue::text IS NULL OR queue = :queue)
        ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    UPDATE holdfast.open_jobs SET lease_until = {NOW} + greatest(lease_us, 0)
    WHERE seq = ANY (ARRAY(SELECT seq FROM ahead))"""

# A locked row is being settled by a request of the dead worker that is still in progress.
EXPIRE: Final = f"""
    WITH {NOW_IS}, held AS MATERIALIZED (
        SELECT seq FROM holdfast.open_jobs
        WHERE state = {PROCESSING} AND owner_token BETWEEN :first AND :last AND lease_until > {NOW}
        ORDER BY seq FOR UPDATE SKIP LOCKED
    )
    UPDATE holdfast.open_jobs SET lease_until = {NOW} WHERE seq = ANY (ARRAY(SELECT seq FROM held))"""

REAP: Final = f"""
    WITH {NOW_IS}, held AS MATERIALIZED (
        SELECT *, {_NEXT_STATE} FROM holdfast.open_jobs
        WHERE state = {PROCESSING} AND lease_until <= {NOW} AND (:queue::text IS NULL OR queue = :queue)
        ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED
    ), {_MOVE_ON}, kept AS (
        INSERT INTO holdfast.attempts
            (seq, delivery, outcome, started_at, ended_at, error_type, error_message, traceback)
        SELECT seq, deliveries, :outcome, coalesce(claimed_at, {NOW}), greatest(claimed_at, {NOW}), :error_type,
            :error_message, ''
        FROM held ON CONFLICT (seq, delivery) DO UPDATE SET owner_token = NULL, verdict = NULL,
            outcome = excluded.outcome, started_at = excluded.started_at, ended_at = excluded.ended_at,
            error_type = excluded.error_type, error_message = excluded.error_message
    )
    SELECT queue, count(*), array_agg(seq) FILTER (WHERE next_state >= {COMPLETED}) FROM held GROUP BY queue"""

PAUSE: Final = f"""
    WITH {NOW_IS} INSERT INTO holdfast.pauses (queue, reason, since) VALUES (:queue, :reason, {NOW})
    ON CONFLICT (queue) DO UPDATE SET reason = excluded.reason, since = excluded.since"""
RESUME: Final = "DELETE FROM holdfast.pauses WHERE queue = :queue"
PAUSES: Final = "SELECT queue, reason, since FROM holdfast.pauses ORDER BY queue"


class PostgresJobs(Jobs):
    """Jobs in a PostgreSQL database."""

    def __init__(
        self, connections: PostgresConnections, announcements: Announcements, policy: LeasePolicy, clock: Clock
    ) -> None:
        super().__init__(policy, clock)
        self._connections = connections
        self._announcements = announcements

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        if tx is not None:
            with PostgresCaller(tx, self._connections) as connection:
                # A worker that was woken a moment ago may poll before this transaction is committed.
                return self._accept(connection, envelopes, (), self._announcements.announce_now)
        has_children = any(one.after for one in envelopes)
        is_plain = len(envelopes) == 1 and not writes and envelopes[0].unique is None and not has_children
        if is_plain and (accepted := self._insert_one(envelopes[0])):
            return accepted
        transact = self._connections.transact
        if writes:
            transact = self._connections.converse
        elif any(one.unique is not None for one in envelopes):
            transact = self._connections.transact_briefly
        answers = transact(lambda connection: self._accept(connection, envelopes, writes, self._announcements.announce))
        if has_children:
            resolve_soon(self._connections, self._announcements)
        return answers

    def _accept(
        self,
        connection: PostgresStatements,
        envelopes: Sequence[JobEnvelope],
        writes: Sequence[CellWrite],
        announce: Callable[[PostgresStatements, Iterable[str]], None],
    ) -> list[Accepted]:
        """Apply the writes, then insert the jobs, in the open transaction. Unique keys come first: checking them locks
        jobs, and all transactions lock jobs before cells.
        """
        others = self._duplicates(connection, envelopes)
        if writes:
            write_cells(connection, self._sql, writes)
        fresh = [one for one in envelopes if one.id not in others] if others else envelopes
        created = iter(self._insert(connection, fresh, announce) if fresh else ())
        return [
            Accepted(id=others[one.id], created=False)
            if one.id in others
            else Accepted(id=one.id, created=next(created))
            for one in envelopes
        ]

    def _duplicates(self, connection: PostgresStatements, envelopes: Sequence[JobEnvelope]) -> dict[str, str]:
        """The ids of the envelopes that must not be stored, each with the id of the job that has its key."""
        if all(one.unique is None for one in envelopes):
            return {}
        self._known(connection, envelopes)  # before any key is taken: a known id must belong to the same job
        return find_duplicates(envelopes, PostgresUniques(connection, self._sql))

    def _insert_one(self, envelope: JobEnvelope) -> list[Accepted] | None:
        """Insert it in one statement; None if its id is already known, and nothing was written."""
        statement = INSERT_AND_ANNOUNCE if self._announcements.news(_at_once([envelope])) else INSERT
        query = {**_inserts([envelope]), "channel": self._announcements.channel}
        is_new = self._connections.run(
            lambda connection: connection.execute(self._sql(statement), query, prepare=True).fetchone()
        )
        return [Accepted(id=envelope.id, created=True)] if is_new else None

    def _insert(
        self,
        connection: PostgresStatements,
        envelopes: Sequence[JobEnvelope],
        announce: Callable[[PostgresStatements, Iterable[str]], None],
    ) -> list[bool]:
        new = self._insert_new(connection, envelopes)
        missing: Sequence[JobEnvelope] = envelopes if len(new) < len(envelopes) else ()
        while missing:
            known = self._known(connection, envelopes)
            # An id may have become free since, or its job was deleted: insert it now, unless another process just did.
            missing = [one for one in missing if one.id not in known]
            new |= self._insert_new(connection, missing) if missing else set()
        if children := {one.id: one for one in envelopes if one.after and one.id in new}:
            connect(connection, self._connections, list(children.values()))
        announce(connection, _at_once(one for one in envelopes if one.id in new))
        return [take_once(new, one.id) for one in envelopes]

    def _insert_new(self, connection: PostgresStatements, envelopes: Sequence[JobEnvelope]) -> set[str]:
        """Insert the jobs whose ids are free, and return those ids."""
        new: set[str] = set()
        # In parts, because a server busy with too many rows would seem to have stopped responding.
        for start in range(0, len(envelopes), INSERTS_AT_ONCE):
            part = envelopes[start : start + INSERTS_AT_ONCE]
            children = [one.id for one in part if one.after]
            query = _inserts(part) | {"number": len(envelopes) - start, "children": children}
            statement = INSERT_WITH_CHILDREN if children else INSERT
            new.update(id for (id,) in connection.execute(self._sql(statement), query, binary=True).fetchall())
        return new

    def _known(self, connection: PostgresStatements, envelopes: Sequence[JobEnvelope]) -> set[str]:
        """The ids that belong to a known job, which must be the same job. An expired tombstone frees its id."""
        ids = list({one.id for one in envelopes})
        digests: dict[str, bytes] = {}
        for seq, job_id, state, is_over, digest, wire in connection.execute(self._sql(KNOWN), {"ids": ids}).fetchall():
            if state == FORGOTTEN and is_over:
                drop_records(connection, self._sql, [seq])
            else:
                digests[job_id] = bytes(digest) if state == FORGOTTEN else content_digest(bytes(wire))
        known = set(digests)
        for one in envelopes:
            if digests.setdefault(one.id, content_digest(one.wire)) != content_digest(one.wire):
                raise IdConflict(one.id)
        return known

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        if tx is not None:
            with PostgresCaller(tx, self._connections) as connection:
                return self._reschedule(connection, envelopes, self._announcements.announce_now)
        return self._connections.transact(
            lambda connection: self._reschedule(connection, envelopes, self._announcements.announce)
        )

    def _reschedule(
        self,
        connection: PostgresStatements,
        envelopes: Sequence[JobEnvelope],
        announce: Callable[[PostgresStatements, Iterable[str]], None],
    ) -> list[bool]:
        last = list({one.id: one for one in envelopes}.values())
        changed = {id for (id,) in connection.execute(self._sql(RESCHEDULE), _inserts(last)).fetchall()}
        announce(connection, _at_once(one for one in last if one.id in changed))
        return [one.id in changed for one in envelopes]

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        return PostgresTransaction(self._connections, self._announcements, self._settle_in, job_id, delivery)

    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        """Claim in one round trip. A claim that finds nothing writes nothing to the server's log."""
        asked_at = self.clock.monotonic()
        query = self._claim_query(queue, limit, owner_token)

        def claim(connection: Connection) -> list[Row]:
            # The statements of a pipeline are one transaction even without BEGIN.
            with connection.pipeline():
                connection.execute(PLAN_ONCE, prepare=True)
                claimed = self._send_claim(connection, query)
            return claimed.fetchall()

        return _leased(self._connections.run(claim), queue, owner_token, asked_at)

    def _claim_query(self, queue: str, limit: int, owner_token: str) -> dict[str, Any]:
        lease_us, token = duration_us(self.policy.lease_s), bytes.fromhex(owner_token)
        gate = gate_of(token)
        return {"queue": queue, "limit": limit, "token": token, "lease": lease_us, "gate": gate}

    def _send_claim(self, connection: Connection, query: dict[str, Any]) -> "psycopg.Cursor[Row]":
        connection.execute(self._sql(GATE), query, prepare=True)
        return connection.execute(self._sql(CLAIM), query, binary=True, prepare=True)

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        return self._connections.transact_briefly(
            lambda connection: self._lock_slots(connection, slot_names(entries)).enter(entries)
        )

    def repair(self) -> int:
        found = [name for (name,) in self._connections.rows(UNDONE, {"limit": REPAIRS_AT_ONCE})]
        names = [name for name in found if name is not None]

        def promote(connection: Connection) -> int:
            # The next call repairs a slot that is locked now: this one waits for no other process.
            query = {"names": names}
            free = [name for (name,) in connection.execute(self._sql(FREE_SLOTS), query).fetchall()]
            return self._lock_slots(connection, free).promote() if free else 0

        promoted = self._connections.transact_briefly(promote) if names else 0
        has_notes = len(found) > len(names)
        return promoted + (resolve_notes(self._connections, self._announcements) if has_notes else 0)

    def _lock_slots(self, connection: Connection, names: Iterable[str]) -> LockedSlots:
        """Lock these slots, before anything else in the transaction is locked."""
        return LockedSlots(PostgresSlots(connection, self._sql, self._announcements), names)

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        listening = self._announcements.listening()
        look_s = FIRST_LOOK_S
        while True:
            [[due_us]] = self._connections.rows(NEXT_DUE, {"queues": list(queues)})
            left = min(give_up_at - self.clock.monotonic(), look_s)
            if due_us is not None:
                left = min(left, due_us / MICROSECONDS)
            if left <= 0:
                return
            descriptors = [] if listening is None else [listening.fileno()]
            readable = self.clock.wait(left, descriptors if wake is None else [*descriptors, wake])
            if wake in readable:
                return
            if listening is not None and readable and self._announcements.were_heard(listening, queues):
                return
            look_s = min(look_s * 2, LOOK_EVERY_S)

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        try:
            return self._exchange(settlements, None)[0]
        except BackendError as problem:
            if not isinstance(problem.__cause__, psycopg.errors.UniqueViolation):
                raise
        self._connections.run(lambda connection: self._delete_foreign(connection, settlements))
        return self._exchange(settlements, None)[0]

    def _delete_foreign(self, connection: Connection, settlements: Sequence[Settlement]) -> None:
        for one in settlements:
            query = {"seq": one.lease.token, "token": bytes.fromhex(one.lease.owner_token)}
            connection.execute(self._sql(DELETE_FOREIGN), query)

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        if not settlements:
            return [], self.claim_now(queue, limit, owner_token) if limit > 0 else []
        asked_at = self.clock.monotonic()
        claim = self._claim_query(queue, limit, owner_token) if limit > 0 else None
        answers, rows = self._exchange(settlements, claim)
        return answers, _leased(rows, queue, owner_token, asked_at)

    def _exchange(
        self, settlements: Sequence[Settlement], claim: dict[str, Any] | None
    ) -> tuple[list[bool], list[Row]]:
        """Send everything before reading the first reply, unless a settlement leaves slots or carries writes or jobs.
        In that case, the engine must first know whether the settlement was applied.
        """
        left = left_slots(settlements)
        carries = any(extras_of(settlements)) or bool(left)

        def both(connection: Connection) -> tuple[list[bool], list[Row], bool]:
            with conversation(connection) if carries else connection.pipeline():
                connection.execute(PLAN_ONCE, prepare=True)
                locked = self._lock_slots(connection, left) if left else None
                sent = self._send(connection, settlements)
                # In a new statement, when the jobs are locked: it finds the edges that were committed until then.
                noted = connection.execute(self._sql(NOTE_ENDED), _numbers_of(settlements), prepare=True)
                applied = None
                if carries:
                    applied = _applied(sent)
                    self._carry(connection, settlements, applied, locked)
                claimed = None if claim is None else self._send_claim(connection, claim)
                due_again = {one.lease.queue for one in settlements if _is_due_again(one)}
                self._announcements.announce(connection, due_again)
            answers = _applied(sent) if applied is None else applied
            if not all(answers):
                answers = [
                    is_new or self._settled_before(connection, one)
                    for one, is_new in zip(settlements, answers, strict=True)
                ]
            return answers, [] if claimed is None else claimed.fetchall(), noted.rowcount > 0

        def leaving(connection: Connection) -> tuple[list[bool], list[Row], bool]:
            try:
                return both(connection)
            except psycopg.errors.LockNotAvailable:
                # A process that does not respond may have locked a slot. Next time, the jobs end without leaving their
                # slots: no place outlives its lease, and `repair` promotes the next job.
                left.clear()
                raise

        answers, rows, has_notes = self._connections.run(leaving)
        if has_notes or _has_children(settlements):
            resolve_soon(self._connections, self._announcements)
        return answers, rows

    def _send(self, connection: Connection, settlements: Sequence[Settlement]) -> list[_Sent]:
        """Send them in order; plain acknowledgements of one claim, which are nearly all, share one statement."""
        sent: list[_Sent] = []
        for token, run in groupby(settlements, key=_plain_token):
            batch = list(run)
            if token is not None:
                sent.append((batch, connection.execute(self._sql(ACK), _acks(batch, token), binary=True, prepare=True)))
            else:
                sent += [([one], self._send_one(connection, one)) for one in batch]
        return sent

    def _send_one(self, connection: Connection, settlement: Settlement) -> "psycopg.Cursor[Row]":
        (_, _, _, verdict, *columns) = end_row(settlement)
        query = effect_query(settlement, self.policy.crash_limit) | dict(zip(_ATTEMPT_COLUMNS, columns, strict=True))
        texts = {name: _storable(name, value) for name, value in query.items() if isinstance(value, str)}
        statement = END if query["state"] >= COMPLETED else GIVE_BACK
        return connection.execute(self._sql(statement), query | texts | {"verdict": verdict})

    def _carry(
        self,
        connection: Connection,
        settlements: Sequence[Settlement],
        applied: Sequence[bool],
        locked: LockedSlots | None,
    ) -> None:
        """Leave the slots, apply the writes and accept the jobs of settlements that were just applied."""
        new = [one for one, is_new in zip(settlements, applied, strict=True) if is_new]
        if locked is not None:
            locked.leave(new)
        writes, enqueues = extras_of(new)
        self._accept(connection, enqueues, writes, self._announcements.announce)

    def _settle_in(self, connection: Connection, settlements: Sequence[Settlement]) -> tuple[list[bool], bool]:
        """Settle in the open transaction. Returns which settlements were applied, and whether notes were left."""
        left = left_slots(settlements)
        with sent_together(connection):
            connection.execute(limits(LAST_LOCK_TIMEOUT_S))
            locked = self._lock_slots(connection, left) if left else None
            sent = self._send(connection, settlements)
            noted = connection.execute(self._sql(NOTE_ENDED), _numbers_of(settlements))
            applied = _applied(sent)
            self._carry(connection, settlements, applied, locked)
        return applied, noted.rowcount > 0 or _has_children(settlements)

    def _settled_before(self, connection: Connection, settlement: Settlement) -> bool:
        seq, delivery, token, verdict = end_key(settlement)
        query = {"seq": seq, "delivery": delivery, "token": token, "verdict": verdict, "ack": EFFECT_OF_ACK.verdict}
        return connection.execute(self._sql(SETTLED_AS), query).fetchone() is not None

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._states(RENEW, leases)

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._states(LEASE_STATES, leases)

    def _states(self, statement: str, leases: Sequence[JobLease]) -> list[LeaseState]:
        """The state of each lease, given those that the statement finds held."""
        tokens = [bytes.fromhex(lease.owner_token) for lease in leases]
        query = {"seqs": numbers(lease.token for lease in leases), "tokens": tokens}
        rows = self._connections.rows(statement, query)
        held = {(seq, bytes(token)): cancel for seq, token, cancel in rows}
        return [lease_state(held.get((lease.token, token))) for lease, token in zip(leases, tokens, strict=True)]

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        return self._report(REPORT_PROGRESS, [progress_report(*one) for one in reports])

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        return self._report(REPORT_OUTPUT, [output_report(*one) for one in reports])

    def _report(self, statement: str, reports: Sequence[dict[str, Any]]) -> list[bool]:
        def keep(connection: Connection) -> list[bool]:
            with connection.pipeline(), connection.transaction():
                cursors = [connection.execute(self._sql(statement), one) for one in reports]
            return [cursor.rowcount == 1 for cursor in cursors]

        return self._connections.run(keep)

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        def expire(connection: Connection) -> int:
            queries = map(session_query, sessions)
            return sum(connection.execute(self._sql(EXPIRE), query).rowcount for query in queries)

        return self._connections.transact(expire)

    def reap_expired(self, queue: str | None = None) -> int:
        query = reap_query(queue, self.policy.crash_limit) | {
            "limit": PRUNE_BATCH,
            "outcome": Outcome.CRASHED,
            "error_type": LEASE_EXPIRED.type,
            "error_message": LEASE_EXPIRED.message,
        }

        def clamp(connection: Connection) -> int:
            return connection.execute(self._sql(CLAMP), query).rowcount

        noted: list[bool] = []

        def reap(connection: Connection) -> int:
            reaped = connection.execute(self._sql(REAP), query).fetchall()
            ended = [seq for *_, seqs in reaped for seq in seqs or ()]
            noted.append(note(connection, self._sql, NOTE_ENDED, ended))
            self._announcements.announce(connection, [name for name, *_ in reaped])
            return sum(number for _, number, _ in reaped)

        until_done(lambda: self._connections.run(clamp))
        number = until_done(lambda: self._connections.transact(reap))
        if any(noted):
            resolve_soon(self._connections, self._announcements)
        return number

    def pause(self, queue: str, reason: str = "") -> None:
        query = {"queue": queue, "reason": reason}
        self._connections.run(lambda connection: connection.execute(self._sql(PAUSE), query))

    def resume(self, queue: str) -> bool:
        def change(connection: Connection) -> bool:
            was_paused = connection.execute(self._sql(RESUME), {"queue": queue}).rowcount == 1
            self._announcements.announce(connection, [queue])
            return was_paused

        return self._connections.transact(change)

    def pauses(self) -> Sequence[QueuePause]:
        return pauses(self._connections.rows(PAUSES))

    def _sql(self, statement: str) -> bytes:
        return self._connections.sql(statement)


_ATTEMPT_COLUMNS: Final = (
    *("outcome", "started_at", "ended_at", "error_type", "error_message", "traceback", "output", "result", "note"),
)


def _inserts(envelopes: Sequence[JobEnvelope]) -> dict[str, Any]:
    return {
        "ids": [one.id for one in envelopes],
        "queues": [one.queue for one in envelopes],
        "jobs": [one.job for one in envelopes],
        "priorities": numbers(one.priority for one in envelopes),
        "traces": [one.trace_id for one in envelopes],
        "delays": numbers(duration_us(one.delay) for one in envelopes),
        "instants": numbers(0 if one.run_at is None else to_us(one.run_at) for one in envelopes),
        "wires": [one.wire for one in envelopes],
        "number": len(envelopes),
    }


def _at_once(envelopes: Iterable[JobEnvelope]) -> set[str]:
    """The queues of the jobs that can be claimed immediately."""
    return {one.queue for one in envelopes if one.delay <= 0 and one.run_at is None and not one.after}


def _storable(name: str, value: str) -> str | bytes:
    """A text the server can store: NUL is replaced. Output is stored as bytes, unchanged."""
    return value.encode("utf-8", "replace") if name == "output" else value.replace("\0", "\ufffd")


def _plain_token(settlement: Settlement) -> str | None:
    """The claim of an acknowledgement that records only its times."""
    record = settlement.record
    is_plain = type(settlement) is Ack and record is not None and record.is_plain_success
    return settlement.lease.owner_token if is_plain else None


def _has_children(settlements: Iterable[Settlement]) -> bool:
    """Whether one of them enqueues a job that has parents."""
    return any(one.after for settlement in settlements for one in settlement.enqueues)


def _numbers_of(settlements: Iterable[Settlement]) -> dict[str, Any]:
    return {"seqs": numbers({one.lease.token: None for one in settlements})}


def _is_due_again(settlement: Settlement) -> bool:
    return isinstance(settlement, Nack | Release) and settlement.delay <= 0


def _acks(batch: Sequence[Settlement], token: str) -> dict[str, Any]:
    # Each lease once: a second settlement of it is a repetition.
    rows = {
        one.lease.token: (one.record.started_us, one.record.ended_us)
        for one in reversed(batch)
        if one.record is not None
    }
    return {
        "seqs": numbers(rows),
        "starts": numbers(started for started, _ in rows.values()),
        "ends": numbers(ended for _, ended in rows.values()),
        "token": bytes.fromhex(token),
    }


def _applied(sent: Sequence[_Sent]) -> list[bool]:
    """Which settlements were just applied."""
    return [answer for batch, cursor in sent for answer in _ended(batch, cursor.fetchall())]


def _ended(batch: Sequence[Settlement], rows: Sequence[Row]) -> list[bool]:
    """Whether each settlement was applied, given the numbers of the jobs that were changed; each counts once."""
    if len(rows) == len(batch):
        return [True] * len(batch)
    settled = {seq for (seq,) in rows}
    return [take_once(settled, one.lease.token) for one in batch]


def gate_of(token: bytes) -> int:
    """The gate of a claim, from its own half of the token: the other half is the same for all claims of a worker."""
    return int.from_bytes(token[8:], "big", signed=True)


def _leased(rows: Sequence[Row], queue: str, owner_token: str, asked_at: float) -> list[JobLease]:
    ordered = sorted(rows, key=lambda row: (-row[10], row[11], row[1]))
    return leased([row[:10] for row in ordered], queue, owner_token, asked_at)
