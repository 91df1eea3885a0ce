"""Every planted bug breaks its clause, and the clause holds for the engine without the bug."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import holdfast.testing
from holdfast.testing import Lab, clauses
from holdfast.testing.machine import machine_for

from .plants import decisions, memory, mysql, postgres, redis, sqlite
from .plants.planting import Plant

ENGINES = {
    "decisions": decisions,
    "memory": memory,
    "sqlite": sqlite,
    "postgres": postgres,
    "mysql": mysql,
    "redis": redis,
}
PLANTS: dict[str, Plant] = {
    f"{engine}: {name}": plant for engine, planted in ENGINES.items() for name, plant in planted.PLANTS.items()
}
# How a clause fails: an assertion, an expected exception that was not raised, or an unexpected number of items.
REFUSALS = (AssertionError, pytest.fail.Exception, ValueError)
LAWS = Path(holdfast.testing.__file__).parent

FOUND_BY_THE_MACHINE = [
    "memory: AttemptLostOnNack",
    "memory: CancelRequestLost",
    "memory: DeadLetterDropped",
    "memory: OtherContentAcceptedSilently",
    "memory: PriorityInverted",
    "memory: PurgeTakesWaitingJobs",
    "memory: ReaperTakesLivingLeases",
    "memory: RefusedAttemptRecorded",
    "memory: ReplayForgetsHistory",
    "memory: SameIdOverwrites",
    "sqlite: crash limit off by one",
    "sqlite: delivered late",
    "sqlite: repeated settlement refused",
    "sqlite: scheduled counted as pending",
]


def refusal(clause: Callable[[Lab], None], lab: Lab) -> BaseException | None:
    """The failure of the clause on this engine, if any. An error of the server is raised: a bug must not cause one."""
    try:
        clause(lab)
    except REFUSALS as problem:
        if str(problem).startswith("Timeout"):
            raise  # a call that does not return shows nothing about the clause, and delays the tests
        raised_in = Path(traceback.extract_tb(problem.__traceback__)[-1].filename)
        if not isinstance(problem, pytest.fail.Exception) and not raised_in.is_relative_to(LAWS):
            raise RuntimeError("the exception was not raised by a clause: plant the bug in another way") from problem
        return problem
    except pytest.skip.Exception:
        pytest.fail("the clause does not apply to this engine: name another")
    return None


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_breaks_its_clause(bug: str) -> None:
    plant = PLANTS[bug]
    clause = clauses()[plant.breaks]
    with plant.open_lab() as lab:
        assert refusal(clause, lab) is not None, f"{plant.breaks} does not notice '{bug}'"


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_bug_the_same_clauses_hold(engine: str) -> None:
    """The bugs break the clauses; the way in which they are planted does not."""
    planted = ENGINES[engine]
    for name in sorted({plant.breaks for plant in planted.PLANTS.values()}):
        with planted.HEALTHY() as lab:
            assert refusal(clauses()[name], lab) is None, name


@pytest.mark.parametrize("bug", FOUND_BY_THE_MACHINE)
def test_the_machine_finds_a_planted_bug_by_itself(bug: str) -> None:
    machine = machine_for(PLANTS[bug].open_lab)
    # Finding the bug is enough: reducing the example would only take time.
    quickly = settings(machine.TestCase.settings, max_examples=100, phases=[Phase.generate])
    with pytest.raises(REFUSALS):
        run_state_machine_as_test(machine, settings=quickly)
