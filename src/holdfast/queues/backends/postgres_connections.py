"""Connections to PostgreSQL: opened when needed, kept for the next who needs one, never held while a handler runs.

Nothing here needs a session: every call is one transaction, so a pooler that gives each transaction another session
(PgBouncer in transaction mode) is fine. What has to be repeated, because a connection was stale or two transactions met
in a deadlock, is repeated here: every verb of an engine may be.
"""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.errors import BackendError, BackendUnavailable, ConfigError, SchemaTooNew

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S: Final = 10
# A server that is gone without a word is noticed within half a minute, whatever is being waited for.
KEEPALIVE: Final = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
MOST_IDLE: Final = 8
RETRIES: Final = 8
MIN_VERSION: Final = 120_000
_prefix_pattern = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_parameter = re.compile(r"(?<!:):([a-z_]+)")

# Two transactions were in each other's way; nothing of this one has happened.
_IN_THE_WAY: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
# The server answers, and cannot serve: it starts, stops, is full, only reads, or somebody ended our session.
_NOT_NOW: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.ReadOnlySqlTransaction,
    errors.QueryCanceled,
    errors.IdleInTransactionSessionTimeout,
    errors.DiskFull,
    errors.OutOfMemory,
)


class PostgresConnections:
    """The connections of this process to one server, and the schema they find there."""

    def __init__(self, conninfo: str, *, prefix: str) -> None:
        if not _prefix_pattern.fullmatch(prefix):
            raise ConfigError(f"{prefix!r} cannot be a prefix: use small letters, digits and '_', at most 40")
        self.namespace = prefix.rstrip("_") or prefix
        try:
            given = conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as problem:
            raise ConfigError(f"the address of PostgreSQL cannot be read: {problem}") from None
        self.place = f"PostgreSQL at {given.get('host') or 'localhost'}:{given.get('port') or 5432}"
        self.conninfo = make_conninfo(
            "", **{"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "holdfast", **KEEPALIVE, **given}
        )
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._pid = os.getpid()
        self._has_schema = False

        @cache
        def in_namespace(statement: str) -> bytes:
            named = _parameter.sub(r"%(\1)s", statement.replace("%", "%%"))
            return named.replace("holdfast.", f'"{self.namespace}".').encode()

        self.sql: Callable[[str], bytes] = in_namespace
        """A statement as the server is to have it: in our namespace, its parameters named in the driver's way."""

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` outside of any transaction: what it executes is committed at once, each by itself."""
        return self._patiently(work)

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in one transaction, from the beginning again if others were in its way."""

        def whole(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        return self._patiently(whole)

    def open(self) -> Connection:
        """One more connection, for the caller alone."""
        try:
            return psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as problem:
            raise BackendUnavailable(f"{self.place} cannot be reached: {_said(problem)}") from None

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program, or the server does not answer."""
        newest = max(dict(migrations()))
        version = self._patiently(lambda connection: self._version(connection, newest), prepares=False)
        if version < newest:
            raise BackendError(f"{self.place} has schema {version}, this program needs {newest}: run  holdfast migrate")

    def create_schema(self) -> None:
        """Create the tables or bring them up to date; whoever comes first does it, the others find it done."""
        self._patiently(self._migrate, prepares=False)
        self._has_schema = True

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                connection.close()

    def _patiently(self, work: Callable[[Connection], T], *, prepares: bool = True) -> T:
        if prepares and not self._has_schema:
            self.create_schema()
        failures = 0
        while True:
            connection, is_fresh = self._take()
            try:
                answer = work(connection)
            except _IN_THE_WAY as problem:
                failures += 1
                if failures > RETRIES:
                    raise BackendUnavailable(f"{self.place} is too busy: {_said(problem)}") from problem
                time.sleep(random.uniform(0.001, 0.02) * failures)
            except psycopg.Error as problem:
                # A connection that was kept may have died meanwhile, with all others of its age.
                if is_fresh or not connection.broken:
                    raise self._translated(problem, connection) from problem
                self.close()
            else:
                return answer
            finally:
                self._give_back(connection)

    def _take(self) -> tuple[Connection, bool]:
        with self._lock:
            if self._pid != os.getpid():
                # What was inherited through a fork belongs to the parent; psycopg leaves it alone.
                self._idle, self._pid = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection, False
                connection.close()
        return self.open(), True

    def _give_back(self, connection: Connection) -> None:
        if not connection.closed and connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            with self._lock:
                if len(self._idle) < MOST_IDLE and self._pid == os.getpid():
                    self._idle.append(connection)
                    return
        with suppress(psycopg.Error):
            connection.close()

    def _translated(self, problem: psycopg.Error, connection: Connection) -> BackendError:
        if connection.broken or isinstance(problem, (psycopg.InterfaceError, *_NOT_NOW)):
            return BackendUnavailable(f"{self.place} does not serve us: {_said(problem)}")
        if isinstance(problem, errors.UndefinedTable | errors.InvalidSchemaName):
            self._has_schema = False
            return BackendError(f"{self.place} has no tables in '{self.namespace}' any more: run  holdfast migrate")
        return BackendError(f"{self.place}: {_said(problem)}")

    def _migrate(self, connection: Connection) -> None:
        scripts = dict(migrations())
        newest = max(scripts)
        if self._version(connection, newest) == newest:
            return
        try:
            with connection.transaction():
                # Held until the end of the transaction; it is the name of our tables, so it is nobody else's.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"holdfast {self.namespace}"])
                connection.execute(self.sql(f'CREATE SCHEMA IF NOT EXISTS "{self.namespace}"'))
                columns = "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
                connection.execute(self.sql(f"CREATE TABLE IF NOT EXISTS holdfast.schema {columns}"))
                for version in range(self._version(connection, newest) + 1, newest + 1):
                    connection.execute(self.sql(scripts[version]))
                    connection.execute(
                        self.sql("INSERT INTO holdfast.schema (version) VALUES (:version)"), {"version": version}
                    )
        except errors.InsufficientPrivilege as problem:
            raise BackendError(
                f"{self.place}: this user may not create tables ({_said(problem)}): let somebody who may run "
                "holdfast migrate"
            ) from problem

    def _version(self, connection: Connection, newest: int) -> int:
        if connection.info.server_version < MIN_VERSION:
            raise BackendError(f"{self.place} is version {connection.info.server_version}; Holdfast needs 12 or newer")
        known = connection.execute("SELECT to_regclass(%s)", [f'"{self.namespace}".schema']).fetchone()
        if known is None or known[0] is None:
            return 0
        row = connection.execute(self.sql("SELECT coalesce(max(version), 0) FROM holdfast.schema")).fetchone()
        version: int = row[0] if row else 0
        if version > newest:
            raise SchemaTooNew(
                f"{self.place} has schema {version}, written by a newer Holdfast; this program knows up to {newest}: "
                "upgrade Holdfast here"
            )
        return version


def migrations() -> Iterator[tuple[int, str]]:
    """The numbered scripts of the schema."""
    for entry in resources.files("holdfast.queues.backends").joinpath("schema/postgres").iterdir():
        number, _, _ = entry.name.partition("_")
        yield int(number), entry.read_text(encoding="utf-8")


def _said(problem: psycopg.Error) -> str:
    """What the server said, in one line; libpq never repeats a password."""
    return " ".join(str(problem).split()) or type(problem).__name__
