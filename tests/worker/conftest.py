"""The bench most tests of the worker use."""

from collections.abc import Iterator

import pytest

from .bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench
