"""Moving jobs in MySQL or MariaDB. Accepted means committed; every verb is one short transaction over a whole batch.

A claim takes two steps, because an update returns no rows here: `claims.py`. The clock is the server's. There are no
notifications: a waiting worker polls, often only where there was work recently. `connections.py` opens the connections.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import ER

from holdfast.clock import Clock
from holdfast.codec import content_digest
from holdfast.errors import BackendError, BackendUnavailable, IdConflict
from holdfast.queues.contract import (
    EFFECT_OF_ACK,
    EngineTransaction,
    Jobs,
    LeasePolicy,
    LockedSlots,
    extras_of,
    find_duplicates,
    kept_output,
    kept_progress,
    left_slots,
    slot_names,
    take_once,
)
from holdfast.queues.engines.mysql.claims import HELD, HOLDS, MysqlClaims, holdings
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session, chunks, pieces
from holdfast.queues.engines.mysql.edges import (
    connect,
    note_ended,
    note_parents,
    resolve_notes,
    resolve_soon,
    waiting_for_parents,
)
from holdfast.queues.engines.mysql.lanes import DONE, LANE_OF_STATE, LAST_WAITING, LEASED, PLACE, mark_of
from holdfast.queues.engines.mysql.records import DELETE_JOBS
from holdfast.queues.engines.mysql.slots import (
    NOT_STARTED,
    UNDONE,
    MysqlSlots,
    MysqlUniques,
    lock_unstarted,
)
from holdfast.queues.engines.mysql.state import put_cells, write_cells
from holdfast.queues.engines.mysql.statements import MysqlStatements, rows_of_ids
from holdfast.queues.engines.mysql.transactions import MysqlCaller, MysqlTransaction
from holdfast.queues.engines.tables.rows import (
    LONG_US,
    MANY,
    Row,
    ack_token,
    dues,
    effect_query,
    end_key,
    end_row,
    lease_state,
    leased,
    pauses,
    reap_query,
    reaped_row,
    session_query,
    text,
)
from holdfast.queues.engines.tables.states import BLOCKED, CANCELLED, COMPLETED, DEAD, FORGOTTEN, PROCESSING, WAITING
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

T = TypeVar("T")

# How often to poll: at first, then after this part of the time since the last job, and at least this often.
LOOK_FIRST_S: Final = 0.002
LOOK_AGAIN_AFTER: Final = 1 / 8
LOOK_LAST_S: Final = 0.05
REAP_BATCH: Final = 500
ACCEPT_TRIES: Final = 100
# How many known jobs are read at once: their messages may be large.
KNOWN_AT_ONCE: Final = 50
REPAIR_BATCH: Final = 100
# Other jobs of the worker wait in the meantime.
ENTER_BUSY_LIMIT_S: Final = 5.0

INSERT_JOBS: Final = """
    INSERT INTO holdfast_jobs (id, queue, job, priority, trace_id, accepted_at, due_at, wire, lane, mark, since)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""

# Jobs with parents are blocked from the start.
INSERT_WITH_CHILDREN: Final = """
    INSERT INTO holdfast_jobs (id, queue, job, priority, trace_id, accepted_at, due_at, wire, lane, mark, since, state)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""

RESCHEDULE: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY)
    SET state = %s, queue = %s, job = %s, priority = %s, trace_id = %s, due_at = %s, wire = %s,{PLACE}
    WHERE seq = %s"""

KNOWN: Final = "SELECT id, seq, state, finished_at, digest, wire FROM holdfast_jobs WHERE id IN %s"

# Locked, so that they cannot change before the rest of the batch is written. In a caller's transaction nothing is
# locked: with REPEATABLE READ, an id that does not exist would lock the gap into which every other caller inserts.
KNOWN_LOCKED: Final = f"{KNOWN} FOR UPDATE"

_IS_HELD: Final = f"owner_token = %(token)s AND state = {PROCESSING} AND lease_until > {CLOCK}"

