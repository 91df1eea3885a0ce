"""`Drained`: how the runs of a drain ended, as counts."""

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
    WorkerStatus.SKIPPED_IDEMPOTENT: "skipped",
    WorkerStatus.BLOCKED: "blocked",
    WorkerStatus.RATE_LIMITED: "rate_limited",
}


class Drained(Counter[str]):
    """The number of runs by how they ended. It equals a dict of the counts that are not 0; every other count is 0.

    `succeeded`; `retried`: failed, and will run again; `dead`: failed, with no retries left; `snoozed`; `cancelled`,
    which includes expired jobs; `skipped`: another job had completed its idempotency key; `blocked`: it waits for a key
    that another job holds; `rate_limited`: its own rate limit put it off; `unknown`: the application has no handler for
    the job, which was cancelled; `lost`: the lease was lost during the run.
    """

    def __init__(self, counts: Iterable[str] = ()) -> None:
        super().__init__(counts)
        self.errors: list[str] = []
        """The error of each failed run, in order."""

    def add(self, result: WorkerResult) -> None:
        """Count one run."""
        self[end_of(result)] += 1
        if result.error is not None:
            self.errors.append(f"{result.job or result.job_id}: {result.error.line}")

    def __repr__(self) -> str:
        counts = ", ".join(f"{end!r}: {number}" for end, number in self.items())
        errors = "".join(f"\n  {line}" for line in dict.fromkeys(self.errors))
        return f"{{{counts}}}{errors}"


def end_of(result: WorkerResult) -> str:
    """The name under which a run is counted."""
    if result.status is WorkerStatus.RELEASED and result.error is not None:
        return UNKNOWN
    return _ENDS.get(result.status, str(result.status))
