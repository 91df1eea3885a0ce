"""One SQLite file, opened so that a committed job stays committed: connections, transactions, checkpoints, schema.

WAL with `synchronous=FULL`; every write is `BEGIN IMMEDIATE`; one connection per thread and process. SQLite before
3.51.3 can corrupt a WAL that one connection resets while another checkpoints it, so checkpoints run only under the
write lock: automatic checkpoints are off, and the connection whose commit exceeds a limit runs one
(docs/decisions/0003-sqlite-checkpoints.md).
"""

import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, ForeignDatabase
from holdfast.queues import addresses
from holdfast.queues.addresses import is_missing
from holdfast.queues.contract import EngineInfo
from holdfast.queues.engines.sqlite.migrations import migrations
from holdfast.queues.engines.tables.migrations import check_current, check_prefix, known_version
from holdfast.queues.engines.tables.rows import Row

if TYPE_CHECKING:
    from holdfast.queues.engines.sqlite.watch import CommitWatch

T = TypeVar("T")

MIN_VERSION: Final = (3, 37, 0)
BUSY_TIMEOUT_S: Final = 5.0
BUSY_LIMIT_S: Final = 30.0
FORK_PATIENCE_S: Final = 10.0
WAL_LIMIT_BYTES: Final = 16 * 1024 * 1024
CHECKPOINT_PATIENCE_S: Final = 0.2
WAL_KEPT_BYTES: Final = 1024 * 1024
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.s3fs"}
)
DURABILITY: Final = {"always": "process crash and power loss (every commit is fsynced)"}
"""What an accepted job survives, by the engine's settings; here Holdfast chooses them."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

# Connections inherited through fork belong to the parent: using or closing them here would break its locks.
_inherited: list["_Handle"] = []


class _Handle:
    """A connection, the process it belongs to, and whether it is in use; it is closed when its thread exits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.pid = os.getpid()
        self.is_used = False

    def close(self) -> None:
        if self.pid == os.getpid():
            self.connection.close()

    def __del__(self) -> None:
        with suppress(sqlite3.Error):
            self.close()


