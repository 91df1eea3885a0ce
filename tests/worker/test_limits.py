"""Rate limits of queues, handlers and keys: what a worker starts when, and that only jobs that run cost a token."""

import logging
from collections.abc import Iterator, Sequence

import pytest

from holdfast.config import Settings
from holdfast.definition import JobOptions
from holdfast.errors import RateLimited
from holdfast.handlers import JobContext, Snooze
from holdfast.state.limits import Limiter
from holdfast.values import DeadReason, JobState, Outcome, Spend, Spent, WorkerResult, WorkerStatus
from holdfast.worker import WorkerLoop
from holdfast.worker.throttle import Throttle

from ..faults.processes import until
from ..servers.places import every_engine
from .bench import Bench, wire_of
from .floor import Floor
from .test_ends import put_wire

LIMITS = {"default": "60/min", "api": "10/s,burst=3"}
RATES = Settings(limits=LIMITS).rates


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(settings=Settings(limits=LIMITS, crash_limit=3)) as bench:
        yield bench


@pytest.fixture
def starts(bench: Bench) -> list[float]:
    """When each job started, in seconds after the first one."""
    starts: list[float] = []
    bench.handler(lambda: starts.append(bench.clock.monotonic()))
    return starts


def available(bench: Bench, queue: str = "default") -> int:
    return bench.app.limiter(queue=queue).usage().available


# Queues.


def test_sixty_per_minute_start_at_most_61_in_any_minute(bench: Bench, starts: list[float]) -> None:
    for _ in range(150):
        bench.put()
    WorkerLoop(bench.worker, ["default"], burst=True).run()
    assert len(starts) == 150
    assert max(sum(begin <= start < begin + 60 for start in starts) for begin in starts) <= 61
    assert starts[-1] - starts[0] <= 150, "no token was wasted"


def test_a_burst_starts_at_once(bench: Bench, starts: list[float]) -> None:
    for _ in range(5):
        bench.put(queue="api")
    statuses = [bench.turn("api").status for _ in range(4)]
    assert statuses == [WorkerStatus.ACKED] * 3 + [WorkerStatus.RATE_LIMITED]


def test_a_turn_without_a_token_claims_nothing_and_says_when_to_try_again(bench: Bench, starts: list[float]) -> None:
    bench.put()
    id = bench.put()
    assert bench.turn().status is WorkerStatus.ACKED
    result = bench.turn()
    assert result == WorkerResult(status=WorkerStatus.RATE_LIMITED, queue="default", retry_in=result.retry_in)
    assert result.retry_in == pytest.approx(1.0)
    assert (bench.view(id).state, bench.view(id).deliveries) == (JobState.PENDING, 0)
    bench.clock.advance(1.0)
    assert bench.turn().job_id == id


