"""`FunctionHandler`: a plain or async function as a job; its signature defines the types of the payload."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.codec import encode_payload
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.handlers.contract import Handler, JobContext
from holdfast.handlers.dependencies import Factory, Injection, dependency_of, parameters_of
from holdfast.handlers.payload import check_readable, decoder_of, why_unreadable

_NULL = b"null"
_CANNOT_BE_NAMED = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}
_located = re.compile(r"(?P<problem>.*) - at `\$\.(?P<path>(?P<parameter>\w+).*)`", re.DOTALL)


class FunctionHandler(Handler):
    """Calls a function with the members of the payload, each decoded into the type of its parameter.

    A parameter annotated `JobContext` receives the context, and one declared with `Depends` the value of its factory;
    neither is part of the payload. A parameter that the payload leaves out gets the function's default. The signature
    is read once, here. `overrides` maps factories to their replacements and is read at each run.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        key: str | None = None,
        no_retry: Collection[type[BaseException]] = (),
        overrides: Mapping[Factory, Factory] | None = None,
    ) -> None:
        self.function = function
        self.key = key if key is not None else _key_of(function)
        self.no_retry = tuple(no_retry)
        self.is_async = inspect.iscoroutinefunction(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(f"job '{self.key}' is a generator, which would never be iterated; return a value")
        parameters = _parameters_of(function, self.key)
        context_names = [p.name for p in parameters if p.annotation is JobContext]
        self.dependencies = _dependencies_of(parameters, self.key)
        self._injection = Injection(
            self.dependencies, {} if overrides is None else overrides, is_async=self.is_async, what=f"job '{self.key}'"
        )
        payload = [p for p in parameters if p.annotation is not JobContext and p.name not in self.dependencies]
        self._context_names = tuple(context_names)
        self._positional = tuple(p.name for p in payload if p.kind is not inspect.Parameter.KEYWORD_ONLY)
        self._names = tuple(p.name for p in payload)
        self._required = frozenset(p.name for p in payload if p.default is inspect.Parameter.empty)
        self._has_defaults = len(self._required) < len(payload)
        self._signature = inspect.Signature(payload)
        self.payload_type = _payload_type(payload)
        self._decoder = decoder_of(self.payload_type)
        self.returns = _result_type(function)

    def handle(self, context: JobContext) -> object:
        arguments = msgspec.structs.asdict(context.payload)
        if self._has_defaults:
            arguments = {name: value for name, value in arguments.items() if value is not UNSET}
        for name in self._context_names:
            arguments[name] = context
        if self.dependencies:
            return self._injection.call(self.function, context, arguments)
        return self.function(**arguments)

    def check_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Refuse a plain call of the function without its dependencies, which only a worker provides."""
        given = inspect.signature(self.function).bind_partial(*args, **kwargs).arguments
        missing = [name for name in self.dependencies if name not in given]
        if missing:
            raise TypeError(
                f"{self.key}() is called without {', '.join(map(repr, missing))}, which only a worker provides; "
                "pass it, or enqueue the job"
            )

    def takes(self, name: str) -> bool:
        """Whether the payload has a member of this name."""
        return name in self._names

    def decode(self, payload: bytes) -> Any:
        """Decode the payload into its type. A job without a payload is a call without arguments."""
        return self._decoder.decode(b"{}" if payload == _NULL else payload)

    def payload_of(self, *args: object, **kwargs: object) -> msgspec.Raw:
        """The payload of a call as JSON, checked by decoding it exactly as a worker will."""
        return self._encoded(self._arguments(args, kwargs))

    def _arguments(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """The arguments by name, in the order of the parameters."""
        given = dict(zip(self._positional, args, strict=False)) | kwargs
        arguments = {name: given[name] for name in self._names if name in given}
        if len(arguments) == len(args) + len(kwargs) and self._required.issubset(arguments):
            return arguments
        # Something is wrong. Binding the signature finds out what, but takes several times as long.
        injected = [name for name in kwargs if name in self.dependencies]
        if injected:
            raise DefinitionError(
                f"job '{self.key}': parameter '{injected[0]}' is a dependency, which the worker provides; leave it "
                f"out: {self.key}{self._signature}"
            )
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as problem:
            raise DefinitionError(f"job '{self.key}': {problem}; call it as {self.key}{self._signature}") from None

    def _encoded(self, arguments: dict[str, object]) -> msgspec.Raw:
        try:
            payload = encode_payload(arguments)
            self._decoder.decode(payload)
        except PayloadRejected:
            for name, value in arguments.items():
                encode_payload(value, what=f"job '{self.key}', parameter '{name}'")
            raise  # each parameter is valid by itself, but together they are too large or too deep
        except msgspec.ValidationError as problem:
            raise DefinitionError(f"job '{self.key}', {_located_problem(problem)}") from problem
        return payload


def _key_of(function: Callable[..., object]) -> str:
    # Without the module: the same function is `__main__.send` in one process and `app.send` in another.
    name = str(getattr(function, "__name__", ""))
    if not name.isidentifier():
        raise DefinitionError(f"{function!r} has no name to use as a handler key; pass key=…")
    return name


def _parameters_of(function: Callable[..., object], key: str) -> list[inspect.Parameter]:
    parameters = parameters_of(function, f"job '{key}'")
    for parameter in parameters:
        if parameter.kind in _CANNOT_BE_NAMED:
            raise DefinitionError(
                f"job '{key}': parameter '{parameter}' {_CANNOT_BE_NAMED[parameter.kind]}, but arguments are "
                "passed by name; declare named parameters instead"
            )
        if parameter.annotation is not JobContext and dependency_of(parameter, what=f"job '{key}'") is None:
            check_readable(_type_of(parameter), what=f"job '{key}': parameter '{parameter}'")
    return parameters


def _result_type(function: Callable[..., object]) -> Any:
    """The type that results are decoded into: the declared return type, if JSON can be decoded into it."""
    declared = inspect.signature(function, eval_str=True).return_annotation
    if declared is inspect.Signature.empty or declared is object or why_unreadable(declared) is not None:
        return Any
    return declared


def _dependencies_of(parameters: list[inspect.Parameter], key: str) -> dict[str, Factory]:
    declared = {parameter.name: dependency_of(parameter, what=f"job '{key}'") for parameter in parameters}
    return {name: factory for name, factory in declared.items() if factory is not None}


def _type_of(parameter: inspect.Parameter) -> Any:
    declared = parameter.annotation
    return Any if declared is inspect.Parameter.empty or declared is object else declared


def _payload_type(parameters: list[inspect.Parameter]) -> type[msgspec.Struct]:
    # A default becomes UNSET and is left to the function: it may have another type or be mutable, and the worker's
    # default counts, not the producer's.
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (p.name, _type_of(p)) if p.default is inspect.Parameter.empty else (p.name, _type_of(p), UNSET)
        for p in parameters
    ]
    return msgspec.defstruct("Payload", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def _located_problem(problem: msgspec.ValidationError) -> str:
    found = _located.fullmatch(str(problem))
    if found is None:
        return str(problem)
    inside = f" (at {found['path']})" if found["path"] != found["parameter"] else ""
    return f"parameter '{found['parameter']}': {found['problem']}{inside}"
