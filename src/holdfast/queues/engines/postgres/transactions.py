"""Transactions on PostgreSQL that are not the engine's: a caller's, and a handler's."""

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import TransactionRefused
from holdfast.queues.engines.postgres.announcing import Announcements
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.edges import resolve_soon
from holdfast.queues.engines.postgres.statements import NOW, NOW_IS, PostgresStatements, Rows
from holdfast.queues.engines.tables.rows import Row
from holdfast.queues.engines.tables.states import PROCESSING
from holdfast.queues.engines.tables.transactions import HandlersTransaction, driver_connection, not_begun, refused
from holdfast.values import Ack, Settlement

_IDLE: Final = 0
_WANTED: Final = "a psycopg (or psycopg2) connection"
# Connections whose database has our tables: a connection never changes its database.
_seen: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()


HELD_BY_RUN: Final = f"""
    WITH {NOW_IS}
    SELECT o.seq, o.owner_token, o.queue FROM holdfast.jobs AS j JOIN holdfast.open_jobs AS o ON o.seq = j.seq
    WHERE j.id = :id AND o.deliveries = :delivery AND o.state = {PROCESSING} AND o.lease_until > {NOW}"""


class PostgresCaller:
    """A caller's connection, in a transaction. Its row factory is ignored."""

    def __init__(self, tx: object, connections: PostgresConnections) -> None:
        connection = self._connection = driver_connection(tx)
        if issubclass(type(connection), psycopg.Connection):
            self._cursor: Callable[[], Any] = partial(psycopg.Cursor[Row], connection, row_factory=tuple_row)
        elif type(connection).__module__.startswith("psycopg2."):
            self._cursor = partial(connection.cursor, cursor_factory=sys.modules["psycopg2.extensions"].cursor)
        else:
            raise refused(tx, _WANTED)
        if connection.autocommit and connection.info.transaction_status == _IDLE:
            raise not_begun("set autocommit to False, or enqueue inside  with connection.transaction()")
        self._refuse_another_database(connections)

    def execute(self, query: bytes, params: dict[str, Any], /, *, binary: bool = False) -> Rows:
        cursor: Rows = self._run(query, params)
        return cursor

    def __enter__(self) -> PostgresStatements:
        self._run(b"SAVEPOINT holdfast_accept")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """All or nothing, even if the caller continues after an error."""
        if self._connection.closed:
            return
        if kind is not None:
            self._run(b"ROLLBACK TO SAVEPOINT holdfast_accept")
        self._run(b"RELEASE SAVEPOINT holdfast_accept")

    def _run(self, statement: bytes, values: Any = None) -> Any:
        cursor = self._cursor()
        cursor.execute(statement, values)
        return cursor

    def _refuse_another_database(self, connections: PostgresConnections) -> None:
        if _seen.get(self._connection) == connections.namespace:
            return
        name = f'"{connections.namespace}".jobs'
        if self._run(b"SELECT to_regclass(%s)::text", (name,)).fetchone()[0] is None:
            raise TransactionRefused(
                f"tx is a connection to a database without Holdfast's tables (schema '{connections.namespace}'); the "
                f"jobs are in {connections.place}: use one database for both, or enqueue after the commit"
            )
        _seen[self._connection] = connections.namespace


class PostgresTransaction(HandlersTransaction):
    """The transaction of a handler, on a connection that only the handler uses until it ends."""

    def __init__(
        self,
        connections: PostgresConnections,
        announcements: Announcements,
        settle: Callable[[Connection, Sequence[Settlement]], tuple[list[bool], bool]],
        job_id: str,
        delivery: int,
    ) -> None:
        self._connections = connections
        self._announcements = announcements
        self._settle = settle
        self._open = ExitStack()
        self.connection: Connection = connections.lend()
        self._open.callback(connections.take_back, self.connection)
        super().__init__(job_id, delivery)
        # The handler's own statements may take as long as they need.
        self.connection.patience_s = None

    def _claim(self, job_id: str, delivery: int) -> Row | None:
        connection = self.connection
        with self._connections.translating(connection):
            # Inside this block, the driver refuses a commit or rollback by the handler.
            self._open.enter_context(connection.transaction())
            query = {"id": job_id, "delivery": delivery}
            return connection.execute(self._connections.sql(HELD_BY_RUN), query).fetchone()

    def _is_open(self) -> bool:
        return self.connection.info.transaction_status != _IDLE

    def _commit(self, ack: Ack) -> bool:
        with self._connections.translating(self.connection):
            self.connection.row_factory = tuple_row
            [is_held], has_notes = self._settle(self.connection, [ack])
            if is_held:
                self._open.close()
        if is_held and has_notes:
            resolve_soon(self._connections, self._announcements)
        return is_held

    def roll_back(self) -> None:
        self.connection.patience_s = self._connections.answer_timeout_s
        # As if the block of the transaction had raised this; on a lost connection the server rolls back by itself.
        with suppress(psycopg.Error):
            self._open.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
