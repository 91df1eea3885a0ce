"""The laws bite: for every planted bug some clause fails, and for the engines as they are none does."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.errors import HoldfastError
from holdfast.testing import Lab, clauses, memory_lab, sqlite_lab
from holdfast.testing.machine import machine_for

from .planted_bugs import PLANTS, Plant

ENGINES: dict[str, Plant] = {"memory": lambda _: memory_lab(), "sqlite": sqlite_lab}
# What a clause says no with. Anything else is a mistake in the plant itself, and no catch.
REFUSALS = (AssertionError, ValueError, HoldfastError, pytest.fail.Exception)

# Bugs need no disk, and hundreds of files are quicker in memory.
RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None

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


def broken_clauses(plant: Plant) -> Iterator[str]:
    """The clauses that fail, each in a lab of its own."""
    with TemporaryDirectory(dir=RAM) as folder:
        for name, clause in clauses().items():
            with plant(Path(folder) / f"{name}.db") as lab:
                try:
                    clause(lab)
                except pytest.skip.Exception:
                    continue
                except REFUSALS:
                    yield name


@cache
def broken_without_a_bug(engine: str) -> frozenset[str]:
    return frozenset(broken_clauses(ENGINES[engine]))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_without_a_bug_passes_every_clause(engine: str) -> None:
    assert not broken_without_a_bug(engine)


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_breaks_a_clause(bug: str, record_property: Callable[[str, object], None]) -> None:
    innocent = broken_without_a_bug(bug.partition(":")[0])
    caught_by = next((name for name in broken_clauses(PLANTS[bug]) if name not in innocent), None)
    record_property("caught_by", caught_by)
    assert caught_by is not None, f"no clause notices '{bug}'"


@pytest.mark.parametrize("bug", FOUND_BY_THE_MACHINE)
def test_the_machine_finds_a_planted_bug_by_itself(bug: str) -> None:
    @contextmanager
    def open_lab() -> Generator[Lab]:
        with TemporaryDirectory(dir=RAM) as folder, PLANTS[bug](Path(folder) / "jobs.db") as lab:
            yield lab

    machine = machine_for(open_lab)
    # Found is enough: shrinking the story would only take time.
    quickly = settings(machine.TestCase.settings, max_examples=100, phases=[Phase.generate])
    with pytest.raises(REFUSALS):
        run_state_machine_as_test(machine, settings=quickly)
