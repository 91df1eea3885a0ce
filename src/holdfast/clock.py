"""Clocks. Wall time decides what is due or expired; monotonic time measures durations within this process.

Engines count microseconds since the epoch; users see aware UTC datetimes.
"""

import select
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

MICROSECONDS = 1_000_000
_SELECT_LIMIT = 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Clock(Protocol):
    """Tells the time and waits."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards; comparable only within this process."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds of this clock."""
        ...

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        """Wait for this many seconds, or until some of these descriptors are readable, and return those."""
        ...


class SystemClock:
    """The host's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        return _readable(descriptors, seconds)


class ManualClock:
    """A clock that moves only when `advance` is called: for tests, and for the `sync` engine, which must not sleep."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now_us = to_us(start)
        self._monotonic = 1000.0

    def now_us(self) -> int:
        with self._lock:
            return self._now_us

    def monotonic(self) -> float:
        with self._lock:
            return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        readable = _readable(descriptors, 0.0)
        if not readable:
            self.advance(seconds)
        return readable

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError("time only moves forwards; use set_back() to move the wall clock back")
        with self._lock:
            self._now_us += duration_us(seconds)
            self._monotonic += seconds

    def set_back(self, seconds: float) -> None:
        """Move the wall clock back, as an operator or a bad time server would; monotonic time does not change."""
        with self._lock:
            self._now_us -= duration_us(seconds)


SYSTEM_CLOCK = SystemClock()


def to_us(instant: datetime) -> int:
    """Microseconds since the epoch. Exact, unlike `timestamp()`, which rounds to a float."""
    if instant.tzinfo is None:
        raise ValueError(f"{instant.isoformat()} has no time zone; pass an aware datetime")
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * MICROSECONDS + since.microseconds


def from_us(microseconds: int) -> datetime:
    """The aware UTC datetime of microseconds since the epoch, limited to the range of `datetime`."""
    # Until the year 2242, a float of seconds is exact to a quarter of a microsecond, and is rounded to the nearest one.
    try:
        return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return _LATEST if microseconds > 0 else _EARLIEST


def duration_us(seconds: float) -> int:
    """A duration in whole microseconds, rounded up so that no job is delivered early."""
    return -int(-seconds * MICROSECONDS // 1)


def _readable(descriptors: Sequence[int], seconds: float) -> frozenset[int]:
    if not descriptors:
        time.sleep(seconds)
        return frozenset()
    if max(descriptors) < _SELECT_LIMIT:
        return frozenset(select.select(descriptors, (), (), seconds)[0])
    # `poll` takes any descriptor, but counts in milliseconds.
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return frozenset(descriptor for descriptor, _ in poller.poll(seconds * 1000))
