"""`Job`: a function that is also a job; and `JobDecorator`, which makes jobs from functions."""

from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from holdfast.cron.declared import DeclaredSchedules
from holdfast.dead_letters import DEAD_LETTER_KEY
from holdfast.definition import JobDefinition, JobOptions, definition_of
from holdfast.definition.definition import check_options, refuse_id
from holdfast.errors import DefinitionError
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.handlers import FunctionHandler, HandlerRegistry, JobContext
from holdfast.handlers.dependencies import Factory

P = ParamSpec("P")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

# Methods of Celery, Dramatiq, Huey, Procrastinate, Taskiq and Django's tasks, and of `Holdfast` itself.
_ELSEWHERE: Final = {
    **dict.fromkeys(("delay", "send", "defer"), "{job}.enqueue(...)"),
    **dict.fromkeys(("kiq", "defer_async", "aenqueue"), "await {job}.enqueue_async(...)"),
    **dict.fromkeys(("apply_async", "send_with_options", "schedule"), "{job}.options(delay=...).enqueue(...)"),
    **dict.fromkeys(("set", "using", "configure"), "{job}.options(...)"),
    "enqueue_many": "hf.enqueue_many([{job}.define(...), ...])",
}


class Application(Protocol):
    """An application: it stores jobs and can look them up."""

    def dispatch(
        self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None, returns: Any = Any
    ) -> JobHandle[Any]: ...

    async def dispatch_async(
        self, definition: JobDefinition, *, id: str | None = None, returns: Any = Any
    ) -> AsyncJobHandle[Any]: ...

    def handle(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> JobHandle[Any]: ...


class Job(Generic[P, C_co, R_co]):
    """A function that is also a job. Calling it calls the function; `enqueue` stores the call for a worker.

    `C_co` is the type of a call. `R_co` is the type of the result, which for an async function is the awaited value.
    """

    def __init__(self, app: Application, handler: FunctionHandler, options: JobOptions) -> None:
        self._app = app
        self._handler = handler
        self._options = options
        self.template = definition_of(handler.key, None, options)
        """The definition of a call without its arguments."""
        self.key = handler.key
        self.function = handler.function
        update_wrapper(self, handler.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        if self._handler.dependencies:
            self._handler.check_call(args, kwargs)
        return cast("C_co", self.function(*args, **kwargs))

    def handler_for(self, key: str, overrides: Mapping[Factory, Factory]) -> FunctionHandler:
        """A handler that runs this job under a key of another application."""
        return FunctionHandler(self.function, key=key, no_retry=self._handler.no_retry, overrides=overrides)

    def options(self, **options: Unpack[JobOptions]) -> "Job[P, C_co, R_co]":
        """The same job with other options."""
        return Job(self._app, self._handler, {**self._options, **options})

    def define(self, *args: P.args, **kwargs: P.kwargs) -> JobDefinition:
        """The definition of this call. An invalid argument is an error here, not in the worker.

        A definition has no id, so it is also an error if the options contain one.
        """
        definition, job_id = self.definition_and_id(*args, **kwargs)
        refuse_id(job_id)
        return definition

    def definition_and_id(self, *args: P.args, **kwargs: P.kwargs) -> tuple[JobDefinition, str | None]:
        """The definition of this call, and the id from the options, if they contain one."""
        try:
            payload = self._handler.payload_of(*args, **kwargs)
        except DefinitionError as problem:
            raise self._with_hint(problem, kwargs) from problem.__cause__
        return self.template.with_encoded(payload), self._options.get("id")

    def _with_hint(self, problem: DefinitionError, kwargs: Mapping[str, object]) -> DefinitionError:
        """The error of a call, with advice if a job option was passed as if it were an argument of the function."""
        options = [name for name in kwargs if name in JobOptions.__optional_keys__ and not self._handler.takes(name)]
        if not options:
            return problem
        written = ", ".join(f"{name}=..." for name in options)
        return type(problem)(f"{problem}; to set job options, write  {self._name}.options({written}).enqueue(...)")

    # No single signature can combine a parameter of our own with those of the function. With `tx`, type checkers
    # therefore check nothing; the arguments are checked when the job is enqueued.
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    @overload
    def enqueue(self, *args: Any, tx: object | None, **kwargs: Any) -> JobHandle[R_co]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle[R_co]:
        """Store this call for a worker. With `tx=connection`, it is stored if that transaction commits.

        If the function has a parameter named `tx`, the argument goes to the function. In that case write
        `hf.enqueue(job.define(...), tx=connection)`.
        """
        tx = None if self._handler.takes("tx") else kwargs.pop("tx", None)
        definition, job_id = self.definition_and_id(*args, **kwargs)
        return self._app.dispatch(definition, id=job_id, tx=tx, returns=self._handler.returns)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R_co]:
        """Store this call for a worker without blocking the event loop."""
        definition, job_id = self.definition_and_id(*args, **kwargs)
        return await self._app.dispatch_async(definition, id=job_id, returns=self._handler.returns)

    def handle(self, job_id: str) -> JobHandle[R_co]:
        """The handle of a job that was enqueued by this one; its result has the type that the function declares."""
        return self._app.handle(job_id, queue=self.template.queue, returns=self._handler.returns)

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", "job"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            instead = _ELSEWHERE[name].format(job=self._name) if name in _ELSEWHERE else ""
            raise no_attribute(self, name, instead)


class ContextJob(Job[P, C_co, R_co]):
    """A job whose function takes the context first: pass it to call the function, leave it out to enqueue the job."""

    if TYPE_CHECKING:

        def __call__(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> C_co: ...  # type: ignore[override]
        def options(self, **options: Unpack[JobOptions]) -> "ContextJob[P, C_co, R_co]": ...


AnyJob: TypeAlias = Job[..., Any, Any]


class _Unknown:
    """A type that no value has. A parameter that accepts it accepts anything."""


class JobDecorator:
    """Makes a plain or async function a job: `@hf.job`, or with options `@hf.job(queue="mail", key="welcome")`.

    The order of the overloads matters. A function whose first parameter accepts anything or is not annotated would
    otherwise match as one that takes the context. The parameters of such a function are not checked by type checkers.
    """

    def __init__(
        self,
        app: Application,
        registry: HandlerRegistry,
        jobs: dict[str, AnyJob],
        schedules: DeclaredSchedules,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._app = app
        self._registry = registry
        self._jobs = jobs
        self._schedules = schedules
        self._options = options or {}

    @overload
    def __call__(
        self, function: Callable[Concatenate[_Unknown, ...], Coroutine[Any, Any, R]], /
    ) -> Job[..., Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Unknown, ...], R], /) -> Job[..., R, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> ContextJob[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> ContextJob[P, R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R, R]: ...
    @overload
    def __call__(
        self,
        /,
        *,
        key: str | None = None,
        no_retry: Collection[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Unpack[JobOptions],
    ) -> "JobDecorator": ...
    def __call__(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        options = {**self._options, **options}
        if function is None:
            return JobDecorator(self._app, self._registry, self._jobs, self._schedules, options)
        return self._register(function, **options)

    def _register(
        self,
        function: Callable[..., Any],
        /,
        *,
        key: str | None = None,
        no_retry: Collection[type[BaseException]] = (),
        cron: str | None = None,
        timezone: str | None = None,
        **options: Unpack[JobOptions],
    ) -> AnyJob:
        check_options(options, "key", "no_retry", "cron", "timezone")
        handler = FunctionHandler(function, key=key, no_retry=no_retry, overrides=self._registry.overrides)
        if handler.key == DEAD_LETTER_KEY and not handler.takes("letter"):
            raise DefinitionError(
                f"the handler '{DEAD_LETTER_KEY}' receives its dead letter in a parameter named letter; write  "
                f"def {getattr(function, '__name__', 'on_death')}(letter: DeadLetter)"
            )
        job = AnyJob(self._app, handler, options)  # raises on invalid options, before the handler is registered
        if cron is not None:
            self._schedules.add(_without_arguments(job), cron, timezone, function)
        elif timezone is not None:
            raise DefinitionError(f"job '{handler.key}': timezone has no effect without cron; set cron as well")
        self._registry.register(handler.key, handler)
        self._jobs[job.key] = job
        return job


def _without_arguments(job: AnyJob) -> JobDefinition:
    """The definition of the call that a schedule makes."""
    try:
        return job.define()
    except DefinitionError as problem:
        raise DefinitionError(
            f"a job with cron is called without arguments, so each needs a default: {problem}; or pass arguments in a "
            "function with @hf.schedules"
        ) from problem.__cause__


def no_attribute(owner: object, name: str, instead: str = "") -> AttributeError:
    """The error for an attribute that does not exist, with what to write instead if that is known."""
    hint = f"; write  {instead}" if instead else ""
    return AttributeError(f"'{type(owner).__name__}' object has no attribute '{name}'{hint}", name=name, obj=owner)
