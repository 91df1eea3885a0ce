"""Jobs and circuit breakers: an open circuit costs no attempt, one job is the trial, and all run once it closes."""

from collections.abc import Iterator

import pytest

from holdfast import CircuitOpen, Holdfast, JobState
from holdfast.clock import ManualClock
from holdfast.values import CircuitState, JobView, Outcome, WorkerStatus

COOLDOWN_S = 60.0


class Shop:
    """An application whose jobs call an outside service."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hf = hf = Holdfast("memory://", clock=self.clock)
        self.is_down = False
        self.calls: list[str] = []
        self.breaker = hf.breaker("stripe", failures=2, cooldown=COOLDOWN_S)

        def charge(order: str) -> None:
            with self.breaker:
                self.calls.append(order)
                if self.is_down:
                    raise ConnectionError(order)

        self.charge = hf.job(queue="pay", breaker="stripe", max_retries=0)(charge)
        self.unguarded = hf.job(key="unguarded", queue="pay", max_retries=0)(charge)
        self.worker = hf.worker()

    def view(self, job_id: str) -> JobView:
        history = self.hf.backend().get(job_id)
        assert history is not None
        return history.job

    def work(self, queue: str = "pay") -> list[WorkerStatus]:
        """Process all due jobs. Returns the results."""
        self.hf.backend().repair()
        results: list[WorkerStatus] = []
        while (result := self.worker.process_once(queue)).status is not WorkerStatus.EMPTY:
            results.append(result.status)
        return results


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with shop.hf, shop.worker:
        yield shop


def test_jobs_wait_for_an_open_circuit_and_use_no_attempt(shop: Shop) -> None:
    shop.breaker.trip()
    jobs = [shop.charge.enqueue(f"order-{number}") for number in range(5)]
    assert shop.work() == [WorkerStatus.BLOCKED] * 5
    assert shop.work() == []
    for job in jobs:
        view = shop.view(job.id)
        assert (view.state, view.attempts, view.blocked_on) == (JobState.BLOCKED, 0, "breaker:stripe")
    shop.clock.advance(COOLDOWN_S)
    assert shop.work() == [WorkerStatus.ACKED] * 5
    assert shop.calls == [f"order-{number}" for number in range(5)]
    assert shop.breaker.state() is CircuitState.CLOSED
    assert {shop.view(job.id).attempts for job in jobs} == {0}


def test_one_job_is_the_trial_of_each_cooldown(shop: Shop) -> None:
    shop.is_down = True
    jobs = [shop.charge.enqueue(f"order-{number}") for number in range(6)]
    assert shop.work() == [WorkerStatus.DEAD_LETTERED] * 2 + [WorkerStatus.BLOCKED] * 4
    for number in (2, 3):
        shop.clock.advance(COOLDOWN_S)
        assert shop.work() == [WorkerStatus.DEAD_LETTERED]
        assert shop.calls[-1] == f"order-{number}"
        assert shop.work() == []
    shop.is_down = False
    shop.clock.advance(COOLDOWN_S)
    assert shop.work() == [WorkerStatus.ACKED] * 2
    assert [shop.view(job.id).state for job in jobs] == [JobState.DEAD] * 4 + [JobState.COMPLETED] * 2


def test_a_reset_lets_all_jobs_run_at_once(shop: Shop) -> None:
    shop.breaker.trip()
    for number in range(3):
        shop.charge.enqueue(f"order-{number}")
    assert shop.work() == [WorkerStatus.BLOCKED] * 3
    shop.breaker.reset()
    assert shop.work() == [WorkerStatus.ACKED] * 3


def test_a_job_that_runs_into_an_open_circuit_is_snoozed(shop: Shop) -> None:
    shop.breaker.trip()
    job = shop.unguarded.enqueue("order-1")
    assert shop.work() == [WorkerStatus.RELEASED]
    history = shop.hf.backend().get(job.id)
    assert history is not None
    [attempt] = history.attempts
    assert (history.job.state, history.job.attempts) == (JobState.SCHEDULED, 0)
    assert attempt.record.outcome is Outcome.SNOOZED
    assert attempt.record.note.startswith("the circuit 'stripe' is open, so the call was not made; retry in 60 s")
    assert shop.work() == []
    shop.clock.advance(COOLDOWN_S)
    assert shop.work() == [WorkerStatus.ACKED]


def test_a_trial_that_another_caller_makes_keeps_the_jobs_waiting(shop: Shop) -> None:
    shop.breaker.trip()
    shop.charge.enqueue("order-1")
    assert shop.work() == [WorkerStatus.BLOCKED]
    shop.clock.advance(COOLDOWN_S)
    with shop.breaker:
        assert shop.work() == [], "a job was started during the trial"
        with pytest.raises(CircuitOpen), shop.breaker:
            pytest.fail("there were two trials")
    assert shop.work() == [WorkerStatus.ACKED]


def test_a_job_that_ends_without_a_call_passes_the_turn_on(shop: Shop) -> None:
    ran: list[int] = []

    def note(number: int) -> None:
        ran.append(number)

    idle = shop.hf.job(key="idle", queue="pay", breaker="stripe")(note)
    shop.breaker.trip()
    for number in range(3):
        idle.enqueue(number)
    assert shop.work() == [WorkerStatus.BLOCKED] * 3
    shop.clock.advance(COOLDOWN_S)
    assert shop.work() == [WorkerStatus.ACKED] * 3
    assert ran == [0, 1, 2]
    assert shop.breaker.state() is CircuitState.HALF_OPEN


def test_a_closed_circuit_limits_nothing_and_leaves_nothing_behind(shop: Shop) -> None:
    for number in range(20):
        shop.charge.enqueue(f"order-{number}")
    assert shop.work() == [WorkerStatus.ACKED] * 20
    assert shop.hf.backend().slots() == []
