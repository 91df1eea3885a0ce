"""The PostgreSQL engine on a real server: plans, migrations, lost connections and notifications."""

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
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, IdConflict, SchemaTooNew
from holdfast.queues.contract import LeasePolicy, new_owner_token, records
from holdfast.queues.engines.postgres import jobs as postgres
from holdfast.queues.engines.postgres.connections import Connection, PostgresConnections
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.postgres.migrations import migrations
from holdfast.queues.engines.postgres.state import LOCK_CELLS, write_cells
from holdfast.queues.engines.postgres.statements import NOW, NOW_IS
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.state.facts import Facts
from holdfast.values import (
    Ack,
    AttemptRecord,
    CancelAnswer,
    DeadReason,
    Drop,
    JobEnvelope,
    JobState,
    LeaseState,
    Outcome,
    Put,
    Release,
    Spend,
)

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


def connect(server: PostgresServer, prefix: str | None = None) -> PostgresEngine:
    return PostgresEngine(server.url, EnvelopeFactory(KEYS), prefix=prefix or f"test{next(_numbers)}_")


@pytest.fixture
def engine(server: PostgresServer) -> Generator[PostgresEngine]:
    with connect(server) as engine:
        yield engine


def envelopes(engine: PostgresEngine, number: int) -> list[JobEnvelope]:
    return [engine.envelopes.make(JobDefinition(handler="send")) for _ in range(number)]


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_claim_takes_no_more_than_its_limit_whatever_the_planner_may_use(engine: PostgresEngine, switch: str) -> None:
    accepted = [one.id for one in engine.accept(envelopes(engine, 60))]

    def claim(connection: Connection) -> list[str]:
        connection.execute(f"SET LOCAL enable_{switch} = off".encode())
        query = {"queue": "default", "limit": 7, "token": os.urandom(16), "lease": 60_000_000}
        return [row[1] for row in connection.execute(engine.connections.sql(postgres.CLAIM), query).fetchall()]

    taken = [engine.connections.transact(claim) for _ in range(3)]
    assert [len(ids) for ids in taken] == [7, 7, 7]
    assert {id for ids in taken for id in ids} == set(accepted[:21])


def test_what_is_planned_while_there_is_nothing_is_right_when_there_is_much(engine: PostgresEngine) -> None:
    """For an empty table, a plan that reads the whole table is cheapest; it must not be used for a full one."""
    engine.accept(envelopes(engine, 1))
    [lease] = engine.claim("default", 1, owner_token=new_owner_token())
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=0, ended_us=0)
    assert engine.exchange([Ack(lease=lease, record=record)], "default", 1, owner_token=new_owner_token()) == (
        [True],
        [],
    )
    asked = b"SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE %s"

    def plan(connection: Connection, what: str) -> str:
        [(name, parameters)] = connection.execute(asked, [f"%{what}%"]).fetchall()
        explained = connection.execute(f"EXPLAIN EXECUTE {name}({', '.join(['NULL'] * parameters)})".encode())
        return "\n".join(line for (line,) in explained.fetchall())

    def plans(connection: Connection) -> list[str]:
        # No new plan must be created now: the prepared one must be used.
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
                while leases := engine.claim("default", 5, owner_token=new_owner_token()):
                    assert all(engine.settle([Ack(lease=lease) for lease in leases]))
                    done += [lease.id for lease in leases]
            return done

        with ThreadPoolExecutor(8) as pool:
            done = [id for part in pool.map(work, range(8)) for id in part]
        assert (len(done), set(done)) == (400, ids)
        assert first.counts() == {"default": {JobState.COMPLETED: 400}}


def test_claims_of_one_session_do_not_wait_for_each_other(engine: PostgresEngine) -> None:
    """Tokens of one worker share their first half; only the second half differs between claims."""
    accepted = [one.id for one in engine.accept(envelopes(engine, 2))]
    session = os.urandom(8)
    first, second = (session + os.urandom(8) for _ in range(2))
    jobs: Any = engine.jobs

    def claim_meanwhile(connection: Connection) -> list[str]:
        assert len(jobs._send_claim(connection, jobs._claim_query("default", 1, first.hex())).fetchall()) == 1
        return [lease.id for lease in pool.submit(engine.claim, "default", 5, owner_token=second.hex()).result(30)]

    with ThreadPoolExecutor(1) as pool:
        assert engine.connections.transact(claim_meanwhile) == accepted[1:]


