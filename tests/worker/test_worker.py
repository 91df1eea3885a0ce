"""One turn of the worker: every outcome of a run, what is stored about it, and what is reported."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from holdfast.codec import unseal
from holdfast.config import Settings
from holdfast.errors import BackendUnavailable, ResultGone
from holdfast.execution.timeout import JobTimeout
from holdfast.handlers import Cancel, Handler, JobContext, Snooze
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.queues.signing import Keyring
from holdfast.values import (
    DeadReason,
    ErrorInfo,
    ExecutionResult,
    JobLease,
    JobState,
    Outcome,
    ReplayAnswer,
    Settlement,
    WorkerResult,
    WorkerStatus,
)

from .bench import KEY, Bench, wire_of


def returns(value: object = None) -> Callable[[], object]:
    return lambda: value


def raises(problem: BaseException) -> Callable[[], object]:
    def handle() -> object:
        raise problem

    return handle


def blocks() -> None:
    threading.Event().wait(30)


# Every end of a run.


@dataclass(frozen=True)
class End:
    """What a handler does, and what has to become of its job."""

    handle: Callable[..., object]
    status: WorkerStatus
    state: JobState
    outcome: Outcome
    attempts: int = 0
    reason: DeadReason | None = None
    due_in: float | None = None
    max_retries: int = 3
    timeout: float = 300.0
    counts: dict[str, int] = field(default_factory=dict[str, int])


REQUEUED = {"jobs_failed default": 1, "jobs_requeued default": 1}
BURIED = {"jobs_failed default": 1, "jobs_failed_permanently default": 1}

ENDS = {
    "returned": End(
        returns({"sum": 3}),
        WorkerStatus.ACKED,
        JobState.COMPLETED,
        Outcome.SUCCEEDED,
        counts={"jobs_succeeded default": 1},
    ),
    "raised, retries left": End(
        raises(ValueError("no")), WorkerStatus.REQUEUED, JobState.FAILED, Outcome.FAILED, attempts=1, counts=REQUEUED
    ),
    "raised, none left": End(
        raises(ValueError("no")),
        WorkerStatus.DEAD_LETTERED,
        JobState.DEAD,
        Outcome.FAILED,
        attempts=1,
        reason=DeadReason.FAILED,
        max_retries=0,
        counts=BURIED,
    ),
    "raised what is not to be retried": End(
        raises(LookupError("no")),
        WorkerStatus.DEAD_LETTERED,
        JobState.DEAD,
        Outcome.FAILED,
        attempts=1,
        reason=DeadReason.NO_RETRY,
        counts=BURIED,
    ),
    "raised a subclass of what is not to be retried": End(
        raises(KeyError("no")),
        WorkerStatus.DEAD_LETTERED,
        JobState.DEAD,
        Outcome.FAILED,
        attempts=1,
        reason=DeadReason.NO_RETRY,
        counts=BURIED,
    ),
    "called exit()": End(
        raises(SystemExit(0)), WorkerStatus.REQUEUED, JobState.FAILED, Outcome.FAILED, attempts=1, counts=REQUEUED
    ),
    "timed out, retries left": End(
        blocks,
        WorkerStatus.REQUEUED,
        JobState.FAILED,
        Outcome.TIMEOUT,
        attempts=1,
        timeout=0.02,
        counts=REQUEUED,
    ),
    "timed out, none left": End(
        blocks,
        WorkerStatus.DEAD_LETTERED,
        JobState.DEAD,
        Outcome.TIMEOUT,
        attempts=1,
        reason=DeadReason.TIMEOUT,
        max_retries=0,
        timeout=0.02,
        counts=BURIED,
    ),
    "returned a snooze": End(
        returns(Snooze(90)),
        WorkerStatus.RELEASED,
        JobState.SCHEDULED,
        Outcome.SNOOZED,
        due_in=90,
        max_retries=0,
        counts={"jobs_snoozed default": 1},
    ),
    "raised a snooze": End(
        raises(Snooze(90)),
        WorkerStatus.RELEASED,
        JobState.SCHEDULED,
        Outcome.SNOOZED,
        due_in=90,
        max_retries=0,
        counts={"jobs_snoozed default": 1},
    ),
    "returned a cancel": End(
        returns(Cancel("not needed")),
        WorkerStatus.CANCELLED,
        JobState.CANCELLED,
        Outcome.CANCELLED,
        counts={"jobs_cancelled default": 1},
    ),
    "raised a cancel": End(
        raises(Cancel("not needed")),
        WorkerStatus.CANCELLED,
        JobState.CANCELLED,
        Outcome.CANCELLED,
        counts={"jobs_cancelled default": 1},
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_run_ends_as_the_table_of_ends_says(bench: Bench, end: End) -> None:
    bench.handler(end.handle, no_retry=(LookupError,))
    id = bench.put(max_retries=end.max_retries, timeout=end.timeout)
    result = bench.turn()
    job = bench.view(id)
    assert (result.status, result.job_id, result.job, result.attempt) == (end.status, id, "job", 1)
    assert (job.state, job.attempts, job.crashes, job.dead_reason) == (end.state, end.attempts, 0, end.reason)
    assert bench.outcomes(id) == [end.outcome]
    if end.due_in is not None:
        assert bench.due_in(id).total_seconds() == end.due_in == result.retry_in
    assert bench.counts.seen == {"jobs_fetched default": 1, **end.counts}


def test_a_job_given_back_by_a_worker_that_has_to_leave_runs_again_at_once(bench: Bench) -> None:
    bench.handler(bench.worker.interrupt)
    id = bench.put(max_retries=0)
    assert bench.turn().status is WorkerStatus.RELEASED
    job = bench.view(id)
    assert (job.state, job.attempts, job.crashes) == (JobState.PENDING, 0, 0)
    assert bench.outcomes(id) == [Outcome.INTERRUPTED]
    assert bench.turn().job_id == id


def test_an_empty_queue_is_an_empty_turn_and_counts_nothing(bench: Bench) -> None:
    bench.put(queue="other")
    assert bench.turn() == WorkerResult(status=WorkerStatus.EMPTY)
    assert not bench.counts.seen


def test_a_payload_that_does_not_fit_its_handler_is_not_tried_again(bench: Bench) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    bench.handler(add)
    id = bench.put(payload={"a": 1, "b": "two"})
    assert bench.turn().status is WorkerStatus.DEAD_LETTERED
    job = bench.view(id)
    assert (job.state, job.dead_reason) == (JobState.DEAD, DeadReason.NO_RETRY)
    assert "does not fit handler 'job'" in str(job.last_error)


def test_a_verdict_ends_a_row_of_crashes(bench: Bench) -> None:
    bench.handler(raises(ValueError("no")))
    id = bench.put()
    bench.let_its_worker_die()
    assert bench.engine.reap_expired() == 1
    assert bench.view(id).crashes == 1
    bench.turn()
    assert (bench.view(id).crashes, bench.outcomes(id)) == (0, [Outcome.CRASHED, Outcome.FAILED])


# Expiry.


def test_a_job_that_is_claimed_too_late_is_not_started(bench: Bench) -> None:
    bench.handler(returns())
    id = bench.put(expires=10)
    bench.clock.advance(10)
    assert bench.turn().status is WorkerStatus.CANCELLED
    job = bench.view(id)
    assert (job.state, job.cancel_reason, job.attempts) == (JobState.CANCELLED, "expired", 0)
    assert bench.outcomes(id) == [Outcome.EXPIRED]


def test_a_job_that_is_claimed_just_in_time_runs_although_it_ends_too_late(bench: Bench) -> None:
    bench.handler(lambda: bench.clock.advance(20))
    bench.put(expires=10)
    bench.clock.advance(9.5)
    assert bench.turn().status is WorkerStatus.ACKED


def test_an_expired_job_runs_again_only_if_its_expiry_is_ignored(bench: Bench) -> None:
    bench.handler(returns())
    id = bench.put(expires=10)
    bench.clock.advance(11)
    bench.turn()
    assert bench.engine.replay(id) is ReplayAnswer.EXPIRED
    assert bench.turn().status is WorkerStatus.EMPTY
    assert bench.engine.replay(id, ignore_expiry=True) is ReplayAnswer.REPLAYED
    assert bench.turn().status is WorkerStatus.ACKED
    assert bench.outcomes(id) == [Outcome.EXPIRED, Outcome.SUCCEEDED]


# What is not started.


def widened(wire: bytes) -> bytes:
    """The message with a member that no version knows; its signature is that of the message without it."""
    return wire.replace(b',"_sig"', b',"colour":"red","_sig"')


def signed_again(wire: bytes) -> bytes:
    return Keyring.parse(KEY).sign(unseal(wire)[0])


POSTPONED = {
    "no such handler": lambda: wire_of(job="unheard-of"),
    "signed with a key that is not here": lambda: wire_of(key="theirs:a-key-that-this-worker-does-not-have"),
    "written by a newer Holdfast": lambda: wire_of(v=2),
    "with a member that only a newer Holdfast knows": lambda: signed_again(widened(wire_of())),
    "with such a member, and signed with a key that is not here": lambda: widened(
        wire_of(key="theirs:a-key-that-this-worker-does-not-have")
    ),
}


@pytest.mark.parametrize("make", POSTPONED.values(), ids=POSTPONED.keys())
def test_what_a_deploy_can_mend_is_put_off(bench: Bench, make: Callable[[], bytes]) -> None:
    bench.handler(returns())
    id = bench.put_wire(make())
    result = bench.turn()
    job = bench.view(id)
    assert (result.status, job.state, job.attempts, job.crashes) == (WorkerStatus.RELEASED, JobState.SCHEDULED, 0, 0)
    assert bench.due_in(id).total_seconds() == 1
    assert bench.outcomes(id) == [Outcome.POSTPONED]
    assert bench.counts.seen == {"jobs_fetched default": 1, "jobs_postponed default": 1}


def test_a_job_with_an_unknown_member_is_shown_by_its_other_members(bench: Bench) -> None:
    id = bench.put_wire(signed_again(widened(wire_of(name="welcome", tags=("eu",), priority=8))))
    bench.turn()
    job = bench.view(id)
    assert (job.name, job.tags, job.priority, job.max_retries) == ("welcome", ("eu",), 8, 3)
    assert "has the member 'colour', which this program does not know; upgrade this worker" in str(job.last_error)


def test_it_is_put_off_longer_each_time_but_never_longer_than_a_minute(bench: Bench) -> None:
    id = bench.put("late")
    delays: list[float] = []
    for _ in range(9):
        assert bench.turn().status is WorkerStatus.RELEASED
        delays.append(bench.due_in(id).total_seconds())
        bench.clock.advance(delays[-1])
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_job_whose_handler_comes_with_a_deploy_is_run_then(bench: Bench) -> None:
    id = bench.put("late")
    bench.turn()
    bench.handler(returns(), "late")
    assert bench.turn().status is WorkerStatus.EMPTY
    bench.clock.advance(60)
    assert bench.turn().status is WorkerStatus.ACKED
    assert bench.outcomes(id) == [Outcome.POSTPONED, Outcome.SUCCEEDED]


def changed(wire: bytes) -> bytes:
    assert wire.count(b"null") == 1
    return wire.replace(b"null", b"1234")


REJECTED: dict[str, tuple[Callable[[], bytes], DeadReason]] = {
    "changed after it was signed": (lambda: changed(wire_of()), DeadReason.BAD_SIGNATURE),
    "not signed": (lambda: wire_of().partition(b',"_sig"')[0] + b"}", DeadReason.BAD_SIGNATURE),
    "signed by somebody who only knows the key's name": (
        lambda: wire_of(key="ours:another-key-of-the-very-same-name"),
        DeadReason.BAD_SIGNATURE,
    ),
    "signed for another installation": (lambda: wire_of(installation="staging"), DeadReason.BAD_SIGNATURE),
    "changed, with an unknown member": (lambda: widened(wire_of()), DeadReason.BAD_SIGNATURE),
    "not signed, with an unknown member": (
        lambda: widened(wire_of()).partition(b',"_sig"')[0] + b"}",
        DeadReason.BAD_SIGNATURE,
    ),
    "no JSON": (lambda: b"\x00\xff", DeadReason.UNDECODABLE),
    "signed, with an unknown member and one of the wrong type": (
        lambda: signed_again(widened(wire_of()).replace(b'"timeout":300.0', b'"timeout":"long"')),
        DeadReason.UNDECODABLE,
    ),
    "signed, with a member twice": (
        lambda: signed_again(widened(widened(wire_of()))),
        DeadReason.UNDECODABLE,
    ),
    "signed, but no message": (lambda: Keyring.parse(KEY).sign(b'{"v":1,"job":7}'), DeadReason.UNDECODABLE),
    "signed for another queue": (lambda: wire_of(queue="other"), DeadReason.WRONG_QUEUE),
    "signed for another job": (lambda: wire_of(id="other"), DeadReason.WRONG_QUEUE),
}


@pytest.mark.parametrize(("make", "reason"), REJECTED.values(), ids=REJECTED.keys())
def test_what_nobody_of_ours_has_sent_is_never_run(
    bench: Bench, caplog: pytest.LogCaptureFixture, make: Callable[[], bytes], reason: DeadReason
) -> None:
    runs: list[str] = []
    bench.handler(lambda: runs.append("ran"))
    id = bench.put_wire(make())
    result = bench.turn()
    job = bench.view(id)
    assert (result.status, job.state, job.dead_reason) == (WorkerStatus.REJECTED, JobState.DEAD, reason)
    assert (job.attempts, bench.outcomes(id), runs) == (0, [Outcome.REJECTED], [])
    counter = f"jobs_rejected_{reason.removeprefix('bad-').replace('-', '_')}"
    assert bench.counts.seen == {"jobs_fetched default": 1, f"{counter} default": 1}
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.CRITICAL]
    assert id in line


def test_a_handler_that_the_queue_may_not_run_is_never_run() -> None:
    with Bench(allowlist={"mail": ("send",)}) as bench:
        bench.handler(returns(), "wipe")
        id = bench.put("wipe", queue="mail")
        assert bench.turn("mail").status is WorkerStatus.REJECTED
        job = bench.view(id)
        assert (job.state, job.dead_reason, job.attempts) == (JobState.DEAD, DeadReason.HANDLER_FORBIDDEN, 0)


def test_a_command_that_nobody_has_allowed_is_never_run(bench: Bench) -> None:
    id = bench.put("command", {"argv": ["true"]})
    assert bench.turn().status is WorkerStatus.REJECTED
    job = bench.view(id)
    assert (job.state, job.dead_reason, job.attempts) == (JobState.DEAD, DeadReason.HANDLER_FORBIDDEN, 0)
    assert "'true' is not allowed" in str(job.last_error)


def test_a_rejected_job_keeps_its_crashes(bench: Bench) -> None:
    id = bench.put_wire(b"garbage")
    bench.let_its_worker_die()
    bench.engine.reap_expired()
    bench.turn()
    assert bench.view(id).crashes == 1


# What is stored and reported.


def test_the_attempt_is_kept_with_its_times_output_and_error(bench: Bench) -> None:
    def fail() -> None:
        bench.clock.advance(3)
        print("half way")
        raise RuntimeError("out of\nluck")

    bench.handler(fail)
    id = bench.put()
    result = bench.turn()
    (record,) = bench.records(id)
    assert (record.output, record.duration_s, result.duration_s) == ("half way\n", 3.0, 3.0)
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("RuntimeError", "out of\nluck")
    assert "in fail" in record.error.traceback
    assert bench.view(id).last_error == "RuntimeError: out of …"
    assert result.error == record.error


def test_a_dead_job_is_said_aloud_with_its_last_error(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.handler(raises(ValueError("the third shelf is empty")))
    id = bench.put(max_retries=0)
    bench.turn()
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.CRITICAL]
    assert line == f"job {id} (job) dead-lettered after 1 attempt: ValueError: the third shelf is empty"


def test_a_result_is_kept(bench: Bench) -> None:
    bench.handler(returns({"total": [1, 2.5, None]}))
    id = bench.put()
    bench.turn()
    assert bench.app.handle(id).result(0) == {"total": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("value", "note"),
    [
        (object(), "the result was not stored: it is not JSON"),
        (float("nan"), "the result was not stored: it is not JSON"),
        ("x" * 70_000, "the limit is 65,536"),
    ],
    ids=["an object", "a number JSON has not", "too large"],
)
def test_a_result_that_cannot_be_kept_is_noted_and_the_run_has_succeeded(
    bench: Bench, value: object, note: str
) -> None:
    bench.handler(returns(value))
    id = bench.put()
    assert bench.turn().status is WorkerStatus.ACKED
    (record,) = bench.records(id)
    assert record.result is None
    assert note in record.note
    with pytest.raises(ResultGone, match="the result was not stored"):
        bench.app.handle(id).result(0)


class Careless(Handler):
    """Its clean-up fails, after whatever it did."""

    def __init__(self, verdict: Callable[[], object]) -> None:
        self._verdict = verdict

    def handle(self, context: JobContext) -> object:
        return self._verdict()

    def after_run(self, context: JobContext, result: ExecutionResult) -> None:
        raise OSError("the log is full")


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (returns(), WorkerStatus.ACKED),
        (returns(Snooze(5)), WorkerStatus.RELEASED),
        (raises(ValueError("no")), WorkerStatus.REQUEUED),
    ],
)
def test_a_clean_up_that_fails_changes_no_verdict(
    bench: Bench, caplog: pytest.LogCaptureFixture, verdict: Callable[[], object], status: WorkerStatus
) -> None:
    bench.app.registry.register("job", Careless(verdict))
    bench.put()
    assert bench.turn().status is status
    assert "the log is full" in caplog.text


# Retries.


def test_a_failing_job_is_retried_after_2_4_and_8_seconds_and_is_then_dead(bench: Bench) -> None:
    seen: list[int] = []

    def fail(context: JobContext) -> None:
        seen.append(context.attempt)
        raise ValueError(f"try {context.attempt}")

    bench.handler(fail)
    id = bench.put(max_retries=3)
    for failed, seconds in enumerate([2, 4, 8], start=1):
        result = bench.turn()
        assert (result.status, bench.view(id).attempts) == (WorkerStatus.REQUEUED, failed)
        delay = bench.due_in(id).total_seconds()
        assert seconds * 0.85 <= delay <= seconds * 1.15
        assert result.retry_in == pytest.approx(delay, abs=1e-6)
        bench.clock.advance(delay - 0.001)
        assert bench.turn().status is WorkerStatus.EMPTY
        bench.clock.advance(0.001)
    assert bench.turn().status is WorkerStatus.DEAD_LETTERED
    job = bench.view(id)
    assert (job.state, job.dead_reason, job.attempts) == (JobState.DEAD, DeadReason.FAILED, 4)
    assert job.last_error == "ValueError: try 4"
    assert seen == [1, 2, 3, 4]


def test_the_delays_of_jobs_that_fail_together_differ(bench: Bench) -> None:
    bench.handler(raises(ValueError("no")))
    delays: set[float] = set()
    for _ in range(20):
        id = bench.put()
        bench.turn()
        delays.add(bench.due_in(id).total_seconds())
    assert len(delays) > 10
    assert all(1.7 <= delay <= 2.3 for delay in delays)


def test_a_replayed_job_has_all_its_attempts_again_and_keeps_its_history(bench: Bench) -> None:
    seen: list[int] = []

    def fail(context: JobContext) -> None:
        seen.append(context.attempt)
        raise ValueError("no")

    bench.handler(fail)
    id = bench.put(max_retries=1, backoff=[5])
    for _ in range(2):
        assert bench.turn().status is WorkerStatus.REQUEUED
        bench.clock.advance(5)
        assert bench.turn().status is WorkerStatus.DEAD_LETTERED
        assert bench.view(id).attempts == 2
        assert bench.engine.replay(id) is ReplayAnswer.REPLAYED
        assert bench.view(id).attempts == 0
    assert seen == [1, 2, 1, 2]
    assert [past.delivery for past in bench.history(id).attempts] == [1, 2, 3, 4]


class Hours:
    """A policy of the user's, which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def delay(self, attempt: int, error: ErrorInfo | None) -> float:
        self.asked.append((attempt, error.type if error else ""))
        return attempt * 3600.0


