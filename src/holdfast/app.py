"""`Holdfast`: an application's jobs. It wires the layers together and decides nothing."""

import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec

from holdfast import __version__
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import Settings
from holdfast.definition import JobBuilder, JobDefinition, JobOptions
from holdfast.definition.definition import check_definition, check_options
from holdfast.deployment import DEFAULT, Deployment, Opened
from holdfast.errors import ConfigError, DefinitionError
from holdfast.execution.retry import RetryPolicy
from holdfast.extensions import Extensions
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
from holdfast.job import ContextJob, Job, JobDecorator, Unknown
from holdfast.metrics import MetricsCollector
from holdfast.middleware import Enqueueing, Middleware
from holdfast.plaintext import abridged
from holdfast.queues.addresses import kind_of
from holdfast.queues.contract import Engine
from holdfast.queues.opening import Mode
from holdfast.queues.signing import Signer
from holdfast.state.facts import Facts
from holdfast.values import DEFAULT_QUEUE, Accepted, JobEnvelope, Progress, WorkerResult

if TYPE_CHECKING:
    from holdfast.execution.runtime import JobRuntime, OnEnded
    from holdfast.worker import QueueWorker, WorkerLoop
    from holdfast.worker.executors.process import Program
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.service import Service
    from holdfast.worker.supervisor import Supervisor
    from holdfast.worker.systemd import Notifier

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=type[Handler])

# A library is silent unless the program adds a handler, as the command line does.
logging.getLogger("holdfast").addHandler(logging.NullHandler())

COMMAND_FACTS = "allowed-command"


class Batch(NamedTuple):
    """Jobs that are ready to be stored: checked, signed, and all of one engine."""

    engine: Engine
    definitions: Sequence[JobDefinition]
    envelopes: Sequence[JobEnvelope]

    def accept(self, tx: object | None = None) -> list[Accepted]:
        """Store all of them, or none."""
        return self.engine.accept(self.envelopes, tx)


