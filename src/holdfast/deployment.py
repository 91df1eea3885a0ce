"""`Deployment`: the backends of an application by name, the backend of each queue, and how engines are opened."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
from msgspec import Struct

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import Project, Settings, find_project, load_settings
from holdfast.config.declared import undeclared
from holdfast.config.keys import DEFAULT_BACKEND
from holdfast.errors import BackendError, ConfigError, DefinitionError
from holdfast.queues.addresses import check_room, check_url, embedded_file, kind_of, redacted, sqlite_path
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.engines.kinds import Home
from holdfast.queues.envelope import JobDefaults
from holdfast.queues.keyfiles import KEY_FACTS, find_keyring
from holdfast.queues.opening import EngineFactory, Mode
from holdfast.queues.signing import Keyring, Signer, Unsigned
from holdfast.spelling import did_you_mean
from holdfast.state.facts import Facts

if TYPE_CHECKING:
    from holdfast.queues.engines.tables.migrations import Migration

DEFAULT: Final = DEFAULT_BACKEND


class Opened(NamedTuple):
    """An open engine, and the keys that sign its messages."""

    engine: Engine
    signer: Signer


def job_defaults(settings: Settings) -> JobDefaults:
    """The settings that are fixed when a job is enqueued."""
    return JobDefaults(
        max_retries=settings.max_retries,
        timeout_s=settings.timeout,
        idempotency_ttl_s=settings.idempotency_ttl,
        queue=settings.default_queue,
    )


class Deployment(Struct, frozen=True, kw_only=True):
    """The backends of an application by name, and the settings they are opened with.

    Queues without a route are in the backend named `default`.
    """

    project: Project
    settings: Settings
    urls: Mapping[str, str]
    routes: Mapping[str, str]
    signing_key: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        for name, url in self.urls.items():
            if name != DEFAULT:  # the default one is checked when it is opened
                _check_backend(name, url)
        for queue, name in self.routes.items():
            self.url(name, f"the route of queue '{queue}': ")
        self.settings.dead_letters.check(self.routes, DEFAULT)

    def __repr__(self) -> str:
        return f"Deployment({', '.join(map(self.location, self.urls))})"  # URLs and keys are secrets

    @classmethod
    def configured(
        cls,
        url: str | None = None,
        *,
        backends: Mapping[str, str] | None = None,
        routes: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        directory: str | Path | None = None,
        **rest: Any,
    ) -> Self:
        """The deployment that the project's settings describe. Arguments override the settings."""
        project = find_project(Path(directory) if directory is not None else None)
        if settings is None:
            settings = load_settings(project)
        others = settings.backends if backends is None else backends
        if DEFAULT in others:
            raise ConfigError(f"the backend named {DEFAULT} is set with url; remove {DEFAULT} from backends")
        return cls(
            project=project,
            settings=settings,
            urls={DEFAULT: url or settings.url or project.default_url, **others},
            routes=settings.routes if routes is None else routes,
            **rest,
        )

    def at(self, place: str) -> Self:
        """A deployment with one backend for all queues: the one at this URL or with this name."""
        url = self.url(place) if place in self.urls or (":" not in place and len(self.urls) > 1) else place
        return msgspec.structs.replace(self, urls={DEFAULT: url}, routes={})

    def with_default(self, url: str) -> Self:
        """The same deployment with its default backend at this URL."""
        return msgspec.structs.replace(self, urls={**self.urls, DEFAULT: url})

    def url(self, name: str = DEFAULT, where: str = "") -> str:
        """The URL of a backend; an error says `where` it was named."""
        if name not in self.urls:
            hint = did_you_mean(name, self.urls) or f"known backends: {', '.join(self.urls)}"
            raise ConfigError(f"{where}there is no backend '{name}'; {hint}")
        return self.urls[name]

    def location(self, name: str = DEFAULT) -> str:
        """The location of a backend as shown to users, without its password."""
        url = self.url(name)
        return str(sqlite_path(url)) if url.startswith("sqlite:") else redacted(url)

    def session_directory(self, name: str = DEFAULT) -> Path | None:
        """The directory in which workers of this backend notice each other's deaths; None if there can be only one."""
        url = self.url(name)
        if kind_of(url).home is Home.PROCESS:
            return None
        if self.settings.session_dir:
            return Path(self.settings.session_dir).absolute()
        file = embedded_file(url)
        return self.project.data_directory / "sessions" if file is None else file.with_name(f"{file.name}-sessions")

    @property
    def others(self) -> list[str]:
        """The names of the backends except the default one."""
        return [name for name in self.urls if name != DEFAULT]

    def name_for(self, queue: str | None) -> str:
        """The backend that a queue is in; None stands for the default queue."""
        return self.routes.get(queue or self.settings.default_queue, DEFAULT)

    def name_for_all(self, queues: Iterable[str | None]) -> str:
        """The one backend that all of these queues are in."""
        names = {self.name_for(queue): queue or self.settings.default_queue for queue in queues}
        if len(names) > 1:
            (one, queue), (other, another), *_ = names.items()
            raise ConfigError(
                f"queue '{queue}' is in backend '{one}' and queue '{another}' in backend '{other}'; "
                "handle the queues of each backend separately"
            )
        return next(iter(names), DEFAULT)

    def check_declared(self, queue: str) -> None:
        """Raise if queues are declared and this one is not."""
        if problem := undeclared(queue, self.settings.queues):
            raise DefinitionError(problem)

    def name_for_job(self, job_id: str) -> str:
        """The backend that has this job, or the default one if no backend has it."""
        for name in self.urls if len(self.urls) > 1 else ():
            with suppress(BackendError), self.open(name, Mode.READ).engine as engine:
                info = engine.describe()
                if info.schema in (None, info.known_schema) and engine.get(job_id) is not None:
                    return name
        return DEFAULT

    def open(self, name: str = DEFAULT, mode: Mode = Mode.WRITE) -> Opened:
        """Open the engine of a backend."""
        url = self.url(name)
        if mode is Mode.READ:
            return Opened(*self._factory(Unsigned()).open(url, mode))
        if url != self.project.default_url and (file := embedded_file(url)) is not None:
            check_room(file)
        engine, signer = self._factory(self._signer()).open(url, mode)
        try:
            if mode is Mode.MIGRATE:
                engine.create_schema()
            if url == self.project.default_url and self.project.directory is not None:
                _ignore_in_version_control(self.project.data_directory)
            if isinstance(signer, Keyring):
                _compare_keys(engine, signer, self.settings.installation)
        except BaseException:
            engine.close()
            raise
        return Opened(engine, signer)

    def migrations(self, name: str = DEFAULT) -> "Sequence[Migration]":
        """The steps that create the schema of a backend, as SQL. Nothing is opened; no key or driver is needed."""
        return self._factory(Unsigned()).migrations(self.url(name))

    def _factory(self, signer: Signer | None) -> EngineFactory:
        settings = self.settings
        return EngineFactory(
            signer,
            policy=LeasePolicy(
                lease_s=settings.lease,
                crash_limit=settings.crash_limit,
                retain_completed_s=settings.retain_completed,
                retain_dead_s=settings.retain_dead or None,
            ),
            clock=self.clock,
            defaults=job_defaults(settings),
            table_prefix=settings.table_prefix,
            installation=settings.installation,
        )

    def _signer(self) -> Signer | None:
        settings = self.settings
        if not settings.verify:
            return Unsigned()
        return find_keyring(
            self.signing_key, installation=settings.installation, configured_file=settings.signing_key_file
        )


