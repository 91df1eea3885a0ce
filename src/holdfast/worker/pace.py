"""`Pace`: estimates how long the jobs of each queue take, and so how many of them to hold at once."""

from collections.abc import Mapping, Sequence
from typing import Final

# A child should have work for about this long: enough that it never waits for the next batch, too little to hoard.
BATCH_S: Final = 0.08
LARGEST_BATCH: Final = 2000
# Until a queue's pace is measured, each job is assumed to fill a batch, so a worker starts with one job per slot.
_UNKNOWN_S: Final = BATCH_S
_DECAY: Final = 0.6


class Pace:
    """A decaying average of the job durations of each queue. A slower batch raises it at once.

    Whole batches are averaged: one slow job among hundreds, because something else had the processor, says nothing
    about the next one.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self._is_shared = is_shared
        self._seconds: dict[str, float] = {}
        self._recent: dict[str, list[float]] = {}

    def took(self, queue: str, durations: Sequence[float]) -> None:
        """Record how many seconds each of some jobs took."""
        self._recent.setdefault(queue, []).extend(durations)

    def learn(self) -> None:
        """Update the averages; all jobs recorded since the last call are one batch."""
        for queue, durations in self._recent.items():
            self.saw(queue, sum(durations), len(durations))
        self._recent.clear()

    def saw(self, queue: str, seconds: float, jobs: int = 1) -> None:
        """Update the average with a batch of jobs that took so many seconds together."""
        known, mean = self._pace(queue), seconds / jobs
        self._seconds[queue] = max(mean, known + (mean - known) * (1 - _DECAY**jobs))

    def batch(self, queue: str, slots: int) -> int:
        """The number of jobs of this queue for an idle child with so many slots."""
        return self.room({}, queue, slots)

    def room(self, held: Mapping[str, int], queue: str, slots: int) -> int:
        """The number of jobs of this queue for a child, in addition to those it has (`held`, by queue).

        What counts is the time they will take, so that a queue of short jobs leaves room for one with long jobs. If
        there are several queues and any room at all, each of them has room for one job: the round robin then decides.
        """
        number = sum(held.values())
        left_s = slots * BATCH_S - sum(self._pace(name) * jobs for name, jobs in held.items())
        pace = self._pace(queue)
        fitting = int(left_s / pace) if pace > 0 else LARGEST_BATCH
        least = 1 if left_s > 0 and self._is_shared else 0
        return max(slots - number, min(LARGEST_BATCH - number, max(fitting, least)), 0)

    def _pace(self, queue: str) -> float:
        return self._seconds.get(queue, _UNKNOWN_S)
