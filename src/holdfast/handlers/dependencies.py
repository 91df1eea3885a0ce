"""`Depends`: parameters that a factory provides for each run, and cleans up when the run ends."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from types import TracebackType
from typing import Annotated, Any, Final, Self, TypeAlias, TypeVar, get_args, get_origin, overload

from msgspec import Struct

from holdfast.errors import DefinitionError
from holdfast.handlers.contract import Cancel, JobContext, Snooze

T = TypeVar("T")
Factory: TypeAlias = Callable[..., Any]
_EMPTY: Final = inspect.Parameter.empty
_UNNAMED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Dependency(Struct, frozen=True):
    """The value of `Depends(factory)` in a signature; without a factory, the annotation has to name it."""

    factory: Factory | None


# To a type checker, the call has the type of the parameter, so that it can be its default.
@overload
def Depends() -> Any: ...
@overload
def Depends(factory: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Depends(factory: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Depends(factory: Callable[..., Awaitable[T]], /) -> T: ...
@overload
def Depends(factory: Callable[..., T], /) -> T: ...
def Depends(factory: Factory | None = None, /) -> Any:
    """Declare a parameter that each run gets from a factory: `session: Session = Depends(open_session)`.

    The factory is a function or class, plain or async. A generator yields the value once and continues when the run
    has ended, with the run's exception raised at the `yield`. The parameters of a factory are dependencies themselves,
    or annotated `JobContext`, or have defaults. Each factory is called once per run.

    `Annotated[Session, Depends(open_session)]` names the factory in the annotation; the default `= Depends()` then
    makes the parameter optional for callers.
    """
    if factory is not None and not callable(factory):
        raise DefinitionError(f"Depends({factory!r}): pass the function that creates the value, not the value")
    try:
        hash(factory)
    except TypeError as problem:
        raise DefinitionError(f"the dependency {factory!r} must be hashable: {problem}") from problem
    return Dependency(factory)


class _Kind(Enum):
    PLAIN = "plain"
    COROUTINE = "async"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"

    @property
    def is_async(self) -> bool:
        return self in (_Kind.COROUTINE, _Kind.ASYNC_GENERATOR)


class Provider(Struct, frozen=True):
    """A factory, its kind, and the factories of its parameters; None stands for the context."""

    factory: Factory
    kind: _Kind
    needs: tuple[tuple[str, Factory | None], ...]

    @property
    def name(self) -> str:
        return name_of(self.factory)


def name_of(factory: Factory) -> str:
    """The name of a factory in error messages."""
    return str(getattr(factory, "__qualname__", factory))


def dependency_of(parameter: inspect.Parameter, *, what: str) -> Factory | None:
    """The factory of a parameter, if it declares one."""
    declared = parameter.default if isinstance(parameter.default, Dependency) else None
    annotated = _annotated(parameter.annotation)
    found = [one.factory for one in (declared, annotated) if one is not None and one.factory is not None]
    if found:
        return found[0]
    if declared is not None or annotated is not None:
        name = parameter.name
        raise DefinitionError(
            f"{what}: Depends() for '{name}' has no factory; write  {name}: T = Depends(factory)  "
            f"or  {name}: Annotated[T, Depends(factory)] = Depends()"
        )
    return None


def may_depend(parameter: inspect.Parameter) -> bool:
    """Whether a parameter may declare a factory."""
    if isinstance(parameter.default, Dependency) or isinstance(parameter.annotation, str):
        return True  # a string may name an `Annotated[…, Depends(…)]`
    return _annotated(parameter.annotation) is not None


def _annotated(annotation: Any) -> Dependency | None:
    if get_origin(annotation) is not Annotated:
        return None
    return next((one for one in get_args(annotation)[1:] if isinstance(one, Dependency)), None)


def provider_of(factory: Factory) -> Provider:
    """The kind and the needs of a factory. Raises `DefinitionError` if it cannot be called."""
    try:
        return _provider_of(factory)
    except TypeError as problem:
        raise DefinitionError(f"the dependency {factory!r} must be hashable: {problem}") from problem


@lru_cache(maxsize=1024)
def _provider_of(factory: Factory) -> Provider:
    what = f"dependency '{name_of(factory)}'"
    kind = _kind_of(factory)
    wrapped = inspect.unwrap(factory)
    if kind is _Kind.PLAIN and (inspect.isgeneratorfunction(wrapped) or inspect.isasyncgenfunction(wrapped)):
        raise DefinitionError(
            f"{what} is decorated with @contextmanager or similar; depend on the undecorated generator function"
        )
    needs: list[tuple[str, Factory | None]] = []
    for parameter in parameters_of(factory, what):
        inner = dependency_of(parameter, what=what)
        if inner is not None:
            needs.append((parameter.name, inner))
        elif parameter.annotation is JobContext:
            needs.append((parameter.name, None))
        elif parameter.default is _EMPTY and parameter.kind not in _UNNAMED:
            raise DefinitionError(
                f"{what}: parameter '{parameter}' has no value and no default; make it a dependency (Depends), "
                "annotate it with JobContext, or give it a default"
            )
    return Provider(factory, kind, tuple(needs))


def _kind_of(factory: Factory) -> _Kind:
    called = factory if inspect.isroutine(factory) or inspect.isclass(factory) else getattr(factory, "__call__", None)  # noqa: B004
    for function in (factory, called):
        if inspect.isasyncgenfunction(function):
            return _Kind.ASYNC_GENERATOR
        if inspect.isgeneratorfunction(function):
            return _Kind.GENERATOR
        if inspect.iscoroutinefunction(function):
            return _Kind.COROUTINE
    return _Kind.PLAIN


def parameters_of(factory: Factory, what: str) -> list[inspect.Parameter]:
    """The parameters of a callable, with evaluated annotations; `what` names the callable in errors."""
    try:
        return list(inspect.signature(factory, eval_str=True).parameters.values())
    except (NameError, AttributeError, SyntaxError) as problem:
        raise DefinitionError(
            f"{what}: an annotation cannot be evaluated ({problem}); import its name where the function is defined, "
            "outside of TYPE_CHECKING"
        ) from problem
    except (TypeError, ValueError) as problem:
        raise DefinitionError(f"{what} has no readable signature ({problem}); wrap it in a def") from problem


def check_factory(
    factory: Factory, *, overrides: Mapping[Factory, Factory], is_async: bool, what: str, path: tuple[Factory, ...] = ()
) -> None:
    """Refuse a factory that depends on itself, or is async in a plain job; check its dependencies in the same way."""
    factory = overrides.get(factory, factory)
    if factory in path:
        circle = " → ".join(name_of(one) for one in (*path[path.index(factory) :], factory))
        raise DefinitionError(f"{what}: circular dependencies: {circle}")
    provider = provider_of(factory)
    if provider.kind.is_async and not is_async:
        raise DefinitionError(
            f"{what} is a plain function, which cannot await the {provider.kind.value} dependency "
            f"'{provider.name}'; make the job async, or make the dependency synchronous"
        )
    for _, inner in provider.needs:
        if inner is not None:
            check_factory(inner, overrides=overrides, is_async=is_async, what=what, path=(*path, factory))


_Opened: TypeAlias = Generator[Any, Any, Any] | AsyncGenerator[Any, Any]


class Scope:
    """The dependencies of one run: each is created once, and they are cleaned up in reverse order at the end.

    It is async code. Without async factories it never awaits anything, and `finished` can run it.
    """

    def __init__(self, context: JobContext, overrides: Mapping[Factory, Factory]) -> None:
        self._context = context
        self._overrides = overrides
        self._made: dict[Factory, object] = {}
        self._open: list[tuple[Provider, _Opened]] = []
        self.returned: object = None
        """The handler's return value: a `Snooze` or `Cancel` is raised at the `yield` of the generators."""

    async def value(self, factory: Factory) -> object:
        """The value of the factory for this run."""
        factory = self._overrides.get(factory, factory)
        if factory not in self._made:
            self._made[factory] = await self._make(provider_of(factory))
        return self._made[factory]

    async def _make(self, provider: Provider) -> object:
        arguments = {
            name: self._context if inner is None else await self.value(inner) for name, inner in provider.needs
        }
        made: Any = provider.factory(**arguments)
        match provider.kind:
            case _Kind.PLAIN:
                return made
            case _Kind.COROUTINE:
                return await made
            case _Kind.GENERATOR | _Kind.ASYNC_GENERATOR:
                # Recorded before it starts: an interrupt may arrive as soon as it has opened something.
                self._open.append((provider, made))
                try:
                    return next(made) if provider.kind is _Kind.GENERATOR else await anext(made)
                except (StopIteration, StopAsyncIteration):
                    raise RuntimeError(f"dependency '{provider.name}' yielded nothing") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, problem: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        # Off the main thread nothing is raised: a run that had to stop has returned, but still counts as stopped.
        ended_by = problem or self._context.host.stop_reason()
        if ended_by is None and isinstance(self.returned, Snooze | Cancel):
            ended_by = self.returned
        error = ended_by
        try:
            while self._open:
                provider, generator = self._open.pop()
                try:
                    await _closed(provider, generator, error)
                except BaseException as raised:
                    error = raised
            if error is not None and error is not ended_by:
                raise error
        finally:
            del error, ended_by, problem  # their tracebacks refer to this frame: the cycle would need the collector