class SqliteFile:
    """The file and its connections.

    With `only_looks`, a missing file is not created: reads and writes use an empty database in memory instead.
    """

    def __init__(self, path: Path, *, clock: Clock, prefix: str, only_looks: bool = False) -> None:
        if sqlite3.sqlite_version_info < MIN_VERSION:
            raise ConfigError(
                f"this Python is linked with SQLite {sqlite3.sqlite_version}; Holdfast needs "
                f"{'.'.join(map(str, MIN_VERSION))} or newer: use a newer Python build"
            )
        check_prefix(prefix)
        self.path = path.absolute()
        self.prefix = prefix

        @cache
        def with_prefix(statement: str) -> str:
            return statement.replace("holdfast_", prefix)

        self.sql: Callable[[str], str] = with_prefix
        """A statement with the table names of this file."""
        self._clock = clock
        self._only_looks = only_looks
        # SQLite creates its log next to the file itself, not next to a link to it.
        self._wal_path = Path(f"{os.path.realpath(self.path)}-wal")
        self._checkpoint_above = WAL_LIMIT_BYTES
        self._local = threading.local()
        self._handles: weakref.WeakSet[_Handle] = weakref.WeakSet()
        self._watches: weakref.WeakSet[CommitWatch] = weakref.WeakSet()
        self._open_lock = threading.Lock()
        self._is_open = False
        self._is_forking = False
        self._holds_open_lock = False
        _files.add(self)

    def connection(self) -> sqlite3.Connection:
        """This thread's connection, to a file that is known to be ours."""
        return self._handle().connection

    def _handle(self) -> _Handle:
        handle: _Handle | None = getattr(self._local, "handle", None)
        if self._is_open and handle is not None and handle.pid == os.getpid():
            return handle
        if handle is not None and handle.pid != os.getpid():
            _inherited.append(handle)
        # Every connection is opened under the lock. A fork takes the lock first, so that none is opened during it.
        with self._open_lock:
            if not self._is_open:
                handle = self._prepare()
                self._is_open = True
                return handle
            return self._connect()

    def _used_handle(self) -> _Handle:
        """This thread's connection, marked as in use; during a fork, this waits.

        No lock is taken: a job's timeout can be raised anywhere in here, and would leave it locked.
        """
        while True:
            handle = self._handle()
            handle.is_used = True
            # A fork may have started, or even finished, since the handle was looked up.
            is_current = getattr(self._local, "handle", None) is handle
            if is_current and not self._is_forking:
                return handle
            handle.is_used = False
            time.sleep(0.001)

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work(connection)` without a transaction: each statement commits by itself."""
        try:
            if self._only_looks and is_missing(self.path):
                with closing(self._nothing()) as connection:
                    return work(connection)
            handle = self._used_handle()
            try:
                return _as_text(handle.connection, lambda: work(handle.connection))
            finally:
                handle.is_used = False
        except sqlite3.Error as problem:
            raise self._translated(problem) from problem

    def rows(self, statement: str, values: Any = ()) -> list[Row]:
        """All rows of one query."""
        return self.run(lambda connection: connection.execute(self.sql(statement), values).fetchall())

    def snapshot(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work(connection)`, whose queries all read the same state of the file."""

        def whole(connection: sqlite3.Connection) -> T:
            try:
                connection.execute("BEGIN")
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

        return self.run(whole)

    def transact(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run `work(connection, now)` in one transaction, and again while others write. The clock is read after the
        write lock is held.
        """

        def whole(connection: sqlite3.Connection) -> T:
            answer = _patiently(lambda: self._transact(connection, work))
            self._checkpoint_if_large(connection)
            return answer

        return self.run(whole)

    def _transact(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection, int], T]) -> T:
        try:
            # Inside the try: a job's timeout can be raised as soon as the lock is held.
            connection.execute("BEGIN IMMEDIATE")
            answer = work(connection, self._clock.now_us())
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                # A failing disk can also refuse the rollback; SQLite then rolls back when the file is next opened.
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        return answer

    def data_version(self, connection: sqlite3.Connection) -> int:
        """A number that changes when another connection has committed."""
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        return version

    def watch(self) -> "CommitWatch":
        """This thread's watch on other connections' commits; it is closed with its thread or with the file."""
        from holdfast.queues.engines.sqlite.watch import CommitWatch  # imported here: only workers wait for commits

        watch: CommitWatch | None = getattr(self._local, "watch", None)
        if watch is None:
            self.run(self.data_version)  # opening the file creates the directory to watch
            watch = CommitWatch(self._wal_path, self._clock)
            self._watches.add(watch)
            self._local.watch = watch
        return watch

    def checkpoint(self) -> None:
        """Write the WAL back into the file; it has no effect while others write or read."""
        self.run(self._checkpoint)

    def _checkpoint_if_large(self, connection: sqlite3.Connection) -> None:
        try:
            size = os.stat(self._wal_path).st_size
        except OSError:
            return
        if size > self._checkpoint_above:
            # Other connections can block the checkpoint: then retry only after more has been written.
            with suppress(sqlite3.Error):
                is_complete = self._checkpoint(connection)
                self._checkpoint_above = WAL_LIMIT_BYTES if is_complete else size + WAL_LIMIT_BYTES // 4

    def _checkpoint(self, connection: sqlite3.Connection) -> bool:
        """Checkpoint under a write lock that a second connection holds; True if the whole WAL was written back.

        SQLite's own modes that take the lock continue without it if they do not get it, so none of them is safe. The
        next commit restarts the WAL and truncates it to `journal_size_limit`.
        """
        guard = sqlite3.connect(self.path, timeout=CHECKPOINT_PATIENCE_S, isolation_level=None)
        try:
            guard.execute("PRAGMA wal_autocheckpoint=0")
            guard.execute("BEGIN IMMEDIATE")
            try:
                _, frames, written = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                guard.execute("ROLLBACK")
        except sqlite3.OperationalError as problem:
            if _code(problem) in _BUSY:
                return False
            raise
        finally:
            guard.close()
        return bool(frames == written)

    def check_schema(self) -> None:
        """Raise if the tables are older or newer than this program."""
        check_current(self.run(self._version), migrations(self.prefix), self.path)

    def describe(self) -> EngineInfo:
        """The file, its settings and the version of our schema; nothing is created or changed."""
        version, settings = 0, dict[str, str]()
        try:
            # Under the lock, like every connection: none may be open during a fork.
            with self._open_lock:
                if self.path.exists():
                    address = f"{self.path.as_uri()}?mode=rw"
                    with closing(sqlite3.connect(address, timeout=BUSY_TIMEOUT_S, uri=True)) as connection:
                        version = self._version(connection)
                        settings["journal_mode"] = connection.execute("PRAGMA journal_mode").fetchone()[0]
        except sqlite3.Error as problem:
            raise self._translated(problem) from problem
        return EngineInfo(
            server=f"SQLite {sqlite3.sqlite_version}",
            names=f"{self.prefix}…",
            schema=version,
            known_schema=migrations(self.prefix)[-1].number,
            settings=settings,
            survives=DURABILITY["always"],
        )

    def create_schema(self) -> None:
        """Create or update the tables, even in a database that other programs use."""
        with self._open_lock:
            self._prepare(may_share=True)
            self._is_open = True

    def before_fork(self) -> None:
        """Wait until no connection is in use, close all of them, and let none be opened.

        SQLite has its own table of the locks a process holds. A forked child would inherit that table but not the
        locks, and believe that it holds them: so no connection may be open during a fork.
        """
        self._is_forking = True
        self._holds_open_lock = self._open_lock.acquire(timeout=FORK_PATIENCE_S)
        give_up_at = time.monotonic() + FORK_PATIENCE_S
        while any(handle.is_used for handle in list(self._handles)) and time.monotonic() < give_up_at:
            time.sleep(0.001)
        self._close_unused()

    def after_fork(self, *, in_child: bool) -> None:
        """Let connections be opened again. Threads that wait for the lock exist only in the parent."""
        if in_child:
            self._open_lock = threading.Lock()
            # Of threads that were waiting; closing a watch here does not close the parent's.
            for watch in list(self._watches):
                watch.close()
        elif self._holds_open_lock:
            self._open_lock.release()
        self._is_forking = False

    def close(self) -> None:
        """Close every connection of this process."""
        with self._open_lock:  # a connection that is being opened would be closed before its first use
            self._close_unused()

    def _close_unused(self) -> None:
        self._is_open = False
        # In this order: a thread that marks its connection as used after the check below finds it outdated. One in use
        # is closed by the frame that uses it: closing it during a statement would crash the process. The same is true
        # of a watch that a thread waits on; all other watches are referenced only here.
        self._local = threading.local()
        for handle in list(self._handles):
            if not handle.is_used:
                handle.close()

    def _prepare(self, *, may_share: bool = False) -> _Handle:
        _refuse_network_file_system(self.path)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(self.path)
        except OSError as problem:
            raise BackendUnavailable(f"cannot open {self.path} for writing: {problem.strerror}") from problem
        try:
            handle = self._connect()
            handle.is_used = True
            try:
                self._migrate(handle.connection, may_share=may_share)
            finally:
                handle.is_used = False
        except sqlite3.Error as problem:
            raise self._translated(problem) from problem
        return handle

    def _connect(self) -> _Handle:
        handle = _Handle(self.open())
        self._handles.add(handle)
        self._local.handle = handle
        return handle

    def open(self) -> sqlite3.Connection:
        """A new connection for the caller alone; without a transaction, each statement commits by itself."""
        try:
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA mmap_size=0")
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
        except sqlite3.Error as problem:
            raise self._translated(problem) from problem
        return connection

    def _nothing(self) -> sqlite3.Connection:
        """An empty database in memory with our tables."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        self._transact(connection, self._apply)
        return connection

    def begin(self) -> sqlite3.Connection:
        """A new connection with an open write transaction; no other connection can write before it ends."""
        connection = self.open()
        try:
            _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error as problem:
            connection.close()
            raise self._translated(problem) from problem
        return connection

    def commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as problem:
            raise self._translated(problem) from problem

    def _migrate(self, connection: sqlite3.Connection, *, may_share: bool) -> None:
        is_current = self._known_version(connection) == migrations(self.prefix)[-1].number
        if not is_current and not may_share:
            self._refuse_a_foreign_database(connection)
        # Even if the schema is current: another tool may have created the tables without switching to WAL.
        mode: str = _patiently(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        if mode != "wal":
            raise BackendUnavailable(f"{self.path} cannot use a write-ahead log (its journal mode remains '{mode}')")
        if not is_current:
            _patiently(lambda: self._transact(connection, self._apply))

    def _refuse_a_foreign_database(self, connection: sqlite3.Connection) -> None:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and f"{self.prefix}schema" not in tables:
            raise ForeignDatabase(
                f"{self.path} belongs to another program (it has the table '{min(tables)}'): choose another "
                f"file, or create Holdfast's tables ({self.prefix}…) in it with  holdfast migrate"
            )

    def _apply(self, locked: sqlite3.Connection, _now: int) -> None:
        """Update the schema under the write lock, unless another process has already done so."""
        version = self._known_version(locked)
        for migration in migrations(self.prefix):
            if migration.number > version:
                # One by one: `executescript` would commit the transaction.
                for statement in migration.statements:
                    locked.execute(statement)

    def _version(self, connection: sqlite3.Connection) -> int:
        try:
            query = f"SELECT coalesce(max(version), 0) FROM {self.prefix}schema"
            version: int = connection.execute(query).fetchone()[0]
        except sqlite3.OperationalError as problem:
            if "no such table" in str(problem):
                return 0
            raise
        return version

    def _known_version(self, connection: sqlite3.Connection) -> int:
        return known_version(self._version(connection), migrations(self.prefix), self.path)

    def _translated(self, problem: sqlite3.Error) -> BackendError:
        if isinstance(problem, sqlite3.ProgrammingError) and "closed" in str(problem):
            return BackendUnavailable(f"{self.path} was closed while it was in use")
        match _code(problem):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return BackendUnavailable(f"{self.path} was locked by another process for {BUSY_LIMIT_S:g} s")
            case sqlite3.SQLITE_FULL:
                return BackendUnavailable(f"the disk of {self.path} is full; nothing was changed; free some space")
            case sqlite3.SQLITE_NOTADB:
                return ForeignDatabase(f"{self.path} is not an SQLite database; choose another file")
            case sqlite3.SQLITE_CORRUPT:
                return BackendError(f"{self.path} is corrupt ({problem}); restore it from a backup")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return BackendUnavailable(f"cannot write {self.path} ({problem}); check its owner and mode")
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_PROTOCOL | sqlite3.SQLITE_INTERRUPT | sqlite3.SQLITE_NOMEM:
                return BackendUnavailable(f"{self.path}: {problem}")
            case _:
                return BackendError(f"{self.path}: {problem}")


_files: "weakref.WeakSet[SqliteFile]" = weakref.WeakSet()


def _before_fork() -> None:
    for file in list(_files):
        file.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for file in list(_files):
        file.after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(in_child=False),
        after_in_child=lambda: _after_fork(in_child=True),
    )


def _create(path: Path) -> None:
    """Create the file, readable only by its owner, unless it exists.

    An existing file is not opened: closing it would release the locks of all connections of this process, and another
    process that closes its connection would believe to be the last one, and delete the log that we use.
    """
    try:
        if hasattr(os, "mknod"):
            os.mknod(path, 0o600)
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _patiently(action: Callable[[], T]) -> T:
    """Run an action, and retry while another process holds the lock, for a bounded time, at random intervals.

    SQLite's own busy timeout comes first; it does not cover every case (a snapshot that became stale).
    """
    give_up_at = time.monotonic() + BUSY_LIMIT_S
    while True:
        try:
            return action()
        except sqlite3.Error as problem:
            if _code(problem) not in _BUSY or time.monotonic() >= give_up_at:
                raise
        from random import uniform

        time.sleep(uniform(0.001, 0.02))


def as_json(values: Sequence[object]) -> str:
    """A list as JSON text, for `json_each`."""
    return msgspec.json.encode(values).decode()


def _as_text(connection: sqlite3.Connection, action: Callable[[], T]) -> T:
    """Run an action. If it reads a text that is not UTF-8, run it again with replacement characters."""
    try:
        return action()
    except sqlite3.OperationalError as problem:
        if "decode to UTF-8" not in str(problem):
            raise
    connection.text_factory = _replaced
    try:
        return action()
    finally:
        connection.text_factory = str


def _replaced(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _code(problem: sqlite3.Error) -> int:
    """The primary result code; extended codes carry it in their low byte."""
    return getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _refuse_network_file_system(path: Path) -> None:
    kind = addresses.file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"{path} is on a network file system ({kind}), where SQLite's locks are not reliable: move the file to a "
            "local disk, or use a database server"
        )
