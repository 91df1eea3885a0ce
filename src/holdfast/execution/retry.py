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

    Jitter changes every growing or fixed delay by up to that share of it. The cap is applied after the jitter, so
    `max` is never exceeded; 0 = no cap. A list of delays is used as written, without jitter and cap.
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
        if backoff.strategy is BackoffStrategy.NONE:
            return 0.0
        spread = 1.0 + backoff.jitter * (2.0 * self._random() - 1.0)
        return min(_grown(backoff, attempt) * spread, backoff.max or MAX_DURATION_S, MAX_DURATION_S)


def _grown(backoff: Backoff, attempt: int) -> float:
    # As floats: an exact integer power would have a thousand bits at the thousandth retry.
    base = float(backoff.base)
    if backoff.strategy is BackoffStrategy.FIXED:
        return base
    if backoff.strategy is BackoffStrategy.LINEAR:
        return base * (attempt - 1)
    try:
        return base * float(backoff.multiplier) ** (attempt - 2)
    except OverflowError:
        return MAX_DURATION_S if base else 0.0
