"""`Holdfast`: the jobs of an application, and how they are enqueued.

Where jobs are stored is in `deployment.py` and `open_engines.py`; workers are built in `worker_factory.py`.
"""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from holdfast import __version__
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.config import Settings
from holdfast.cron.declared import DeclaredSchedules, NamedSchedule
from holdfast.dead_letters import DeadLetters
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.definition import check_breaker, check_definition, check_queue
from holdfast.deployment import DEFAULT, Deployment
from holdfast.errors import ConfigError, DefinitionError, HoldfastError, UnknownParent
from holdfast.execution.retry import RetryPolicy
from holdfast.execution.timeout import JobTimeout
from holdfast.extensions import Extensions
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.handlers import COMMAND_KEY, CommandHandler, Handler, HandlerRegistry, check_command
from holdfast.job import AnyJob, JobDecorator, no_attribute
from holdfast.metrics import MetricsCollector
from holdfast.middleware import Enqueueing, Middleware
from holdfast.open_engines import OpenEngines
from holdfast.plaintext import abridged
from holdfast.queues.contract import Engine
from holdfast.queues.opening import Mode
from holdfast.rates import parse_rate
from holdfast.state.breakers import Breaker, Breakers, rule_of
from holdfast.state.facts import COMMAND_FACTS, Facts
from holdfast.state.limits import Limiter, queue_bucket
from holdfast.values import Accepted, JobEnvelope, OnConflict, Progress, ScheduleSource, WorkerResult
from holdfast.worker_factory import WorkerFactory

if TYPE_CHECKING:
    from holdfast.cron.runner import CronRunner
    from holdfast.cron.schedule import Schedule
    from holdfast.cron.stored import Definitions, Schedules
    from holdfast.worker import QueueWorker, WorkerLoop

H = TypeVar("H", bound=type[Handler])

# A library is silent unless the program adds a handler, as the command line does.
logging.getLogger("holdfast").addHandler(logging.NullHandler())

# Methods of Celery, Huey, Dramatiq and Django's tasks.
_ELSEWHERE: Final = {
    **dict.fromkeys(("task", "actor", "shared_task"), "@hf.job"),
    "send_task": 'hf.define("name", {"argument": value}).dispatch()',
}