def in_the_way(
    engine: PostgresEngine,
    change: Callable[[Connection], object],
    ask: Callable[[], T],
    meanwhile: Callable[[], object] = lambda: None,
) -> T:
    """The answer to a call that starts while another transaction has changed something but not committed."""

    def asked_meanwhile(connection: Connection) -> "Future[T]":
        change(connection)
        asked = pool.submit(ask)
        with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
            waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            until(lambda: asked.done() or other.execute(waits).fetchone(), "it to wait or to be answered")
        meanwhile()
        return asked

    with ThreadPoolExecutor(1) as pool:
        return engine.connections.transact(asked_meanwhile).result(30)


def test_work_that_must_not_repeat_is_not_retried_after_a_lost_commit(engine: PostgresEngine) -> None:
    engine.create_schema()
    engine.connections.run(lambda connection: connection.execute("SELECT 1"))  # so that one is idle
    runs: list[int] = []

    def work(connection: Connection) -> None:
        runs.append(connection.info.backend_pid)
        with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [runs[-1]])

    with pytest.raises(BackendUnavailable):
        engine.connections.converse(work)
    assert len(runs) == 1


def test_an_id_is_known_while_its_job_is_being_forgotten(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = envelopes(engine, 1)
    engine.accept([one])
    (lease,) = engine.claim("default", 1, owner_token=new_owner_token())
    assert engine.ack(lease)
    until_us = (time.time_ns() // 1000) + 3_600_000_000

    jobs: Any = engine.jobs
    records: Any = engine.records
    is_known, is_forgotten, known = threading.Event(), threading.Event(), jobs._known

    def known_later(*given: Any) -> Any:
        is_known.set()
        assert is_forgotten.wait(30)
        return known(*given)

    def forget(connection: Connection) -> None:
        assert is_known.wait(30)
        records._leave_tombstones(connection, [(int(lease.token), until_us)])
        is_forgotten.set()

    monkeypatch.setattr(jobs, "_known", known_later)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(engine.accept, [one])
        (accepted,) = in_the_way(engine, forget, lambda: accepting.result(30))
    assert not accepted.created
    assert not engine.accept([one])[0].created


def test_a_job_that_is_being_given_back_can_be_cancelled(engine: PostgresEngine) -> None:
    (accepted,) = engine.accept(envelopes(engine, 1))
    (lease,) = engine.claim("default", 1, owner_token=new_owner_token())

    jobs: Any = engine.jobs

    def give_back(connection: Connection) -> None:
        assert jobs._settle_in(connection, [Release(lease=lease)]) == ([True], False)

    assert in_the_way(engine, give_back, lambda: engine.cancel(accepted.id)) is CancelAnswer.CANCELLED
    assert engine.counts() == {"default": {JobState.CANCELLED: 1}}


def test_a_condition_is_checked_against_what_another_writer_has_just_committed(engine: PostgresEngine) -> None:
    [version] = engine.state.write([Put(kind="thing", key="a")]) or []
    write = [Put(kind="thing", key="a", value=b"mine", if_version=version)]

    def theirs(connection: Connection) -> None:
        write_cells(connection, engine.connections.sql, [Put(kind="thing", key="a", value=b"theirs")])

    assert in_the_way(engine, theirs, lambda: engine.state.write(write)) is None
    assert [cell.value for cell in engine.state.read("thing")] == [b"theirs"]


def test_the_version_of_a_cell_grows_though_its_writer_waited_for_another_cell(engine: PostgresEngine) -> None:
    """In the meantime the cell is created, dropped and swept, so that its last version is unknown."""
    versions: list[int] = []

    def theirs(connection: Connection) -> None:
        write_cells(connection, engine.connections.sql, [Put(kind="thing", key="a")])

    def come_and_go() -> None:
        versions.extend(engine.state.write([Put(kind="thing", key="b")]) or [])
        versions.extend(engine.state.write([Drop(kind="thing", key="b")]) or [])
        assert engine.state.sweep() == 1

    ours = [Put(kind="thing", key="a"), Put(kind="thing", key="b")]
    answer = in_the_way(engine, theirs, lambda: engine.state.write(ours), come_and_go)
    assert answer is not None
    versions.append(answer[1])
    assert versions == sorted(set(versions))


def test_a_cell_that_is_being_written_is_not_swept(engine: PostgresEngine) -> None:
    engine.state.write([Put(kind="thing", key="a", ttl=0.000_001)])

    def sweep_meanwhile(connection: Connection) -> int:
        connection.execute(engine.connections.sql(LOCK_CELLS), {"kinds": ["thing"], "keys": ["a"]})
        return engine.state.sweep()

    assert engine.connections.transact(sweep_meanwhile) == 0
    assert engine.state.sweep() == 1


def test_how_many_statements_shared_state_costs(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including those that begin, limit and end a transaction."""
    state = engine.state
    put = Put(kind="thing", key="a", ttl=60)
    acts: dict[str, Callable[[], object]] = {
        "unconditional": lambda: state.write([put, Drop(kind="thing", key="b")]),
        "conditional": lambda: state.write([Put(kind="thing", key="c", if_version=0)]),
        "spend": lambda: state.spend([Spend(bucket="b", tokens=1, per_s=0.001, burst=1)]),
        "sweep": state.sweep,
    }
    engine.counts()
    executed: list[object] = []
    execute = Connection.execute

    def noted(connection: Connection, query: Any, *given: Any, **options: Any) -> Any:
        executed.append(query)
        return execute(connection, query, *given, **options)

    def cost(act: Callable[[], object]) -> int:
        executed.clear()
        act()
        return len(executed)

    monkeypatch.setattr(Connection, "execute", noted)
    costs = {name: cost(act) for name, act in acts.items()}
    assert costs == {"unconditional": 1, "conditional": 6, "spend": 6, "sweep": 1}


def test_a_locked_cell_does_not_block_the_renewal_of_leases(engine: PostgresEngine) -> None:
    engine.accept(envelopes(engine, 2))
    first, second = engine.claim("default", 2, owner_token=new_owner_token())
    mark = Put(kind="thing", key="a")
    engine.state.write([mark])
    with psycopg.connect(engine.connections.conninfo) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"SELECT 1 FROM {engine.connections.namespace}.cells FOR UPDATE".encode())
        settled = pool.submit(lambda: engine.settle([Ack(lease=first, writes=(mark,))]))
        waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: other.execute(waits).fetchone(), "the settlement to wait for the cell")
        assert engine.renew_many([first, second]) == [LeaseState.HELD, LeaseState.HELD]
        assert not settled.done()
        other.rollback()
        assert settled.result(30) == [True]


def test_a_job_that_a_settlement_enqueues_is_announced(engine: PostgresEngine) -> None:
    engine.accept(envelopes(engine, 1))
    [lease] = engine.claim("default", 1, owner_token=new_owner_token())
    following = engine.envelopes.make(JobDefinition(handler="send", queue="next"))
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as listening:
        listening.execute(f"LISTEN {engine.connections.namespace}_work".encode())
        assert engine.settle([Ack(lease=lease, enqueues=(following,))]) == [True]
        assert [notify.payload for notify in listening.notifies(timeout=30, stop_after=1)] == ["next"]


def test_what_a_settlement_cannot_carry_costs_no_connection(
    engine: PostgresEngine, caplog: pytest.LogCaptureFixture
) -> None:
    known, other = (
        engine.envelopes.make(JobDefinition(handler="send", queue=queue), id="known") for queue in ("a", "b")
    )
    engine.accept([known, *envelopes(engine, 1)])
    [lease] = engine.claim("default", 1, owner_token=new_owner_token())
    session = b"SELECT pg_backend_pid()"
    before = engine.connections.run(lambda connection: connection.execute(session).fetchone())
    with pytest.raises(IdConflict):
        engine.exchange([Ack(lease=lease, enqueues=(other,))], "default", 1, owner_token=new_owner_token())
    assert engine.state.write([Put(kind="thing", key="a", if_version=7)]) is None
    assert engine.connections.run(lambda connection: connection.execute(session).fetchone()) == before
    assert caplog.records == []
    assert engine.ack(lease)


def test_more_jobs_than_fit_into_a_statement_keep_their_order(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "INSERTS_AT_ONCE", 3)
    ids = [one.id for one in engine.accept(envelopes(engine, 10))]
    assert [lease.id for lease in engine.claim("default", 10, owner_token=new_owner_token())] == ids


def test_more_ended_leases_than_fit_into_a_batch_are_all_taken_back(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "PRUNE_BATCH", 3)
    monkeypatch.setattr(records, "PRUNE_BATCH", 3)
    policy = LeasePolicy(lease_s=0.001)
    with PostgresEngine(server.url, EnvelopeFactory(KEYS), policy=policy, prefix=f"test{next(_numbers)}_") as engine:
        engine.accept(envelopes(engine, 10))
        assert len(engine.claim("default", 10, owner_token=new_owner_token())) == 10
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


def test_facts_of_an_older_schema_become_cells(engine: PostgresEngine) -> None:
    prefix = f"{engine.connections.namespace}_"
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
        for step in migrations(prefix)[:2]:
            other.execute(step.sql.encode())
        add = f"INSERT INTO {engine.connections.namespace}.facts VALUES ('signing-key', 'b'), ('signing-key', 'a')"
        other.execute(add.encode())
    engine.create_schema()
    assert Facts(engine.state).of("signing-key") == {"a", "b"}
    [cell] = engine.state.read("signing-key", ["a"])
    assert abs(cell.version - time.time_ns() // 1000) < 60_000_000


@pytest.mark.parametrize("table", ["jobs", "schema"])
def test_a_table_of_another_program_is_not_taken_for_ours(engine: PostgresEngine, table: str) -> None:
    namespace = engine.connections.namespace
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
        other.execute(f"CREATE SCHEMA {namespace}".encode())
        other.execute(f"CREATE TABLE {namespace}.{table} (id integer)".encode())
        with pytest.raises(
            BackendError, match=f"the tables in schema '{namespace}' belong to another program .*prefix"
        ):
            engine.accept(envelopes(engine, 1))
        other.execute(f"DROP TABLE {namespace}.{table}".encode())
    assert engine.accept(envelopes(engine, 1))[0].created


def test_an_old_server_is_refused_with_its_version(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(engine.connections.conninfo) as other:
        version = other.info.parameter_status("server_version")
    monkeypatch.setattr("holdfast.queues.engines.postgres.connections.MIN_VERSION", 990_000)
    with pytest.raises(BackendError) as refused:
        engine.accept(envelopes(engine, 1))
    assert f" is PostgreSQL {version}; Holdfast needs 12 or newer" in str(refused.value)


def test_a_newer_schema_is_refused(engine: PostgresEngine) -> None:
    engine.create_schema()
    newer = engine.connections.sql("INSERT INTO holdfast.schema (version) VALUES (999)")
    engine.connections.run(lambda connection: connection.execute(newer))
    with pytest.raises(SchemaTooNew, match="has schema 999"):
        engine.check()
    fresh = PostgresConnections(engine.connections.conninfo, prefix=f"{engine.connections.namespace}_")
    with closing(fresh), pytest.raises(SchemaTooNew, match="upgrade Holdfast here"):
        fresh.run(lambda connection: connection.execute("SELECT 1"))


def test_a_session_that_was_ended_is_replaced_and_the_caller_hears_nothing(engine: PostgresEngine) -> None:
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
            assert {lease.id for lease in engine.claim("default", 100, owner_token=new_owner_token())} == ids
    finally:
        server.close()


def test_a_worker_whose_connection_dies_as_it_begins_to_listen_polls(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine.counts()
    connect = Connection.connect

    def connect_and_die(*arguments: Any, **options: Any) -> Connection:
        connection = connect(*arguments, **options)
        with psycopg.connect(engine.connections.conninfo, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
        return connection

    monkeypatch.setattr(Connection, "connect", connect_and_die)
    engine.wait_for_work(["default"], 0.05)
    assert "cannot listen for new jobs" in caplog.text


def test_a_pipeline_that_cannot_be_closed_means_that_the_server_is_unavailable(engine: PostgresEngine) -> None:
    """Observed in about one of a thousand calls during which the server was killed."""
    seen: list[Connection] = []

    def fail(connection: Connection) -> None:
        seen.append(connection)
        raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    engine.counts()
    with pytest.raises(BackendUnavailable):
        engine.connections.run(fail)
    kept, fresh = seen
    assert kept is not fresh


def _answers(engine: PostgresEngine) -> bool:
    try:
        engine.check()
    except BackendUnavailable:
        return False
    return True


def test_a_closed_port_is_reported_at_once_and_without_the_password() -> None:
    url = f"postgresql://ada:hunter2@127.0.0.1:{free_port()}/shop"
    engine = PostgresEngine(url, EnvelopeFactory(KEYS))
    started_at = time.monotonic()
    with pytest.raises(BackendUnavailable) as raised:
        engine.counts()
    assert time.monotonic() - started_at < 15
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("user", "database"), [("nobody", "postgres"), ("postgres", "nowhere")])
def test_an_unknown_user_or_database_is_a_mistake_in_the_url(server: PostgresServer, user: str, database: str) -> None:
    engine = PostgresEngine(f"postgresql://{user}@127.0.0.1:{server.port}/{database}", EnvelopeFactory(KEYS))
    with pytest.raises(BackendError, match=r"refused the connection: .* does not exist; check the user") as raised:
        engine.counts()
    assert not isinstance(raised.value, BackendUnavailable)
    assert str(raised.value).count("connection") == 1


def test_a_dead_letter_without_its_message_is_counted_and_listed(engine: PostgresEngine) -> None:
    engine.accept(envelopes(engine, 2))
    for lease in engine.claim("default", 2, owner_token=new_owner_token()):
        engine.abandon(lease, DeadReason.FAILED)
    deleted = engine.connections.sql("DELETE FROM holdfast.jobs WHERE seq = (SELECT max(seq) FROM holdfast.jobs)")
    engine.connections.run(lambda one: one.execute(deleted))
    assert engine.counts() == {"default": {JobState.DEAD: 2}}
    assert [job.damaged for job in engine.dead_letters().jobs] == [True, False]


@pytest.mark.parametrize("prefix", ["", "a b", "a;b", "A", "a" * 50])
def test_a_prefix_that_cannot_be_one_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid prefix"):
        PostgresEngine("postgresql://127.0.0.1/x", EnvelopeFactory(KEYS), prefix=prefix)


def test_two_installations_share_a_server(server: PostgresServer) -> None:
    with connect(server) as one, connect(server) as other:
        one.accept(envelopes(one, 1))
        assert (one.counts(), other.counts()) == ({"default": {JobState.PENDING: 1}}, {})


def test_a_job_ends_the_waits_for_its_queue(engine: PostgresEngine) -> None:
    """By a notification of the server: polling would be too late here."""
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


def test_a_worker_polls_where_the_server_has_no_connection_left_to_listen_on(
    server: PostgresServer, engine: PostgresEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting must not fail while claims succeed: the worker would report the engine as unavailable and available
    again, many times a second.
    """
    engine.create_schema()
    namespace = engine.connections.namespace
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 1")
        for grant in ("USAGE ON SCHEMA", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"):
            admin.execute(f"GRANT {grant} {namespace} TO crowded".encode())
    url = server.url.replace("postgres@", "crowded@")
    with PostgresEngine(url, EnvelopeFactory(KEYS), prefix=f"{namespace}_") as crowded:
        crowded.wait_for_work(["default"], 0.05)
        crowded.wait_for_work(["default"], 0.05)
        warnings = [record.getMessage() for record in caplog.records if "cannot listen" in record.getMessage()]
        assert len(warnings) == 1
        assert "too many connections" in warnings[0]
        engine.accept(envelopes(engine, 1))
        assert len(crowded.claim("default", 1, owner_token=new_owner_token(), wait=60.0)) == 1


def test_a_forked_process_opens_its_own_connections(engine: PostgresEngine) -> None:
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
        EngineFactory().open(server.url)
    engine, signer = EngineFactory(KEYS).open(f"{server.url}?prefix=shop_&application_name=shop")
    with engine:
        assert isinstance(engine, PostgresEngine)
        assert (engine.connections.namespace, signer) == ("shop", KEYS)
        assert engine.counts() == {}