class Holdfast:
    """An application's jobs: where they are stored, which handlers run them, and what workers need."""

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
        deployment: Deployment | None = None,
    ) -> None:
        self.deployment = deployment or Deployment.configured(
            url,
            backends=backends,
            routes=routes,
            settings=settings,
            directory=directory,
            signing_key=signing_key,
            clock=clock,
        )
        self.settings = self.deployment.settings
        self.commands = CommandHandler(self.settings.allowed_commands if allowed_commands is None else allowed_commands)
        self.registry = HandlerRegistry(self.settings.allowlist if allowlist is None else allowlist)
        self.registry.register(COMMAND_KEY, self.commands)
        self.extensions = Extensions(
            self.settings,
            self.deployment.project.directory,
            middleware=middleware,
            metrics=metrics,
            retry_policy=retry_policy,
        )
        self.jobs: dict[str, Job[..., Any, Any]] = {}
        """What `job` has made of functions, by key."""
        self._opening = threading.Lock()
        self._opened: dict[str, Opened] = {}
        self._inline = ExitStack()
        self._stand_in: Opened | None = None

    @property
    def metrics(self) -> MetricsCollector:
        """The collector of this application's metrics."""
        return self.extensions.metrics

    def move_to(self, deployment: Deployment) -> None:
        """Close all engines and use this deployment from now on."""
        self.close()
        self.deployment = deployment

    def opened(self, name: str = DEFAULT) -> Opened:
        """The engine of a backend and its keys. Opened on first use; safe to call from several threads."""
        found = self._opened.get(name)
        if found is None:
            with self._opening:
                found = self._opened.get(name)
                if found is None:
                    found = self._opened[name] = self._open(name)
        return found

    def _open(self, name: str) -> Opened:
        url = self.deployment.url(name)
        if self._stand_in is not None:
            return self._stand_in
        opened = self.deployment.open(name)
        if kind_of(url).runs_inline:
            from holdfast.queues.engines.memory.sync import SyncEngine

            if isinstance(opened.engine, SyncEngine):
                worker = self._inline.enter_context(self._worker(opened))
                opened.engine.attach(worker.process_once)
        return opened

    def backend(self, name: str = DEFAULT) -> Engine:
        """The engine of a backend, opened when it is first needed."""
        return self.opened(name).engine

    def backend_for(self, queue: str) -> Engine:
        """The engine that a queue is in."""
        return self.backend(self.deployment.name_for(queue))

    @contextmanager
    def standing_in(self, engine: Engine, signer: Signer) -> Generator[None]:
        """Store all jobs in this engine while the block runs, even after a `close()`. For tests: `holdfast.testing`
        builds on it. What was open before stays open and is not touched.
        """
        with self._opening:
            before = self._opened, self._stand_in, self._inline
            self._opened, self._stand_in, self._inline = {}, Opened(engine, signer), ExitStack()
        try:
            yield
        finally:
            with self._opening:
                self._opened, self._stand_in, self._inline = before

    def create_schema(self, backend: str | None = None) -> None:
        """Create the schema of one backend or of all, or bring it up to date. On a server, that needs no key."""
        for name in self.deployment.urls if backend is None else (backend,):
            self.deployment.open(name, Mode.MIGRATE).engine.close()

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
        return JobBuilder(handler, payload, enqueuer=self)

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str:
        """Enqueue one job of this definition and return its id.

        `tx` is a connection to the engine's own database, which must be SQLite, PostgreSQL or MySQL: the driver's, a
        SQLAlchemy connection or session, or Django's. The job is stored if its transaction commits.
        """
        return self.dispatch(definition, id=id, tx=tx).id

    def dispatch(
        self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None, returns: Any = Any
    ) -> JobHandle[Any]:
        """Enqueue one job of this definition and return a handle; its result is read as this type."""
        check_definition(definition)
        with self.signed([definition], [id]) as batch:
            [accepted] = batch.accept(tx)
        return JobHandle(accepted.id, batch.engine, batch.engine.clock, returns=returns)

    def enqueue_many(
        self,
        definitions: Iterable[JobDefinition],
        *,
        ids: Iterable[str | None] | None = None,
        tx: object | None = None,
    ) -> list[str]:
        """Enqueue one job of each definition, all or none, in one round trip; with `tx`, in your own transaction.

        `ids` has one for each definition, in their order, None for a new one; without it all get new ones.
        """
        with self.signed(_listed_definitions(definitions), _listed_ids(ids)) as batch:
            accepted = batch.accept(tx)
        return [one.id for one in accepted]

    @contextmanager
    def signed(
        self,
        definitions: Sequence[JobDefinition],
        ids: Sequence[str | None] | None = None,
        *,
        names: Sequence[str] | None = None,
        asks_middleware: bool = True,
    ) -> Generator[Batch]:
        """Run the enqueue hooks, then check and sign the jobs. Store the batch inside the `with` block.

        With `names`, an error starts with the name of the job it is about.
        """
        hooks = self.extensions.enqueue_hooks if asks_middleware else ()
        with Enqueueing(hooks, definitions) as enqueueing:
            definitions = enqueueing.definitions
            engine = self.backend(self.backend_of(definitions))
            if ids is not None and len(ids) != len(definitions):
                raise DefinitionError(
                    f"{len(ids)} ids for {len(definitions)} definitions: pass one for each, or None for a new id"
                )
            envelopes: list[JobEnvelope] = []
            if ids is None and names is None:
                for definition in definitions:
                    self._check_command(definition)
                envelopes = engine.envelopes.make_many(definitions)
            else:
                for number, definition in enumerate(definitions):
                    with _named(names[number] if names else ""):
                        self._check_command(definition)
                        envelopes.append(engine.envelopes.make(definition, id=ids[number] if ids else None))
            yield Batch(engine, definitions, envelopes)
            enqueueing.ids = [one.id for one in envelopes]

    def backend_of(self, definitions: Sequence[JobDefinition]) -> str:
        """The one backend that all of these jobs belong to: a batch is atomic only within one engine."""
        if len(definitions) == 1:
            return self.deployment.name_for(definitions[0].queue)
        try:
            return self.deployment.name_for_all(definition.queue for definition in definitions)
        except ConfigError as problem:
            raise DefinitionError(f"these jobs cannot be enqueued atomically: {problem}") from None

    def _check_command(self, definition: JobDefinition) -> None:
        """Refuse a command that neither the settings nor any worker of these jobs allows."""
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
        """A worker in this process. `tee` gets a job's output while it runs, `on_progress` its progress reports."""
        return self._worker(self.opened(backend), tee=tee, on_progress=on_progress)

    def _worker(
        self,
        opened: Opened,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        # Imported here, like everything that runs jobs: producers, which are most programs, need none of it.
        from holdfast.worker import QueueWorker

        engine, signer = opened
        return QueueWorker(
            engine,
            self.runtime(engine, tee=tee, on_progress=on_progress),
            signer,
            retry=self.extensions.retry_policy,
            metrics=self.extensions.metrics,
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
        """A runtime that runs single attempts of this application's jobs in this process."""
        from holdfast.execution.runtime import JobRuntime

        self.prepare()
        return JobRuntime(
            self.registry,
            clock=engine.clock,
            tee=tee,
            on_progress=on_progress,
            transactions=engine.transaction,
            middleware=self.extensions.middleware,
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

        name = self.deployment.name_for_all(options.queues) if backend is None else backend
        engine, signer = self.opened(name)
        self.prepare()
        return Supervisor(
            engine,
            program=program,
            registry=self.registry,
            admission=Admission(signer, self.registry, engine.clock),
            retry=self.extensions.retry_policy,
            reporter=Reporter(self.extensions.metrics, listener=on_results),
            options=options,
            version=__version__,
            notifier=notifier,
            session_dir=self.deployment.session_directory(name),
        )

    def service(
        self,
        program: "Program",
        options: "WorkerOptions",
        *,
        backend: str,
        on_results: Callable[[Sequence[WorkerResult]], None] | None = None,
        notifier: "Notifier | None" = None,
        probes: tuple[str, int] | None = None,
    ) -> "Service":
        """A worker that runs as its own program: it handles signals and serves `probes` at this host and port."""
        from holdfast.worker.service import Service

        engine = self.backend(backend)
        if self.commands.allowed:
            # Producers refuse commands that no worker would run: publish what this worker allows.
            Facts(engine.state).add(COMMAND_FACTS, self.commands.allowed)
        if probes is not None:
            self.extensions.count_for_prometheus()
        supervisor = self.supervisor(program, options, backend=backend, on_results=on_results, notifier=notifier)
        return Service(supervisor, engine, self.metrics, probes=probes)

    def prepare(self) -> None:
        """Load what the settings name: a name that leads nowhere is an error now, before any job is claimed."""
        self.extensions.load(self.registry, self.jobs)

    def loop(
        self,
        worker: "QueueWorker",
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        *,
        burst: bool = False,
        max_jobs: int = 0,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> "WorkerLoop":
        """A loop that lets a worker process one job after another, as the settings say; `run()` it."""
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
        """Close every engine. An engine that is used again is reopened."""
        with self._opening:
            opened, self._opened = list(self._opened.values()), {}
        try:
            self._inline.close()
        finally:
            for one in opened:
                one.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _named(name: str) -> Generator[None]:
    """Prefix definition errors with the name of the job."""
    try:
        yield
    except DefinitionError as problem:
        if not name:
            raise
        raise type(problem)(f"{name}: {problem}") from problem


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
