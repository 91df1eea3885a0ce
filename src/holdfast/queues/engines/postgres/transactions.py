"""A caller's transaction on PostgreSQL, and a handler's."""

import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.rows import tuple_row

from holdfast.errors import TransactionRefused
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.statements import NOW, NOW_IS, PostgresStatements, Rows
from holdfast.queues.engines.tables.rows import PROCESSING, Row
from holdfast.queues.engines.tables.transactions import HandlersTransaction, driver_connection, not_begun, refused
from holdfast.values import Ack, Settlement

_IDLE: Final = 0
_WANTED: Final = "a psycopg (or psycopg2) connection"
# Where our tables have been seen: a connection stays with its database.
_seen: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()


HELD_BY_RUN: Final = f"""
    WITH {NOW_IS}
    SELECT o.seq, o.owner_token, o.queue FROM holdfast.jobs AS j JOIN holdfast.open_jobs AS o ON o.seq = j.seq
    WHERE j.id = :id AND o.deliveries = :delivery AND o.state = {PROCESSING} AND o.lease_until > {NOW}"""


class PostgresCaller:
    """A caller's connection, in a transaction. How it likes its rows is none of our business."""

    def __init__(self, tx: object, connections: PostgresConnections) -> None:
        connection = self._connection = driver_connection(tx)
        if issubclass(type(connection), psycopg.Connection):
            self._cursor: Callable[[], Any] = partial(psycopg.Cursor[Row], connection, row_factory=tuple_row)
        elif type(connection).__module__.startswith("psycopg2."):
            self._cursor = partial(connection.cursor, cursor_factory=sys.modules["psycopg2.extensions"].cursor)
        else:
            raise refused(tx, _WANTED)
        if connection.autocommit and connection.info.transaction_status == _IDLE:
            raise not_begun("set autocommit to False, or enqueue inside of  with connection.transaction()")
        self._refuse_another_database(connections)

    def execute(self, query: bytes, params: dict[str, Any], /, *, binary: bool = False) -> Rows:
        cursor: Rows = self._run(query, params)
        return cursor

    def __enter__(self) -> PostgresStatements:
        self._run(b"SAVEPOINT holdfast_accept")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """All or nothing, also if the caller goes on after an error."""
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
    """The transaction of a handler, on a connection that is the handler's alone until it ends."""

    def __init__(
        self,
        connections: PostgresConnections,
        settle: Callable[[Connection, Sequence[Settlement]], list[bool]],
        job_id: str,
        delivery: int,
    ) -> None:
        self._connections = connections
        self._settle = settle
        self._open = ExitStack()
        self.connection: Connection = connections.lend()
        self._open.callback(connections.take_back, self.connection)
        super().__init__(job_id, delivery)
        # How long the handler's own statements take is its own affair.
        self.connection.patience_s = None

    def _claim(self, job_id: str, delivery: int) -> Row | None:
        connection = self.connection
        with self._connections.translating(connection):
            # The driver refuses a commit or rollback of the handler's inside of this.
            self._open.enter_context(connection.transaction())
            query = {"id": job_id, "delivery": delivery}
            return connection.execute(self._connections.sql(HELD_BY_RUN), query).fetchone()

    def _is_open(self) -> bool:
        return self.connection.info.transaction_status != _IDLE

    def _commit(self, ack: Ack) -> bool:
        with self._connections.translating(self.connection):
            self.connection.row_factory = tuple_row
            [is_held] = self._settle(self.connection, [ack])
            if is_held:
                self._open.close()
        return is_held

    def roll_back(self) -> None:
        self.connection.patience_s = self._connections.answer_timeout_s
        # As if the block of the transaction had raised this; a connection that is gone has rolled back already.
        with suppress(psycopg.Error):
            self._open.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
