"""What the SQLite engine keeps of workers and of progress: readable beside newer versions, and gone in time."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.queues.contract import FORGET_LOST_S, TOMBSTONE_S, new_owner_token, new_session
from holdfast.queues.engines.sqlite.jobs import SqliteBackend
from holdfast.values import DeadReason, JobLease, JobState, Progress, StopOrder, WorkerReport

from .sqlite_site import job, opened, stranger


def report(id: str) -> WorkerReport:
    return WorkerReport(
        id=id,
        host="ship",
        pid=1,
        version="0",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        queues=("default",),
        handlers=(),
        processes=1,
        slots=1,
        beat_every_s=10,
    )


@pytest.mark.parametrize("newer", ['{"id": "new", "host": 7}', '{"v": 2}', "not JSON"])
def test_a_report_that_cannot_be_read_hides_only_itself(path: Path, newer: str) -> None:
    clock = ManualClock()
    with opened(path, clock=clock) as backend:
        for id in ("old", "new"):
            backend.beat(report(id))
        with stranger(path) as other:
            other.execute("UPDATE holdfast_workers SET report = ? WHERE id = 'new'", (newer,))
        assert [view.report.id for view in backend.workers()] == ["old"]
        assert backend.order_stop("new", StopOrder.DRAIN)
        assert backend.order_of("new") is StopOrder.DRAIN
        clock.advance(FORGET_LOST_S + 60)
        backend.prune()
        assert rows_in(path, "workers") == 0


def test_more_than_this_version_knows_is_left_out_of_a_report(path: Path) -> None:
    with opened(path) as backend:
        backend.beat(report("w"))
        with stranger(path) as other:
            other.execute("UPDATE holdfast_workers SET report = json_insert(report, '$.mood', 'merry')")
        assert [view.report for view in backend.workers()] == [report("w")]


def test_an_order_of_a_newer_version_is_none_that_this_one_follows(path: Path) -> None:
    with opened(path) as backend:
        backend.beat(report("w"))
        with stranger(path) as other:
            other.execute("UPDATE holdfast_workers SET stop_order = 'dance'")
        assert backend.order_of("w") is None
        assert backend.beat(report("w")) is None
        assert [view.order for view in backend.workers()] == [None]
        assert backend.order_stop("w", StopOrder.DRAIN)
        assert backend.order_of("w") is StopOrder.DRAIN


@pytest.mark.parametrize("ending", ["discarded", "purged", "pruned", "pruned after its tombstone's time"])
def test_progress_goes_with_the_record(path: Path, ending: str) -> None:
    clock = ManualClock()
    with opened(path, clock=clock, retain_completed_s=0) as backend:
        backend.accept([job("kept"), job("gone")])
        kept, gone = backend.claim("default", 2, owner_token=new_owner_token(new_session()))
        assert backend.report_progress([(kept, Progress(done=1)), (gone, Progress(done=1))]) == [True, True]
        assert rows_in(path, "progress") == 2
        end(backend, clock, ending, gone)
        assert backend.get("gone") is None
        assert rows_in(path, "progress") == 1


def end(backend: SqliteBackend, clock: ManualClock, ending: str, lease: JobLease) -> None:
    if ending == "discarded":
        assert backend.abandon(lease, DeadReason.FAILED)
        assert backend.discard(lease.id)
        return
    assert backend.ack(lease)
    if ending == "purged":
        assert backend.purge([JobState.COMPLETED]) == 1
    else:
        clock.advance(0 if ending == "pruned" else TOMBSTONE_S)
        assert backend.prune() == 1


def rows_in(path: Path, table: str) -> int:
    with stranger(path) as connection:
        number: int = connection.execute(f"SELECT count(*) FROM holdfast_{table}").fetchone()[0]
        return number
