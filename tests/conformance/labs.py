"""Labs on real servers, one of each kind for this process, with a clock that tests control."""

import itertools
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg

from holdfast.clock import Clock
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import Lab

from ..servers.mysql import mariadb_for_laws
from ..servers.postgres import postgres_for_laws
from ..servers.redis import redis_for_laws

_numbers = itertools.count(1)
MYSQL_TABLES = (
    *("jobs", "attempts", "progress", "live_output", "pauses", "cells", "buckets"),
    *("slots", "places", "blocked", "uniques", "edges", "notes"),
)


def new_prefix() -> str:
    """A name that no other lab of this process has."""
    return f"lab{next(_numbers)}_"


@contextmanager
def postgres_lab(backend: type[PostgresEngine] = PostgresEngine) -> Generator[Lab]:
    """A lab with its own tables."""
    server = postgres_for_laws()
    assert server.clock is not None
    server.clock.restart()
    prefix = new_prefix()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return backend(server.url, envelopes, policy=policy, clock=clock, prefix=prefix)

    with Lab(connect, clock=server.clock, keeps_time=True) as lab:
        yield lab
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{prefix.rstrip("_")}" CASCADE'.encode())


@contextmanager
def mysql_lab(backend: Callable[..., MysqlEngine] = MysqlEngine, *, options: str = "") -> Generator[Lab]:
    """A lab with empty tables; creating new ones for each lab would take longer than most clauses."""
    server = mariadb_for_laws()
    assert server.clock is not None
    server.clock.restart()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return backend(server.url + options, envelopes, policy=policy, clock=clock)

    with Lab(connect, clock=server.clock, keeps_time=True) as lab:
        lab.open()
        with server.connect("holdfast") as connection, connection.cursor() as cursor:
            for table in MYSQL_TABLES:
                cursor.execute(f"DELETE FROM holdfast_{table}")
        yield lab


@contextmanager
def redis_lab(backend: type[RedisEngine] = RedisEngine, *, prefix: str | None = None) -> Generator[Lab]:
    """A lab with its own keys."""
    server = redis_for_laws()
    assert server.clock is not None
    server.clock.restart()
    named = prefix or new_prefix()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return backend(server.url, envelopes, policy=policy, clock=clock, prefix=named)

    with Lab(connect, clock=server.clock, keeps_time=True) as lab:
        yield lab
