"""Connections to PostgreSQL: opened when needed, kept for the next who needs one, never held while a handler runs.

Nothing here needs a session: every call is one transaction, so a pooler that gives each transaction another session
(PgBouncer in transaction mode) is fine. What has to be repeated, because a connection was stale or two transactions met
in a deadlock, is repeated here: every verb of an engine may be. A server that stands still is given up: the driver by
itself waits for an answer as long as the network holds.
"""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from holdfast.errors import BackendError, BackendUnavailable, ConfigError
from holdfast.queues.addresses import seconds_of, without_option
from holdfast.queues.contract import EngineInfo
from holdfast.queues.engines.postgres.migrations import migrations, namespace_of
from holdfast.queues.engines.tables.migrations import check_current, known_version

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 10.0
# How often a wait looks up: for its own end, and for an interrupt.
LOOK_EVERY_S: Final = 0.1
# A server that is gone without a word is noticed within half a minute, whatever is being waited for.
KEEPALIVE: Final = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# Only statements of which we say so are prepared, however often others are executed.
WHEN_TOLD: Final = 2**31
MOST_IDLE: Final = 8
RETRIES: Final = 8
MIN_VERSION: Final = 120_000
DURABILITY: Final = {
    "fsync on, synchronous_commit on": "the end of any process, and of the machine: each commit is synced",
    "fsync on, synchronous_commit off": (
        "the end of Holdfast's processes; of the server or the machine, but for what was accepted in the last second"
    ),
    "fsync off": "the end of any process; a loss of power can damage the whole database",
}
"""What an accepted job survives, by how the server is set up."""

_ports = re.compile(r"[0-9,]*")
_unknown_option = re.compile(r'invalid URI query parameter: "(\w+)"')
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


