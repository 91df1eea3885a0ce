"""Shared state in MySQL or MariaDB: lock the rows in the order of their keys, then read them, then decide.

A missing row cannot be locked, so a placeholder is inserted first: `ON DUPLICATE KEY UPDATE` locks what it finds
exclusively, where `INSERT IGNORE` would take a shared lock and deadlock. A put without a condition is one statement.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

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
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session, pieces
from holdfast.queues.engines.mysql.statements import MysqlStatements
from holdfast.queues.engines.tables.rows import NEVER, Row, text
from holdfast.values import Cell, CellWrite, Put, Spend, Spent, Write

S = TypeVar("S", str, bytes)

READ: Final = f"""
    SELECT name, value, version, expires_at, {CLOCK} FROM holdfast_cells FORCE INDEX (PRIMARY)
    WHERE kind = %(kind)s AND name > %(after)s AND (expires_at IS NULL OR expires_at > {CLOCK})
    ORDER BY name LIMIT %(limit)s"""

READ_THESE: Final = f"""
    SELECT name, value, version, expires_at, {CLOCK} FROM holdfast_cells FORCE INDEX (PRIMARY)
    WHERE kind = %(kind)s AND name IN %(keys)s AND (expires_at IS NULL OR expires_at > {CLOCK})
    ORDER BY name LIMIT %(limit)s"""

# With `LAST_INSERT_ID`, the server's answer to the insert contains the new version.
PUT: Final = f"""
    INSERT INTO holdfast_cells (kind, name, value, version, expires_at)
    VALUES (%s, %s, %s, LAST_INSERT_ID({CLOCK}), {CLOCK} + %s)
    ON DUPLICATE KEY UPDATE value = VALUES(value), expires_at = VALUES(expires_at),
        version = LAST_INSERT_ID(GREATEST(LEAST(version, {NEVER - 1}) + 1, {CLOCK}))"""

LOCK_CELLS: Final = """
    INSERT INTO holdfast_cells (kind, name, value, version, expires_at) VALUES (%s, %s, '', 0, 0)
    ON DUPLICATE KEY UPDATE version = version"""

# Already locked. A caller's transaction may have an older snapshot, which a locking read ignores.
LOCKED_CELLS: Final = f"""
    SELECT name, version, expires_at, {CLOCK} FROM holdfast_cells FORCE INDEX (PRIMARY)
    WHERE kind = %s AND name IN %s FOR UPDATE"""

STORE_CELLS: Final = """
    INSERT INTO holdfast_cells (kind, name, value, version, expires_at) VALUES (%s, %s, %s, %s, %s)
    ON DUPLICATE KEY UPDATE value = VALUES(value), version = VALUES(version), expires_at = VALUES(expires_at)"""

LOCK_BUCKETS: Final = """
    INSERT INTO holdfast_buckets (name, full_at) VALUES (%s, 0) ON DUPLICATE KEY UPDATE full_at = full_at"""

LOCKED_BUCKETS: Final = f"""
    SELECT name, full_at, {CLOCK} FROM holdfast_buckets FORCE INDEX (PRIMARY) WHERE name IN %s FOR UPDATE"""

FILL: Final = """
    INSERT INTO holdfast_buckets (name, full_at) VALUES (%s, %s) ON DUPLICATE KEY UPDATE full_at = VALUES(full_at)"""

# Reads one entry in each of two indexes, however many rows there are.
OLDEST: Final = f"""
    SELECT {CLOCK}, (SELECT MIN(expires_at) FROM holdfast_cells), (SELECT MIN(full_at) FROM holdfast_buckets)"""

# A cell whose version is ahead of the clock stays: the next version of its key has to be greater.
EXPIRED_CELLS: Final = """
    SELECT kind, name FROM holdfast_cells FORCE INDEX (by_expiry)
    WHERE expires_at <= %(now)s AND version < %(now)s ORDER BY expires_at LIMIT %(limit)s"""
LOCK_EXPIRED_CELLS: Final = """
    SELECT name FROM holdfast_cells FORCE INDEX (PRIMARY)
    WHERE kind = %(kind)s AND name IN %(names)s AND expires_at <= %(now)s AND version < %(now)s FOR UPDATE"""
DELETE_CELLS: Final = "DELETE FROM holdfast_cells WHERE kind = %(kind)s AND name IN %(names)s"

FULL_BUCKETS: Final = """
    SELECT name FROM holdfast_buckets FORCE INDEX (by_time)
    WHERE full_at <= %(now)s ORDER BY full_at LIMIT %(limit)s"""
LOCK_FULL_BUCKETS: Final = """
    SELECT name FROM holdfast_buckets FORCE INDEX (PRIMARY)
    WHERE name IN %(names)s AND full_at <= %(now)s FOR UPDATE"""
DELETE_BUCKETS: Final = "DELETE FROM holdfast_buckets WHERE name IN %(names)s"


class MysqlState(SharedState):
    """Cells and buckets in a MySQL or MariaDB database."""

    def __init__(self, connections: MysqlConnections) -> None:
        self._connections = connections

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        if keys is not None and not keys:
            return []
        statement = self._connections.sql(READ if keys is None else READ_THESE)
        query = {"kind": kind, "after": after, "keys": list(keys or ()), "limit": limit}
        rows = self._connections.run(lambda session: session.rows(statement, query))
        return [cell_of((kind, text(name)), StoredCell(*stored), now) for name, *stored, now in rows]

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        sql = self._connections.sql
        match list(writes):
            case []:
                return []
            case [Put(if_version=None) as put]:
                return [self._connections.run(lambda session: _put(session, sql, [put]))]
            case _:
                pass
        cells, resizes = parted(writes)

        def write(session: Session) -> list[int]:
            if resizes:
                # Not imported at the top, because the slots read cells.
                from holdfast.queues.engines.mysql.slots import MysqlSlots

                LockedSlots(MysqlSlots(session, self._connections), resized_slots(resizes)).resize(resizes)
            return versions_of(writes, write_cells(session, sql, cells) if cells else ())

        try:
            return self._connections.transact(write, repeats=False)
        except StateConflict:
            return None

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        if not spends:
            return []
        return self._connections.transact(lambda session: self._spend(session, spends), repeats=False)

    def _spend(self, session: Session, spends: Sequence[Spend]) -> list[Spent]:
        sql = self._connections.sql
        names = sorted({one.bucket for one in spends})
        session.insert(sql(LOCK_BUCKETS), [(name,) for name in names])
        locked = [row for some in pieces(names) for row in session.rows(sql(LOCKED_BUCKETS), (some,))]
        full_at: dict[str, int] = {name.decode(): at for name, at, _ in locked}
        now = max(clock for *_, clock in locked)
        answers = spend_all(spends, full_at, now)
        session.insert(sql(FILL), sorted(full_at.items()))
        return answers

    def sweep(self, limit: int = PAGE) -> int:
        now, cells, buckets = self._connections.run(lambda session: self._idle(session, limit))
        deleted = 0
        for kind, names in _by_kind(cells):
            deleted += self._delete(LOCK_EXPIRED_CELLS, DELETE_CELLS, {"kind": kind, "names": names, "now": now})
        for names in pieces(sorted(name for (name,) in buckets)):
            deleted += self._delete(LOCK_FULL_BUCKETS, DELETE_BUCKETS, {"names": names, "now": now})
        return deleted

    def _idle(self, session: Session, limit: int) -> tuple[int, Sequence[Row], Sequence[Row]]:
        """The server's time, and the cells and buckets that can be deleted."""
        sql = self._connections.sql
        now, *oldest = session.one(sql(OLDEST))
        if not any(at is not None and at <= now for at in oldest):
            return now, (), ()
        query = {"now": now, "limit": limit}
        return now, session.rows(sql(EXPIRED_CELLS), query), session.rows(sql(FULL_BUCKETS), query)

    def _delete(self, lock: str, delete: str, query: dict[str, Any]) -> int:
        """Delete those that are still idle. One that is locked is being written."""
        sql, skip = self._connections.sql, " SKIP LOCKED" if self._connections.skips_locked else ""

        def work(session: Session) -> int:
            names = [name for (name,) in session.rows(sql(lock) + skip, query)]
            return session.run(sql(delete), query | {"names": names}) if names else 0

        return self._connections.transact(work)