ACK: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY)
    SET state = {COMPLETED}, crashes = 0, finished_at = %(now)s, cancel_request = NULL, last_error = NULL,
        lane = {DONE}, mark = '', since = %(now)s
    WHERE seq IN %(seqs)s AND {_IS_HELD}"""

# Which jobs ACK changed, if not all: an earlier acknowledgement has an attempt by now, this one not yet.
ACKED: Final = f"""
    SELECT seq FROM holdfast_jobs AS j FORCE INDEX (PRIMARY)
    WHERE seq IN %(seqs)s AND owner_token = %(token)s AND state = {COMPLETED} AND finished_at = %(now)s
        AND NOT EXISTS (SELECT 1 FROM holdfast_attempts AS a
                        WHERE a.seq = j.seq AND a.delivery = j.deliveries AND a.owner_token = %(token)s)"""

# An assignment sees the values of those before it, so columns that others read are changed last.
END: Final = f"""
    UPDATE holdfast_jobs
    SET state = %(state)s, attempts = LEAST(attempts, {MANY}) + %(attempt)s, finished_at = %(now)s,
        crashes = CASE WHEN %(keeps_crashes)s THEN crashes ELSE 0 END,
        last_error = CASE WHEN %(state)s <> {COMPLETED} THEN COALESCE(%(error)s, last_error) END,
        dead_reason = %(dead_reason)s, expired = %(expired)s,
        cancel_reason = CASE WHEN %(state)s = {CANCELLED}
                             THEN COALESCE(NULLIF(%(cancel_reason)s, ''), cancel_request, '') END,
        cancel_request = NULL,{PLACE}
    WHERE seq = %(seq)s AND {_IS_HELD}"""

# Back to waiting, unless an operator wants the job cancelled or its crashes have reached the limit.
_MOVE_ON: Final = f"""
        state = CASE WHEN cancel_request IS NOT NULL THEN {CANCELLED}
                     WHEN %(crash)s AND crashes + 1 >= %(crash_limit)s THEN {DEAD} ELSE %(state)s END,
        finished_at = CASE WHEN cancel_request IS NOT NULL OR (%(crash)s AND crashes + 1 >= %(crash_limit)s)
                           THEN %(now)s ELSE 0 END,
        dead_reason = CASE WHEN cancel_request IS NULL AND %(crash)s AND crashes + 1 >= %(crash_limit)s
                           THEN 'crash-loop' END,
        due_at = %(due)s, expired = 0, last_error = COALESCE(%(error)s, last_error),
        crashes = CASE WHEN %(crash)s THEN LEAST(crashes, {MANY}) + 1 WHEN %(keeps_crashes)s THEN crashes ELSE 0 END,
        cancel_reason = cancel_request, cancel_request = NULL,{PLACE}"""

GIVE_BACK: Final = f"""
    UPDATE holdfast_jobs
    SET attempts = LEAST(attempts, {MANY}) + %(attempt)s,{_MOVE_ON}
    WHERE seq = %(seq)s AND {_IS_HELD}"""

SETTLED_AS: Final = "SELECT seq, delivery, owner_token, verdict FROM holdfast_attempts WHERE seq IN %s"

# Only the settlement of a delivery writes its row: one that is already there is damage, and is replaced.
INSERT_ATTEMPTS: Final = """
    REPLACE INTO holdfast_attempts
        (seq, delivery, owner_token, verdict, outcome, started_at, ended_at,
         error_type, error_message, traceback, output, result, note)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""

# Most attempts record only that they succeeded, and when. These are numbers, which need no escaping, and the token,
# which the statement before has validated as hexadecimal.
INSERT_SUCCESSES: Final = """
    REPLACE INTO holdfast_attempts (seq, delivery, owner_token, verdict, outcome, started_at, ended_at) VALUES """
SUCCESS: Final = f"(%d, %d, X'%s', '{EFFECT_OF_ACK.verdict}', '{Outcome.SUCCEEDED.value}', %d, %d)"
SUCCESSES_AT_ONCE: Final = 400

