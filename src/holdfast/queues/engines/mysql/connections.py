"""Connections to MySQL or MariaDB: opened when needed, pooled for reuse, never held while a job runs.

Each uses READ COMMITTED (the default's gap locks make claims and inserts wait for each other) and UTC, and is closed by
the server if its client stops responding. Work that failed because a connection was stale or because of a deadlock is
retried here: every verb of an engine may be repeated.
"""

import os
import random
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar

import pymysql
from pymysql.constants import CLIENT, CR, ER
from pymysql.cursors import Cursor

from holdfast.errors import BackendError, BackendUnavailable, HoldfastError
from holdfast.queues.contract import EngineInfo
from holdfast.queues.engines.mysql.address import MysqlAddress
from holdfast.queues.engines.mysql.migrations import migrations
from holdfast.queues.engines.tables.migrations import check_current, known_version
from holdfast.queues.engines.tables.rows import Row

T = TypeVar("T")
_Wire: TypeAlias = "pymysql.Connection[Cursor]"
_Values: TypeAlias = tuple[Any, ...] | dict[str, Any] | None

MIGRATE_TIMEOUT_S: Final = 3600.0
LOCK_TIMEOUT_S: Final = 3
# A client that was stopped inside a transaction holds its locks for at most this long; MariaDB ends it sooner.
IDLE_TIMEOUT_S: Final = 60
MARIADB_IDLE_TIMEOUT_S: Final = 3
BUSY_LIMIT_S: Final = 15.0
MOST_IDLE: Final = 8
# Statements with many rows are split at this size, or at the server's limit if that is less.
STATEMENT_BYTES: Final = 1_000_000
# MariaDB turns a list of a thousand or more into a join, which would lock rows in another order.
LIST_LENGTH: Final = 500

# The server's time when the row is read. UTC_TIMESTAMP is the time at which the statement began, and it may have waited
# for a lock since; MariaDB also adds a microsecond to it if the clock did not advance between two statements.
CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

# The same in a session with any time zone: its offset from UTC is subtracted.
CLOCK_IN_ANY_ZONE: Final = f"{CLOCK} - TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), NOW(6))"

# MySQL skips what is between `/*M!` and `*/`.
LIMITS: Final = (
    f"innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, wait_timeout = {IDLE_TIMEOUT_S}"
    f" /*M!100300 , idle_transaction_timeout = {MARIADB_IDLE_TIMEOUT_S} */"
)
PREPARE: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', {LIMITS}",
)
# A handler may take any time, between its statements and in them, until it ends.
HAND_OVER: Final = (
    "SET SESSION wait_timeout = @@GLOBAL.wait_timeout, innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout"
    " /*M!100300 , idle_transaction_timeout = @@GLOBAL.idle_transaction_timeout */"
)
HAND_BACK: Final = f"SET SESSION {LIMITS}"
DURABILITY: Final = {
    "innodb_flush_log_at_trx_commit 1": "process crash and power loss (every commit is fsynced)",
    "innodb_flush_log_at_trx_commit 1, log_bin on, sync_binlog not 1": (
        "process crash; on power loss, commits whose binary log was not yet fsynced are lost"
    ),
    "innodb_flush_log_at_trx_commit 2": "process crash; on power loss, jobs of the last second or two are lost",
    "innodb_flush_log_at_trx_commit 0": (
        "a crash of Holdfast's processes; if the server or the machine crashes, jobs of the last second or two are lost"
    ),
}
"""What an accepted job survives, by the server's settings."""

