"""`TravellingClock`: the real time, and what was travelled."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.testing import TravellingClock


def test_it_follows_the_hosts_clock_also_when_a_test_has_frozen_that(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = datetime(2030, 5, 1, 12, tzinfo=UTC)
    monkeypatch.setattr(time, "time_ns", lambda: int(frozen.timestamp()) * 1_000_000_000)
    clock = TravellingClock()
    assert clock.now() == frozen
    clock.advance(timedelta(days=1))
    assert clock.now() == frozen + timedelta(days=1)
    clock.travel_to(frozen + timedelta(days=2))
    clock.travel_to(frozen)
    assert clock.now() == frozen + timedelta(days=2)


def test_waiting_is_travelling() -> None:
    clock = TravellingClock()
    before, monotonic = clock.now(), clock.monotonic()
    clock.sleep(1800)
    assert clock.wait(1800, ()) == frozenset()
    assert clock.now() - before >= timedelta(hours=1)
    assert clock.monotonic() - monotonic >= 3600


def test_waiting_ends_at_once_where_there_is_something_to_read() -> None:
    clock = TravellingClock()
    reading, writing = os.pipe()
    try:
        os.write(writing, b"x")
        before = clock.now_us()
        assert clock.wait(86400, [reading]) == {reading}
        assert clock.now_us() - before < 86400 * 1_000_000
    finally:
        os.close(reading)
        os.close(writing)


def test_it_stands_still_but_for_travelling() -> None:
    clock = TravellingClock()
    with clock.standing_still():
        before = clock.now()
        with clock.standing_still():
            clock.advance(60)
        assert clock.now() == before + timedelta(minutes=1)
    assert clock.now() >= before + timedelta(minutes=1)


@pytest.mark.parametrize("span", [-1, timedelta(seconds=-1), float("nan")])
def test_time_passes_forwards(span: float | timedelta) -> None:
    with pytest.raises(ValueError, match="cannot be advanced"):
        TravellingClock().advance(span)
