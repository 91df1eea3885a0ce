"""No process that a job started survives its worker, its guardian or its child."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.values import JobState
from holdfast.worker.executors import guardian

from .processes import Kin, Program, lives, living_in, parent_of, stop, until
from .yard import Entry, Yard

# A guardian whose waits never time out: it reacts only to events. A guardian that polls would do nothing.
UNTIMED = f"""
import sys
sys.path.insert(0, {str(Path(guardian.__file__).parent)!r})
import guardian
wait = guardian.Guardian._wait
guardian.Guardian._wait = lambda self, at_most_s=None: wait(self)
guardian.PATIENCE_S = 3600.0
guardian.main()
"""
# The worker reaps in every turn of its loop, and strays of a killed guardian every 50 ms: long before it has run these.
JOBS = 100


def worker_in(yard: Yard, *options: str) -> Program:
    """A worker whose guardians react to events alone, and whose leases do not expire during a test."""
    untimed = yard.directory / "untimed_guardian.py"
    untimed.write_text(UNTIMED)
    return yard.worker(*options, lease_s=3600, GUARDIAN=str(untimed))


def is_so_within_jobs(yard: Yard, look: Callable[[], bool]) -> bool:
    """Whether the condition becomes true before `JOBS` more jobs have run, one after the other."""
    for _ in range(JOBS):
        if look():
            return True
        (id,) = yard.put("quick")
        until(lambda: yard.state(id) is JobState.COMPLETED, "one more job to be completed")  # noqa: B023
    return False


def relatives(yard: Yard, start: Entry) -> list[int]:
    """The two processes that the job started itself; they have started others."""
    until(lambda: len(yard.entries("relative", start.id)) == 2, "the processes of the job")
    pids = [entry.pid for entry in yard.entries("relative", start.id)]
    assert all(map(lives, pids))
    return pids


def test_no_process_survives_a_killed_worker(yard: Yard) -> None:
    (id,) = yard.put("familial")
    worker = worker_in(yard)
    start = yard.wait_for_entry("start", id, by=worker)
    relatives(yard, start)
    # A child that can react exits when its worker has exited, which also wakes its guardian.
    stop(start.pid)
    worker.kill()
    until(lambda: not living_in(yard.directory), "everybody below the worker to be gone")


@pytest.mark.parametrize("who", ["child", "guardian"])
def test_no_process_of_a_job_survives_a_killed_child_or_guardian(yard: Yard, who: str) -> None:
    (id,) = yard.put("familial")
    worker = worker_in(yard)
    start = yard.wait_for_entry("start", id, by=worker)
    pids = [start.pid, *relatives(yard, start)]
    below = Kin(guardian=parent_of(start.pid), child=start.pid)
    os.kill(getattr(below, who), signal.SIGKILL)
    again = until(lambda: yard.entries("start", id)[1:], "another run")[0]
    assert again.worker == worker.pid
    # A running guardian reports the end of a run when all its processes have exited.
    assert who == "guardian" or not any(map(lives, pids))
    yard.open_gate(again)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert is_so_within_jobs(yard, lambda: not any(map(lives, pids))), "all processes of the first run are gone"
    assert is_so_within_jobs(yard, lambda: not worker.zombies()), "the worker has reaped all of them"


def test_no_process_of_a_command_survives_a_killed_worker(yard: Yard) -> None:
    worker = worker_in(yard, "--allow", "sh")
    yard.programs.holdfast("enqueue", "--", "sh", "-c", "sleep 1000 & sleep 1000").succeeded()
    (pair,) = until(worker.kin, "a child")
    # The child, the shell and its command.
    until(lambda: len(worker.below()) >= len(pair) + 3, "the command to run")
    worker.kill()
    until(lambda: not living_in(yard.directory), "everybody below the worker to be gone")


def test_no_process_survives_a_worker_that_is_stopped_immediately(yard: Yard) -> None:
    (id,) = yard.put("familial")
    worker = worker_in(yard)
    start = yard.wait_for_entry("start", id, by=worker)
    relatives(yard, start)
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    assert living_in(yard.directory) == []
    assert yard.state(id) is JobState.PENDING
