"""A description of each engine, one row per engine, that can be read without opening it or importing its driver."""

from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import Any, Final, NamedTuple


class Home(Enum):
    """Where an engine stores its jobs."""

    FILE = "file"
    SERVER = "server"
    PROCESS = "process"


class EngineKind(NamedTuple):
    """One engine: its URL scheme, its name for people, and where its code is.

    `package` contains the driver, and `extra` is the extra of Holdfast that installs it. An engine on a server must be
    given a signing key; all others generate their own.
    """

    scheme: str
    title: str
    home: Home
    aliases: tuple[str, ...] = ()
    engine: str = ""
    migrations: str = ""
    migrates_at_once: bool = True
    extra: str = ""
    package: str = ""
    runs_inline: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is part of Holdfast."""
        return bool(self.engine)

    @property
    def needs_key(self) -> bool:
        """Whether a signing key must be configured, because other machines need the same one."""
        return self.home is Home.SERVER

    def load(self, name: str) -> Any:
        """An object of the engine's package, by `module:name`. Imported when it is first used."""
        module, _, attribute = name.partition(":")
        return getattr(import_module(f"{__package__}.{module}"), attribute)


KINDS: Final[Mapping[str, EngineKind]] = {
    kind.scheme: kind
    for kind in (
        EngineKind(
            scheme="sqlite",
            title="SQLite",
            home=Home.FILE,
            engine="sqlite.engine:SqliteEngine",
            migrations="sqlite.migrations:migrations",
        ),
        EngineKind(
            scheme="postgresql",
            title="PostgreSQL",
            home=Home.SERVER,
            aliases=("postgres",),
            engine="postgres.engine:PostgresEngine",
            migrations="postgres.migrations:migrations",
            extra="postgres",
            package="psycopg[binary]>=3.2.11",
        ),
        EngineKind(
            scheme="mysql",
            title="MySQL",
            home=Home.SERVER,
            aliases=("mariadb",),
            engine="mysql.engine:MysqlEngine",
            migrations="mysql.migrations:migrations",
            migrates_at_once=False,
            extra="mysql",
            package="PyMySQL",
        ),
        EngineKind(
            scheme="redis",
            title="Redis",
            home=Home.SERVER,
            aliases=("rediss", "unix"),
            engine="redis.engine:RedisEngine",
            extra="redis",
            package="redis[hiredis]",
        ),
        EngineKind(scheme="memory", title="memory", home=Home.PROCESS, engine="memory.engine:MemoryEngine"),
        EngineKind(scheme="sync", title="sync", home=Home.PROCESS, engine="memory.sync:SyncEngine", runs_inline=True),
    )
}

ALIASES: Final[Mapping[str, str]] = {alias: kind.scheme for kind in KINDS.values() for alias in kind.aliases}
