"""`Holdfast`: wires the layers together and decides nothing."""

import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

import msgspec

from holdfast import __version__, plugins
from holdfast.backends import DEFAULT, Backends, Opened, named
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import Project, Settings, find_project, load_settings
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.definition import check_definition
from holdfast.errors import ConfigError, DefinitionError
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.handlers import (
    COMMAND_KEY,
    CommandHandler,
    FunctionHandler,
    Handler,
    HandlerRegistry,
    JobContext,
    check_command,
)
from holdfast.handlers.dependencies import check_factory
from holdfast.job import ContextJob, Job, JobDecorator, JobOptions, Unknown, check_options
from holdfast.metrics import InMemoryMetrics, MetricsCollector
from holdfast.middleware import Enqueueing, Middleware, around_enqueue, checked, named_middleware
from holdfast.plaintext import abridged
from holdfast.queues.addresses import check_room, embedded_file, is_missing, kind_of, redacted, sqlite_path
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.keyfiles import KEY_FACTS, find_keyring
from holdfast.queues.opening import BackendFactory
from holdfast.queues.signing import Keyring, Signer, Unsigned
from holdfast.state.facts import Facts
from holdfast.values import DEFAULT_QUEUE, Backoff, BackoffStrategy, JobEnvelope, Progress, WorkerResult

if TYPE_CHECKING:
    from holdfast.execution.runtime import JobRuntime, OnEnded
    from holdfast.worker import QueueWorker, WorkerLoop
    from holdfast.worker.executors.process import Program
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.supervisor import Supervisor
    from holdfast.worker.systemd import Notifier

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=type[Handler])

# A library only speaks if the program wants to hear it: the command line adds a handler, others may.
logging.getLogger("holdfast").addHandler(logging.NullHandler())

COMMAND_FACTS = "allowed-command"


