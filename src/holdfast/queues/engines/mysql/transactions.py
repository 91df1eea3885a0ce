"""Transactions on MySQL or MariaDB that are not the engine's: a caller's, and a handler's."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, cast

from pymysql.constants import ER, SERVER_STATUS

from holdfast.errors import TransactionRefused
from holdfast.queues.engines.mysql.connections import (
    CLOCK,
    CLOCK_IN_ANY_ZONE,
    HAND_BACK,
    HAND_OVER,
    MysqlConnections,
    Session,
)
from holdfast.queues.engines.mysql.edges import resolve_soon
from holdfast.queues.engines.mysql.statements import MysqlStatements
from holdfast.queues.engines.tables.rows import Row
from holdfast.queues.engines.tables.states import PROCESSING
from holdfast.queues.engines.tables.transactions import HandlersTransaction, driver_connection, not_begun, refused
from holdfast.values import Ack, Settlement

_WANTED: Final = "a PyMySQL, mysqlclient or mysql.connector connection"
_HAS_TABLE: Final = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
# Connections whose database has our tables.
_seen: Final[weakref.WeakKeyDictionary[Any, str]] = weakref.WeakKeyDictionary()

HELD_BY_RUN: Final = f"""
    SELECT seq, owner_token, queue FROM holdfast_jobs
    WHERE id = %s AND deliveries = %s AND state = {PROCESSING} AND lease_until > {CLOCK}"""


class MysqlCaller:
    """A caller's connection, in a transaction. Its cursor class is ignored."""

    def __init__(self, tx: object, connections: MysqlConnections) -> None:
        connection = self._connection = driver_connection(tx)
        driver = _driver(connection)
        if driver in ("pymysql", "MySQLdb"):
            self._cursor = connection.cursor(import_module(f"{driver}.cursors").Cursor)
        elif driver == "mysql":
            self._cursor = connection.cursor()
        else:
            raise refused(tx, _WANTED)
        if not self._is_begun():
            raise not_begun("call  connection.begin()  or switch autocommit off")
        self._refuse_another_database(connections)

    def run(self, statement: str, values: tuple[Any, ...] = (), /) -> int:
        self._cursor.execute(*_spelled_out(statement, values))
        return int(self._cursor.rowcount)

    def rows(self, statement: str, values: tuple[Any, ...] = (), /) -> Sequence[Row]:
        self._cursor.execute(*_spelled_out(statement, values))
        return [tuple(map(_as_bytes, row)) for row in self._cursor.fetchall()]

    def insert(self, statement: str, rows: Sequence[Row], /) -> None:
        if rows:
            self._cursor.executemany(statement, list(rows))

    def now(self) -> int:
        [[now]] = self.rows(f"SELECT {CLOCK_IN_ANY_ZONE}")
        return int(now)

    def __enter__(self) -> MysqlStatements:
        self.run("SAVEPOINT holdfast_accept")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """All or nothing, even if the caller continues after an error, which may have ended the whole transaction."""
        if kind is None:
            self.run("RELEASE SAVEPOINT holdfast_accept")
        else:
            with suppress(Exception):
                self.run("ROLLBACK TO SAVEPOINT holdfast_accept")

    def _is_begun(self) -> bool:
        """Whether statements belong to a transaction, including one that the next statement begins implicitly."""
        connection = self._connection
        autocommit = connection.get_autocommit() if hasattr(connection, "get_autocommit") else connection.autocommit
        if not autocommit:
            return True
        # mysqlclient does not report it; but without a transaction, no savepoint outlives its own statement.
        return self._keeps_savepoints() if _driver(connection) == "MySQLdb" else _is_in_transaction(connection)

    def _keeps_savepoints(self) -> bool:
        self.run("SAVEPOINT holdfast_accept")
        try:
            self.run("RELEASE SAVEPOINT holdfast_accept")
        except self._connection.Error as problem:
            if problem.args[0] == ER.SP_DOES_NOT_EXIST:
                return False
            raise
        return True

    def _refuse_another_database(self, connections: MysqlConnections) -> None:
        if _seen.get(self._connection) == connections.prefix:
            return
        if not self.rows(_HAS_TABLE, (f"{connections.prefix}jobs",)):
            raise TransactionRefused(
                f"tx is a connection to a database without Holdfast's tables ({connections.prefix}…); the jobs are in "
                f"{connections.address}: use one database for both, or enqueue after the commit"
            )
        _seen[self._connection] = connections.prefix


class MysqlTransaction(HandlersTransaction):
    """The transaction of a handler, on a connection that only the handler uses until it ends."""

    def __init__(
        self,
        connections: MysqlConnections,
        settle: Callable[[Session, Sequence[Settlement], int], tuple[list[bool], bool]],
        job_id: str,
        delivery: int,
    ) -> None:
        self._connections = connections
        self._settle = settle
        self._session = connections.lend()
        self.connection: Any = self._session.wire
        self._is_lent = True
        super().__init__(job_id, delivery)

    def _claim(self, job_id: str, delivery: int) -> Row | None:
        with self._connections.translating():
            self._session.run("START TRANSACTION")
            row = self._session.row(self._connections.sql(HELD_BY_RUN), (job_id, delivery))
            self._session.run(HAND_OVER)
            self._session.be_patient(None)
        return row

    def _is_open(self) -> bool:
        return _is_in_transaction(self.connection)  # DDL also commits

    def _commit(self, ack: Ack) -> bool:
        self._session.be_patient(self._connections.address.timeout_s)
        with self._connections.translating():
            if ack.leaves:
                self._session.run(HAND_BACK)  # others wait for the slots from now on
            [is_held], has_notes = self._settle(self._session, [ack], self._session.now())
            if is_held:
                self._session.run("COMMIT")
        if is_held and has_notes:
            resolve_soon(self._connections)
        return is_held

    def roll_back(self) -> None:
        if self._is_lent:
            self._is_lent = False
            self._connections.take_back(self._session)


def _driver(connection: object) -> str:
    return type(connection).__module__.partition(".")[0]


def _is_in_transaction(connection: Any) -> bool:
    status = getattr(connection, "server_status", None)
    if isinstance(status, int):
        return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
    return bool(getattr(connection, "in_transaction", False))


def _spelled_out(statement: str, values: tuple[Any, ...]) -> tuple[str, tuple[Any, ...] | None]:
    """A statement with each list among the values spread out: not every driver accepts lists."""
    if not values:
        return statement, None
    singles: list[Any] = []
    places: list[str] = []
    for value in values:
        several = cast("Sequence[Any]", value) if isinstance(value, list) else (value,)
        singles += several
        places.append(f"({', '.join(['%s'] * len(several))})" if isinstance(value, list) else "%s")
    parts = statement.split("%s")
    return "".join(part + place for part, place in zip(parts, [*places, ""], strict=True)), tuple(singles)


def _as_bytes(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value
