"""The bench most tests of the worker use, and the floor of those with real children."""

from collections.abc import Iterator

import pytest

from ..servers.places import Place
from .bench import Bench
from .floor import Floor


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


@pytest.fixture
def floor(place: Place) -> Iterator[Floor]:
    floor = Floor(place)
    try:
        yield floor
    finally:
        floor.close()