class NoAnswer(psycopg.OperationalError):
    """The server was silent for too long. What it was asked may have happened, or may yet."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up a server which stands still."""

    patience_s: float | None = None
    """How long the server may be silent while it is waited for; None is without end."""

    def wait(self, gen: PQGen[T], interval: float = LOOK_EVERY_S, timeout: float | None = None) -> T:
        try:
            return self._wait(gen, interval, timeout)
        except BaseException:
            # Left alone, the end of a pipeline would fail when nobody can catch it, and be written to stderr.
            with suppress(Exception):
                gen.close()
            raise

    def _wait(self, gen: PQGen[T], interval: float, timeout: float | None) -> T:
        if timeout is not None:  # by a driver since 3.3.6, for notifications: they may never come
            return super().wait(gen, interval, timeout)
        if self.patience_s is None:
            return super().wait(gen, interval)
        try:
            wanted = next(gen)
        except StopIteration as end:  # as most of what is sent in a pipeline does
            answer: T = end.value
            return answer
        return super().wait(self._listening(gen, wanted, self.patience_s), interval)

    def _listening(self, gen: PQGen[T], wanted: Any, patience_s: float) -> PQGen[T]:
        """Go on, until the server has been silent for too long; then the connection is of no more use."""
        silent_since: float | None = None
        try:
            while True:
                ready = yield wanted
                if ready:
                    silent_since = None
                elif silent_since is None:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since >= patience_s:
                    # An answer that comes yet would be taken for that of the next question.
                    self.pgconn.finish()
                    raise NoAnswer(f"no answer for {patience_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer


class PostgresConnections:
    """The connections of this process to one server, and the schema they find there."""

    def __init__(self, conninfo: str, *, prefix: str) -> None:
        self.namespace = namespace_of(prefix)
        self._steps = migrations(prefix)
        address, self.answer_timeout_s = _without_timeout(conninfo)
        try:
            given = conninfo_to_dict(address)
        except psycopg.ProgrammingError as problem:
            raise _unreadable(problem) from None
        # What libpq takes for a host may be the rest of a password that was not escaped.
        if not _ports.fullmatch(str(given.get("port") or "")) or "@" in str(given.get("host") or ""):
            raise _unreadable()
        _check_certificates(given)
        self.place = f"PostgreSQL at {given.get('host') or 'localhost'}:{given.get('port') or 5432}"
        self.conninfo = make_conninfo(
            "", **{"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "holdfast", **KEEPALIVE, **given}
        )
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._lent: list[Connection] = []
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

    def converse(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in a `conversation`, for work that must not be done twice: if the reply to the commit
        is lost, this raises instead of retrying, because the commit may have succeeded.
        """

        def whole(connection: Connection) -> T:
            is_done = False
            try:
                with conversation(connection):
                    answer = work(connection)
                    is_done = True
            except psycopg.Error as problem:
                if is_done and _is_lost(problem, connection):
                    raise self._translated(problem, connection) from problem
                raise
            return answer

        return self._patiently(whole)

    def open(self, first: bytes | None = None) -> Connection:
        """One more connection, for the caller alone, on which this statement was executed."""
        try:
            connection = Connection.connect(self.conninfo, autocommit=True, prepare_threshold=None)
            connection.patience_s = self.answer_timeout_s
            if first is not None:
                connection.execute(first)
            else:
                # Behind a pooler, the session may be one that somebody listens on; the driver would keep all it hears.
                connection.add_notify_handler(_ignore)
                # A pooler answers with a number of its own making, since it has to tell one client from another.
                [session] = connection.execute("SELECT pg_backend_pid()").fetchone() or [None]
                connection.prepare_threshold = WHEN_TOLD if session == connection.info.backend_pid else None
        except psycopg.Error as problem:
            raise BackendUnavailable(f"{self.place} cannot be reached: {_said(problem)}{_advice(problem)}") from None
        return connection

    def lend(self) -> Connection:
        """A connection for the caller alone, until `take_back`."""
        if not self._has_schema:
            self.create_schema()
        while True:
            connection, is_fresh = self._take(self._lent)
            try:
                if not is_fresh:
                    connection.execute("")  # it may have died since it was used
            except NoAnswer as problem:
                raise self._translated(problem, connection) from problem
            except psycopg.Error:
                connection.close()
            else:
                connection.prepare_threshold = None  # what others set in the session would change plans of ours
                return connection

    def take_back(self, connection: Connection) -> None:
        """Keep it for the next, without what others may have set in its session."""
        connection.patience_s = self.answer_timeout_s
        with suppress(psycopg.Error):
            connection.row_factory = tuple_row
            connection.cursor_factory = psycopg.Cursor
            if connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
                connection.execute("DISCARD ALL")
                self._give_back(connection, self._lent)
                return
        with suppress(psycopg.Error):
            connection.close()

    @contextmanager
    def translating(self, connection: Connection) -> Generator[None]:
        """What the driver raises inside, in our words; a silent server is given up again."""
        connection.patience_s = self.answer_timeout_s
        try:
            yield
        except psycopg.Error as problem:
            raise self._translated(problem, connection) from problem

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program, or the server does not answer."""
        check_current(self._patiently(self._known_version, prepares=False), self._steps, self.place)

    def describe(self) -> EngineInfo:
        """What the server is, and what of ours is there; nothing is made by asking."""
        return self._patiently(self._describe, prepares=False)

    def _describe(self, connection: Connection) -> EngineInfo:
        asked = (
            "SELECT current_setting('fsync'), current_setting('synchronous_commit'), "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
        fsync, commit, clock_us = connection.execute(asked).fetchone() or ("", "", None)
        # All others than `off` wait for this server's disk, and some for that of another one, too.
        waits = "off" if commit == "off" else "on"
        return EngineInfo(
            server=f"PostgreSQL {connection.info.parameter_status('server_version')}",
            names=f"{self.namespace}.…",
            schema=self._version(connection),
            known_schema=self._steps[-1].number,
            settings={"fsync": fsync, "synchronous_commit": commit},
            survives=DURABILITY["fsync off" if fsync == "off" else f"fsync on, synchronous_commit {waits}"],
            clock_us=clock_us,
        )

    def create_schema(self) -> None:
        """Create the tables or bring them up to date; whoever comes first does it, the others find it done."""
        self._patiently(self._migrate, prepares=False)
        self._has_schema = True

    def close(self) -> None:
        with self._lock:
            idle = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
        if self._pid == os.getpid():
            for connection in idle:
                connection.close()

    def _patiently(self, work: Callable[[Connection], T], *, prepares: bool = True) -> T:
        if prepares and not self._has_schema:
            self.create_schema()
        failures = 0
        while True:
            connection, is_fresh = self._take(self._idle)
            try:
                answer = work(connection)
            except _IN_THE_WAY as problem:
                failures += 1
                if failures > RETRIES:
                    raise BackendUnavailable(f"{self.place} is too busy: {_said(problem)}") from problem
                time.sleep(random.uniform(0.001, 0.02) * failures)
            except psycopg.Error as problem:
                # A connection that was kept may have died meanwhile, with all others of its age.
                if is_fresh or isinstance(problem, NoAnswer) or not _is_lost(problem, connection):
                    raise self._translated(problem, connection) from problem
                connection.close()
                self.close()
            else:
                return answer
            finally:
                self._give_back(connection, self._idle)

    def _take(self, idle: list[Connection]) -> tuple[Connection, bool]:
        with self._lock:
            if self._pid != os.getpid():
                # What was inherited through a fork belongs to the parent; psycopg leaves it alone.
                self._idle.clear()
                self._lent.clear()
                self._pid = os.getpid()
            while idle:
                connection = idle.pop()
                if not connection.closed:
                    return connection, False
                connection.close()
        return self.open(), True

    def _give_back(self, connection: Connection, idle: list[Connection]) -> None:
        if not connection.closed and connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            with self._lock:
                if len(idle) < MOST_IDLE and self._pid == os.getpid():
                    idle.append(connection)
                    return
        with suppress(psycopg.Error):
            connection.close()

    def _translated(self, problem: psycopg.Error, connection: Connection) -> BackendError:
        if isinstance(problem, NoAnswer):
            self.close()  # the others are no better; a new one may lead to a server that took over
            return BackendUnavailable(f"{self.place} has not answered for {self.answer_timeout_s:g} s")
        if _is_lost(problem, connection):
            connection.close()  # nobody shall have it again
            return BackendUnavailable(f"{self.place} is gone: {_said(problem)}")
        if isinstance(problem, (psycopg.InterfaceError, *_NOT_NOW)):
            return BackendUnavailable(f"{self.place} does not serve us: {_said(problem)}")
        if isinstance(problem, errors.UndefinedTable | errors.InvalidSchemaName):
            self._has_schema = False
            return BackendError(f"{self.place} has no tables in '{self.namespace}' any more: run  holdfast migrate")
        if isinstance(problem, errors.InsufficientPrivilege):
            return BackendError(
                f"{self.place}: this user may not do that ({_said(problem)}): grant USAGE on the schema "
                f"'{self.namespace}', and SELECT, INSERT, UPDATE and DELETE on its tables"
            )
        return BackendError(f"{self.place}: {_said(problem)}")

    def _migrate(self, connection: Connection) -> None:
        if self._known_version(connection) == self._steps[-1].number:
            return
        # An index over all there is takes its time, and so may whoever came first.
        connection.patience_s = None
        try:
            with connection.transaction():
                # Held until the end of the transaction; it is the name of our tables, so it is nobody else's.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"holdfast {self.namespace}"])
                version = self._known_version(connection)
                for step in self._steps:
                    if step.number > version:
                        connection.execute(step.sql.encode())
        except errors.DuplicateTable as problem:
            raise self._of_others(problem) from problem
        except errors.InsufficientPrivilege as problem:
            raise BackendError(
                f"{self.place}: this user may not create tables ({_said(problem)}): let somebody who may run "
                "holdfast migrate"
            ) from problem
        finally:
            connection.patience_s = self.answer_timeout_s

    def _version(self, connection: Connection) -> int:
        # Looked for among the rows, for a session remembers of a name that it was not there (to_regclass) as long as it
        # locks no table; and this one may have waited meanwhile until another had made it.
        asked = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema'"
        if connection.execute(asked, [self.namespace]).fetchone() is None:
            return 0
        try:
            row = connection.execute(self.sql("SELECT coalesce(max(version), 0) FROM holdfast.schema")).fetchone()
        except errors.UndefinedColumn as problem:
            raise self._of_others(problem) from problem
        version: int = row[0] if row else 0
        return version

    def _of_others(self, problem: psycopg.Error) -> BackendError:
        return BackendError(
            f"{self.place} has tables of another program in '{self.namespace}' ({_said(problem)}): give Holdfast a "
            "prefix of its own (?prefix=… in the URL, or the setting table-prefix)"
        )

    def _known_version(self, connection: Connection) -> int:
        """The version, unless it is newer than what this program knows."""
        if connection.info.server_version < MIN_VERSION:
            raise BackendError(f"{self.place} is version {connection.info.server_version}; Holdfast needs 12 or newer")
        return known_version(self._version(connection), self._steps, self.place)


@contextmanager
def conversation(connection: Connection) -> Generator[None]:
    """A transaction in a pipeline: a round trip is made only where an answer is read, and to commit."""
    try:
        with connection.pipeline():
            connection.execute(b"BEGIN")
            yield
            connection.execute(b"COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise


def _ignore(_: psycopg.Notify) -> None:
    """Who did not ask for an announcement has no use for it."""


def _without_timeout(conninfo: str) -> tuple[str, float]:
    """The address without the only option that is not libpq's: how long a reply may take."""
    address, timeout = without_option(conninfo, "timeout")
    return address, ANSWER_TIMEOUT_S if timeout is None else seconds_of("timeout", timeout)


def _unreadable(problem: psycopg.Error | None = None) -> ConfigError:
    """What to say of an address; what the parser says could quote a piece of a password, unless it names an option."""
    unknown = _unknown_option.search(str(problem))
    why = f"; libpq knows no option {unknown.group(1)!r}, and Holdfast only prefix and timeout" if unknown else ""
    return ConfigError(
        f"the URL of the PostgreSQL server cannot be read{why}: write postgresql://user:password@host:5432/database, "
        "and escape special characters of the password"
    )


def _check_certificates(given: Mapping[str, Any]) -> None:
    """Refuse files that are not there: to the driver, that is a server that cannot be reached."""
    for option in ("sslrootcert", "sslcert", "sslkey"):
        path = given.get(option)
        if path and path != "system" and not os.access(path, os.R_OK):
            raise ConfigError(f"{option}={path} is no file that can be read here: name one in PEM format")


def _advice(problem: psycopg.Error) -> str:
    """What to do about a handshake that failed."""
    said = str(problem)
    if "certificate verify failed" in said or "does not match host name" in said:
        return "; name the authority that signed its certificate (sslrootcert), and the host as the certificate does"
    if "does not support SSL" in said:
        return "; set it up with a certificate (ssl = on), or leave sslmode out of the URL"
    return ""


def _is_lost(problem: psycopg.Error, connection: Connection) -> bool:
    """Whether the server is gone. In the middle of a pipeline, the driver may say only that it could not be ended."""
    return connection.broken or (isinstance(problem, psycopg.OperationalError) and problem.sqlstate is None)


def _said(problem: psycopg.Error) -> str:
    """What the server said, in one line; libpq never repeats a password."""
    return " ".join(str(problem).split()) or type(problem).__name__


class _Repetition(logging.Filter):
    """What the driver logs about the end of a block on a connection of ours that is gone: its callers know already."""

    def filter(self, record: logging.LogRecord) -> bool:
        block = record.args[0] if isinstance(record.args, tuple) and record.args else None
        connection = getattr(block, "_conn", None)  # of a pipeline or a transaction
        return not (isinstance(connection, Connection) and connection.closed)


logging.getLogger("psycopg").addFilter(_Repetition())