class Batch:
    """Jobs that are ready to be stored: checked, signed, and all in one engine."""

    def __init__(self, engine: Engine, definitions: Sequence[JobDefinition], envelopes: Sequence[JobEnvelope]) -> None:
        self.engine = engine
        self.definitions = definitions
        self.envelopes = envelopes
        self._accepted: Sequence[Accepted] = ()

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs. Once they are stored, a duplicate has the id of the job with its unique key."""
        return [one.id for one in self._accepted or self.envelopes]

    def accept(self, tx: object | None = None) -> list[Accepted]:
        """Store all of them, or none. A job whose unique key is taken is not stored; with `on_conflict="replace"`, the
        job that has the key gets its payload and due time instead.
        """
        accepted = self.engine.accept(self.envelopes, tx)
        for at, answer in enumerate(accepted):
            if not answer.created:
                definition, envelope = self.definitions[at], self.envelopes[at]
                if definition.on_conflict is OnConflict.REPLACE and answer.id != envelope.id:
                    accepted[at] = self._replace(answer, definition, envelope, tx)
        self._accepted = accepted
        return accepted

    def _replace(
        self, existing: Accepted, definition: JobDefinition, envelope: JobEnvelope, tx: object | None
    ) -> Accepted:
        """Replace the job that has the key, unless it has started. If the key has become free, store the new job."""
        while True:
            # A message is signed for one id, so the new message is signed again for the id of the job that it replaces.
            if self.engine.reschedule([self.engine.envelopes.make(definition, id=existing.id)], tx) == [True]:
                return Accepted(id=existing.id, created=False, replaced=True)
            [answer] = self.engine.accept([envelope], tx)
            if answer.created or answer.id == existing.id:
                return answer
            existing = answer


class Holdfast:
    """The jobs of an application: which functions are jobs, where jobs are stored, and how workers run them."""

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
        deployment = deployment or Deployment.configured(
            url,
            backends=backends,
            routes=routes,
            settings=settings,
            directory=directory,
            signing_key=signing_key,
            clock=clock,
        )
        self.settings = deployment.settings
        self.commands = CommandHandler(self.settings.allowed_commands if allowed_commands is None else allowed_commands)
        self.registry = HandlerRegistry(self.settings.allowlist if allowlist is None else allowlist)
        self.registry.register(COMMAND_KEY, self.commands)
        self.extensions = Extensions(
            self.settings,
            deployment.project.directory,
            middleware=middleware,
            metrics=metrics,
            retry_policy=retry_policy,
        )
        self.jobs: dict[str, AnyJob] = {}
        """The jobs made with `job`, by key."""
        self.schedules = DeclaredSchedules(lambda queue: self.deployment.name_for(queue))
        """Defines schedules: `@hf.schedules` decorates a function that receives a scheduler."""
        self.job = JobDecorator(self, self.registry, self.jobs, self.schedules)
        """Makes a plain or async function a job: `@hf.job`, or with options `@hf.job(queue="mail")`."""
        self.workers = WorkerFactory(
            self.registry, self.jobs, self.commands, self.extensions, self.settings, version=__version__
        )
        self.engines = OpenEngines(deployment, self.workers)
        self.dead_letters = DeadLetters(self, self.settings.dead_letters, deployment.clock, self.settings.default_queue)
        """Stores the application's own dead letters."""

    @property
    def deployment(self) -> Deployment:
        """The backends of this application."""
        return self.engines.deployment

    @property
    def metrics(self) -> MetricsCollector:
        """The collector of this application's metrics."""
        return self.extensions.metrics

    def backend(self, name: str = DEFAULT) -> Engine:
        """The engine of a backend, opened when it is first used."""
        return self.engines.get(name).engine

    def backend_for(self, queue: str | None) -> Engine:
        """The engine that a queue is in; None stands for the default queue."""
        return self.backend(self.deployment.name_for(queue))

    def create_schema(self, backend: str | None = None) -> None:
        """Create or update the schema of one backend, or of all. On a server, this needs no signing key."""
        for name in self.deployment.urls if backend is None else (backend,):
            self.deployment.open(name, Mode.MIGRATE).engine.close()

    def handler(self, key: str) -> Callable[[H], H]:
        """Register a handler class under a key."""
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] - easily forgotten
            raise DefinitionError('a handler class needs a key; write  @hf.handler("name")  above it')

        def register(handler: H) -> H:
            self.registry.register(key, handler)
            return handler

        return register

    def override(
        self, factory: Callable[..., object], replacement: Callable[..., object]
    ) -> AbstractContextManager[None]:
        """Use `replacement` for dependencies on `factory`, in jobs that run in this process inside the `with` block.

        For tests. The replacement is itself a factory and can have dependencies.
        """
        return self.registry.override(factory, replacement)

    def define(self, handler: str, payload: object = None) -> JobBuilder:
        """Describe a job step by step; `dispatch()` enqueues it."""
        return JobBuilder(handler, payload, enqueuer=self)

    def schedule(self, name: str) -> NamedSchedule:
        """Create or change a schedule at run time: `hf.schedule("nightly").job(report).daily_at("01:00")`,
        and then `save()`.
        """
        return NamedSchedule(name, self)

    def stored_schedules(self, backend: str = DEFAULT) -> "Schedules":
        """The schedules that are stored in a backend."""
        from holdfast.cron.stored import Schedules  # not at the top: programs that only enqueue need no schedules

        return Schedules(*self.engines.get(backend))

    def schedules_with(self, name: str) -> "Schedules":
        """The schedules of the backend that has the one with this name, or of the default backend."""
        for backend in self.deployment.others:
            schedules = self.stored_schedules(backend)
            if schedules.cells.get([name]):
                return schedules
        return self.stored_schedules()

    def save_schedule(self, schedule: "Schedule") -> None:
        """Store a schedule in the backend of its job's queue."""
        schedule = self.checked_schedule(schedule)
        self.stored_schedules(self.deployment.name_for(schedule.definition.queue)).save(schedule)

    def checked_schedule(self, schedule: "Schedule") -> "Schedule":
        """Return the schedule with the queue of its job. Jobs that no worker could run are refused."""
        definition = schedule.definition
        if definition.queue is None:
            definition = msgspec.structs.replace(definition, queue=self.settings.default_queue)
        with _named(f"schedule '{schedule.name}'"):
            self._check(definition, self.backend_for(definition.queue))
        return msgspec.structs.replace(schedule, definition=definition)

    def declared_schedules(self, backend: str = DEFAULT) -> "Definitions":
        """The schedules that the application's code defines for a backend."""
        from holdfast.cron.stored import Definitions

        schedules = tuple(
            self.checked_schedule(one)
            for one in self.schedules.definitions()
            if self.deployment.name_for(one.definition.queue) == backend
        )
        return Definitions(
            source=ScheduleSource.CODE,
            origin=self.schedules.origin,
            schedules=schedules,
            build=self.settings.build,
        )

    def configured_schedules(self, backend: str = DEFAULT) -> "Definitions":
        """The schedules that the settings define for a backend."""
        from holdfast.config.schedules import configured_schedules, schedules_origin
        from holdfast.cron.stored import Definitions

        return Definitions(
            source=ScheduleSource.CONFIG,
            origin=schedules_origin(self.settings),
            schedules=tuple(
                one
                for one in configured_schedules(self.settings)
                if self.deployment.name_for(one.definition.queue) == backend
            ),
            build=self.settings.build,
        )

    def cron_runner(self, backend: str = DEFAULT, *, environment: str | None = None) -> "CronRunner":
        """A runner that fires the schedules of a backend in an environment (default: the setting environment), and
        stores those that the code and the settings define.
        """
        from holdfast.cron.runner import CronRunner

        definitions = [self.configured_schedules(backend)]
        if self.schedules.origin:
            definitions.append(self.declared_schedules(backend))
        return CronRunner(
            *self.engines.get(backend),
            environment=self.settings.environment if environment is None else environment,
            definitions=definitions,
        )

    def enqueue(self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None) -> str:
        """Enqueue one job of this definition and return its id.

        `tx` is a connection to the engine's own database, which must be SQLite, PostgreSQL or MySQL: the driver's, a
        SQLAlchemy connection or session, or Django's. The job is stored if its transaction commits.
        """
        return self.dispatch(definition, id=id, tx=tx).id

    def dispatch(
        self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None, returns: Any = Any
    ) -> JobHandle[Any]:
        """Enqueue one job of this definition and return its handle; the result is decoded as the type `returns`."""
        check_definition(definition)
        with self.signed([definition], [id]) as batch:
            [accepted] = batch.accept(tx)
        return JobHandle(accepted.id, batch.engine, batch.engine.clock, returns=returns, outcome=accepted.outcome)

    def enqueue_many(
        self,
        definitions: Iterable[JobDefinition],
        *,
        ids: Iterable[str | None] | None = None,
        tx: object | None = None,
    ) -> list[str]:
        """Enqueue one job of each definition, all or none, in one round trip; with `tx`, in your own transaction.

        `ids` has one id for each definition, in the same order; None generates one. Default: all are generated.
        """
        with self.signed(_listed_definitions(definitions), _listed_ids(ids)) as batch:
            accepted = batch.accept(tx)
        return [one.id for one in accepted]

    def dispatch_many(
        self,
        definitions: Iterable[JobDefinition],
        *,
        ids: Iterable[str | None] | None = None,
        tx: object | None = None,
    ) -> list[JobHandle[Any]]:
        """Enqueue like `enqueue_many`, but return handles, whose `outcome` is what was done for each job."""
        with self.signed(_listed_definitions(definitions), _listed_ids(ids)) as batch:
            accepted = batch.accept(tx)
        engine = batch.engine
        return [JobHandle(one.id, engine, engine.clock, outcome=one.outcome) for one in accepted]

    async def enqueue_async(self, definition: JobDefinition, *, id: str | None = None) -> str:
        """Enqueue one job of this definition without blocking the event loop, and return its id."""
        return (await self.dispatch_async(definition, id=id)).id

    async def dispatch_async(
        self, definition: JobDefinition, *, id: str | None = None, returns: Any = Any
    ) -> AsyncJobHandle[Any]:
        """Enqueue one job of this definition without blocking the event loop, and return its handle."""
        import asyncio  # not at the top: programs without an event loop need not load it

        return AsyncJobHandle(await asyncio.to_thread(self.dispatch, definition, id=id, returns=returns))

    async def enqueue_many_async(
        self, definitions: Iterable[JobDefinition], *, ids: Iterable[str | None] | None = None
    ) -> list[str]:
        """Enqueue one job of each definition, all or none, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.enqueue_many, _listed_definitions(definitions), ids=_listed_ids(ids))

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
        if hooks:  # they see the queue that the job will be on
            default = self.settings.default_queue
            definitions = [one if one.queue else msgspec.structs.replace(one, queue=default) for one in definitions]
        with Enqueueing(hooks, definitions) as enqueueing:
            definitions = enqueueing.definitions
            backend = self.backend_of(definitions)
            engine = self.backend(backend)
            if ids is not None and len(ids) != len(definitions):
                raise DefinitionError(
                    f"{len(ids)} ids for {len(definitions)} definitions; pass one for each, or None for a new id"
                )
            envelopes: list[JobEnvelope] = []
            if ids is None and names is None:
                declares = bool(self.settings.queues)
                for definition in definitions:
                    # Most jobs need no check, and a call for each of them shows in the throughput.
                    if declares or definition.handler == COMMAND_KEY or definition.dead_letter_to is not None:
                        self._check(definition, engine)
                envelopes = engine.envelopes.make_many(definitions)
            else:
                for number, definition in enumerate(definitions):
                    with _named(names[number] if names else ""):
                        self._check(definition, engine)
                        envelopes.append(engine.envelopes.make(definition, id=ids[number] if ids else None))
            batch = Batch(engine, definitions, envelopes)
            try:
                yield batch
            except UnknownParent as problem:
                raise self._located(problem, backend) from None
            enqueueing.ids = batch.ids

    def _located(self, problem: UnknownParent, backend: str) -> UnknownParent:
        """The error about a parent that is not in this backend, with the backend that it is in, if it is in another."""
        for other in self.deployment.urls:
            with suppress(HoldfastError):  # an unavailable backend must not hide the error
                if other != backend and self.backend(other).get(problem.parent) is not None:
                    return UnknownParent(problem.job_id, problem.parent, (backend, other))
        return problem

    def backend_of(self, definitions: Sequence[JobDefinition]) -> str:
        """The one backend that all of these jobs belong to: a batch is atomic only within one engine."""
        if len(definitions) == 1:
            return self.deployment.name_for(definitions[0].queue)
        try:
            return self.deployment.name_for_all(definition.queue for definition in definitions)
        except ConfigError as problem:
            raise DefinitionError(f"these jobs cannot be enqueued atomically: {problem}") from None

    def _check(self, definition: JobDefinition, engine: Engine) -> None:
        """Refuse a job that no worker could run, or whose dead letter could not be copied."""
        if self.settings.queues and definition.queue is not None:
            self.deployment.check_declared(definition.queue)
        if definition.handler == COMMAND_KEY:
            self._check_command(definition, engine)
        if definition.dead_letter_to is not None:
            self._check_dead_letter(definition.queue or self.settings.default_queue, definition.dead_letter_to)

    def _check_dead_letter(self, queue: str, to: str) -> None:
        self.deployment.check_declared(to)
        ours, theirs = self.deployment.name_for(queue), self.deployment.name_for(to)
        if ours != theirs:
            raise DefinitionError(
                f"dead_letter_to must be a queue in the same backend: queue '{queue}' is in backend '{ours}', "
                f"queue '{to}' in backend '{theirs}'"
            )

    def _check_command(self, definition: JobDefinition, engine: Engine) -> None:
        """Refuse a command that neither the settings nor any worker of this engine allows."""
        try:
            argv = self.commands.decode(bytes(definition.payload)).argv
        except msgspec.ValidationError as problem:
            raise DefinitionError(f"a command job needs a payload like {{'argv': ['sleep', '2']}}: {problem}") from None
        if not argv or argv[0] not in self.commands.allowed:
            check_command(argv, self.commands.allowed | Facts(engine.state).of(COMMAND_FACTS))

    def handle(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> JobHandle[Any]:
        """The handle of a job by its id, in the backend of `queue` (default: the setting default-queue)."""
        engine = self.backend_for(queue)
        return JobHandle(job_id, engine, engine.clock, returns=returns)

    def handle_async(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> AsyncJobHandle[Any]:
        """The handle of a job by its id, for an event loop."""
        return AsyncJobHandle(self.handle(job_id, queue=queue, returns=returns))

    def limiter(
        self,
        name: str | None = None,
        rate: str | float | None = None,
        *,
        burst: int | None = None,
        queue: str | None = None,
    ) -> Limiter:
        """A rate limit that all processes share: your own, such as `hf.limiter("maps", "100/s")`, or that of a queue.
        It is stored in the default backend, or in the backend of the queue.

        `burst` is the maximum number of uses at once; default: the number for one second, at least 1.
        """
        if queue is not None:
            if name is not None or rate is not None or burst is not None:
                raise DefinitionError("the limit of a queue is a setting; pass only the queue, or a name and a rate")
            return self._queue_limiter(queue)
        if not name or rate is None:
            raise DefinitionError('a limiter needs a name and a rate, as in  hf.limiter("maps", "100/s")')
        try:
            parsed = parse_rate(rate, burst=burst)
        except ValueError as problem:
            raise DefinitionError(f"limiter '{name}', rate {rate!r}: {problem}") from None
        if parsed is None:
            raise DefinitionError(f"limiter '{name}': the rate must be greater than 0, such as 100/s")
        return Limiter(f"limiter '{name}'", f"limiter:{name}", parsed, lambda: self.backend().state)

    def _queue_limiter(self, queue: str) -> Limiter:
        rate = self.settings.rate_of(check_queue(queue))
        return Limiter(f"queue '{queue}'", queue_bucket(queue), rate, lambda: self.backend_for(queue).state)

    def breaker(
        self,
        name: str,
        *,
        failures: int | None = None,
        cooldown: str | float | timedelta | None = None,
        on: type[Exception] | tuple[type[Exception], ...] = Exception,
        backend: str = DEFAULT,
    ) -> Breaker:
        """The circuit breaker with this name, which all processes share: `with hf.breaker("stripe"): ...`.

        After `failures` failures in a row, calls raise `CircuitOpen` for the `cooldown`; then one trial call decides.
        Exceptions of the types in `on` are failures, and so is a job that times out; others show that the service
        responds. Defaults: the settings `breaker-failures` and `breaker-cooldown`. Each backend has its own circuits.
        """
        check_breaker(name)
        rule = rule_of(
            self.settings.breaker_failures if failures is None else failures,
            self.settings.breaker_cooldown if cooldown is None else cooldown,
        )
        counted = on if isinstance(on, tuple) else (on,)
        if not counted or not all(isinstance(one, type) and issubclass(one, Exception) for one in counted):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"breaker '{name}': on must be an exception type, or a tuple of them, not {on!r}")
        return Breaker(lambda: Breakers(self.backend(backend).state), name, rule, (*counted, JobTimeout))

    def worker(
        self,
        *,
        backend: str = DEFAULT,
        tee: Callable[[str], None] | None = None,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> "QueueWorker":
        """A worker in this process. `tee` gets a job's output while it runs, `on_progress` its progress reports."""
        return self.workers.worker(self.engines.get(backend), tee=tee, on_progress=on_progress)

    def loop(
        self,
        worker: "QueueWorker",
        queues: Sequence[str] = (),
        *,
        burst: bool = False,
        max_jobs: int = 0,
        on_result: Callable[[WorkerResult], None] | None = None,
    ) -> "WorkerLoop":
        """A loop in which a worker processes one job after another; `run()` it. Default: the default queue."""
        return self.workers.loop(worker, queues, burst=burst, max_jobs=max_jobs, on_result=on_result)

    def close(self) -> None:
        """Close every engine. An engine that is used again is reopened."""
        self.engines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE.get(name, ""))


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
    # A string would be taken for a list of its letters, each of which could be an id.
    if isinstance(ids, str):
        raise DefinitionError(
            f"ids must be a list with one id for each definition, like ['{abridged(ids)}'], not a string"
        )
    return None if ids is None else list(ids)
