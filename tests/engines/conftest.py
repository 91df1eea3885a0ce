"""Fixtures for the tests of the engines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..faults.processes import Programs, quick_directory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file whose directory does not exist yet."""
    return tmp_path / "data" / "jobs.db"


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """The same in memory, for tests of many small transactions."""
    with quick_directory() as directory:
        yield directory / "jobs.db"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    programs = Programs(tmp_path)
    yield programs
    programs.end_all()
