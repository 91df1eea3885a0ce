"""`Pace`: how long the jobs of each queue take, and so how many of them to hold at once."""

from collections.abc import Mapping, Sequence
from typing import Final

# A child should have work for about this long: enough to never wait for the next batch, too little to hoard.
BATCH_S: Final = 0.08
LARGEST_BATCH: Final = 2000
# A pace nobody has measured yet: as slow as a batch, so that a worker begins with one job for each slot.
_UNKNOWN_S: Final = BATCH_S
_DECAY: Final = 0.6


class Pace:
    """How long the jobs of each queue take, as far as lately seen: slow ones are believed at once.

    Whole batches are averaged: one job among hundreds that was slow, because something else had the processor, says
    nothing about the next.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        self._seconds: dict[str, float] = {}
        self._lately: dict[str, list[float]] = {}

    def took(self, queue: str, durations: Sequence[float]) -> None:
        """Jobs took so long each; `learn` makes one batch of all that was told since it was last called."""
        self._lately.setdefault(queue, []).extend(durations)

    def learn(self) -> None:
        for queue, durations in self._lately.items():
            self.saw(queue, sum(durations), len(durations))
        self._lately.clear()

    def saw(self, queue: str, seconds: float, jobs: int = 1) -> None:
        """So many jobs took that long together."""
        known, mean = self._pace(queue), seconds / jobs
        self._seconds[queue] = max(mean, known + (mean - known) * (1 - _DECAY**jobs))

    def batch(self, queue: str, slots: int) -> int:
        """How many jobs of this queue alone a child with so many slots should have at hand."""
        return self.room({}, queue, slots)

    def room(self, held: Mapping[str, int], queue: str, slots: int) -> int:
        """How many jobs of this queue such a child should be given beside those it has, by queue.

        What counts is the time they will take, so that a queue of quick jobs leaves room for one of slow ones. Where
        there are several queues, any room is a place for one job of each: whose turn it is decides.
        """
        number = sum(held.values())
        left_s = slots * BATCH_S - sum(self._pace(name) * jobs for name, jobs in held.items())
        pace = self._pace(queue)
        fitting = int(left_s / pace) if pace > 0 else LARGEST_BATCH
        least = 1 if left_s > 0 and self._is_shared else 0
        return max(slots - number, min(LARGEST_BATCH - number, max(fitting, least)), 0)

    def _pace(self, queue: str) -> float:
        return self._seconds.get(queue, _UNKNOWN_S)
