"""The table of ends, and the readable verbs as one-element calls of the primitives."""

from datetime import UTC, datetime

import pytest

from holdfast.clock import from_us, to_us
from holdfast.definition import JobDefinition
from holdfast.queues.contract import (
    Crashes,
    Effect,
    Engine,
    abandoned_run,
    check_purge,
    effect_of,
    history_of,
    message_fields,
    new_owner_token,
    new_session,
)
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.testing import Lab, memory_lab
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    AttemptView,
    CancelJob,
    DeadReason,
    JobLease,
    JobState,
    JobView,
    LiveOutput,
    Nack,
    Outcome,
    Release,
    Settlement,
)

LEASE = JobLease(
    id="job1",
    queue="default",
    wire=b"{}",
    token=1,
    owner_token="t",
    ttl_s=60,
    claimed_at=datetime(2026, 1, 1, tzinfo=UTC),
    fence_at=0,
    delivery=1,
)

# What each end of a run means (DESIGN.md §3): settlement -> state, attempts, crashes.
ENDS: dict[str, tuple[Settlement, JobState, int, Crashes]] = {
    "returned": (Ack(lease=LEASE), JobState.COMPLETED, 0, Crashes.RESET),
    "raised, retries left": (Nack(lease=LEASE, delay=4), JobState.FAILED, 1, Crashes.RESET),
    "raised, none left": (Abandon(lease=LEASE, reason=DeadReason.FAILED), JobState.DEAD, 1, Crashes.RESET),
    "timed out, none left": (Abandon(lease=LEASE, reason=DeadReason.TIMEOUT), JobState.DEAD, 1, Crashes.RESET),
    "listed in no_retry": (Abandon(lease=LEASE, reason=DeadReason.NO_RETRY), JobState.DEAD, 1, Crashes.RESET),
    "its process died among others": (Release(lease=LEASE, delay=2, crashed=True), JobState.PENDING, 0, Crashes.ADD),
    "given back": (Release(lease=LEASE), JobState.PENDING, 0, Crashes.RESET),
    "snoozed": (Release(lease=LEASE, delay=9), JobState.PENDING, 0, Crashes.RESET),
    "cancelled": (CancelJob(lease=LEASE, reason="no use"), JobState.CANCELLED, 0, Crashes.RESET),
    "expired": (CancelJob(lease=LEASE, reason="expired", expired=True), JobState.CANCELLED, 0, Crashes.KEEP),
    "bad signature": (Abandon(lease=LEASE, reason=DeadReason.BAD_SIGNATURE), JobState.DEAD, 0, Crashes.KEEP),
    "undecodable": (Abandon(lease=LEASE, reason=DeadReason.UNDECODABLE), JobState.DEAD, 0, Crashes.KEEP),
    "wrong queue": (Abandon(lease=LEASE, reason=DeadReason.WRONG_QUEUE), JobState.DEAD, 0, Crashes.KEEP),
    "forbidden": (Abandon(lease=LEASE, reason=DeadReason.HANDLER_FORBIDDEN), JobState.DEAD, 0, Crashes.KEEP),
    "its parent failed": (Abandon(lease=LEASE, reason=DeadReason.PARENT_FAILED), JobState.DEAD, 0, Crashes.KEEP),
}


@pytest.mark.parametrize(("settlement", "state", "attempts", "crashes"), ENDS.values(), ids=ENDS.keys())
def test_each_settlement_has_the_effect_in_the_table(
    settlement: Settlement, state: JobState, attempts: int, crashes: Crashes
) -> None:
    effect = effect_of(settlement)
    assert (effect.state, int(effect.adds_attempt), effect.crashes) == (state, attempts, crashes)


def test_only_what_comes_back_has_a_delay() -> None:
    assert effect_of(Nack(lease=LEASE, delay=4)).delay == 4
    assert effect_of(Release(lease=LEASE, delay=9)).delay == 9
    assert effect_of(Ack(lease=LEASE)).delay == 0
    assert effect_of(Abandon(lease=LEASE, reason=DeadReason.FAILED)).delay == 0


@pytest.mark.parametrize("reason", DeadReason)
def test_only_a_dead_letter_has_a_dead_reason(reason: DeadReason) -> None:
    assert effect_of(Abandon(lease=LEASE, reason=reason)).dead_reason is reason
    assert effect_of(Nack(lease=LEASE)).dead_reason is None
    assert effect_of(CancelJob(lease=LEASE)).dead_reason is None


def test_a_cancellation_has_its_reason_and_an_expiry_is_marked() -> None:
    assert effect_of(CancelJob(lease=LEASE, reason="no use")) == Effect(
        state=JobState.CANCELLED, verdict="cancel", cancel_reason="no use"
    )
    expired = effect_of(CancelJob(lease=LEASE, reason="whatever", expired=True))
    assert (expired.cancel_reason, expired.expired) == ("expired", True)


def test_verdicts_of_different_kinds_have_different_names() -> None:
    # A repeated settlement is recognised by its verdict: two kinds under one name would answer for each other.
    names = [
        effect_of(one).verdict
        for one in (
            Ack(lease=LEASE),
            Nack(lease=LEASE),
            Release(lease=LEASE),
            Abandon(lease=LEASE, reason=DeadReason.FAILED),
            CancelJob(lease=LEASE),
        )
    ]
    assert names == ["ack", "nack", "release", "abandon", "cancel"]


def test_a_delivery_without_a_verdict_is_recorded_as_a_crash_that_took_no_negative_time() -> None:
    claimed = to_us(LEASE.claimed_at)
    record = abandoned_run(claimed, claimed + 60_000_000)
    assert (record.outcome, record.duration_s) == (Outcome.CRASHED, 60)
    assert record.error is not None
    assert record.error.type == "LeaseExpired"
    assert abandoned_run(claimed, claimed - 5).duration_s == 0


