"""An SQLite file as these tests use it: handles on it, jobs for it, and a look at it that goes past the engine."""

import os
import sqlite3
import sys
from collections.abc import Generator, Sequence
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

TABLES = {"schema", "jobs", "messages", "attempts", "pauses", "progress", "live_output", "cells", "buckets"}
_envelopes = EnvelopeFactory(Keyring([SigningKey(b"the key of the engine tests, 32 bytes")]))


class CountingClock(SystemClock):
    """Says how often somebody began to wait."""

    def __init__(self) -> None:
        self.waits = 0

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        self.waits += 1
        return super().wait(seconds, descriptors)

    def has_waited_since(self, waits: int) -> bool:
        return self.waits > waits


def count_inotify() -> int:
    """How many descriptors of this process are watches on files."""
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return links.count("anon_inode:inotify")


def job(id: str | None = None, *, queue: str = DEFAULT_QUEUE, size: int = 0, delay: float | None = None) -> JobEnvelope:
    """One signed job whose payload has about that many bytes."""
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
    """A handle on the file, closed at the end."""
    policy = LeasePolicy(lease_s=lease_s, crash_limit=crash_limit, retain_completed_s=retain_completed_s)
    with SqliteEngine(path, _envelopes, policy=policy, clock=clock, prefix=prefix) as backend:
        yield backend


@contextmanager
def with_old_schema(newest: int) -> Generator[None]:
    """Inside, files are made as a version of Holdfast made them that knew the schema only up to this number."""
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
    """A connection of somebody who knows nothing of Holdfast."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    try:
        yield connection
    finally:
        connection.close()


def names_in(path: Path) -> set[str]:
    """The tables of a file."""
    with stranger(path) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def ids_in(path: Path) -> set[str]:
    """The ids of all jobs in a file that is found intact."""
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
    """How many pages the write-ahead log holds now, as the index beside it says (its file may be longer)."""
    header = path.with_name(f"{path.name}-shm").read_bytes()[:20]
    return int.from_bytes(header[16:20], sys.byteorder)
