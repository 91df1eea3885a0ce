"""The PostgreSQL engine meets every clause."""

from collections.abc import Generator

import pytest

from holdfast.testing import EngineConformance, Lab, machine_for

from .labs import postgres_lab


@pytest.fixture
def lab() -> Generator[Lab]:
    with postgres_lab() as lab:
        yield lab


class TestPostgres(EngineConformance):
    """Every clause."""


TestPostgresMachine = machine_for(postgres_lab, examples=30).TestCase