_READ_ONLY_TRANSACTION: Final = 1792
_READ_ONLY_MODE: Final = 1836
# This transaction conflicted with another one and was rolled back (1020 is MariaDB's).
_IN_THE_WAY: Final = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD})
# The connection is lost: reported by the client, killed (1927), closed because it was idle (4031), server shut down.
_LOST: Final = frozenset(
    {0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, 1927, 4031}
    | {ER.SERVER_SHUTDOWN, ER.NORMAL_SHUTDOWN, ER.ABORTING_CONNECTION, ER.NEW_ABORTING_CONNECTION}
)
# The server responds but cannot serve: full, out of memory, read-only, or its cluster lost the majority.
_NOT_NOW: Final = frozenset(
    {ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.HOST_IS_BLOCKED, ER.OUT_OF_RESOURCES}
    | {ER.OUTOFMEMORY, ER.DISK_FULL, ER.RECORD_FILE_FULL, ER.ERROR_ON_WRITE, ER.GET_ERRNO, ER.UNKNOWN_COM_ERROR}
    | {ER.OPTION_PREVENTS_STATEMENT, _READ_ONLY_TRANSACTION, _READ_ONLY_MODE, ER.QUERY_INTERRUPTED}
    | {ER.QUERY_TIMEOUT, ER.STATEMENT_TIMEOUT}
)
_DENIED: Final = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1698})
OWN_TABLES: Final = (
    *("schema", "jobs", "attempts", "progress", "live_output", "gates", "pauses", "cells", "buckets"),
    *("slots", "places", "blocked", "uniques", "edges", "notes"),
    *("facts", "workers"),  # created by the first script, and dropped by a later one
)