def write_cells(session: MysqlStatements, sql: Callable[[str], str], writes: Sequence[CellWrite]) -> list[int]:
    """Apply writes in the open transaction, which has to be rolled back if a condition fails (`StateConflict`)."""
    names = sorted({(write.kind, write.key) for write in writes})
    session.insert(sql(LOCK_CELLS), names)
    stored: dict[CellName, StoredCell] = {}
    now = 0
    for kind, keys in _by_kind(names):
        for key, version, expires_at, clock in session.rows(sql(LOCKED_CELLS), (kind, keys)):
            now = max(now, clock)
            if version:  # else it is a placeholder
                stored[kind, key.decode()] = StoredCell(b"", version, expires_at)
    applied = apply_writes(writes, stored, now)
    if applied is None:
        raise StateConflict("a condition on shared state did not hold; nothing was changed")
    session.insert(sql(STORE_CELLS), [(*name, *cell) for name, cell in applied.cells.items()])
    return applied.versions


def live_cells(session: Session, sql: Callable[[str], str], names: Sequence[CellName]) -> dict[CellName, Cell]:
    """The cells among these that exist and have not expired."""
    return {
        (kind, key.decode()): cell_of((kind, key.decode()), StoredCell(*stored), now)
        for kind, keys in _by_kind(names)
        for key, *stored, now in session.rows(sql(READ_THESE), {"kind": kind, "keys": keys, "limit": len(keys)})
    }


def put_cells(session: Session, sql: Callable[[str], str], writes: Sequence[CellWrite]) -> None:
    """Apply writes without conditions in the open transaction; puts of different cells share one statement."""
    puts = {(write.kind, write.key): write for write in writes if isinstance(write, Put)}
    if len(puts) == len(writes):
        _put(session, sql, [puts[name] for name in sorted(puts)])
    else:
        write_cells(session, sql, writes)


def _put(session: Session, sql: Callable[[str], str], puts: Sequence[Put]) -> int:
    """Put the cells; returns the version of the last one."""
    session.insert(
        sql(PUT), [(put.kind, put.key, put.value, None if put.ttl is None else duration_us(put.ttl)) for put in puts]
    )
    return session.last_number


def _by_kind(names: Iterable[tuple[S, S]]) -> Iterator[tuple[S, list[S]]]:
    """Names of cells, sorted, in lists that are not too long for a statement."""
    for kind, group in groupby(sorted(names), key=itemgetter(0)):
        for keys in pieces([key for _, key in group]):
            yield kind, keys
