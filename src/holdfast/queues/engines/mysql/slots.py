"""Slots and unique keys in MySQL or MariaDB: lock the rows of slots or keys by name, then read everything else.

Under READ COMMITTED, each statement sees all that was committed before it began, so everything read after the lock is
current. A caller's transaction may have an older snapshot: there, unique keys and jobs are read with their rows locked,
or on our own connection. A job that another transaction has locked is not promoted until `repair` retries it: a caller
may hold that lock for minutes, and a worker that waited for it would lose its leases.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from holdfast.queues.contract import Crowd, Place, SlotRow, SlotRows, UniqueRow, UniqueRows, Waiter
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.contract.state import CellName
from holdfast.queues.engines.mysql.claims import HELD, holdings
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session, chunks, pieces
from holdfast.queues.engines.mysql.edges import note_ended
from holdfast.queues.engines.mysql.lanes import LAST_WAITING, PLACE
from holdfast.queues.engines.mysql.state import live_cells
from holdfast.queues.engines.mysql.statements import MysqlStatements, rows_of_ids
from holdfast.queues.engines.tables.rows import NEVER, Row, text
from holdfast.queues.engines.tables.states import BLOCKED, CANCELLED, FAILED, FORGOTTEN, PROCESSING, STATES, WAITING
from holdfast.values import Cell, JobLease, JobState

NOT_STARTED: Final = frozenset((WAITING, FAILED, BLOCKED))
# How many (slot, queue) pairs are read in one statement, which contains one query for each pair.
PAIRS_AT_ONCE: Final = 50

LOCK_SLOTS: Final = "INSERT INTO holdfast_slots (name, fence) VALUES (%s, 0) ON DUPLICATE KEY UPDATE name = name"
LOCKED_SLOTS: Final = f"""
    SELECT name, fence, size, closed_until, {CLOCK} FROM holdfast_slots FORCE INDEX (PRIMARY)
    WHERE name IN %s FOR UPDATE"""
RESIZE: Final = """
    INSERT INTO holdfast_slots (name, fence, size, closed_until) VALUES (%s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE size = VALUES(size), closed_until = VALUES(closed_until)"""

KNOWN_SLOTS: Final = "SELECT name FROM holdfast_slots FORCE INDEX (PRIMARY) WHERE name IN %s"

# The job of a promotion is due, or was claimed and is about to enter.
IS_TAKEN: Final = f"""CASE
        WHEN p.owner_token IS NOT NULL
        THEN j.owner_token = p.owner_token AND j.state = {PROCESSING} AND j.lease_until > {CLOCK}
        WHEN j.state = {PROCESSING} THEN j.queue = p.queue AND j.lease_until > {CLOCK}
        ELSE j.queue = p.queue AND j.state <= {FAILED} AND j.due_at <= {CLOCK} END"""

PLACES: Final = f"""
    SELECT p.slot, p.seq, p.queue, p.owner_token, p.fence, p.until, COALESCE({IS_TAKEN}, 0)
    FROM holdfast_places AS p FORCE INDEX (PRIMARY) LEFT JOIN holdfast_jobs AS j ON j.seq = p.seq
    WHERE p.slot IN %s"""

TAKE: Final = """
    INSERT INTO holdfast_places (slot, seq, queue, owner_token, fence, since, until) VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE queue = VALUES(queue), owner_token = VALUES(owner_token), fence = VALUES(fence),
        since = VALUES(since), until = VALUES(until)"""
STORE_FENCES: Final = """
    INSERT INTO holdfast_slots (name, fence) VALUES (%s, %s) ON DUPLICATE KEY UPDATE fence = VALUES(fence)"""
# The hint prevents a scan of a small table, which would wait for the locks on places in other slots.
FREE: Final = "DELETE p FROM holdfast_places AS p FORCE INDEX (PRIMARY) WHERE (p.slot, p.seq) IN %s"

RESERVE: Final = """
    UPDATE holdfast_places FORCE INDEX (PRIMARY) SET owner_token = NULL, fence = 0, since = %s, until = %s
    WHERE (slot, seq) IN %s"""

BLOCK: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY)
    SET state = CASE WHEN cancel_request IS NULL THEN {BLOCKED} ELSE {CANCELLED} END, owner_token = '', lease_until = 0,
        finished_at = CASE WHEN cancel_request IS NULL THEN 0 ELSE %s END, cancel_reason = cancel_request,
        cancel_request = NULL,{PLACE}
    WHERE seq IN %s AND state = {PROCESSING}"""
TURNS: Final = f"""
    SELECT seq, priority, due_at, id FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s AND state = {BLOCKED}"""
# A job has at most one row. If there already is one, it is left over from when the job was blocked earlier.
WAIT: Final = """
    INSERT INTO holdfast_blocked (seq, slot, queue, lane, due_at, id, size, since)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE slot = VALUES(slot), queue = VALUES(queue), lane = VALUES(lane), due_at = VALUES(due_at),
        id = VALUES(id), size = VALUES(size), since = VALUES(since)"""

# One lookup in the index for each pair, however many jobs wait.
QUEUES: Final = """
    SELECT slot, queue FROM holdfast_blocked FORCE INDEX (by_turn) WHERE slot IN %s GROUP BY slot, queue"""
BEST: Final = """
    (SELECT slot, queue, lane, due_at, id, seq, size FROM holdfast_blocked FORCE INDEX (by_turn)
     WHERE slot = %s AND queue = %s AND size > %s ORDER BY lane, due_at, id LIMIT %s)"""

LOCK_BLOCKED: Final = f"""
    SELECT seq, state = {BLOCKED} FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s FOR UPDATE"""
# Read after the lock, so that the rows of the locked jobs can no longer change.
WAITS: Final = """
    SELECT b.seq, b.slot, j.seq IS NOT NULL FROM holdfast_blocked AS b FORCE INDEX (PRIMARY)
    LEFT JOIN holdfast_jobs AS j ON j.seq = b.seq WHERE b.seq IN %s"""
PROMOTE: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY) SET state = {WAITING},{PLACE} WHERE seq IN %s"""
STOP_WAITING: Final = "DELETE b FROM holdfast_blocked AS b FORCE INDEX (PRIMARY) WHERE b.seq IN %s"

# The slots that jobs wait for although they have no place, or a place that is no longer valid, or were closed for a
# time that is over. A slot that is closed is left out, so that it is not locked each time.
NEGLECTED: Final = f"""
    SELECT w.slot FROM (SELECT slot FROM holdfast_blocked FORCE INDEX (by_turn) GROUP BY slot) AS w
    LEFT JOIN holdfast_slots AS s FORCE INDEX (PRIMARY) ON s.name = w.slot
    WHERE COALESCE(s.closed_until <= {CLOCK} AND COALESCE(s.size, 1) > 0, 1)
        AND (s.closed_until > 0
             OR NOT EXISTS (SELECT 1 FROM holdfast_places AS p FORCE INDEX (PRIMARY) WHERE p.slot = w.slot)
             OR EXISTS (SELECT 1 FROM holdfast_places AS p FORCE INDEX (PRIMARY)
                        LEFT JOIN holdfast_jobs AS j ON j.seq = p.seq
                        WHERE p.slot = w.slot AND NOT COALESCE({IS_TAKEN}, 0)))
    LIMIT %s"""

# One read for all that `repair` does: these slots, and null if there are notes on jobs with edges.
UNDONE: Final = f"({NEGLECTED}) UNION ALL (SELECT NULL FROM holdfast_notes LIMIT 1)"

LOCK_KEYS: Final = """
    INSERT INTO holdfast_uniques (name, id, until) VALUES (%s, '', 0) ON DUPLICATE KEY UPDATE name = name"""
LOCKED_KEYS: Final = "SELECT name, id, until FROM holdfast_uniques FORCE INDEX (PRIMARY) WHERE name IN %s FOR UPDATE"
STORE_KEYS: Final = """
    INSERT INTO holdfast_uniques (name, id, until) VALUES (%s, %s, %s)
    ON DUPLICATE KEY UPDATE id = VALUES(id), until = VALUES(until)"""

JOBS_OF: Final = "SELECT id, seq, state, finished_at FROM holdfast_jobs WHERE id IN %s"
LOCK_JOBS: Final = "SELECT seq, state FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE seq IN %s FOR UPDATE"


class MysqlSlots(SlotRows):
    """The slots in a MySQL or MariaDB database, in our own open transaction."""

    def __init__(self, session: Session, connections: MysqlConnections) -> None:
        self._session = session
        self._connections = connections
        self._passed_over: set[int] = set()
        self.now_us = 0

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        self._session.insert(self._sql(LOCK_SLOTS), [(name,) for name in names])
        locked = self._rows(LOCKED_SLOTS, names)
        self.now_us = max(clock for *_, clock in locked)
        return {
            name.decode(): SlotRow(min(fence, NEVER - 1), size, closed_until)
            for name, fence, size, closed_until, _ in locked
        }

    def resize(self, slots: Mapping[str, SlotRow]) -> None:
        self._session.insert(self._sql(RESIZE), [(name, *row) for name, row in sorted(slots.items())])

    def free_slots(self, names: Sequence[str]) -> list[str]:
        """Those of these slots that no other transaction has locked, if the server can skip locked rows."""
        if not self._connections.skips_locked:
            return list(names)
        known = {name for (name,) in self._rows(KNOWN_SLOTS, names)}
        free = {name for (name,) in self._rows(f"{KNOWN_SLOTS} FOR UPDATE SKIP LOCKED", names)}
        return [name for name in names if name.encode() not in known - free]

    def held(self, leases: Sequence[JobLease]) -> set[tuple[JobNumber, str]]:
        return self._still_held((int(one.token), one.owner_token) for one in leases)

    def _still_held(self, claims: Iterable[tuple[int, str]]) -> set[tuple[JobNumber, str]]:
        return {
            (seq, token.hex())
            for query in holdings(claims)
            for seq, token, _ in self._session.rows(self._sql(HELD), query)
        }

    def cells(self, names: Sequence[CellName]) -> Mapping[CellName, Cell]:
        return live_cells(self._session, self._sql, names)

    def places(self, names: Sequence[str]) -> list[Place]:
        return self._parted(names)[0]

    def _parted(self, names: Sequence[str]) -> tuple[list[Place], list[Place]]:
        """The places that are taken in these slots, and those that are no longer valid."""
        taken: list[Place] = []
        others: list[Place] = []
        for slot, seq, queue, token, fence, until_us, is_taken in self._rows(PLACES, names):
            place = Place(slot.decode(), seq, text(queue), None if token is None else token.hex(), fence, until_us)
            (taken if is_taken else others).append(place)
        # A lease that looks expired may have been renewed in a transaction that has not been committed yet.
        doubtful = [(int(one.number), one.owner_token) for one in others if one.owner_token is not None]
        held = self._still_held(doubtful) if doubtful else set[tuple[JobNumber, str]]()
        taken += [one for one in others if (one.number, one.owner_token) in held]
        return taken, [one for one in others if (one.number, one.owner_token) not in held]

    def take(self, places: Sequence[Place]) -> None:
        fences: dict[str, int] = {}
        rows: list[Row] = []
        for one in places:
            fences[one.slot] = fence = min(one.fence, NEVER)
            token = None if one.owner_token is None else bytes.fromhex(one.owner_token)
            rows.append((one.slot, one.number, one.queue, token, fence, self.now_us, 0))
        self._session.insert(self._sql(TAKE), rows)
        self._session.insert(self._sql(STORE_FENCES), sorted(fences.items()))

    def free(self, places: Sequence[tuple[str, JobNumber]]) -> None:
        for some in pieces(sorted({(slot, int(number)) for slot, number in places})):
            self._session.run(self._sql(FREE), (some,))

    def reserve(self, places: Sequence[tuple[str, JobNumber]], until_us: int) -> None:
        for some in pieces(sorted({(slot, int(number)) for slot, number in places})):
            self._session.run(self._sql(RESERVE), (self.now_us, until_us, some))

    def delete_unused(self, names: Sequence[str]) -> int:
        """Delete the places that are no longer valid in these slots, which are locked. Returns how many."""
        _, unused = self._parted(names)
        self.free([(one.slot, one.number) for one in unused])
        return len(unused)

    def block(self, waiters: Sequence[Waiter]) -> None:
        waiting = {int(one.number): one for one in waiters}
        rows: list[Row] = []
        for seqs in chunks(waiting):
            self._session.run(self._sql(BLOCK), (self.now_us, seqs))
            blocked = self._session.rows(self._sql(TURNS), (seqs,))
            # Those that were cancelled may have children. This is so rare that the note is left to `repair`.
            note_ended(self._session, self._sql, set(seqs).difference(seq for seq, *_ in blocked))
            for seq, priority, due_at, id in blocked:
                one = waiting[seq]
                rows.append((seq, one.slot, one.queue, LAST_WAITING - priority, due_at, id, one.size, self.now_us))
        self._session.insert(self._sql(WAIT), rows)

    def queues(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(text(slot), text(queue)) for slot, queue in self._rows(QUEUES, names)]

    def best(self, crowds: Sequence[Crowd], limit: int) -> list[Waiter]:
        found = best_rows(self._session, self._sql(BEST), crowds, limit + len(self._passed_over))
        waiters: dict[tuple[str, str], list[Waiter]] = {}
        for slot, queue, _, _, _, seq, size in found:
            if seq not in self._passed_over:
                waiters.setdefault((slot, queue), []).append(Waiter(text(slot), seq, text(queue), size))
        return [one for some in waiters.values() for one in some[:limit]]

    def promote(self, waiters: Sequence[Waiter], until_us: int) -> set[JobNumber]:
        asked = {int(one.number): one for one in waiters}
        promoted: set[JobNumber] = set()
        others: set[int] = set()
        passed_over: set[int] = set()
        lock = self._sql(LOCK_BLOCKED) + (" SKIP LOCKED" if self._connections.skips_locked else "")
        for seqs in chunks(asked):
            locked: dict[int, int] = dict(self._session.rows(lock, (seqs,)))
            for seq, slot, is_known in self._session.rows(self._sql(WAITS), (seqs,)):
                if slot != asked[seq].slot.encode():
                    continue  # it was blocked again, on another slot
                if seq in locked:
                    (promoted if locked[seq] else others).add(seq)
                else:
                    (passed_over if is_known else others).add(seq)
        for seqs in chunks(promoted):
            self._session.run(self._sql(PROMOTE), (seqs,))
        for seqs in chunks(promoted | others):
            self._session.run(self._sql(STOP_WAITING), (seqs,))
        # The place of a job that is passed over is not valid while the job is blocked, which `repair` notices.
        self._passed_over |= passed_over
        self._session.insert(
            self._sql(TAKE),
            [
                (one.slot, seq, one.queue, None, 0, self.now_us, until_us if seq in promoted else 0)
                for seq, one in sorted(asked.items())
                if seq in promoted or seq in passed_over
            ],
        )
        return promoted

    def _rows(self, statement: str, names: Sequence[str]) -> list[Row]:
        return [row for some in pieces(names) for row in self._session.rows(self._sql(statement), (some,))]

    def _sql(self, statement: str) -> str:
        return self._connections.sql(statement)


class MysqlUniques(UniqueRows):
    """The unique keys in a MySQL or MariaDB database, in an open transaction: ours, or a caller's."""

    def __init__(self, session: MysqlStatements, connections: MysqlConnections) -> None:
        self._session = session
        self._connections = connections
        self.now_us = 0

    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        sql = self._connections.sql
        self._session.insert(sql(LOCK_KEYS), [(key,) for key in keys])
        locked = [row for some in pieces(keys) for row in self._session.rows(sql(LOCKED_KEYS), (some,))]
        self.now_us = self._session.now()
        return {name.decode(): UniqueRow(name.decode(), text(id), until) for name, id, until in locked}

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        jobs = lock_unstarted(self._session, self._connections, ids)
        return {
            id: STATES.get(state)
            for id, (_, state, finished_at) in jobs.items()
            if state != FORGOTTEN or finished_at > self.now_us
        }

    def store(self, rows: Sequence[UniqueRow]) -> None:
        each = [(row.key, row.job_id, min(row.until_us, NEVER)) for row in rows]
        self._session.insert(self._connections.sql(STORE_KEYS), sorted(each))


