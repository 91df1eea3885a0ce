"""The laws bite: every planted bug breaks the clause that is about it, which holds for the engine as it is."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import holdfast.testing
from holdfast.testing import Lab, clauses
from holdfast.testing.machine import machine_for

from .plants import memory, mysql, postgres, redis, sqlite
from .plants.planting import Plant

ENGINES = {"memory": memory, "sqlite": sqlite, "postgres": postgres, "mysql": mysql, "redis": redis}
PLANTS: dict[str, Plant] = {
    f"{engine}: {name}": plant for engine, planted in ENGINES.items() for name, plant in planted.PLANTS.items()
}
# What a clause says no with: what it asserts, what it expects to be raised, and lists of another length.
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
    """How the clause says no to this engine; a server that does not understand the engine any more is no such no."""
    try:
        clause(lab)
    except REFUSALS as problem:
        if str(problem).startswith("Timeout"):
            raise  # what never ends says nothing of the clause, and keeps everybody waiting
        raised_in = Path(traceback.extract_tb(problem.__traceback__)[-1].filename)
        if not isinstance(problem, pytest.fail.Exception) and not raised_in.is_relative_to(LAWS):
            raise RuntimeError("what was raised is no refusal by a clause: plant the bug another way") from problem
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
    """What is planted breaks them, and not the way in which it is planted."""
    planted = ENGINES[engine]
    for name in sorted({plant.breaks for plant in planted.PLANTS.values()}):
        with planted.HEALTHY() as lab:
            assert refusal(clauses()[name], lab) is None, name


@pytest.mark.parametrize("bug", FOUND_BY_THE_MACHINE)
def test_the_machine_finds_a_planted_bug_by_itself(bug: str) -> None:
    machine = machine_for(PLANTS[bug].open_lab)
    # Found is enough: shrinking the story would only take time.
    quickly = settings(machine.TestCase.settings, max_examples=100, phases=[Phase.generate])
    with pytest.raises(REFUSALS):
        run_state_machine_as_test(machine, settings=quickly)
