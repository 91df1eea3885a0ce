"""Sixteen processes share a circuit breaker: exactly one trial call per cooldown, and no job loses an attempt to it.

With HOLDFAST_LONG=1 in the environment the service stays down for 150 trial calls instead of five.
"""

import os
import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from holdfast.definition import JobBuilder
from holdfast.errors import CircuitOpen
from holdfast.queues.contract import Engine
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Unsigned
from holdfast.state.breakers import Breakers
from holdfast.values import CircuitState, JobFilter, JobState

from ..servers.places import Place, every_engine
from .breaking import NAME, QUEUES, RULE, STEPS
from .ledgers import GrowingFile
from .processes import Programs, until

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
TRIALS = 150 if IS_LONG else 5
CALLERS = 16
JOBS = 40

pytestmark = pytest.mark.timeout(1800 if IS_LONG else 300)


@pytest.fixture
def programs(place: Place) -> Iterator[Programs]:
    programs = Programs(place.directory)
    yield programs
    programs.end_all()


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    engine, _ = EngineFactory(Unsigned()).open(place.url)
    with engine:
        engine.create_schema()
        yield engine


@every_engine
def test_sixteen_processes_make_one_trial_call_per_cooldown(place: Place, programs: Programs, engine: Engine) -> None:
    down, stop, ledger = (place.directory / name for name in ("down", "stop", "ledger"))
    breakers = Breakers(engine.state)
    down.touch()
    callers = [programs.module("tests.faults.breaking", place.url, str(place.directory)) for _ in range(CALLERS)]
    for caller in callers:
        caller.wait_for("ready")
    for caller in callers:
        caller.tell()
    until(lambda: breakers.get(NAME).state is CircuitState.OPEN, "the circuit to open")
    jobs = [JobBuilder("job").queue(QUEUES[number % 2]).breaker(NAME).definition() for number in range(JOBS)]
    engine.accept(engine.envelopes.make_many(jobs))
    lines = GrowingFile(ledger)

    def trials() -> list[int]:
        return [int(version) for what, version in map(str.split, lines.lines()) if what == "trial"]

    until(lambda: len(trials()) >= TRIALS, "trial calls", within_s=TRIALS * RULE.cooldown * 10 + 60)
    down.unlink()
    until(lambda: _all_completed(engine), "all jobs to run")
    stop.touch()
    for caller in callers:
        assert (caller.ended(within_s=60.0), caller.complained) == (0, "")
    versions = sorted(trials())
    # The version of the circuit's cell is the engine's time of the trial.
    gaps = [later - sooner for sooner, later in pairwise(versions)]
    assert min(gaps) >= RULE.cooldown * 1e6, "two trial calls in one cooldown"
    view = breakers.get(NAME)
    assert (view.state, view.failures, view.retry_in) == (CircuitState.CLOSED, 0, None)
    for queue in QUEUES:
        assert engine.counts()[queue].keys() == {JobState.COMPLETED}
    found = engine.find(JobFilter(), limit=JOBS).jobs
    assert len(found) == JOBS
    assert {job.attempts for job in found} == {0}
    assert engine.slots() == []
    place.check()


def _all_completed(engine: Engine) -> bool:
    return all(states.keys() == {JobState.COMPLETED} for states in engine.counts().values())


@every_engine
def test_racing_failures_are_counted_exactly(place: Place, programs: Programs, engine: Engine) -> None:
    """The cooldown is longer than a call takes on a busy machine: only the last of several trials counts."""
    down, stop, ledger = (place.directory / name for name in ("down", "stop", "ledger"))
    down.touch()
    program = ("tests.faults.breaking", place.url, str(place.directory))
    callers = [programs.module(*program, COOLDOWN_S="3") for _ in range(CALLERS)]
    for caller in callers:
        caller.wait_for("ready")
    for caller in callers:
        caller.tell()
    until(lambda: ledger.exists(), "a trial call")
    stop.touch()
    for caller in callers:
        assert (caller.ended(within_s=60.0), caller.complained) == (0, "")
    trials = len(GrowingFile(ledger).lines())
    assert Breakers(engine.state).get(NAME).failures == RULE.failures + trials
    place.check()


@every_engine
def test_a_trial_call_that_is_killed_at_any_step_does_not_leave_the_circuit_stuck(
    place: Place, programs: Programs, engine: Engine
) -> None:
    breakers = Breakers(engine.state)
    [job] = engine.accept([engine.envelopes.make(JobBuilder("job").queue("a").breaker(NAME).definition())])
    for step in (*STEPS, *(f"{step}-failing" for step in STEPS[2:])):
        breakers.trip(NAME, RULE)
        until(lambda: breakers.get(NAME).state is CircuitState.HALF_OPEN, "the end of the cooldown")
        dying = programs.module("tests.faults.breaking", place.url, str(place.directory), step)
        assert dying.ended(within_s=60.0) == -signal.SIGKILL, step
        until(lambda: _succeeds(breakers), f"a call after the death {step}")
        assert breakers.get(NAME).state is CircuitState.CLOSED, step
    view = engine.get(job.id)
    assert view is not None
    assert view.job.attempts == 0
    place.check()


def _succeeds(breakers: Breakers) -> bool:
    try:
        call = breakers.begin(NAME, RULE)
    except CircuitOpen as refusal:
        if refusal.retry_after > RULE.cooldown:
            pytest.fail("the circuit stays open for longer than a cooldown")
        return False
    breakers.succeeded(call)
    return True
