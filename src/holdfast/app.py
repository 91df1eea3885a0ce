"""`Holdfast`: wires the layers together and decides nothing."""

import logging
import threading
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import msgspec

from holdfast import __version__
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.codec import encode_payload
from holdfast.config import Project, Settings, find_project, load_settings
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.builder import BackoffLike, as_backoff
from holdfast.definition.definition import span_s, unique
from holdfast.errors import ConfigError, DefinitionError
from holdfast.execution.retry import BackoffPolicy, RetryPolicy
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.handlers import (
    COMMAND_KEY,
    CommandHandler,
    FunctionHandler,
    Handler,
    HandlerRegistry,
    check_command,
)
from holdfast.handlers.dependencies import check_factory
from holdfast.metrics import InMemoryMetrics, MetricsCollector
from holdfast.middleware import Enqueueing, Middleware, around_enqueue, checked, named_middleware
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.keyfiles import KEY_FACTS, find_keyring
from holdfast.queues.opening import BackendFactory, engine_of, redacted, sqlite_path
from holdfast.queues.signing import Keyring, Signer, Unsigned
from holdfast.values import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Backoff,
    BackoffStrategy,
    Progress,
    WorkerResult,
)

if TYPE_CHECKING:
    from holdfast.execution.runtime import JobRuntime, OnEnded
    from holdfast.worker import QueueWorker, WorkerLoop
    from holdfast.worker.executors.process import Program
    from holdfast.worker.options import WorkerOptions
    from holdfast.worker.supervisor import Supervisor
    from holdfast.worker.systemd import Notifier

P = ParamSpec("P")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
H = TypeVar("H", bound=type[Handler])

# A library only speaks if the program wants to hear it: the command line adds a handler, others may.
logging.getLogger("holdfast").addHandler(logging.NullHandler())

COMMAND_FACTS = "allowed-command"


class JobOptions(TypedDict, total=False):
    """How a job is enqueued, wherever options are given: on the decorator, by `options()`."""

    name: str
    queue: str
    priority: int
    max_retries: int
    backoff: BackoffLike
    timeout: float | timedelta
    delay: float | timedelta
    run_at: datetime
    expires: float | timedelta | datetime
    tags: Sequence[str]
    meta: Mapping[str, object]
    trace_id: str
    fence: bool
    id: str


class Job(Generic[P, C_co, R_co]):
    """A function that is also a job: calling it calls the function, `enqueue` keeps the call for a worker.

    `C_co` is what a call returns, and `R_co` what a run does: of an async function, what is awaited.
    """

    def __init__(self, app: "Holdfast", handler: FunctionHandler, options: JobOptions) -> None:
        self._app = app
        self._handler = handler
        self._options = options
        self._template = definition_of(handler.key, None, options)
        self.key = handler.key
        update_wrapper(self, handler.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        if self._handler.dependencies:
            self._handler.check_call(args, kwargs)
        return cast("C_co", self._handler.function(*args, **kwargs))

    def options(self, **options: Unpack[JobOptions]) -> "Job[P, C_co, R_co]":
        """The same job with other options."""
        return Job(self._app, self._handler, {**self._options, **options})

    def define(self, *args: P.args, **kwargs: P.kwargs) -> JobDefinition:
        """The definition of this call; an invalid argument is an error here, not in the worker."""
        return msgspec.structs.replace(self._template, payload=self._handler.payload_of(*args, **kwargs))

    # A parameter of our own beside those of the function cannot be written for a type checker in one signature: with
    # `tx` it checks nothing, and the arguments are checked when the call is made.
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    @overload
    def enqueue(self, *args: Any, tx: object | None, **kwargs: Any) -> JobHandle[R_co]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle[R_co]:
        """Keep this call for a worker; with `tx=connection`, if and when that transaction of yours is committed.

        A function with a parameter `tx` of its own gets it: write `hf.enqueue(job.define(...), tx=connection)` then.
        """
        tx = None if self._handler.takes("tx") else kwargs.pop("tx", None)
        job_id = self._app.enqueue(self.define(*args, **kwargs), id=self._options.get("id"), tx=tx)
        return self.handle(job_id)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R_co]:
        """Keep this call for a worker, while the event loop goes on."""
        definition = self.define(*args, **kwargs)
        job_id = await self._app.enqueue_async(definition, id=self._options.get("id"))
        return AsyncJobHandle(self.handle(job_id))

    def handle(self, job_id: str) -> JobHandle[R_co]:
        """What is known of a job that was enqueued by this one; its result is read as the function declares it."""
        return self._app.handle(job_id, returns=self._handler.returns)


