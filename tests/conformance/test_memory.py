"""The memory engine meets every clause."""

from collections.abc import Generator

import pytest

from holdfast.testing import EngineConformance, Lab, machine_for, memory_lab


@pytest.fixture
def lab() -> Generator[Lab]:
    with memory_lab() as lab:
        yield lab


class TestMemory(EngineConformance):
    """Every clause."""


TestMemoryMachine = machine_for(memory_lab, examples=150).TestCase
