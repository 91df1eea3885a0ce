"""The SQLite file: durable, private, never another program's, and usable again after every failure."""

import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.clock import ManualClock, to_us
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, ForeignDatabase, SchemaTooNew
from holdfast.execution.timeout import JobInterrupted, Timeout
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.sqlite import connections as sqlite_file
from holdfast.queues.engines.sqlite.connections import WAL_LIMIT_BYTES
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.state.facts import Facts
from holdfast.state.workers import WorkerRegistry
from holdfast.values import AttemptRecord, JobState, Outcome, Progress

from ..faults.processes import Programs, until
from .sqlite_site import (
    TABLES,
    ids_in,
    job,
    names_in,
    opened,
    stranger,
    versions_of,
    wal_bytes,
    wal_frames,
    with_old_schema,
)

MAX_PAGES = 1_073_741_823
OLD_JOB = """
    INSERT INTO holdfast_jobs (id, queue, job, priority, due_at, accepted_at) VALUES (?, 'default', 'mail', 5, 0, 0)"""


def on_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# Durable and private.


def test_every_connection_syncs_each_commit_and_leaves_checkpoints_to_us(path: Path) -> None:
    pragmas = {"journal_mode": "wal", "synchronous": 2, "mmap_size": 0, "wal_autocheckpoint": 0, "busy_timeout": 5000}
    found: list[dict[str, object]] = []
    with opened(path) as backend:

        def look() -> None:
            connection = backend.file.connection()
            found.append({name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas})

        look()
        on_a_thread(look).join()
    assert found == [pragmas, pragmas]


def test_only_the_owner_can_read_the_files_whatever_the_umask(path: Path) -> None:
    umask = os.umask(0)
    try:
        with opened(path) as backend:
            backend.accept([job()])
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# The schema.


def test_eight_processes_open_a_new_file_at_once_and_one_of_them_migrates_it(path: Path, programs: Programs) -> None:
    openers = [programs.module("tests.engines.actors", "accept-one", str(path), f"job-{n}") for n in range(8)]
    for opener in openers:
        opener.wait_for("ready")
    for opener in openers:
        opener.tell()
    for opener in openers:
        opener.succeeded()
    assert ids_in(path) == {f"job-{n}" for n in range(8)}
    assert versions_of(path) == [1, 2, 3, 4, 5, 6, 7]


def test_a_file_of_an_older_version_is_brought_up_to_date_with_all_its_jobs(path: Path) -> None:
    with with_old_schema(1), opened(path) as old:
        assert not old.pauses()  # creates the file
        with stranger(path) as connection:
            for id in ("waiting", "running"):
                connection.execute(OLD_JOB, (id,))
        (lease,) = old.claim("default", 1, owner_token=new_owner_token())
    assert versions_of(path) == [1]
    later = {"progress", "live_output", "cells", "buckets", "slots", "places", "blocked", "uniques", "edges", "notes"}
    assert names_in(path) == {f"holdfast_{name}" for name in (TABLES - later) | {"facts"}}
    with stranger(path) as connection:
        connection.execute("INSERT INTO holdfast_facts (kind, fact) VALUES ('signing-key', 'ours')")
    with opened(path) as backend:
        assert backend.report_progress([(lease, Progress(done=1))]) == [True]
        assert backend.ack(lease)
        (other,) = backend.claim("default", 5, owner_token=new_owner_token())
        assert {lease.id, other.id} == {"waiting", "running"}
        assert WorkerRegistry(backend.state).all() == []
        assert Facts(backend.state).of("signing-key") == {"ours"}
    assert versions_of(path) == [1, 2, 3, 4, 5, 6, 7]
    assert names_in(path) == {f"holdfast_{name}" for name in TABLES}


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("DELETE FROM holdfast_schema WHERE version = 7", "holdfast migrate"),
        ("INSERT INTO holdfast_schema VALUES (99, 0)", "upgrade Holdfast"),
    ],
)
def test_a_program_at_work_notices_that_the_schema_is_another_now(path: Path, change: str, advice: str) -> None:
    with opened(path) as backend:
        backend.check()
        with stranger(path) as connection:
            connection.execute(change)
        with pytest.raises(BackendError, match=advice):
            backend.check()


