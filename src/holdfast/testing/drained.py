"""`Drained`: what came of letting jobs run, in numbers."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from holdfast.values import WorkerResult, WorkerStatus

UNKNOWN: Final = "unknown"
_ENDS: Final = {
    WorkerStatus.ACKED: "succeeded",
    WorkerStatus.REQUEUED: "retried",
    WorkerStatus.DEAD_LETTERED: "dead",
    WorkerStatus.REJECTED: "dead",
    WorkerStatus.RELEASED: "snoozed",
    WorkerStatus.CANCELLED: "cancelled",
    WorkerStatus.LOST_LEASE: "lost",
}


class Drained(Counter[str]):
    """How many runs ended how; equal to a dict of the numbers that are not 0, and 0 for every other word.

    `succeeded`; `retried`: failed, and waits for its next run; `dead`: failed for good; `snoozed`; `cancelled`, also
    because it had expired; `unknown`: the application has no handler for it, and it was set aside; `lost`: taken away
    while it ran.
    """

    def __init__(self, counts: Iterable[str] = ()) -> None:
        super().__init__(counts)
        self.errors: list[str] = []
        """What each failed run said, in the order of the runs."""

    def add(self, result: WorkerResult) -> None:
        """Count the end of one run."""
        self[end_of(result)] += 1
        if result.error is not None:
            self.errors.append(f"{result.job or result.job_id}: {result.error.line}")

    def __repr__(self) -> str:
        counts = ", ".join(f"{end!r}: {number}" for end, number in self.items())
        errors = "".join(f"\n  {line}" for line in dict.fromkeys(self.errors))
        return f"{{{counts}}}{errors}"


def end_of(result: WorkerResult) -> str:
    """What the end of a run is called."""
    if result.status is WorkerStatus.RELEASED and result.error is not None:
        return UNKNOWN
    return _ENDS.get(result.status, str(result.status))
