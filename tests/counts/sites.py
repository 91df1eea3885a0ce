"""The engines, each opened by its URL where its work can be counted from outside."""

import os
import sqlite3
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import MICROSECONDS, Clock, ManualClock
from holdfast.queues.contract import Engine
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey

from ..faults.processes import quick_directory, until
from ..servers.mysql import mariadb_for_laws
from ..servers.postgres import postgres_for_laws
from ..servers.redis import RedisServer, redis_for_laws
from ..servers.running import Server
from .listening import PostgresProxy, SocketListener
from .operations import enqueue
from .protocols import MysqlStream, RedisStream

KEY = SigningKey(b"the key of the laboratory, 32 bytes")
# This many jobs exist before anything is counted, so that job numbers have four digits in all statements.
BALLAST = 1000
PREFIX = "counted_"
FILE_CALLS = Path("/proc/thread-self/io")
READS_TO_COUNT = 1  # reading this file is itself a call
WAL_FRAME_HEADER_BYTES = 24
# UNBLOCK is repeated until the blocked connection has been answered: how often is a matter of timing.
UNCOUNTED_COMMANDS = ("cmdstat_info", "cmdstat_client|unblock")


class WatchedClock:
    """A clock that counts how often an engine waits."""

    def __init__(self, clock: ManualClock, before_wait: Callable[[], None] | None = None) -> None:
        self.waits = 0
        self._clock = clock
        self._before_wait = before_wait

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def advance_to_a_whole_second(self) -> None:
        """A fraction of a second is written into messages, and would make them longer."""
        self._clock.advance(1 - self._clock.now_us() % MICROSECONDS / MICROSECONDS)

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        self.waits += 1
        if self._before_wait is not None:
            self._before_wait()
        return self._clock.wait(seconds, descriptors)


class Site(ABC):
    """One engine, and where its work is counted."""

    counted: Sequence[str] = ()
    """The kinds of work that are counted here."""

    def __init__(self) -> None:
        self.clock = WatchedClock(ManualClock())

    @contextmanager
    @abstractmethod
    def engine(self) -> Generator[Engine]:
        """An engine for one operation."""
        yield from ()

    @contextmanager
    def engine_alone(self) -> Generator[Engine]:
        """The same with no other thread at work in this process, to count allocations."""
        with self.engine() as engine:
            yield engine

    @contextmanager
    @abstractmethod
    def counting(self) -> Generator[Counter[str]]:
        """Count the work that is done inside the block."""
        yield Counter()


def opened(url: str, clock: Clock) -> Engine:
    """The engine of a URL."""
    engine, _ = EngineFactory(Keyring([KEY]), clock=clock).open(url)
    engine.create_schema()
    return engine


class MemorySite(Site):
    """Nothing leaves the process: only calls and allocations are counted."""

    @contextmanager
    def engine(self) -> Generator[Engine]:
        engine = opened("memory://", self.clock)
        enqueue(engine, "ballast", BALLAST)
        yield engine
        engine.close()

    @contextmanager
    def counting(self) -> Generator[Counter[str]]:
        yield Counter()


class SqliteSite(Site):
    """A new file for each operation, so that none changes the pages that another one writes."""

    counted = ("statements", "commits", "pages_written", "reads", "writes")

    def __init__(self) -> None:
        super().__init__()
        self._statements = 0
        self._log: Path | None = None

    @contextmanager
    def engine(self) -> Generator[Engine]:
        with quick_directory() as directory, self._traced():
            self._log = directory / "jobs.db-wal"
            engine = opened(f"sqlite:///{directory / 'jobs.db'}", self.clock)
            enqueue(engine, "ballast", BALLAST)
            yield engine
            engine.close()

    @contextmanager
    def _traced(self) -> Generator[None]:
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect

        def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(self._count_statement)
            return connection

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", connect_traced)
            yield

    def _count_statement(self, statement: str) -> None:
        # What a trigger does is reported as a comment.
        self._statements += not statement.startswith("--")

    @contextmanager
    def counting(self) -> Generator[Counter[str]]:
        assert self._log is not None
        counts = Counter[str]()
        statements, log_bytes, (reads, writes) = self._statements, self._log.stat().st_size, file_calls()
        yield counts
        reads_after, writes_after = file_calls()
        counts["reads"], counts["writes"] = reads_after - reads - READS_TO_COUNT, writes_after - writes
        counts["statements"] = self._statements - statements
        counts["pages_written"], counts["commits"] = frames_after(self._log, log_bytes)


def file_calls() -> tuple[int, int]:
    """How many system calls this thread has made so far to read, and to write, files."""
    descriptor = os.open(FILE_CALLS, os.O_RDONLY)
    try:
        lines = os.read(descriptor, 1024).decode().splitlines()
    finally:
        os.close(descriptor)
    numbers = dict(line.split(": ") for line in lines)
    return int(numbers["syscr"]), int(numbers["syscw"])


