"""What the tests of the examples share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .copies import Copy


@pytest.fixture
def copy_of(tmp_path: Path) -> Iterator[Callable[[str], Copy]]:
    """Makes a copy of an example; what was started in it is ended."""
    made: list[Copy] = []

    def copy(name: str) -> Copy:
        made.append(Copy(name, tmp_path))
        return made[-1]

    yield copy
    for one in made:
        one.end()
