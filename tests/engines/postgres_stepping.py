"""Steps calls of the PostgreSQL engine through their statements, and accesses its tables directly."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
import pytest

from holdfast.queues.engines.postgres.connections import Connection
from holdfast.queues.engines.postgres.engine import PostgresEngine

from ..faults.processes import until

WAITS = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
TO_THE_END = 1000
T = TypeVar("T")


def execute(engine: PostgresEngine, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement directly, bypassing the engine."""
    text = engine.connections.sql(statement)

    def run(connection: Connection) -> list[tuple[Any, ...]]:
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []

    return engine.connections.run(run)


@contextmanager
def open_transaction(engine: PostgresEngine) -> Generator["psycopg.Connection[Any]"]:
    """A caller's own transaction, which stays open in the block and is committed after it."""
    with psycopg.connect(engine.connections.conninfo) as connection:
        yield connection


class Stepped(Generic[T]):
    """A call in another thread, which executes only as many statements as it is allowed to."""

    def __init__(self, pool: ThreadPoolExecutor, watch: "psycopg.Connection[Any]", act: Callable[[], T]) -> None:
        self._changed = threading.Condition()
        self._permits = 0
        self._is_at_gate = False
        self._session = 0
        self._watch = watch
        self._answer: Future[T] = pool.submit(self._run, act)

    def _run(self, act: Callable[[], T]) -> T:
        _current.stepped = self
        try:
            return act()
        finally:
            _current.stepped = None

    def pass_gate(self, session: int) -> None:
        with self._changed:
            self._session, self._is_at_gate = session, True
            self._changed.wait_for(lambda: self._permits > 0, 60)
            self._permits -= 1
            self._is_at_gate = False

    def step(self, statements: int) -> None:
        """Let it execute this many more statements. Returns when it has done so, waits for a lock, or has finished."""
        with self._changed:
            self._permits += statements
            self._changed.notify_all()
        until(lambda: self._answer.done() or self._has_stopped() or self._waits(), "a step")

    def _has_stopped(self) -> bool:
        with self._changed:
            return self._is_at_gate and self._permits == 0

    def _waits(self) -> bool:
        asked = b"SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        return self._watch.execute(asked, [self._session]).fetchone() is not None

    @property
    def is_over(self) -> bool:
        return self._answer.done()

    def answer(self) -> T:
        return self._answer.result(60)


_current = threading.local()
Stepping: TypeAlias = Callable[[Callable[[], Any]], Stepped[Any]]


@contextmanager
def steps_through(engine: PostgresEngine) -> Generator[Stepping]:
    """Starts calls in other threads, which stop before each statement and each commit."""
    execute, end = Connection.execute, psycopg.Transaction.__exit__

    def pass_gate(connection: "psycopg.Connection[Any]") -> None:
        stepped: Stepped[Any] | None = getattr(_current, "stepped", None)
        if stepped is not None:
            stepped.pass_gate(connection.info.backend_pid)

    def gated(connection: Connection, *given: Any, **options: Any) -> Any:
        pass_gate(connection)
        return execute(connection, *given, **options)

    def gated_end(transaction: psycopg.Transaction, *given: Any) -> Any:
        pass_gate(transaction.connection)
        return end(transaction, *given)

    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(engine.connections.conninfo, autocommit=True) as watch,
    ):
        patch.setattr(Connection, "execute", gated)
        patch.setattr(psycopg.Transaction, "__exit__", gated_end)

        def start(act: Callable[[], Any]) -> Stepped[Any]:
            return Stepped(pool, watch, act)

        yield start


def in_time(act: Callable[[], T]) -> T:
    """The answer of a call that must not wait for an open transaction."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(30)
