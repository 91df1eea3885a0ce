"""`HandlerRegistry`: which code runs for which key, and which queue may ask for it.

A key out of a message is looked up in a dictionary that code has filled, and nowhere else: nothing is imported and
no attribute is followed because of what a message says.
"""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.definition import JobDefinition
from holdfast.errors import ConfigError, DefinitionError, HandlerForbidden, UnknownHandler
from holdfast.handlers.contract import Handler
from holdfast.handlers.dependencies import Factory, Injection, dependency_of, may_depend, parameters_of
from holdfast.handlers.function import FunctionHandler
from holdfast.handlers.payload import check_readable

Registrable: TypeAlias = Handler | type[Handler] | Callable[..., object]
_SHOWN = 20
_LONGEST = 200


class HandlerRegistry:
    """Keys and their handlers. The allowlist names, per queue, the keys its jobs may have.

    A queue the allowlist leaves out may run every registered handler; one with an empty list may run none.
    """

    def __init__(self, allowlist: Mapping[str, Collection[str]] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        self._registered: dict[str, Registrable] = {}
        self.overrides: dict[Factory, Factory] = {}
        """Which factories of dependencies others stand in for; the handlers made here look into it at each run."""
        self._allowed = {queue: _as_keys(queue, keys) for queue, keys in (allowlist or {}).items()}

    def register(self, key: str, handler: Registrable) -> Handler:
        """Let `handler` run the jobs under `key`: an instance, a class without required arguments, or a function."""
        if key in self._registered:
            if self._registered[key] is handler:
                return self._handlers[key]
            raise DefinitionError(
                f"handler key '{key}' is already taken by {_name_of(self._registered[key])}; "
                f"register {_name_of(handler)} under another key"
            )
        JobDefinition(handler=key)  # knows what a key may look like
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
        """The handler under that key, if the queue may run it. What is forbidden is so whether or not it exists."""
        allowed = self._allowed.get(queue)
        if allowed is not None and key not in allowed:
            raise HandlerForbidden(
                f"queue '{queue}' may not run handler {_quoted(key)}; its allowlist names {_listed(allowed)}: "
                "add the handler there, or enqueue to another queue"
            )
        return self.resolve(key)

    def keys(self) -> tuple[str, ...]:
        """Every registered key, sorted."""
        return tuple(sorted(self._handlers))

    def _unknown(self, key: str) -> str:
        near = difflib.get_close_matches(key[:_LONGEST], self._handlers, n=1)
        guess = f", did you mean '{near[0]}'?" if near else ";"
        return f"no handler {_quoted(key)} is registered here{guess} known handlers: {_listed(self._handlers)}"


def _as_handler(key: str, handler: Registrable, overrides: Mapping[Factory, Factory]) -> Handler:
    if isinstance(handler, Handler):
        return handler
    if inspect.isclass(handler):
        return _instance(key, handler)
    if callable(handler):
        return FunctionHandler(handler, key=key, overrides=overrides)
    raise DefinitionError(f"handler '{key}' must be a Handler or a function, not {handler!r}")


def _inject(key: str, handler: Handler, overrides: Mapping[Factory, Factory]) -> None:
    """Let a handler's `handle` be given what it declares beside the context."""
    if isinstance(handler, FunctionHandler):
        return  # it does so by itself
    what = f"handler '{key}'"
    bare = list(inspect.signature(handler.handle).parameters.values())
    if not bare:
        raise DefinitionError(f"{what}: its handle() takes no context; write  def handle(self, context: JobContext)")
    if not any(may_depend(parameter) for parameter in bare[1:]):
        _check_passed(bare[1:], what)
        return
    dependencies: dict[str, Factory] = {}
    # Annotations are evaluated only where a dependency may be named by one.
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
                f"{what}: nobody would pass the parameter '{parameter}' of its handle(): make it a dependency "
                "(Depends), or give it a default"
            )


def _instance(key: str, handler: type[Any]) -> Handler:
    if not issubclass(handler, Handler):
        raise DefinitionError(f"handler '{key}': {_name_of(handler)} is not a Handler; derive it from holdfast.Handler")
    try:
        return handler()
    except TypeError as problem:
        raise DefinitionError(
            f"handler '{key}': {_name_of(handler)} cannot be made without arguments ({problem}); "
            "register an instance instead"
        ) from problem


def _check_hooks(key: str, handler: Handler) -> None:
    hooks = (handler.before_run, handler.after_run)
    if not handler.is_async and any(inspect.iscoroutinefunction(hook) for hook in hooks):
        raise DefinitionError(
            f"handler '{key}' has an async hook but its handle() is not async: nobody would await the hook; "
            "make handle() async too, or the hook a plain method"
        )


def _check_no_retry(key: str, handler: Handler) -> None:
    for kind in handler.no_retry:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"handler '{key}': no_retry names exception classes, not {kind!r}")


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
    # The key comes from a message: it may be long, and may hold what a terminal would obey.
    return repr(key if len(key) <= _LONGEST else key[:_LONGEST] + "…")


def _listed(keys: Collection[str]) -> str:
    if not keys:
        return "none"
    shown = ", ".join(f"'{key}'" for key in sorted(keys)[:_SHOWN])
    return f"{shown} and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else shown
