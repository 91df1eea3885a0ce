"""The shared nouns: their names are stored in databases and messages, so they are part of the format."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.clock import to_us
from holdfast.values import (
    FINAL_STATES,
    AttemptRecord,
    BackoffStrategy,
    DeadReason,
    Drop,
    ErrorInfo,
    ExecutionResult,
    JobEnvelope,
    JobState,
    LeaseState,
    Outcome,
    Put,
    Spend,
)

START = to_us(datetime(2026, 1, 1, tzinfo=UTC))


def test_the_states_of_a_job_keep_their_names() -> None:
    assert list(JobState) == [
        "blocked",
        "scheduled",
        "pending",
        "processing",
        "failed",
        "completed",
        "dead",
        "cancelled",
    ]


def test_the_reasons_of_a_dead_letter_are_this_closed_list() -> None:
    assert set(DeadReason) == {
        "failed",
        "timeout",
        "crash-loop",
        "bad-signature",
        "undecodable",
        "wrong-queue",
        "handler-forbidden",
        "no-retry",
        "parent-failed",
    }


def test_outcomes_strategies_and_lease_states_keep_their_names() -> None:
    assert " ".join(Outcome) == (
        "succeeded failed timeout crashed interrupted snoozed postponed cancelled expired rejected skipped "
        "rate-limited lost-lease"
    )
    assert " ".join(BackoffStrategy) == "none fixed linear exponential"
    assert " ".join(LeaseState) == "held lost cancel-requested"


@pytest.mark.parametrize("state", JobState)
def test_a_job_that_is_completed_dead_or_cancelled_is_at_its_end(state: JobState) -> None:
    assert state.is_final == (state in ("completed", "dead", "cancelled"))
    assert (state in FINAL_STATES) == state.is_final


@pytest.mark.parametrize("reason", DeadReason)
def test_only_three_reasons_say_that_the_handler_ran(reason: DeadReason) -> None:
    assert reason.follows_a_run == (reason in ("failed", "timeout", "no-retry"))


@pytest.mark.parametrize(
    ("message", "line"),
    [("gone", "OSError: gone"), ("gone\nfor\ngood", "OSError: gone …"), ("", "OSError"), ("gone\n", "OSError: gone")],
)
def test_an_error_in_one_line_is_one_line(message: str, line: str) -> None:
    assert ErrorInfo(type="OSError", message=message).line == line


def test_an_attempt_took_the_time_between_its_instants() -> None:
    record = AttemptRecord(outcome=Outcome.FAILED, started_us=START, ended_us=START + 1_500_000)
    assert record.duration_s == 1.5
    assert record.ended_at - record.started_at == timedelta(milliseconds=1500)
    assert record.started_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_record_of_a_result_keeps_everything_a_record_has() -> None:
    result = ExecutionResult(
        handler="mail.send",
        outcome=Outcome.FAILED,
        started_us=START,
        ended_us=START + 2_000_000,
        output="so far",
        result=b"7",
        error=ErrorInfo(type="OSError", message="gone", traceback="…"),
        note="noted",
    )
    record = result.record()
    assert {name: getattr(record, name) for name in record.__struct_fields__} == {
        name: getattr(result, name) for name in record.__struct_fields__
    }
    assert not result.success
    assert result.duration_s == record.duration_s == 2


def test_values_cannot_be_changed() -> None:
    envelope = JobEnvelope(id="job1", queue="default", job="mail", priority=5, wire=b"{}")
    with pytest.raises(AttributeError):
        envelope.queue = "other"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
    assert msgspec.structs.replace(envelope, queue="other").queue == "other"
    assert envelope.queue == "default"


@pytest.mark.parametrize("kind", ["", "Upper", "1st", "a b", "a" * 64, "ä"])
def test_the_kind_of_a_cell_is_a_plain_word(kind: str) -> None:
    for cell in (Put, Drop):
        with pytest.raises(ValueError, match="kind"):
            cell(kind=kind, key="a")


@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "ä" * 513])
def test_the_key_of_a_cell_can_be_stored_everywhere(key: str) -> None:
    for cell in (Put, Drop):
        with pytest.raises(ValueError, match="key"):
            cell(kind="a", key=key)


def test_a_cell_is_small_and_expires_in_the_future() -> None:
    with pytest.raises(ValueError, match="1,048,577 bytes"):
        Put(kind="a", key="b", value=b"x" * 1_048_577)
    for ttl in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="ttl"):
            Put(kind="a", key="b", ttl=ttl)


@pytest.mark.parametrize(("per_s", "burst"), [(0, 1), (-1, 1), (1e7, 1), (1, 0), (1, 10**7), (float("nan"), 1)])
def test_a_bucket_has_a_rate_and_a_burst(per_s: float, burst: int) -> None:
    with pytest.raises(ValueError, match="valid rate"):
        Spend(bucket="b", tokens=1, per_s=per_s, burst=burst)


@pytest.mark.parametrize("tokens", [10**7, -(10**7)])
def test_a_spend_asks_for_a_number_of_tokens_that_every_engine_can_count(tokens: int) -> None:
    with pytest.raises(ValueError, match="too many"):
        Spend(bucket="b", tokens=tokens, per_s=1, burst=1)
