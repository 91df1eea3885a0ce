"""`TravellingClock`: the clock of a test. It shows the real time until it is advanced."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from holdfast.clock import MICROSECONDS, SystemClock, duration_us, from_us, to_us
from holdfast.definition.durations import Duration, in_seconds

LONGEST_WAIT_S: Final = 3600.0


class TravellingClock(SystemClock):
    """The host's clocks plus the time by which they were advanced. Waiting takes no real time: it advances the clock.

    It follows the host's clock, so it agrees with `datetime.now()` in the code under test, also if a library freezes
    that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_us = 0
        self._still_us: int | None = None
        self._waited_s = 0.0

    def now(self) -> datetime:
        """The current time of the test."""
        return from_us(self.now_us())

    def now_us(self) -> int:
        still_us = self._still_us
        return (super().now_us() if still_us is None else still_us) + self._ahead_us

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_us / MICROSECONDS

    def advance(self, span: Duration) -> None:
        """Advance the clock by this much."""
        seconds = in_seconds("span", span)
        if not seconds >= 0:
            raise ValueError(f"the clock cannot be advanced by {seconds:g} s; pass 0 or more")
        with self._lock:
            self._ahead_us += duration_us(seconds)

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Inside the block, move the wall clock only by advancing it, so that the order of jobs is always the same."""
        before = self._still_us
        if before is None:
            self._still_us = super().now_us()
        try:
            yield
        finally:
            self._still_us = before

    def travel_to(self, instant: datetime) -> None:
        """Advance the clock to this instant; one in the past changes nothing."""
        missing_us = to_us(instant) - self.now_us()
        if missing_us > 0:
            with self._lock:
                self._ahead_us += missing_us

    def sleep(self, seconds: float) -> None:
        self._waited_s += seconds
        if self._waited_s > LONGEST_WAIT_S:
            self.woken()
            raise TimeoutError(
                "the test waited for a job for one hour of simulated time, but no job runs while the test waits: call "
                "drain() before you ask for the result, or use inline mode"
            )
        self.advance(seconds)

    def woken(self) -> None:
        """Restart the limit on waiting, because a job has changed."""
        self._waited_s = 0.0

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        readable = super().wait(0.0, descriptors)
        if not readable:
            self.advance(seconds)
        return readable
