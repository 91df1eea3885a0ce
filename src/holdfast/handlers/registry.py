"""`HandlerRegistry`: maps handler keys to handlers, and decides which queue may run which.

A key from a message is only looked up in a dictionary that the application has filled: a message cannot cause an
import or an attribute access.
"""

import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError, DefinitionError, HandlerForbidden, UnknownHandler
from holdfast.handlers.contract import Handler
from holdfast.handlers.dependencies import (
    Factory,
    Injection,
    check_factory,
    dependency_of,
    may_depend,
    parameters_of,
)
from holdfast.handlers.function import FunctionHandler
from holdfast.handlers.payload import check_readable
from holdfast.spelling import did_you_mean

Registrable: TypeAlias = Handler | type[Handler] | Callable[..., object]
_SHOWN = 20
_LONGEST = 200


class HandlerRegistry:
    """Keys and their handlers. The allowlist names, for each queue, the keys that its jobs may use.

    A queue that is not in the allowlist may run every registered handler; one with an empty list may run none.
    """

    def __init__(self, allowlist: Mapping[str, Collection[str]] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        self._registered: dict[str, Registrable] = {}
        self.overrides: dict[Factory, Factory] = {}
        """The replacements of factories of dependencies. The handlers created here read it at each run."""
        self._allowed = {queue: _as_keys(queue, keys) for queue, keys in (allowlist or {}).items()}

    def register(self, key: str, handler: Registrable) -> Handler:
        """Register a handler: an instance, a class that needs no arguments, or a function. Returns the handler."""
        if key in self._registered:
            if self._registered[key] is handler:
                return self._handlers[key]
            raise DefinitionError(
                f"handler key '{key}' is already used by {_name_of(self._registered[key])}; "
                f"register {_name_of(handler)} under another key"
            )
        JobDefinition(handler=key)  # checks the key
        made = _as_handler(key, handler, self.overrides)
        _inject(key, made, self.overrides)
        check_readable(made.payload_type, what=f"the payload_type of handler '{key}'")
        _check_hooks(key, made)
        _check_no_retry(key, made)
        self._registered[key] = handler
        self._handlers[key] = made
        return made

    def resolve(self, key: str) -> Handler:
        """The handler under that key."""
        try:
            return self._handlers[key]
        except KeyError:
            raise UnknownHandler(self._unknown(key)) from None

    def resolve_for(self, key: str, queue: str) -> Handler:
        """The handler under that key, if the queue may run it. A forbidden key is refused even if it is unknown."""
        allowed = self._allowed.get(queue)
        if allowed is not None and key not in allowed:
            raise HandlerForbidden(
                f"queue '{queue}' may not run handler {_quoted(key)}; its allowlist has {_listed(allowed)}: "
                "add the handler to it, or use another queue"
            )
        return self.resolve(key)

    def __contains__(self, key: object) -> bool:
        return key in self._handlers

    def keys(self) -> tuple[str, ...]:
        """Every registered key, sorted."""
        return tuple(sorted(self._handlers))

    @contextmanager
    def override(self, factory: Factory, replacement: Factory) -> Generator[None]:
        """Use `replacement` for dependencies on `factory`, in jobs that run in this process inside the `with` block."""
        if not callable(replacement):
            raise DefinitionError(f"{replacement!r} is not callable; override with a factory, such as  lambda: value")
        before = self.overrides.get(factory)
        check_factory(factory, overrides={**self.overrides, factory: replacement}, is_async=True, what="the override")
        self.overrides[factory] = replacement
        try:
            yield
        finally:
            if before is None:
                del self.overrides[factory]
            else:
                self.overrides[factory] = before

    def _unknown(self, key: str) -> str:
        guess = f" {near}" if (near := did_you_mean(key[:_LONGEST], self._handlers)) else ""
        return f"no handler {_quoted(key)} is registered;{guess} known handlers: {_listed(self._handlers)}"


def _as_handler(key: str, handler: Registrable, overrides: Mapping[Factory, Factory]) -> Handler:
    if isinstance(handler, Handler):
        return handler
    if inspect.isclass(handler):
        return _instance(key, handler)
    if callable(handler):
        return FunctionHandler(handler, key=key, overrides=overrides)
    raise DefinitionError(f"handler '{key}' must be a Handler or a function, not {handler!r}")


def _inject(key: str, handler: Handler, overrides: Mapping[Factory, Factory]) -> None:
    """Make `handle` receive the dependencies that it declares in addition to the context."""
    if isinstance(handler, FunctionHandler):
        return  # it injects them itself
    what = f"handler '{key}'"
    bare = list(inspect.signature(handler.handle).parameters.values())
    if not bare:
        raise DefinitionError(f"{what}: its handle() takes no context; write  def handle(self, context: JobContext)")
    if not any(may_depend(parameter) for parameter in bare[1:]):
        _check_passed(bare[1:], what)
        return
    dependencies: dict[str, Factory] = {}
    # Annotations are evaluated only where one may declare a dependency.
    context, *others = parameters_of(handler.handle, what)
    _check_passed([one for one in others if dependency_of(one, what=what) is None], what)
    for parameter in others:
        factory = dependency_of(parameter, what=what)
        if factory is not None:
            dependencies[parameter.name] = factory
    if dependencies:
        injection = Injection(dependencies, overrides, is_async=handler.is_async, what=what)
        handle, name = handler.handle, context.name
        handler.handle = lambda context: injection.call(handle, context, {name: context})  # type: ignore[method-assign]


def _check_passed(parameters: Iterable[inspect.Parameter], what: str) -> None:
    for parameter in parameters:
        is_optional = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if not is_optional and parameter.default is inspect.Parameter.empty:
            raise DefinitionError(
                f"{what}: parameter '{parameter}' of its handle() has no value and no default; make it a dependency "
                "(Depends), or give it a default"
            )


def _instance(key: str, handler: type[Any]) -> Handler:
    if not issubclass(handler, Handler):
        raise DefinitionError(f"handler '{key}': {_name_of(handler)} is not a Handler; derive it from holdfast.Handler")
    try:
        return handler()
    except TypeError as problem:
        raise DefinitionError(
            f"handler '{key}': {_name_of(handler)} cannot be created without arguments ({problem}); "
            "register an instance instead"
        ) from problem


def _check_hooks(key: str, handler: Handler) -> None:
    hooks = (handler.before_run, handler.after_run)
    if not handler.is_async and any(inspect.iscoroutinefunction(hook) for hook in hooks):
        raise DefinitionError(
            f"handler '{key}' has an async hook, but its handle() is not async, so the hook would not be awaited; "
            "make handle() async, or the hook a plain method"
        )


def _check_no_retry(key: str, handler: Handler) -> None:
    for kind in handler.no_retry:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"handler '{key}': no_retry must contain exception classes, not {kind!r}")


def _as_keys(queue: str, keys: Collection[str]) -> frozenset[str]:
    if isinstance(keys, str):
        raise ConfigError(f"the allowlist of queue '{queue}' must be a list of handler keys, like ['{keys}']")
    return frozenset(keys)


def _name_of(handler: Registrable) -> str:
    if isinstance(handler, FunctionHandler):
        handler = handler.function
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{named.__module__}.{getattr(named, '__qualname__', named)}"


def _quoted(key: str) -> str:
    # The key comes from a message: it may be long, and may contain control characters.
    return repr(key if len(key) <= _LONGEST else key[:_LONGEST] + "…")


def _listed(keys: Collection[str]) -> str:
    if not keys:
        return "none"
    shown = ", ".join(f"'{key}'" for key in sorted(keys)[:_SHOWN])
    return f"{shown} and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else shown
