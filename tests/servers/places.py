"""Where a test stores its jobs: in its own file, or under its own prefix on a server that tests share."""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from ..engines.redis_site import check_indexes
from ..faults.processes import quick_directory
from .mysql import MariadbServer
from .postgres import PostgresServer
from .redis import RedisServer
from .running import Server, started

SERVERS: dict[str, Callable[[], Server]] = {
    "postgres": PostgresServer,
    "mysql": MariadbServer,
    "redis": RedisServer,
}

# For tests that involve the engine. Tests that concern only the worker and its children use a file: the engine makes no
# difference there, and running them on every engine would take four times as long.
every_engine = pytest.mark.parametrize("place", ["sqlite", *SERVERS], indirect=True)


def every_engine_with(name: str, first: object, *others: object) -> pytest.MarkDecorator:
    """The same for a test with another parameter: all engines with its first value, a file with the others."""
    rows = [("sqlite", value) for value in (first, *others)] + [(engine, first) for engine in SERVERS]
    return pytest.mark.parametrize(("place", name), rows, indirect=["place"])


_numbers = count(1)


class Place(NamedTuple):
    """A directory for everything except jobs, and the URL of the jobs: a file there, or a server."""

    directory: Path
    server: Server | None
    prefix: str

    @property
    def database(self) -> Path:
        """The file with the jobs, if they are in a file."""
        assert self.server is None
        return self.directory / "jobs.db"

    @property
    def url(self) -> str:
        if self.server is None:
            return f"sqlite:///{self.database}"
        return f"{self.server.url}?prefix={self.prefix}"

    def check(self) -> None:
        """Check the stored data directly, without the engine."""
        if self.server is None:
            with sqlite3.connect(self.database) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
        elif isinstance(self.server, RedisServer):
            with self.server.client() as client:
                check_indexes(client, self.prefix)


class Servers:
    """The servers that the tests of this process share: each is started when it is first needed."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def running(self, engine: str) -> Server:
        if engine not in self._running:
            self._running[engine] = started(SERVERS[engine])
        return self._running[engine]

    def close(self) -> None:
        for server in self._running.values():
            server.close()


@contextmanager
def place_on(server: Server | None) -> Generator[Place]:
    """A new place: in a file if there is no server."""
    with quick_directory() as directory:
        yield Place(directory, server, f"place{next(_numbers)}_" if server else "holdfast_")
