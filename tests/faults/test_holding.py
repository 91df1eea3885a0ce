"""Sixteen processes that run jobs with keys: no key has more holders than places, and no waiting job is forgotten.

With HOLDFAST_LONG=1 in the environment they run for a minute instead of two seconds.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.values import JobState

from ..servers.places import Place, every_engine
from .holding import PLACES
from .ledgers import GrowingFile
from .processes import Programs

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
SECONDS = 60.0 if IS_LONG else 2.0
HOLDERS = 16

pytestmark = pytest.mark.timeout(1800 if IS_LONG else 600)


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


@every_engine
def test_sixteen_processes_never_exceed_the_places_of_a_key(place: Place, programs: Programs) -> None:
    ledger = place.directory / "ledger"
    holders = [programs.module("tests.faults.holding", place.url, str(ledger), str(SECONDS)) for _ in range(HOLDERS)]
    for holder in holders:
        holder.wait_for("ready")
    for holder in holders:
        holder.tell()
    for holder in holders:
        assert (holder.ended(within_s=SECONDS + 480.0), holder.complained) == (0, "")
    running: Counter[str] = Counter()
    held: dict[str, list[str]] = {}
    most: Counter[str] = Counter()
    done: Counter[str] = Counter()
    finished: set[str] = set()
    unique: list[str] = []
    for what, id, *slots in (line.split() for line in GrowingFile(ledger).lines()):
        if what == "start":
            held[id] = slots
            running.update(slots)
            most |= running
            for slot in slots:
                assert not done[slot], f"job {id} ran although its key was done"
        elif what == "end":
            running.subtract(held.pop(id, []))
        elif what == "stored" and id not in finished:
            assert finished.issuperset(unique), "two jobs with one unique key were open at once"
            unique.append(id)
        elif what == "done":
            finished.add(id)
            done.update(slot for slot in slots if slot.startswith("idempotency:"))
    assert {slot: number for slot, number in most.items() if number > (PLACES if "wide" in slot else 1)} == {}
    assert max(most.values()) == PLACES, "the crowd was too small to show anything"
    assert set(done.values()) == {1}
    assert len(unique) > 1
    engine, _ = EngineFactory(Unsigned()).open(place.url)
    with engine:
        assert {state for states in engine.counts().values() for state in states} == {JobState.COMPLETED}
        assert engine.slots() == []
    place.check()