def frames_after(log: Path, start: int) -> tuple[int, int]:
    """The pages in a write-ahead log from an offset on, and how many commits they belong to."""
    data = log.read_bytes()
    page_bytes: int = struct.unpack_from(">I", data, 8)[0]
    frames = range(start, len(data), WAL_FRAME_HEADER_BYTES + page_bytes)
    # The second number of a frame is the size of the file after a commit, or 0 within a transaction.
    return len(frames), sum(struct.unpack_from(">I", data, frame + 4)[0] != 0 for frame in frames)


class ServerSite(Site):
    """An engine on a server that runs on the test's clock. What is sent to the server is counted."""

    counted: Sequence[str] = ("statements", "round_trips", "bytes_sent")

    def __init__(self, server: Server, port: int | None = None) -> None:
        super().__init__()
        assert server.clock is not None
        server.clock.restart()
        self.clock = WatchedClock(server.clock, self._before_wait)
        self._url = f"{server.url}?prefix={PREFIX}"
        self._engine = opened(self._url.replace(f":{server.port}/", f":{port or server.port}/"), self.clock)
        enqueue(self._engine, "ballast", BALLAST)

    def _before_wait(self) -> None:
        """Nothing has to happen on a server before time passes there."""

    @contextmanager
    def engine(self) -> Generator[Engine]:
        yield self._engine

    def close(self) -> None:
        self._engine.close()


class PostgresSite(ServerSite):
    def __init__(self, server: Server, proxy: PostgresProxy) -> None:
        super().__init__(server, proxy.port)
        self._proxy = proxy

    @contextmanager
    def engine_alone(self) -> Generator[Engine]:
        """Without the proxy, whose threads allocate memory."""
        engine = opened(self._url, self.clock)
        yield engine
        engine.close()

    @contextmanager
    def counting(self) -> Generator[Counter[str]]:
        counts, before = Counter[str](), self._proxy.counts.copy()
        yield counts
        counts.update(self._proxy.counts - before)


class MysqlSite(ServerSite):
    def __init__(self, server: Server, listener: SocketListener) -> None:
        super().__init__(server)
        self._listener = listener

    @contextmanager
    def counting(self) -> Generator[Counter[str]]:
        counts, before = Counter[str](), self._listener.counts.copy()
        with self._listener.listening():
            yield counts
        counts.update(self._listener.counts - before)


class RedisSite(MysqlSite):
    """Also counts the commands on the server: one script can run thousands of them."""

    counted = (*ServerSite.counted, "server_commands")

    def __init__(self, server: RedisServer, listener: SocketListener) -> None:
        self._client = server.client()
        super().__init__(server, listener)

    def _before_wait(self) -> None:
        """Wait until the server has blocked the connection, as it would if time really passed."""
        with self._listener.not_listening():
            until(lambda: self._client.info("clients")["blocked_clients"] > 0, "Redis to block the connection")

    @contextmanager
    def counting(self) -> Generator[Counter[str]]:
        before = self._commands()
        with super().counting() as counts:
            yield counts
        counts["server_commands"] = self._commands() - before

    def _commands(self) -> int:
        calls = {name: told["calls"] for name, told in self._client.info("commandstats").items()}
        return sum(number for name, number in calls.items() if name not in UNCOUNTED_COMMANDS)

    def close(self) -> None:
        super().close()
        self._client.close()


@contextmanager
def postgres_site() -> Generator[Site]:
    server = postgres_for_laws()
    with ExitStack() as stack:
        proxy = PostgresProxy(server.port)
        stack.callback(proxy.close)
        site = PostgresSite(server, proxy)
        stack.callback(site.close)
        yield site


@contextmanager
def mysql_site() -> Generator[Site]:
    with SocketListener(MysqlStream).installed() as listener, ExitStack() as stack:
        site = MysqlSite(mariadb_for_laws(), listener)
        stack.callback(site.close)
        yield site


@contextmanager
def redis_site() -> Generator[Site]:
    with SocketListener(RedisStream).installed() as listener, ExitStack() as stack:
        site = RedisSite(redis_for_laws(), listener)
        stack.callback(site.close)
        yield site


@contextmanager
def memory_site() -> Generator[Site]:
    yield MemorySite()


@contextmanager
def sqlite_site() -> Generator[Site]:
    if not FILE_CALLS.exists():
        pytest.skip(f"this system has no {FILE_CALLS} to count system calls with")
    yield SqliteSite()


SITES = {
    "memory": memory_site,
    "sqlite": sqlite_site,
    "postgres": postgres_site,
    "mysql": mysql_site,
    "redis": redis_site,
}
