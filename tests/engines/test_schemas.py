"""The schema of each engine on its real server: printed as SQL, described, too new, and created concurrently."""

import socket
import sqlite3
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest

from holdfast.definition import JobDefinition
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.mysql import connections as mysql_connections
from holdfast.queues.engines.postgres import connections as postgres_connections
from holdfast.queues.engines.redis import connections as redis_connections
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring
from holdfast.values import Ack

from ..faults.processes import until
from ..servers.mysql import MariadbServer
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import Server, started
from ..surface.terminal import Terminal, ended

KEY = "the key that all of these tests share"
SERVERS: dict[str, Callable[[], Server]] = {
    "postgresql": lambda: PostgresServer(settings={"fsync": "on"}),
    "mysql": lambda: MariadbServer(settings={"log-bin": "on"}),
    "redis": lambda: RedisServer(settings={"appendfsync": "everysec"}),
}
WITH_TABLES = ["sqlite", "postgresql", "mysql"]
_numbers = count(1)


@pytest.fixture(scope="module")
def servers() -> Generator[dict[str, Server]]:
    """The servers that were started so far."""
    running: dict[str, Server] = {}
    yield running
    for server in running.values():
        server.close()


def server_of(servers: dict[str, Server], engine: str) -> Server:
    if engine not in servers:
        servers[engine] = started(SERVERS[engine])
    return servers[engine]


class Place(NamedTuple):
    """The place of one installation, and access to it that is independent of Holdfast."""

    engine: str
    url: str
    prefix: str
    connect: Callable[[], Any]

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def feed(self, sql: str) -> None:
        """Execute a script as tools do that only split it at semicolons."""
        for statement in sql.split(";"):
            if statement.strip():
                self.execute(statement)

    @property
    def records(self) -> str:
        """The table with the versions."""
        return f"{self.prefix.rstrip('_')}.schema" if self.engine == "postgresql" else f"{self.prefix}schema"

    def tables(self) -> set[str]:
        """Our tables, without the prefix."""
        if self.engine == "sqlite":
            if not Path(self.url.removeprefix("sqlite:///").partition("?")[0]).exists():
                return set()
            listed = self.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        elif self.engine == "postgresql":
            space = self.prefix.rstrip("_")
            asked = "SELECT table_schema || '_' || table_name FROM information_schema.tables"
            listed = self.execute(f"{asked} WHERE table_schema = '{space}'")
        else:
            listed = self.execute("SHOW TABLES")
        return {name.removeprefix(self.prefix) for (name,) in listed if name.startswith(self.prefix)}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()


@pytest.fixture
def place(engine: str, servers: dict[str, Server], tmp_path: Path) -> Place:
    prefix = f"shop{next(_numbers)}_"
    if engine == "sqlite":
        file = tmp_path / "shop.db"
        return Place(
            engine, f"sqlite:///{file}?prefix={prefix}", prefix, lambda: sqlite3.connect(file, isolation_level=None)
        )
    server = server_of(servers, engine)
    ways: dict[str, Callable[[], Any]] = {
        "postgresql": lambda: psycopg.connect(server.url, autocommit=True),
        "mysql": lambda: pymysql.connect(
            host="127.0.0.1", port=server.port, user="root", database="holdfast", autocommit=True
        ),
    }
    return Place(engine, f"{server.url}?prefix={prefix}", prefix, ways.get(engine, lambda: None))


def run_a_job(url: str) -> None:
    engine, _ = EngineFactory(Keyring.parse(KEY)).open(url)
    with engine:
        engine.check()
        assert engine.accept([engine.envelopes.make(JobDefinition(handler="mail"), id="a")])[0].created
        [lease] = engine.claim("default", 10, owner_token=new_owner_token())
        assert engine.settle([Ack(lease=lease)]) == [True]


@pytest.mark.parametrize("engine", ["postgresql", "mysql"])
def test_who_asks_for_health_makes_no_schema(terminal: Terminal, place: Place) -> None:
    answer = terminal("health", "--full", "--url", place.url)
    assert (answer.code, answer.out.count("store"), "no schema yet" in answer.out) == (0, 1, True)
    assert place.tables() == set()


