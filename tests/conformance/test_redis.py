"""The Redis engine obeys every law, on a real server whose clock obeys the lab."""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

import pytest

from holdfast.clock import Clock
from holdfast.queues.backends.redis import RedisBackend
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import EngineConformance, Lab, machine_for

from ..engines.redis_site import check_indexes
from ..servers.redis import RedisServer
from ..servers.running import started

_numbers = count(1)
_servers: list[RedisServer] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Generator[RedisServer]:
    server = started(lambda: RedisServer(clock=True, settings={"appendonly": "no"}))
    assert isinstance(server, RedisServer)
    _servers.append(server)
    yield server
    _servers.remove(server)
    server.close()


@contextmanager
def fresh_lab() -> Generator[Lab]:
    """A lab with keys of its own on the one server."""
    [server] = _servers
    assert server.clock is not None
    server.clock.restart()
    prefix = f"lab{next(_numbers)}_"

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return RedisBackend(server.url, envelopes, policy=policy, clock=clock, prefix=prefix)

    with Lab(connect, clock=server.clock) as lab:
        yield lab
        with server.client() as client:
            check_indexes(client, prefix)


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestRedis(EngineConformance):
    """Every clause."""


TestRedisMachine = machine_for(fresh_lab, examples=60).TestCase