def test_a_loop_serves_other_queues_while_one_waits_and_reports_that_once(
    bench: Bench, starts: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    for queue, number in (("default", 3), ("other", 20)):
        for _ in range(number):
            bench.put(queue=queue)
    results: list[WorkerResult] = []
    with caplog.at_level(logging.INFO, "holdfast.worker"):
        WorkerLoop(bench.worker, ["default", "other"], burst=True, on_result=results.append).run()
    assert [result.queue for result in results[:3]] == ["default", "other", "default"]
    limited = [result for result in results if result.status is WorkerStatus.RATE_LIMITED]
    assert [(result.queue, result.job_id) for result in limited] == [("default", None)]
    assert caplog.text.count("queue 'default' has reached its rate limit; the next job can start in 1 s") == 1
    assert starts[-1] - starts[0] == pytest.approx(2.0, abs=0.1)
    assert len(starts) == 23


def test_an_empty_poll_costs_no_token(bench: Bench) -> None:
    for _ in range(5):
        assert bench.turn().status is WorkerStatus.EMPTY
    assert available(bench) == 1


def test_returned_tokens_can_be_taken_at_once(bench: Bench) -> None:
    throttle = Throttle(bench.engine.state, RATES, bench.clock, poll_interval_s=60.0)
    assert throttle.take("api", 5) == 3
    throttle.claimed("api", 3, 1)
    throttle.refund()
    assert throttle.take("api", 5) == 2


def test_a_worker_applies_a_raised_rate_at_once_and_a_limiter_after_a_reset(bench: Bench) -> None:
    state = bench.engine.state
    for queue in ("default", "api"):
        assert Limiter("", f"queue:{queue}", Settings(limits={"q": "1/h"}).rates["q"], lambda: state).allow()
    assert Throttle(state, RATES, bench.clock).take("default", 1) == 1
    api = bench.app.limiter(queue="api")
    assert api.usage().wait_s > 3500
    api.reset()
    assert api.allow(3)


def test_an_idle_loop_takes_no_token_while_it_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []
    spend = bench.engine.state.spend
    monkeypatch.setattr(bench.engine.state, "spend", lambda spends: spent.append(1) or spend(spends))  # type: ignore[func-returns-value]
    assert bench.worker.process_once("default", wait=5.0).status is WorkerStatus.EMPTY
    assert spent == []
    bench.handler(lambda: None)
    bench.put(delay=1.0)
    assert bench.worker.process_once("default", wait=5.0).status is WorkerStatus.ACKED
    assert len(spent) == 1


def test_an_idle_loop_takes_tokens_for_an_empty_queue_once_per_poll(
    bench: Bench, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    spend = bench.engine.state.spend
    monkeypatch.setattr(bench.engine.state, "spend", lambda spends: spent.append(1) or spend(spends))  # type: ignore[func-returns-value]
    bench.put(queue="free", delay=10.0)
    WorkerLoop(bench.worker, ["default", "free"], poll_interval_s=1.0, max_jobs=1).run()
    assert len(spent) <= 22, "a token is taken and returned in each of eleven polls"


def test_a_queue_at_its_limit_may_have_jobs_even_when_its_next_token_is_there(bench: Bench) -> None:
    throttle = Throttle(bench.engine.state, RATES, bench.clock, poll_interval_s=60.0)
    assert [throttle.take("default", 1) for _ in range(2)] == [1, 0]
    bench.clock.advance(1.0)
    assert throttle.has_reached("default")
    assert throttle.take("default", 1) == 1
    throttle.claimed("default", 1, 0)
    assert not throttle.has_reached("default")


def test_a_queue_that_had_fewer_tokens_than_were_wanted_may_have_more_jobs(bench: Bench) -> None:
    throttle = Throttle(bench.engine.state, RATES, bench.clock, poll_interval_s=60.0)
    assert throttle.take("api", 5) == 3
    throttle.claimed("api", 3, 3)
    assert throttle.has_reached("api")
    bench.clock.advance(60.0)
    assert throttle.take("api", 1) == 1
    throttle.claimed("api", 1, 0)
    assert not throttle.has_reached("api")


def test_a_job_that_does_not_run_costs_no_token(bench: Bench, starts: list[float]) -> None:
    bench.put_wire(wire_of(id="bad")[:-5] + b'000"}', id="bad")
    bench.put("unknown", id="unknown", priority=9)
    bench.put(id="expired", expires=1.0, priority=9)
    bench.put(id="done", idempotency_key="k")
    bench.put(id="skipped", idempotency_key="k")
    bench.clock.advance(10.0)
    seen = {result.job_id: result.status for result in (bench.turn() for _ in range(3))}
    assert seen == {
        "bad": WorkerStatus.REJECTED,
        "unknown": WorkerStatus.RELEASED,
        "expired": WorkerStatus.CANCELLED,
    }
    assert available(bench) == 1
    assert bench.turn().status is WorkerStatus.ACKED
    assert available(bench) == 0
    bench.clock.advance(1.0)
    assert [bench.turn().status for _ in range(2)] == [WorkerStatus.RELEASED, WorkerStatus.SKIPPED_IDEMPOTENT]
    assert available(bench) == 1


def test_a_blocked_job_costs_no_token(bench: Bench) -> None:
    bench.handler(lambda: bench.worker.backend)
    seen: list[WorkerResult] = []

    def holder() -> None:
        bench.clock.advance(1.0)
        with bench.app.worker() as other:
            seen.append(other.process_once("default"))

    bench.handler(holder, "holder")
    bench.put("holder", concurrency_key="a")
    bench.put(id="waiting", concurrency_key="a")
    bench.turn()
    assert [(result.job_id, result.status) for result in seen] == [("waiting", WorkerStatus.BLOCKED)]
    assert available(bench) == 1


def test_a_job_that_is_released_unstarted_costs_no_token(bench: Bench, starts: list[float]) -> None:
    bench.put()
    assert bench.worker.process_once("default", unless=lambda: True).status is WorkerStatus.RELEASED
    assert available(bench) == 1


def test_every_run_costs_a_token(bench: Bench) -> None:
    def fails() -> None:
        raise ValueError("no")

    bench.handler(fails)
    bench.put(backoff="none")
    assert bench.turn().status is WorkerStatus.REQUEUED
    assert bench.turn().status is WorkerStatus.RATE_LIMITED


# Handlers and keys.


def put_limited(bench: Bench, number: int, *, rate: str = "60/min", key: str | None = None) -> list[str]:
    options: JobOptions = {"queue": "free", "rate_limit": rate}
    if key is not None:
        options["rate_key"] = key
    return [bench.put(**options) for _ in range(number)]


def test_a_limited_job_is_put_off_once_to_its_own_time(bench: Bench, starts: list[float]) -> None:
    ids = put_limited(bench, 4)
    WorkerLoop(bench.worker, ["free"], burst=True).run()
    assert len(starts) == 1
    assert [bench.view(id).state for id in ids] == [JobState.COMPLETED] + [JobState.SCHEDULED] * 3
    assert [bench.due_in(id).total_seconds() for id in ids[1:]] == pytest.approx([1.0, 2.0, 3.0])
    for id in ids[1:]:
        bench.clock.advance(1.0)
        assert bench.turn("free").job_id == id
    assert [bench.outcomes(id) for id in ids[1:]] == [[Outcome.RATE_LIMITED, Outcome.SUCCEEDED]] * 3
    assert bench.records(ids[1])[0].note == "put off for 1 s by the rate limit of 60/min"
    assert {bench.view(id).attempts for id in ids} == {0}
    assert bench.counts.seen["jobs_rate_limited free"] == 3


def test_the_result_of_a_job_that_is_put_off(bench: Bench, starts: list[float]) -> None:
    _, second = put_limited(bench, 2)
    bench.turn("free")
    result = bench.turn("free")
    assert (result.status, result.job_id) == (WorkerStatus.RATE_LIMITED, second)
    assert result.retry_in == pytest.approx(1.0)


def test_keys_and_handlers_have_limits_of_their_own(bench: Bench, starts: list[float]) -> None:
    bench.handler(lambda: None, "other")
    first = [put_limited(bench, 2, key=key) for key in ("tenant-1", "tenant-2")]
    bench.put("other", queue="free", rate_limit="60/min", rate_key="tenant-1")
    bench.put("other", queue="free", rate_limit="60/min")
    WorkerLoop(bench.worker, ["free"], burst=True).run()
    done = [[bench.view(id).state for id in ids] for ids in first]
    assert done == [[JobState.COMPLETED, JobState.SCHEDULED]] * 2
    assert bench.counts.seen["jobs_succeeded free"] == 4


def test_a_retry_and_a_snooze_are_starts(bench: Bench) -> None:
    runs: list[str] = []

    def run(context: JobContext) -> object:
        runs.append(context.id)
        if context.id == "fails":
            raise ValueError("no")
        return Snooze(0)

    bench.handler(run)
    bench.put(id="fails", queue="free", rate_limit="60/min", backoff="none")
    assert [bench.turn("free").status for _ in range(2)] == [WorkerStatus.REQUEUED, WorkerStatus.RATE_LIMITED]
    bench.put(id="snoozes", queue="free", rate_limit="60/min", rate_key="k")
    assert [bench.turn("free").status for _ in range(2)] == [WorkerStatus.RELEASED, WorkerStatus.RATE_LIMITED]
    assert bench.view("snoozes").attempts == 0
    assert len(runs) == 2


def test_jobs_that_piled_up_while_no_worker_ran_do_not_all_start_at_once(bench: Bench, starts: list[float]) -> None:
    put_limited(bench, 10)
    loop = WorkerLoop(bench.worker, ["free"], burst=True)
    loop.run()
    bench.clock.advance(100.0)
    loop.run()
    assert len(starts) == 2, "nine were due; one may start"
    for _ in range(10):
        bench.clock.advance(1.0)
        loop.run()
    assert len(starts) == 10


def test_a_job_that_was_admitted_but_not_started_is_not_put_off(floor: Floor) -> None:
    """It is released while the only slot is busy."""
    floor.put("gated", {"gate": "open"}, id="busy")
    floor.put("quick", id="waits", rate_limit="1/h")
    worker = floor.start(concurrency=1)
    floor.noted("start", "busy")
    until(lambda: worker.tally.get(WorkerStatus.RELEASED) or floor.state("waits") is JobState.PENDING, "the release")
    floor.open_gate("open")
    floor.reached("waits", JobState.COMPLETED)
    assert Outcome.RATE_LIMITED not in floor.outcomes("waits")


def test_a_put_off_job_does_not_hold_its_key(bench: Bench, starts: list[float]) -> None:
    first, second = (
        bench.put(queue="free", rate_limit="60/min", concurrency_key="a", rate_key=key) for key in ("k", "k")
    )
    free = bench.put(queue="free", concurrency_key="a")
    WorkerLoop(bench.worker, ["free"], burst=True).run()
    assert [bench.view(id).state for id in (first, second, free)] == [
        JobState.COMPLETED,
        JobState.SCHEDULED,
        JobState.COMPLETED,
    ]
    assert bench.engine.slots() == []
    bench.clock.advance(1.0)
    assert bench.turn("free").status is WorkerStatus.ACKED


def test_a_blocked_job_reserves_no_token(bench: Bench) -> None:
    seen: list[WorkerResult] = []

    def holder() -> None:
        with bench.app.worker() as other:
            seen.append(other.process_once("free"))

    bench.handler(holder, "holder")
    bench.handler(lambda: None)
    bench.put("holder", queue="free", concurrency_key="a")
    bench.put(id="waiting", queue="free", concurrency_key="a", rate_limit="1/d")
    bench.turn("free")
    assert [result.status for result in seen] == [WorkerStatus.BLOCKED]
    assert bench.turn("free").status is WorkerStatus.ACKED
    assert bench.outcomes("waiting") == [Outcome.SUCCEEDED]


def test_putting_a_job_off_does_not_forgive_its_crashes(bench: Bench, starts: list[float]) -> None:
    id = bench.put(queue="free", rate_limit="60/min")
    bench.let_its_worker_die("free")
    bench.engine.reap_expired()
    assert bench.view(id).crashes == 1
    bench.engine.state.spend([Spend(bucket="handler:job", tokens=2, per_s=1, burst=2)])
    assert bench.turn("free").job_id == id
    assert (bench.view(id).state, bench.view(id).crashes) == (JobState.SCHEDULED, 1)


def test_a_job_that_reaches_a_limit_of_its_own_code_is_snoozed(bench: Bench) -> None:
    maps = bench.app.limiter("maps", "60/min")
    bench.handler(maps.throttle)
    first, second = (bench.put(queue="free") for _ in range(2))
    bench.turn("free")
    result = bench.turn("free")
    assert result.status is WorkerStatus.RELEASED
    assert result.retry_in == pytest.approx(1.0)
    [record] = bench.records(second)
    assert (record.outcome, record.error) == (Outcome.SNOOZED, None)
    assert record.note == "limiter 'maps' has reached its rate limit of 60/min; the next token is available in 1 s"
    assert bench.view(second).attempts == 0
    bench.clock.advance(1.0)
    bench.turn("free")
    assert {bench.view(id).state for id in (first, second)} == {JobState.COMPLETED}


def test_a_job_may_handle_the_error_itself(bench: Bench) -> None:
    maps = bench.app.limiter("maps", "60/min")

    def patient() -> str:
        try:
            maps.throttle()
        except RateLimited:
            return "later"
        return "now"

    bench.handler(patient)
    ids = [bench.put(queue="free") for _ in range(2)]
    for _ in ids:
        bench.turn("free")
    assert [bench.app.handle(id).result(0) for id in ids] == ["now", "later"]


@pytest.mark.parametrize("limit", ["often", "1/y", "x" * 5000])
def test_a_message_with_an_impossible_limit_is_dead(bench: Bench, limit: str) -> None:
    bad = bench.put_wire(wire_of(queue="free", rate_limit=limit), queue="free")
    assert bench.turn("free").status is WorkerStatus.REJECTED
    assert bench.view(bad).dead_reason is DeadReason.UNDECODABLE


# Workers with children.


@every_engine
def test_a_worker_keeps_to_the_limit_and_serves_other_queues(floor: Floor) -> None:
    limited = floor.put_many(4, "quick", queue="api")
    others = floor.put_many(40, "quick")
    worker = floor.start(queues={"api": 1, "default": 1}, limits=Settings(limits={"api": "1/h,burst=3"}).rates)
    until(lambda: worker.tally.get(WorkerStatus.ACKED) == 43, "all but one to run")
    assert sorted(str(floor.state(id)) for id in limited) == ["completed"] * 3 + ["pending"]
    assert {floor.state(id) for id in others} == {JobState.COMPLETED}
    worker.stop()
    worker.ended()


@every_engine
def test_a_burst_waits_for_tokens_until_the_queue_is_empty(floor: Floor) -> None:
    ids = floor.put_many(4, "quick", queue="api")
    worker = floor.work(queues={"api": 1}, limits=Settings(limits={"api": "10/s,burst=1"}).rates, processes=2)
    assert sorted(floor.ends()) == sorted(ids)
    assert worker.tally == {WorkerStatus.ACKED: 4}


@every_engine
def test_limited_jobs_are_put_off_and_run_at_their_times(floor: Floor) -> None:
    ids = floor.put_many(5, "quick", rate_limit="10/s,burst=2")
    floor.start(processes=2)
    for id in ids:
        floor.reached(id, JobState.COMPLETED)
    assert sum(Outcome.RATE_LIMITED in floor.outcomes(id) for id in ids) >= 3
    assert {floor.view(id).attempts for id in ids} == {0}


def test_verdicts_are_sent_while_the_queue_waits_for_tokens(floor: Floor) -> None:
    running = floor.put("gated", queue="api")
    floor.start(queues={"api": 1}, limits=Settings(limits={"api": "1/h"}).rates, processes=2)
    floor.noted("start", running)
    floor.put("quick", queue="api")
    floor.open_gate(running)
    floor.reached(running, JobState.COMPLETED)


def test_an_idle_limited_queue_costs_no_tokens_and_no_extra_calls(floor: Floor) -> None:
    worker = floor.start(queues={"api": 1}, limits=RATES, poll_interval_s=0.05)
    until(lambda: floor.engine.calls["claim"], "a first claim")
    until(lambda: worker.supervisor.report().processes, "the worker to be idle")
    seen = floor.engine.calls["state"], floor.engine.calls["claim"]
    began = worker.supervisor.turned_at
    until(lambda: worker.supervisor.turned_at > began + 1.0, "a second to pass")
    spends = floor.engine.calls["spend"]
    assert spends <= 2, "the first claim and its refund"
    assert floor.engine.calls["claim"] == seen[1]
    id = floor.put("quick", queue="api")
    floor.reached(id, JobState.COMPLETED)


def test_a_limit_is_reported_once_while_it_lasts(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    floor.put_many(5, "quick", queue="api")
    with caplog.at_level(logging.INFO, "holdfast.worker"):
        floor.work(queues={"api": 1}, limits=Settings(limits={"api": "10/s,burst=1"}).rates)
    assert caplog.text.count("queue 'api' has reached its rate limit; the next job can start in") == 1


class Tokens:
    """The spends that an engine was asked for, by bucket."""

    def __init__(self, floor: Floor) -> None:
        self.spent: list[int] = []
        self._spend = floor.engine.state.spend
        floor.engine.state.spend = self.spend  # type: ignore[method-assign]

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        answers = self._spend(spends)
        self.spent += [answer.tokens for answer in answers]
        return answers


def test_tokens_are_taken_for_free_slots_and_returned_for_jobs_that_do_not_run(floor: Floor) -> None:
    tokens = Tokens(floor)
    floor.put("quick", queue="api", expires=0.0)
    floor.put("unheard-of", queue="api", expires=0.0)
    floor.work(queues={"api": 1}, limits=Settings(limits={"api": "1/h,burst=50"}).rates, concurrency=4)
    assert max(tokens.spent) <= 4, "no more than can start at once"
    assert sum(tokens.spent) == 0
    ids = floor.put_many(10, "quick", queue="api")
    floor.work(queues={"api": 1}, limits=Settings(limits={"api": "1/h,burst=50"}).rates, concurrency=4)
    assert sorted(floor.ends()) == sorted(ids)
    assert sum(tokens.spent) == 10


def test_rejected_jobs_cost_no_tokens_and_do_not_count_as_runs(floor: Floor) -> None:
    tokens = Tokens(floor)
    put_wire(floor, "undecodable", b"garbage")
    put_wire(floor, "forged", wire_of(id="forged", key="ours:another-key-under-the-name-of-ours"))
    ids = floor.put_many(2, "quick")
    floor.work(limits=Settings(limits={"default": "1/h,burst=9"}).rates, max_jobs=1)
    assert {floor.state(id) for id in ("undecodable", "forged")} == {JobState.DEAD}
    assert sorted(str(floor.state(id)) for id in ids) == ["completed", "pending"]
    assert sum(tokens.spent) == 1


def test_a_payload_that_does_not_fit_its_handler_fails_a_run(bench: Bench) -> None:
    def count(number: int) -> None: ...

    bench.handler(count)
    bench.put(max_retries=0)
    loop = WorkerLoop(bench.worker, ["default"], max_jobs=1)
    loop.run()
    assert (loop.jobs_done, available(bench)) == (1, 0)


def test_verdicts_are_sent_although_the_limit_cannot_be_checked(floor: Floor) -> None:
    running = floor.put("gated", queue="api")
    worker = floor.start(queues={"api": 1}, limits=RATES, processes=2)
    floor.noted("start", running)
    floor.engine.down.add("spend")
    waiting = floor.put("quick", queue="api")
    floor.open_gate(running)
    floor.reached(running, JobState.COMPLETED)
    assert floor.state(waiting) is JobState.PENDING
    floor.engine.down.clear()
    floor.reached(waiting, JobState.COMPLETED)
    assert worker.is_running


@every_engine
def test_a_job_pays_again_if_the_answer_was_lost_and_runs(floor: Floor) -> None:
    floor.engine.lost_answers["spend"] = 1
    id = floor.put("quick", rate_limit="10/s,burst=5")
    floor.work()
    assert floor.outcomes(id) == [Outcome.SUCCEEDED]
    usage = Limiter("", "handler:quick", RATES["api"], lambda: floor.engine.state).usage()
    assert usage.available < 5


def test_a_lost_answer_about_a_queue_costs_tokens_and_no_job(floor: Floor) -> None:
    floor.engine.lost_answers["spend"] = 2
    ids = floor.put_many(3, "quick", queue="api")
    floor.work(queues={"api": 1}, limits=Settings(limits={"api": "10/s,burst=3"}).rates)
    assert sorted(floor.ends()) == sorted(ids)
