"""Connections to PostgreSQL: opened when needed, pooled for reuse, never held while a handler runs.

Nothing here needs a session: every call is one transaction, so a pooler that assigns each transaction another session
(PgBouncer in transaction mode) works. Work that failed because a connection was stale or because of a deadlock is
retried here: every verb of an engine may be repeated. A server that stops responding is given up: by itself, the driver
waits for a reply as long as the network holds. The server in turn gives up a client that stops in a `conversation`.
"""

import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.generators import send
from psycopg.rows import tuple_row

from holdfast.errors import BackendError, BackendUnavailable, ConfigError
from holdfast.queues.addresses import seconds_of, without_option
from holdfast.queues.contract import EngineInfo
from holdfast.queues.engines.postgres.migrations import migrations, namespace_of
from holdfast.queues.engines.tables.migrations import check_current, known_version
from holdfast.queues.engines.tables.rows import Row

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 10.0
# How often a wait checks whether it has timed out or was interrupted.
LOOK_EVERY_S: Final = 0.1
# A server that vanished without closing its connections is detected within half a minute, during any wait.
KEEPALIVE: Final = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# Only statements executed with `prepare=True` are prepared, no matter how often the others are executed.
WHEN_TOLD: Final = 2**31
MOST_IDLE: Final = 8
RETRIES: Final = 8
BUSY_LIMIT_S: Final = 5.0
MIN_VERSION: Final = 120_000
# A row may be locked by a process that does not respond. While we wait for it, our leased rows are locked and cannot be
# renewed, so we restart the transaction; a handler's cannot be restarted, and waits until the other is given up.
LOCK_TIMEOUT_S: Final = 1
LAST_LOCK_TIMEOUT_S: Final = 6
# A client that was stopped in a transaction, or whose host was lost, holds its locks for at most this long.
IDLE_TIMEOUT_S: Final = 3
DURABILITY: Final = {
    "fsync on, synchronous_commit on": "process crash and power loss (every commit is fsynced)",
    "fsync on, synchronous_commit off": (
        "a crash of Holdfast's processes; if the server or the machine crashes, jobs of the last second are lost"
    ),
    "fsync off": "process crash; power loss can corrupt the whole database",
}
"""What an accepted job survives, by the server's settings."""

_ports = re.compile(r"[0-9,]*")
_unknown_option = re.compile(r'invalid URI query parameter: "(\w+)"')
_parameter = re.compile(r"(?<!:):([a-z_]+)")
# There is no error code before the connection is open. The last two are PgBouncer's.
_refused = re.compile(
    r"does not exist|authentication failed|no pg_hba.conf entry|not permitted to log in|no password supplied"
    r"|no such user|no such database"
)

# This transaction conflicted with another one and was rolled back.
_IN_THE_WAY: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
# The server responds but cannot serve: it is starting, stopping, full or read-only, or our session was terminated.
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
    """The server did not reply in time. The statement may have been executed, or may still be."""


