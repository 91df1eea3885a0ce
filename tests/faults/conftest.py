"""The yard every fault test works in."""

from collections.abc import Iterator

import pytest

from .processes import quick_directory
from .yard import Yard


@pytest.fixture
def yard() -> Iterator[Yard]:
    with quick_directory() as directory:
        yard = Yard(directory)
        yield yard
        yard.close()
