"""Slots and unique keys in an SQLite file, in the open transaction of a verb.

There is one writer at a time: the transaction that reads these rows has already locked all of them, and all jobs. So a
slot or a key needs no row until there is something to store in it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from holdfast.queues.contract import Crowd, Place, SlotRow, SlotRows, UniqueRow, UniqueRows, Waiter
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.contract.state import CellName
from holdfast.queues.engines.sqlite.connections import as_json
from holdfast.queues.engines.sqlite.damage import change_jobs
from holdfast.queues.engines.sqlite.notes import note_ended
from holdfast.queues.engines.sqlite.state import read_cells
from holdfast.queues.engines.sqlite.transactions import SqliteStatements
from holdfast.queues.engines.tables.rows import MANY, NEVER, Row, repaired, text
from holdfast.queues.engines.tables.states import BLOCKED, CANCELLED, FAILED, FORGOTTEN, PROCESSING, STATES, WAITING
from holdfast.values import Cell, JobLease, JobState

# Whether a place `p` is taken. The job of a promotion is due, or was claimed and is about to enter.
IS_TAKEN: Final = f"""
    EXISTS (SELECT 1 FROM holdfast_jobs AS held WHERE held.seq = p.seq AND CASE
        WHEN p.owner_token IS NOT NULL
        THEN held.owner_token = p.owner_token AND held.state = {PROCESSING} AND held.lease_until > :now
        WHEN held.state = {PROCESSING} THEN held.queue = p.queue AND held.lease_until > :now
        ELSE held.queue = p.queue AND held.state <= {FAILED} AND held.due_at <= :now END)"""

SLOTS: Final = """
    SELECT name, fence, CASE typeof(size) WHEN 'integer' THEN size END, closed_until
    FROM holdfast_slots WHERE name IN (SELECT value FROM json_each(:slots))"""

STORE_SLOT: Final = "INSERT OR REPLACE INTO holdfast_slots (name, fence, size, closed_until) VALUES (?, ?, ?, ?)"

HELD: Final = f"""
    SELECT seq FROM holdfast_jobs
    WHERE seq IN (SELECT value FROM json_each(:seqs))
        AND owner_token = :token AND state = {PROCESSING} AND lease_until > :now"""

PLACES: Final = f"""
    SELECT p.slot, p.seq, p.queue, CASE WHEN p.owner_token IS NOT NULL THEN lower(hex(p.owner_token)) END,
           CAST(coalesce(p.fence, 0) AS INTEGER), CAST(coalesce(p.until, 0) AS INTEGER)
    FROM holdfast_places AS p
    WHERE p.slot IN (SELECT value FROM json_each(:slots)) AND {IS_TAKEN}"""

TAKE: Final = """
    INSERT OR REPLACE INTO holdfast_places (slot, seq, queue, owner_token, fence, since, until)
    VALUES (?, ?, ?, ?, ?, ?, 0)"""

MARK: Final = """
    INSERT OR REPLACE INTO holdfast_places (slot, seq, queue, owner_token, fence, since, until)
    VALUES (?, ?, ?, NULL, 0, ?, ?)"""

RESERVE: Final = """
    UPDATE holdfast_places SET owner_token = NULL, fence = 0, since = ?, until = ? WHERE slot = ? AND seq = ?"""

FREE: Final = "DELETE FROM holdfast_places WHERE slot = ? AND seq = ?"

FREE_DEAD: Final = f"""
    DELETE FROM holdfast_places AS p
    WHERE p.slot IN (SELECT value FROM json_each(:slots)) AND {IS_TAKEN} IS NOT TRUE"""

BLOCK: Final = f"""
    UPDATE holdfast_jobs
    SET state = CASE WHEN cancel_request IS NULL THEN {BLOCKED} ELSE {CANCELLED} END, owner_token = NULL,
        finished_at = CASE WHEN cancel_request IS NOT NULL THEN :now END, cancel_reason = cancel_request,
        cancel_request = NULL
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = {PROCESSING}
    RETURNING seq"""

# If the job was blocked before, it may have left a row.
STORE_WAITER: Final = f"""
    INSERT OR REPLACE INTO holdfast_blocked (seq, slot, queue, lane, due_at, id, size, since)
    SELECT seq, ?, queue, 9 - priority, due_at, id, ?, ? FROM holdfast_jobs WHERE seq = ? AND state = {BLOCKED}"""

# Used when a blocked job is cancelled or rescheduled. Otherwise, a promotion would have to skip the row.
STOP_WAITING: Final = "DELETE FROM holdfast_blocked WHERE seq = ?"

DELETE_WAITERS: Final = "DELETE FROM holdfast_blocked WHERE seq IN (SELECT value FROM json_each(?))"

# Steps from queue to queue, without reading thousands of waiting jobs. Text sorts after numbers and before blobs, so
# this skips queues that are not text.
QUEUES: Final = """
    WITH RECURSIVE waiting (slot, queue) AS (
        SELECT value, (SELECT min(b.queue) FROM holdfast_blocked AS b
                       WHERE b.slot = value AND b.queue >= '' AND b.queue < x'')
        FROM json_each(:slots)
        UNION ALL
        SELECT slot, (SELECT min(b.queue) FROM holdfast_blocked AS b
                      WHERE b.slot = waiting.slot AND b.queue > waiting.queue AND b.queue < x'')
        FROM waiting WHERE queue IS NOT NULL
    )
    SELECT slot, queue FROM waiting WHERE queue IS NOT NULL"""

BEST: Final = """
    SELECT slot, seq, queue, CASE typeof(size) WHEN 'integer' THEN size ELSE 1 END AS places
    FROM holdfast_blocked WHERE slot = ? AND queue = ? AND places > ? ORDER BY lane, due_at, id LIMIT ?"""

PROMOTE: Final = f"""
    UPDATE holdfast_jobs SET state = {WAITING}
    WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = {BLOCKED}
    RETURNING seq"""

# Slots that jobs wait for although a place may be free: no place is taken, one was left behind, or the time for which
# the slot was closed is over. A slot that is closed is left out, so that it costs no write. NULL: there are notes.
TO_REPAIR: Final = f"""
    WITH RECURSIVE waited_for (slot) AS (
        SELECT min(slot) FROM holdfast_blocked WHERE slot >= '' AND slot < x''
        UNION ALL
        SELECT (SELECT min(b.slot) FROM holdfast_blocked AS b WHERE b.slot > waited_for.slot AND b.slot < x'')
        FROM waited_for WHERE slot IS NOT NULL
    )
    SELECT NULL WHERE EXISTS (SELECT 1 FROM holdfast_notes)
    UNION ALL
    SELECT slot FROM waited_for
    WHERE slot IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM holdfast_slots AS s
                        WHERE s.name = waited_for.slot AND (CAST(s.closed_until AS INTEGER) > :now OR s.size = 0))
        AND (NOT EXISTS (SELECT 1 FROM holdfast_places AS p WHERE p.slot = waited_for.slot AND {IS_TAKEN})
             OR EXISTS (SELECT 1 FROM holdfast_places AS p WHERE p.slot = waited_for.slot AND {IS_TAKEN} IS NOT TRUE)
             OR EXISTS (SELECT 1 FROM holdfast_slots AS s
                        WHERE s.name = waited_for.slot AND CAST(s.closed_until AS INTEGER) > 0))
    LIMIT :limit"""

UNIQUE: Final = "SELECT key, id, until FROM holdfast_uniques WHERE key = ?"

STORE_UNIQUE: Final = "INSERT OR REPLACE INTO holdfast_uniques (key, id, until) VALUES (?, ?, ?)"

# The id of an expired tombstone is free.
STATES_OF: Final = f"""
    SELECT id, state FROM holdfast_jobs
    WHERE id IN (SELECT value FROM json_each(:ids)) AND (state <> {FORGOTTEN} OR finished_at > :now)"""

# A damaged row may hold the largest number; the next fence must still fit into 64 bits.
_LAST_FENCE: Final = NEVER - 1
_SLOT: Final = (str, int, (int, type(None)), int)
_UNIQUE: Final = (str, str, int)


class SqliteSlots(SlotRows):
    """The slots in an SQLite file."""

    def __init__(self, connection: SqliteStatements, sql: Callable[[str], str], now_us: int) -> None:
        self._connection = connection
        self._sql = sql
        self.now_us = now_us
        self._slots: dict[str, SlotRow] = {}

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        rows = [repaired(row, _SLOT) for row in self._rows(SLOTS, slots=as_json(names))]
        found = {name: SlotRow(min(fence, _LAST_FENCE), size, closed_until) for name, fence, size, closed_until in rows}
        self._slots = {name: found.get(name, SlotRow(0)) for name in names}
        return self._slots

    def resize(self, slots: Mapping[str, SlotRow]) -> None:
        self._slots |= slots
        self._connection.executemany(self._sql(STORE_SLOT), [(name, *row) for name, row in slots.items()])

    def held(self, leases: Sequence[JobLease]) -> set[tuple[JobNumber, str]]:
        by_token: dict[str, list[JobNumber]] = {}
        for lease in leases:
            by_token.setdefault(lease.owner_token, []).append(lease.token)
        return {
            (seq, token)
            for token, seqs in by_token.items()
            for (seq,) in self._rows(HELD, seqs=as_json(seqs), token=bytes.fromhex(token))
        }

    def cells(self, names: Sequence[CellName]) -> Mapping[CellName, Cell]:
        return read_cells(self._connection, self._sql, names, self.now_us)

    def places(self, names: Sequence[str]) -> list[Place]:
        return [Place(*row) for row in self._rows(PLACES, slots=as_json(names))]

    def take(self, places: Sequence[Place]) -> None:
        taken = [
            (one.slot, one.number, one.queue, bytes.fromhex(one.owner_token or ""), one.fence, self.now_us)
            for one in places
        ]
        self._connection.executemany(self._sql(TAKE), taken)
        fences = {one.slot: one.fence for one in places}
        # The whole row is replaced, because a damaged one cannot be updated.
        rows = [(name, *self._slots[name]._replace(fence=fence)) for name, fence in fences.items()]
        self._connection.executemany(self._sql(STORE_SLOT), rows)

    def free(self, places: Sequence[tuple[str, JobNumber]]) -> None:
        self._connection.executemany(self._sql(FREE), places)

    def reserve(self, places: Sequence[tuple[str, JobNumber]], until_us: int) -> None:
        rows = [(self.now_us, until_us, *place) for place in places]
        self._connection.executemany(self._sql(RESERVE), rows)

    def free_dead(self, names: Sequence[str]) -> None:
        """Delete the places in these slots that are no longer valid, so that `TO_REPAIR` does not find them again."""
        self._connection.execute(self._sql(FREE_DEAD), {"slots": as_json(names), "now": self.now_us})

    def block(self, waiters: Sequence[Waiter]) -> None:
        blocked = self._change(BLOCK, [one.number for one in waiters])
        note_ended(self._connection, self._sql, list(blocked))
        rows = [(one.slot, min(one.size, MANY), self.now_us, one.number) for one in waiters if one.number in blocked]
        self._connection.executemany(self._sql(STORE_WAITER), rows)

    def queues(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(slot, queue) for slot, queue in self._rows(QUEUES, slots=as_json(names))]

    def best(self, crowds: Sequence[Crowd], limit: int) -> list[Waiter]:
        statement = self._sql(BEST)
        return [Waiter(*row) for crowd in crowds for row in self._connection.execute(statement, (*crowd, limit))]

    def promote(self, waiters: Sequence[Waiter], until_us: int) -> set[JobNumber]:
        numbers = [one.number for one in waiters]
        promoted = self._change(PROMOTE, numbers)
        self._connection.execute(self._sql(DELETE_WAITERS), (as_json(numbers),))
        rows = [(one.slot, one.number, one.queue, self.now_us, until_us) for one in waiters if one.number in promoted]
        self._connection.executemany(self._sql(MARK), rows)
        return promoted

    def _change(self, statement: str, numbers: Sequence[JobNumber]) -> set[JobNumber]:
        return change_jobs(self._connection, self._sql, statement, numbers, self.now_us)

    def _rows(self, statement: str, **query: Any) -> list[Row]:
        return self._connection.execute(self._sql(statement), {**query, "now": self.now_us}).fetchall()


class SqliteUniques(UniqueRows):
    """The unique keys in an SQLite file."""

    def __init__(self, connection: SqliteStatements, sql: Callable[[str], str], now_us: int) -> None:
        self._connection = connection
        self._sql = sql
        self.now_us = now_us

    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        """Keys are read one by one, because a key may contain characters that a JSON list cannot."""
        rows = {key: self._connection.execute(self._sql(UNIQUE), (key,)).fetchone() for key in keys}
        return {
            key: UniqueRow(key) if row is None else UniqueRow(*repaired(row, _UNIQUE))._replace(key=key)
            for key, row in rows.items()
        }

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        query = {"ids": as_json(ids), "now": self.now_us}
        rows = self._connection.execute(self._sql(STATES_OF), query).fetchall()
        return {text(id): STATES.get(state) for id, state in rows}

    def store(self, rows: Sequence[UniqueRow]) -> None:
        self._connection.executemany(self._sql(STORE_UNIQUE), rows)
