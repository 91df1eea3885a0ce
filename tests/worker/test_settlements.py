"""How a batch of settlements is reported, whatever the engine answers."""

import ast
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

import holdfast.worker
from holdfast.codec import JobMessage
from holdfast.dead_letters import DeadLetterQueues
from holdfast.execution.retry import BackoffPolicy
from holdfast.metrics import InMemoryMetrics
from holdfast.metrics.counters import MEANINGS
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Unsigned
from holdfast.values import (
    Abandon,
    AttemptRecord,
    DeadReason,
    ExecutionResult,
    JobLease,
    Outcome,
    Settlement,
    WorkerResult,
    WorkerStatus,
)
from holdfast.worker.dead_letters import DeadLetterCopies
from holdfast.worker.executors.frames import Done
from holdfast.worker.executors.process import Flight
from holdfast.worker.reporting import MOST_LABELS, OTHER, Reporter
from holdfast.worker.settlements import PendingSettlements
from holdfast.worker.verdict import verdict_on

COPIES = DeadLetterCopies(EnvelopeFactory(Unsigned()), Unsigned(), DeadLetterQueues())
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def flight(number: int, queue: str = "mail") -> Flight:
    lease = JobLease(
        id=f"job{number}",
        queue=queue,
        wire=b"",
        token=number,
        owner_token="00",
        ttl_s=60.0,
        claimed_at=NOW,
        fence_at=0.0,
        delivery=1,
    )
    message = JobMessage(
        v=1,
        job="send",
        payload=msgspec.Raw(b"null"),
        queue=queue,
        max_retries=0,
        identifier=lease.id,
        timeout=0.0,
        created_at=NOW,
    )
    return Flight(number, lease, message, 0.0)


def dead(one: Flight) -> Settlement:
    record = AttemptRecord(outcome=Outcome.FAILED, started_us=0, ended_us=2_000_000)
    return Abandon(lease=one.lease, reason=DeadReason.FAILED, record=record)


def filled() -> PendingSettlements:
    """Two successes of one queue, one of another, and a dead letter among them."""
    verdicts = PendingSettlements(COPIES)
    verdicts.add_successes([flight(1)], [Done(1, 2, 0, 1_000_000)])
    verdicts.add(dead(flight(2)), flight(2).message)
    durations = verdicts.add_successes(
        [flight(3), flight(4, "slow")], [Done(3, 4, 1_000_000, 1_500_000), Done(4, 0, 0, 3_000_000)]
    )
    assert durations == {("mail", "send"): [0.5], ("slow", "send"): [3.0]}
    return verdicts


def test_each_success_is_acknowledged_with_its_own_times() -> None:
    verdicts = filled()
    assert len(verdicts) == 4
    acked = [one for one in verdicts.settlements if not isinstance(one, Abandon)]
    assert [(one.lease.id, one.record and (one.record.started_us, one.record.ended_us)) for one in acked] == [
        ("job1", (0, 1_000_000)),
        ("job3", (1_000_000, 1_500_000)),
        ("job4", (0, 3_000_000)),
    ]
    assert all(one.record and one.record.is_plain_success for one in acked)
    assert {lease.id for lease in verdicts.leases} == {"job1", "job2", "job3", "job4"}


def test_a_success_is_settled_in_the_same_way_whether_its_child_reports_it_in_full_or_in_short() -> None:
    one, verdicts = flight(1), PendingSettlements(COPIES)
    verdicts.add_successes([one], [Done(1, 0, 5, 1_000_000)])
    result = ExecutionResult(handler="send", outcome=Outcome.SUCCEEDED, started_us=5, ended_us=1_000_000)
    assert verdicts.settlements == [verdict_on(result, one.message, one.lease, BackoffPolicy())]


def test_one_function_creates_every_acknowledgement_of_a_worker() -> None:
    makers = [
        (path.name, function.name)
        for path in Path(holdfast.worker.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Ack"
    ]
    assert makers == [("verdict.py", "succeeded"), ("verdict.py", "skipped")]


@pytest.mark.parametrize("is_heard", [False, True])
def test_all_that_held_is_counted_whether_or_not_somebody_listens(is_heard: bool) -> None:
    metrics = InMemoryMetrics()
    heard: list[WorkerResult] = []
    reporter = Reporter(metrics, {"send"}, listener=heard.extend if is_heard else None)
    filled().report([True] * 4, reporter)
    assert reporter.tally == {WorkerStatus.ACKED: 3, WorkerStatus.DEAD_LETTERED: 1}
    assert metrics.total("jobs_succeeded", "mail") == metrics.total("jobs_succeeded", "mail", "send") == 2
    assert metrics.total("jobs_succeeded", "slow") == 1
    assert metrics.total("jobs_failed_permanently", "mail") == 1
    assert metrics.observed("job_duration_seconds", "mail") == (3, 3.5)
    assert metrics.observed("job_duration_seconds", "slow") == (1, 3.0)
    assert [result.job_id for result in heard] == (["job1", "job3", "job4", "job2"] if is_heard else [])


def test_a_listener_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(results: Sequence[WorkerResult]) -> None:
        raise OSError("no space left on the device")

    reporter = Reporter(InMemoryMetrics(), {"send"}, listener=fails)
    filled().report([True] * 4, reporter)
    assert reporter.tally == {WorkerStatus.ACKED: 3, WorkerStatus.DEAD_LETTERED: 1}
    assert "the result listener failed for" in caplog.text


def test_a_success_that_was_refused_is_a_lost_lease_and_one_without_an_answer_is_unsettled() -> None:
    metrics = InMemoryMetrics()
    reporter = Reporter(metrics, {"send"})
    # In the order of the settlements: the successes come first.
    filled().report([True, False, None, True], reporter)
    assert reporter.tally == {
        WorkerStatus.ACKED: 1,
        WorkerStatus.LOST_LEASE: 1,
        WorkerStatus.DEAD_LETTERED: 1,
    }
    assert reporter.unsettled == metrics.total("jobs_unsettled") == 1


def test_jobs_have_their_own_labels_up_to_a_limit_and_only_if_they_have_a_handler_here() -> None:
    metrics, settlements = InMemoryMetrics(), PendingSettlements(COPIES)
    reporter = Reporter(metrics, {f"job{number}" for number in range(MOST_LABELS + 50)})
    for number in range(MOST_LABELS + 50):
        one = flight(number)
        one.message = structs.replace(one.message, job=f"job{number}")
        settlements.add_successes([one], [Done(number, 0, 0, 1_000_000)])
    stranger = flight(1)
    settlements.add(dead(stranger), structs.replace(stranger.message, job="stranger"))
    settlements.add(dead(stranger), None)
    settlements.report([True] * len(settlements), reporter)
    assert metrics.total("jobs_succeeded") == MOST_LABELS + 50
    assert [metrics.total("jobs_succeeded", job=f"job{number}") for number in (0, MOST_LABELS - 1)] == [1, 1]
    assert metrics.total("jobs_succeeded", job=f"job{MOST_LABELS}") == 0
    assert metrics.total("jobs_succeeded", job=OTHER) == 50
    assert metrics.observed("job_duration_seconds", "mail", OTHER) == (50, 50.0)
    assert metrics.total("jobs_failed_permanently") == 2
    assert metrics.total("jobs_failed_permanently", job="stranger") == 0


def test_every_counter_is_explained_in_the_documentation() -> None:
    """`End` is the table of ends, from which the documentation is generated."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name, meaning in MEANINGS.items():
        assert f"| `holdfast_{name}_total` |" in page
        assert meaning in page