class Connection(psycopg.Connection[Row]):
    """A connection that gives up a server that stops responding."""

    patience_s: float | None = None
    """How long to wait for a reply without receiving anything; None: no limit."""
    unsent: psycopg.Pipeline | None = None
    """The pipeline whose statements are sent with the next read; see `sent_together`."""

    def wait(self, gen: PQGen[T], interval: float = LOOK_EVERY_S, timeout: float | None = None) -> T:
        try:
            return self._wait(gen, interval, timeout)
        except BaseException:
            # Otherwise the end of a pipeline would fail where it cannot be caught, and be written to stderr.
            with suppress(Exception):
                gen.close()
            raise

    def _wait(self, gen: PQGen[T], interval: float, timeout: float | None) -> T:
        if timeout is not None:  # by psycopg since 3.3.6, for notifications, which may never arrive
            return super().wait(gen, interval, timeout)
        if self.unsent is not None:
            if getattr(gen, "__name__", "") == "_execute_gen":
                return self._put(gen, self.unsent)
            pipeline, self.unsent = self.unsent, None
            try:
                self._wait(self.synced(pipeline), interval, None)
            finally:
                self.unsent = pipeline
        if self.patience_s is None:
            return super().wait(gen, interval)
        try:
            wanted = next(gen)
        except StopIteration as end:  # most statements in a pipeline need no wait
            answer: T = end.value
            return answer
        return super().wait(self._listening(gen, wanted, self.patience_s), interval)

    def _put(self, gen: PQGen[T], pipeline: psycopg.Pipeline) -> T:
        """Put a statement into the driver's buffer. By itself, the driver would also send it."""
        try:
            next(gen)
        except StopIteration as end:
            answer: T = end.value
            return answer
        gen.close()
        while pipeline.command_queue:
            pipeline.command_queue.popleft()()
        return cast("T", None)

    def synced(self, pipeline: Any) -> PQGen[None]:
        """Send what was put into the buffer, and a sync, in one packet. Then read all replies: nothing may follow the
        sync, because the server would no longer count the time.
        """
        self.pgconn.pipeline_sync()
        pipeline.result_queue.append(None)
        yield from send(self.pgconn)
        yield from pipeline._fetch_gen(flush=False)

    def _listening(self, gen: PQGen[T], wanted: Any, patience_s: float) -> PQGen[T]:
        """Continue until the server has been silent for too long; the connection is then closed."""
        silent_since: float | None = None
        try:
            while True:
                ready = yield wanted
                if ready:
                    silent_since = None
                elif silent_since is None:
                    silent_since = time.monotonic()
                elif time.monotonic() - silent_since >= patience_s:
                    # A reply that still arrives would be taken for the reply to the next statement.
                    self.pgconn.finish()
                    raise NoAnswer(f"no reply for {patience_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer


class PostgresConnections:
    """The connections of this process to one server, and the schema there."""

    def __init__(self, conninfo: str, *, prefix: str) -> None:
        self.namespace = namespace_of(prefix)
        self._steps = migrations(prefix)
        address, self.answer_timeout_s = _without_timeout(conninfo)
        try:
            given = conninfo_to_dict(address)
        except psycopg.ProgrammingError as problem:
            raise _unreadable(problem) from None
        # What libpq parses as a host may be the rest of a password that was not escaped.
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
        """A statement in our namespace, with its parameters in the driver's syntax."""

    def run(self, work: Callable[[Connection], T], *, prepares: bool = True) -> T:
        """Run `work(connection)` without a transaction: each statement commits by itself. A missing schema is created
        first, unless `prepares` is False.
        """
        if prepares and not self._has_schema:
            self.create_schema()
        give_up_at = time.monotonic() + BUSY_LIMIT_S
        failures = 0
        while True:
            connection, is_fresh = self._take(self._idle)
            try:
                answer = work(connection)
            except _IN_THE_WAY as problem:
                failures += 1
                if failures > RETRIES or time.monotonic() >= give_up_at:
                    raise BackendUnavailable(f"{self.place} is too busy: {_line(problem)}") from problem
                time.sleep(random.uniform(0.001, 0.02) * failures)
            except psycopg.Error as problem:
                # A pooled connection may have been closed while it was idle, and with it all others of its age.
                if is_fresh or isinstance(problem, NoAnswer) or not _is_lost(problem, connection):
                    raise self._translated(problem, connection) from problem
                connection.close()
                self.close()
            else:
                return answer
            finally:
                self._give_back(connection, self._idle)

    def rows(self, statement: str, query: dict[str, Any] | None = None) -> list[Row]:
        """All rows of one statement, which commits by itself."""
        return self.run(lambda connection: connection.execute(self.sql(statement), query).fetchall())

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in one transaction; it is restarted after a conflict with another one."""

        def whole(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        return self.run(whole)

    def transact_briefly(self, work: Callable[[Connection], T]) -> T:
        """The same in a `conversation`, for work that locks rows which others wait for."""

        def whole(connection: Connection) -> T:
            with conversation(connection):
                return work(connection)

        return self.run(whole)

    def converse(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in a `conversation`, for work that must not be repeated: if the reply to the commit is
        lost, this raises instead of retrying, because the commit may have succeeded.
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

        return self.run(whole)

    def open(self, first: bytes | None = None) -> Connection:
        """A new connection for the caller alone, after executing this statement on it."""
        try:
            connection = Connection.connect(self.conninfo, autocommit=True, prepare_threshold=None)
            connection.patience_s = self.answer_timeout_s
            if first is not None:
                connection.execute(first)
            else:
                # Behind a pooler, the session may be one that another client listens on. Without a handler, the driver
                # would store every notification it receives.
                connection.add_notify_handler(_ignore)
                # A pooler reports its own process id for each client; no statement can be prepared then.
                [session] = connection.execute("SELECT pg_backend_pid()").fetchone() or [None]
                connection.prepare_threshold = WHEN_TOLD if session == connection.info.backend_pid else None
        except psycopg.Error as problem:
            raise self._not_connected(problem) from None
        return connection

    def lend(self) -> Connection:
        """A connection for the caller alone, until it is returned with `take_back`."""
        if not self._has_schema:
            self.create_schema()
        while True:
            connection, is_fresh = self._take(self._lent)
            try:
                if not is_fresh:
                    connection.execute("")  # it may have been closed since it was last used
            except NoAnswer as problem:
                raise self._translated(problem, connection) from problem
            except psycopg.Error:
                connection.close()
            else:
                connection.prepare_threshold = None  # settings of the handler would change the plans of our statements
                return connection

    def take_back(self, connection: Connection) -> None:
        """Return a lent connection to the pool, without the settings of its session."""
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
        """Translate the driver's exceptions; a server that stops responding is given up again."""
        connection.patience_s = self.answer_timeout_s
        try:
            yield
        except psycopg.Error as problem:
            raise self._translated(problem, connection) from problem

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program, or if the server is unavailable."""
        check_current(self.run(self._known_version, prepares=False), self._steps, self.place)

    def describe(self) -> EngineInfo:
        """The server, its settings and the version of our schema there; nothing is created."""
        return self.run(self._describe, prepares=False)

    def _describe(self, connection: Connection) -> EngineInfo:
        asked = (
            "SELECT current_setting('fsync'), current_setting('synchronous_commit'), "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
        fsync, commit, clock_us = connection.execute(asked).fetchone() or ("", "", None)
        # Every other value than `off` waits for this server's disk, and some also for another server's.
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
        """Create or update the tables. Of several processes, the first one does it."""
        self.run(self._migrate, prepares=False)
        self._has_schema = True

    def close(self) -> None:
        with self._lock:
            idle = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
        if self._pid == os.getpid():
            for connection in idle:
                connection.close()

    def _take(self, idle: list[Connection]) -> tuple[Connection, bool]:
        with self._lock:
            if self._pid != os.getpid():
                # Connections inherited through a fork belong to the parent; psycopg does not close them.
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
            self.close()  # the others lead to the same server; a new one may lead to its replacement
            return BackendUnavailable(f"{self.place} has not responded for {self.answer_timeout_s:g} s")
        if _is_lost(problem, connection):
            connection.close()
            return BackendUnavailable(f"{self.place} closed the connection: {_line(problem)}")
        if isinstance(problem, (psycopg.InterfaceError, *_NOT_NOW)):
            return BackendUnavailable(f"{self.place} is refusing requests: {_line(problem)}")
        if isinstance(problem, errors.UndefinedTable | errors.InvalidSchemaName):
            self._has_schema = False
            return BackendError(f"{self.place} no longer has tables in '{self.namespace}': run  holdfast migrate")
        if isinstance(problem, errors.InsufficientPrivilege):
            return BackendError(
                f"{self.place}: this user lacks a privilege ({_line(problem)}): grant USAGE on the schema "
                f"'{self.namespace}', and SELECT, INSERT, UPDATE and DELETE on its tables"
            )
        return BackendError(f"{self.place}: {_line(problem)}")

    def _not_connected(self, problem: psycopg.Error) -> BackendError:
        # libpq repeats where the server is, and asks whether it is running.
        reason = _line(problem).rpartition(" failed: ")[2].partition(" Is the server running")[0]
        if _refused.search(reason):
            return BackendError(
                f"{self.place} refused the connection: {reason}; check the user, the password and the database in the "
                "URL"
            )
        return BackendUnavailable(f"{self.place} cannot be reached: {reason}{_advice(problem)}")

    def _migrate(self, connection: Connection) -> None:
        if self._known_version(connection) == self._steps[-1].number:
            return
        # Creating an index on a large table takes long, and so may the process that holds the lock.
        connection.patience_s = None
        try:
            with connection.transaction():
                # Held until the transaction ends. The key contains the name of our schema, so no other program has it.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"holdfast {self.namespace}"])
                version = self._known_version(connection)
                for step in self._steps:
                    if step.number > version:
                        connection.execute(step.sql.encode())
        except errors.DuplicateTable as problem:
            raise self._not_ours(problem) from problem
        except errors.InsufficientPrivilege as problem:
            raise BackendError(
                f"{self.place}: this user may not create tables ({_line(problem)}): run  holdfast migrate  as a user "
                "with that privilege"
            ) from problem
        finally:
            connection.patience_s = self.answer_timeout_s

    def _version(self, connection: Connection) -> int:
        # Queried from the catalog: to_regclass would return a cached "not found" as long as the session locks no table,
        # although another process may have created the table while this one waited.
        asked = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema'"
        if connection.execute(asked, [self.namespace]).fetchone() is None:
            return 0
        try:
            row = connection.execute(self.sql("SELECT coalesce(max(version), 0) FROM holdfast.schema")).fetchone()
        except errors.UndefinedColumn as problem:
            raise self._not_ours(problem) from problem
        version: int = row[0] if row else 0
        return version

    def _not_ours(self, problem: psycopg.Error) -> BackendError:
        return BackendError(
            f"{self.place}: the tables in schema '{self.namespace}' belong to another program ({_line(problem)}): "
            "choose another prefix (?prefix=… in the URL, or the setting table-prefix)"
        )

    def _known_version(self, connection: Connection) -> int:
        if connection.info.server_version < MIN_VERSION:
            version = connection.info.parameter_status("server_version")
            raise BackendError(f"{self.place} is PostgreSQL {version}; Holdfast needs 12 or newer")
        return known_version(self._version(connection), self._steps, self.place)


@contextmanager
def conversation(connection: Connection) -> Generator[None]:
    """A transaction of which only reading a reply and the commit cost a round trip. The server rolls it back if the
    client stops, and lets it wait for a lock only briefly.
    """
    try:
        with sent_together(connection):
            connection.execute(b"BEGIN")
            connection.execute(limits(LOCK_TIMEOUT_S))
            yield
            connection.execute(b"COMMIT")
    except BaseException:
        with suppress(psycopg.Error):
            connection.rollback()
        raise


@contextmanager
def sent_together(connection: Connection) -> Generator[None]:
    """A pipeline whose statements are sent with the next read, in one packet that ends with a sync.

    The server limits how long a transaction may be idle only after a sync. If the driver sent each statement at once,
    a client that is stopped before the sync would hold the locks of its statements without limit.
    """
    with connection.pipeline() as pipeline:
        cast("Any", pipeline)._exit_gen = partial(connection.synced, pipeline)
        connection.unsent = pipeline
        try:
            yield
        finally:
            connection.unsent = None


def limits(lock_timeout_s: int) -> bytes:
    """The statement that limits how long the transaction may be idle, and how long it waits for each lock."""
    return (
        f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_TIMEOUT_S}s', true), "
        f"set_config('lock_timeout', '{lock_timeout_s}s', true)"
    ).encode()


def _ignore(_: psycopg.Notify) -> None:
    """Drop a notification."""


def _without_timeout(conninfo: str) -> tuple[str, float]:
    """The address without the only option that is not libpq's: how long a reply may take."""
    address, timeout = without_option(conninfo, "timeout")
    return address, ANSWER_TIMEOUT_S if timeout is None else seconds_of("timeout", timeout)


def _unreadable(problem: psycopg.Error | None = None) -> ConfigError:
    """The error for an invalid address. The parser's own message may quote part of a password, unless it names an
    option.
    """
    unknown = _unknown_option.search(str(problem))
    why = (
        f" (unknown option {unknown.group(1)!r}; valid options: prefix, timeout and those of libpq)" if unknown else ""
    )
    return ConfigError(
        f"the URL of the PostgreSQL server is invalid{why}: write postgresql://user:password@host:5432/database, and "
        "escape special characters in the password"
    )


def _check_certificates(given: Mapping[str, Any]) -> None:
    """Refuse missing files: the driver would report that the server cannot be reached."""
    for option in ("sslrootcert", "sslcert", "sslkey"):
        path = given.get(option)
        if path and path != "system" and not os.access(path, os.R_OK):
            raise ConfigError(f"{option}={path} is not a readable file; name a file in PEM format")


def _advice(problem: psycopg.Error) -> str:
    """What to do about a failed TLS handshake."""
    message = str(problem)
    if "certificate verify failed" in message or "does not match host name" in message:
        return "; set sslrootcert to the CA that signed its certificate, and use the host name in the certificate"
    if "does not support SSL" in message:
        return "; enable TLS on the server (ssl = on), or leave sslmode out of the URL"
    return ""


def _is_lost(problem: psycopg.Error, connection: Connection) -> bool:
    """Whether the connection was lost. Inside a pipeline, the driver may only report that it could not be closed."""
    return connection.broken or (isinstance(problem, psycopg.OperationalError) and problem.sqlstate is None)


def _line(problem: psycopg.Error) -> str:
    """The server's message in one line; libpq never repeats a password."""
    return " ".join(str(problem).split()) or type(problem).__name__


class _Repetition(logging.Filter):
    """Suppresses what the driver logs when a block ends on a lost connection: the caller gets an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        block = record.args[0] if isinstance(record.args, tuple) and record.args else None
        connection = getattr(block, "_conn", None)  # the block is a pipeline or a transaction
        return not (isinstance(connection, Connection) and connection.closed)


logging.getLogger("psycopg").addFilter(_Repetition())
