"""Sixteen processes that share cells and a bucket: all writes or none, one winner per version, no rate exceeded.

With HOLDFAST_LONG=1 in the environment they run for a minute instead of two seconds.
"""

import os
import time
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned

from ..servers.places import Place, every_engine
from .processes import Programs
from .sharing import BURST, COUNTER, PER_S, STEP, Share

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
SECONDS = 60.0 if IS_LONG else 2.0
SHARERS = 16

pytestmark = pytest.mark.timeout(1200 if IS_LONG else 240)


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


@every_engine
def test_sixteen_processes_count_together_and_no_rate_is_exceeded(place: Place, programs: Programs) -> None:
    sharers = [
        programs.module("tests.faults.sharing", place.url, str(number), str(SECONDS)) for number in range(SHARERS)
    ]
    for sharer in sharers:
        sharer.wait_for("ready")
    began = time.monotonic()
    for sharer in sharers:
        sharer.tell()
    for sharer in sharers:
        assert (sharer.ended(within_s=SECONDS + 120.0), sharer.complained) == (0, "")
    took_s = time.monotonic() - began
    shares = [msgspec.json.decode(sharer.said_lines()[-1], type=Share) for sharer in sharers]

    counted = sorted(number for share in shares for number in share.counted)
    assert counted == list(range(1, len(counted) + 1)), "two of them counted to the same number, or one was left out"
    engine, _ = EngineFactory(Unsigned()).open(place.url)
    with engine:
        [counter] = engine.state.read(COUNTER)
        steps = [cell.key for cell in engine.state.read_all(STEP)]
        engine.state.sweep()
    assert int(counter.value) == len(counted)
    assert steps == [f"{number:08}" for number in counted], "a step was written without its count, or the reverse"

    granted = sum(share.granted for share in shares)
    assert BURST <= granted <= PER_S * took_s + BURST
    turns = [version for share in shares for version in share.turns]
    assert len(set(turns)) == len(turns), "two turns had the same version"
    for share in shares:
        assert share.turns == sorted(share.turns), "a later turn had a smaller version"
    assert len(counted) > SHARERS
    place.check()
