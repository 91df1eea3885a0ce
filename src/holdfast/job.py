"""`Job`: a function that is also a job."""

from collections.abc import Callable, Coroutine, Mapping
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from holdfast.definition import JobDefinition, JobOptions, definition_of
from holdfast.definition.definition import refuse_id
from holdfast.handle import AsyncJobHandle, JobHandle
from holdfast.handlers import FunctionHandler, JobContext
from holdfast.handlers.dependencies import Factory

P = ParamSpec("P")
R = TypeVar("R")
C_co = TypeVar("C_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Application(Protocol):
    """An application: it stores jobs and knows their state."""

    def dispatch(
        self, definition: JobDefinition, *, id: str | None = None, tx: object | None = None, returns: Any = Any
    ) -> JobHandle[Any]: ...

    async def dispatch_async(
        self, definition: JobDefinition, *, id: str | None = None, returns: Any = Any
    ) -> AsyncJobHandle[Any]: ...

    def handle(self, job_id: str, *, queue: str | None = None, returns: Any = Any) -> JobHandle[Any]: ...


class Job(Generic[P, C_co, R_co]):
    """A function that is also a job: calling it calls the function, `enqueue` keeps the call for a worker.

    `C_co` is what a call returns, and `R_co` what a run does: of an async function, what is awaited.
    """

    def __init__(self, app: Application, handler: FunctionHandler, options: JobOptions) -> None:
        self._app = app
        self._handler = handler
        self._options = options
        self.template = definition_of(handler.key, None, options)
        """The definition of a call, its arguments left out."""
        self.key = handler.key
        self.function = handler.function
        update_wrapper(self, handler.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        if self._handler.dependencies:
            self._handler.check_call(args, kwargs)
        return cast("C_co", self.function(*args, **kwargs))

    def handler_for(self, key: str, overrides: Mapping[Factory, Factory]) -> FunctionHandler:
        """What runs this job, under a key of another application."""
        return FunctionHandler(self.function, key=key, no_retry=self._handler.no_retry, overrides=overrides)

    def options(self, **options: Unpack[JobOptions]) -> "Job[P, C_co, R_co]":
        """The same job with other options."""
        return Job(self._app, self._handler, {**self._options, **options})

    def define(self, *args: P.args, **kwargs: P.kwargs) -> JobDefinition:
        """The definition of this call; an invalid argument is an error here, not in the worker.

        A definition has no id, so an `id` among the options is an error here, too.
        """
        definition, job_id = self.definition_and_id(*args, **kwargs)
        refuse_id(job_id)
        return definition

    def definition_and_id(self, *args: P.args, **kwargs: P.kwargs) -> tuple[JobDefinition, str | None]:
        """The definition of this call, and the id to enqueue it under, if the options have one."""
        definition = msgspec.structs.replace(self.template, payload=self._handler.payload_of(*args, **kwargs))
        return definition, self._options.get("id")

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
        definition, job_id = self.definition_and_id(*args, **kwargs)
        return self._app.dispatch(definition, id=job_id, tx=tx, returns=self._handler.returns)

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJobHandle[R_co]:
        """Keep this call for a worker, while the event loop goes on."""
        definition, job_id = self.definition_and_id(*args, **kwargs)
        return await self._app.dispatch_async(definition, id=job_id, returns=self._handler.returns)

    if not TYPE_CHECKING:

        @property
        def enqueue_many(self) -> None:
            """Looked for here, and found at the application; type checkers know that there is none."""
            raise AttributeError(
                f"a job has no enqueue_many: write  hf.enqueue_many([{self.function.__name__}.define(...), ...])",
                name="enqueue_many",
                obj=self,
            )

    def handle(self, job_id: str) -> JobHandle[R_co]:
        """What is known of a job that was enqueued by this one; its result is read as the function declares it."""
        return self._app.handle(job_id, queue=self.template.queue, returns=self._handler.returns)


class ContextJob(Job[P, C_co, R_co]):
    """A job whose function takes the context first: whoever enqueues it leaves that out, whoever calls it does not."""

    if TYPE_CHECKING:

        def __call__(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> C_co: ...  # type: ignore[override]
        def options(self, **options: Unpack[JobOptions]) -> "ContextJob[P, C_co, R_co]": ...


class Unknown:
    """Nobody has one: a parameter that takes it takes anything."""


class JobDecorator(Protocol):
    """What `@hf.job(...)` makes of a function.

    The order matters. A function whose first parameter takes anything, or is not annotated, would seem to take the
    context: of such a one the type checkers are told nothing about the parameters.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[Unknown, ...], Coroutine[Any, Any, R]], /
    ) -> Job[..., Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Unknown, ...], R], /) -> Job[..., R, R]: ...
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
