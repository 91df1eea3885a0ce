"""Workers that die: another one on their host runs their jobs at once. Workers that only seem dead are left alone.

The leases here are longer than any test may take, so a job that runs again was taken over.
"""

import os
import signal
from pathlib import Path

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine
from .processes import Program, lives, stop, stopped, until
from .yard import Entry, Yard

LEASE_S = 3600


def started(yard: Yard) -> tuple[Program, Entry]:
    """A worker in the middle of a job."""
    [id] = yard.put("gated")
    worker = yard.worker(lease_s=LEASE_S)
    return worker, yard.wait_for_entry("start", id, by=worker)


def kill_parent(worker: Program) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def kill_tree(worker: Program) -> None:
    for pid in (worker.pid, *worker.below()):
        os.kill(pid, signal.SIGKILL)


def kill_guardians_first(worker: Program) -> None:
    kin = worker.kin()
    stop(worker.pid)
    for one in kin:
        os.kill(one.guardian, signal.SIGKILL)
    os.kill(worker.pid, signal.SIGKILL)


DEATHS = {"parent": kill_parent, "tree": kill_tree, "guardians first": kill_guardians_first}


@every_engine
@pytest.mark.parametrize("death", DEATHS)
def test_a_living_worker_takes_over_the_jobs_of_a_dead_one(yard: Yard, death: str) -> None:
    dead, first = started(yard)
    heir = yard.worker(lease_s=LEASE_S)
    DEATHS[death](dead)
    second = yard.wait_for_entry("start", first.id, by=heir)
    assert not lives(first.pid)
    yard.open_gate(second)
    until(lambda: yard.are_done(1), "the job to be completed")
    assert yard.outcomes(first.id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert yard.history(first.id).job.crashes == 0
    until(lambda: len(yard.workers()) == 1, "the dead worker to be gone from the list")


def test_a_worker_that_the_kernel_kills_for_its_memory_is_taken_over(yard: Yard, small_group: Path) -> None:
    """The kernel kills the worker first, and then its child, which uses too much."""
    [id] = yard.put("hungry")
    dead = yard.worker(lease_s=LEASE_S)
    first = yard.wait_for_entry("start", id, by=dead)
    heir = yard.worker(lease_s=LEASE_S)
    Path(f"/proc/{dead.pid}/oom_score_adj").write_text("1000")
    for pid in (dead.pid, first.pid):
        (small_group / "cgroup.procs").write_text(str(pid))
    yard.open_gate(first)
    second = yard.wait_for_entry("start", id, by=heir)
    assert not dead.runs
    yard.open_gate(second)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]


@every_engine
def test_a_worker_that_starts_takes_over_the_jobs_of_one_that_died_before(yard: Yard) -> None:
    dead, first = started(yard)
    dead.kill()
    heir = yard.worker(lease_s=LEASE_S)
    yard.open_gate(yard.wait_for_entry("start", first.id, by=heir))
    until(lambda: yard.are_done(1), "the job to be completed")


@every_engine
@pytest.mark.parametrize("who", ["worker", "worker and child"])
def test_a_stopped_worker_is_not_robbed(yard: Yard, who: str) -> None:
    """While it stands still, others probe it again and again: they complete jobs one after the other meanwhile."""
    sleeper, first = started(yard)
    other = yard.worker(lease_s=LEASE_S)
    with stopped(sleeper.pid):
        if who == "worker and child":
            stop(first.pid)
        yard.complete_slow_jobs(8, by=other)
        assert yard.state(first.id) is JobState.PROCESSING
        os.kill(first.pid, signal.SIGCONT)
    yard.open_gate(first)
    until(lambda: yard.state(first.id) is JobState.COMPLETED, "the sleeper to complete its job")
    assert yard.outcomes(first.id) == [Outcome.SUCCEEDED]


@every_engine
def test_a_worker_is_not_dead_while_one_of_its_processes_lives(yard: Yard) -> None:
    """Nothing of it can react: the guardian that would end the job stands still, and so does the job."""
    dead, first = started(yard)
    other = yard.worker(lease_s=LEASE_S)
    [kin] = dead.kin()
    with stopped(kin.guardian):
        stop(first.pid)
        dead.kill()
        yard.complete_slow_jobs(4, by=other)
        assert (yard.state(first.id), lives(first.pid)) == (JobState.PROCESSING, True)
    second = yard.wait_for_entry("start", first.id, by=other)
    assert not lives(first.pid)
    yard.open_gate(second)
    until(lambda: yard.state(first.id) is JobState.COMPLETED, "the job to be completed")


def test_a_worker_without_a_common_directory_is_left_to_its_lease(yard: Yard) -> None:
    [id] = yard.put("gated")
    dead = yard.worker(lease_s=LEASE_S, HOLDFAST_SESSION_DIR=str(yard.directory / "elsewhere"))
    yard.wait_for_entry("start", id, by=dead)
    other = yard.worker(lease_s=LEASE_S)
    dead.kill()
    yard.complete_slow_jobs(8, by=other)
    assert yard.state(id) is JobState.PROCESSING


def test_a_file_put_back_for_a_living_worker_does_not_rob_it(yard: Yard) -> None:
    """As a backup does that is restored: the file has the right name and text, and nobody holds its lock."""
    living, first = started(yard)
    other = yard.worker(lease_s=LEASE_S)
    [file] = until(
        lambda: [path for path in (yard.directory / "sessions").glob("*/*") if _is_of(path, living, yard)],
        "the worker to publish its session",
    )
    text = file.read_bytes()
    file.unlink()
    file.write_bytes(text)
    yard.complete_slow_jobs(4, by=other)
    assert yard.state(first.id) is JobState.PROCESSING


def _is_of(path: Path, worker: Program, yard: Yard) -> bool:
    return any(view.report.id == path.name and view.report.pid == worker.pid for view in yard.workers())


def test_a_worker_that_stopped_cleanly_leaves_no_session(yard: Yard) -> None:
    worker = yard.worker(lease_s=LEASE_S)
    until(lambda: list((yard.directory / "sessions").glob("*/*")), "the worker to publish its session")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    assert [path for path in (yard.directory / "sessions").rglob("*") if path.is_file()] == []
