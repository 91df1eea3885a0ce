"""The bench most tests of the worker use, and the floor of those with real children."""

from collections.abc import Iterator

import pytest

from ..faults.processes import quick_directory
from .bench import Bench
from .floor import Floor


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.fixture
def floor() -> Iterator[Floor]:
    with quick_directory() as directory:
        floor = Floor(directory)
        try:
            yield floor
        finally:
            floor.close()
