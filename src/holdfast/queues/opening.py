"""`BackendFactory`: a URL becomes an open engine."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import unquote

from holdfast import plugins
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ConfigError
from holdfast.queues.addresses import add_scheme, engine_of, redacted, sqlite_path, sqlite_prefix
from holdfast.queues.contract import DEFAULT_POLICY, Engine, LeasePolicy
from holdfast.queues.envelope import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT_S, EnvelopeFactory
from holdfast.queues.keyfiles import KEY_FACTS, KEY_FILE_VARIABLE, KEY_VARIABLE, key_path, keyring_beside
from holdfast.queues.signing import Keyring, Signer, SigningKey, Unsigned
from holdfast.values import DEFAULT_INSTALLATION

if TYPE_CHECKING:
    from holdfast.queues.engines.memory.sync import SyncBackend
    from holdfast.queues.engines.tables.migrations import Migration

_DRIVERS: Final = {
    "postgresql": ("PostgreSQL", "psycopg[binary,pool]>=3.2.11"),
    "mysql": ("MySQL", "PyMySQL"),
    "redis": ("Redis", "redis[hiredis]"),
}


class BackendFactory:
    """Opens engines. Without a signer of its own it makes a key where one may be made: beside an embedded file.

    If it `only_looks`, an embedded file that is not there is not made, and is empty to whoever asks.
    """

    def __init__(
        self,
        signer: Signer | None = None,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        max_retries: int = DEFAULT_MAX_RETRIES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        table_prefix: str = "holdfast_",
        installation: str = DEFAULT_INSTALLATION,
        only_looks: bool = False,
    ) -> None:
        self._signer = signer
        self._policy = policy
        self._clock = clock
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._prefix = table_prefix
        self._installation = installation
        self._only_looks = only_looks

    def open(self, url: str, *, may_share: bool = False) -> tuple[Engine, Signer]:
        """The engine of a URL, and the keys its messages are signed with.

        `may_share`: the place may belong to others so far; the caller is about to ask the engine to move in, and to
        sign nothing, so that no key of a server's has to be known.
        """
        match engine_of(url):
            case "sqlite":
                return self._open_sqlite(url, may_share=may_share)
            case "memory":
                from holdfast.queues.engines.memory.jobs import MemoryBackend

                signer = self._signer or Keyring([SigningKey.generate()])
                return MemoryBackend(self._envelopes(signer), policy=self._policy, clock=self._clock), signer
            case "sync":
                signer = self._signer or Keyring([SigningKey.generate()])
                return self._open_sync(signer), signer
            case engine:
                return self._open_server(engine, url, signs=not may_share)

    def migrations(self, url: str) -> "Sequence[Migration]":
        """The steps that make the schema a URL's engine needs, as SQL. Nothing is opened; no key or driver needed."""
        match engine_of(url):
            case "sqlite":
                from holdfast.queues.engines.sqlite.connections import migrations

                sqlite_path(url)
                asked = sqlite_prefix(url)
            case "postgresql":
                from holdfast.queues.engines.postgres.migrations import migrations

                _, asked = _without_prefix(url)
            case "mysql":
                from holdfast.queues.engines.mysql.migrations import migrations

                _, asked = _without_prefix(url)
            case engine:
                raise ConfigError(
                    f"{engine} has no tables, so there is no SQL to print; name a URL that begins with sqlite:, "
                    "postgresql: or mysql:"
                )
        return migrations(self._prefix if asked is None else asked)

    def _open_sqlite(self, url: str, *, may_share: bool) -> tuple[Engine, Signer]:
        # Imported here, like every driver: only whoever uses the engine pays for it.
        from holdfast.queues.engines.sqlite.jobs import SqliteBackend

        path, asked = sqlite_path(url), sqlite_prefix(url)
        prefix = self._prefix if asked is None else asked

        def opened(signer: Signer) -> SqliteBackend:
            return SqliteBackend(
                path,
                self._envelopes(signer),
                policy=self._policy,
                clock=self._clock,
                prefix=prefix,
                only_looks=self._only_looks,
            )

        if self._signer is None and not may_share and path.exists() and not key_path(path).exists():
            with opened(Unsigned()) as keyless:
                _refuse_a_lost_key(keyless, path)
        signer = self._signer or keyring_beside(path, installation=self._installation)
        return opened(signer), signer

    def _open_server(self, engine: str, url: str, *, signs: bool) -> tuple[Engine, Signer]:
        make = _server_engine(engine)
        signer = self._shared_signer(url) if signs else self._signer or Unsigned()
        bare, asked = _without_prefix(url)
        prefix = self._prefix if asked is None else asked
        return make(bare, self._envelopes(signer), policy=self._policy, clock=self._clock, prefix=prefix), signer

    def _shared_signer(self, url: str) -> Signer:
        """The key of a networked engine, which all who use it must have: none is made here."""
        if self._signer is None:
            raise ConfigError(missing_key(url))
        return self._signer

    def _open_sync(self, signer: Signer) -> "SyncBackend":
        from holdfast.queues.engines.memory.sync import SyncBackend

        return SyncBackend(signer, policy=self._policy, max_retries=self._max_retries, timeout_s=self._timeout_s)

    def _envelopes(self, signer: Signer) -> EnvelopeFactory:
        return EnvelopeFactory(signer, clock=self._clock, max_retries=self._max_retries, timeout_s=self._timeout_s)


