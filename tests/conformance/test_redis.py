"""The Redis engine meets every clause, on a real server whose clock the lab controls."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from holdfast.testing import EngineConformance, Lab, machine_for

from ..engines.redis_site import check_indexes
from ..servers.redis import redis_for_laws
from .labs import new_prefix, redis_lab


@contextmanager
def fresh_lab() -> Generator[Lab]:
    """A lab that finally checks the indexes against the records."""
    prefix = new_prefix()
    with redis_lab(prefix=prefix) as lab:
        yield lab
        with redis_for_laws().client() as client:
            check_indexes(client, prefix)


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestRedis(EngineConformance):
    """Every clause."""


TestRedisMachine = machine_for(fresh_lab, examples=60).TestCase
