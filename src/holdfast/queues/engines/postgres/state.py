"""Shared state in PostgreSQL, by the server's clock.

Writers lock their rows in the order of the keys' bytes, then read them in a new statement, which sees what others
committed while they waited. A missing row cannot be locked, so it is inserted first, expired and with version 0: such a
row means that there is nothing under its key, and is swept like any other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from holdfast.clock import duration_us
from holdfast.errors import StateConflict
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
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.slots import PostgresSlots
from holdfast.queues.engines.postgres.statements import CLOCK, NOW, NOW_IS, PostgresStatements, Rows, numbers
from holdfast.queues.engines.tables.rows import NEVER
from holdfast.values import Cell, CellWrite, Put, Spend, Spent, Write

READ: Final = f"""
    WITH {NOW_IS}
    SELECT key, value, version, expires_at, {NOW} FROM holdfast.cells
    WHERE kind = :kind AND key > :after AND (expires_at IS NULL OR expires_at > {NOW})
    ORDER BY key LIMIT :limit"""

READ_THESE: Final = READ.replace("key > :after", "key = ANY (:keys::text[])")

# Without conditions there is nothing to decide: one statement locks and writes. A `Drop` expires at once, and has
# version 0 if there was nothing to drop. The clock is read for each row, since the statement may have waited for the
# row before, and in the meantime this cell may have been dropped and swept.
PUT: Final = f"""
    INSERT INTO holdfast.cells AS c (kind, key, value, version, expires_at)
    SELECT kind, key, value, CASE WHEN ttl = 0 THEN 0 ELSE {CLOCK} END, {CLOCK} + ttl
    FROM unnest(:kinds::text[], :keys::text[], :values::bytea[], :ttls::bigint[]) AS given (kind, key, value, ttl)
    ORDER BY kind COLLATE "C", key COLLATE "C"
    ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at,
        version = CASE WHEN c.version = 0 THEN excluded.version
                       ELSE greatest(least(c.version, {NEVER - 1}) + 1, {CLOCK}) END
    RETURNING kind, key, version"""

# An update that changes no row still locks each of them.
LOCK_CELLS: Final = """
    INSERT INTO holdfast.cells AS c (kind, key, value, version, expires_at)
    SELECT kind, key, ''::bytea, 0, 0 FROM unnest(:kinds::text[], :keys::text[]) AS given (kind, key)
    ORDER BY kind COLLATE "C", key COLLATE "C"
    ON CONFLICT (kind, key) DO UPDATE SET version = c.version WHERE false"""

STORED: Final = f"""
    WITH {NOW_IS}
    SELECT c.kind, c.key, c.value, c.version, c.expires_at, {NOW}
    FROM unnest(:kinds::text[], :keys::text[]) AS given (kind, key)
    JOIN holdfast.cells AS c ON c.kind = given.kind AND c.key = given.key"""

STORE: Final = """
    UPDATE holdfast.cells AS c
    SET value = given.value, version = given.version, expires_at = given.expires_at
    FROM unnest(:kinds::text[], :keys::text[], :values::bytea[], :versions::bigint[], :expiries::bigint[])
        AS given (kind, key, value, version, expires_at)
    WHERE c.kind = given.kind AND c.key = given.key"""

LOCK_BUCKETS: Final = """
    INSERT INTO holdfast.buckets AS b (name, full_at)
    SELECT name, 0 FROM unnest(:names::text[]) AS given (name) ORDER BY name COLLATE "C"
    ON CONFLICT (name) DO UPDATE SET full_at = b.full_at WHERE false"""

FULL_AT: Final = f"""
    WITH {NOW_IS} SELECT name, full_at, {NOW} FROM holdfast.buckets WHERE name = ANY (:names::text[])"""

FILL: Final = """
    UPDATE holdfast.buckets AS b SET full_at = given.full_at
    FROM unnest(:names::text[], :instants::bigint[]) AS given (name, full_at) WHERE b.name = given.name"""

# A cell whose version is ahead of the clock stays: the next version of its key has to be greater.
# If there is nothing to sweep, this only reads.
SWEEP: Final = f"""
    WITH {NOW_IS}, expired AS MATERIALIZED (
        SELECT kind, key FROM holdfast.cells WHERE expires_at <= {NOW} AND version < {NOW}
        LIMIT :limit FOR UPDATE SKIP LOCKED
    ), idle AS MATERIALIZED (
        SELECT name FROM holdfast.buckets WHERE full_at <= {NOW} LIMIT :limit FOR UPDATE SKIP LOCKED
    ), cells AS (
        DELETE FROM holdfast.cells AS c USING expired WHERE c.kind = expired.kind AND c.key = expired.key RETURNING 1
    ), buckets AS (
        DELETE FROM holdfast.buckets AS b USING idle WHERE b.name = idle.name RETURNING 1
    )
    SELECT (SELECT count(*) FROM cells) + (SELECT count(*) FROM buckets)"""


class PostgresState(SharedState):
    """Cells and buckets in a PostgreSQL database."""

    def __init__(self, connections: PostgresConnections, announcements: Announcements) -> None:
        self._connections = connections
        self._announcements = announcements

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        query = {"kind": kind, "after": after, "limit": limit, "keys": list(keys or ())}
        rows = self._connections.rows(READ if keys is None else READ_THESE, query)
        return [cell_of((kind, key), StoredCell(*stored), now) for key, *stored, now in rows]

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        if not writes:
            return []
        sql = self._connections.sql
        cells, resizes = parted(writes)

        def write(connection: Connection) -> list[int]:
            if resizes:
                slots = PostgresSlots(connection, sql, self._announcements)
                LockedSlots(slots, resized_slots(resizes)).resize(resizes)
            return versions_of(writes, write_cells(connection, sql, cells) if cells else ())

        run = self._connections.run if _are_independent(cells) and not resizes else self._connections.converse
        try:
            return run(write)
        except StateConflict:
            return None

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        if not spends:
            return []
        sql, query = self._connections.sql, {"names": list({one.bucket for one in spends})}

        def spend(connection: Connection) -> list[Spent]:
            connection.execute(sql(LOCK_BUCKETS), query)
            rows = connection.execute(sql(FULL_AT), query).fetchall()
            now = rows[0][-1]
            full_at: dict[str, int] = {name: instant for name, instant, _ in rows}
            answers = spend_all(spends, full_at, now)
            connection.execute(sql(FILL), {"names": list(full_at), "instants": numbers(full_at.values())})
            return answers

        return self._connections.converse(spend)

    def sweep(self, limit: int = PAGE) -> int:
        [[swept]] = self._connections.rows(SWEEP, {"limit": limit})
        return int(swept)


def write_cells(
    connection: PostgresStatements, sql: Callable[[str], bytes], writes: Sequence[CellWrite]
) -> Iterable[int]:
    """Apply writes in the open transaction, which has to be rolled back if a condition fails
    (`StateConflict`). In a pipeline, only a caller that reads the versions waits for them.
    """
    if _are_independent(writes):
        return _put(connection, sql, writes)
    query = _named({(write.kind, write.key) for write in writes})
    connection.execute(sql(LOCK_CELLS), query)
    rows = connection.execute(sql(STORED), query).fetchall()
    stored = {
        (kind, key): StoredCell(bytes(value), version, expires_us)
        for kind, key, value, version, expires_us, _ in rows
        if version
    }
    applied = apply_writes(writes, stored, rows[0][-1])
    if applied is None:
        raise StateConflict("a condition on shared state did not hold; nothing was enqueued")
    cells = applied.cells.values()
    query = _named(applied.cells) | {
        "values": [cell.value for cell in cells],
        "versions": numbers(cell.version for cell in cells),
        "expiries": numbers("NULL" if cell.expires_us is None else cell.expires_us for cell in cells),
    }
    connection.execute(sql(STORE), query)
    return applied.versions


def _put(connection: PostgresStatements, sql: Callable[[str], bytes], writes: Sequence[CellWrite]) -> Iterable[int]:
    query = _named((write.kind, write.key) for write in writes) | {
        "values": [write.value if isinstance(write, Put) else b"" for write in writes],
        "ttls": numbers(_ttl_us(write) for write in writes),
    }
    return _versions(writes, connection.execute(sql(PUT), query))


def _versions(writes: Sequence[CellWrite], put: Rows) -> Iterator[int]:
    versions = {(kind, key): version for kind, key, version in put.fetchall()}
    yield from (versions[write.kind, write.key] for write in writes)


def _are_independent(writes: Sequence[CellWrite]) -> bool:
    """Whether no write has a condition and each is to another cell."""
    return all(one.if_version is None for one in writes) and len({(one.kind, one.key) for one in writes}) == len(writes)


def _named(names: Iterable[CellName]) -> dict[str, Any]:
    chosen = list(names)
    return {"kinds": [kind for kind, _ in chosen], "keys": [key for _, key in chosen]}


def _ttl_us(write: CellWrite) -> int | str:
    if isinstance(write, Put):
        return "NULL" if write.ttl is None else duration_us(write.ttl)
    return 0
