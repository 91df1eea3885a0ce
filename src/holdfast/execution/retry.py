"""Decides when a failed job runs again. A policy is one method; `BackoffPolicy` is the default."""

import random as _random
from collections.abc import Callable
from typing import Protocol

from holdfast.definition.definition import MAX_DURATION_S
from holdfast.values import Backoff, BackoffStrategy, ErrorInfo


class RetryPolicy(Protocol):
    """Decides how long to wait before a retry."""

    def delay(self, attempt: int, error: ErrorInfo | None) -> float:
        """Seconds to wait before run number `attempt`: 1 is the first run, 2 the first retry."""
        ...


class BackoffPolicy:
    """Computes the delay from a `Backoff`; default: 2, 4, 8 … seconds.

    Fixed and listed delays are exact. A linear or exponential delay is capped at `max` (0 = no cap) and varied by up to
    ± `jitter` of it, but never above the cap: a delay at the cap is a random value up to the cap, so that jobs
    that failed together are not all retried together.
    """

    def __init__(self, backoff: Backoff | None = None, *, random: Callable[[], float] = _random.random) -> None:
        self._backoff = backoff or Backoff()
        self._random = random

    def delay(self, attempt: int, error: ErrorInfo | None = None) -> float:
        if attempt <= 1:
            return 0.0
        backoff = self._backoff
        if backoff.delays:
            return float(backoff.delays[min(attempt - 2, len(backoff.delays) - 1)])
        match backoff.strategy:
            case BackoffStrategy.NONE:
                return 0.0
            case BackoffStrategy.FIXED:
                return float(backoff.base)
            case BackoffStrategy.LINEAR:
                return self._spread(float(backoff.base) * (attempt - 1))
            case BackoffStrategy.EXPONENTIAL:
                return self._spread(_power(backoff, attempt - 2))

    def _spread(self, delay: float) -> float:
        cap = self._backoff.max or MAX_DURATION_S
        delay = min(delay, cap)
        low, high = delay * (1.0 - self._backoff.jitter), min(delay * (1.0 + self._backoff.jitter), cap)
        return min(low + (high - low) * self._random(), high)  # rounding may add a little


def _power(backoff: Backoff, exponent: int) -> float:
    # As floats: an exact integer power would have a thousand bits at the thousandth retry.
    base = float(backoff.base)
    try:
        return base * float(backoff.multiplier) ** exponent
    except OverflowError:
        return MAX_DURATION_S if base else 0.0