RENEW: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET lease_until = {CLOCK} + LEAST(lease_us, {LONG_US})
    WHERE {HOLDS}"""
LEASE_STATES: Final = f"""
    SELECT seq, owner_token, cancel_request IS NOT NULL FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE {HOLDS}"""

KEEP_PROGRESS: Final = """
    INSERT INTO holdfast_progress (seq, delivery, done, total, message, at) VALUES (%s, %s, %s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE delivery = VALUES(delivery), done = VALUES(done), total = VALUES(total),
        message = VALUES(message), at = VALUES(at)"""

KEEP_OUTPUT: Final = """
    INSERT INTO holdfast_live_output (seq, delivery, start, text) VALUES (%s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE start = VALUES(start), text = VALUES(text)"""
# An attempt that records its output makes the output reported while it ran redundant.
DELETE_LIVE_OUTPUT: Final = """
    DELETE FROM holdfast_live_output WHERE seq IN %(seqs)s AND (seq, delivery) IN %(pairs)s"""

# Few jobs run at a time: all of them are read through the index, which contains the queue.
EXPIRED: Final = f"""
    SELECT seq, lease_until <= %(now)s FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane = {LEASED} AND (%(queue)s IS NULL OR queue = %(queue)s)
        AND (lease_until <= %(now)s OR lease_until > %(now)s + 2e0 * lease_us)
    LIMIT %(limit)s"""

# If the clock was set back, such a lease would expire that much too late.
CLAMP: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET lease_until = %(now)s + GREATEST(lease_us, 0)
    WHERE seq IN %(seqs)s AND state = {PROCESSING} AND lease_until > %(now)s + 2e0 * lease_us"""

LEASED_BY: Final = f"""
    SELECT seq FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane = {LEASED} AND owner_token BETWEEN %(first)s AND %(last)s ORDER BY seq"""

LOCK_LEASED_BY: Final = f"""
    SELECT seq FROM holdfast_jobs FORCE INDEX (PRIMARY)
    WHERE seq IN %(seqs)s AND state = {PROCESSING} AND owner_token BETWEEN %(first)s AND %(last)s
        AND lease_until > %(now)s FOR UPDATE"""

EXPIRE: Final = "UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET lease_until = %(now)s WHERE seq IN %(seqs)s"

LOCK_EXPIRED: Final = f"""
    SELECT seq, deliveries, claimed_at FROM holdfast_jobs FORCE INDEX (PRIMARY)
    WHERE seq IN %s AND state = {PROCESSING} AND lease_until <= %s FOR UPDATE"""

REAP: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET owner_token = '',{_MOVE_ON}
    WHERE seq IN %(seqs)s AND state = {PROCESSING} AND lease_until <= %(now)s"""

PAUSE: Final = f"REPLACE INTO holdfast_pauses (queue, reason, since) VALUES (%s, %s, {CLOCK})"
RESUME: Final = "DELETE FROM holdfast_pauses WHERE queue = %s"
PAUSES: Final = "SELECT queue, reason, since FROM holdfast_pauses ORDER BY queue"


class _IdIsKnown(BackendError):
    """An id of the batch is taken, so each has to be checked."""


class MysqlJobs(Jobs):
    """Jobs in a MySQL or MariaDB database."""

    def __init__(self, connections: MysqlConnections, claims: MysqlClaims, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy, clock)
        self._connections = connections
        self._claims = claims
        self._busy_at = float("-inf")

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        has_children = any(one.after for one in envelopes)
        is_plain = not has_children and all(one.unique is None for one in envelopes)
        duplicates: dict[str, str] = {}
        if tx is not None:
            caller = MysqlCaller(tx, self._connections)
            if not is_plain or not self._are_inserted_for(caller, envelopes):
                created, duplicates = self._again_if_known(lambda: self._accept_for(caller, envelopes))
            else:
                created = {one.id for one in envelopes}
        elif writes or not is_plain or not self._are_inserted(envelopes):
            work = partial(self._accept, envelopes=envelopes, writes=writes)
            again = partial(self._connections.transact, work, repeats=not writes)
            created, duplicates = self._again_if_known(again)
            if has_children:
                resolve_soon(self._connections)
        else:
            created = {one.id for one in envelopes}
        ids = [(one.id, duplicates.get(one.id, one.id)) for one in envelopes]
        return [Accepted(id=id, created=take_once(created, asked)) for asked, id in ids]

    def _are_inserted(self, envelopes: Sequence[JobEnvelope]) -> bool:
        """Insert all of them, unless one of their ids is known; returns whether they were inserted."""

        def insert_all(session: Session) -> None:
            with _known_ids_raised():
                session.insert_all(self._sql(INSERT_JOBS), _rows(envelopes, session.now()))

        try:
            self._connections.run(insert_all)
        except _IdIsKnown:
            return False
        return True

    def _are_inserted_for(self, caller: MysqlCaller, envelopes: Sequence[JobEnvelope]) -> bool:
        """The same in a caller's transaction."""
        with suppress(_IdIsKnown), caller as session:
            with _known_ids_raised():
                session.insert(self._sql(INSERT_JOBS), _rows(envelopes, session.now()))
            return True
        return False

    def _again_if_known(self, insert: Callable[[], T]) -> T:
        """Insert jobs, and retry if another process took an id between our check and our insert."""
        for _ in range(ACCEPT_TRIES):
            with suppress(_IdIsKnown):
                return insert()
        raise BackendUnavailable(f"{self._connections.address}: other processes keep enqueueing jobs with the same ids")

    def _accept_for(self, caller: MysqlCaller, envelopes: Sequence[JobEnvelope]) -> tuple[set[str], dict[str, str]]:
        with caller as session:
            return self._accept(session, envelopes, ())

    def _accept(
        self, session: MysqlStatements, envelopes: Sequence[JobEnvelope], writes: Sequence[CellWrite]
    ) -> tuple[set[str], dict[str, str]]:
        """Insert the jobs that are new. Returns their ids, and those of duplicates, each with the id of its job."""
        if writes:
            write_cells(session, self._sql, writes)
        if all(one.unique is None for one in envelopes):
            return self._insert_unknown(session, envelopes, session.now()), {}
        rows = MysqlUniques(session, self._connections)
        duplicates = find_duplicates(envelopes, rows)
        others = [one for one in envelopes if one.id not in duplicates]
        return self._insert_unknown(session, others, rows.now_us), duplicates

    def _insert_unknown(self, session: MysqlStatements, envelopes: Sequence[JobEnvelope], now: int) -> set[str]:
        """Insert the jobs whose ids are free, and return those ids."""
        known: dict[str, bytes] = {}
        free: list[int] = []
        for ids in pieces(sorted({one.id for one in envelopes}), KNOWN_AT_ONCE):
            for id, seq, state, finished_at, digest, wire in self._known(session, ids):
                if state == FORGOTTEN and finished_at <= now:
                    free.append(seq)
                else:
                    known[text(id)] = digest if state == FORGOTTEN else content_digest(wire)
        for seqs in chunks(free):
            session.run(self._sql(DELETE_JOBS), (seqs,))
        new: list[JobEnvelope] = []
        for one in envelopes:
            content = content_digest(one.wire)
            if one.id not in known:
                known[one.id] = content
                new.append(one)
            elif known[one.id] != content:
                raise IdConflict(one.id)
        children = [one for one in new if one.after]
        with _known_ids_raised():
            if children:
                session.insert(self._sql(INSERT_WITH_CHILDREN), _rows_with_states(new, now))
            else:
                session.insert(self._sql(INSERT_JOBS), _rows(new, now))
        if children:
            connect(session, self._connections, children)
        return {one.id for one in new}

    def _known(self, session: MysqlStatements, ids: Sequence[str]) -> Sequence[Row]:
        if isinstance(session, Session):
            return session.rows(self._sql(KNOWN_LOCKED), (ids,))
        return rows_of_ids(session, self._connections, KNOWN, ids)

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        if tx is None:
            return self._connections.transact(lambda session: self._reschedule(session, envelopes))
        with MysqlCaller(tx, self._connections) as session:
            return self._reschedule(session, envelopes)

    def _reschedule(self, session: MysqlStatements, envelopes: Sequence[JobEnvelope]) -> list[bool]:
        jobs = lock_unstarted(session, self._connections, sorted({one.id for one in envelopes}))
        unstarted = {id: seq for id, (seq, state, _) in jobs.items() if state in NOT_STARTED}
        blocked = {seq for seq, state, _ in jobs.values() if state == BLOCKED}
        waiting = waiting_for_parents(session, self._connections, blocked)
        for one, due in zip(envelopes, dues(envelopes, session.now()), strict=True):
            if one.id in unstarted:
                seq = unstarted[one.id]
                columns = (one.queue, one.job, one.priority, one.trace_id, due, one.wire)
                session.run(self._sql(RESCHEDULE), (BLOCKED if seq in waiting else WAITING, *columns, seq))
        return [one.id in unstarted for one in envelopes]

    def transaction(self, job_id: str, delivery: int) -> EngineTransaction:
        return MysqlTransaction(self._connections, self._settle_in, job_id, delivery)

    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        """Read before locking: most polls of an idle worker find nothing."""
        token = bytes.fromhex(owner_token)
        if limit <= 0 or not self._connections.run(lambda session: self._claims.is_worthwhile(session, queue, token)):
            return []
        asked_at = self.clock.monotonic()
        rows = self._connections.transact(lambda session: self._claims.claim(session, queue, limit, token))
        return self._leased(rows, queue, owner_token, asked_at)

    def _leased(self, rows: Sequence[Row], queue: str, owner_token: str, asked_at: float) -> list[JobLease]:
        if rows:
            self._busy_at = self.clock.monotonic()
        return leased(rows, queue, owner_token, asked_at)

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        def enter(session: Session) -> list[Entered]:
            return LockedSlots(MysqlSlots(session, self._connections), slot_names(entries)).enter(entries)

        return self._connections.transact(enter, busy_limit_s=ENTER_BUSY_LIMIT_S)

    def repair(self) -> int:
        """Read before locking: most of the time, every slot that jobs wait for is in use."""
        found = self._connections.run(lambda session: session.rows(self._sql(UNDONE), (REPAIR_BATCH,)))
        names = sorted(text(name) for (name,) in found if name is not None)

        def promote(session: Session) -> int:
            rows = MysqlSlots(session, self._connections)
            # The next call repairs a slot that is locked now: this one waits for no other process.
            free = rows.free_slots(names)
            if not free:
                return 0
            locked = LockedSlots(rows, free)
            # Otherwise, the next call would find the same slots again.
            rows.delete_unused(free)
            return locked.promote()

        promoted = self._connections.transact(promote) if names else 0
        has_notes = len(found) > len(names)
        return promoted + (resolve_notes(self._connections) if has_notes else 0)

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        while True:
            until_due = self._connections.run(lambda session: self._claims.until_due(session, queues))
            now = self.clock.monotonic()
            pause = min(max(LOOK_FIRST_S, (now - self._busy_at) * LOOK_AGAIN_AFTER), LOOK_LAST_S)
            left = min(give_up_at - now, pause, until_due)
            if left <= 0 or wake in self.clock.wait(left, [] if wake is None else [wake]):
                return

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        left = left_slots(settlements)

        def settle(session: Session) -> tuple[list[bool], bool]:
            answers = self._settle(session, settlements, session.now(), left)
            return answers, note_ended(session, self._sql, _numbers_of(settlements))

        answers, has_notes = self._connections.transact(settle)
        if has_notes or _has_children(settlements):
            resolve_soon(self._connections)
        return answers

    def _settle_in(self, session: Session, settlements: Sequence[Settlement], now: int) -> tuple[list[bool], bool]:
        """Settle in the open transaction of a handler. Also returns whether notes were left."""
        answers = self._settle(session, settlements, now, left_slots(settlements))
        has_notes = note_ended(session, self._sql, _numbers_of(settlements))
        return answers, has_notes or _has_children(settlements)

    def _settle(self, session: Session, settlements: Sequence[Settlement], now: int, left: set[str]) -> list[bool]:
        """Settle in order, and leave these slots; acknowledgements of one claim, which are nearly all, share one
        statement.
        """
        slots: LockedSlots | None = None
        # Before any job is locked: a caller may hold the lock of a key for minutes, and in the meantime, leases can
        # still be renewed.
        if keys := {job.unique.key for one in settlements for job in one.enqueues if job.unique is not None}:
            MysqlUniques(session, self._connections).lock(sorted(keys))
        if left:
            rows = MysqlSlots(session, self._connections)
            try:
                slots, now = LockedSlots(rows, left), rows.now_us
            except pymysql.OperationalError as problem:
                # If a process that does not respond has locked a slot, the jobs end without leaving their slots when
                # this is repeated: no place outlives its lease, and `repair` promotes the next job.
                if problem.args[0] == ER.LOCK_WAIT_TIMEOUT:
                    left.clear()
                raise
        fresh: list[bool] = []
        applied: list[Settlement] = []
        for token, run in groupby(settlements, key=ack_token):
            batch = list(run)
            if token is not None:
                new = self._ack_all(session, batch, token, now)
            else:
                new = [self._settle_one(session, one, now) for one in batch]
            # At once: a repetition later in the batch is recognised by it.
            ended = [one for one, is_new in zip(batch, new, strict=True) if is_new]
            self._insert_ends(session, ended)
            applied += ended
            fresh += new
        if slots is not None:
            slots.leave(applied)
        self._apply_extras(session, applied, now)
        if all(fresh):
            return fresh
        # A settlement that changed nothing may be a repetition, even of one in this batch: the attempts are stored.
        doubtful = [one for one, is_new in zip(settlements, fresh, strict=True) if not is_new]
        ends = self._ends(session, doubtful)
        return [is_new or end_key(one) in ends for one, is_new in zip(settlements, fresh, strict=True)]

    def _apply_extras(self, session: Session, applied: Sequence[Settlement], now: int) -> None:
        """Apply the writes and accept the jobs of settlements that were just applied."""
        writes, enqueues = extras_of(applied)
        if writes:
            put_cells(session, self._sql, writes)
        if any(one.unique is not None for one in enqueues):
            duplicates = find_duplicates(enqueues, MysqlUniques(session, self._connections))
            enqueues = [one for one in enqueues if one.id not in duplicates]
        if any(one.after for one in enqueues):
            self._again_if_known(lambda: self._insert_or_nothing(session, enqueues, now))
        elif enqueues:
            try:
                with _known_ids_raised():
                    session.insert(self._sql(INSERT_JOBS), _rows(enqueues, now))
            except _IdIsKnown:
                self._again_if_known(lambda: self._insert_unknown(session, enqueues, now))

    def _insert_or_nothing(self, session: Session, envelopes: Sequence[JobEnvelope], now: int) -> None:
        """Insert the jobs whose ids are free. If another process has just taken one, none is inserted: children that
        are known when this is repeated would have no edges.
        """
        session.run("SAVEPOINT holdfast_enqueue")
        try:
            self._insert_unknown(session, envelopes, now)
        except _IdIsKnown:
            session.run("ROLLBACK TO SAVEPOINT holdfast_enqueue")
            raise

    def _insert_ends(self, session: Session, settlements: Sequence[Settlement]) -> None:
        successes: list[str] = []
        others: list[Row] = []
        with_output: list[Row] = []
        for one in settlements:
            lease, record = one.lease, one.record
            if type(one) is Ack and record is not None and record.is_plain_success:
                successes.append(
                    SUCCESS % (lease.token, lease.delivery, lease.owner_token, record.started_us, record.ended_us)
                )
            else:
                others.append(end_row(one))
                if record is not None and record.output:
                    with_output.append((lease.token, lease.delivery))
        for start in range(0, len(successes), SUCCESSES_AT_ONCE):
            session.run(self._sql(INSERT_SUCCESSES) + ", ".join(successes[start : start + SUCCESSES_AT_ONCE]))
        if others:
            session.insert(self._sql(INSERT_ATTEMPTS), others)
        if with_output:
            session.run(self._sql(DELETE_LIVE_OUTPUT), {"seqs": [seq for seq, _ in with_output], "pairs": with_output})

    def _ack_all(self, session: Session, batch: Sequence[Settlement], token: str, now: int) -> list[bool]:
        seqs = [one.lease.token for one in batch]
        query = {"token": bytes.fromhex(token), "now": now}
        lists = list(chunks(seqs))
        if sum(session.run(self._sql(ACK), query | {"seqs": some}) for some in lists) == len(seqs):
            return [True] * len(seqs)
        settled = {seq for some in lists for (seq,) in session.rows(self._sql(ACKED), query | {"seqs": some})}
        return [take_once(settled, seq) for seq in seqs]

    def _settle_one(self, session: Session, settlement: Settlement, now: int) -> bool:
        query = effect_query(settlement, self.policy.crash_limit)
        query |= {"now": now, "due": now + query["delay"]}
        statement = END if query["state"] >= COMPLETED else GIVE_BACK
        return session.run(self._sql(statement), query) == 1

    def _ends(self, session: Session, settlements: Sequence[Settlement]) -> set[Row]:
        """The `end_key` of every delivery of these jobs that was settled."""
        return {
            tuple(row)
            for seqs in chunks(one.lease.token for one in settlements)
            for row in session.rows(self._sql(SETTLED_AS), (seqs,))
        }

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        if not settlements:
            return [], self.claim_now(queue, limit, owner_token)
        token, left = bytes.fromhex(owner_token), left_slots(settlements)
        asked_at = self.clock.monotonic()

        # A list that is too long for one statement is rare: the others are looked up by themselves.
        settled, *others = chunks(_numbers_of(settlements))

        def both(session: Session) -> tuple[list[bool], list[Row], bool]:
            now = self._claims.pass_gate(session, token)
            answers = self._settle(session, settlements, now, left)
            rows, parents = self._claims.stamp(session, queue, limit, token, settled)
            has_notes = bool(parents) and note_parents(session, self._sql, parents)
            has_more = [note_ended(session, self._sql, some) for some in others]
            return answers, rows, has_notes or any(has_more)

        answers, rows, has_notes = self._connections.transact(both)
        if has_notes or _has_children(settlements):
            resolve_soon(self._connections)
        return answers, self._leased(rows, queue, owner_token, asked_at)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        def renew(session: Session) -> list[LeaseState]:
            for query in _holdings(leases):
                session.run(self._sql(RENEW), query)
            return self._states(session, leases)

        return self._connections.transact(renew)

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._connections.run(lambda session: self._states(session, leases))

    def _states(self, session: Session, leases: Sequence[JobLease]) -> list[LeaseState]:
        held = {
            (token.hex(), seq): bool(cancel)
            for query in _holdings(leases)
            for seq, token, cancel in session.rows(self._sql(LEASE_STATES), query)
        }
        return [lease_state(held.get((lease.owner_token, int(lease.token)))) for lease in leases]

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        def row(seq: int, delivery: int, progress: Progress, now: int) -> Row:
            kept = kept_progress(progress, now)
            return (seq, delivery, kept.done, kept.total, kept.message, now)

        return self._report(reports, KEEP_PROGRESS, row)

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        def row(seq: int, delivery: int, output: LiveOutput, now: int) -> Row:
            kept = kept_output(output)
            return (seq, delivery, kept.start, kept.text)

        return self._report(reports, KEEP_OUTPUT, row)

    def _report(
        self, reports: Sequence[tuple[JobLease, T]], statement: str, row: Callable[[int, int, T, int], Row]
    ) -> list[bool]:
        """Store a row for each report whose lease still holds, created from its number, delivery, report and time."""

        def keep(session: Session) -> list[bool]:
            now = session.now()
            held = {
                (token.hex(), seq): delivery
                for query in _holdings([lease for lease, _ in reports])
                for seq, token, delivery in session.rows(self._sql(HELD), query)
            }
            rows: dict[int, Row] = {}
            answers: list[bool] = []
            for lease, report in reports:
                seq = int(lease.token)
                delivery = held.get((lease.owner_token, seq))
                answers.append(delivery is not None)
                if delivery is not None:
                    rows[seq] = row(seq, delivery, report, now)
            session.insert(self._sql(statement), [rows[seq] for seq in sorted(rows)])
            return answers

        return self._connections.transact(keep)

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        return sum(map(self._expire, map(session_query, sessions)))

    def _expire(self, tokens: dict[str, Any]) -> int:
        found = self._connections.run(lambda session: session.rows(self._sql(LEASED_BY), tokens))

        def expire(session: Session) -> int:
            query = {**tokens, "now": session.now()}
            # A transaction that holds the lock of one is a request of the dead worker that is still in progress.
            lock = self._sql(LOCK_LEASED_BY) + (" SKIP LOCKED" if self._connections.skips_locked else "")
            numbers = chunks(seq for (seq,) in found)
            locked = [seq for seqs in numbers for (seq,) in session.rows(lock, {**query, "seqs": seqs})]
            for seqs in chunks(locked):
                session.run(self._sql(EXPIRE), {**query, "seqs": seqs})
            return len(locked)

        return self._connections.transact(expire) if found else 0

    def reap_expired(self, queue: str | None = None) -> int:
        total, batch = 0, REAP_BATCH
        has_notes = False
        while batch == REAP_BATCH:
            found = self._connections.run(partial(self._expired, queue=queue))
            batch = len(found)
            if found:
                reaped, is_noted = self._connections.transact(partial(self._reap, found=found))
                total += reaped
                has_notes |= is_noted
        if has_notes:
            resolve_soon(self._connections)
        return total

    def _expired(self, session: Session, queue: str | None) -> Sequence[Row]:
        query = {"queue": queue, "now": session.now(), "limit": REAP_BATCH}
        return session.rows(self._sql(EXPIRED), query)

    def _reap(self, session: Session, found: Sequence[Row]) -> tuple[int, bool]:
        """Reap those of the found leases (number, whether it has expired) that are still expired. Returns how many, and
        whether notes were left.
        """
        now = session.now()
        query = {**reap_query(None, self.policy.crash_limit), "now": now, "due": now}
        ended = [seq for seq, has_ended in found if has_ended]
        for seqs in chunks(seq for seq, has_ended in found if not has_ended):
            session.run(self._sql(CLAMP), {"seqs": seqs, "now": now})
        # A transaction that holds the lock of one is settling or reaping it.
        lock = self._sql(LOCK_EXPIRED) + (" SKIP LOCKED" if self._connections.skips_locked else "")
        reaped = [row for seqs in chunks(ended) for row in session.rows(lock, (seqs, now))]
        for seqs in chunks(row[0] for row in reaped):
            session.run(self._sql(REAP), {**query, "seqs": seqs})
        session.insert(self._sql(INSERT_ATTEMPTS), [reaped_row(row, now) for row in reaped])
        return len(reaped), note_ended(session, self._sql, [row[0] for row in reaped])

    def pause(self, queue: str, reason: str = "") -> None:
        self._connections.run(lambda session: session.run(self._sql(PAUSE), (queue, reason)))

    def resume(self, queue: str) -> bool:
        return self._connections.run(lambda session: session.run(self._sql(RESUME), (queue,))) == 1

    def pauses(self) -> Sequence[QueuePause]:
        rows = self._connections.run(lambda session: session.rows(self._sql(PAUSES)))
        return pauses((text(queue), *rest) for queue, *rest in rows)

    def _sql(self, statement: str) -> str:
        return self._connections.sql(statement)


@contextmanager
def _known_ids_raised() -> Generator[None]:
    """Raise `_IdIsKnown` if an insert finds that an id is taken."""
    try:
        yield
    except Exception as problem:  # of any driver
        if ER.DUP_ENTRY in (getattr(problem, "errno", None), *problem.args[:1]):
            raise _IdIsKnown(str(problem)) from problem
        raise


def _rows(envelopes: Sequence[JobEnvelope], now: int) -> list[Row]:
    return [
        (
            *(one.id, one.queue, one.job, one.priority, one.trace_id, now, due, one.wire),
            *(LAST_WAITING - one.priority, mark_of(one.queue), due),
        )
        for one, due in zip(envelopes, dues(envelopes, now), strict=True)
    ]


def _rows_with_states(envelopes: Sequence[JobEnvelope], now: int) -> list[Row]:
    return [
        (*row[:-3], LANE_OF_STATE + BLOCKED, b"", 0, BLOCKED) if one.after else (*row, WAITING)
        for one, row in zip(envelopes, _rows(envelopes, now), strict=True)
    ]


def _has_children(settlements: Iterable[Settlement]) -> bool:
    """Whether one of them enqueues a job that has parents."""
    return any(one.after for settlement in settlements for one in settlement.enqueues)


def _numbers_of(settlements: Iterable[Settlement]) -> set[int | str]:
    return {one.lease.token for one in settlements}


def _holdings(leases: Iterable[JobLease]) -> Iterator[dict[str, Any]]:
    """The parameters of statements about leases."""
    return holdings((int(lease.token), lease.owner_token) for lease in leases)