def test_a_schema_of_the_future_is_left_alone_however_often_it_is_tried(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("old")])
    with stranger(path) as connection:
        connection.execute("INSERT INTO holdfast_schema VALUES (99, 0)")
    before = path.read_bytes()
    with opened(path) as backend:
        for _ in range(2):
            with pytest.raises(SchemaTooNew, match=rf"{path} has schema 99.*upgrade"):
                backend.accept([job("new")])
        with pytest.raises(SchemaTooNew):
            backend.create_schema()
    assert path.read_bytes() == before


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_a_database_of_another_program_is_left_alone_however_often_it_is_tried(
    tmp_path: Path, journal_mode: str
) -> None:
    path = tmp_path / "shop.db"
    with stranger(path) as connection:
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    before = path.read_bytes()
    with opened(path) as backend:
        for _ in range(2):
            with pytest.raises(ForeignDatabase, match=rf"{path}.*'orders'.*holdfast migrate"):
                backend.accept([job()])
    assert path.read_bytes() == before
    assert names_in(path) == {"orders"}


def test_a_database_of_another_program_is_shared_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with stranger(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (7)")
    with opened(path) as backend:
        backend.create_schema()
    with opened(path) as backend:
        backend.accept([job("kept")])
    assert names_in(path) == {"orders", *(f"holdfast_{name}" for name in TABLES)}
    assert ids_in(path) == {"kept"}
    with stranger(path) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_two_prefixes_keep_their_jobs_apart_in_one_file(path: Path) -> None:
    with opened(path, prefix="a_") as ours, opened(path, prefix="b_") as theirs:
        ours.create_schema()
        theirs.create_schema()
        ours.accept([job("same", size=1)])
        theirs.accept([job("same", size=2)])
        (lease,) = ours.claim("default", 9, owner_token=new_owner_token())
        assert ours.ack(lease)
        theirs.pause("default")
        assert (ours.counts(), theirs.counts()) == (
            {"default": {JobState.COMPLETED: 1}},
            {"default": {JobState.PENDING: 1}},
        )
        assert not ours.pauses()
    assert names_in(path) == {f"{prefix}{name}" for prefix in ("a_", "b_") for name in TABLES}


@pytest.mark.parametrize("prefix", ["", "1st_", "jobs; DROP TABLE orders; --", "with space", "quo'te", "ü_", "x" * 41])
def test_an_invalid_prefix_is_refused(path: Path, prefix: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid table prefix"), opened(path, prefix=prefix):
        pass
    assert not path.exists()


# Files that cannot be opened.


def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    text = "not a database, but a text that is longer than the header of one. " * 20
    path.write_text(text)
    with opened(path) as backend:
        for _ in range(2):
            with pytest.raises(ForeignDatabase, match=f"{path} is not an SQLite database"):
                backend.accept([job()])
    assert path.read_text() == text


def test_a_damaged_file_is_not_retried(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job(size=3000) for _ in range(50)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xa5" * (size - 4096 * 2))
    with opened(path) as backend, pytest.raises(BackendError, match=f"{path} is corrupt") as caught:
        backend.accept([job()])
    assert not isinstance(caught.value, BackendUnavailable)


def test_a_place_for_no_file_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "jobs.db", Path("/proc/nowhere/jobs.db")):
        with opened(path) as backend, pytest.raises(BackendUnavailable, match=f"cannot open {path} for writing"):
            backend.accept([job()])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_file_that_is_not_ours_to_write_is_named_in_the_error(path: Path, mode: int) -> None:
    with opened(path) as backend:
        backend.accept([job("kept")])
    path.chmod(mode)
    with opened(path) as backend, pytest.raises(BackendUnavailable, match=f"cannot open {path} for writing"):
        backend.accept([job()])
    path.chmod(0o600)
    assert ids_in(path) == {"kept"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mounted where")
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_network_file_system_is_refused_and_a_local_one_inside_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    share = tmp_path.resolve() / "our share"
    (share / "scratch").mkdir(parents=True)
    (tmp_path / "link").symlink_to(share)
    point = str(share).replace(" ", "\\040")
    mounts = "\n".join(
        [
            "24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
            f"31 24 0:50 / {point} rw,relatime shared:9 - {kind} server:/export rw",
            f"32 31 0:51 / {point}/scratch rw,relatime - tmpfs none rw",
        ]
    )
    read_text = Path.read_text

    def mocked(self: Path, encoding: str | None = None, errors: str | None = None) -> str:
        return mounts if self == Path("/proc/self/mountinfo") else read_text(self, encoding, errors)

    monkeypatch.setattr(Path, "read_text", mocked)
    for folder in (share, tmp_path / "link"):
        with (
            opened(folder / "jobs.db") as backend,
            pytest.raises(ConfigError, match=rf"network file system \({kind}\)"),
        ):
            backend.accept([job()])
    assert list(share.iterdir()) == [share / "scratch"]
    with opened(share / "scratch" / "jobs.db") as backend, opened(tmp_path / "our share too.db") as neighbour:
        backend.accept([job()])
        neighbour.accept([job()])


# Locks.


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Shortens SQLite's own busy timeout, to test the retries after it."""
    pauses: list[float] = []

    def pause(low: float, high: float) -> float:
        pauses.append(low)
        return low

    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr("random.uniform", pause)
    return pauses


def test_a_write_waits_longer_than_sqlite_does_for_another_process(
    path: Path, programs: Programs, retries: list[float]
) -> None:
    with opened(path) as backend:
        backend.accept([job("before")])
        holder = programs.module("tests.engines.actors", "hold", str(path))
        holder.wait_for("ready")
        writer = on_a_thread(lambda: backend.accept([job("waited")]))
        until(lambda: len(retries) > 5, "the writer to try again")
        assert ids_in(path) == {"before"}
        holder.tell()
        writer.join(30)
        assert ids_in(path) == {"before", "waited"}


def test_a_lock_that_is_never_let_go_is_an_error_and_nothing_has_changed(
    path: Path, retries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_LIMIT_S", 0.1)
    with opened(path) as backend:
        backend.accept([job("before")])
        with stranger(path) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BackendUnavailable, match=f"{path} was locked"):
                backend.accept([job("refused")])
        assert ids_in(path) == {"before"}
        backend.accept([job("after")])


def test_a_file_that_was_locked_when_first_opened_is_prepared_later(
    path: Path, retries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_LIMIT_S", 0.1)
    path.parent.mkdir()
    with opened(path) as backend, stranger(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendUnavailable, match="was locked"):
            backend.accept([job("refused")])
        other.execute("ROLLBACK")
        backend.accept([job("after")])
    assert ids_in(path) == {"after"}


def test_a_job_interrupted_while_it_waits_for_the_lock_does_not_hold_it_afterwards(path: Path) -> None:
    """A handler that enqueues can time out at any moment; its worker and all other processes must continue."""
    asks = threading.Event()
    guard = Timeout()
    main = threading.main_thread().ident
    with opened(path) as backend, _lock_of_another(backend, path) as other:
        backend.file.connection().set_trace_callback(lambda statement: asks.set() if "BEGIN" in statement else None)

        def interrupt() -> None:
            assert asks.wait(30)
            until(lambda: _waits_in(main, "_transact"), "the writer to wait for the lock")
            guard.interrupt(JobInterrupted("out of time"))
            other.execute("COMMIT")

        interrupter = on_a_thread(interrupt)
        ended = guard.run(lambda: backend.accept([job("interrupted")]))
        interrupter.join(30)
        assert ended.was_raised
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
        backend.accept([job("after")])
    assert ids_in(path) == {"before", "after"}


# Python drops an interrupt that is raised inside a destructor, with a warning; it is raised again a second later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_job_interrupted_at_any_moment_of_its_queries_leaves_nothing_locked(quick_path: Path) -> None:
    """The same a thousand times, with timeouts at random points; the keeper's thread must also continue."""
    dice = random.Random(7)
    with opened(quick_path) as backend, _lock_of_another(backend, quick_path) as other:
        other.execute("ROLLBACK")

        def query() -> None:
            while True:
                backend.accept([job()])
                backend.counts()
                for lease in backend.claim("default", 1, owner_token=new_owner_token()):
                    backend.ack(lease)

        for number in range(1000):
            assert Timeout(dice.uniform(0.0002, 0.003)).run(query).was_raised
            assert not backend.file.connection().in_transaction
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            if number % 20 == 0:
                neighbour = on_a_thread(backend.counts)
                neighbour.join(5)
                assert not neighbour.is_alive(), "another thread of this process cannot query any more"


def test_a_verdict_that_waited_for_the_lock_until_its_lease_had_ended_is_refused(path: Path) -> None:
    """The clock is read after the lock is held: a settlement that was sent in time may be too late by then."""
    clock = ManualClock()
    asks = threading.Event()
    answers: list[bool] = []
    with opened(path, clock=clock) as backend, _lock_of_another(backend, path) as other:
        other.execute("ROLLBACK")
        (lease,) = backend.claim("default", 1, owner_token=new_owner_token())
        other.execute("BEGIN IMMEDIATE")

        def acknowledge() -> None:
            backend.file.connection().set_trace_callback(lambda statement: asks.set())
            answers.append(backend.ack(lease))

        worker = on_a_thread(acknowledge)
        assert asks.wait(30)
        until(lambda: _waits_in(worker.ident, "_transact"), "the worker to wait for the lock")
        clock.advance(61)
        other.execute("ROLLBACK")
        worker.join(30)
        assert answers == [False]
        assert backend.reap_expired() == 1


# Threads and forks.


def test_each_thread_has_its_own_connection_and_it_closes_with_the_thread(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job()])
        mine = backend.file.connection()
        theirs: list[sqlite3.Connection] = []
        for _ in range(3):
            on_a_thread(lambda: theirs.append(backend.file.connection())).join()
        assert len({id(connection) for connection in [mine, *theirs]}) == 4
        until(lambda: all(map(_is_closed, theirs)), "the threads' connections to close")
        assert backend.file.connection() is mine
        assert not _is_closed(mine)


def test_close_closes_the_connections_of_all_threads_and_the_next_use_opens_again(path: Path) -> None:
    may_end = threading.Event()
    theirs: list[sqlite3.Connection] = []
    with opened(path) as backend:

        def use_and_wait() -> None:
            theirs.append(backend.file.connection())
            may_end.wait(30)

        thread = on_a_thread(use_and_wait)
        until(lambda: theirs, "the other thread's connection")
        mine = backend.file.connection()
        backend.close()
        assert _is_closed(mine)
        assert _is_closed(theirs[0])
        may_end.set()
        thread.join(30)
        backend.accept([job("after")])
    assert ids_in(path) == {"after"}


def test_closing_the_file_while_other_threads_query_does_not_crash(quick_path: Path, programs: Programs) -> None:
    said = programs.module("tests.engines.actors", "close-among-threads", str(quick_path)).succeeded()
    assert json.loads(said) == []


def test_both_sides_of_a_fork_go_on_with_their_own_connections(path: Path, programs: Programs) -> None:
    programs.module("tests.engines.actors", "fork", str(path)).succeeded()
    wanted = {f"{side}-{number}" for side in ("parent", "child") for number in range(50)}
    assert ids_in(path) == {"before", "after"} | wanted


def test_jobs_of_a_forked_child_are_stored_after_the_parent_closed_the_file(path: Path, programs: Programs) -> None:
    programs.module("tests.engines.actors", "fork-and-close", str(path)).succeeded()
    assert ids_in(path) == {"before", "while-the-parent-has-it-open", "after-the-parent-closed-it"}


def test_a_child_forked_in_the_middle_of_another_threads_transaction_can_write(path: Path, programs: Programs) -> None:
    programs.module("tests.engines.actors", "fork-while-writing", str(path)).succeeded()
    assert ids_in(path) == {"before", "child"}


def test_threads_that_write_while_the_process_forks_go_on(quick_path: Path, programs: Programs) -> None:
    programs.module("tests.engines.actors", "fork-among-threads", str(quick_path)).succeeded()
    wanted = {f"child-{number}" for number in range(60)} | {f"thread-{number}-last" for number in range(3)}
    assert wanted < ids_in(quick_path)


# Space.


def test_a_full_disk_refuses_the_whole_batch_and_the_next_one_is_stored(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("before")])
        (lease,) = backend.claim("default", 1, owner_token=new_owner_token())
        connection = backend.file.connection()
        pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 3}")
        with pytest.raises(BackendUnavailable, match=f"the disk of {path} is full; nothing was changed"):
            backend.accept([job(f"refused-{n}", size=3000) for n in range(10)])
        assert ids_in(path) == {"before"}
        connection.execute(f"PRAGMA max_page_count={MAX_PAGES}")
        assert backend.ack(lease)
        backend.accept([job("after", size=3000)])
    assert ids_in(path) == {"before", "after"}


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root: it mounts a small disk that nobody else sees",
)
def test_a_disk_that_is_really_full_loses_nothing_it_has_accepted(tmp_path: Path, programs: Programs) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=1m none "{disk}" && exec "$0" "$@"')
    said = json.loads(
        programs.start(*mount, sys.executable, "-m", "tests.engines.actors", "fill", str(disk)).succeeded()
    )
    assert "is full" in said["problem"]
    assert len(said["accepted"]) > 20
    assert said["kept_when_full"] == said["accepted"]
    assert said["acked"]
    assert said["kept"] == sorted([*said["accepted"], "after"])


