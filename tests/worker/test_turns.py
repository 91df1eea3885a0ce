"""Whose turn it is, and how many jobs at once."""

from collections import Counter

import pytest

from holdfast.worker.turns import BATCH_S, LARGEST_BATCH, Pace, Turns


def _serve(turns: Turns, rounds: int, *, has_work: set[str] | None = None, batch: int = 1) -> Counter[str]:
    """Serve as the worker does: the first queue in order that has work, and word of those that had none."""
    served: Counter[str] = Counter()
    for _ in range(rounds):
        for queue in turns.order(turns.queues):
            number = batch if has_work is None or queue in has_work else 0
            turns.took(queue, number)
            if number:
                served[queue] += number
                break
    return served


@pytest.mark.parametrize("batch", [1, 50])
def test_queues_with_work_are_served_by_their_weights(batch: int) -> None:
    served = _serve(Turns({"a": 3, "b": 1, "c": 2}), 60, batch=batch)
    assert served == {"a": 30 * batch, "b": 10 * batch, "c": 20 * batch}


def test_the_turns_are_mixed_and_not_in_blocks() -> None:
    turns = Turns({"a": 3, "b": 1})
    assert [_serve(turns, 4) for _ in range(5)] == [Counter(a=3, b=1)] * 5


def test_a_queue_without_work_leaves_its_turns_to_the_others() -> None:
    assert _serve(Turns({"a": 1, "b": 9}), 10, has_work={"a"}) == {"a": 10}


@pytest.mark.parametrize("alone", ["a", "b"])
def test_a_queue_that_had_no_work_for_long_does_not_catch_up(alone: str) -> None:
    turns = Turns({"a": 1, "b": 1})
    _serve(turns, 1000, has_work={alone})
    served = _serve(turns, 11)
    assert sorted(served.values()) == [5, 6]


def test_a_worker_begins_with_one_job_for_each_slot() -> None:
    assert Pace().batch("a", 1) == 1
    assert Pace().batch("a", 4) == 4


def test_the_batch_grows_while_jobs_are_short_and_has_an_end() -> None:
    pace = Pace()
    batches: list[int] = []
    for _ in range(100):
        pace.saw("a", BATCH_S / 100)
        batches.append(pace.batch("a", 1))
    assert batches == sorted(batches)
    assert batches[0] == 1, "one short job proves little"
    assert 90 <= batches[-1] <= 100
    for _ in range(1000):
        pace.saw("a", 0.0)
    assert pace.batch("a", 1) == LARGEST_BATCH


def test_a_queue_of_quick_jobs_leaves_room_beside_it() -> None:
    pace = Pace(is_shared=True)
    for _ in range(100):
        pace.saw("quick", 0.0001)
    assert pace.room({}, "quick", 1) > 300
    assert pace.room({"quick": 300}, "unknown", 1) == 1
    assert pace.room({"quick": 300}, "quick", 1) > 50
    pace.saw("slow", 10.0)
    assert pace.room({"quick": 300}, "slow", 1) == 1
    assert (pace.room({"slow": 1}, "quick", 1), pace.room({"slow": 1}, "quick", 2)) == (0, 1)
    assert pace.room({"quick": LARGEST_BATCH}, "unknown", 1) == 0


def test_one_slow_job_is_believed_at_once_and_for_its_queue_only() -> None:
    pace = Pace()
    for queue in ("a", "b"):
        for _ in range(100):
            pace.saw(queue, 0.0001)
    pace.saw("a", 10.0)
    assert pace.batch("a", 2) == 2
    assert pace.batch("b", 2) > 100