def _check_backend(name: str, url: str) -> None:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"{name!r} is not a valid backend name; use letters, digits, dashes and underscores")
    try:
        check_url(url)
    except ConfigError as problem:
        raise ConfigError(f"backend '{name}': {problem}") from None


def _ignore_in_version_control(directory: Path) -> None:
    """Create a .gitignore: jobs, and above all the signing key, do not belong in version control."""
    ignore = directory / ".gitignore"
    if directory.is_dir() and not ignore.exists():
        with suppress(OSError):
            ignore.write_text("*\n", encoding="ascii")


def _compare_keys(engine: Engine, keyring: Keyring, installation: str) -> None:
    """Refuse keys that can verify none of the stored jobs; otherwise record the key that signs now."""
    facts = Facts(engine.state)
    known = facts.of(KEY_FACTS)
    ours = {key.fingerprint for key in keyring.keys}
    if known and not known & ours and engine.counts():
        raise ConfigError(
            f"the stored jobs were signed with another key, or for an installation other than '{installation}', so all "
            "of them would be rejected; also pass the old key, after the new one (HOLDFAST_SIGNING_KEY=new,old), or "
            "set the installation that the jobs were signed for (HOLDFAST_INSTALLATION)"
        )
    signing = keyring.keys[0].fingerprint
    if signing not in known:
        facts.add(KEY_FACTS, [signing])
