"""`EngineFactory`: a URL becomes an open engine."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from holdfast import plugins
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ConfigError
from holdfast.queues.addresses import add_scheme, kind_of, redacted, sqlite_path, sqlite_prefix, without_option
from holdfast.queues.contract import DEFAULT_POLICY, Engine, LeasePolicy
from holdfast.queues.engines.kinds import KINDS, EngineKind, Home
from holdfast.queues.envelope import USUAL_DEFAULTS, EnvelopeFactory, JobDefaults
from holdfast.queues.keyfiles import KEY_FACTS, KEY_FILE_VARIABLE, KEY_VARIABLE, key_path, keyring_next_to
from holdfast.queues.signing import Keyring, Signer, SigningKey, Unsigned
from holdfast.values import DEFAULT_INSTALLATION

if TYPE_CHECKING:
    from holdfast.queues.engines.tables.migrations import Migration


class Mode(Enum):
    """What an engine is opened for.

    `READ`: to read and manage existing jobs. It needs no signing key and creates nothing; a missing embedded file
    counts as empty. `WRITE`: to enqueue or run jobs, which are signed. `MIGRATE`: to create or update the schema, even
    in a database that other programs use; on a server it needs no signing key.
    """

    READ = "read"
    WRITE = "write"
    MIGRATE = "migrate"


class EngineFactory:
    """Opens engines. Without a signer, it creates a signing key next to an embedded file."""

    def __init__(
        self,
        signer: Signer | None = None,
        *,
        policy: LeasePolicy = DEFAULT_POLICY,
        clock: Clock = SYSTEM_CLOCK,
        defaults: JobDefaults = USUAL_DEFAULTS,
        table_prefix: str = "holdfast_",
        installation: str = DEFAULT_INSTALLATION,
    ) -> None:
        self._signer = signer
        self._policy = policy
        self._clock = clock
        self._defaults = defaults
        self._prefix = table_prefix
        self._installation = installation

    def open(self, url: str, mode: Mode = Mode.WRITE) -> tuple[Engine, Signer]:
        """The engine of a URL, and the keys that sign its messages."""
        kind = kind_of(url)
        match kind.home:
            case Home.FILE:
                return self._open_file(url, kind, mode)
            case Home.PROCESS:
                signer = self._signer or Keyring([SigningKey.generate()])
                return self._open_in_process(kind, signer), signer
            case Home.SERVER:
                return self._open_server(kind, url, mode)

    def migrations(self, url: str) -> "Sequence[Migration]":
        """The steps that create the schema of a URL's engine, as SQL. Needs no connection, key or driver."""
        kind = kind_of(url)
        if not kind.migrations:
            known = [f"{one.scheme}:" for one in KINDS.values() if one.migrations]
            raise ConfigError(
                f"{kind.scheme} has no tables, so there is no SQL to print; name a URL that starts with "
                f"{', '.join(known[:-1])} or {known[-1]}"
            )
        if kind.home is Home.FILE:
            sqlite_path(url)
            asked = sqlite_prefix(url)
        else:
            _, asked = without_option(url, "prefix")
        steps: Sequence[Migration] = kind.load(kind.migrations)(self._prefix if asked is None else asked)
        return steps

    def _open_file(self, url: str, kind: EngineKind, mode: Mode) -> tuple[Engine, Signer]:
        path, asked = sqlite_path(url), sqlite_prefix(url)
        prefix = self._prefix if asked is None else asked
        make = kind.load(kind.engine)

        def opened(signer: Signer) -> Engine:
            engine: Engine = make(
                path,
                self._envelopes(signer),
                policy=self._policy,
                clock=self._clock,
                prefix=prefix,
                only_looks=mode is Mode.READ,
            )
            return engine

        if mode is Mode.READ:
            signer = self._signer or Unsigned()
            return opened(signer), signer
        if self._signer is None and mode is Mode.WRITE and path.exists() and not key_path(path).exists():
            with opened(Unsigned()) as keyless:
                _refuse_a_lost_key(keyless, path)
        signer = self._signer or keyring_next_to(path, installation=self._installation)
        return opened(signer), signer

    def _open_server(self, kind: EngineKind, url: str, mode: Mode) -> tuple[Engine, Signer]:
        make = _server_engine(kind)
        signer = self._signer or Unsigned()
        if self._signer is None and mode is Mode.WRITE:
            raise ConfigError(missing_key(url))  # all users of a server need the same key, so none is generated here
        bare, asked = without_option(url, "prefix")
        prefix = self._prefix if asked is None else asked
        return make(bare, self._envelopes(signer), policy=self._policy, clock=self._clock, prefix=prefix), signer

    def _open_in_process(self, kind: EngineKind, signer: Signer) -> Engine:
        make = kind.load(kind.engine)
        engine: Engine = (
            make(signer, policy=self._policy, defaults=self._defaults)
            if kind.runs_inline
            else make(self._envelopes(signer), policy=self._policy, clock=self._clock)
        )
        return engine

    def _envelopes(self, signer: Signer) -> EnvelopeFactory:
        return EnvelopeFactory(signer, clock=self._clock, defaults=self._defaults)


