"""When a failed job runs again. A policy is one method; `BackoffPolicy` is the one out of the box."""

import random as _random
from collections.abc import Callable
from typing import Protocol

from holdfast.definition.definition import MAX_SPAN_S
from holdfast.values import Backoff, BackoffStrategy, ErrorInfo


class RetryPolicy(Protocol):
    """How long to wait before a run."""

    def delay(self, attempt: int, error: ErrorInfo | None) -> float:
        """Seconds before run number `attempt`, the one about to come: 1 is the first run, 2 the first retry."""
        ...


class BackoffPolicy:
    """Grows the delay as a `Backoff` says: 2, 4, 8 … seconds unless told otherwise.

    Jitter spreads every growing or fixed delay by up to that part of it, and the cap comes after it, so `max` is
    never exceeded; a `max` of 0 is no cap. A list of delays is taken as written: no jitter, no cap.
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
        return min(_grown(backoff, attempt) * spread, backoff.max or MAX_SPAN_S, MAX_SPAN_S)


def _grown(backoff: Backoff, attempt: int) -> float:
    # Floats, whatever was given: an integer power would be exact, and at the thousandth retry a thousand bits long.
    base = float(backoff.base)
    if backoff.strategy is BackoffStrategy.FIXED:
        return base
    if backoff.strategy is BackoffStrategy.LINEAR:
        return base * (attempt - 1)
    try:
        return base * float(backoff.multiplier) ** (attempt - 2)
    except OverflowError:
        return MAX_SPAN_S if base else 0.0
