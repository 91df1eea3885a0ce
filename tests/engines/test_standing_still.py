"""Servers that stop responding without closing connections: reported within a limited time, and usable afterwards."""

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable, ConfigError
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres.connections import ANSWER_TIMEOUT_S, PostgresConnections
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Ack, AttemptRecord, JobLease, JobState, Outcome

from ..faults.processes import until
from ..servers.places import SERVERS, Servers, place_on
from ..servers.running import Server

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
# Shorter than the defaults; waits that must exceed them take LONGER_S.
IN_TIME = {
    "postgres": "timeout=1&connect_timeout=2",
    "mysql": "timeout=1&connect_timeout=1",
    "redis": "socket_timeout=1&socket_connect_timeout=1",
}
LONGER_S = 2.0
REFUSED_WITHIN_S = 10.0
SAID = {"postgres": "has not responded for 1 s", "mysql": "timed out", "redis": "Timeout reading"}

on_every_server = pytest.mark.parametrize("backend", SERVERS, indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    engine: str = request.getfixturevalue("engine")
    return servers.running(engine)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.node.callspec.params.get("backend", "postgres")
    return name


@pytest.fixture
def backend(engine: str, server: Server) -> Generator[Engine]:
    with place_on(server) as place, EngineFactory(KEYS).open(f"{place.url}&{IN_TIME[engine]}")[0] as backend:
        backend.create_schema()
        yield backend


@contextmanager
def refused(said: str | None = None) -> Generator[None]:
    """Assert that the call in the block fails in time because the server does not respond."""
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match=said):
        yield
    assert time.monotonic() - began < REFUSED_WITHIN_S


def accept(backend: Engine) -> str:
    return backend.accept([backend.envelopes.make(JobDefinition(handler="send"))])[0].id


@on_every_server
def test_what_a_server_was_asked_while_it_stood_still_happens_once_or_not_at_all(
    backend: Engine, server: Server, engine: str
) -> None:
    late, token = backend.envelopes.make(JobDefinition(handler="send")), new_owner_token()
    ids = {accept(backend), late.id}
    with server.standing_still():
        with refused(SAID[engine]):
            backend.accept([late])
        with refused():  # each has to open a connection now
            backend.claim("default", 10, owner_token=token)
    assert [one.id for one in backend.accept([late])] == [late.id]

    leases: dict[str, JobLease] = {}

    def are_claimed() -> bool:
        """The server may still execute the claim that it received: for the token of that claim."""
        for owner in (token, new_owner_token()):
            leases.update({lease.id: lease for lease in backend.claim("default", 10, owner_token=owner)})
        return len(leases) == len(ids)

    until(are_claimed, "both jobs to be claimed")
    assert {lease.id: lease.delivery for lease in leases.values()} == dict.fromkeys(ids, 1)
    assert backend.settle([Ack(lease=lease) for lease in leases.values()]) == [True, True]
    assert backend.counts() == {"default": {JobState.COMPLETED: 2}}


@on_every_server
def test_a_verdict_on_a_server_that_stood_still_can_be_repeated(backend: Engine, server: Server, engine: str) -> None:
    id, token = accept(backend), new_owner_token()
    verdicts = [Ack(lease=lease, record=succeeded()) for lease in backend.claim("default", 1, owner_token=token)]
    accept(backend)
    with server.standing_still(), refused(SAID[engine]):
        backend.exchange(verdicts, "default", 1, owner_token=token)
    assert backend.settle(verdicts) == [True]
    history = backend.get(id)
    assert history is not None
    assert (history.job.state, len(history.attempts)) == (JobState.COMPLETED, 1)


@pytest.mark.parametrize("backend", ["postgres", "mysql"], indirect=True)
def test_a_handler_may_wait_for_its_own_statements_as_long_as_it_likes(backend: Engine) -> None:
    accept(backend)
    [lease] = backend.claim("default", 1, owner_token=new_owner_token())
    transaction = backend.transaction(lease.id, lease.delivery)
    connection: Any = getattr(transaction, "connection")  # noqa: B009 - each engine has its driver's
    asleep = "pg_sleep" if isinstance(backend, PostgresEngine) else "SLEEP"
    connection.cursor().execute(f"SELECT {asleep}({LONGER_S})")
    transaction.complete(succeeded())
    assert backend.counts() == {"default": {JobState.COMPLETED: 1}}