def lock_unstarted(
    session: MysqlStatements, connections: MysqlConnections, ids: Sequence[str]
) -> dict[str, tuple[int, int, int]]:
    """Lock the jobs among these that have not started. Returns the number, state and finishing time of every known job.

    A running job is not locked, because a caller's transaction may last for minutes. With REPEATABLE READ, the
    transaction would also retain locks on rows that a condition excludes, so the jobs are read first and then locked by
    number.
    """
    jobs = rows_of_ids(session, connections, JOBS_OF, ids)
    states: dict[int, int] = {seq: state for _, seq, state, _ in jobs}
    for seqs in chunks(seq for seq, state in states.items() if state in NOT_STARTED):
        states |= dict(session.rows(connections.sql(LOCK_JOBS), (seqs,)))
    return {text(id): (seq, states[seq], finished_at) for id, seq, _, finished_at in jobs}


def best_rows(session: Session, statement: str, pairs: Sequence[Row], limit: int) -> list[Row]:
    """The first rows of each (slot, queue), in the order of the jobs: slot, queue, lane, due time, id, and others."""
    found: list[Row] = []
    for some in pieces(pairs, PAIRS_AT_ONCE):
        query = tuple(value for pair in some for value in (*pair, limit))
        found += session.rows(" UNION ALL ".join([statement] * len(some)), query)
    return sorted(found, key=itemgetter(0, 2, 3, 4))
