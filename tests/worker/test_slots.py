"""Which jobs run at the same time, how many are handed over at once, and in which order queues are served."""

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from holdfast.values import JobState, Outcome, WorkerStatus
from holdfast.worker import dispatcher
from holdfast.worker.executors.process import ExecutorProcess, Flight
from holdfast.worker.pace import Pace

from ..faults.processes import until
from .floor import Floor


def test_one_slot_runs_plain_functions_on_the_main_thread(floor: Floor) -> None:
    id = floor.put("gated", {"gate": "open"})
    floor.open_gate("open")
    floor.work()
    assert floor.noted("start", id).words == ("True",)


def test_plain_functions_in_the_slots_of_one_child_overlap(floor: Floor) -> None:
    ids = [floor.put("meets", {"number": 3}) for _ in range(3)]
    floor.work(concurrency=3)
    assert floor.ends() == Counter(ids)
    assert len({entry.pid for entry in floor.ledger()}) == 1


def test_children_overlap(floor: Floor) -> None:
    ids = [floor.put("meets", {"number": 2}) for _ in range(2)]
    floor.work(processes=2)
    assert floor.ends() == Counter(ids)
    assert len({entry.pid for entry in floor.ledger()}) == 2


def test_coroutines_in_one_child_overlap_on_one_loop_beside_plain_functions(floor: Floor) -> None:
    ids = [floor.put("gated_async", {"gate": "all"}) for _ in range(3)]
    plain = floor.put("gated", {"gate": "all"})
    floor.start(concurrency=4)
    starts = [floor.noted("start", id) for id in ids]
    assert floor.noted("start", plain).words == ("False",)
    assert len({entry.pid for entry in floor.ledger()}) == 1
    assert len({entry.words for entry in starts}) == 1, "one loop, on one thread"
    floor.open_gate("all")
    for id in (*ids, plain):
        floor.reached(id, JobState.COMPLETED)
        assert floor.outcomes(id) == [Outcome.SUCCEEDED]


def test_a_worker_begins_with_one_job_for_each_slot_and_hands_short_ones_over_in_batches(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    give = ExecutorProcess.give

    def spied(self: ExecutorProcess, flights: Sequence[Flight]) -> None:
        frames.append(len(flights))
        give(self, flights)

    monkeypatch.setattr(ExecutorProcess, "give", spied)
    # A busy machine makes quick jobs slow.
    monkeypatch.setattr(dispatcher, "RELEASE_AFTER_S", 3600.0)
    monkeypatch.setattr(dispatcher, "RELEASE_ANYWAY_S", 3600.0)
    ids = floor.put_many(400, "quick")
    worker = floor.work()
    assert frames[0] == 1
    assert max(frames) > 5
    assert floor.ends() == Counter(ids)
    assert worker.tally == {WorkerStatus.ACKED: 400}


def test_jobs_behind_a_slow_one_go_to_a_free_child(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "room", _many)
    monkeypatch.setattr(dispatcher, "RELEASE_AFTER_S", 3600.0)
    ids = _slow_one_in_front(floor, behind=3)
    floor.start(processes=2)
    for id in ids[1:]:
        floor.reached(id, JobState.COMPLETED)
    assert floor.state(ids[0]) is JobState.PROCESSING
    assert {floor.view(id).deliveries for id in ids} == {1}


def test_jobs_behind_a_slow_one_are_handed_back_once_if_no_child_is_free(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "room", _many)
    slow, *behind = _slow_one_in_front(floor, behind=6)
    worker = floor.start()
    until(lambda: worker.tally.get(WorkerStatus.RELEASED) == 6, "those behind to be handed back")
    assert {floor.state(id) for id in behind} == {JobState.PENDING}
    floor.start()
    for id in behind:
        floor.reached(id, JobState.COMPLETED)
        assert floor.outcomes(id)[0] is Outcome.INTERRUPTED
        assert floor.view(id).attempts == 0
    assert floor.state(slow) is JobState.PROCESSING
    assert worker.tally == {WorkerStatus.RELEASED: 6}, "it has not fetched them again"


def test_each_verdict_is_written_before_the_next_job_starts(floor: Floor) -> None:
    ids = floor.put_many(300, "brief")
    floor.start()
    victims: set[int] = set()
    for reached in (100, 250, 400):
        until(lambda: len(floor.ledger()) >= reached, "the jobs to get on")  # noqa: B023
        until(lambda: floor.ledger()[-1].pid not in victims, "the next child")
        victims.add(pid := floor.ledger()[-1].pid)
        os.kill(pid, signal.SIGKILL)
    for id in ids:
        floor.reached(id, JobState.COMPLETED)
    crashed = {id for id in ids if Outcome.CRASHED in floor.outcomes(id)}
    assert len(crashed) <= len(victims)
    assert {id for id, times in floor.starts().items() if times > 1} <= crashed
    assert {id: floor.view(id).attempts for id in crashed} == dict.fromkeys(crashed, 1)


def test_a_queue_of_quick_jobs_leaves_room_for_another(floor: Floor) -> None:
    """However large its batches have become, and though the other one's pace is not known yet."""
    quick = floor.put_many(3000, "quick", queue="quick")
    worker = floor.start(queues={"quick": 1, "late": 1}, processes=2)
    until(lambda: worker.supervisor.reporter.done > 500, "large batches")
    late = floor.put("brief", queue="late")
    floor.put_many(20_000, "quick", queue="quick")
    floor.reached(late, JobState.COMPLETED)
    assert floor.engine.counts("quick")["quick"].get(JobState.PENDING, 0) > 2000
    assert floor.state(quick[0]) is JobState.COMPLETED


def test_queues_are_served_by_their_weights(floor: Floor) -> None:
    for queue, number in (("b", 4), ("a", 12)):
        for _ in range(number):
            floor.put("sleeps", {"seconds": 0.03}, queue=queue)
    floor.work(queues={"a": 3, "b": 1})
    served = [floor.view(entry.id).queue for entry in floor.ledger("start")]
    assert [Counter(served[at : at + 4]) for at in (0, 4, 8, 12)] == [Counter(a=3, b=1)] * 4


def _many(_self: Pace, held: Mapping[str, int], _queue: str, _slots: int) -> int:
    """The batch of a worker that has seen only short jobs so far."""
    return 50 - sum(held.values())


def _slow_one_in_front(floor: Floor, *, behind: int) -> list[str]:
    """A job that waits at its gate and others after it, all accepted, and so claimed, together."""
    slow, short = floor.definition("gated"), floor.definition("brief")
    envelopes = [floor.engine.envelopes.make(each) for each in (slow, *[short] * behind)]
    return [one.id for one in floor.engine.accept(envelopes)]
