"""Handles and jobs for tests of the SQLite engine, and reads of its file without the engine."""

import os
import re
import sqlite3
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK, Clock, SystemClock
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.contract import DEFAULT_RETAIN_COMPLETED_S, LeasePolicy
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.engines.sqlite.migrations import migrations
from holdfast.queues.engines.tables.migrations import Migration
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import DEFAULT_QUEUE, JobEnvelope

TABLES = {
    "schema",
    "jobs",
    "messages",
    "attempts",
    "pauses",
    "progress",
    "live_output",
    "cells",
    "buckets",
    "slots",
    "places",
    "blocked",
    "uniques",
    "edges",
    "notes",
}
_envelopes = EnvelopeFactory(Keyring([SigningKey(b"the key of the engine tests, 32 bytes")]))


class CountingClock(SystemClock):
    """Counts how often a wait began."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        self.waits += 1
        return super().wait(seconds, descriptors)

    def has_waited_since(self, waits: int) -> bool:
        return self.waits > waits


def count_inotify() -> int:
    """The number of inotify descriptors of this process."""
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return links.count("anon_inode:inotify")


def job(id: str | None = None, *, queue: str = DEFAULT_QUEUE, size: int = 0, delay: float | None = None) -> JobEnvelope:
    """One signed job with a payload of about this many bytes."""
    return _envelopes.make(
        JobDefinition(handler="note", queue=queue, payload=encode_payload("x" * size), delay=delay), id=id
    )


@contextmanager
def opened(
    path: Path,
    *,
    lease_s: float = 60.0,
    crash_limit: int = 3,
    retain_completed_s: float = DEFAULT_RETAIN_COMPLETED_S,
    clock: Clock = SYSTEM_CLOCK,
    prefix: str = "holdfast_",
) -> Generator[SqliteEngine]:
    """A handle on the file, which is closed afterwards."""
    policy = LeasePolicy(lease_s=lease_s, crash_limit=crash_limit, retain_completed_s=retain_completed_s)
    with SqliteEngine(path, _envelopes, policy=policy, clock=clock, prefix=prefix) as backend:
        yield backend


@contextmanager
def with_old_schema(newest: int) -> Generator[None]:
    """Inside the block, create files with the schema of an older version, up to this number."""
    every = migrations

    def older(prefix: str) -> Sequence[Migration]:
        return [step for step in every(prefix) if step.number <= newest]

    sqlite_file.__dict__["migrations"] = older
    try:
        yield
    finally:
        sqlite_file.__dict__["migrations"] = every


@contextmanager
def stranger(path: Path) -> Generator[sqlite3.Connection]:
    """A connection that is independent of Holdfast."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    try:
        yield connection
    finally:
        connection.close()


def plan_of(path: Path, statement: str) -> list[str]:
    """The steps of SQLite's plan for a statement."""
    with opened(path) as backend:
        backend.create_schema()
        names = re.findall(r":(\w+)", statement)
        values = dict.fromkeys(names, "1") if names else ("1",) * statement.count("?")
        rows = backend.file.connection().execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
        return [detail for _, _, _, detail in rows]


def steps_of(backend: SqliteEngine, verb: Callable[[], object]) -> int:
    """The number of steps of SQLite's virtual machine for a call on this thread's connection."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = backend.file.connection()
    connection.set_progress_handler(step, 1)
    verb()
    connection.set_progress_handler(None, 0)
    return steps


def names_in(path: Path) -> set[str]:
    """The tables of a file."""
    with stranger(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def ids_in(path: Path) -> set[str]:
    """The ids of all jobs in the file, which must pass SQLite's integrity check."""
    with stranger(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {id for (id,) in connection.execute("SELECT id FROM holdfast_jobs")}


def versions_of(path: Path) -> list[int]:
    """The scripts that were applied to a file."""
    with stranger(path) as connection:
        return [version for (version,) in connection.execute("SELECT version FROM holdfast_schema ORDER BY 1")]


def wal_bytes(path: Path) -> int:
    """The size of the write-ahead log."""
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


def wal_frames(path: Path) -> int:
    """The number of pages in the write-ahead log by its shared index (the file itself may be longer)."""
    header = path.with_name(f"{path.name}-shm").read_bytes()[:20]
    return int.from_bytes(header[16:20], sys.byteorder)
