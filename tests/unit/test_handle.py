"""What a producer can learn of a job it has enqueued."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from holdfast.clock import Clock
from holdfast.errors import JobCancelled, JobFailed, ResultGone, UnknownJob
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.testing import Lab, memory_lab
from holdfast.values import CancelAnswer, DeadReason, ErrorInfo, JobState, Outcome


@pytest.fixture
def lab() -> Lab:
    lab = memory_lab()
    lab.put("job1")
    return lab


def handle(lab: Lab, job_id: str = "job1", *, clock: Clock | None = None) -> JobHandle[Any]:
    return JobHandle(job_id, lab.engine, clock or lab.clock)


def test_a_handle_asks_the_engine_every_time(lab: Lab) -> None:
    job = handle(lab)
    assert job.status() is JobState.PENDING
    lab.take("job1")
    assert job.status() is JobState.PROCESSING
    assert job.view() == lab.view("job1")
    assert repr(job) == "JobHandle('job1')"


def test_a_job_nobody_knows_is_an_error_that_names_it(lab: Lab) -> None:
    stranger = handle(lab, "job9")
    for question in (stranger.status, stranger.view):
        with pytest.raises(UnknownJob, match="there is no job 'job9'") as caught:
            question()
        assert caught.value.job_id == "job9"
    assert stranger.cancel() is CancelAnswer.UNKNOWN


def test_an_id_that_is_too_long_to_be_one_is_not_repeated_whole(lab: Lab) -> None:
    longest, longer = "j" * 128, "j" * 5000
    with pytest.raises(UnknownJob, match=f"there is no job '{longest}'"):
        handle(lab, longest).view()
    with pytest.raises(UnknownJob) as caught:
        handle(lab, longer).view()
    assert str(caught.value).startswith(f"there is no job '{'j' * 60}... (5,000 characters)'; ")
    assert caught.value.job_id == longer


def test_the_result_is_what_the_handler_returned(lab: Lab) -> None:
    lab.engine.ack(lab.take("job1"), lab.record(result=b'{"sum":[1,2.5,null]}'))
    assert handle(lab).result() == {"sum": [1, 2.5, None]}
    assert handle(lab).result(0) == {"sum": [1, 2.5, None]}


def test_a_handler_that_returned_nothing_has_the_result_none(lab: Lab) -> None:
    lab.engine.ack(lab.take("job1"), lab.record())
    assert handle(lab).result() is None


def test_the_result_is_that_of_the_run_that_succeeded(lab: Lab) -> None:
    failure = lab.record(Outcome.FAILED, error=ErrorInfo(type="OSError", message="gone"))
    lab.engine.nack(lab.take("job1"), None, failure)
    lab.engine.ack(lab.take("job1"), lab.record(result=b"7"))
    assert handle(lab).result() == 7


def test_a_result_that_was_not_kept_is_gone_with_the_reason(lab: Lab) -> None:
    record = msgspec.structs.replace(
        lab.record(), note="the result was not stored: it has 70,000 bytes, and the limit is 65,536"
    )
    lab.engine.ack(lab.take("job1"), record)
    with pytest.raises(ResultGone, match="job 'job1' completed, but the result was not stored: it has 70,000 bytes"):
        handle(lab).result()


def test_a_pruned_record_is_gone(lab: Lab) -> None:
    lab.engine.ack(lab.take("job1"), lab.record(result=b"7"))
    lab.advance(3 * 86_400)
    lab.engine.prune()
    with pytest.raises(ResultGone, match="job 'job1' has no record"):
        handle(lab).result()


def test_a_dead_job_failed_with_its_reason_and_last_error(lab: Lab) -> None:
    failure = lab.record(Outcome.FAILED, error=ErrorInfo(type="OSError", message="disk gone"))
    lab.engine.abandon(lab.take("job1"), DeadReason.NO_RETRY, failure)
    with pytest.raises(JobFailed, match=r"job 'job1' is dead \(no-retry\): OSError: disk gone"):
        handle(lab).result()


def test_a_cancelled_job_says_why(lab: Lab) -> None:
    assert handle(lab).cancel("ordered twice") is CancelAnswer.CANCELLED
    assert handle(lab).cancel() is CancelAnswer.TOO_LATE
    with pytest.raises(JobCancelled, match="job 'job1' was cancelled: ordered twice"):
        handle(lab).result()


def test_a_cancellation_without_a_reason_says_so(lab: Lab) -> None:
    handle(lab).cancel()
    with pytest.raises(JobCancelled, match="no reason was given"):
        handle(lab).result()


def test_cancelling_a_running_job_is_asking_its_worker(lab: Lab) -> None:
    lab.take("job1")
    assert handle(lab).cancel() is CancelAnswer.REQUESTED
    assert handle(lab).view().cancel_requested


def test_waiting_ends_with_a_timeout_that_names_the_state(lab: Lab) -> None:
    before = lab.clock.monotonic()
    with pytest.raises(TimeoutError, match="job 'job1' is still pending after 5 s"):
        handle(lab).result(timeout=5)
    assert 5 <= lab.clock.monotonic() - before < 5.2


def test_a_timeout_of_zero_looks_once(lab: Lab) -> None:
    before = lab.clock.monotonic()
    with pytest.raises(TimeoutError):
        handle(lab).result(timeout=0)
    assert lab.clock.monotonic() == before


class Meanwhile:
    """A clock during whose sleeps other things happen; it notes how long it was asked to sleep."""

    def __init__(self, lab: Lab, *, finish_after: int) -> None:
        self._lab = lab
        self._left = finish_after
        self.pauses: list[float] = []

    def now_us(self) -> int:
        return self._lab.clock.now_us()

    def monotonic(self) -> float:
        return self._lab.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._left -= 1
        if self._left == 0:
            self._lab.engine.ack(self._lab.take("job1"), self._lab.record(result=b'"done"'))

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        raise NotImplementedError


def test_waiting_sees_the_job_end_and_looks_ever_more_rarely(lab: Lab) -> None:
    clock = Meanwhile(lab, finish_after=12)
    assert handle(lab, clock=clock).result() == "done"
    assert len(clock.pauses) == 12
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] <= 0.01
    assert clock.pauses[-1] == 0.1


@dataclass
class Receipt:
    order: int
    day: date
    amount: Decimal


def test_a_result_is_read_as_what_the_function_declares(lab: Lab) -> None:
    lab.engine.ack(lab.take("job1"), lab.record(result=b'{"order":7,"day":"2026-11-16","amount":"19.50"}'))
    job: JobHandle[Receipt] = JobHandle("job1", lab.engine, lab.clock, returns=Receipt)
    assert job.result() == Receipt(7, date(2026, 11, 16), Decimal("19.50"))


def test_a_result_of_another_shape_is_gone_and_can_be_had_as_it_stands(lab: Lab) -> None:
    lab.engine.ack(lab.take("job1"), lab.record(result=b'{"order":7}'))
    with pytest.raises(ResultGone, match=r"not of the type that the function declares .*hf\.handle\('job1'\)"):
        JobHandle[Receipt]("job1", lab.engine, lab.clock, returns=Receipt).result()
    assert handle(lab).result() == {"order": 7}


def test_waiting_returns_the_job_however_it_ended(lab: Lab) -> None:
    lab.engine.abandon(lab.take("job1"), DeadReason.FAILED)
    assert handle(lab).wait() == lab.view("job1")
    with pytest.raises(ResultGone):
        handle(lab, "job9").wait()


def test_an_event_loop_goes_on_while_a_job_is_waited_for(lab: Lab) -> None:
    job: AsyncJobHandle[Any] = AsyncJobHandle(handle(lab))

    async def wait_and_work() -> tuple[Any, int]:
        waiting = asyncio.create_task(job.result(timeout=60))
        turns = 0
        while await job.status() is not JobState.PENDING or turns < 3:
            turns += 1
        lab.engine.ack(lab.take("job1"), lab.record(result=b"42"))
        return await waiting, turns

    assert asyncio.run(wait_and_work()) == (42, 3)


def test_an_event_loop_is_answered_like_everybody(lab: Lab) -> None:
    async def ask() -> None:
        job: AsyncJobHandle[Any] = AsyncJobHandle(handle(lab))
        assert (await job.view(), await job.progress(), repr(job)) == (lab.view("job1"), None, "AsyncJobHandle('job1')")
        with pytest.raises(TimeoutError, match="still pending"):
            await job.wait(0)
        assert await job.cancel("enough") is CancelAnswer.CANCELLED
        assert (await job.wait()).state is JobState.CANCELLED
        with pytest.raises(JobCancelled, match="enough"):
            await job.result()

    asyncio.run(ask())
