"""The thread that takes over: what it does if the engine or the directory fails it."""

import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from holdfast.errors import BackendError, BackendUnavailable
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.state.identity import database_id
from holdfast.testing.lab import Lab, memory_lab
from holdfast.values import JobState, Put
from holdfast.worker import takeover
from holdfast.worker.sessions import SessionFile
from holdfast.worker.takeover import Takeover

from ..faults.processes import until


@pytest.fixture
def lab() -> Generator[Lab]:
    with memory_lab() as lab:
        yield lab


@pytest.fixture
def file(tmp_path: Path) -> Generator[SessionFile]:
    file = SessionFile(tmp_path / "sessions", new_session())
    yield file
    file.close(is_finished=True)


def dead_worker_with_a_job(lab: Lab, directory: Path) -> SessionFile:
    """A worker that claimed a job and died."""
    dead = SessionFile(directory, new_session())
    dead.publish(database_id(lab.engine.state))
    lab.put("a")
    assert lab.engine.claim("default", 1, owner_token=new_owner_token(dead.session))
    dead.close(is_finished=False)
    return dead


class Flaky:
    """Reaps, but fails the first time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise BackendUnavailable("the server has restarted")
        self._engine.reap_expired()


def test_a_failed_reap_is_repeated_although_the_leases_have_ended(lab: Lab, file: SessionFile, tmp_path: Path) -> None:
    dead_worker_with_a_job(lab, tmp_path / "sessions")
    thread = Takeover(
        file, lab.engine, expire=lambda session: lab.engine.expire_leases([session]), reap=Flaky(lab.engine)
    )
    thread.start()
    until(lambda: lab.view("a").state is JobState.PENDING, "the job to be requeued")
    thread.stop()
    thread.join(60)


def test_a_claim_that_arrives_late_is_taken_over_as_well(lab: Lab, file: SessionFile, tmp_path: Path) -> None:
    dead = dead_worker_with_a_job(lab, tmp_path / "sessions")
    reap = Flaky(lab.engine)
    thread = Takeover(file, lab.engine, expire=lambda session: lab.engine.expire_leases([session]), reap=reap)
    thread.start()
    until(lambda: lab.view("a").state is JobState.PENDING, "the job to be requeued")
    assert lab.engine.claim("default", 1, owner_token=new_owner_token(dead.session))
    until(lambda: lab.view("a").crashes == 2, "the late claim to be taken over")
    thread.stop()
    thread.join(60)


def test_a_problem_that_stays_is_logged_once(
    lab: Lab, file: SessionFile, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[None] = []

    def failing(self: SessionFile, database: str) -> None:
        probes.append(None)
        raise OSError("no space left on device")

    monkeypatch.setattr(SessionFile, "publish", failing)
    monkeypatch.setattr(takeover, "PROBE_EVERY_S", 0.001)
    thread = Takeover(file, lab.engine, expire=lambda session: 0, reap=lambda: None)
    with caplog.at_level(logging.WARNING):
        thread.start()
        until(lambda: len(probes) > 5, "several probes")
        thread.stop()
        thread.join(60)
    assert [record.getMessage() for record in caplog.records] == [
        "detecting dead workers failed, retrying: no space left on device"
    ]


@pytest.mark.parametrize("id", [b"../../elsewhere", b"/absolute", b"", b"\0", b"A" * 32])
def test_a_damaged_id_of_the_database_is_never_part_of_a_path(lab: Lab, id: bytes) -> None:
    lab.engine.state.write([Put(kind="identity", key="database", value=id)])
    with pytest.raises(BackendError, match="the id of this database is damaged"):
        database_id(lab.engine.state)