@pytest.mark.parametrize("backend", ["postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("end", ["complete", "roll_back"])
def test_a_handlers_transaction_ends_though_the_server_stands_still(
    backend: Engine, server: Server, engine: str, end: str
) -> None:
    accept(backend)
    [lease] = backend.claim("default", 1, owner_token=new_owner_token())
    transaction = backend.transaction(lease.id, lease.delivery)
    with server.standing_still():
        if end == "complete":
            with refused(SAID[engine]):
                transaction.complete(succeeded())
        else:
            transaction.roll_back()
    assert backend.settle([Ack(lease=lease, record=succeeded())]) == [True]


@pytest.mark.parametrize("backend", ["mysql"], indirect=True)
def test_a_handler_may_wait_between_its_statements_as_long_as_the_server_lets_anybody(backend: MysqlEngine) -> None:
    accept(backend)
    [lease] = backend.claim("default", 1, owner_token=new_owner_token())
    transaction: Any = backend.transaction(lease.id, lease.delivery)
    cursor = transaction.connection.cursor()
    cursor.execute("SELECT @@wait_timeout, @@innodb_lock_wait_timeout")
    of_handlers = cursor.fetchone()
    transaction.roll_back()
    [everybodys, ours] = backend.connections.run(
        lambda session: [
            session.one(f"SELECT {scope}wait_timeout, {scope}innodb_lock_wait_timeout") for scope in ("@@GLOBAL.", "@@")
        ]
    )
    assert of_handlers == everybodys != ours


def test_a_migration_may_take_as_long_as_it_needs(servers: Servers) -> None:
    server = servers.running("postgres")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE slow")
    database = server.url.removesuffix("postgres") + "slow"
    with psycopg.connect(database) as admin:
        sleep = f"BEGIN PERFORM pg_sleep({LONGER_S}); END"
        admin.execute(f"CREATE FUNCTION doze() RETURNS event_trigger LANGUAGE plpgsql AS '{sleep}'".encode())
        admin.execute(
            "CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE SCHEMA') EXECUTE FUNCTION doze()"
        )
    with EngineFactory(KEYS).open(f"{database}?{IN_TIME['postgres']}")[0] as backend:
        backend.create_schema()
        backend.check()


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_a_lost_connection_is_not_also_logged_by_the_driver(
    backend: PostgresEngine, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    accept(backend)
    verdicts = [Ack(lease=lease) for lease in backend.claim("default", 1, owner_token=new_owner_token())]
    with psycopg.connect(server.url, autocommit=True) as admin:

        def in_a_pipeline(connection: Any) -> None:
            with connection.pipeline():
                connection.execute("SELECT 1")
                admin.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
                connection.execute("SELECT 1").fetchone()

        with pytest.raises(BackendUnavailable):
            backend.connections.run(in_a_pipeline)
        assert [record.getMessage() for record in caplog.records if record.name == "psycopg"] == []
        block = psycopg.Pipeline(admin)
    logging.getLogger("psycopg").warning("error ignored terminating %r: %s", block, "the connection is lost")
    assert "error ignored terminating" in caplog.text, "what others do with the driver is theirs to hear of"
    assert backend.settle(verdicts) == [True]


def test_how_long_a_server_may_be_silent_stands_in_its_url() -> None:
    def patience(options: str) -> tuple[float, str]:
        connections = PostgresConnections(f"postgresql://ada@host/shop{options}", prefix="holdfast_")
        return connections.answer_timeout_s, connections.conninfo

    assert patience("")[0] == ANSWER_TIMEOUT_S
    seconds, conninfo = patience("?timeout=2.5&application_name=shop")
    assert (seconds, "timeout=2.5" in conninfo, "application_name=shop" in conninfo) == (2.5, False, True)
    for wrong in ("0", "-1", "soon", "3601", "", "nan"):
        with pytest.raises(ConfigError, match="is not a number of seconds"):
            patience(f"?timeout={wrong}")


def succeeded() -> AttemptRecord:
    return AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
