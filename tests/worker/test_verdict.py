"""The verdict: which settlements end an attempt that ran."""

import pytest

from holdfast.clock import from_us
from holdfast.errors import UnknownHandler
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    DeadReason,
    JobLease,
    Nack,
    Outcome,
    Release,
    Settlement,
)
from holdfast.worker.admission import Expired, refused
from holdfast.worker.verdict import has_run, momentary, released

LEASE = JobLease(
    id="job1",
    queue="default",
    wire=b"",
    token=1,
    owner_token="",
    ttl_s=60,
    claimed_at=from_us(0),
    fence_at=0,
    delivery=1,
)


def ran(outcome: Outcome) -> AttemptRecord:
    return AttemptRecord(outcome=outcome, started_us=1, ended_us=2)


@pytest.mark.parametrize(
    "settlement",
    [
        Ack(lease=LEASE, record=ran(Outcome.SUCCEEDED)),
        Ack(lease=LEASE, record=momentary(Outcome.SUCCEEDED, 1)),
        Nack(lease=LEASE, delay=1, record=ran(Outcome.FAILED)),
        Abandon(lease=LEASE, reason=DeadReason.TIMEOUT, record=ran(Outcome.TIMEOUT)),
        Release(lease=LEASE, delay=1, record=ran(Outcome.SNOOZED)),
        Release(lease=LEASE, crashed=True, record=ran(Outcome.CRASHED)),
        Release(lease=LEASE, record=ran(Outcome.INTERRUPTED)),
        CancelJob(lease=LEASE, record=ran(Outcome.CANCELLED)),
    ],
)
def test_a_job_that_was_started_has_run(settlement: Settlement) -> None:
    assert has_run(settlement)


@pytest.mark.parametrize(
    "settlement",
    [
        Ack(lease=LEASE, record=momentary(Outcome.SKIPPED, 1)),
        refused(LEASE, Expired("late"), 1),
        refused(LEASE, UnknownHandler("nowhere"), 1),
        refused(LEASE, ValueError("broken"), 1),
        released(LEASE, 1, unstarted=True),
        released(LEASE, 1),
        CancelJob(lease=LEASE, record=momentary(Outcome.CANCELLED, 1)),
        CancelJob(lease=LEASE),
    ],
)
def test_a_job_that_did_not_start_has_not(settlement: Settlement) -> None:
    assert not has_run(settlement)
