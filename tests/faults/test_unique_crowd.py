"""Sixteen processes that enqueue the same unique jobs: one waits per key, and none that was reported is forgotten.

With HOLDFAST_LONG=1 in the environment they run for a minute instead of two seconds.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.values import EnqueueOutcome, JobState

from ..servers.places import Place, every_engine
from .ledgers import GrowingFile
from .processes import Programs

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
SECONDS = 60.0 if IS_LONG else 2.0
PRODUCERS = 16

pytestmark = pytest.mark.timeout(1200 if IS_LONG else 300)


class Call(NamedTuple):
    """A call that enqueued a job: the lines of the ledger at which it, or the commit of its transaction, began, and at
    which it returned.
    """

    payload: str
    began: int
    returned: int


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


@every_engine
def test_sixteen_producers_of_a_key_keep_one_waiting_job(place: Place, programs: Programs) -> None:
    ledger = place.directory / "ledger"
    producers = [
        programs.module("tests.faults.uniquing", place.url, str(ledger), str(SECONDS)) for _ in range(PRODUCERS)
    ]
    for producer in producers:
        producer.wait_for("ready")
    for producer in producers:
        producer.tell()
    for producer in producers:
        assert (producer.ended(within_s=SECONDS + 120.0), producer.complained) == (0, "")
    asked: dict[str, int] = {}
    calls: dict[EnqueueOutcome, dict[str, list[Call]]] = {outcome: defaultdict(list) for outcome in EnqueueOutcome}
    started: dict[str, tuple[int, str]] = {}
    for number, (what, *rest) in enumerate(line.split() for line in GrowingFile(ledger).lines()):
        if what in ("ask", "commit"):
            asked[rest[0]] = number
        elif what == "answer":
            payload, id, outcome = rest
            calls[EnqueueOutcome(outcome)][id].append(Call(payload, asked[payload], number))
        else:
            id, payload = rest
            assert id not in started, "a job ran twice"
            started[id] = number, payload
    assert calls[EnqueueOutcome.CREATED].keys() <= started.keys(), "a job that was stored never ran"
    for outcome in (EnqueueOutcome.EXISTING, EnqueueOutcome.REPLACED):
        assert calls[outcome], "the crowd was too small to show anything"
        for id, ones in calls[outcome].items():
            at, _ = started[id]
            assert all(one.began < at for one in ones), f"job {id} had started before it was reported as waiting"
    for id, (_, payload) in started.items():
        ones = calls[EnqueueOutcome.CREATED][id] + calls[EnqueueOutcome.REPLACED][id]
        ran = next((one for one in ones if one.payload == payload), None)
        assert ran is not None, f"job {id} ran with a payload that nothing reported"
        for other in calls[EnqueueOutcome.REPLACED][id]:
            assert other.began < ran.returned, f"job {id} ran with a payload that had been replaced"
    engine, _ = EngineFactory(Unsigned()).open(place.url)
    with engine:
        counts = engine.counts()
    assert all(states.keys() == {JobState.COMPLETED} for states in counts.values())
    assert sum(states[JobState.COMPLETED] for states in counts.values()) == len(started)
    place.check()
