"""Jobs that run where they are enqueued: at once, with all their retries, and no failure passes unnoticed."""

from collections.abc import Iterator

import pytest

from holdfast.app import Holdfast
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.errors import HoldfastError, JobCancelled, JobFailed
from holdfast.handlers import Cancel, Snooze
from holdfast.queues.engines.memory import sync as sync
from holdfast.values import JobState, Outcome


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holdfast]:
    def sleep(self: SystemClock, seconds: float) -> None:
        raise AssertionError(f"somebody slept {seconds} s")

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    with Holdfast("sync://", settings=Settings()) as hf:
        yield hf


def outcomes(hf: Holdfast, id: str) -> list[Outcome]:
    history = hf.backend().get(id)
    assert history is not None
    return [past.record.outcome for past in history.attempts]


def test_a_job_has_run_when_enqueue_returns(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job
    def add(a: int, b: int) -> int:
        seen.append(a)
        return a + b

    handle = add.enqueue(a=2, b=3)
    assert seen == [2]
    assert handle.id.startswith("sync-")
    assert handle.status() is JobState.COMPLETED
    assert handle.result(0) == 5


def test_retries_do_not_sleep(hf: Holdfast) -> None:
    runs: list[str] = []

    @hf.job(max_retries=3, backoff=[1e6])
    def unsteady() -> str:
        runs.append("run")
        if len(runs) < 4:
            raise ValueError("not yet")
        return "at last"

    handle = unsteady.enqueue()
    assert handle.result(0) == "at last"
    assert outcomes(hf, handle.id) == [Outcome.FAILED, Outcome.FAILED, Outcome.FAILED, Outcome.SUCCEEDED]


def test_a_job_that_fails_for_good_fails_where_it_was_enqueued(hf: Holdfast) -> None:
    @hf.job(max_retries=1, id="doomed")
    def doomed() -> None:
        raise ValueError("the third shelf is empty")

    with pytest.raises(JobFailed, match=r"job 'doomed' is dead \(failed\): ValueError: the third shelf is empty"):
        doomed.enqueue()
    assert outcomes(hf, "doomed") == [Outcome.FAILED, Outcome.FAILED]


def test_a_cancelled_job_is_reported_where_it_was_enqueued(hf: Holdfast) -> None:
    @hf.job
    def unwanted() -> Cancel:
        return Cancel("nobody wants it")

    with pytest.raises(JobCancelled, match="nobody wants it"):
        unwanted.enqueue()


def test_a_failure_leaves_the_next_job_alone(hf: Holdfast) -> None:
    @hf.job(max_retries=0)
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number // 2

    with pytest.raises(JobFailed):
        halve.enqueue(3)
    assert halve.enqueue(4).result(0) == 2


def test_a_job_enqueued_by_a_job_runs_before_the_outer_enqueue_returns(hf: Holdfast) -> None:
    order: list[str] = []

    @hf.job
    def child(name: str) -> None:
        order.append(name)

    @hf.job
    def parent() -> None:
        child.options(queue="other").enqueue("first child")
        child.enqueue("second child")
        order.append("parent")

    parent.enqueue()
    assert order[0] == "parent", "a job finishes before another begins"
    assert sorted(order[1:]) == ["first child", "second child"]
    assert hf.backend().counts() == {"default": {JobState.COMPLETED: 2}, "other": {JobState.COMPLETED: 1}}


def test_delayed_and_snoozed_jobs_run_in_the_order_they_fall_due(hf: Holdfast) -> None:
    order: list[str] = []

    @hf.job
    def note(name: str, snooze: float) -> None:
        order.append(name)
        if snooze and len(order) == 1:
            raise Snooze(snooze)

    hf.enqueue_many(
        [
            note.options(delay=3600, queue="other").define("in an hour", 0),
            note.options(delay=7200).define("in two hours", 0),
            note.define("now, and in ninety minutes", 5400),
        ]
    )
    assert order == ["now, and in ninety minutes", "in an hour", "now, and in ninety minutes", "in two hours"]


def test_a_job_that_expires_before_its_delay_is_over_is_reported(hf: Holdfast) -> None:
    @hf.job(delay=60, expires=30)
    def stale() -> None: ...

    with pytest.raises(JobCancelled, match="expired"):
        stale.enqueue()


def test_a_job_without_a_handler_is_reported_by_name_and_harms_no_other(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_TURNS", 100)
    with pytest.raises(HoldfastError, match="unheard-of"):
        hf.define("unheard-of").dispatch()

    @hf.job
    def well() -> str:
        return "well"

    assert well.enqueue().result(0) == "well"
