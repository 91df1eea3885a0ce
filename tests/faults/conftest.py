"""The yard of the fault tests."""

from collections.abc import Iterator

import pytest

from ..servers.places import Place
from .yard import Yard


@pytest.fixture
def yard(place: Place) -> Iterator[Yard]:
    yard = Yard(place)
    yield yard
    yard.close()
