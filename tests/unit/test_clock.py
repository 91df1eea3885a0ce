"""Instants are whole microseconds, durations are never shortened, and a manual clock moves only when advanced."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from holdfast.clock import SYSTEM_CLOCK, Clock, ManualClock, duration_us, from_us, to_us

LAST_EXACT = datetime(2242, 1, 1, tzinfo=UTC)
instants = st.datetimes(
    min_value=datetime(1970, 1, 1),
    max_value=LAST_EXACT.replace(tzinfo=None),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@given(instants)
def test_an_instant_survives_the_way_through_microseconds_to_the_last_one(instant: datetime) -> None:
    assert from_us(to_us(instant)) == instant


@given(st.integers(0, to_us(LAST_EXACT)))
def test_microseconds_survive_the_way_through_a_datetime(microseconds: int) -> None:
    assert to_us(from_us(microseconds)) == microseconds


@pytest.mark.parametrize(("microseconds", "year"), [(2**63 - 1, 9999), (-(2**63), 1), (253_402_300_800_000_000, 9999)])
def test_an_instant_beyond_the_calendar_is_the_end_of_it(microseconds: int, year: int) -> None:
    assert from_us(microseconds).year == year


def test_what_comes_back_is_in_utc_whatever_zone_went_in() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert from_us(to_us(noon)).isoformat() == "2026-01-01T06:30:00+00:00"


def test_a_datetime_without_a_zone_is_refused_not_guessed() -> None:
    with pytest.raises(ValueError, match="2026-01-01T00:00:00 has no time zone"):
        to_us(datetime(2026, 1, 1))


@given(st.floats(0, 1e9))
def test_a_duration_is_rounded_up_and_by_no_more_than_a_microsecond(seconds: float) -> None:
    assert 0 <= duration_us(seconds) - seconds * 1_000_000 <= 1


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, 0), (1e-9, 1), (1e-6, 1), (1.0000001, 1_000_001), (60, 60_000_000)]
)
def test_the_smallest_duration_is_not_zero(seconds: float, expected: int) -> None:
    assert duration_us(seconds) == expected


def test_a_manual_clock_stands_still_until_it_is_told() -> None:
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    before = clock.now_us(), clock.monotonic()
    assert (clock.now_us(), clock.monotonic()) == before
    assert from_us(clock.now_us()) == datetime(2026, 3, 1, tzinfo=UTC)


def test_time_passes_on_both_of_its_clocks_and_sleeping_is_passing() -> None:
    clock = ManualClock()
    wall, monotonic = clock.now_us(), clock.monotonic()
    clock.advance(1.5)
    clock.sleep(0.5)
    assert clock.now_us() - wall == 2_000_000
    assert clock.monotonic() - monotonic == 2


def test_setting_the_wall_clock_back_leaves_monotonic_time_alone() -> None:
    clock = ManualClock()
    wall, monotonic = clock.now_us(), clock.monotonic()
    clock.set_back(3600)
    assert clock.now_us() - wall == -3_600_000_000
    assert clock.monotonic() == monotonic


def test_time_cannot_pass_backwards() -> None:
    clock = ManualClock()
    before = clock.now_us(), clock.monotonic()
    with pytest.raises(ValueError, match="set_back"):
        clock.advance(-1)
    assert (clock.now_us(), clock.monotonic()) == before


def test_threads_that_advance_a_manual_clock_lose_nothing() -> None:
    clock = ManualClock()
    before = clock.now_us()

    def work() -> None:
        for _ in range(500):
            clock.advance(0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_us() - before == 2_000_000


def test_the_system_clock_is_the_hosts() -> None:
    first, now, last = time.time(), SYSTEM_CLOCK.now_us() / 1e6, time.time()
    assert first - 1e-5 <= now <= last + 1e-5
    first, now, last = time.monotonic(), SYSTEM_CLOCK.monotonic(), time.monotonic()
    assert first <= now <= last
    SYSTEM_CLOCK.sleep(0)


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(2)]
    yield made
    for end in (end for ends in made for end in ends):
        os.close(end)


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, ManualClock()])
def test_a_wait_ends_with_the_descriptors_that_can_be_read(clock: Clock, pipes: list[tuple[int, int]]) -> None:
    (quiet, _), (loud, end) = pipes
    assert clock.wait(0.001, []) == frozenset()
    assert clock.wait(0.001, [quiet, loud]) == frozenset()
    os.write(end, b"!")
    before = clock.monotonic()
    assert clock.wait(3600, [quiet, loud]) == {loud}
    assert clock.monotonic() - before < 3600


def test_a_wait_in_which_nothing_happens_passes_the_time(pipes: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    before = clock.monotonic()
    clock.wait(2, [])
    clock.wait(3, [pipes[0][0]])
    assert clock.monotonic() - before == 5
    before = time.monotonic()
    SYSTEM_CLOCK.wait(0.005, [])
    SYSTEM_CLOCK.wait(0.005, [pipes[0][0]])
    assert time.monotonic() - before >= 0.01


def test_a_process_with_very_many_descriptors_can_wait_too(pipes: list[tuple[int, int]]) -> None:
    loud, end = pipes[0]
    high = fcntl.fcntl(loud, fcntl.F_DUPFD, 1024)
    try:
        assert SYSTEM_CLOCK.wait(0.001, [high]) == frozenset()
        os.write(end, b"!")
        assert SYSTEM_CLOCK.wait(3600, [high, pipes[1][0]]) == {high}
    finally:
        os.close(high)
