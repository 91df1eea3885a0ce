"""The servers for `engines.py`, started for one run on free ports, with their default settings.

`tests/servers` starts them; the settings that make tests fast, mainly without fsync, are reverted here.
"""

import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql
from pymysql.constants import CLIENT

from holdfast.queues.engines.mysql import connections as mysql_connections

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.servers.mysql import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.running import Missing as Missing, Server

POSTGRES: Final = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB", "max_connections": "100"}
MARIADB: Final = {
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-flush-method": "O_DIRECT",
    "innodb-file-per-table": "1",
    "innodb-buffer-pool-size": "128M",
    "innodb-log-file-size": "96M",
    "max-connections": "151",
}
REDIS: Final = {"appendonly": "yes", "appendfsync": "everysec"}

POSTGRES_SETTINGS: Final = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers")
MARIADB_SETTINGS: Final = (
    "innodb_flush_log_at_trx_commit",
    "innodb_flush_method",
    "innodb_doublewrite",
    "log_bin",
    "innodb_buffer_pool_size",
)
REDIS_SETTINGS: Final = ("appendonly", "appendfsync", "save", "maxmemory-policy")


class Place(ABC):
    """A server, and what the benchmarks do there without the engine."""

    def __init__(self, server: Server) -> None:
        self.server = server.start()

    @property
    @abstractmethod
    def url(self) -> str:
        """Its URL."""

    @abstractmethod
    def facts(self) -> str:
        """The server and its settings."""

    @abstractmethod
    def empty(self) -> None:
        """Delete all data."""

    @abstractmethod
    def settle_down(self) -> None:
        """Do the background work of the server after many jobs were enqueued."""

    @abstractmethod
    def has_leases(self) -> bool:
        """Whether a worker holds one of our jobs; a cheap query."""

    def close(self) -> None:
        self.server.close()


class PostgresPlace(Place):
    def __init__(self) -> None:
        self._postgres = PostgresServer(settings=POSTGRES)
        super().__init__(self._postgres)
        self.connection = psycopg.connect(self.url, autocommit=True)
        # For the query of leases: a table that was just filled has no statistics.
        self.connection.execute("SET enable_seqscan = off")

    @property
    def url(self) -> str:
        return self._postgres.url

    def facts(self) -> str:
        settings = ", ".join(f"{name}={self._one(f'SHOW {name}')}" for name in POSTGRES_SETTINGS)
        return f"PostgreSQL {self._one('SHOW server_version')}: {settings}"

    def empty(self) -> None:
        for statement in (
            "DROP SCHEMA IF EXISTS holdfast CASCADE",
            "DROP SCHEMA public CASCADE",
            "CREATE SCHEMA public",
        ):
            self.connection.execute(statement.encode())

    def settle_down(self) -> None:
        self.connection.execute("VACUUM ANALYZE")
        self.connection.execute("CHECKPOINT")

    def has_leases(self) -> bool:
        return self._one("SELECT EXISTS (SELECT 1 FROM holdfast.open_jobs WHERE state = 2)") is True

    def _one(self, query: str) -> object:
        row = self.connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        self.connection.close()
        super().close()


class MariadbPlace(Place):
    def __init__(self) -> None:
        self._mariadb = MariadbServer(settings=MARIADB)
        super().__init__(self._mariadb)
        self._connection = self._mariadb.connect("holdfast")

    @property
    def url(self) -> str:
        return self._mariadb.url

    def facts(self) -> str:
        [(version, *values)] = self._ask(f"SELECT @@version, {', '.join(f'@@{name}' for name in MARIADB_SETTINGS)}")
        settings = ", ".join(f"{name}={value}" for name, value in zip(MARIADB_SETTINGS, values, strict=True))
        return f"MariaDB {version}: {settings}"

    def empty(self) -> None:
        self._ask("DROP DATABASE holdfast")
        self._ask("CREATE DATABASE holdfast")
        self._ask("USE holdfast")

    def settle_down(self) -> None:
        self._ask("ANALYZE TABLE holdfast_jobs")

    def has_leases(self) -> bool:
        return bool(self._ask("SELECT 1 FROM holdfast_jobs FORCE INDEX (by_turn) WHERE lane = 10 LIMIT 1"))

    def connect(self) -> Any:
        """A bare connection, set up as the engine sets up its own."""
        connection: Any = pymysql.connect(
            host="127.0.0.1",
            port=self.server.port,
            user="root",
            database="holdfast",
            charset="utf8mb4",
            collation="utf8mb4_bin",
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
        )
        for statement in mysql_connections.PREPARE:
            connection.query(statement)
        return connection

    def _ask(self, statement: str) -> tuple[tuple[Any, ...], ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def close(self) -> None:
        self._connection.close()
        super().close()


class RedisPlace(Place):
    def __init__(self) -> None:
        self._redis = RedisServer(settings=REDIS)
        super().__init__(self._redis)
        self.client: Any = self._redis.client()

    @property
    def url(self) -> str:
        return self._redis.url

    def facts(self) -> str:
        info = self.client.info("server")
        version = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
        settings = self.client.config_get(*REDIS_SETTINGS)
        return f"{version}: {', '.join(f'{name} {settings[name] or chr(34) * 2}' for name in REDIS_SETTINGS)}"

    def empty(self) -> None:
        """Also rewrite the append-only file, so that no turn pays for the previous ones."""
        self.client.flushall()
        self.client.bgrewriteaof()
        while any(self.client.info("persistence")[f"aof_rewrite_{what}"] for what in ("in_progress", "scheduled")):
            time.sleep(0.02)

    def settle_down(self) -> None:
        pass

    def has_leases(self) -> bool:
        return bool(self.client.zcard("{holdfast_}:leased:default"))

    def close(self) -> None:
        self.client.close()
        super().close()