class Injection:
    """Passes a function its dependencies, for each run of a job; `what` names the job in errors.

    `overrides` maps factories to their replacements. It is read at each run.
    """

    def __init__(
        self,
        dependencies: Mapping[str, Factory],
        overrides: Mapping[Factory, Factory],
        *,
        is_async: bool,
        what: str,
    ) -> None:
        self._dependencies = dependencies
        self._overrides = overrides
        self._is_async = is_async
        self._what = what
        self._check({})

    def call(self, function: Callable[..., object], context: JobContext, arguments: dict[str, object]) -> object:
        """Call the function with these arguments and its dependencies. For an async function, returns the coroutine."""
        running = self._call(function, context, arguments)
        return running if self._is_async else finished(running)

    async def _call(self, function: Callable[..., object], context: JobContext, arguments: dict[str, object]) -> object:
        if self._overrides:
            self._check(self._overrides)
        async with Scope(context, self._overrides) as scope:
            for name, factory in self._dependencies.items():
                arguments[name] = await scope.value(factory)
            value: Any = function(**arguments)
            scope.returned = value = await value if self._is_async else value
        return value

    def _check(self, overrides: Mapping[Factory, Factory]) -> None:
        for factory in self._dependencies.values():
            check_factory(factory, overrides=overrides, is_async=self._is_async, what=self._what)


async def _closed(provider: Provider, generator: _Opened, error: BaseException | None) -> None:
    """Run the generator to its end. If it catches the error, the run has still failed."""
    traceback = None if error is None else error.__traceback__
    try:
        if isinstance(generator, Generator):
            next(generator) if error is None else generator.throw(error)
        elif error is None:
            await anext(generator)
        else:
            await generator.athrow(error)
    except (StopIteration, StopAsyncIteration):
        return
    except BaseException as raised:
        if error is None or not (raised is error or (raised.__cause__ is error and isinstance(error, StopIteration))):
            raise
        error.__traceback__ = traceback  # without the frames of the generator
        return
    if isinstance(generator, Generator):
        generator.close()
    else:
        await generator.aclose()
    raise RuntimeError(f"dependency '{provider.name}' yielded twice; it must yield one value for each run")


def finished(coroutine: "Any") -> object:
    """The value of a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise RuntimeError("a dependency awaited something, but the job is not async; make the job async")
