"""The counters of a worker. Every delivery of a job to a worker has exactly one `End`.

In a worker that has stopped, `jobs_fetched` equals the sum of the ends: a job that is in neither is a bug.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from holdfast.values import WorkerStatus

FETCHED: Final = "jobs_fetched"
FAILED: Final = "jobs_failed"
REAPED: Final = "jobs_reaped"


class End(StrEnum):
    """How a delivery ended: the name of its counter, the status of the worker's turn, and the meaning."""

    status: WorkerStatus
    meaning: str

    def __new__(cls, counter: str, status: WorkerStatus, meaning: str) -> Self:
        end = str.__new__(cls, counter)
        end._value_ = counter
        end.status, end.meaning = status, meaning
        return end

    SUCCEEDED = "jobs_succeeded", WorkerStatus.ACKED, "Runs that succeeded."
    SKIPPED_IDEMPOTENT = (
        "jobs_skipped_idempotent",
        WorkerStatus.SKIPPED_IDEMPOTENT,
        "Jobs not run because another job has completed their idempotency key.",
    )
    REQUEUED = "jobs_requeued", WorkerStatus.REQUEUED, "Failed runs that will be retried."
    FAILED_PERMANENTLY = (
        "jobs_failed_permanently",
        WorkerStatus.DEAD_LETTERED,
        "Jobs that became dead letters after their last run.",
    )
    REJECTED_SIGNATURE = (
        "jobs_rejected_signature",
        WorkerStatus.REJECTED,
        "Jobs dead-lettered because their signature is missing or invalid.",
    )
    REJECTED_UNDECODABLE = (
        "jobs_rejected_undecodable",
        WorkerStatus.REJECTED,
        "Jobs dead-lettered because their message or payload cannot be read.",
    )
    REJECTED_WRONG_QUEUE = (
        "jobs_rejected_wrong_queue",
        WorkerStatus.REJECTED,
        "Jobs dead-lettered because they were signed for another queue or id.",
    )
    REJECTED_HANDLER_FORBIDDEN = (
        "jobs_rejected_handler_forbidden",
        WorkerStatus.REJECTED,
        "Jobs dead-lettered because their queue may not run their handler or command.",
    )
    EXPIRED = "jobs_expired", WorkerStatus.CANCELLED, "Jobs cancelled because they expired before they could start."
    CANCELLED = "jobs_cancelled", WorkerStatus.CANCELLED, "Jobs cancelled by an operator or by their handler."
    SNOOZED = "jobs_snoozed", WorkerStatus.RELEASED, "Runs that ended with a snooze."
    POSTPONED = (
        "jobs_postponed",
        WorkerStatus.RELEASED,
        "Jobs released because this worker does not have their handler or key, or is too old for them.",
    )
    RATE_LIMITED = "jobs_rate_limited", WorkerStatus.RATE_LIMITED, "Jobs put off by their rate limit."
    RELEASED = (
        "jobs_released",
        WorkerStatus.RELEASED,
        "Jobs released without a result: not started, interrupted by a shutdown, or in a process that died.",
    )
    BLOCKED = "jobs_blocked", WorkerStatus.BLOCKED, "Jobs blocked because their key is taken or their circuit is open."
    LOST_LEASE = "jobs_lost_lease", WorkerStatus.LOST_LEASE, "Jobs whose settlement was refused: the lease was lost."
    UNSETTLED = (
        "jobs_unsettled",
        WorkerStatus.LOST_LEASE,
        "Jobs given up without a settlement; they run again when their leases expire.",
    )


MEANINGS: Final[Mapping[str, str]] = {
    FETCHED: "Jobs this worker has claimed.",
    **{end.value: end.meaning for end in End},
    FAILED: "Runs that failed, whether or not they will be retried.",
    REAPED: "Jobs requeued because their leases had expired.",
}
