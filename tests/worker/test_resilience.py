"""Nothing that a job, a policy, a collector or a damaged row does ends the worker or takes its job away."""

import io
import logging
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Cancel, Handler, Holdfast, JobContext
from holdfast.config import Settings
from holdfast.errors import DefinitionError
from holdfast.values import DeadReason, ErrorInfo, JobState, WorkerResult, WorkerStatus
from holdfast.worker import WorkerLoop

from .bench import Bench


class Failing:
    """A retry policy, or a collector, that does not do what it should."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def delay(self, attempt: int, error: ErrorInfo | None) -> float:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    def count(self, name: str, value: int = 1, *, queue: str) -> None:
        raise RuntimeError("the collector is out of order")


@pytest.mark.parametrize(
    ("answer", "delay"),
    [(RuntimeError("no"), 2.0), (None, 2.0), (math.nan, 2.0), (math.inf, 2.0), (-5, 0.0), (1e15, 10 * 366 * 86400.0)],
)
def test_a_retry_policy_that_fails_or_answers_nonsense_is_replaced(answer: object, delay: float) -> None:
    with Bench(retry_policy=Failing(answer)) as bench:

        def job() -> None:
            raise ValueError("broken")

        bench.handler(job)
        id = bench.put()
        assert bench.turn().status is WorkerStatus.REQUEUED
        assert bench.due_in(id).total_seconds() == pytest.approx(delay, rel=0.16)


def test_a_cancel_with_an_odd_reason_is_a_cancel() -> None:
    with Bench() as bench:

        def job() -> None:
            raise Cancel(ValueError("why"))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

        bench.handler(job)
        id = bench.put()
        assert bench.turn().status is WorkerStatus.CANCELLED
        assert bench.view(id).cancel_reason == "why"


def test_an_exception_that_does_not_know_where_it_is_from_is_a_failed_run() -> None:
    odd = type("Odd", (Exception,), {"__module__": None})
    with Bench() as bench:

        def job() -> None:
            raise odd("from nowhere")

        bench.handler(job)
        id = bench.put()
        assert bench.turn().status is WorkerStatus.REQUEUED
        assert bench.view(id).last_error == "None.Odd: from nowhere"


def test_a_check_that_leaves_is_a_failed_run() -> None:
    class Leaving(Handler):
        def handle(self, context: JobContext) -> object:
            return None

        def check(self, payload: object) -> None:
            raise SystemExit(3)

    with Bench() as bench:
        bench.app.registry.register("job", Leaving)
        bench.put()
        assert bench.turn().status is WorkerStatus.REQUEUED


def test_no_retry_names_exception_classes() -> None:
    with Bench() as bench, pytest.raises(DefinitionError, match="must contain exception classes, not 'ValueError'"):
        bench.app.job(key="job", no_retry=("ValueError",))(lambda: None)  # type: ignore[arg-type] # pyright: ignore


def test_a_collector_that_fails_costs_no_job(caplog: pytest.LogCaptureFixture) -> None:
    hf = Holdfast("memory://", settings=Settings(), metrics=Failing(None))
    hf.job(key="job")(lambda: 7)
    id = hf.define("job").dispatch()
    with hf.worker() as worker, caplog.at_level(logging.ERROR):
        assert worker.process_once("default").status is WorkerStatus.ACKED
    assert hf.handle(id).result(0) == 7
    assert "the metrics collector failed" in caplog.text


def test_a_job_whose_message_is_gone_becomes_a_dead_letter_and_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Holdfast(f"sqlite:///{path}", settings=Settings()) as hf:
        hf.job(key="job")(lambda: 7)
        ids = hf.enqueue_many([hf.define("job").definition() for _ in range(2)])
        other = sqlite3.connect(path)
        with other:
            other.execute("DELETE FROM holdfast_messages WHERE seq = 1")
        other.close()
        with hf.worker() as worker:
            assert [worker.process_once("default").status for _ in range(2)] == ["rejected", "acked"]
        dead = hf.backend().get(ids[0])
        assert dead is not None
        assert (dead.job.state, dead.job.dead_reason) == (JobState.DEAD, DeadReason.UNDECODABLE)


@pytest.mark.parametrize("idiom", ["wrap", "detach", "close", "reconfigure"])
def test_what_one_job_does_to_its_stdout_does_not_silence_the_next(idiom: str) -> None:
    def job() -> None:
        stream: Any = sys.stdout
        match idiom:
            case "wrap":
                sys.stdout = io.TextIOWrapper(stream.buffer, encoding="utf-8")
                print("hi")
            case "detach":
                stream.detach()
            case "close":
                stream.buffer.close()
            case _:
                stream.reconfigure(encoding="ascii", errors="strict")

    with Bench() as bench:
        bench.handler(job)
        bench.put()
        bench.turn()
        bench.handler(lambda: print("grüße"), "other")
        id = bench.put("other")
        assert bench.turn().status is WorkerStatus.ACKED
        assert bench.history(id).attempts[0].record.output == "grüße\n"


def test_a_turn_that_fails_is_reported_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Bench() as bench:
        bench.handler(lambda: None)
        bench.put()
        results: list[WorkerResult] = []
        claim, failures = bench.engine.claim, iter(range(2000))

        def failing(*args: object, **kwargs: object) -> object:
            if next(failures, None) is not None:
                raise KeyError("a row nobody expected")
            return claim(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(bench.engine, "claim", failing)
        with caplog.at_level(logging.CRITICAL):
            WorkerLoop(bench.worker, ["default"], max_jobs=1, on_result=results.append).run()
        statuses = [result.status for result in results]
        assert statuses == [WorkerStatus.ERROR] * 2000 + [WorkerStatus.ACKED]
