"""What becomes of a transaction that a handler has asked for, by how its run ends."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BackendUnavailable, LeaseLost, NotSupported
from holdfast.execution.runtime import JobRuntime
from holdfast.handlers import Cancel, Handler, JobContext, Snooze
from holdfast.queues.contract import EngineTransaction
from holdfast.values import AttemptRecord, ExecutionResult, JobEnvelope, Outcome, Write

if TYPE_CHECKING:
    from .conftest import Bench

# Long enough that the work has started before the limit is reached, even on a busy machine.
SHORT_S = 0.4


class Recorded(EngineTransaction):
    """Writes down what becomes of it."""

    def __init__(self, events: list[str], problem: Exception | None) -> None:
        self.connection = "the connection"
        self.record: AttemptRecord | None = None
        self._events = events
        self._problem = problem

    def complete(
        self,
        record: AttemptRecord,
        *,
        leaves: Sequence[str] = (),
        writes: Sequence[Write] = (),
        enqueues: Sequence[JobEnvelope] = (),
    ) -> None:
        self._events.append("complete")
        self.record = record
        if self._problem is not None:
            raise self._problem

    def roll_back(self) -> None:
        self._events.append("roll back")


class Database:
    """Begins transactions, for one job and delivery each."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.events: list[str] = []
        self.begun: list[Recorded] = []
        self._problem = problem

    def begin(self, job_id: str, delivery: int) -> Recorded:
        self.events.append(f"begin {job_id} {delivery}")
        self.begun.append(Recorded(self.events, self._problem))
        return self.begun[-1]


@pytest.fixture
def database(bench: "Bench") -> Database:
    database = Database()
    bench.runtime = JobRuntime(bench.registry, transactions=database.begin)
    return database


def test_a_run_that_goes_well_completes_it_with_its_record(bench: "Bench", database: Database) -> None:
    def work(context: JobContext) -> int:
        assert context.transaction() == context.transaction() == "the connection"
        print("said")
        database.events.append("handled")
        return 42

    result = bench.run(work, {})
    assert database.events == ["begin job1 1", "handled", "complete"]
    assert database.begun[0].record == result.record()
    assert (result.outcome, result.result, result.output) == (Outcome.SUCCEEDED, b"42", "said\n")


def test_a_coroutine_may_have_one_too(bench: "Bench", database: Database) -> None:
    async def work(context: JobContext) -> None:
        context.transaction()

    assert bench.run(work, {}).success
    assert database.events == ["begin job1 1", "complete"]


def test_a_job_that_asks_for_none_has_none(bench: "Bench", database: Database) -> None:
    def work() -> None: ...

    assert bench.run(work, {}).success
    assert database.events == []


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (ValueError("no"), Outcome.FAILED),
        (Snooze(5), Outcome.SNOOZED),
        (Cancel("enough"), Outcome.CANCELLED),
        (SystemExit(0), Outcome.FAILED),
    ],
    ids=["fails", "snoozes", "cancels", "exits"],
)
def test_any_other_end_rolls_it_back(bench: "Bench", database: Database, end: BaseException, outcome: Outcome) -> None:
    def work(context: JobContext) -> None:
        context.transaction()
        raise end

    assert bench.run(work, {}).outcome is outcome
    assert database.events == ["begin job1 1", "roll back"]


def test_a_timeout_rolls_it_back(bench: "Bench", database: Database) -> None:
    def work(context: JobContext) -> None:
        context.transaction()
        while True:
            time.sleep(0.001)

    assert bench.run(work, {}, timeout=SHORT_S).outcome is Outcome.TIMEOUT
    assert database.events == ["begin job1 1", "roll back"]


@pytest.mark.parametrize("problem", [LeaseLost("job1"), BackendUnavailable("away")], ids=["lost", "away"])
def test_a_run_whose_transaction_cannot_be_completed_has_failed(bench: "Bench", problem: Exception) -> None:
    database = Database(problem)
    bench.runtime = JobRuntime(bench.registry, transactions=database.begin)

    def work(context: JobContext) -> int:
        context.transaction()
        return 1

    result = bench.run(work, {})
    assert (result.outcome, result.no_retry, result.result) == (Outcome.FAILED, False, None)
    assert result.error is not None
    assert result.error.message == str(problem)
    assert database.events == ["begin job1 1", "complete"]


def test_a_hook_behind_the_run_finds_it_completed(bench: "Bench", database: Database) -> None:
    class Work(Handler):
        def handle(self, context: JobContext) -> None:
            context.transaction()

        def after_run(self, context: JobContext, result: ExecutionResult) -> None:
            database.events.append(f"after {result.outcome}")

    bench.run(Work())
    assert database.events == ["begin job1 1", "complete", "after succeeded"]


def test_where_there_is_no_engine_there_is_no_transaction(bench: "Bench") -> None:
    def work(context: JobContext) -> Any:
        return context.transaction()

    error = bench.run(work, {}).error
    assert error is not None
    assert "is available only when a worker runs the job" in error.message
    with pytest.raises(NotSupported):
        JobContext(id="a", job="work", queue="default", attempt=1).transaction()