class EngineMaker(Protocol):
    """Creates the engine of a URL: the class of an engine on a server, or any callable with its signature.

    The engine connects when it is first used. The names of its tables or keys start with the prefix.
    """

    def __call__(
        self, address: str, envelopes: EnvelopeFactory, /, *, policy: LeasePolicy, clock: Clock, prefix: str
    ) -> Engine: ...


_registered: dict[str, tuple[EngineMaker | str, Path | None]] = {}


def register_engine(scheme: str, maker: EngineMaker | str, directory: Path | None = None) -> None:
    """Register a third-party engine for URLs that start with this scheme.

    `maker` creates the engine, or is its location as `MODULE:NAME`, which is imported when such a URL is opened;
    `directory` is also searched. Packages publish their engines as entry points of the group `holdfast.engines`.
    """
    add_scheme(scheme)
    _registered[scheme] = maker, directory


def _third_party_engine(scheme: str) -> EngineMaker:
    maker, directory = _registered.get(scheme, (scheme, None))
    found = plugins.load(plugins.ENGINES, maker, directory) if isinstance(maker, str) else maker
    if not callable(found):
        raise ConfigError(f"{found!r} cannot create engines for {scheme}: URLs; name a class or a function")
    return cast("EngineMaker", found)


def _server_engine(kind: EngineKind) -> EngineMaker:
    if not kind.is_ours:
        return _third_party_engine(kind.scheme)
    try:
        return cast("EngineMaker", kind.load(kind.engine))
    except ModuleNotFoundError as problem:
        raise ConfigError(f"{kind.title} needs the package {problem.name}: pip install '{kind.package}'") from problem


def check_driver(url: str) -> None:
    """Raise if the driver of a URL's engine is not installed; nothing is opened."""
    if (kind := kind_of(url)).package:
        _server_engine(kind)


def check_plugin(kind: EngineKind, directory: Path | None) -> None:
    """Raise if the module of a third-party engine cannot be found; nothing is imported."""
    maker, registered_in = _registered.get(kind.scheme, (kind.scheme, None))
    if isinstance(maker, str):
        plugins.check(plugins.ENGINES, maker, registered_in or directory)


def missing_key(url: str) -> str:
    """The message for a server without a signing key here."""
    return (
        f"{redacted(url)!r} is shared with other machines, and all of them need the same signing key: set "
        f"{KEY_VARIABLE}, or name a file that contains it in {KEY_FILE_VARIABLE} or as signing-key-file in the "
        "configuration; generate one with  python -c 'import secrets; print(secrets.token_hex(32))'"
    )


def _refuse_a_lost_key(engine: Engine, database: Path) -> None:
    """Raise if the jobs were signed with a key that is missing: with a new one, each of them would look forged."""
    if engine.state.read(KEY_FACTS, limit=1):
        raise ConfigError(
            f"{key_path(database)} is missing, and the jobs in {database} were signed with it: restore it, or set "
            f"{KEY_VARIABLE} or {KEY_FILE_VARIABLE}; if the key is lost, move the database away and start with a new "
            "one"
        )
