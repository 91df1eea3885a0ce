"""The pool of children, event by event: no frame of a child is lost, in whatever order events arrive."""

import os
import selectors
import signal
import time
from collections.abc import Sequence
from select import select

import pytest

from holdfast.values import ExecutionResult, Progress
from holdfast.worker.executors import guarded_program, guardian
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.pool import ProcessPool
from holdfast.worker.executors.process import ExecutorProcess, Flight, KillReason
from holdfast.worker.options import WorkerOptions

from ..faults.processes import until
from .floor import Floor
from .test_settlements import flight


class Heard:
    """Records the calls of a pool."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.returned: list[int] = []
        self.died: list[int] = []
        self.how = ""

    def on_done(self, flights: Sequence[Flight], frames: Sequence[Done]) -> None:
        assert [one.number for one in flights] == [frame.number for frame in frames]
        self.done += [one.number for one in flights]

    def on_returned(self, flights: Sequence[Flight]) -> None:
        self.returned += [one.number for one in flights]

    def on_died(
        self, flights: Sequence[Flight], how: str, killed_for: tuple[KillReason, frozenset[int]] | None
    ) -> None:
        assert killed_for is None
        self.died += [one.number for one in flights]
        self.how = how

    def on_ended(self, flight: Flight, result: ExecutionResult) -> None:
        raise AssertionError(result)

    def on_refused(self, flight: Flight, error: str, message: str) -> None:
        raise AssertionError(message)

    def on_progress(self, flight: Flight, progress: Progress) -> None:
        raise AssertionError(progress)


class Stage:
    """A pool of one child, whose events a test lets happen one at a time."""

    def __init__(self, floor: Floor, manner: str) -> None:
        self.heard = Heard()
        self.selector = selectors.DefaultSelector()
        self.pool = ProcessPool(
            floor.scripted(manner), WorkerOptions(queues={}), listener=self.heard, selector=self.selector
        )
        self.pool.tend(time.monotonic(), listens=True)
        while not self.pool.ready:
            for key, events in self.selector.select():
                key.data(events)
        (self.child,) = self.pool.children

    def happens(self, at: guarded_program.GuardedProgram | ExecutorProcess) -> None:
        """Wait for an event there, and let the pool handle only that one."""
        assert select([at], [], [], 60.0)[0], "nothing has happened"
        self.selector.get_map()[at].data(selectors.EVENT_READ)

    def has_reaped(self, pid: int) -> bool:
        """Whether that process is gone after one more turn."""
        self.pool.tend(time.monotonic(), listens=True)
        return pid not in guardian.processes()

    def close(self) -> None:
        self.pool.close()
        self.selector.close()


@pytest.mark.parametrize("jobs", [3, 200], ids=["few, listened to at once", "many, read every so often"])
def test_what_a_child_wrote_before_it_died_counts_though_its_death_is_heard_first(floor: Floor, jobs: int) -> None:
    stage = Stage(floor, "dying")
    try:
        stage.pool.give(stage.child, [flight(number) for number in range(1, jobs + 1)])
        while not stage.heard.how:
            stage.happens(stage.child.guarded)
        assert stage.heard.done == list(range(1, jobs))
        assert (stage.heard.died, stage.heard.returned) == ([jobs], [])
        assert stage.heard.how == "exit code 9"
        assert not stage.pool.children
    finally:
        stage.close()


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_job_counts_as_running_before_its_start_is_read(floor: Floor, jobs: int) -> None:
    stage = Stage(floor, "busy")
    try:
        assert stage.pool.running == 0
        stage.pool.give(stage.child, [flight(number) for number in range(1, jobs + 1)])
        assert select([stage.child], [], [], 60.0)[0], "the child has started nothing"
        assert (stage.pool.running, stage.pool.flights()) == (1, [])
        stage.happens(stage.child)
        assert (stage.pool.running, [one.number for one in stage.pool.flights()]) == (1, [1])
    finally:
        stage.close()


def test_the_end_of_the_line_may_be_heard_before_the_death(floor: Floor) -> None:
    stage = Stage(floor, "dying")
    try:
        stage.pool.give(stage.child, [flight(1), flight(2)])
        while not stage.child.heard_eof:
            stage.happens(stage.child)
        assert (stage.heard.done, stage.heard.died) == ([1], [])
        assert not stage.pool.ready
        while not stage.heard.how:
            stage.happens(stage.child.guarded)
        assert stage.heard.died == [2]
    finally:
        stage.close()


def test_whom_a_killed_guardian_leaves_is_reaped_though_its_end_was_heard_before_they_came(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel closes the files of a dying process before it gives its children away; here it takes its time."""
    with guarded_program.orphans_adopted() as can_be_adopted:
        if not can_be_adopted:
            pytest.skip("only on Linux is there somebody who adopts orphans")
        stage = Stage(floor, "idle")
        try:
            guardian_pid = stage.child.guarded.guardian_pid
            [left] = guardian.descendants(guardian_pid, guardian.processes())
            with monkeypatch.context() as meanwhile:
                _keep_below(meanwhile, left, guardian_pid)
                os.kill(guardian_pid, signal.SIGKILL)
                while not stage.heard.how:
                    stage.happens(stage.child.guarded)
                stage.pool.tend(time.monotonic(), listens=True)
            until(lambda: stage.has_reaped(left), "the orphan to be reaped")
        finally:
            stage.close()


def _keep_below(monkeypatch: pytest.MonkeyPatch, pid: int, parent: int) -> None:
    """This process seems to have that parent, and the parent not to have ended."""
    really = guardian.processes

    def processes() -> dict[int, guardian.Process]:
        found = really()
        if pid in found:
            found[pid].parent = parent
        return found

    def reap(*, waits: bool = False) -> None:
        pass

    monkeypatch.setattr(guardian, "processes", processes)
    monkeypatch.setattr(guarded_program, "reap", reap)
