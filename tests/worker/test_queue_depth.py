"""The numbers of jobs in a worker's metrics: counted rarely, and never waited for long."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from msgspec import structs

from holdfast.clock import ManualClock
from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable
from holdfast.metrics.levels import QueueLevels
from holdfast.queues.contract import DEFAULT_POLICY
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring
from holdfast.state.breakers import Breakers, Rule
from holdfast.state.workers import WorkerRegistry
from holdfast.values import CircuitState, JobState, WorkerReport
from holdfast.worker.queue_depth import ASK_EVERY_S, LARGEST_SHARE, MOST_CIRCUITS, STANDS_FOR_S, QueueDepth

from ..faults.processes import DEADLINE_S, until
from .bench import KEY

IDLE = QueueLevels(jobs=dict.fromkeys(JobState, 0))
ONE_WAITS = QueueLevels(jobs=dict(IDLE.jobs) | {JobState.PENDING: 1})


class CountedEngine(MemoryEngine):
    """Remembers which counts it was asked for, and does something before it answers."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(EnvelopeFactory(Keyring.parse(KEY), clock=clock), policy=DEFAULT_POLICY, clock=clock)
        self.time = clock
        self.asked: list[str | None] = []
        self.before: Callable[[], None] = lambda: None

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        self.asked.append(queue)
        self.before()
        return super().counts(queue)

    def put(self, queue: str) -> str:
        return self.enqueue(JobDefinition(handler="mail", queue=queue))


@pytest.fixture
def engine() -> Iterator[CountedEngine]:
    with CountedEngine(ManualClock()) as engine:
        yield engine


def test_every_state_of_every_queue_of_the_worker_is_told(engine: CountedEngine) -> None:
    engine.put("mail")
    assert QueueDepth(engine, ["mail", "slow"]).read() == {"mail": ONE_WAITS, "slow": IDLE}
    assert QueueDepth(engine, ["mail"]).read() == {"mail": ONE_WAITS}
    assert engine.asked == [None, "mail"], "of one queue only that one is counted"


def test_other_queues_with_due_jobs_are_told_with_their_wait_and_their_workers(engine: CountedEngine) -> None:
    for queue in ("mail", "served", "forgotten", "run-0123456789ab"):
        engine.put(queue)
    engine.enqueue(JobDefinition(handler="mail", queue="later", delay=60.0))
    engine.time.advance(30)
    engine.put("mail")
    registry = WorkerRegistry(engine.state)
    registry.beat(report("one", "mail", "served:3"))
    registry.beat(report("two", "served"))
    registry.beat(structs.replace(report("three", "served", "mail"), draining=True))
    assert QueueDepth(engine, ["mail"]).read() == {
        "mail": structs.replace(ONE_WAITS, jobs={**IDLE.jobs, JobState.PENDING: 2}, oldest_wait_s=30.0, workers=1),
        "served": QueueLevels(oldest_wait_s=30.0, workers=2),
        "forgotten": QueueLevels(oldest_wait_s=30.0, workers=0),
    }


def test_circuits_are_told_those_that_are_not_closed_first(engine: CountedEngine) -> None:
    breakers, rule = Breakers(engine.state), Rule(failures=2, cooldown=60.0)
    names = [f"closed-{number:03}" for number in range(MOST_CIRCUITS)]
    for name in names:
        breakers.failed(breakers.begin(name, rule), rule)
    breakers.trip("stripe", rule)
    census = QueueDepth(engine, ["mail"])
    assert census.circuits() == {}
    census.read()
    assert census.circuits() == {"stripe": CircuitState.OPEN, **dict.fromkeys(names[:-1], CircuitState.CLOSED)}


def report(id: str, *queues: str) -> WorkerReport:
    return WorkerReport(
        id=id,
        host="here",
        pid=1,
        version="0",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        queues=queues,
        handlers=(),
        processes=1,
        slots=1,
        beat_every_s=5.0,
    )


def test_the_engine_is_asked_every_few_seconds_however_often_somebody_wants_to_know(engine: CountedEngine) -> None:
    census = QueueDepth(engine, ["mail"])
    for _ in range(10):
        assert census.read() == {"mail": IDLE}
    engine.put("mail")
    engine.time.advance(ASK_EVERY_S - 0.1)
    assert census.read() == {"mail": IDLE}
    assert len(engine.asked) == 1
    engine.time.advance(0.1)
    assert census.read() == {"mail": structs.replace(ONE_WAITS, oldest_wait_s=ASK_EVERY_S)}
    assert len(engine.asked) == 2


def test_an_engine_that_counts_slowly_is_asked_more_seldom(engine: CountedEngine) -> None:
    engine.before = lambda: engine.time.advance(4.0)
    census = QueueDepth(engine, ["mail"])
    assert census.read() == {"mail": IDLE}
    engine.time.advance(4.0 / LARGEST_SHARE - 0.1)
    assert census.read() == {"mail": IDLE}
    assert len(engine.asked) == 1
    engine.time.advance(0.1)
    census.read()
    assert len(engine.asked) == 2


@pytest.mark.parametrize("problem", [BackendUnavailable("nobody is there"), ZeroDivisionError()])
def test_what_the_engine_cannot_tell_is_not_made_up_and_it_is_asked_again(
    engine: CountedEngine, problem: Exception
) -> None:
    def refuse() -> None:
        raise problem

    census = QueueDepth(engine, ["mail"])
    assert census.read() is not None
    engine.time.advance(ASK_EVERY_S)
    engine.before = refuse
    assert census.read() is None
    engine.time.advance(ASK_EVERY_S)
    engine.before = lambda: None
    assert census.read() == {"mail": IDLE}


def test_an_engine_that_hangs_is_asked_once_and_the_last_count_stands_for_a_while(engine: CountedEngine) -> None:
    census = QueueDepth(engine, ["mail"], patience_s=0.001)
    until(census.read, "the first count")
    release = threading.Event()
    engine.before = lambda: _wait_for(release)
    try:
        engine.time.advance(ASK_EVERY_S)
        assert [census.read() for _ in range(3)] == [{"mail": IDLE}] * 3
        until(lambda: len(engine.asked) == 2, "the second question")
        engine.time.advance(STANDS_FOR_S)
        assert [census.read() for _ in range(3)] == [None] * 3
        assert len(engine.asked) == 2
    finally:
        release.set()
    assert until(census.read, "the engine to answer") == {"mail": IDLE}


def _wait_for(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)