def test_the_wal_stays_small_although_only_producers_are_at_work(quick_path: Path) -> None:
    written, largest, last = 0, 0, 0
    with opened(quick_path) as backend:
        while written < 2.5 * WAL_LIMIT_BYTES:
            backend.accept([job(size=50_000)])
            now = wal_bytes(quick_path)
            written += max(now - last, 0)
            last = now
            largest = max(largest, now)
    assert largest <= WAL_LIMIT_BYTES + 100_000  # one more transaction: the next commit restarts the log


def test_no_checkpoint_runs_while_another_process_writes(path: Path, programs: Programs) -> None:
    """SQLite before 3.51.3 can damage the file when a checkpoint and a writer meet."""
    with opened(path) as backend:
        backend.accept([job("before")])
        holder = programs.module("tests.engines.actors", "hold", str(path))
        holder.wait_for("ready")
        before = path.read_bytes()
        backend.file.checkpoint()
        assert path.read_bytes() == before
        holder.tell()
        holder.succeeded()
        backend.file.checkpoint()
        assert path.read_bytes() != before


def test_a_long_read_lets_the_wal_grow_without_blocking_and_it_shrinks_afterwards(quick_path: Path) -> None:
    with opened(quick_path) as backend, stranger(quick_path) as reader:
        backend.accept([job("before")])
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM holdfast_jobs").fetchall() == [(1,)]
        _write(backend, quick_path, until_wal_is=WAL_LIMIT_BYTES * 5 // 4)
        assert reader.execute("SELECT count(*) FROM holdfast_jobs").fetchall() == [(1,)]
        reader.execute("COMMIT")
        grown = wal_bytes(quick_path)
        for _ in range(WAL_LIMIT_BYTES // 4 // 50_000 + 1):
            backend.accept([job(size=50_000)])
        assert wal_bytes(quick_path) < grown / 2


def test_claiming_and_settling_do_not_write_the_payload_again(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("large", size=1_000_000)])
        backend.file.checkpoint()
        backend.pause("elsewhere")  # the first commit after a checkpoint restarts the WAL
        before = wal_frames(path)
        (lease,) = backend.claim("default", 1, owner_token=new_owner_token())
        now = to_us(lease.claimed_at)
        assert backend.nack(lease, 0.0, AttemptRecord(outcome=Outcome.FAILED, started_us=now, ended_us=now))
        (lease,) = backend.claim("default", 1, owner_token=new_owner_token())
        assert backend.ack(lease, AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now, ended_us=now))
        assert wal_frames(path) - before < 50