@pytest.mark.parametrize("states", [[JobState.COMPLETED], [JobState.DEAD, JobState.CANCELLED]])
def test_finished_jobs_can_be_purged(states: list[JobState]) -> None:
    assert check_purge(states) == set(states)


@pytest.mark.parametrize("states", [[JobState.PENDING], [JobState.DEAD, JobState.PROCESSING], [JobState.FAILED]])
def test_work_that_is_not_done_cannot_be_purged(states: list[JobState]) -> None:
    problem = f"only completed, dead and cancelled jobs can be purged, not {states[-1]}; cancel those jobs first"
    with pytest.raises(ValueError, match=problem):
        check_purge(states)


def test_a_purge_needs_a_state() -> None:
    with pytest.raises(ValueError, match="name at least one state to purge: completed, dead or cancelled"):
        check_purge([])


def test_every_claim_has_its_own_token_that_begins_with_the_session_of_its_worker() -> None:
    session = new_session()
    tokens = {new_owner_token(session) for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(len(bytes.fromhex(token)) == 16 for token in tokens)
    assert {bytes.fromhex(token)[:8] for token in tokens} == {session}
    assert len({bytes.fromhex(token)[8:] for token in tokens}) == 1000


def test_every_worker_has_its_own_session() -> None:
    sessions = {new_session() for _ in range(1000)}
    assert len(sessions) == 1000
    assert {len(session) for session in sessions} == {8}


# The readable verbs


@pytest.fixture
def lab() -> Lab:
    return memory_lab()


@pytest.fixture
def engine(lab: Lab) -> Engine:
    return lab.engine


def test_enqueue_and_fetch_are_for_one_job(engine: Engine) -> None:
    assert engine.fetch("default") is None
    assert engine.enqueue(JobDefinition(handler="mail"), id="job1") == "job1"
    lease = engine.fetch("default")
    assert lease is not None
    assert (lease.id, lease.delivery) == ("job1", 1)
    assert engine.fetch("default") is None


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("ack", JobState.COMPLETED),
        ("nack", JobState.FAILED),
        ("release", JobState.PENDING),
        ("abandon", JobState.DEAD),
    ],
)
def test_each_verb_settles_its_lease_once(lab: Lab, engine: Engine, verb: str, state: JobState) -> None:
    engine.enqueue(JobDefinition(handler="mail"), id="job1")
    lease = engine.fetch("default")
    assert lease is not None
    record = lab.record()
    match verb:
        case "ack":
            settled = engine.ack(lease, record)
        case "nack":
            settled = engine.nack(lease, 5, record)
        case "release":
            settled = engine.release(lease, None, record)
        case _:
            settled = engine.abandon(lease, DeadReason.FAILED, record)
    assert settled
    assert lab.view("job1").state is state
    assert lab.history("job1").attempts[0].record == record
    assert engine.renew(lease) is None


def test_a_renewed_lease_is_fenced_from_before_the_request(lab: Lab, engine: Engine) -> None:
    engine.enqueue(JobDefinition(handler="mail"))
    lease = engine.fetch("default")
    assert lease is not None
    lab.advance(20)
    renewed = engine.renew(lease)
    assert renewed is not None
    assert renewed.fence_at == lab.clock.monotonic() + 60
    lab.advance(61)
    assert engine.renew(renewed) is None


def test_leaving_the_engine_closes_it() -> None:
    closed: list[str] = []

    class Closing(MemoryEngine):
        def close(self) -> None:
            closed.append("closed")

    with Closing(memory_lab().envelopes) as engine:
        assert isinstance(engine, Closing)
        assert not closed
    assert closed == ["closed"]


def test_people_see_the_record_completed_by_the_message(lab: Lab) -> None:
    lab.put("job1", name="welcome", trace_id="t-1", priority=8, payload={"to": "ada"})
    view = lab.view("job1")
    assert (view.name, view.trace_id, view.priority, view.max_retries, view.timeout) == ("welcome", "t-1", 8, 3, 300.0)
    assert bytes(view.payload) == b'{"to":"ada"}'


def test_a_record_whose_message_is_unreadable_is_still_seen() -> None:
    assert message_fields(b"\x00 junk") == {}


# What a history shows of an output.

SOME = LiveOutput(text="some")


def job_in(state: JobState, deliveries: int) -> JobView:
    return JobView(
        id="a", queue="q", state=state, job="j", accepted_at=from_us(0), due_at=from_us(0), deliveries=deliveries
    )


def attempt(delivery: int, output: str = "") -> AttemptView:
    record = AttemptRecord(outcome=Outcome.FAILED, started_us=0, ended_us=1, output=output)
    return AttemptView(delivery=delivery, record=record)


@pytest.mark.parametrize(
    ("state", "attempts", "seen"),
    [
        (JobState.PROCESSING, [attempt(1)], SOME),
        (JobState.PENDING, [attempt(1)], None),
        (JobState.PROCESSING, [attempt(1), attempt(2, "all")], None),
    ],
    ids=["running", "given back", "ended while it was read"],
)
def test_live_output_is_of_what_is_running(
    state: JobState, attempts: list[AttemptView], seen: LiveOutput | None
) -> None:
    assert history_of(job_in(state, 2), attempts, {2: SOME}, b"").live_output == seen


def test_only_an_attempt_without_output_shows_what_was_reported() -> None:
    attempts = [attempt(1), attempt(2, "all"), attempt(3)]
    history = history_of(job_in(JobState.PENDING, 3), attempts, {2: SOME, 3: SOME}, b"")
    assert [one.record.output for one in history.attempts] == ["", "all", "some"]
