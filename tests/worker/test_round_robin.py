"""The order in which queues are claimed from."""

from collections import Counter

import pytest

from holdfast.worker.round_robin import RoundRobin


def _serve(turns: RoundRobin, rounds: int, *, has_work: set[str] | None = None, batch: int = 1) -> Counter[str]:
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
    served = _serve(RoundRobin({"a": 3, "b": 1, "c": 2}), 60, batch=batch)
    assert served == {"a": 30 * batch, "b": 10 * batch, "c": 20 * batch}


def test_the_turns_are_mixed_and_not_in_blocks() -> None:
    turns = RoundRobin({"a": 3, "b": 1})
    assert [_serve(turns, 4) for _ in range(5)] == [Counter(a=3, b=1)] * 5


def test_a_queue_without_work_leaves_its_turns_to_the_others() -> None:
    assert _serve(RoundRobin({"a": 1, "b": 9}), 10, has_work={"a"}) == {"a": 10}


@pytest.mark.parametrize("alone", ["a", "b"])
def test_a_queue_that_had_no_work_for_long_does_not_catch_up(alone: str) -> None:
    turns = RoundRobin({"a": 1, "b": 1})
    _serve(turns, 1000, has_work={alone})
    served = _serve(turns, 11)
    assert sorted(served.values()) == [5, 6]
