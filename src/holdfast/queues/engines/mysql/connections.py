"""Connections to MySQL or MariaDB: opened when needed, kept for the next who needs one, never held while a job runs.

Each reads what is committed (READ COMMITTED: the default's gap locks make claims and inserts wait for each other),
keeps UTC, and is given up by the server if its client stands still. What has to be repeated, because a connection was
stale or two transactions met in a deadlock, is repeated here: every verb of an engine may be.
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
# A client that was stopped inside a transaction holds its locks no longer than this.
IDLE_TIMEOUT_S: Final = 60
BUSY_LIMIT_S: Final = 15.0
MOST_IDLE: Final = 8
# Statements with many rows are cut into pieces of this size, or what the server takes, if that is less.
STATEMENT_BYTES: Final = 1_000_000
# MariaDB makes a join of a list of a thousand and more, which would lock in another order.
LIST_LENGTH: Final = 500

# The time by the server when the row is looked at. UTC_TIMESTAMP is that of the statement's beginning, which may have
# waited for a lock since; and MariaDB adds a microsecond to it whenever the clock stood still between two statements.
CLOCK: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

# The same in a session with any time zone: its offset from UTC is subtracted.
CLOCK_IN_ANY_ZONE: Final = f"{CLOCK} - TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), NOW(6))"

PREPARE: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    f"innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, wait_timeout = {IDLE_TIMEOUT_S}",
)
# A handler may take its time, between its statements and with them.
HAND_OVER: Final = (
    "SET SESSION wait_timeout = @@GLOBAL.wait_timeout, innodb_lock_wait_timeout = @@GLOBAL.innodb_lock_wait_timeout"
)
DURABILITY: Final = {
    "innodb_flush_log_at_trx_commit 1": "the end of any process, and of the machine: each commit is synced",
    "innodb_flush_log_at_trx_commit 1, log_bin on, sync_binlog not 1": (
        "the end of any process; of the machine, but for commits of which the binary log had not been synced yet"
    ),
    "innodb_flush_log_at_trx_commit 2": (
        "the end of any process; of the machine, but for what was accepted in its last second or two"
    ),
    "innodb_flush_log_at_trx_commit 0": (
        "the end of Holdfast's processes; of the server or the machine, but for what was accepted in the last second "
        "or two"
    ),
}
"""What an accepted job survives, by how the server is set up."""

_READ_ONLY_TRANSACTION: Final = 1792
_READ_ONLY_MODE: Final = 1836
# Two transactions were in each other's way (1020 is MariaDB's); nothing of this one has happened.
_IN_THE_WAY: Final = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD})
# The connection is gone: by the client's account, killed (1927), for having been idle (4031), or with the server.
_LOST: Final = frozenset(
    {0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, 1927, 4031}
    | {ER.SERVER_SHUTDOWN, ER.NORMAL_SHUTDOWN, ER.ABORTING_CONNECTION, ER.NEW_ABORTING_CONNECTION}
)
# The server answers, and cannot serve: it is full, out of memory, only reads, or its cluster has lost its majority.
_NOT_NOW: Final = frozenset(
    {ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED, ER.HOST_IS_BLOCKED, ER.OUT_OF_RESOURCES}
    | {ER.OUTOFMEMORY, ER.DISK_FULL, ER.RECORD_FILE_FULL, ER.ERROR_ON_WRITE, ER.GET_ERRNO, ER.UNKNOWN_COM_ERROR}
    | {ER.OPTION_PREVENTS_STATEMENT, _READ_ONLY_TRANSACTION, _READ_ONLY_MODE, ER.QUERY_INTERRUPTED}
    | {ER.QUERY_TIMEOUT, ER.STATEMENT_TIMEOUT}
)
_MAY_NOT_COME: Final = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1698})
OWN_TABLES: Final = (
    *("schema", "jobs", "attempts", "progress", "live_output", "gates", "pauses", "cells", "buckets"),
    *("facts", "workers"),  # created by the first script, and dropped by a later one
)


class Session:
    """One connection while somebody uses it."""

    def __init__(self, wire: _Wire, era: int) -> None:
        self.wire = wire
        self.era = era
        self._cursor = wire.cursor()
        self._packet: int = self.one("SELECT @@max_allowed_packet")[0]
        # A character is at most four bytes.
        self._longest = min(STATEMENT_BYTES, self._packet // 4)

    def be_patient(self, seconds: float | None) -> None:
        """How long the server may be silent from now on while it is waited for; None is without end."""
        wire: Any = self.wire
        wire._read_timeout = seconds

    def run(self, statement: str, values: _Values = None) -> int:
        """Execute it; how many rows it found to change."""
        return self._cursor.execute(statement, values)

    def rows(self, statement: str, values: _Values = None) -> Sequence[Row]:
        """What a query finds."""
        self._cursor.execute(statement, values)
        return self._cursor.fetchall()

    def row(self, statement: str, values: _Values = None) -> Row | None:
        """The first row a query finds."""
        self._cursor.execute(statement, values)
        return self._cursor.fetchone()

    def one(self, statement: str, values: _Values = None) -> Row:
        """The row of a query that always finds one."""
        [row] = self.rows(statement, values)
        return row

    def insert(self, statement: str, rows: Sequence[Row]) -> None:
        """Insert many rows at once, in as many statements as their size asks for."""
        for part in self._parts(statement, rows):
            self._cursor.execute(part)

    def insert_all(self, statement: str, rows: Sequence[Row]) -> None:
        """The same outside of a transaction: all of them, or none."""
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
            # The server would hang up in the middle of it, as if it were gone.
            if len(text) + len(statement) >= self._packet:
                raise BackendError(
                    f"a record takes {len(text):,} bytes in a statement, the server's max_allowed_packet is "
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
    """The connections of this process to one server, and the schema they find there."""

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
        _sites.add(self)

        @cache
        def with_prefix(statement: str) -> str:
            return statement.replace("holdfast_", prefix)

        self.sql: Callable[[str], str] = with_prefix

    def run(self, work: Callable[[Session], T]) -> T:
        """Run `work(session)` outside of any transaction: what it executes is committed at once, each by itself."""
        return self._patiently(work)

    def transact(self, work: Callable[[Session], T], *, repeats: bool = True) -> T:
        """Run `work(session)` in one transaction, from the beginning again if others were in its way.

        Without `repeats`, a commit whose reply was lost is an error: it may have succeeded, and the work must not be
        done twice.
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

        return self._patiently(whole)

    def lend(self) -> Session:
        """A session for the caller alone, until `take_back`."""
        if not self._is_ready:
            self.create_schema()
        while True:
            session, is_fresh = self._take()
            if is_fresh:
                return session
            try:
                session.wire.ping(reconnect=False)  # it may have died since it was used
            except pymysql.Error:
                _hang_up(session)
            else:
                return session

    def take_back(self, session: Session) -> None:
        """Roll back what is open and keep it for the next, without what others may have set in it."""
        session.be_patient(self.address.timeout_s)
        try:
            session.run("ROLLBACK")
            for statement in ("SET autocommit = 1", *PREPARE):
                session.run(statement)
        except (pymysql.Error, OSError):
            _hang_up(session)
        else:
            self._give_back(session)

    @contextmanager
    def translating(self) -> Generator[None]:
        """What the driver raises inside, in our words."""
        try:
            yield
        except (pymysql.Error, OSError) as problem:
            raise self._translated(problem) from problem

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program, or the server does not answer."""
        check_current(self._patiently(self._version, prepares=False), self._steps, self.address)

    def describe(self) -> EngineInfo:
        """What the server is, and what of ours is there; nothing is made by asking."""
        return self._patiently(self._describe, prepares=False)

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
            server=f"{'MariaDB' if 'MariaDB' in version else 'MySQL'} {version}",
            names=f"{self.prefix}…",
            schema=self._version(session),
            known_schema=self._steps[-1].number,
            settings={name: str(value) for name, value in settings.items()},
            survives=DURABILITY[setup],
            clock_us=clock_us,
        )

    def create_schema(self) -> None:
        """Create the tables or bring them up to date; whoever comes first does it, the others find it done."""
        if self._patiently(self._known_version, prepares=False) < self._steps[-1].number:
            session = self._open(answer_within_s=MIGRATE_TIMEOUT_S)
            try:
                self._migrate(session)
            except pymysql.Error as problem:
                raise self._translated(problem) from problem
            finally:
                _hang_up(session)
        self.skips_locked = self._patiently(self._can_skip_locked, prepares=False)
        self._is_ready = True

    def close(self) -> None:
        """Let go of every connection that nobody uses; the others close when they are given back."""
        self._is_ready = False
        self._era += 1
        if self._pid == os.getpid():
            self._forget_idle()

    def after_fork_in_child(self) -> None:
        """Close this process's copies: the server must notice when the parent, whose connections they are, is gone.

        Only their descriptors: a word on them would be the parent's, and their buffers may be locked by a thread that
        does not exist here.
        """
        self._idle, self._pid = [], os.getpid()
        for wire in list(self._wires):
            socket = getattr(wire, "_sock", None)
            if socket is not None and socket.fileno() >= 0:
                _left_behind.append(wire)
                os.close(socket.detach())
        self._wires = weakref.WeakSet()

    def _patiently(self, work: Callable[[Session], T], *, prepares: bool = True) -> T:
        if prepares and not self._is_ready:
            self.create_schema()
        give_up_at = time.monotonic() + BUSY_LIMIT_S
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
                # A connection that was kept may have died meanwhile, with all others of its age.
                elif code in _LOST and not is_fresh and not _is_timeout(problem):
                    self._forget_idle()
                else:
                    raise self._translated(problem) from problem
            except HoldfastError:
                may_go_on = self._roll_back(session)
                raise
            else:
                return answer
            finally:
                # An exception from elsewhere, such as a job's timeout, may have struck between question and answer.
                if may_go_on:
                    self._give_back(session)
                else:
                    _hang_up(session)

    def _roll_back(self, session: Session) -> bool:
        """Whether the session can be used again."""
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
            return self._open(), True

    def _give_back(self, session: Session) -> None:
        if session.era == self._era and len(self._idle) < MOST_IDLE:
            self._idle.append(session)
        else:
            _hang_up(session)

    def _forget_idle(self) -> None:
        idle, self._idle = self._idle, []
        for session in idle:
            _hang_up(session)

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
            # The driver says no password in clear where it can be overheard, and encrypts one only with a package more.
            raise BackendError(
                f"{address} wants the password of '{address.user}' encrypted (caching_sha2_password): write "
                "?tls=verify or ?tls=encrypt in the URL, or  pip install cryptography"
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
        # The name of a lock is known to the whole server, and short.
        lock = "holdfast-" + sha256(f"{self.address.database}/{self.prefix}".encode()).hexdigest()[:32]
        got = session.row("SELECT GET_LOCK(%s, %s)", (lock, int(MIGRATE_TIMEOUT_S / 2)))
        if got is None or got[0] != 1:
            raise BackendUnavailable(f"{self.address} is being migrated by another process: try again later")
        version = self._known_version(session)
        if not version:
            self._refuse_tables_of_others(session)
        for step in self._steps:
            # A definition commits by itself: a step that was cut off is taken again from its beginning.
            if step.number > version:
                for statement in _statements(step.sql):
                    session.run(statement)

    def _refuse_tables_of_others(self, session: Session) -> None:
        """The first table made is that of the schema's version: where it is missing, none can be ours."""
        asked = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN %s"
        names = [f"{self.prefix}{name}" for name in OWN_TABLES]
        found = {name for (name,) in session.rows(asked, (names,))}
        if found and names[0] not in found:
            raise BackendError(
                f"{self.address} has a table {min(found)} of another program: give Holdfast a prefix of its own "
                "(?prefix=… in the URL, or the setting table-prefix)"
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
        code, said = _code(problem), _said(problem)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return BackendUnavailable(
                f"{self.address} shows a certificate that is not trusted here: {said}; name the authority that signed "
                "it (tls_ca), and the host as the certificate does"
            )
        if code == CR.CR_SSL_CONNECTION_ERROR:
            return BackendUnavailable(
                f"{self.address} speaks no TLS: set it up with a certificate, or leave tls out of the URL ({said})"
            )
        if isinstance(problem, OSError) or code in _LOST:
            return BackendUnavailable(f"{self.address} cannot be reached: {said}")
        if code in _IN_THE_WAY:
            return BackendUnavailable(f"{self.address} stayed busy for {BUSY_LIMIT_S:g} s: {said}")
        if code in _NOT_NOW:
            # After a failover the same name may lead to a server that can write.
            self._forget_idle()
            return BackendUnavailable(f"{self.address} does not serve us: {said}")
        if code == ER.NO_SUCH_TABLE:
            self._is_ready = False
            return BackendError(f"{self.address} has no tables '{self.prefix}…' any more: run  holdfast migrate")
        if code == ER.NET_PACKET_TOO_LARGE:
            return BackendError(f"{self.address} takes no packet that large: raise its max_allowed_packet ({said})")
        if code == ER.TABLEACCESS_DENIED_ERROR:
            return BackendError(
                f"{self.address}: this user may not do that ({said}): grant SELECT, INSERT, UPDATE and DELETE on "
                "Holdfast's tables, and let somebody who may create them run  holdfast migrate"
            )
        if code in _MAY_NOT_COME:
            return BackendError(f"{self.address} does not let '{self.address.user}' in: {said}")
        return BackendError(f"{self.address}: {said}")


_sites: "weakref.WeakSet[MysqlConnections]" = weakref.WeakSet()
# Inherited through a fork, and never let go of: whoever tears one down waits for a thread that is not here.
_left_behind: list[_Wire] = []


def _after_fork_in_child() -> None:
    for site in list(_sites):
        site.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _hang_up(session: Session) -> None:
    with suppress(pymysql.Error, OSError):
        session.wire.close()


def _code(problem: Exception) -> int:
    code: Any = problem.args[0] if problem.args else None
    return code if isinstance(code, int) else -1


def _said(problem: Exception) -> str:
    return str(problem.args[-1]) if problem.args else type(problem).__name__


def _is_timeout(problem: BaseException) -> bool:
    return isinstance(problem.__context__, TimeoutError)


def pieces(values: Sequence[T], length: int = LIST_LENGTH) -> Iterator[list[T]]:
    """The values in lists that are not too long for a statement."""
    for start in range(0, len(values), length):
        yield list(values[start : start + length])


def chunks(numbers: Iterable[int | str]) -> Iterator[list[int]]:
    """The numbers, sorted, in lists that are not too long for a statement: everybody locks in the same order."""
    return pieces(sorted({int(number) for number in numbers}))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one; each ends at the end of a line."""
    text = "\n".join(line for line in script.splitlines() if not line.lstrip().startswith("--"))
    for statement in text.split(";\n"):
        if statement.strip(" \n;"):
            yield statement
