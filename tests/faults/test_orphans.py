"""Nothing a job has started outlives its worker, its guardian or its child, whichever was killed."""

import os
import signal

import pytest

from holdfast.values import JobState

from .processes import Kin, lives, living_in, parent_of, until
from .yard import Entry, Yard


def relatives(yard: Yard, start: Entry) -> list[int]:
    """The two processes the job has started itself; there are more below them."""
    until(lambda: len(yard.entries("relative", start.id)) == 2, "the processes of the job")
    pids = [entry.pid for entry in yard.entries("relative", start.id)]
    assert all(map(lives, pids))
    return pids


def test_a_killed_worker_leaves_nobody(yard: Yard) -> None:
    (id,) = yard.put("familial")
    worker = yard.worker()
    start = yard.wait_for_entry("start", id, by=worker)
    relatives(yard, start)
    worker.kill()
    until(lambda: not living_in(yard.directory), "everybody below the worker to be gone")


@pytest.mark.parametrize("who", ["child", "guardian"])
def test_a_killed_child_or_guardian_leaves_nobody_of_its_job(yard: Yard, who: str) -> None:
    (id,) = yard.put("familial")
    worker = yard.worker()
    start = yard.wait_for_entry("start", id, by=worker)
    pids = [start.pid, *relatives(yard, start)]
    below = Kin(guardian=parent_of(start.pid), child=start.pid)
    os.kill(getattr(below, who), signal.SIGKILL)
    until(lambda: not any(map(lives, pids)), "all processes of the first run to be gone")
    again = until(lambda: yard.entries("start", id)[1:], "another run")[0]
    assert again.worker == worker.pid
    until(lambda: not worker.zombies(), "the worker to take note of every end")
    yard.open_gate(again)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")


def test_a_killed_worker_leaves_nobody_of_a_command(yard: Yard) -> None:
    worker = yard.worker("--allow", "sh")
    yard.programs.holdfast("enqueue", "--", "sh", "-c", "sleep 1000 & sleep 1000").succeeded()
    (pair,) = until(worker.kin, "a child")
    # The child, the shell, and what it runs.
    until(lambda: len(worker.below()) >= len(pair) + 3, "the command to run")
    worker.kill()
    until(lambda: not living_in(yard.directory), "everybody below the worker to be gone")


def test_a_worker_told_to_leave_at_once_leaves_nobody(yard: Yard) -> None:
    (id,) = yard.put("familial")
    worker = yard.worker()
    start = yard.wait_for_entry("start", id, by=worker)
    relatives(yard, start)
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    assert living_in(yard.directory) == []
    assert yard.state(id) is JobState.PENDING
