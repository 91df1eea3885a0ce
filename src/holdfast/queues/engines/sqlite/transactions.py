"""Transactions on SQLite that are not the engine's: a caller's, and a handler's."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from holdfast.clock import Clock
from holdfast.errors import TransactionRefused
from holdfast.queues.engines.sqlite.connections import SqliteFile
from holdfast.queues.engines.tables.rows import Row
from holdfast.queues.engines.tables.states import PROCESSING
from holdfast.queues.engines.tables.transactions import HandlersTransaction, driver_connection, not_begun, refused
from holdfast.values import Ack, Settlement

BEGIN_A_WRITE: Final = "DELETE FROM holdfast_jobs WHERE 0"

HELD_BY_RUN: Final = f"""
    SELECT seq, owner_token, queue FROM holdfast_jobs
    WHERE id = ? AND deliveries = ? AND state = {PROCESSING} AND lease_until > ?"""


class SqliteStatements(Protocol):
    """Executes statements: one of our connections, or a caller's."""

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor: ...

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor: ...


class SqliteCaller:
    """A caller's connection, in a transaction that may write. Its row factory is ignored."""

    def __init__(self, tx: object, file: SqliteFile) -> None:
        connection = driver_connection(tx)
        if not isinstance(connection, sqlite3.Connection):
            raise refused(tx, "an sqlite3.Connection")
        file.connection()  # creates the tables if they are missing
        self._connection = connection
        self._refuse_another_file(file)
        if not connection.in_transaction:
            if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
                raise not_begun('execute "BEGIN IMMEDIATE" first')
            self.execute("BEGIN IMMEDIATE")
        # The numbers of new jobs follow the last one, which must not change from here on.
        self.execute(file.sql(BEGIN_A_WRITE))

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        return self._cursor().execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        return self._cursor().executemany(statement, rows)

    def __enter__(self) -> SqliteStatements:
        self.execute("SAVEPOINT holdfast_accept")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """All or nothing, even if the caller continues after an error."""
        if kind is not None and self._connection.in_transaction:
            self.execute("ROLLBACK TO holdfast_accept")
        if self._connection.in_transaction:
            self.execute("RELEASE holdfast_accept")

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor

    def _refuse_another_file(self, file: SqliteFile) -> None:
        path = next((row[2] for row in self.execute("PRAGMA database_list") if row[1] in ("main", b"main")), "")
        path = os.fsdecode(path or "")
        if not path or not os.path.samefile(path, file.path):
            raise TransactionRefused(
                f"tx is a connection to {path or 'a database in memory'}, but the jobs are in {file.path}: use one "
                "file for both (holdfast migrate --url sqlite:///your.db), or enqueue after the commit"
            )


class SqliteTransaction(HandlersTransaction):
    """The transaction of a handler. While it is open, no other connection can write to the file."""

    def __init__(
        self,
        file: SqliteFile,
        clock: Clock,
        settle: Callable[[SqliteStatements, Sequence[Settlement], int], list[bool]],
        job_id: str,
        delivery: int,
    ) -> None:
        file.connection()  # creates the tables if they are missing
        self._file = file
        self._clock = clock
        self._settle = settle
        self.connection: sqlite3.Connection = file.begin()
        super().__init__(job_id, delivery)

    def _claim(self, job_id: str, delivery: int) -> Row | None:
        query = (job_id, delivery, self._clock.now_us())
        row: Row | None = self.connection.execute(self._file.sql(HELD_BY_RUN), query).fetchone()
        return row

    def _is_open(self) -> bool:
        return self.connection.in_transaction

    def _commit(self, ack: Ack) -> bool:
        # The handler may have changed how the connection returns rows and text.
        self.connection.row_factory = None
        self.connection.text_factory = str
        [is_held] = self._settle(self.connection, [ack], self._clock.now_us())
        if is_held:
            self._file.commit(self.connection)
        return is_held

    def roll_back(self) -> None:
        self.connection.close()  # SQLite rolls back
