"""Waiting for commits: by inotify, also if the log is deleted, and without inotify."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.sqlite import jobs as sqlite, watch as sqlite_watch
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.engines.sqlite.watch import PAUSE_S, CommitWatch, Inotify

from ..faults.processes import Programs, until
from .sqlite_site import CountingClock, count_inotify, job, opened, stranger

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")


def no_inotify(function: str, *arguments: object) -> int:
    raise OSError(errno.EMFILE, "too many inotify instances")


@pytest.fixture(autouse=True)
def only_events_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is not notified would poll every second, which would hide the failure."""
    monkeypatch.setattr(sqlite, "LOOK_EVERY_S", 3600.0)


@pytest.fixture(params=["inotify", "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With inotify, and as where there is none."""
    if request.param == "polling":
        monkeypatch.setattr(sqlite_watch, "_checked", no_inotify)
    return str(request.param)


@pytest.fixture
def wake() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


class Waiter:
    """A thread that waits for work, up to an hour."""

    def __init__(self, backend: SqliteEngine, clock: CountingClock, *, wake: int | None = None) -> None:
        before = clock.waits
        self._thread = threading.Thread(
            target=partial(backend.wait_for_work, ["default"], 3600, wake=wake), daemon=True
        )
        self._thread.start()
        until(partial(clock.has_waited_since, before), "the thread to wait")

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def wakes_up(self) -> None:
        self._thread.join(20)
        assert not self.waits, "nobody woke the one who waits"


@pytest.mark.usefixtures("way")
def test_who_waits_wakes_up_when_another_process_commits(path: Path, programs: Programs) -> None:
    producer = programs.module("tests.engines.actors", "accept-one", str(path), "new")
    producer.wait_for("ready")
    clock = CountingClock()
    with opened(path, clock=clock) as backend:
        waiter = Waiter(backend, clock)
        producer.tell()
        waiter.wakes_up()


@pytest.mark.usefixtures("way")
def test_all_threads_that_wait_wake_up(path: Path) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        waiters = [Waiter(backend, clock) for _ in range(3)]
        other.accept([job()])
        for waiter in waiters:
            waiter.wakes_up()


@pytest.mark.usefixtures("way")
def test_a_wait_ends_when_the_wake_descriptor_is_readable(path: Path, wake: tuple[int, int]) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend:
        waiter = Waiter(backend, clock, wake=wake[0])
        os.write(wake[1], b"!")
        waiter.wakes_up()


@pytest.mark.usefixtures("way")
def test_what_is_committed_between_the_last_look_and_the_wait_is_noticed(path: Path) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        backend.wait_for_work(["default"], 0.01)
        assert backend.claim("default", 1, owner_token=new_owner_token()) == []
        other.accept([job()])
        before = clock.waits
        backend.wait_for_work(["default"], 3600)
        assert clock.waits == before


@pytest.mark.usefixtures("way")
def test_commits_that_bring_no_work_leave_it_waiting(path: Path) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        waiter = Waiter(backend, clock)
        for _ in range(3):
            seen = clock.waits
            other.accept([job(queue="aside")])
            until(partial(clock.has_waited_since, seen), "the thread to look")
            assert waiter.waits
        other.accept([job()])
        waiter.wakes_up()


def test_the_target_of_a_link_is_watched(path: Path, tmp_path: Path) -> None:
    clock = CountingClock()
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    with opened(path) as other:
        other.create_schema()
        link.symlink_to(path)
        with opened(link, clock=clock) as backend:
            waiter = Waiter(backend, clock)
            other.accept([job()])
            waiter.wakes_up()


def test_a_log_that_was_deleted_and_created_again_is_watched(path: Path) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend:
        backend.create_schema()
        waiter = Waiter(backend, clock)
        backend.file.before_fork()  # closes all connections, as a fork does; the last one deletes the log
        assert not path.with_name("jobs.db-wal").exists()
        backend.file.after_fork(in_child=False)
        with opened(path) as other:
            for _ in range(3):
                other.accept([job(queue="aside")])
            assert waiter.waits
            other.accept([job()])
            waiter.wakes_up()


def test_forking_is_not_held_up_by_who_waits_and_the_child_inherits_no_watch(path: Path, programs: Programs) -> None:
    programs.module("tests.engines.actors", "fork-while-waiting", str(path)).succeeded()


def test_closing_the_file_does_not_leave_anybody_waiting(path: Path) -> None:
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        waiter = Waiter(backend, clock)
        backend.close()
        other.accept([job()])
        waiter.wakes_up()


def test_a_watch_goes_with_its_thread_and_with_the_file(path: Path) -> None:
    before = count_inotify()
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        waiters = [Waiter(backend, clock) for _ in range(3)]
        assert count_inotify() == before + 3
        other.accept([job()])
        for waiter in waiters:
            waiter.wakes_up()
        assert count_inotify() == before
        for _ in range(5):
            backend.wait_for_work(["default"], 0)
        assert count_inotify() == before + 1
        backend.close()
        assert count_inotify() == before


def test_where_no_watch_can_be_had_nothing_is_left_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: Callable[..., int] = sqlite_watch.__dict__["_checked"]

    def no_watches(function: str, *arguments: int | bytes) -> int:
        return no_inotify(function) if function == "inotify_add_watch" else checked(function, *arguments)

    monkeypatch.setattr(sqlite_watch, "_checked", no_watches)
    before = count_inotify()
    with opened(path) as backend:
        backend.wait_for_work(["default"], 0.01)
        assert count_inotify() == before


# The watch alone.


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db-wal"


def append(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"!")


def test_writes_to_the_log_are_reported_once(log: Path) -> None:
    inotify = Inotify(log)
    assert not inotify.take()
    for _ in range(3):
        append(log)
        assert inotify.take()
        assert not inotify.take()
        append(log)
        append(log)
        assert inotify.take()
        assert not inotify.take()
        log.unlink()
        inotify.take()
    inotify.close()


def test_a_log_moved_into_place_is_watched(log: Path, tmp_path: Path) -> None:
    inotify = Inotify(log)
    append(tmp_path / "restored")
    (tmp_path / "restored").rename(log)
    assert inotify.take()
    append(log)
    assert inotify.take()
    inotify.close()


def test_changes_of_other_files_do_not_end_a_wait(log: Path, tmp_path: Path) -> None:
    append(log)
    append(tmp_path / "jobs.db")
    inotify = Inotify(log)
    append(tmp_path / "jobs.db")
    append(tmp_path / "jobs.db-shm")
    append(tmp_path / "jobs.db-wal2")
    (tmp_path / "other").mkdir()
    append(tmp_path / "other" / log.name)
    assert not inotify.take()
    inotify.close()


def test_a_write_is_looked_after_until_its_commit_is_seen_however_long_that_takes(log: Path) -> None:
    """The kernel reports the write, but not the moment, a sync later, at which the commit becomes visible."""
    clock = ManualClock()
    watch = CommitWatch(log, clock)
    append(log)
    start = clock.monotonic()

    def commits_after(seconds: float) -> Callable[[], bool]:
        return lambda: clock.monotonic() >= start + seconds

    for sync_s in (0.001, 0.05, 2.0, 500.0):
        append(log)
        start = clock.monotonic()
        watch.wait(3600, commits_after(sync_s), None)
        late_s = clock.monotonic() - start - sync_s
        assert 0 <= late_s <= sync_s / 2


def test_a_write_seen_in_one_wait_is_looked_after_in_the_next(log: Path) -> None:
    clock = ManualClock()
    watch = CommitWatch(log, clock)
    append(log)
    watch.wait(0.01, lambda: False, None)
    start = clock.monotonic()
    watch.wait(3600, lambda: True, None)
    assert clock.monotonic() - start < 1


def test_a_commit_hides_no_write_that_came_with_it(log: Path) -> None:
    """Two writers between two polls: the commit that is visible may be the first one's."""
    clock = ManualClock()
    watch = CommitWatch(log, clock)
    append(log)
    watch.wait(3600, lambda: True, None)
    start = clock.monotonic()
    watch.wait(3600, lambda: clock.monotonic() > start + 0.01, None)
    assert clock.monotonic() - start < 1


def test_after_its_commit_was_seen_a_write_is_looked_after_no_more(log: Path) -> None:
    clock = ManualClock()
    watch = CommitWatch(log, clock)
    append(log)
    looks = iter([False, False, True])
    watch.wait(3600, lambda: next(looks), None)
    looks = iter([False])
    watch.wait(3600, lambda: next(looks), None)
    assert list(looks) == []


def test_a_burst_of_commits_wakes_who_waits_only_so_often(log: Path) -> None:
    clock = ManualClock()
    watch = CommitWatch(log, clock)
    start = clock.monotonic()
    for _ in range(101):
        append(log)
        watch.wait(3600, lambda: True, None)
    assert clock.monotonic() - start >= 100 * PAUSE_S


def test_a_transaction_larger_than_the_cache_wakes_who_waits_when_it_commits(path: Path) -> None:
    """It writes to the log long before its commit."""
    clock = CountingClock()
    with opened(path, clock=clock) as backend, opened(path) as other:
        other.accept([job("done")])
        (lease,) = other.claim("default", 1, owner_token=new_owner_token())
        assert other.ack(lease)
        waiter = Waiter(backend, clock)
        with stranger(path) as writer:
            writer.execute("PRAGMA cache_size=1")
            before = clock.waits
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("UPDATE holdfast_jobs SET state = 0")
            large = [(1000 + number, bytes(4000)) for number in range(99)]
            writer.executemany("INSERT INTO holdfast_messages VALUES (?, ?)", large)
            until(lambda: clock.waits > before + 2, "the thread to have looked in vain")
            assert waiter.waits
            writer.execute("COMMIT")
            waiter.wakes_up()
