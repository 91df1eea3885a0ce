"""`TravellingClock`: the time of a test, which is the real one until somebody lets more of it pass."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from holdfast.clock import MICROSECONDS, SystemClock, duration_us, from_us, to_us

LONGEST_WAIT_S: Final = 3600.0


class TravellingClock(SystemClock):
    """The host's clocks, ahead by what has been travelled. Waiting takes no time: it is travelling.

    Since it follows the host's, it agrees with `datetime.now()` in the code under test, and with whatever freezes that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead_us = 0
        self._still_us: int | None = None
        self._waited_s = 0.0

    def now(self) -> datetime:
        """What time it is in the test."""
        return from_us(self.now_us())

    def now_us(self) -> int:
        still_us = self._still_us
        return (super().now_us() if still_us is None else still_us) + self._ahead_us

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_us / MICROSECONDS

    def advance(self, span: float | timedelta) -> None:
        """Let that much time pass."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else span
        if not seconds >= 0:
            raise ValueError(f"time passes forwards, so it cannot be advanced by {seconds:g} s")
        with self._lock:
            self._ahead_us += duration_us(seconds)

    @contextmanager
    def standing_still(self) -> Generator[None]:
        """Move the wall clock only by travelling while the block runs, so that the order of jobs is always the same."""
        before = self._still_us
        if before is None:
            self._still_us = super().now_us()
        try:
            yield
        finally:
            self._still_us = before

    def travel_to(self, instant: datetime) -> None:
        """Let time pass until then; an instant that has passed already changes nothing."""
        missing_us = to_us(instant) - self.now_us()
        if missing_us > 0:
            with self._lock:
                self._ahead_us += missing_us

    def sleep(self, seconds: float) -> None:
        self._waited_s += seconds
        if self._waited_s > LONGEST_WAIT_S:
            self.woken()
            raise TimeoutError(
                "the test has waited an hour of its own time for a job, and nothing runs jobs meanwhile: call drain() "
                "before you ask for the result, or put the kit in inline mode"
            )
        self.advance(seconds)

    def woken(self) -> None:
        """Something has happened to a job: whoever waits may hope again."""
        self._waited_s = 0.0

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        readable = super().wait(0.0, descriptors)
        if not readable:
            self.advance(seconds)
        return readable