def test_a_policy_of_the_users_decides_the_delays() -> None:
    policy = Hours()
    with Bench(retry_policy=policy) as bench:
        bench.handler(raises(ValueError("no")))
        id = bench.put(max_retries=2)
        for _ in range(3):
            bench.turn()
            bench.clock.advance(max(bench.due_in(id).total_seconds(), 0.0))
        assert bench.view(id).state is JobState.DEAD
        assert policy.asked == [(2, "ValueError"), (3, "ValueError")]


def test_a_jobs_own_backoff_wins_over_the_policy() -> None:
    with Bench(retry_policy=Hours()) as bench:
        bench.handler(raises(ValueError("no")))
        id = bench.put(backoff=[7, 11])
        for seconds in (7, 11, 11):
            bench.turn()
            assert bench.due_in(id).total_seconds() == seconds
            bench.clock.advance(seconds)


def test_the_settings_decide_the_delays_of_jobs_without_their_own() -> None:
    with Bench(settings=Settings(backoff="linear", backoff_base=10, backoff_jitter=0, backoff_max=25)) as bench:
        bench.handler(raises(ValueError("no")))
        id = bench.put()
        for seconds in (10, 20, 25):
            bench.turn()
            assert bench.due_in(id).total_seconds() == seconds
            bench.clock.advance(seconds)


