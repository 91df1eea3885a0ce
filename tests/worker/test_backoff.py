"""One backoff for all requests to an unavailable engine, which other parts of a worker can observe."""

import logging
import re
import threading
from collections.abc import Callable

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import BackendUnavailable
from holdfast.values import JobState, WorkerStatus
from holdfast.worker import WorkerLoop
from holdfast.worker.backoff import EngineBackoff

from ..faults.processes import until
from .bench import Bench
from .floor import Floor

AWAY = BackendUnavailable("connection refused")


class Refusing:
    """A call that an engine refuses so many times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise AWAY
        return "answer"


class Heard:
    """What a listener of a backoff receives."""

    def __init__(self, backoff: EngineBackoff) -> None:
        self.words: list[str] = []
        backoff.subscribe(lambda problem: self.words.append("answer" if problem is None else str(problem)))


def test_pauses_grow_to_five_seconds_and_begin_again_after_an_answer() -> None:
    backoff = EngineBackoff(ManualClock())
    for longest in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0):
        assert longest / 2 <= backoff.failed(AWAY, "claim jobs") <= longest
    backoff.answered()
    assert 0.1 <= backoff.failed(AWAY, "claim jobs") <= 0.2


def test_it_knows_since_when_the_engine_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    backoff = EngineBackoff(clock)
    began = clock.monotonic()
    backoff.failed(AWAY, "claim jobs")
    clock.advance(12.3)
    backoff.failed(AWAY, "settle 3 jobs")
    assert (backoff.failing_since, backoff.failures, backoff.answered_at) == (began, 2, began)
    backoff.answered()
    assert (backoff.failing_since, backoff.failures, backoff.answered_at) == (None, 0, began + 12.3)
    backoff.answered()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.fullmatch(r"engine unavailable, cannot claim jobs; retrying in \d+ ms: connection refused", lines[0])
    assert re.match(r"engine unavailable, cannot settle 3 jobs; retrying in \d+ ms: ", lines[1])
    assert lines[2:] == ["engine available again after 12.3 s"]


def test_a_call_for_claimed_jobs_is_repeated_until_the_engine_answers() -> None:
    clock = ManualClock()
    backoff, call = EngineBackoff(clock), Refusing(3)
    assert backoff.insist(call, "enter", wait=clock.advance) == "answer"
    assert (call.calls, backoff.failures) == (4, 0)


def test_a_call_for_claimed_jobs_does_not_hold_up_the_others_for_long() -> None:
    clock = ManualClock()
    backoff, call = EngineBackoff(clock), Refusing(1000)
    began = clock.monotonic()
    with pytest.raises(BackendUnavailable):
        backoff.insist(call, "enter", wait=clock.advance)
    assert 5.0 <= clock.monotonic() - began <= 10.0


def test_a_worker_that_must_exit_does_not_repeat_a_call() -> None:
    call, hurried = Refusing(1000), threading.Event()
    hurried.set()
    with pytest.raises(BackendUnavailable):
        EngineBackoff(ManualClock()).insist(call, "enter", wait=hurried.wait)
    assert call.calls == 1


def failing(monkeypatch: pytest.MonkeyPatch, bench: Bench, verb: str, times: int) -> None:
    original: Callable[..., object] = getattr(bench.engine, verb)
    left = iter(range(times))

    def call(*args: object, **options: object) -> object:
        if next(left, None) is not None:
            raise BackendUnavailable(verb)
        return original(*args, **options)

    monkeypatch.setattr(bench.engine, verb, call)


def test_the_inline_worker_and_its_loop_share_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.handler(lambda: None)
    bench.put()
    failing(monkeypatch, bench, "claim", 2)
    failing(monkeypatch, bench, "settle", 3)
    heard = Heard(bench.worker.backoff)
    WorkerLoop(bench.worker, ["default"], max_jobs=1).run()
    assert heard.words == ["claim", "claim", "answer", "settle", "settle", "settle", "answer"]


def test_an_error_that_is_not_the_engines_is_not_reported_as_its_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.handler(lambda: None)
    bench.put()
    claim, errors = bench.engine.claim, iter(range(2))

    def call(*args: object, **options: object) -> object:
        if next(errors, None) is not None:
            raise KeyError("a row nobody expected")
        return claim(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.engine, "claim", call)
    heard = Heard(bench.worker.backoff)
    statuses: list[WorkerStatus] = []
    WorkerLoop(bench.worker, ["default"], max_jobs=1, on_result=lambda result: statuses.append(result.status)).run()
    assert statuses == [WorkerStatus.ERROR, WorkerStatus.ERROR, WorkerStatus.ACKED]
    assert set(heard.words) == {"answer"}


def test_claims_and_verdicts_of_a_worker_share_one(floor: Floor) -> None:
    id = floor.put("gated")
    worker = floor.start(processes=2)
    heard = Heard(worker.supervisor.backoff)
    floor.noted("start", id)
    floor.engine.down |= {"claim"}
    until(lambda: worker.supervisor.backoff.failures > 1, "claims that fail")
    since = worker.supervisor.backoff.failing_since
    floor.engine.down |= {"exchange", "settle"}
    floor.open_gate(id)
    until(lambda: worker.supervisor.undelivered, "the verdict")
    assert worker.supervisor.backoff.failing_since == since
    assert "answer" not in heard.words[-2:]
    floor.engine.down.clear()
    floor.reached(id, JobState.COMPLETED)
    until(lambda: worker.supervisor.backoff.failing_since is None, "an answer")
    assert heard.words.count("answer") > 0
