"""A worker does not leak descriptors, zombies or memory."""

import os
from collections import Counter
from itertools import pairwise

from .processes import Program, descriptors_of, resident_of, until
from .yard import Yard

ROUND = 2000
MOST_GROWTH = ROUND * 1310


def test_ten_thousand_jobs_and_a_hundred_recycled_children_leak_nothing(yard: Yard) -> None:
    yard.put("slow")  # long enough for a renewal, so that every connection has been opened
    worker = yard.worker("--count", "2", "--max-jobs-per-child", "100", "--quiet", lease_s=1)
    done = 1 + len(yard.put("quick", ROUND))
    until(lambda: yard.are_done(done), "the first jobs to be completed")
    _wait_for_rest(worker)
    descriptors, memory = _descriptors(yard, worker), [resident_of(worker.pid)]

    for _ in range(4):
        done += len(yard.put("quick", ROUND))
        until(lambda: yard.are_done(done), "every job to be completed")  # noqa: B023
        _wait_for_rest(worker)
        memory.append(resident_of(worker.pid))
    assert _descriptors(yard, worker) == descriptors
    assert _least_growth(memory) < MOST_GROWTH
    assert worker.zombies() == []
    assert len({entry.pid for entry in yard.ledger()}) >= 100


def test_a_child_that_has_run_ten_thousand_jobs_holds_nothing_of_them(yard: Yard) -> None:
    yard.put("brief")
    yard.worker("--quiet")
    done = 1 + len(yard.put("quick", ROUND))
    until(lambda: yard.are_done(done), "the first jobs to be completed")
    child = yard.ledger()[-1].pid
    descriptors, memory, threads = descriptors_of(child), [resident_of(child)], _threads_of(child)

    for _ in range(4):
        done += len(yard.put("quick", ROUND))
        until(lambda: yard.are_done(done), "every job to be completed")  # noqa: B023
        memory.append(resident_of(child))
    assert {entry.pid for entry in yard.ledger()} == {child}
    assert (descriptors_of(child), _threads_of(child)) == (descriptors, threads)
    assert _least_growth(memory) < MOST_GROWTH


def _least_growth(memory: list[int]) -> int:
    """The growth in the round that added least. A leak adds to every round; a larger batch than before, to one."""
    return min(after - before for before, after in pairwise(memory))


def _descriptors(yard: Yard, worker: Program) -> Counter[str]:
    """Descriptors without those of the file itself: SQLite reuses the one of a closed connection.

    A connection that was left open also has a descriptor of the write-ahead log.
    """
    held = descriptors_of(worker.pid)
    del held[str(yard.place.database)]
    return held


def _wait_for_rest(worker: Program) -> None:
    """Wait until there are exactly two children, and none is starting or exiting."""

    def rests() -> bool:
        kin = worker.kin()
        return len(kin) == 2 and len(worker.below()) == 4 and all(_is_idle(pair.child) for pair in kin)

    until(rests, "the worker to have two children and nothing else")


def _is_idle(child: int) -> bool:
    """Whether it has imported the application: the thread that listens to the worker is running."""
    return _threads_of(child) > 1


def _threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