class EngineMaker(Protocol):
    """What makes an engine of a URL: the class of one that is on a server, or anything that is called likewise.

    The engine connects when it is first asked something. Its tables, or keys, begin with the prefix.
    """

    def __call__(
        self, address: str, envelopes: EnvelopeFactory, /, *, policy: LeasePolicy, clock: Clock, prefix: str
    ) -> Engine: ...


_registered: dict[str, tuple[EngineMaker | str, Path | None]] = {}


def register_engine(scheme: str, maker: EngineMaker | str, directory: Path | None = None) -> None:
    """Let URLs that begin with this scheme mean an engine of somebody else's.

    `maker` makes it, or says where what makes it is, as `MODULE:NAME`: looked up when such a URL is opened, in
    `directory`, too. Packages publish theirs as an entry point of the group `holdfast.engines` instead.
    """
    add_scheme(scheme)
    _registered[scheme] = maker, directory


def _engine_of_others(scheme: str) -> EngineMaker:
    maker, directory = _registered.get(scheme, (scheme, None))
    found = plugins.load(plugins.ENGINES, maker, directory) if isinstance(maker, str) else maker
    if not callable(found):
        raise ConfigError(f"{found!r} makes no engines for {scheme}: URLs; name a class, or a function")
    return cast("EngineMaker", found)


def _server_engine(engine: str) -> EngineMaker:
    if engine not in _DRIVERS:
        return _engine_of_others(engine)
    with _driver(engine):
        match engine:
            case "postgresql":
                from holdfast.queues.engines.postgres.jobs import PostgresBackend

                return PostgresBackend
            case "mysql":
                from holdfast.queues.engines.mysql.jobs import MysqlBackend

                return MysqlBackend
            case _:
                from holdfast.queues.engines.redis.jobs import RedisBackend

                return RedisBackend


def check_driver(url: str) -> None:
    """Refuse a URL whose engine needs a driver that is not installed; nothing is opened."""
    if (engine := engine_of(url)) in _DRIVERS:
        _server_engine(engine)


@contextmanager
def _driver(engine: str) -> Generator[None]:
    """Around the import of an engine's files: a driver that is missing is named with what installs it."""
    try:
        yield
    except ModuleNotFoundError as problem:
        name, package = _DRIVERS[engine]
        raise ConfigError(f"{name} needs the package {problem.name}: pip install '{package}'") from problem


def missing_key(url: str) -> str:
    """What to say of a server whose key is not known here."""
    return (
        f"{redacted(url)!r} is shared with other machines, and all of them need the same signing key: give it in "
        f"{KEY_VARIABLE}, or name a file that holds it in {KEY_FILE_VARIABLE} or as signing-key-file in the "
        "configuration; make one with  python -c 'import secrets; print(secrets.token_hex(32))'"
    )


def _refuse_a_lost_key(engine: Engine, database: Path) -> None:
    """A new key beside jobs signed with a lost one would make every one of them a forgery."""
    if engine.facts(KEY_FACTS):
        raise ConfigError(
            f"{key_path(database)} is missing, and the jobs in {database} were signed with it: restore it, or give the "
            f"key in {KEY_VARIABLE} or {KEY_FILE_VARIABLE}; if it is lost for good, move the database away and start "
            "with a new one"
        )


def _without_prefix(url: str) -> tuple[str, str | None]:
    """The URL as its driver is to have it, and the prefix it asks for; all other options are the driver's."""
    # Cut out and not put together again: drivers differ in what `+` and an empty host mean.
    address, _, query = url.partition("?")
    options = query.split("&")
    asked = [unquote(option.removeprefix("prefix=")) for option in options if option.startswith("prefix=")]
    rest = "&".join(option for option in options if not option.startswith("prefix="))
    return f"{address}?{rest}" if rest else address, asked[-1] if asked else None
