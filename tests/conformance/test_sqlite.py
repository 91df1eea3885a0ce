"""The SQLite engine meets every clause."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.testing import EngineConformance, Lab, machine_for, sqlite_lab


@contextmanager
def fresh_lab() -> Generator[Lab]:
    with TemporaryDirectory() as folder, sqlite_lab(Path(folder) / "jobs.db") as lab:
        yield lab


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestSqlite(EngineConformance):
    """Every clause."""


TestSqliteMachine = machine_for(fresh_lab, examples=60).TestCase
