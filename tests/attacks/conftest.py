"""A `Site` on each engine: an application with two handlers, over a store that can be damaged."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast

from ..faults.processes import quick_directory
from ..servers.mysql import MariadbServer
from ..servers.places import Servers
from ..servers.redis import RedisServer
from ..surface.terminal import Terminal
from .cases import KEY
from .damage_mysql import MysqlStore
from .damage_postgres import PostgresStore
from .damage_redis import RedisStore
from .damage_sqlite import SqliteStore
from .site import Site, application

PREFIX = "attacked_"


class Opened(NamedTuple):
    """An application, the raw store below it, and the ids of the jobs it has run."""

    hf: Holdfast
    store: Any
    ran: list[str]

    def close(self) -> None:
        self.hf.close()
        self.store.close()


class Applications:
    """What is opened once for all cases: on each server, an application and its store."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._opened: dict[str, Opened] = {}

    def on(self, engine: str) -> Opened:
        if engine not in self._opened:
            self._opened[engine] = self._open(engine)
        opened = self._opened[engine]
        opened.store.clear()
        opened.ran.clear()
        return opened

    def _open(self, engine: str) -> Opened:
        server = self._servers.running(engine)
        hf, ran = application(f"{server.url}?prefix={PREFIX}")
        hf.create_schema()
        match server:
            case MariadbServer():
                return Opened(hf, MysqlStore(server.connect("holdfast"), PREFIX), ran)
            case RedisServer():
                return Opened(hf, RedisStore(server.client(), PREFIX), ran)
            case _:
                return Opened(hf, PostgresStore(server.url, PREFIX.rstrip("_")), ran)

    def close(self) -> None:
        for opened in self._opened.values():
            opened.close()


@pytest.fixture(scope="session")
def applications(servers: Servers) -> Iterator[Applications]:
    applications = Applications(servers)
    yield applications
    applications.close()


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """An empty SQLite file, prepared once."""
    with quick_directory() as directory:
        file = directory / "jobs.db"
        with Holdfast(f"sqlite:///{file}", signing_key=KEY) as hf:
            hf.create_schema()
        yield file


@pytest.fixture
def opened(engine: str, applications: Applications, template: Path) -> Iterator[Opened]:
    if engine != "sqlite":
        yield applications.on(engine)
        return
    with quick_directory() as directory:
        file = directory / "jobs.db"
        copyfile(template, file)
        hf, ran = application(f"sqlite:///{file}")
        opened = Opened(hf, SqliteStore(file), ran)
        yield opened
        opened.close()


@pytest.fixture
def site(opened: Opened) -> Site:
    return Site(opened.hf, opened.store, opened.ran)


@pytest.fixture
def terminal(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    """The command line, which finds the same store by its variables."""
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("HOLDFAST_URL", opened.hf.deployment.url())
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", KEY)
    yield terminal
    terminal.close()
