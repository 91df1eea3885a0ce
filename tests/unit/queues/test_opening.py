"""A URL becomes an engine, or an error that says how a URL is written and not what its password was."""

import sys
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError
from holdfast.queues.addresses import redacted, sqlite_path
from holdfast.queues.contract import LeasePolicy
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.queues.engines.memory.sync import SyncEngine
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.envelope import JobDefaults
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey, Unsigned

RING = Keyring([SigningKey(b"the key of these tests, 32 bytes", "k1")])


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/shop/jobs.db", "/var/lib/shop/jobs.db"),
        ("sqlite:////var/with%20space/a%23b%3Fc%25.db", "/var/with space/a#b?c%.db"),
        ("sqlite:////var/jobs.db?prefix=shop_", "/var/jobs.db"),
        ("SQLite:////var/Jobs.DB", "/var/Jobs.DB"),
    ],
)
def test_four_slashes_begin_an_absolute_path(url: str, path: str) -> None:
    assert sqlite_path(url) == Path(path)


def test_three_slashes_begin_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path("sqlite:///data/jobs.db") == tmp_path / "data" / "jobs.db"


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sqlite_path("sqlite:///~/jobs.db") == tmp_path / "jobs.db"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqlite://jobs.db", "has two slashes; an sqlite URL has three"),
        ("sqlite://", "does not name a file"),
        ("sqlite:///", "does not name a file"),
        ("sqlite:///:memory:", "loses its jobs: use memory://"),
    ],
)
def test_an_sqlite_url_without_a_file_is_refused_with_advice(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineFactory(RING).open(url)


@pytest.mark.parametrize("url", ["", "jobs.db", "/var/jobs.db", "mongodb://host/db", "sqllite:///x.db"])
def test_a_url_of_no_engine_names_the_known_ones(url: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"does not name an engine: .*sqlite:, postgresql:, mysql:, redis:, memory:, sync:, "
        r"postgres:, mariadb:, rediss:, unix: such as sqlite:///jobs\.db",
    ):
        EngineFactory(RING).open(url)


def test_a_url_that_cannot_be_split_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        EngineFactory(RING).open("postgres://[half/db")


def test_a_database_of_redis_is_a_number() -> None:
    with pytest.raises(ConfigError, match=r"'shop' is not a Redis database, .*\?prefix=shop_"):
        EngineFactory(RING).open("redis://:secret@127.0.0.1:6379/shop?socket_timeout=3")


def test_a_password_that_was_not_escaped_is_not_taken_for_a_host() -> None:
    with pytest.raises(ConfigError, match="escape special characters") as caught:
        EngineFactory(RING).open("postgresql://ada:p@hunter2@127.0.0.1/shop")
    assert "hunter2" not in str(caught.value)


def test_an_unknown_option_of_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'timeout' is not an option of sqlite URLs; known: prefix"):
        EngineFactory(RING).open(f"sqlite:///{tmp_path}/jobs.db?timeout=5")


@pytest.mark.parametrize("prefix", ["", "a b", "x;drop", "1a", "a" * 41])
def test_a_prefix_that_could_not_begin_a_table_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid table prefix"):
        EngineFactory(RING).open(f"sqlite:///{tmp_path}/jobs.db?prefix={prefix}")
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("pg://ada:hunter2@host/db", "pg://ada:…@host/db"),
        ("pg://ada:host@host/db", "pg://ada:…@host/db"),
        ("redis://:hunter2@host", "redis://:…@host"),
        ("pg://ada@host/db", "pg://ada@host/db"),
        ("sqlite:////var/jobs.db", "sqlite:////var/jobs.db"),
        ("pg://host/db?password=hunter2&prefix=a_", "pg://host/db?password=…&prefix=a_"),
        ("pg:///db?sslmode=require&SSLPassword=hunter2", "pg:///db?sslmode=require&SSLPassword=…"),
        ("pg://ada:hunter2@host/db?password=hunter2", "pg://ada:…@host/db?password=…"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("url", ["pg://ada:hunter#2@host/db", "pg://ada:hunter/2@host", "pg://ada:hunter?2@host/db"])
def test_not_even_one_that_should_have_been_escaped(url: str) -> None:
    assert "hunter" not in redacted(url)


def test_an_error_about_a_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineFactory(RING).open("mongodb://ada:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("url", "kind"), [("memory://", MemoryEngine), ("sync://", SyncEngine)])
def test_engines_of_one_process_get_a_key_of_their_own(url: str, kind: type) -> None:
    engine, signer = EngineFactory().open(url)
    _, other = EngineFactory().open(url)
    assert type(engine) is kind
    assert isinstance(signer, Keyring)
    assert signer.kid != other.kid


def test_the_embedded_engine_uses_the_key_next_to_its_file(tmp_path: Path) -> None:
    engine, signer = EngineFactory().open(f"sqlite:///{tmp_path}/jobs.db")
    with engine:
        assert isinstance(engine, SqliteEngine)
        assert isinstance(signer, Keyring)
        assert (tmp_path / "signing.key").exists()
    again, same = EngineFactory().open(f"sqlite:///{tmp_path}/jobs.db")
    with again:
        assert same.kid == signer.kid


@pytest.mark.parametrize("signer", [RING, Unsigned()])
def test_a_signer_that_was_given_is_used_and_no_key_is_made(tmp_path: Path, signer: Keyring | Unsigned) -> None:
    engine, used = EngineFactory(signer).open(f"sqlite:///{tmp_path}/jobs.db")
    with engine:
        assert used is signer
        assert not (tmp_path / "signing.key").exists()


@pytest.mark.parametrize("scheme", ["sqlite", "memory", "sync"])
def test_every_engine_is_given_the_settings(tmp_path: Path, scheme: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if scheme == "sqlite" else f"{scheme}://"
    policy = LeasePolicy(lease_s=7, crash_limit=2)
    clock = ManualClock()
    engine, signer = EngineFactory(
        RING, policy=policy, clock=clock, defaults=JobDefaults(max_retries=8, timeout_s=9.0)
    ).open(url)
    with engine:
        assert engine.policy == policy
        assert scheme == "sync" or engine.clock is clock
        message = signer.open(engine.envelopes.make(JobDefinition(handler="mail")).wire)
        assert (message.max_retries, message.timeout) == (8, 9.0)


def test_the_prefix_of_a_url_wins_over_the_setting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    for given, expected in ((url, "shop_"), (f"{url}?prefix=mine_", "mine_")):
        engine, _ = EngineFactory(RING, table_prefix="shop_").open(given)
        with engine:
            assert isinstance(engine, SqliteEngine)
            assert engine.file.prefix == expected


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("postgresql:///shop?host=/run/postgresql&prefix=shop_", "postgresql:///shop?host=/run/postgresql"),
        ("postgresql://db/shop?prefix=shop_&password=a+b", "postgresql://db/shop?password=a+b"),
        ("postgresql://db/shop?options=-c%20geqo%3Doff", "postgresql://db/shop?options=-c%20geqo%3Doff"),
        ("unix:///run/redis.sock?prefix=shop_", "unix:///run/redis.sock"),
    ],
)
def test_a_driver_is_given_the_rest_of_the_url_as_it_is(monkeypatch: pytest.MonkeyPatch, url: str, bare: str) -> None:
    given: list[str] = []

    def remember(_self: object, address: str, *_: object, **__: object) -> None:
        given.append(address)

    monkeypatch.setattr(PostgresEngine, "__init__", remember)
    monkeypatch.setattr(RedisEngine, "__init__", remember)
    EngineFactory(RING).open(url)
    assert given == [bare]


@pytest.mark.parametrize(
    ("url", "files", "driver", "advice"),
    [
        (
            "postgres://db/shop",
            "postgres",
            "psycopg",
            "PostgreSQL needs the package psycopg: pip install 'psycopg[binary]>=3.2.11'",
        ),
        ("mariadb://db/shop", "mysql", "pymysql", "MySQL needs the package pymysql: pip install 'PyMySQL'"),
        ("rediss://db", "redis", "redis", "Redis needs the package redis: pip install 'redis[hiredis]'"),
    ],
)
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, url: str, files: str, driver: str, advice: str
) -> None:
    # As if nothing of the engine had been imported yet.
    for module in [name for name in sys.modules if name.startswith(f"holdfast.queues.engines.{files}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError) as refusal:
        EngineFactory(RING).open(url)
    assert str(refusal.value) == advice


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "postgresql://db/shop", "mysql://db/shop"])
def test_the_schema_of_a_url_is_to_be_had_without_opening_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, named in ((url, "shop"), (f"{url}?prefix=mine_", "mine")):
        steps = EngineFactory(table_prefix="shop_").migrations(given)
        assert [step.number for step in steps] == list(range(1, len(steps) + 1))
        assert [step.name for step in steps][:1] == ["jobs"]
        for step in steps:
            assert "holdfast_" not in step.sql
            assert "holdfast." not in step.sql
            assert step.sql.endswith(";\n")
            assert named in step.sql.splitlines()[-1 if "postgres" in url else -2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "mysql"])
def test_the_schema_of_an_impossible_prefix_is_not_to_be_had(scheme: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        EngineFactory().migrations(f"{scheme}:///shop?prefix=a;drop")


@pytest.mark.parametrize("url", ["redis://host", "rediss://host", "unix:///run/redis.sock", "memory://", "sync://"])
def test_an_engine_without_tables_has_no_migrations(url: str) -> None:
    with pytest.raises(ConfigError, match=r"(redis|memory|sync) has no tables"):
        EngineFactory().migrations(url)


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("sqlite:///jobs.db?colour=red", "known: prefix$"),
        ("mysql://127.0.0.1:1/shop?colour=red", "known: prefix, connect_timeout"),
        (
            "postgresql://127.0.0.1:1/shop?colour=red",
            "unknown option 'colour'; valid options: prefix, timeout and those of libpq",
        ),
        ("redis://127.0.0.1:1/0?colour=red", "use prefix and the options of redis-py"),
    ],
)
def test_an_unknown_option_of_a_url_is_refused_with_those_that_are_known(url: str, known: str) -> None:
    with pytest.raises(ConfigError, match=known):
        EngineFactory(RING).open(url)