class JobDecorator(Protocol):
    """What `@hf.job(...)` makes of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R, R]: ...


class Holdfast:
    """An application's jobs: where they are kept, which handlers run them, and what workers need."""

    def __init__(
        self,
        url: str | None = None,
        *,
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
        self.url = url or self.settings.url or self.project.default_url
        self.metrics = metrics if metrics is not None else InMemoryMetrics()
        self.commands = CommandHandler(self.settings.allowed_commands if allowed_commands is None else allowed_commands)
        self.registry = HandlerRegistry(self.settings.allowlist if allowlist is None else allowlist)
        self.registry.register(COMMAND_KEY, self.commands)
        self._signing_key = signing_key
        self._retry_policy = retry_policy
        self._middleware = checked(middleware)
        self._clock = clock
        self._opening = threading.Lock()
        self._opened: tuple[Engine, Signer] | None = None
        self._stand_in: tuple[Engine, Signer] | None = None
        self._inline: QueueWorker | None = None

    # Looked up when it is first needed: what the file names may be a module that makes this very application.
    @cached_property
    def middleware(self) -> tuple[Middleware, ...]:
        """The hooks around every job, the outermost first: those the configuration names, then those given here."""
        return (*named_middleware(self.settings.middleware, self.project.directory), *self._middleware)

    @cached_property
    def _enqueue_hooks(self) -> tuple[Middleware, ...]:
        return around_enqueue(self.middleware)

    def _open(self) -> tuple[Engine, Signer]:
        """The engine and its keys, opened once, whichever thread comes first."""
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open_now()
        return self._opened

    def _open_now(self) -> tuple[Engine, Signer]:
        if self._stand_in is not None:
            return self._stand_in
        engine, signer = self._factory().open(self.url)
        if self.url == self.project.default_url and self.project.directory is not None:
            _keep_out_of_version_control(self.project.data_directory)
        if isinstance(signer, Keyring):
            _compare_keys(engine, signer)
        if engine_of(self.url) == "sync":
            self._work_inline(engine, signer)
        return engine, signer

    def _work_inline(self, engine: Engine, signer: Signer) -> None:
        from holdfast.queues.backends.sync import SyncBackend

        if isinstance(engine, SyncBackend):
            self._inline = self._worker(engine, signer)
            engine.attach(self._inline.process_once)

    def _factory(self) -> BackendFactory:
        settings = self.settings
        return BackendFactory(
            self._signer(),
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
        )

    def _signer(self) -> Signer | None:
        if not self.settings.verify:
            return Unsigned()
        return find_keyring(self._signing_key, configured_file=self.settings.signing_key_file)

    def backend(self) -> Engine:
        """The engine, opened when it is first needed."""
        return self._open()[0]

    @contextmanager
    def standing_in(self, engine: Engine, signer: Signer) -> Generator[None]:
        """Keep the jobs in this engine while the block runs, also after a `close()`; then all is as it was before.

        What was open before stays open and is not touched. For tests: `holdfast.testing` builds on it.
        """
        with self._opening:
            before = self.url, self._stand_in, self._opened, self._inline
            self.url, self._stand_in, self._opened, self._inline = "memory://", (engine, signer), None, None
        try:
            yield
        finally:
            with self._opening:
                self.url, self._stand_in, self._opened, self._inline = before

    @property
    def location(self) -> str:
        """Where the jobs are, for people."""
        return str(sqlite_path(self.url)) if self.url.startswith("sqlite:") else redacted(self.url)

    def create_schema(self) -> None:
        """Prepare the engine or bring its schema up to date. On a server, that needs no key."""
        engine, signer = self._factory().open(self.url, may_share=True)
        with engine:
            engine.create_schema()
            if isinstance(signer, Keyring):
                _compare_keys(engine, signer)  # now, since who enqueues later may be within a transaction

    # Both forms of an async function, then both of any other.
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

        def register(function: Callable[P, R]) -> Job[P, R, R]:
            handler = FunctionHandler(function, key=key, no_retry=no_retry, overrides=self.registry.overrides)
            job = Job[P, R, R](self, handler, options)  # wrong options are an error here, where they are written
            self.registry.register(handler.key, handler)
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
        if not self._enqueue_hooks:
            self.check(definition)
            return self.backend().enqueue(definition, id=id, tx=tx)
        with self.enqueueing([definition]) as enqueueing:
            [definition] = enqueueing.definitions
            self.check(definition)
            enqueueing.ids = [self.backend().enqueue(definition, id=id, tx=tx)]
        return enqueueing.ids[0]

    def enqueue_many(self, definitions: Iterable[JobDefinition], *, tx: object | None = None) -> list[str]:
        """Keep one job of each definition, all or none, in one round trip; in your own transaction, if `tx` is one."""
        engine = self.backend()
        with self.enqueueing(list(definitions)) as enqueueing:
            for definition in enqueueing.definitions:
                self.check(definition)
            accepted = engine.accept(engine.envelopes.make_many(enqueueing.definitions), tx)
            enqueueing.ids = [one.id for one in accepted]
        return list(enqueueing.ids)

    def enqueueing(self, definitions: Sequence[JobDefinition]) -> Enqueueing:
        """The hooks of the middleware around whatever keeps these definitions."""
        return Enqueueing(self._enqueue_hooks, definitions)

    async def enqueue_async(self, definition: JobDefinition, *, id: str | None = None) -> str:
        """Keep one job of this definition, while the event loop goes on."""
        import asyncio  # here, and so not loaded by programs that have no event loop

        return await asyncio.to_thread(self.enqueue, definition, id=id)

    async def enqueue_many_async(self, definitions: Iterable[JobDefinition]) -> list[str]:
        """Keep one job of each definition, all or none, while the event loop goes on."""
        import asyncio

        return await asyncio.to_thread(self.enqueue_many, list(definitions))

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
                check_command(argv, self.commands.allowed | self.backend().facts(COMMAND_FACTS))

    def handle(self, job_id: str, *, returns: Any = Any) -> JobHandle[Any]:
        """The handle of a job, by its id; its result is read as this type."""
        engine = self.backend()
        return JobHandle(job_id, engine, engine.clock, returns=returns)

    def handle_async(self, job_id: str, *, returns: Any = Any) -> AsyncJobHandle[Any]:
        """The same for an event loop."""
        return AsyncJobHandle(self.handle(job_id, returns=returns))

    def worker(
        self,
        *,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        """A worker in this process. `tee` sees a job's output while it runs, `on_progress` how far it says it is."""
        return self._worker(*self._open(), tee=tee, on_progress=on_progress)

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
        on_results: Callable[[Sequence[WorkerResult]], None] | None = None,
        notifier: "Notifier | None" = None,
    ) -> "Supervisor":
        """A worker whose children run this program, which has to know the same handlers; `run()` it."""
        from holdfast.worker.intake import Intake
        from holdfast.worker.reporting import Reporter
        from holdfast.worker.supervisor import Supervisor

        engine, signer = self._open()
        return Supervisor(
            engine,
            program=program,
            registry=self.registry,
            intake=Intake(signer, engine.clock),
            retry=self.retry_policy,
            reporter=Reporter(self.metrics, listener=on_results),
            options=options,
            version=__version__,
            notifier=notifier,
        )

    @property
    def retry_policy(self) -> RetryPolicy:
        """When a failed job that brings no backoff of its own runs again."""
        return self._retry_policy or BackoffPolicy(self.backoff)

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
        """Let go of the engine."""
        if self._inline is not None:
            self._inline.close()
            self._inline = None
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def definition_of(key: str, payload: object, options: JobOptions) -> JobDefinition:
    """The definition of a job with these options."""
    unknown = sorted(set(options) - JobOptions.__optional_keys__)
    if unknown:
        raise DefinitionError(
            f"'{unknown[0]}' is no option of a job; known: {', '.join(sorted(JobOptions.__optional_keys__))}"
        )
    expires = options.get("expires")
    expires_at = expires if isinstance(expires, datetime) else None
    expires_in = None if isinstance(expires, datetime) else span_s(expires)
    backoff = options.get("backoff")
    return JobDefinition(
        handler=key,
        payload=encode_payload(payload),
        name=options.get("name"),
        queue=options.get("queue", DEFAULT_QUEUE),
        priority=options.get("priority", DEFAULT_PRIORITY),
        max_retries=options.get("max_retries"),
        backoff=None if backoff is None else as_backoff(backoff),
        timeout=span_s(options.get("timeout")),
        delay=span_s(options.get("delay")),
        run_at=options.get("run_at"),
        expires_in=expires_in,
        expires_at=expires_at,
        tags=unique(options.get("tags", ())),
        meta=_encoded_meta(options.get("meta", {})),
        trace_id=options.get("trace_id"),
        fence=options.get("fence", False),
    )


def _encoded_meta(meta: Mapping[str, object]) -> msgspec.Raw:
    if not isinstance(meta, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"meta must be a mapping, not {meta!r}")
    return encode_payload(dict(meta), what="the meta")


def _keep_out_of_version_control(directory: Path) -> None:
    """The jobs and above all their key are not for the project's history."""
    ignore = directory / ".gitignore"
    if directory.is_dir() and not ignore.exists():
        with suppress(OSError):
            ignore.write_text("*\n", encoding="ascii")


def _compare_keys(engine: Engine, keyring: Keyring) -> None:
    """Refuse keys that can verify nothing of what is here, if there is anything; remember the one that signs now."""
    known = engine.facts(KEY_FACTS)
    ours = {key.fingerprint for key in keyring.keys}
    if known and not known & ours and engine.counts():
        raise ConfigError(
            "the jobs in this queue were signed with another key than the one given here, so every one of them would "
            "be rejected: give the old key too, behind the new one (HOLDFAST_SIGNING_KEY=new,old)"
        )
    signing = keyring.keys[0].fingerprint
    if signing not in known:
        engine.add_facts(KEY_FACTS, [signing])
