"""The SQLite engine deletes stored progress together with its job."""

from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.queues.contract import TOMBSTONE_S, new_owner_token
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.values import DeadReason, JobLease, JobState, Progress

from .sqlite_site import job, opened, stranger


@pytest.mark.parametrize("ending", ["discarded", "purged", "pruned", "pruned after its tombstone's time"])
def test_progress_goes_with_the_record(path: Path, ending: str) -> None:
    clock = ManualClock()
    with opened(path, clock=clock, retain_completed_s=0) as backend:
        backend.accept([job("kept"), job("gone")])
        kept, gone = backend.claim("default", 2, owner_token=new_owner_token())
        assert backend.report_progress([(kept, Progress(done=1)), (gone, Progress(done=1))]) == [True, True]
        assert rows_in(path, "progress") == 2
        end(backend, clock, ending, gone)
        assert backend.get("gone") is None
        assert rows_in(path, "progress") == 1


def end(backend: SqliteEngine, clock: ManualClock, ending: str, lease: JobLease) -> None:
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