@pytest.mark.parametrize("engine", WITH_TABLES)
def test_what_is_printed_makes_the_schema_that_the_engine_would_have_made(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = terminal("migrate", "--sql", "--url", place.url)
    assert (printed.code, printed.err) == (0, "")
    assert place.tables() == set()
    place.feed(printed.out)
    made, recorded = place.tables(), place.execute(f"SELECT * FROM {place.records} ORDER BY version")
    run_a_job(place.url)
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    assert terminal("migrate", "--url", place.url).code == 0
    assert place.tables() == made
    assert place.execute(f"SELECT * FROM {place.records} ORDER BY version") == recorded
    other = place._replace(prefix="other_", url=place.url.replace(place.prefix, "other_"))
    assert terminal("migrate", "--url", other.url).code == 0
    assert other.tables() == made
    assert len(made) >= 8


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_file_whose_tables_another_tool_created_also_uses_a_wal(terminal: Terminal, place: Place) -> None:
    place.feed(terminal("migrate", "--sql", "--url", place.url).out)
    assert place.execute("PRAGMA journal_mode") == [("delete",)]
    run_a_job(place.url)
    assert place.execute("PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql", "redis"])
def test_describe_creates_nothing_and_reports_whether_the_schema_is_current(
    terminal: Terminal, place: Place, engine: str, servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def schema() -> tuple[object, object, object]:
        answer = terminal("backend", "info", place.url, "--json")
        assert (answer.code, answer.err) == (0, "")
        told = answer.json
        names = {"sqlite": "SQLite ", "postgresql": "PostgreSQL ", "mysql": "MariaDB ", "redis": ("Redis ", "Valkey ")}
        assert told["server"].startswith(names[engine])
        found = told["database_schema"]
        return found["version"], found["known"], found["state"]

    version, newest, state = schema()
    assert (version, state) == (0, "missing")
    if engine == "redis":
        server = servers[engine]
        assert isinstance(server, RedisServer)
        with server.client() as client:
            assert list(client.scan_iter(match=f"*{place.prefix}*")) == []
    else:
        assert place.tables() == set()
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    assert terminal("migrate", "--url", place.url).code == 0
    assert schema() == (newest, newest, "current")


@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_migrating_a_server_needs_no_key_but_compares_one_that_is_given(
    terminal: Terminal, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert terminal("migrate", "--url", place.url).code == 0
    enqueue = ("enqueue", "--url", place.url, '{"job": "mail"}')
    refused = terminal(*enqueue)
    assert (refused.code, refused.out) == (2, "")
    assert "HOLDFAST_SIGNING_KEY" in refused.err
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    assert terminal(*enqueue).code == 0, "nobody has chosen a key before"
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY[::-1])
    other = terminal("migrate", "--url", place.url)
    assert (other.code, other.out) == (2, "")
    assert "were signed with another key" in other.err
    monkeypatch.delenv("HOLDFAST_SIGNING_KEY")
    assert terminal("migrate", "--url", place.url).code == 0


def write_a_newer_version(place: Place, servers: dict[str, Server]) -> None:
    if place.engine == "redis":
        server = servers[place.engine]
        assert isinstance(server, RedisServer)
        with server.client() as client:
            client.set(f"{{{place.prefix}}}:schema", 999)
    else:
        since = "now()" if place.engine == "postgresql" else "0"
        place.execute(f"INSERT INTO {place.records} (version, applied_at) VALUES (999, {since})")


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mysql", "redis"])
def test_a_newer_schema_is_shown_and_not_migrated(
    terminal: Terminal, place: Place, servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    terminal("migrate", "--url", place.url)
    write_a_newer_version(place, servers)
    answer = terminal("migrate", "--url", place.url)
    assert (answer.code, answer.out) == (4, "")
    assert "999" in answer.err
    told = terminal("backend", "info", place.url)
    assert told.code == 0
    assert "schema     999 is newer than this program's" in told.out


@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_processes_that_migrate_at_once_are_all_content(terminal: Terminal, place: Place, engine: str) -> None:
    # All of them have imported the engine before they start.
    program = (
        "import sys, holdfast.cli.migrate; from holdfast.cli import main\n"
        "print('ready', flush=True); input(); main(sys.argv[1:])"
    )
    several = [
        terminal.start("migrate", "--url", place.url, program=(sys.executable, "-c", program), HOLDFAST_SIGNING_KEY=KEY)
        for _ in range(3)
    ]
    for process in several:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = [ended(process, "begin\n") for process in several]
    assert [answer.code for answer in answers] == [0, 0, 0], answers
    if engine != "redis":
        [(rows, versions)] = place.execute(f"SELECT count(*), count(DISTINCT version) FROM {place.records}")
        assert rows == versions > 0
    run_a_job(place.url)


def durability(terminal: Terminal, url: str) -> str:
    """The reported durability."""
    answer = terminal("backend", "info", url, "--json")
    assert (answer.code, answer.err) == (0, "")
    return str(answer.json["survives"])


@pytest.mark.parametrize(
    ("settings", "setup"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "appendonly yes, appendfsync always"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "appendonly yes, appendfsync everysec"),
        ({"appendonly": "yes", "appendfsync": "no"}, "appendonly yes, appendfsync no"),
        ({"appendonly": "no"}, "appendonly no"),
        ({"appendonly": "yes", "maxmemory-policy": "allkeys-lru"}, "maxmemory-policy allkeys-…"),
        ({"appendonly": "yes", "maxmemory-policy": "volatile-lru"}, "appendonly yes, appendfsync always"),
    ],
)
def test_redis_reports_the_durability_of_its_settings(
    terminal: Terminal, servers: dict[str, Server], settings: dict[str, str], setup: str
) -> None:
    server = server_of(servers, "redis")
    assert isinstance(server, RedisServer)
    with server.client() as client:
        for name, value in {"appendfsync": "always", "maxmemory-policy": "noeviction", **settings}.items():
            client.config_set(name, value)
    assert durability(terminal, server.url) == redis_connections.DURABILITY[setup]


def test_a_redis_that_refuses_info_has_unknown_durability(terminal: Terminal, servers: dict[str, Server]) -> None:
    server = server_of(servers, "redis")
    assert isinstance(server, RedisServer)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "ada", "on", ">pw", "~*", "+@all", "-info", "-config")
    answer = terminal("backend", "info", server.url.replace("//", "//ada:pw@"))
    assert answer.code == 0
    assert "appendonly unknown, appendfsync unknown, maxmemory-policy unknown" in answer.out
    assert redis_connections.DURABILITY["unknown"] in answer.out


