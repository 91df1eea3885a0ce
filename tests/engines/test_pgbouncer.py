"""PostgreSQL behind PgBouncer in transaction mode: every transaction may use another session."""

import itertools
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
import pytest

from holdfast.clock import Clock
from holdfast.definition import JobDefinition
from holdfast.queues.contract import Engine, LeasePolicy, new_owner_token
from holdfast.queues.engines.postgres.connections import Connection
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.testing import Lab
from holdfast.testing.laws.carrying import CarryingLaws
from holdfast.testing.laws.leasing import RenewalLaws
from holdfast.testing.laws.racing import RacingLaws
from holdfast.testing.laws.settling import HolderLaws
from holdfast.testing.laws.shared_state import StateLaws
from holdfast.testing.laws.transacting import TransactingLaws
from holdfast.testing.laws.waiting import WaitingLaws
from holdfast.values import JobState

from ..faults.processes import until
from ..faults.yard import Yard
from ..servers.pgbouncer import SESSIONS, PgBouncer
from ..servers.places import place_on
from ..servers.postgres import PostgresServer, postgres_for_laws
from ..servers.running import started, started_for_session

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
_numbers = itertools.count(1)


@cache
def pooler_for_laws() -> PgBouncer:
    """The pooler in front of the server of the conformance tests; it stops when the session ends."""
    return started_for_session(lambda: PgBouncer(postgres_for_laws()))


@contextmanager
def pooled_lab() -> Generator[Lab]:
    server, pooler = postgres_for_laws(), pooler_for_laws()
    assert server.clock is not None
    server.clock.restart()
    prefix = f"pooled{next(_numbers)}_"

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return PostgresEngine(pooler.url, envelopes, policy=policy, clock=clock, prefix=prefix)

    with Lab(connect, clock=server.clock, keeps_time=True) as lab:
        yield lab
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{prefix.rstrip("_")}" CASCADE'.encode())


@pytest.fixture
def lab() -> Generator[Lab]:
    with pooled_lab() as lab:
        yield lab


class TestPooled(HolderLaws, TransactingLaws, RenewalLaws, WaitingLaws, RacingLaws, StateLaws, CarryingLaws):
    """The clauses that could depend on the session: leases, locks, transactions, notifications."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = started(PostgresServer)
    yield server
    server.close()


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    pooler = started(lambda: PgBouncer(server))
    yield pooler
    pooler.close()


@pytest.fixture
def engine(pooler: PgBouncer) -> Iterator[PostgresEngine]:
    with PostgresEngine(pooler.url, EnvelopeFactory(KEYS), prefix=f"test{next(_numbers)}_") as engine:
        yield engine


def test_transactions_get_one_session_after_the_other(pooler: PgBouncer) -> None:
    """Otherwise the other tests in this file would prove nothing."""
    with psycopg.connect(pooler.url, autocommit=True) as one, psycopg.connect(pooler.url, autocommit=True) as other:
        asked = "SELECT pg_backend_pid()"
        with one.transaction(), other.transaction():
            both = {one.execute(asked).fetchone(), other.execute(asked).fetchone()}
        assert len(both) == 2
        assert {one.execute(asked).fetchone() for _ in range(SESSIONS)} >= both


def test_nothing_is_prepared_in_a_session_of_others(engine: PostgresEngine) -> None:
    for _ in range(2 * SESSIONS):
        engine.accept([engine.envelopes.make(JobDefinition(handler="send"))])
        [lease] = engine.claim("default", 1, owner_token=new_owner_token())
        assert engine.ack(lease)
    asked = b"SELECT count(*) FROM pg_prepared_statements"
    prepared = {engine.connections.run(lambda one: one.execute(asked).fetchone()) for _ in range(2 * SESSIONS)}
    assert prepared == {(0,)}


def test_a_waiting_worker_finds_a_job_by_looking(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not notified, because other clients have the session on which it listens."""
    engine.create_schema()
    connect, listens = engine.connections.open, threading.Event()

    def noted(first: bytes | None = None) -> Connection:
        connection = connect(first)
        listens.set()
        return connection

    monkeypatch.setattr(engine.connections, "open", noted)
    waiting = threading.Thread(target=engine.wait_for_work, args=(["default"], 600.0), daemon=True)
    waiting.start()
    assert listens.wait(60)
    engine.accept([engine.envelopes.make(JobDefinition(handler="send"))])
    waiting.join(60)
    assert not waiting.is_alive()
    [lease] = engine.claim("default", 10, owner_token=new_owner_token())
    assert engine.ack(lease)


def test_notifications_for_another_client_of_the_session_are_dropped(engine: PostgresEngine) -> None:
    """Notifications reach the next client of the session, and would fill the memory of one that does not read them."""
    engine.create_schema()
    for _ in range(2 * SESSIONS):
        engine.connections.run(lambda connection: connection.execute("LISTEN news"))

    def heard(connection: Any) -> int:
        for _ in range(2 * SESSIONS):
            with connection.transaction():
                connection.execute("NOTIFY news")
        return len(connection._notifies_backlog or ())

    assert engine.connections.run(heard) == 0


def test_workers_drain_a_queue_and_write_in_transactions_of_their_jobs(pooler: PgBouncer) -> None:
    with place_on(pooler) as place:
        yard = Yard(place)
        try:
            yard.hf.create_schema()
            table = f"{place.prefix}effects"
            with psycopg.connect(pooler.url, autocommit=True) as connection:
                connection.execute(f"CREATE TABLE {table} (id varchar(63))".encode())
            yard.put("quick", 100)
            ids = yard.hf.enqueue_many([yard.hf.define("effects", {"table": table}).definition()] * 20)
            yard.worker("--count", "2")
            until(lambda: yard.hf.backend().counts() == {"default": {JobState.COMPLETED: 140}}, "every job to be done")
            with psycopg.connect(pooler.url, autocommit=True) as connection:
                written = connection.execute(f"SELECT id FROM {table}".encode()).fetchall()
            assert sorted(id for (id,) in written) == sorted(ids)
        finally:
            yard.close()