class Holdfast:
    """An application's jobs: where they are kept, which handlers run them, and what workers need."""

    def __init__(
        self,
        url: str | None = None,
        *,
        backends: Mapping[str, str] | None = None,
        routes: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        signing_key: str | None = None,
        allowlist: Mapping[str, Collection[str]] | None = None,
        allowed_commands: Collection[str] | None = None,
        retry_policy: RetryPolicy | None = None,
        metrics: MetricsCollector | None = None,
        middleware: Sequence[Middleware] = (),
        clock: Clock = SYSTEM_CLOCK,
        directory: str | Path | None = None,
    ) -> None:
        self.project: Project = find_project(Path(directory) if directory is not None else None)
        self.settings = settings if settings is not None else load_settings(self.project)
        self.commands = CommandHandler(self.settings.allowed_commands if allowed_commands is None else allowed_commands)
        self.registry = HandlerRegistry(self.settings.allowlist if allowlist is None else allowlist)
        self.registry.register(COMMAND_KEY, self.commands)
        self.jobs: dict[str, Job[..., Any, Any]] = {}
        """What `job` has made of functions, by key."""
        self._signing_key = signing_key
        self._retry_policy = retry_policy
        self._middleware = checked(middleware)
        self._clock = clock
        self._metrics = metrics
        self._only_looks = False
        self.backends = Backends(
            {
                DEFAULT: url or self.settings.url or self.project.default_url,
                **_others(self.settings.backends if backends is None else backends),
            },
            self.settings.routes if routes is None else routes,
            self._open,
        )

    @classmethod
    def at(cls, place: str | None) -> Self:
        """What is kept at a URL, or in the backend of that name, and nowhere else; without one, as it is configured."""
        if place is None:
            return cls()
        settings = load_settings(find_project())
        if place == DEFAULT:
            place = settings.url
        elif settings.backends and ":" not in place:
            place = named(place, {DEFAULT: "", **settings.backends})
        return cls(place, settings=settings, backends={}, routes={})

    # Looked up when it is first needed: what the file names may be a module that makes this very application.
    @cached_property
    def middleware(self) -> tuple[Middleware, ...]:
        """The hooks around every job, the outermost first: those the configuration names, then those given here."""
        return (*named_middleware(self.settings.middleware, self.project.directory), *self._middleware)

    @cached_property
    def _enqueue_hooks(self) -> tuple[Middleware, ...]:
        return around_enqueue(self.middleware)

    def only_look(self) -> None:
        """From now on, make no embedded database where there is none: it is an empty one, and needs no key."""
        self._only_looks = True

    def _open(self, url: str) -> Opened:
        around = ExitStack()
        file = embedded_file(url)
        if self._only_looks and file is not None and is_missing(file):
            return Opened(*self._factory(Unsigned(), only_looks=True).open(url), around)
        self._check_room(url)
        engine, signer = self._factory().open(url)
        if url == self.project.default_url and self.project.directory is not None:
            _keep_out_of_version_control(self.project.data_directory)
        if isinstance(signer, Keyring):
            _compare_keys(engine, signer, self.settings.installation)
        if kind_of(url).runs_inline:
            self._work_inline(engine, signer, around)
        return Opened(engine, signer, around)

    def _work_inline(self, engine: Engine, signer: Signer, around: ExitStack) -> None:
        from holdfast.queues.engines.memory.sync import SyncEngine

        if isinstance(engine, SyncEngine):
            inline = around.enter_context(self._worker(engine, signer))
            engine.attach(inline.process_once)

    def _check_room(self, url: str) -> None:
        """Refuse a file below directories that are not there; those of the default place are made."""
        file = embedded_file(url)
        if url != self.project.default_url and file is not None:
            check_room(file)

    def _factory(self, signer: Signer | None = None, *, only_looks: bool = False) -> BackendFactory:
        settings = self.settings
        return BackendFactory(
            signer or self._signer(),
            policy=LeasePolicy(
                lease_s=settings.lease,
                crash_limit=settings.crash_limit,
                retain_completed_s=settings.retain_completed,
                retain_dead_s=settings.retain_dead or None,
            ),
            clock=self._clock,
            max_retries=settings.max_retries,
            timeout_s=settings.timeout,
            table_prefix=settings.table_prefix,
            installation=settings.installation,
            only_looks=only_looks,
        )

    def _signer(self) -> Signer | None:
        if not self.settings.verify:
            return Unsigned()
        settings = self.settings
        return find_keyring(
            self._signing_key, installation=settings.installation, configured_file=settings.signing_key_file
        )

    @property
    def url(self) -> str:
        """Where the jobs are that no route sends elsewhere."""
        return self.backends.urls[DEFAULT]

    def relocate(self, place: str, *, alone: bool = False) -> None:
        """Keep them at that URL, or where the backend of that name is, from now on; `alone`: every other queue, too."""
        self.close()
        self.backends.relocate(place, alone=alone)

    def backend(self, name: str = DEFAULT) -> Engine:
        """The engine of that name, opened when it is first needed."""
        return self.backends.opened(name).engine

    def backend_for(self, queue: str) -> Engine:
        """The engine that a queue is in."""
        return self.backend(self.backends.name_for(queue))

    @contextmanager
    def standing_in(self, engine: Engine, signer: Signer) -> Generator[None]:
        """Keep all jobs in this engine while the block runs; for tests."""
        with self.backends.standing_in(engine, signer):
            yield

    @property
    def location(self) -> str:
        """Where the jobs are, for people."""
        return self.location_of(DEFAULT)

    def location_of(self, name: str) -> str:
        """Where a backend is, for people."""
        url = self.backends.urls[name]
        return str(sqlite_path(url)) if url.startswith("sqlite:") else redacted(url)

    def create_schema(self, backend: str | None = None) -> None:
        """Prepare that engine, or every one, or bring its schema up to date. On a server, that needs no key."""
        for name in self.backends.urls if backend is None else (backend,):
            url = named(name, self.backends.urls)
            self._check_room(url)
            engine, signer = self._factory().open(url, may_share=True)
            with engine:
                engine.create_schema()
                if isinstance(signer, Keyring):
                    # Now, because a later enqueue may be inside a caller's transaction.
                    _compare_keys(engine, signer, self.settings.installation)

    # As `JobDecorator` has it, which is the last of these.
    @overload
    def job(
        self, function: Callable[Concatenate[Unknown, ...], Coroutine[Any, Any, R]], /
    ) -> Job[..., Coroutine[Any, Any, R], R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Unknown, ...], R], /) -> Job[..., R, R]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> ContextJob[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def job(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJob[P, R, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R, R]: ...
    @overload
    def job(
        self,
        /,
        *,
        key: str | None = None,
        no_retry: Collection[type[BaseException]] = (),
        **options: Unpack[JobOptions],
    ) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        key: str | None = None,
        no_retry: Collection[type[BaseException]] = (),
        **options: Unpack[JobOptions],
    ) -> Any:
        """Make a plain or async function a job, under its own name or another key."""

        def register(function: Callable[..., Any]) -> Job[..., Any, Any]:
            check_options(options, "key", "no_retry")
            handler = FunctionHandler(function, key=key, no_retry=no_retry, overrides=self.registry.overrides)
            job = Job[..., Any, Any](self, handler, options)  # wrong options are an error here, where they are written
            self.registry.register(handler.key, handler)
            self.jobs[job.key] = job
            return job

        return register if function is None else register(function)

    def handler(self, key: str) -> Callable[[H], H]:
        """Register a handler class under a key."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - easily forgotten
            raise DefinitionError('a handler class needs a key: write  @hf.handler("name")  above it')

        def register(handler: H) -> H:
            self.registry.register(key, handler)
            return handler

        return register

    @contextmanager
    def override(self, factory: Callable[..., object], replacement: Callable[..., object]) -> Generator[None]:
        """Let jobs that run in this process meanwhile depend on `replacement` where they declare `factory`; for tests.

        The replacement is a factory like any other, and may have dependencies of its own.
        """
        if not callable(replacement):
            raise DefinitionError(f"{replacement!r} cannot be called: override with a factory, such as  lambda: value")
        overrides = self.registry.overrides
        before = overrides.get(factory)
        check_factory(factory, overrides={**overrides, factory: replacement}, is_async=True, what="the override")
        overrides[factory] = replacement
        try:
            yield
        finally:
            if before is None:
                del overrides[factory]
            else:
                overrides[factory] = before

    def define(self, handler: str, payload: object = None) -> JobBuilder:
        """Describe a job step by step; `dispatch()` enqueues it."""
        return JobBuilder(handler, payload, dispatcher=self)

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str:
        """Keep one job of this definition and return its id.

        `tx` is a connection to the engine's own database, which must be SQLite, PostgreSQL or MySQL: the driver's, a
        SQLAlchemy connection or session, or Django's. The job is kept if its transaction is.
        """
        return self._keep(definition, id, tx)[0]

    def dispatch(
        self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None, returns: Any = Any
    ) -> JobHandle[Any]:
        """The same, returning a handle; its result is read as this type."""
        job_id, engine = self._keep(definition, id, tx)
        return JobHandle(job_id, engine, engine.clock, returns=returns)

    def _keep(self, definition: JobDefinition, id: str | None, tx: object | None) -> tuple[str, Engine]:
        check_definition(definition)
        if not self._enqueue_hooks:
            return self._kept(definition, id, tx)
        with self.enqueueing([definition]) as enqueueing:
            job_id, engine = self._kept(enqueueing.definitions[0], id, tx)
            enqueueing.ids = [job_id]
        return job_id, engine

    def _kept(self, definition: JobDefinition, id: str | None, tx: object | None) -> tuple[str, Engine]:
        self.check(definition)
        engine = self.backend_for(definition.queue)
        return engine.enqueue(definition, id=id, tx=tx), engine

    def enqueue_many(
        self,
        definitions: Iterable[JobDefinition],
        *,
        ids: Iterable[str | None] | None = None,
        tx: object | None = None,
    ) -> list[str]:
        """Keep one job of each definition, all or none, in one round trip; in your own transaction, if `tx` is one.

        `ids` has one for each definition, in their order, None for a new one; without it all get new ones.
        """
        given = _listed_ids(ids)
        with self.enqueueing(_listed_definitions(definitions)) as enqueueing:
            for definition in enqueueing.definitions:
                self.check(definition)
            engine = self.backend(self.backend_of_batch(enqueueing.definitions))
            accepted = engine.accept(_envelopes(engine.envelopes, enqueueing.definitions, given), tx)
            enqueueing.ids = [one.id for one in accepted]
        return list(enqueueing.ids)

    def backend_of_batch(self, definitions: Iterable[JobDefinition]) -> str:
        """The name of the one backend that all of these jobs belong to: all or none is what one engine can promise."""
        try:
            return self.backends.name_for_all(definition.queue for definition in definitions)
        except ConfigError as problem:
            raise DefinitionError(f"all or none of these jobs cannot be promised: {problem}") from None

    def enqueueing(self, definitions: Sequence[JobDefinition]) -> Enqueueing:
        """The hooks of the middleware around whatever keeps these definitions."""
        return Enqueueing(self._enqueue_hooks, definitions)

    async def enqueue_async(self, definition: JobDefinition, *, id: str | None = None) -> str:
        """Keep one job of this definition, while the event loop goes on."""
        return (await self.dispatch_async(definition, id=id)).id

    async def dispatch_async(
        self, definition: JobDefinition, *, id: str | None = None, returns: Any = Any
    ) -> AsyncJobHandle[Any]:
        """The same, returning a handle."""
        import asyncio  # here, and so not loaded by programs that have no event loop

        return AsyncJobHandle(await asyncio.to_thread(self.dispatch, definition, id=id, returns=returns))

    async def enqueue_many_async(
        self, definitions: Iterable[JobDefinition], *, ids: Iterable[str | None] | None = None
    ) -> list[str]:
        """Keep one job of each definition, all or none, while the event loop goes on."""
        import asyncio

        return await asyncio.to_thread(self.enqueue_many, _listed_definitions(definitions), ids=_listed_ids(ids))

    def check(self, definition: JobDefinition) -> None:
        """Refuse a command that neither the settings nor any worker of these jobs has allowed."""
        if definition.handler == COMMAND_KEY:
            try:
                argv = self.commands.decode(bytes(definition.payload)).argv
            except msgspec.ValidationError as problem:
                raise DefinitionError(
                    f"a command job needs a payload like {{'argv': ['sleep', '2']}}: {problem}"
                ) from None
            if not argv or argv[0] not in self.commands.allowed:
                check_command(
                    argv, self.commands.allowed | Facts(self.backend_for(definition.queue).state).of(COMMAND_FACTS)
                )

    def handle(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> JobHandle[Any]:
        """The handle of a job, by its id; its result is read as this type.

        Of several backends, the one that this queue is in is asked for it.
        """
        engine = self.backend() if queue is None else self.backend_for(queue)
        return JobHandle(job_id, engine, engine.clock, returns=returns)

    def handle_async(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> AsyncJobHandle[Any]:
        """The same for an event loop."""
        return AsyncJobHandle(self.handle(job_id, queue=queue, returns=returns))

    def worker(
        self,
        *,
        backend: str = DEFAULT,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        """A worker in this process. `tee` sees a job's output while it runs, `on_progress` how far it says it is."""
        opened = self.backends.opened(backend)
        return self._worker(opened.engine, opened.signer, tee=tee, on_progress=on_progress)

    def _worker(
        self,
        engine: Engine,
        signer: Signer,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        # Imported here, like all that runs jobs: producers, which are most programs, need none of it.
        from holdfast.worker import QueueWorker

        return QueueWorker(
            engine,
            self.runtime(engine, tee=tee, on_progress=on_progress),
            signer,
            retry=self.retry_policy,
            metrics=self.metrics,
            clock=engine.clock,
        )

    def runtime(
        self,
        engine: Engine,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
        on_ended: "OnEnded | None" = None,
    ) -> "JobRuntime":
        """What runs one attempt of a job of this application, in this process."""
        from holdfast.execution.runtime import JobRuntime

        self.prepare()
        return JobRuntime(
            self.registry,
            clock=engine.clock,
            tee=tee,
            on_progress=on_progress,
            transactions=engine.transaction,
            middleware=self.middleware,
            on_ended=on_ended,
        )

    def supervisor(
        self,
        program: "Program",
        options: "WorkerOptions",
        *,
        backend: str | None = None,
        on_results: Callable[[Sequence[WorkerResult]], None] | None = None,
        notifier: "Notifier | None" = None,
    ) -> "Supervisor":
        """A worker whose children run this program, which has to know the same handlers; `run()` it.

        It takes from the backend its queues are in, if none is named.
        """
        from holdfast.worker.admission import Admission
        from holdfast.worker.reporting import Reporter
        from holdfast.worker.supervisor import Supervisor

        name = self.backends.name_for_all(options.queues) if backend is None else backend
        engine, signer, _ = self.backends.opened(name)
        self.prepare()
        return Supervisor(
            engine,
            program=program,
            registry=self.registry,
            admission=Admission(signer, self.registry, engine.clock),
            retry=self.retry_policy,
            reporter=Reporter(self.metrics, listener=on_results),
            options=options,
            version=__version__,
            notifier=notifier,
        )

    def prepare(self) -> None:
        """Load what the configuration names: a name that leads nowhere is an error now, before any job is taken."""
        _ = self.middleware, self.metrics, self.retry_policy, self._named_handlers

    # Looked up when they are first needed: what the file names may be a module that makes this very application.
    @cached_property
    def _named_handlers(self) -> tuple[str, ...]:
        return tuple(self._register_named(name) for name in self.settings.handlers)

    def _register_named(self, named: str) -> str:
        """Register a handler that the configuration names: `KEY=MODULE:NAME`, or the name it is installed under."""
        key, _, name = named.rpartition("=")
        found = plugins.load(plugins.HANDLERS, name, self.project.directory)
        key = key or name.rpartition(":")[2].rpartition(".")[2]
        if isinstance(found, Job):
            if self.jobs.get(key) is not found:  # of another application: what it does is what counts
                self.registry.register(key, found.handler_for(key, self.registry.overrides))
            return key
        if not callable(found) and not isinstance(found, Handler):
            raise ConfigError(f"the handler '{name}' is neither a function nor a Handler, but {found!r}")
        self.registry.register(key, found)
        return key

    @cached_property
    def retry_policy(self) -> RetryPolicy:
        """When a failed job that brings no backoff of its own runs again."""
        if self._retry_policy is not None or not self.settings.retry_policy:
            return self._retry_policy or BackoffPolicy(self.backoff)
        named = plugins.make(plugins.RETRY_POLICIES, self.settings.retry_policy, self.project.directory)
        if not callable(getattr(named, "delay", None)):
            raise ConfigError(f"{named!r} is no retry policy: it needs a method  delay(attempt, error) -> seconds")
        return cast("RetryPolicy", named)

    @property
    def metrics(self) -> MetricsCollector:
        """What counts what happens here."""
        if self._metrics is None:
            self._metrics = self._named_metrics() if self.settings.metrics else InMemoryMetrics()
        return self._metrics

    @metrics.setter
    def metrics(self, collector: MetricsCollector) -> None:
        self._metrics = collector

    def _named_metrics(self) -> MetricsCollector:
        named = plugins.make(plugins.METRICS, self.settings.metrics, self.project.directory)
        if not callable(getattr(named, "count", None)):
            raise ConfigError(f"{named!r} is no metrics collector: it needs a method  count(name, value, *, queue)")
        return cast("MetricsCollector", named)

    @property
    def backoff(self) -> Backoff:
        """The delays of jobs that bring none of their own."""
        settings = self.settings
        return Backoff(
            strategy=BackoffStrategy(settings.backoff),
            base=settings.backoff_base,
            multiplier=max(1.0, settings.backoff_base),
            max=settings.backoff_max,
            jitter=settings.backoff_jitter,
        )

    def loop(
        self,
        worker: "QueueWorker",
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        *,
        burst: bool = False,
        max_jobs: int = 0,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> "WorkerLoop":
        """Turn after turn of a worker, as the settings say; `run()` it."""
        from holdfast.worker import WorkerLoop

        return WorkerLoop(
            worker,
            queues,
            poll_interval_s=self.settings.poll_interval,
            reap_interval_s=min(self.settings.reap_interval, self.settings.lease / 2),
            burst=burst,
            max_jobs=max_jobs,
            on_result=on_result,
        )

    def close(self) -> None:
        """Let go of the engines."""
        self.backends.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _envelopes(
    factory: EnvelopeFactory, definitions: Sequence[JobDefinition], ids: Sequence[str | None] | None
) -> list[JobEnvelope]:
    if ids is None:
        return factory.make_many(definitions)
    if len(ids) != len(definitions):
        raise DefinitionError(
            f"{len(ids)} ids for {len(definitions)} definitions: give one for each, None where a new one will do"
        )
    return [factory.make(one, id=job_id) for one, job_id in zip(definitions, ids, strict=True)]


def _listed_definitions(definitions: Iterable[JobDefinition]) -> list[JobDefinition]:
    if not isinstance(definitions, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        kind = type(definitions).__name__
        raise DefinitionError(f"pass a list of definitions, like [job.define(...), ...], not one {kind}")
    return [check_definition(definition) for definition in definitions]


def _listed_ids(ids: Iterable[str | None] | None) -> list[str | None] | None:
    # A text is a list of its letters, each of which could be an id.
    if isinstance(ids, str):
        raise DefinitionError(f"ids must be a list with one for each definition, like ['{abridged(ids)}'], not a text")
    return None if ids is None else list(ids)


def _others(backends: Mapping[str, str]) -> Mapping[str, str]:
    if DEFAULT in backends:
        raise ConfigError(f"the backend named {DEFAULT} is the url: give that, and leave it out of backends")
    return backends


def _keep_out_of_version_control(directory: Path) -> None:
    """The jobs and above all their key are not for the project's history."""
    ignore = directory / ".gitignore"
    if directory.is_dir() and not ignore.exists():
        with suppress(OSError):
            ignore.write_text("*\n", encoding="ascii")


def _compare_keys(engine: Engine, keyring: Keyring, installation: str) -> None:
    """Refuse keys that can verify nothing of what is here, if there is anything; remember the one that signs now."""
    facts = Facts(engine.state)
    known = facts.of(KEY_FACTS)
    ours = {key.fingerprint for key in keyring.keys}
    if known and not known & ours and engine.counts():
        raise ConfigError(
            "the jobs in this queue were signed with another key or for an installation other than "
            f"'{installation}', so every one of them would be rejected: also pass the old key, after the new one "
            "(HOLDFAST_SIGNING_KEY=new,old), or set the installation to the name that the jobs were signed for "
            "(HOLDFAST_INSTALLATION)"
        )
    signing = keyring.keys[0].fingerprint
    if signing not in known:
        facts.add(KEY_FACTS, [signing])