@pytest.mark.parametrize(
    ("commit", "setup"),
    [
        ("on", "fsync on, synchronous_commit on"),
        ("local", "fsync on, synchronous_commit on"),
        ("off", "fsync on, synchronous_commit off"),
    ],
)
def test_postgresql_reports_the_durability_of_its_settings(
    terminal: Terminal, servers: dict[str, Server], commit: str, setup: str
) -> None:
    url = f"{server_of(servers, 'postgresql').url}?options=-c%20synchronous_commit%3D{commit}"
    assert durability(terminal, url) == postgres_connections.DURABILITY[setup]


@pytest.mark.parametrize(
    ("flush", "sync", "setup"),
    [
        (1, 1, "innodb_flush_log_at_trx_commit 1"),
        (3, 0, "innodb_flush_log_at_trx_commit 1"),
        (1, 0, "innodb_flush_log_at_trx_commit 1, log_bin on, sync_binlog not 1"),
        (2, 1, "innodb_flush_log_at_trx_commit 2"),
        (0, 1, "innodb_flush_log_at_trx_commit 0"),
    ],
)
def test_mysql_reports_the_durability_of_its_settings(
    terminal: Terminal, servers: dict[str, Server], flush: int, sync: int, setup: str
) -> None:
    server = server_of(servers, "mysql")
    assert isinstance(server, MariadbServer)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = %s, GLOBAL sync_binlog = %s", (flush, sync))
    assert durability(terminal, server.url) == mysql_connections.DURABILITY[setup]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@127.0.0.1:{port}/shop?connect_timeout=2",
        "mysql://ada:hunter2@127.0.0.1:{port}/shop?timeout=0.2",
        "redis://ada:hunter2@127.0.0.1:{port}/0?socket_timeout=0.2",
    ],
    ids=lambda url: url.partition(":")[0],
)
def test_a_server_that_never_answers_is_not_waited_for(terminal: Terminal, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        answer = terminal("backend", "info", url.format(port=silent.getsockname()[1]))
    assert answer.code == 5
    # Facts that do not need the server are shown anyway.
    assert "durable                yes" in answer.out
    assert "server " not in answer.out
    assert "hunter2" not in answer.out + answer.err


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_process_that_waited_for_a_migration_sees_its_tables(place: Place) -> None:
    """Each has looked for the table before, and PostgreSQL caches that it did not exist."""
    namespace = place.prefix.rstrip("_")
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with closing(place.connect()) as holder:
        holder.execute(f"SELECT pg_advisory_lock(hashtext('holdfast {namespace}'))")
        with ThreadPoolExecutor(3) as pool:
            engines = [EngineFactory(Keyring.parse(KEY)).open(place.url)[0] for _ in range(3)]
            done = [pool.submit(engine.create_schema) for engine in engines]
            until(lambda: place.execute(waiting) == [(3,)], "all of them to wait")
            holder.execute("SELECT pg_advisory_unlock_all()")
            for one in done:
                one.result(30)
    for engine in engines:
        engine.check()
        engine.close()
