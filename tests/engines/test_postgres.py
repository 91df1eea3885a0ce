"""What only the PostgreSQL engine has to show, on a real server: plans, migrations, lost connections, wake-ups."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import psycopg
import pytest

from holdfast.definition import JobDefinition
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, SchemaTooNew
from holdfast.queues.contract import LeasePolicy, new_owner_token, new_session
from holdfast.queues.engines.postgres import jobs as postgres
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.jobs import PostgresBackend
from holdfast.queues.engines.postgres.records import NOW, NOW_IS
from holdfast.queues.engines.tables import retention as retention
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.opening import BackendFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Ack, AttemptRecord, CancelAnswer, JobEnvelope, JobState, Outcome, Release

from ..faults.processes import until
from ..servers.postgres import PostgresServer
from ..servers.running import free_port, started

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
SWITCHES = (
    *("bitmapscan", "hashagg", "hashjoin", "indexonlyscan", "indexscan", "material", "memoize", "mergejoin"),
    *("nestloop", "seqscan", "sort", "tidscan"),
)
_numbers = itertools.count(1)
T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    server = started(PostgresServer)
    yield server
    server.close()


def connect(server: PostgresServer, prefix: str | None = None) -> PostgresBackend:
    return PostgresBackend(server.url, EnvelopeFactory(KEYS), prefix=prefix or f"test{next(_numbers)}_")


@pytest.fixture
def engine(server: PostgresServer) -> Generator[PostgresBackend]:
    with connect(server) as engine:
        yield engine


def envelopes(engine: PostgresBackend, number: int) -> list[JobEnvelope]:
    return [engine.envelopes.make(JobDefinition(handler="send")) for _ in range(number)]


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_claim_takes_no_more_than_its_limit_whatever_the_planner_may_use(
    engine: PostgresBackend, switch: str
) -> None:
    accepted = [one.id for one in engine.accept(envelopes(engine, 60))]

    def claim(connection: Connection) -> list[str]:
        connection.execute(f"SET LOCAL enable_{switch} = off".encode())
        query = {"queue": "default", "limit": 7, "token": os.urandom(16), "lease": 60_000_000}
        return [row[1] for row in connection.execute(engine.connections.sql(postgres.CLAIM), query).fetchall()]

    taken = [engine.connections.transact(claim) for _ in range(3)]
    assert [len(ids) for ids in taken] == [7, 7, 7]
    assert {id for ids in taken for id in ids} == set(accepted[:21])


def test_what_is_planned_while_there_is_nothing_is_right_when_there_is_much(engine: PostgresBackend) -> None:
    """A plan that reads the whole table is the cheapest one for an empty table, and would be kept for a full one."""
    engine.accept(envelopes(engine, 1))
    [lease] = engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=0, ended_us=0)
    assert engine.exchange(
        [Ack(lease=lease, record=record)], "default", 1, owner_token=new_owner_token(new_session())
    ) == (
        [True],
        [],
    )
    asked = b"SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE %s"

    def plan(connection: Connection, what: str) -> str:
        [(name, parameters)] = connection.execute(asked, [f"%{what}%"]).fetchall()
        explained = connection.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * parameters)})".encode())
        return "\n".join(line for (line,) in explained.fetchall())

    def plans(connection: Connection) -> list[str]:
        # Nothing that would make a good plan now: it has to be the one that was made then.
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        return [plan(connection, "FOR UPDATE SKIP LOCKED"), plan(connection, "INTO %.ended_jobs")]

    claim, ack = engine.connections.transact(plans)
    assert "Index Scan using open_jobs_ready" in claim
    assert "Index Scan using open_jobs_pkey" in ack
    for whole in ("Seq Scan on open_jobs", "Seq Scan on jobs", "Bitmap Heap Scan"):
        assert whole not in claim + ack


def test_workers_that_claim_at_once_share_the_jobs(server: PostgresServer) -> None:
    prefix = f"test{next(_numbers)}_"
    with connect(server, prefix) as first:
        ids = {one.id for one in first.accept(envelopes(first, 400))}

        def work(_: int) -> list[str]:
            done: list[str] = []
            with connect(server, prefix) as engine:
                while leases := engine.claim("default", 5, owner_token=new_owner_token(new_session())):
                    assert all(engine.settle([Ack(lease=lease) for lease in leases]))
                    done += [lease.id for lease in leases]
            return done

        with ThreadPoolExecutor(8) as pool:
            done = [id for part in pool.map(work, range(8)) for id in part]
        assert (len(done), set(done)) == (400, ids)
        assert first.counts() == {"default": {JobState.COMPLETED: 400}}


def in_the_way(engine: PostgresBackend, change: Callable[[Connection], object], ask: Callable[[], T]) -> T:
    """What somebody is answered who asks while another has changed something, and has not committed yet."""

    def asked_meanwhile(connection: Connection) -> "Future[T]":
        change(connection)
        asked = pool.submit(ask)
        with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
            waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(lambda: asked.done() or other.execute(waits).fetchone(), "it to wait or to be answered")
        return asked

    with ThreadPoolExecutor(1) as pool:
        return engine.connections.transact(asked_meanwhile).result(30)


def test_an_id_is_known_while_its_job_is_being_forgotten(
    engine: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = envelopes(engine, 1)
    engine.accept([one])
    (lease,) = engine.claim("default", 1, owner_token=new_owner_token(new_session()))
    assert engine.ack(lease)
    until_us = (time.time_ns() // 1000) + 3_600_000_000

    inside: Any = engine
    is_known, is_forgotten, known = threading.Event(), threading.Event(), inside._known

    def known_later(*given: Any) -> Any:
        is_known.set()
        assert is_forgotten.wait(30)
        return known(*given)

    def forget(connection: Connection) -> None:
        assert is_known.wait(30)
        inside._leave_tombstones(connection, [(int(lease.token), until_us)])
        is_forgotten.set()

    monkeypatch.setattr(engine, "_known", known_later)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(engine.accept, [one])
        (accepted,) = in_the_way(engine, forget, lambda: accepting.result(30))
    assert not accepted.created
    assert not engine.accept([one])[0].created


def test_a_job_that_is_being_given_back_can_be_cancelled(engine: PostgresBackend) -> None:
    (accepted,) = engine.accept(envelopes(engine, 1))
    (lease,) = engine.claim("default", 1, owner_token=new_owner_token(new_session()))

    inside: Any = engine

    def give_back(connection: Connection) -> None:
        assert inside._settle_in(connection, [Release(lease=lease)]) == [True]

    assert in_the_way(engine, give_back, lambda: engine.cancel(accepted.id)) is CancelAnswer.CANCELLED
    assert engine.counts() == {"default": {JobState.CANCELLED: 1}}


def test_more_jobs_than_fit_into_a_statement_keep_their_order(
    engine: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "INSERTS_AT_ONCE", 3)
    ids = [one.id for one in engine.accept(envelopes(engine, 10))]
    assert [lease.id for lease in engine.claim("default", 10, owner_token=new_owner_token(new_session()))] == ids


def test_more_ended_leases_than_fit_into_a_batch_are_all_taken_back(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PRUNE_BATCH", 3)
    monkeypatch.setattr(retention, "PRUNE_BATCH", 3)
    policy = LeasePolicy(lease_s=0.001)
    with PostgresBackend(server.url, EnvelopeFactory(KEYS), policy=policy, prefix=f"test{next(_numbers)}_") as engine:
        engine.accept(envelopes(engine, 10))
        assert len(engine.claim("default", 10, owner_token=new_owner_token(new_session()))) == 10
        ended = engine.connections.sql(f"WITH {NOW_IS} SELECT bool_and(lease_until <= {NOW}) FROM holdfast.open_jobs")
        until(lambda: engine.connections.run(lambda one: one.execute(ended).fetchone()) == (True,), "the leases to end")
        assert engine.reap_expired() == 10
        assert engine.counts() == {"default": {JobState.PENDING: 10}}


def test_many_who_migrate_at_once_make_the_tables_once(server: PostgresServer) -> None:
    prefix = f"test{next(_numbers)}_"
    barrier = threading.Barrier(6)

    def migrate(_: int) -> None:
        with connect(server, prefix) as engine:
            barrier.wait()
            engine.create_schema()
            engine.check()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(migrate, range(6)))


@pytest.mark.parametrize("table", ["jobs", "schema"])
def test_a_table_of_another_program_is_not_taken_for_ours(engine: PostgresBackend, table: str) -> None:
    namespace = engine.connections.namespace
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
        other.execute(f"CREATE SCHEMA {namespace}".encode())
        other.execute(f"CREATE TABLE {namespace}.{table} (id integer)".encode())
        with pytest.raises(BackendError, match=f"has tables of another program in '{namespace}' .*prefix"):
            engine.accept(envelopes(engine, 1))
        other.execute(f"DROP TABLE {namespace}.{table}".encode())
    assert engine.accept(envelopes(engine, 1))[0].created


def test_a_newer_schema_is_refused(engine: PostgresBackend) -> None:
    engine.create_schema()
    newer = engine.connections.sql("INSERT INTO holdfast.schema (version) VALUES (999)")
    engine.connections.run(lambda connection: connection.execute(newer))
    with pytest.raises(SchemaTooNew, match="has schema 999"):
        engine.check()
    fresh = PostgresConnections(engine.connections.conninfo, prefix=f"{engine.connections.namespace}_")
    with closing(fresh), pytest.raises(SchemaTooNew, match="upgrade Holdfast here"):
        fresh.run(lambda connection: connection.execute("SELECT 1"))


def test_a_session_that_was_ended_is_replaced_and_the_caller_hears_nothing(engine: PostgresBackend) -> None:
    assert engine.accept(envelopes(engine, 1))[0].created
    end = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'idle'"
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
        other.execute(end)
    assert engine.accept(envelopes(engine, 1))[0].created
    assert engine.counts() == {"default": {JobState.PENDING: 2}}


def test_a_server_that_was_killed_and_comes_back_has_everything_it_accepted() -> None:
    server = started(PostgresServer)
    try:
        with connect(server) as engine:
            ids = {one.id for one in engine.accept(envelopes(engine, 50))}
            server.kill()
            with pytest.raises(BackendUnavailable, match=f"PostgreSQL at 127.0.0.1:{server.port}"):
                engine.counts()
            server.start()
            until(lambda: _answers(engine), "the server to answer")
            assert {
                lease.id for lease in engine.claim("default", 100, owner_token=new_owner_token(new_session()))
            } == ids
    finally:
        server.close()


def test_a_server_that_goes_away_while_somebody_begins_to_wait_is_not_available(
    engine: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.counts()
    connect = Connection.connect

    def connect_and_die(*arguments: Any, **options: Any) -> Connection:
        connection = connect(*arguments, **options)
        with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
        return connection

    monkeypatch.setattr(Connection, "connect", connect_and_die)
    with pytest.raises(BackendUnavailable):
        engine.wait_for_work(["default"], 1.0)


def test_a_driver_that_cannot_end_a_pipeline_tells_of_a_server_that_is_gone(engine: PostgresBackend) -> None:
    """Seen about once in a thousand calls that met the death of their server."""
    seen: list[Connection] = []

    def fail(connection: Connection) -> None:
        seen.append(connection)
        raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    engine.counts()
    with pytest.raises(BackendUnavailable):
        engine.connections.run(fail)
    kept, fresh = seen
    assert kept is not fresh


def _answers(engine: PostgresBackend) -> bool:
    try:
        engine.check()
    except BackendUnavailable:
        return False
    return True


def test_nobody_listening_is_told_at_once_and_without_the_password() -> None:
    url = f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/shop"
    engine = PostgresBackend(url, EnvelopeFactory(KEYS))
    started_at = time.monotonic()
    with pytest.raises(BackendUnavailable) as raised:
        engine.counts()
    assert time.monotonic() - started_at < 15
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("prefix", ["", "a b", "a;b", "A", "a" * 50])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a prefix"):
        PostgresBackend("postgresql://127.0.0.1/x", EnvelopeFactory(KEYS), prefix=prefix)


def test_two_installations_share_a_server(server: PostgresServer) -> None:
    with connect(server) as one, connect(server) as other:
        one.accept(envelopes(one, 1))
        assert (one.counts(), other.counts()) == ({"default": {JobState.PENDING: 1}}, {})


def test_a_job_wakes_whoever_waits_for_its_queue(engine: PostgresBackend) -> None:
    """By word of the server: looking by itself would come too late here."""
    engine.create_schema()
    woken = threading.Event()

    def wait() -> None:
        engine.wait_for_work(["default"], 60.0)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    listening = b"SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
        until(lambda: other.execute(listening).fetchone(), "somebody to listen")
    engine.accept(envelopes(engine, 1))
    assert woken.wait(30)
    waiting.join()


def test_a_forked_process_opens_connections_of_its_own(engine: PostgresBackend) -> None:
    engine.accept(envelopes(engine, 1))
    copy = os.fork()
    if copy == 0:
        try:
            engine.accept(envelopes(engine, 1))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 0
    engine.accept(envelopes(engine, 1))
    assert engine.counts() == {"default": {JobState.PENDING: 3}}


def test_it_is_opened_by_its_url_with_a_key_that_all_share(server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="HOLDFAST_SIGNING_KEY"):
        BackendFactory().open(server.url)
    engine, signer = BackendFactory(KEYS).open(f"{server.url}?prefix=shop_&application_name=shop")
    with engine:
        assert isinstance(engine, PostgresBackend)
        assert (engine.connections.namespace, signer) == ("shop", KEYS)
        assert engine.counts() == {}
