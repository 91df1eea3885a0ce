"""Waiting for something another process does: how often to look, and when to give up."""

import time
from collections.abc import Iterator
from typing import Final

FIRST_LOOK_S: Final = 0.005
SLOWEST_LOOK_S: Final = 0.2


def looks(limit_s: float) -> Iterator[None]:
    """One turn for each look, ever more seldom, the last when that many seconds have passed; 0 = without end.

    A look that itself takes long is followed by a pause as long: waiting shall not be half of an engine's work.
    """
    give_up_at = time.monotonic() + limit_s if limit_s else float("inf")
    pause = FIRST_LOOK_S
    while True:
        began = time.monotonic()
        yield
        now = time.monotonic()
        if now >= give_up_at:
            return
        time.sleep(min(max(pause, now - began), give_up_at - now))
        pause = min(pause * 1.5, SLOWEST_LOOK_S)
