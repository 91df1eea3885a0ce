"""Polling for something that another process does."""

import time
from collections.abc import Iterator
from typing import Final

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.2


def looks(limit_s: float) -> Iterator[None]:
    """Yield once per poll, at growing intervals, and a last time when this many seconds have passed; 0 = no limit.

    A slow poll is followed by an equally long pause, so that waiting takes at most half of the engine's time.
    """
    give_up_at = time.monotonic() + limit_s if limit_s else float("inf")
    pause = FIRST_PAUSE_S
    while True:
        began = time.monotonic()
        yield
        now = time.monotonic()
        if now >= give_up_at:
            return
        time.sleep(min(max(pause, now - began), give_up_at - now))
        pause = min(pause * 1.5, LONGEST_PAUSE_S)
