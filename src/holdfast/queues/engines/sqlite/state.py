"""Shared state in an SQLite file. There is one writer at a time, so what a transaction reads cannot change under it."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from holdfast.clock import Clock
from holdfast.queues.contract.slots import LockedSlots, resized_slots
from holdfast.queues.contract.state import (
    PAGE,
    CellName,
    SharedState,
    StoredCell,
    apply_writes,
    cell_of,
    parted,
    spend_all,
    versions_of,
)
from holdfast.queues.engines.sqlite.connections import SqliteFile, as_json
from holdfast.queues.engines.sqlite.transactions import SqliteStatements
from holdfast.queues.engines.tables.rows import repaired, text
from holdfast.values import Cell, CellWrite, Spend, Spent, Write

READ: Final = """
    SELECT key, value, version, expires_at FROM holdfast_cells
    WHERE kind = :kind AND key > :after AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY key LIMIT :limit"""

READ_THESE: Final = """
    SELECT key, value, version, expires_at FROM holdfast_cells
    WHERE kind = :kind AND key IN (SELECT value FROM json_each(:keys)) AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY key LIMIT :limit"""

STORED: Final = "SELECT value, version, expires_at FROM holdfast_cells WHERE kind = ? AND key = ?"

STORE: Final = "INSERT OR REPLACE INTO holdfast_cells (kind, key, value, version, expires_at) VALUES (?, ?, ?, ?, ?)"

FULL_AT: Final = "SELECT full_at FROM holdfast_buckets WHERE name = ?"

FILL: Final = "INSERT OR REPLACE INTO holdfast_buckets (name, full_at) VALUES (?, ?)"

# A cell whose version is ahead of the clock stays: the next version of its key has to be greater.
IS_SWEPT: Final = """
    SELECT EXISTS (SELECT 1 FROM holdfast_cells WHERE expires_at <= :now AND version < :now)
        OR EXISTS (SELECT 1 FROM holdfast_buckets WHERE full_at <= :now)"""

SWEEP_CELLS: Final = """
    DELETE FROM holdfast_cells WHERE rowid IN (
        SELECT rowid FROM holdfast_cells WHERE expires_at <= :now AND version < :now LIMIT :limit)"""

SWEEP_BUCKETS: Final = """
    DELETE FROM holdfast_buckets WHERE rowid IN (
        SELECT rowid FROM holdfast_buckets WHERE full_at <= :now LIMIT :limit)"""


_CELL: Final = (bytes, int, (int, type(None)))


class SqliteState(SharedState):
    """Cells and buckets in an SQLite file."""

    def __init__(self, file: SqliteFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        now = self._clock.now_us()
        query = {"kind": kind, "after": after, "limit": limit, "now": now}
        statement = READ
        if keys is not None:
            statement, query["keys"] = READ_THESE, as_json(list(keys))
        rows = self._file.rows(statement, query)
        return [cell_of((kind, text(key)), _stored(stored), now) for key, *stored in rows]

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        cells, resizes = parted(writes)

        def write(connection: sqlite3.Connection, now: int) -> list[int] | None:
            versions = write_cells(connection, self._file.sql, cells, now)
            if versions is None:
                return None
            if resizes:
                # Not imported at the top, because the slots read cells.
                from holdfast.queues.engines.sqlite.slots import SqliteSlots

                LockedSlots(SqliteSlots(connection, self._file.sql, now), resized_slots(resizes)).resize(resizes)
            return versions_of(writes, versions)

        return self._file.transact(write)

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        def spend(connection: sqlite3.Connection, now: int) -> list[Spent]:
            full_at: dict[str, int] = {}
            for name in {one.bucket for one in spends}:
                row = connection.execute(self._file.sql(FULL_AT), (name,)).fetchone()
                full_at[name] = repaired(row, (int,))[0] if row else 0
            answers = spend_all(spends, full_at, now)
            connection.executemany(self._file.sql(FILL), full_at.items())
            return answers

        return self._file.transact(spend)

    def sweep(self, limit: int = PAGE) -> int:
        query = {"now": self._clock.now_us(), "limit": limit}
        [[is_swept]] = self._file.rows(IS_SWEPT, query)
        if not is_swept:  # most sweeps find nothing, and then need no write lock
            return 0

        def sweep(connection: sqlite3.Connection, now: int) -> int:
            query["now"] = now
            return sum(
                connection.execute(self._file.sql(statement), query).rowcount
                for statement in (SWEEP_CELLS, SWEEP_BUCKETS)
            )

        return self._file.transact(sweep)


def _stored(row: Sequence[Any]) -> StoredCell:
    return StoredCell(*repaired(tuple(row), _CELL))


def write_cells(
    connection: SqliteStatements, sql: Callable[[str], str], writes: Sequence[CellWrite], now: int
) -> list[int] | None:
    """Apply writes in the open transaction. If a condition fails, write nothing and return None."""
    stored = _stored_cells(connection, sql, {(write.kind, write.key) for write in writes})
    applied = apply_writes(writes, stored, now)
    if applied is None:
        return None
    connection.executemany(sql(STORE), [(*name, *cell) for name, cell in applied.cells.items()])
    return applied.versions


def read_cells(
    connection: SqliteStatements, sql: Callable[[str], str], names: Iterable[CellName], now: int
) -> dict[CellName, Cell]:
    """The live cells among these, in the open transaction."""
    stored = _stored_cells(connection, sql, names)
    return {name: cell_of(name, cell, now) for name, cell in stored.items() if cell.is_live(now)}


def _stored_cells(
    connection: SqliteStatements, sql: Callable[[str], str], names: Iterable[CellName]
) -> dict[CellName, StoredCell]:
    rows = {name: connection.execute(sql(STORED), name).fetchone() for name in names}
    return {name: _stored(row) for name, row in rows.items() if row is not None}
