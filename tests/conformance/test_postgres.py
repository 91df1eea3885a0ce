"""The PostgreSQL engine obeys every law."""

import itertools
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.clock import Clock
from holdfast.queues.backends.postgres import PostgresBackend
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import EngineConformance, Lab, machine_for

from ..servers.postgres import postgres_for_laws

_numbers = itertools.count(1)


@contextmanager
def fresh_lab() -> Generator[Lab]:
    server = postgres_for_laws()
    assert server.clock is not None
    server.clock.restart()
    prefix = f"lab{next(_numbers)}_"

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return PostgresBackend(server.url, envelopes, policy=policy, clock=clock, prefix=prefix)

    with Lab(connect, clock=server.clock) as lab:
        yield lab
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{prefix.rstrip("_")}" CASCADE'.encode())


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestPostgres(EngineConformance):
    """Every clause."""


TestPostgresMachine = machine_for(fresh_lab, examples=30).TestCase
