"""Workers in their own PID namespaces, as in containers that share a volume: each of them is process 1.

Their process ids mean nothing to each other, and those of one are reused by the next. Only the lock counts.
"""

import os
import shutil
import signal
import subprocess

import pytest

from holdfast.values import JobState, Outcome

from ..servers.places import every_engine
from .processes import Program, stop, stopped, until
from .yard import Entry, Yard

LEASE_S = 3600
# `--kill-child`: the test kills `unshare` when it is over, and nothing may survive it.
CONTAINED = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

pytestmark = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*CONTAINED, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root and unshare: it creates PID namespaces",
)


def started(yard: Yard) -> tuple[Program, Entry]:
    """A worker with its own process ids, in the middle of a job; the entry has the ids that it sees itself."""
    [id] = yard.put("gated")
    worker = yard.worker(lease_s=LEASE_S, under=CONTAINED)
    [entry] = until(lambda: yard.entries("start", id), "the job to start")
    assert entry.worker == 1
    return worker, entry


def inside(container: Program) -> list[int]:
    """Its processes, with the ids that they have outside; the worker is the first."""
    return container.below()


@every_engine
def test_a_worker_with_its_own_process_ids_is_taken_over_once_it_is_dead(yard: Yard) -> None:
    dead, first = started(yard)
    heir = yard.worker(lease_s=LEASE_S)
    os.kill(inside(dead)[0], signal.SIGKILL)
    yard.open_gate(yard.wait_for_entry("start", first.id, by=heir))
    until(lambda: yard.are_done(1), "the job to be completed")
    assert yard.outcomes(first.id) == [Outcome.CRASHED, Outcome.SUCCEEDED]


def test_a_worker_with_its_own_process_ids_takes_over_from_one_with_the_same_ids(yard: Yard) -> None:
    dead, first = started(yard)
    (yard.directory / f"gate-{first.id}-{first.pid}").unlink()  # the next run may have the same id
    yard.worker(lease_s=LEASE_S, under=CONTAINED)
    os.kill(inside(dead)[0], signal.SIGKILL)
    [second] = until(lambda: yard.entries("start", first.id)[1:], "the job to start again")
    assert second.worker == first.worker
    yard.open_gate(second)
    until(lambda: yard.are_done(1), "the job to be completed")


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_a_living_worker_with_its_own_process_ids_is_not_robbed(yard: Yard, *, is_stopped: bool) -> None:
    """No process outside has the ids that it sees itself, or another program has."""
    living, first = started(yard)
    other = yard.worker(lease_s=LEASE_S)
    worker, *others = inside(living)
    if is_stopped:
        with stopped(worker):
            for pid in others:
                stop(pid)
            yard.complete_slow_jobs(8, by=other)
            assert yard.state(first.id) is JobState.PROCESSING
            for pid in others:
                os.kill(pid, signal.SIGCONT)
    else:
        yard.complete_slow_jobs(8, by=other)
    yard.open_gate(first)
    until(lambda: yard.state(first.id) is JobState.COMPLETED, "the worker to complete its job")
    assert yard.outcomes(first.id) == [Outcome.SUCCEEDED]
    assert yard.entries("start", first.id) == [first]


def test_a_worker_outside_is_not_robbed_by_one_with_its_own_process_ids(yard: Yard) -> None:
    """The one inside sees no process of the one outside at all."""
    [id] = yard.put("gated")
    living = yard.worker(lease_s=LEASE_S)
    first = yard.wait_for_entry("start", id, by=living)
    yard.worker(lease_s=LEASE_S, under=CONTAINED)
    with stopped(living.pid):
        for _ in range(8):
            [slow] = yard.put("slow")
            [entry] = until(lambda: yard.entries("end", slow), "the job to finish")  # noqa: B023
            assert entry.worker == 1
        assert yard.state(id) is JobState.PROCESSING
    yard.open_gate(first)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the worker to complete its job")
    assert yard.outcomes(id) == [Outcome.SUCCEEDED]