def test_a_timeout_can_be_among_what_is_not_retried(bench: Bench) -> None:
    bench.handler(blocks, no_retry=(JobTimeout,))
    id = bench.put(timeout=0.02)
    assert bench.turn().status is WorkerStatus.DEAD_LETTERED
    assert bench.view(id).dead_reason is DeadReason.NO_RETRY


# The engine while the worker settles.


class Cut:
    """Stands in for `settle` and loses the first call, or only its answer."""

    def __init__(self, bench: Bench, *, after: bool, always: bool = False) -> None:
        self._settle = bench.engine.settle
        self._after = after
        self._always = always
        self.calls = 0

    def __call__(self, settlements: Sequence[Settlement]) -> list[bool]:
        self.calls += 1
        if self.calls > 1 and not self._always:
            return self._settle(settlements)
        if self._after:
            self._settle(settlements)
        raise BackendUnavailable("the connection was lost")


@pytest.mark.parametrize("after", [False, True], ids=["call lost", "answer lost"])
@pytest.mark.parametrize("handle", [returns(1), raises(ValueError("no")), returns(Snooze(5)), returns(Cancel())])
def test_a_settlement_without_an_answer_is_repeated_and_counts_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, after: bool, handle: Callable[[], object]
) -> None:
    bench.handler(handle)
    id = bench.put()
    cut = Cut(bench, after=after)
    monkeypatch.setattr(bench.engine, "settle", cut)
    status = bench.turn().status
    assert status not in (WorkerStatus.LOST_LEASE, WorkerStatus.EMPTY)
    assert cut.calls == 2
    assert len(bench.records(id)) == 1
    assert bench.view(id).attempts == (1 if status is WorkerStatus.REQUEUED else 0)
    assert bench.view(id).deliveries == 1