@contextmanager
def _lock_of_another(backend: SqliteEngine, path: Path) -> Generator[sqlite3.Connection]:
    backend.accept([job("before")])
    with stranger(path) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def _waits_in(thread: int | None, function: str) -> bool:
    """Whether the thread is in that function and still is a moment later."""
    assert thread is not None
    frame = sys._current_frames()[thread]  # pyright: ignore[reportPrivateUsage]
    place = frame.f_lasti
    time.sleep(0.02)
    return frame.f_code.co_name == function and sys._current_frames()[thread] is frame and frame.f_lasti == place  # pyright: ignore[reportPrivateUsage]


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018
    except sqlite3.ProgrammingError:
        return True
    return False


def _write(backend: SqliteEngine, path: Path, *, until_wal_is: int) -> None:
    for _ in range(2 * until_wal_is // 50_000):
        if wal_bytes(path) >= until_wal_is:
            return
        assert backend.accept([job(size=50_000)])[0].created
    pytest.fail("the WAL did not grow although somebody reads an old state")


def test_a_second_handle_costs_the_first_none_of_its_locks(path: Path) -> None:
    """Without them, another process that closes the file believes to be the last one, and deletes our log."""
    visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT 1 FROM holdfast_jobs'); c.close()"
    log = path.with_name(f"{path.name}-wal")
    with opened(path) as first:
        first.accept([job()])
        with opened(path) as second:
            second.create_schema()
            before = log.stat().st_ino
            subprocess.run([sys.executable, "-c", visit, str(path)], check=True)
            assert log.stat().st_ino == before
