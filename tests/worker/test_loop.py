"""The inline loop: which queue comes next, when it stops, and what it does in addition to running jobs."""

import logging
from collections.abc import Callable, Sequence

import pytest

from holdfast.config import Settings
from holdfast.errors import BackendUnavailable
from holdfast.handlers import JobContext
from holdfast.values import JobLease, JobState, WorkerResult, WorkerStatus
from holdfast.worker import WorkerLoop

from .bench import KEY, Bench, wire_of


class Claims:
    """Stands in for the engine's `claim`: counts, can fail, and ends a test whose loop does not end."""

    def __init__(self, bench: Bench, *, fails: Sequence[int] = (), at_most: int = 1000) -> None:
        self._claim = bench.engine.claim
        self._fails = fails
        self._at_most = at_most
        self.queues: list[str] = []

    def __call__(self, queue: str, limit: int, *, owner_token: str, wait: float = 0.0) -> list[JobLease]:
        self.queues.append(queue)
        assert len(self.queues) <= self._at_most, "the loop does not end"
        if len(self.queues) in self._fails:
            raise BackendUnavailable("nobody answers")
        return self._claim(queue, limit, owner_token=owner_token, wait=wait)


class Worked:
    """The order in which jobs were run, and how they ended."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.results: list[WorkerResult] = []

    def run(self, context: JobContext) -> None:
        self.ids.append(context.id)


@pytest.fixture
def worked(bench: Bench) -> Worked:
    worked = Worked()
    bench.handler(worked.run)
    return worked


@pytest.fixture
def claims(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Claims:
    claims = Claims(bench)
    monkeypatch.setattr(bench.engine, "claim", claims)
    return claims


def test_a_burst_works_what_is_due_and_ends(bench: Bench, worked: Worked) -> None:
    for id in ("a", "b", "c"):
        bench.put(id=id)
    bench.put(id="later", delay=5)
    began = bench.clock.monotonic()
    loop = WorkerLoop(bench.worker, ["default"], burst=True, on_result=worked.results.append)
    loop.run()
    assert worked.ids == ["a", "b", "c"]
    assert [result.job_id for result in worked.results] == ["a", "b", "c"]
    assert loop.jobs_done == 3
    assert bench.view("later").state is JobState.SCHEDULED
    assert bench.clock.monotonic() == began


def test_a_burst_goes_on_with_what_its_jobs_have_enqueued(bench: Bench, worked: Worked) -> None:
    bench.handler(lambda: bench.put(id="child"), "parent")
    bench.put("parent")
    WorkerLoop(bench.worker, ["default"], burst=True).run()
    assert worked.ids == ["child"]


def test_it_ends_after_so_many_jobs(bench: Bench, worked: Worked, claims: Claims) -> None:
    for id in ("a", "b", "c"):
        bench.put(id=id)
    WorkerLoop(bench.worker, ["default"], max_jobs=2).run()
    assert worked.ids == ["a", "b"]
    assert len(claims.queues) == 2
    assert bench.view("c").state is JobState.PENDING


def test_the_limit_counts_only_jobs_that_ran(bench: Bench, worked: Worked) -> None:
    bench.put("unknown", id="postponed")
    bench.put(id="expired", expires=1)
    bench.clock.advance(2)
    bench.put_wire(wire_of(key=KEY.replace("the-key", "not-key")), id="rejected")
    for id in ("x", "y"):
        bench.put(id=id)
    loop = WorkerLoop(bench.worker, ["default"], max_jobs=1, on_result=worked.results.append)
    loop.run()
    assert [(result.job_id, result.status) for result in worked.results] == [
        ("expired", WorkerStatus.CANCELLED),
        ("postponed", WorkerStatus.RELEASED),
        ("rejected", WorkerStatus.REJECTED),
        ("x", WorkerStatus.ACKED),
    ]
    assert (worked.ids, loop.jobs_done) == (["x"], 1)


def test_a_limit_reached_in_the_middle_of_the_queues_leaves_the_others_alone(
    bench: Bench, worked: Worked, claims: Claims
) -> None:
    for queue in ("a", "b"):
        bench.put(queue=queue)
    WorkerLoop(bench.worker, ["a", "b"], max_jobs=1).run()
    assert claims.queues == ["a"]


def test_queues_are_worked_in_turn_and_a_full_one_starves_nobody(bench: Bench, worked: Worked) -> None:
    for number in range(3):
        bench.put(queue="a", id=f"a{number}")
    bench.put(queue="b", id="b0")
    for number in range(2):
        bench.put(queue="c", id=f"c{number}")
    WorkerLoop(bench.worker, ["a", "b", "c"], burst=True).run()
    assert worked.ids == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_an_idle_loop_waits_on_one_queue_only_and_finds_a_job_that_falls_due(
    bench: Bench, worked: Worked, claims: Claims
) -> None:
    bench.put(queue="a", id="later", delay=0.5)
    began = bench.clock.monotonic()
    WorkerLoop(bench.worker, ["a", "b"], max_jobs=1).run()
    assert worked.ids == ["later"]
    # Time passes only while it waits: with two queues, it polls both every few hundredths of a second.
    assert bench.clock.monotonic() - began == pytest.approx(0.5, abs=0.03)
    assert 40 <= len(claims.queues) <= 60


def test_a_stopped_loop_finishes_the_running_job_and_fetches_no_other(
    bench: Bench, worked: Worked, claims: Claims
) -> None:
    loop = WorkerLoop(bench.worker, ["default", "other"], on_result=worked.results.append)

    def stop() -> str:
        loop.stop()
        return "finished"

    bench.handler(stop, "stop")
    first = bench.put("stop")
    bench.put(id="second")
    bench.put(id="third", queue="other")
    loop.run()
    assert [result.status for result in worked.results] == [WorkerStatus.ACKED]
    assert bench.app.handle(first).result(0) == "finished"
    assert (worked.ids, claims.queues) == ([], ["default"])


def test_a_loop_that_waits_for_work_hears_that_it_shall_stop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = WorkerLoop(bench.worker, ["default"], poll_interval_s=20)
    advance = bench.clock.advance

    def wait(seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        loop.stop()
        advance(seconds)
        return frozenset()

    monkeypatch.setattr(bench.clock, "wait", wait)
    began = bench.clock.monotonic()
    loop.run()
    assert bench.clock.monotonic() - began <= 1.0


def test_it_takes_back_the_jobs_of_dead_workers_and_runs_them(
    bench: Bench, worked: Worked, caplog: pytest.LogCaptureFixture
) -> None:
    for queue in ("a", "b", "not ours"):
        bench.put(id=f"of-{queue[0]}", queue=queue.replace(" ", "-"))
        bench.let_its_worker_die(queue.replace(" ", "-"))
    with caplog.at_level(logging.WARNING):
        WorkerLoop(bench.worker, ["a", "b"], burst=True).run()
    assert worked.ids == ["of-a", "of-b"]
    assert bench.view("of-n").state is JobState.PENDING
    assert {name: number for name, number in bench.counts.seen.items() if "reaped" in name} == {"jobs_reaped *": 3}
    assert "reaped 3 jobs whose lease had expired" in caplog.text


def test_it_looks_for_dead_workers_again_and_again(bench: Bench, worked: Worked, claims: Claims) -> None:
    bench.put(id="orphan")
    bench.engine.fetch("default")
    began = bench.clock.monotonic()
    WorkerLoop(bench.worker, ["default"], reap_interval_s=10, max_jobs=1).run()
    assert worked.ids == ["orphan"]
    recovered_after = bench.clock.monotonic() - began
    assert bench.engine.policy.lease_s <= recovered_after <= bench.engine.policy.lease_s + 10 * 1.2 + 1


def test_it_prunes_what_was_kept_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench(settings=Settings(retain_completed=30)) as bench:
        monkeypatch.setattr(bench.engine, "claim", Claims(bench))
        bench.handler(lambda: None)
        done = bench.put()
        bench.put(id="last", delay=100)
        WorkerLoop(bench.worker, ["default"], max_jobs=2).run()
        assert bench.engine.get(done) is None
        assert bench.view("last").state is JobState.COMPLETED


def failing(verb: str, bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Let a verb of the engine fail the first few times it is used."""
    original: Callable[..., object] = getattr(bench.engine, verb)
    calls: list[int] = []

    def call(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) <= times:
            raise BackendUnavailable("nobody answers")
        return original(*args, **options)

    monkeypatch.setattr(bench.engine, verb, call)
    return calls


@pytest.mark.parametrize("verb", ["claim", "reap_expired", "prune"])
def test_an_engine_that_does_not_answer_is_asked_again(
    bench: Bench, worked: Worked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    bench.put(id="patient")
    failing(verb, bench, monkeypatch, times=8)
    began = bench.clock.monotonic()
    WorkerLoop(bench.worker, ["default"], max_jobs=1).run()
    assert worked.ids == ["patient"]
    if verb == "claim":
        # It waits longer and longer, up to five seconds.
        assert 5 <= bench.clock.monotonic() - began <= 8 * 5
        assert caplog.text.count("engine unavailable, cannot claim jobs; retrying in") == 8


def test_a_burst_does_not_wait_for_an_engine_that_does_not_answer(
    bench: Bench, worked: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put()
    failing("claim", bench, monkeypatch, times=1)
    with pytest.raises(BackendUnavailable):
        WorkerLoop(bench.worker, ["default"], burst=True).run()
    assert not worked.ids