def test_a_settlement_that_is_never_answered_is_given_up_when_the_lease_has_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    bench.handler(lambda: runs.append(1))
    id = bench.put()
    cut = Cut(bench, after=False, always=True)
    monkeypatch.setattr(bench.engine, "settle", cut)
    began = bench.clock.monotonic()
    with pytest.raises(BackendUnavailable):
        bench.turn()
    lasted = bench.clock.monotonic() - began
    assert bench.engine.policy.lease_s <= lasted <= bench.engine.policy.lease_s + 5
    monkeypatch.undo()
    assert bench.engine.reap_expired() == 1
    assert bench.turn().status is WorkerStatus.ACKED
    assert (bench.outcomes(id), runs) == ([Outcome.CRASHED, Outcome.SUCCEEDED], [1, 1])


def test_a_verdict_that_comes_after_another_worker_has_taken_over_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def be_too_slow() -> str:
        bench.clock.advance(bench.engine.policy.lease_s)
        assert bench.engine.reap_expired() == 1
        (lease,) = bench.engine.claim("default", 1, owner_token=new_owner_token(new_session()))
        assert bench.engine.abandon(lease, DeadReason.FAILED)
        return "too late"

    bench.handler(be_too_slow)
    id = bench.put()
    assert bench.turn().status is WorkerStatus.LOST_LEASE
    assert (bench.view(id).state, bench.outcomes(id)) == (JobState.DEAD, [Outcome.CRASHED])
    assert bench.counts.seen == {"jobs_fetched default": 1, "jobs_lost_lease default": 1}
    assert f"job {id}: lease lost before the job was settled" in caplog.text


def test_all_claims_of_a_worker_begin_with_its_session(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, tokens = bench.engine.claim, list[bytes]()

    def claimed(queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        tokens.append(bytes.fromhex(owner_token))
        return claim(queue, limit, owner_token=owner_token, wait=wait)

    monkeypatch.setattr(bench.engine, "claim", claimed)
    for _ in range(2):
        bench.turn()
    bench.app.worker().process_once("default")
    first, second, other = tokens
    assert first[:8] == second[:8] != other[:8]
    assert len({token[8:] for token in tokens}) == 3