class Session:
    """One connection and its cursor."""

    def __init__(self, wire: _Wire, era: int) -> None:
        self.wire = wire
        self.era = era
        self._cursor = wire.cursor()
        self._packet: int = self.one("SELECT @@max_allowed_packet")[0]
        # A character is at most four bytes.
        self._longest = min(STATEMENT_BYTES, self._packet // 4)

    def be_patient(self, seconds: float | None) -> None:
        """Set how long to wait for a reply from now on; None: no limit."""
        wire: Any = self.wire
        wire._read_timeout = seconds

    def run(self, statement: str, values: _Values = None) -> int:
        """Execute a statement and return how many rows it matched."""
        return self._cursor.execute(statement, values)

    def rows(self, statement: str, values: _Values = None) -> Sequence[Row]:
        """All rows of a query."""
        self._cursor.execute(statement, values)
        return self._cursor.fetchall()

    def row(self, statement: str, values: _Values = None) -> Row | None:
        """The first row of a query; None if there is none."""
        self._cursor.execute(statement, values)
        return self._cursor.fetchone()

    def one(self, statement: str, values: _Values = None) -> Row:
        """The row of a query that always has exactly one."""
        [row] = self.rows(statement, values)
        return row

    def insert(self, statement: str, rows: Sequence[Row]) -> None:
        """Insert many rows, in as many statements as their size requires."""
        for part in self._parts(statement, rows):
            self._cursor.execute(part)

    def insert_all(self, statement: str, rows: Sequence[Row]) -> None:
        """The same without an open transaction: all rows are inserted, or none."""
        first, *others = self._parts(statement, rows)
        if others:
            self.run("START TRANSACTION")
        for part in (first, *others):
            self._cursor.execute(part)
        if others:
            self.run("COMMIT")

    def _parts(self, statement: str, rows: Sequence[Row]) -> Iterator[str]:
        head, place, rest = statement.partition("VALUES ")
        template = rest.partition("ON DUPLICATE KEY ")[0].rstrip()
        tail = rest[len(template) :]
        several: list[str] = []
        size = 0
        for row in rows:
            text = self._cursor.mogrify(template, row)
            # The server would close the connection in the middle of the statement.
            if len(text) + len(statement) >= self._packet:
                raise BackendError(
                    f"a record takes {len(text):,} bytes in a statement; the server's max_allowed_packet is "
                    f"{self._packet:,}: raise it to four times the largest message"
                )
            if several and size + len(text) > self._longest:
                yield head + place + ", ".join(several) + tail
                several, size = [], 0
            several.append(text)
            size += len(text) + 2
        if several:
            yield head + place + ", ".join(several) + tail

    @property
    def last_number(self) -> int:
        """The number that the last statement passed to `LAST_INSERT_ID`."""
        return self._cursor.lastrowid

    def now(self) -> int:
        """The server's time."""
        now: int = self.one(f"SELECT {CLOCK}")[0]
        return now


class MysqlConnections:
    """The connections of this process to one server, and the schema there."""

    def __init__(self, address: MysqlAddress, *, prefix: str) -> None:
        self._steps = migrations(prefix)
        self.address = address
        self.prefix = prefix
        self._tls = address.tls_context()
        self._idle: list[Session] = []
        self._era = 0
        self._pid = os.getpid()
        self._wires: weakref.WeakSet[_Wire] = weakref.WeakSet()
        self._is_ready = False
        self.skips_locked = False
        """Whether the server can skip locked rows; known once the schema was checked."""
        _instances.add(self)

        @cache
        def with_prefix(statement: str) -> str:
            return statement.replace("holdfast_", prefix)

        self.sql: Callable[[str], str] = with_prefix

    def run(self, work: Callable[[Session], T], *, prepares: bool = True, busy_limit_s: float | None = None) -> T:
        """Run `work(session)` without a transaction: each statement commits by itself. A missing schema is created
        first, unless `prepares` is False. After conflicts, it is retried for up to `busy_limit_s`.
        """
        if prepares and not self._is_ready:
            self.create_schema()
        give_up_at = time.monotonic() + (BUSY_LIMIT_S if busy_limit_s is None else busy_limit_s)
        failures = 0
        while True:
            session, is_fresh = self._take()
            may_go_on = False
            try:
                answer = work(session)
                may_go_on = True
            except pymysql.Error as problem:
                may_go_on = self._roll_back(session)
                code = _code(problem)
                if code in _IN_THE_WAY and time.monotonic() < give_up_at:
                    failures += 1
                    time.sleep(random.uniform(0.0005, 0.005) * min(failures, 8))
                # A pooled connection may have been closed while it was idle, and with it all others of its age.
                elif code in _LOST and not is_fresh and not _is_timeout(problem):
                    self._close_idle()
                else:
                    raise self._translated(problem) from problem
            except HoldfastError:
                may_go_on = self._roll_back(session)
                raise
            else:
                return answer
            finally:
                # Any other exception, such as a job's timeout, may have been raised between statement and reply.
                if may_go_on:
                    self._give_back(session)
                else:
                    _close(session)

    def transact(self, work: Callable[[Session], T], *, repeats: bool = True, busy_limit_s: float | None = None) -> T:
        """Run `work(session)` in one transaction; it is restarted after a conflict with another one.

        Without `repeats`, a commit whose reply was lost is an error: it may have succeeded, and the work must not be
        repeated.
        """

        def whole(session: Session) -> T:
            session.run("START TRANSACTION")
            answer = work(session)
            try:
                session.run("COMMIT")
            except pymysql.Error as problem:
                if repeats or _code(problem) not in _LOST:
                    raise
                raise self._translated(problem) from problem
            return answer

        return self.run(whole, busy_limit_s=busy_limit_s)

    def lend(self) -> Session:
        """A session for the caller alone, until it is returned with `take_back`."""
        if not self._is_ready:
            self.create_schema()
        while True:
            session, is_fresh = self._take()
            if is_fresh:
                return session
            try:
                session.wire.ping(reconnect=False)  # it may have been closed since it was last used
            except pymysql.Error:
                _close(session)
            else:
                return session

    def take_back(self, session: Session) -> None:
        """Roll back, reset the session's settings and return it to the pool."""
        session.be_patient(self.address.timeout_s)
        try:
            session.run("ROLLBACK")
            for statement in ("SET autocommit = 1", *PREPARE):
                session.run(statement)
        except (pymysql.Error, OSError):
            _close(session)
        else:
            self._give_back(session)

    @contextmanager
    def translating(self) -> Generator[None]:
        """Translate the driver's exceptions."""
        try:
            yield
        except (pymysql.Error, OSError) as problem:
            raise self._translated(problem) from problem

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program, or if the server is unavailable."""
        check_current(self.run(self._version, prepares=False), self._steps, self.address)

    def describe(self) -> EngineInfo:
        """The server, its settings and the version of our schema there; nothing is created."""
        return self.run(self._describe, prepares=False)

    def _describe(self, session: Session) -> EngineInfo:
        version, flush, log_bin, sync, clock_us = session.one(
            "SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, "
            "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
        )
        # MariaDB's 3 syncs once more than 1 does, so that no commit depends on the binary log.
        setup = f"innodb_flush_log_at_trx_commit {1 if flush == 3 else flush}"
        if flush == 1 and log_bin and sync != 1:
            setup += ", log_bin on, sync_binlog not 1"
        settings = {"innodb_flush_log_at_trx_commit": flush, "log_bin": log_bin, "sync_binlog": sync}
        return EngineInfo(
            server=f"{'MariaDB' if 'MariaDB' in version else 'MySQL'} {version.partition('-')[0]}",
            names=f"{self.prefix}…",
            schema=self._version(session),
            known_schema=self._steps[-1].number,
            settings={name: str(value) for name, value in settings.items()},
            survives=DURABILITY[setup],
            clock_us=clock_us,
        )

    def create_schema(self) -> None:
        """Create or update the tables. Of several processes, the first one does it."""
        if self.run(self._known_version, prepares=False) < self._steps[-1].number:
            session = self._open(answer_within_s=MIGRATE_TIMEOUT_S)
            try:
                self._migrate(session)
            except pymysql.Error as problem:
                raise self._translated(problem) from problem
            finally:
                _close(session)
        self.skips_locked = self.run(self._can_skip_locked, prepares=False)
        self._is_ready = True

    def close(self) -> None:
        """Close every idle connection; the others are closed when their work is done."""
        self._is_ready = False
        self._era += 1
        if self._pid == os.getpid():
            self._close_idle()

    def after_fork_in_child(self) -> None:
        """Close this process's copies, so that the server notices when the parent, which owns the connections, exits.

        Only their descriptors: anything sent on them would count as the parent's, and their buffers may be locked by a
        thread that does not exist here.
        """
        self._idle, self._pid = [], os.getpid()
        for wire in list(self._wires):
            socket = getattr(wire, "_sock", None)
            if socket is not None and socket.fileno() >= 0:
                _left_behind.append(wire)
                os.close(socket.detach())
        self._wires = weakref.WeakSet()

    def _roll_back(self, session: Session) -> bool:
        """Roll back; returns whether the session can be used again."""
        if not session.wire.open:
            return False
        try:
            session.run("ROLLBACK")
        except pymysql.Error:
            return False
        return True

    def _take(self) -> tuple[Session, bool]:
        # Without a lock: a job's timeout can be raised anywhere in here, and would leave it locked.
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        try:
            return self._idle.pop(), False
        except IndexError:
            pass  # none is idle
        return self._open(), True

    def _give_back(self, session: Session) -> None:
        if session.era == self._era and len(self._idle) < MOST_IDLE:
            self._idle.append(session)
        else:
            _close(session)

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for session in idle:
            _close(session)

    def _open(self, *, answer_within_s: float | None = None) -> Session:
        address = self.address
        timeout_s = address.timeout_s if answer_within_s is None else answer_within_s
        try:
            wire = pymysql.connect(
                host=address.host,
                port=address.port,
                unix_socket=address.socket,
                user=address.user,
                password=address.password,
                database=address.database,
                charset="utf8mb4",
                collation="utf8mb4_bin",
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=address.connect_timeout_s,
                read_timeout=timeout_s,
                write_timeout=timeout_s,
                ssl=self._tls,
                ssl_disabled=self._tls is None,
            )
            self._wires.add(wire)
            session = Session(wire, self._era)
            for statement in PREPARE:
                session.run(statement)
        except (pymysql.Error, OSError) as problem:
            raise self._translated(problem) from problem
        except RuntimeError as problem:
            # The driver never sends a password unencrypted, and needs another package to encrypt one without TLS.
            raise BackendError(
                f"{address} requires an encrypted password for '{address.user}' (caching_sha2_password): add "
                "?tls=verify or ?tls=encrypt to the URL, or  pip install cryptography"
            ) from problem
        return session

    def _can_skip_locked(self, session: Session) -> bool:
        if not self.address.may_skip_locked:
            return False
        try:
            session.row(self.sql("SELECT gate FROM holdfast_gates WHERE gate = 0 FOR UPDATE SKIP LOCKED"))
        except pymysql.ProgrammingError as problem:
            if _code(problem) == ER.PARSE_ERROR:
                return False
            raise
        return True

    def _migrate(self, session: Session) -> None:
        # Lock names are global to the server and limited to 64 characters.
        lock = "holdfast-" + sha256(f"{self.address.database}/{self.prefix}".encode()).hexdigest()[:32]
        got = session.row("SELECT GET_LOCK(%s, %s)", (lock, int(MIGRATE_TIMEOUT_S / 2)))
        if got is None or got[0] != 1:
            raise BackendUnavailable(f"{self.address} is being migrated by another process: try again later")
        version = self._known_version(session)
        if not version:
            self._refuse_tables_of_others(session)
        for step in self._steps:
            # DDL commits by itself, so a step that was interrupted is repeated from its first statement.
            if step.number > version:
                for statement in step.statements:
                    session.run(statement)

    def _refuse_tables_of_others(self, session: Session) -> None:
        """The table with the schema's version is created first: if it is missing, no table is ours."""
        asked = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN %s"
        names = [f"{self.prefix}{name}" for name in OWN_TABLES]
        found = {name for (name,) in session.rows(asked, (names,))}
        if found and names[0] not in found:
            raise BackendError(
                f"{self.address} contains a table {min(found)} that belongs to another program: choose another "
                "prefix (?prefix=… in the URL, or the setting table-prefix)"
            )

    def _version(self, session: Session) -> int:
        try:
            row = session.row(self.sql("SELECT COALESCE(MAX(version), 0) FROM holdfast_schema"))
        except pymysql.ProgrammingError as problem:
            if _code(problem) == ER.NO_SUCH_TABLE:
                return 0
            raise
        version: int = row[0] if row else 0
        return version

    def _known_version(self, session: Session) -> int:
        return known_version(self._version(session), self._steps, self.address)

    def _translated(self, problem: Exception) -> BackendError:
        code, message = _code(problem), _line(problem)
        if "CERTIFICATE_VERIFY_FAILED" in message:
            return BackendUnavailable(
                f"the certificate of {self.address} is not trusted: {message}; set tls_ca to the CA "
                "that signed it, and use the host name in the certificate"
            )
        if code == CR.CR_SSL_CONNECTION_ERROR:
            return BackendUnavailable(
                f"{self.address} does not support TLS ({message}): enable it on the server, or leave tls out of the URL"
            )
        if isinstance(problem, OSError) or code in _LOST:
            return BackendUnavailable(f"{self.address} cannot be reached: {message}")
        if code in _IN_THE_WAY:
            return BackendUnavailable(f"{self.address} stayed busy: {message}")
        if code in _NOT_NOW:
            # After a failover the same name may lead to a server that accepts writes.
            self._close_idle()
            return BackendUnavailable(f"{self.address} is refusing requests: {message}")
        if code == ER.NO_SUCH_TABLE:
            self._is_ready = False
            return BackendError(f"{self.address} no longer has the tables '{self.prefix}…': run  holdfast migrate")
        if code == ER.NET_PACKET_TOO_LARGE:
            return BackendError(f"{self.address}: packet too large ({message}): raise max_allowed_packet on the server")
        if code == ER.TABLEACCESS_DENIED_ERROR:
            return BackendError(
                f"{self.address}: this user lacks a privilege ({message}): grant SELECT, INSERT, UPDATE and DELETE on "
                "Holdfast's tables, and run  holdfast migrate  as a user that may create tables"
            )
        if code in _DENIED:
            return BackendError(
                f"{self.address} refused the connection: {message}; check the user, the password and the database in "
                "the URL"
            )
        return BackendError(f"{self.address}: {message}")


_instances: "weakref.WeakSet[MysqlConnections]" = weakref.WeakSet()
# Inherited through a fork and never released: the destructor would wait for a thread that does not exist here.
_left_behind: list[_Wire] = []


def _after_fork_in_child() -> None:
    for connections in list(_instances):
        connections.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _close(session: Session) -> None:
    with suppress(pymysql.Error, OSError):
        session.wire.close()


def _code(problem: Exception) -> int:
    code: Any = problem.args[0] if problem.args else None
    return code if isinstance(code, int) else -1


def _line(problem: Exception) -> str:
    return str(problem.args[-1]) if problem.args else type(problem).__name__


def _is_timeout(problem: BaseException) -> bool:
    return isinstance(problem.__context__, TimeoutError)


def pieces(values: Sequence[T], length: int = LIST_LENGTH) -> Iterator[list[T]]:
    """The values in lists short enough for one statement."""
    for start in range(0, len(values), length):
        yield list(values[start : start + length])


def chunks(numbers: Iterable[int | str]) -> Iterator[list[int]]:
    """The numbers, sorted, in lists short enough for one statement; all transactions lock in this order."""
    return pieces(sorted({int(number) for number in numbers}))
