"""Job arguments on the command line: `name=text`, `name:=JSON`, and either read from a file with `@FILE`.

If the type of an argument is known, text is converted to it; JSON must already have it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints, is_typeddict

import msgspec

from holdfast import json_models
from holdfast.codec import MAX_WIRE_BYTES, strict_json
from holdfast.errors import DefinitionError, PayloadRejected
from holdfast.spelling import did_you_mean

JSON_SIGN: Final = ":"
FILE_SIGN: Final = "@"
_JSON_BEGINS: Final = tuple('{["-0123456789')


class Argument(NamedTuple):
    """The value of an argument: text, which may be converted to another type, or a JSON value."""

    value: Any
    is_text: bool


class Parameter(NamedTuple):
    """A parameter that the job declares."""

    type: Any
    is_required: bool


def parse_arguments(words: Iterable[str], *, what: str = "argument") -> dict[str, Argument]:
    """The arguments by name. Errors call them `what`."""
    arguments: dict[str, Argument] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.rstrip(JSON_SIGN).strip():
            raise DefinitionError(
                f"{word!r} is not a valid {what}; write NAME=TEXT or NAME:=JSON without spaces around the =, and quote "
                "text that contains spaces: 'to=Ada Lovelace'"
            )
        is_text, name = not name.endswith(JSON_SIGN), name.removesuffix(JSON_SIGN)
        if name != name.strip():
            raise DefinitionError(f"{word!r}: remove the spaces around the =: {name.strip()}={value.strip()}")
        if name in arguments:
            raise DefinitionError(f"{what} '{name}' is given twice")
        arguments[name] = _argument(f"{what} '{name}'", value, is_text=is_text)
    return arguments


def untyped(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """The values if their types are unknown: text remains text."""
    return {name: argument.value for name, argument in arguments.items()}


def typed(arguments: Mapping[str, Argument], payload_type: Any, *, job: str) -> dict[str, Any]:
    """The values in the types that the job declares. An unknown or missing name is an error."""
    parameters = parameters_of(payload_type)
    if parameters is None:
        return untyped(arguments)
    for name in arguments:
        if name not in parameters:
            hint = did_you_mean(name.replace("-", "_"), parameters) or f"it takes {_listed(parameters)}"
            raise DefinitionError(f"job '{job}' has no argument '{name}'; {hint}")
    missing = [name for name, known in parameters.items() if known.is_required and name not in arguments]
    if missing:
        raise DefinitionError(
            f"job '{job}' needs {_quoted(missing)}: add  {' '.join(f'{name}=…' for name in missing)}; "
            f"it takes {_listed(parameters)}"
        )
    return {
        name: _read(argument, parameters[name].type, f"argument '{name}' of job '{job}'")
        for name, argument in arguments.items()
    }


def parameters_of(payload_type: object) -> dict[str, Parameter] | None:
    """The parameters of a payload of this type, if it declares any."""
    if isinstance(payload_type, type) and issubclass(payload_type, msgspec.Struct):
        fields = msgspec.structs.fields(payload_type)
        return {field.encode_name: Parameter(field.type, field.required) for field in fields}
    if isinstance(payload_type, type) and dataclasses.is_dataclass(payload_type):
        hints = get_type_hints(payload_type, include_extras=True)
        return {
            field.name: Parameter(
                hints[field.name],
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(payload_type)
            if field.init
        }
    return _keys_of(payload_type)


def _keys_of(typed_dict: Any) -> dict[str, Parameter] | None:
    if not is_typeddict(typed_dict):
        return None
    required: frozenset[str] = typed_dict.__required_keys__
    return {name: Parameter(kind, name in required) for name, kind in get_type_hints(typed_dict).items()}


def _argument(what: str, value: str, *, is_text: bool) -> Argument:
    if value.startswith(FILE_SIGN):
        content = _content(value[1:], what, is_text=is_text)
    else:
        content = value.encode(errors="surrogateescape")
    if not is_text:
        try:
            return Argument(strict_json(content, what=what), is_text=False)
        except PayloadRejected as problem:
            if value.startswith(FILE_SIGN) or value[:1] in _JSON_BEGINS:
                raise
            raise PayloadRejected(f"{problem}; for text, use = instead of :=") from None
    try:
        return Argument(content.decode(), is_text=True)
    except UnicodeDecodeError:
        raise DefinitionError(f"{what} is not UTF-8 text") from None


def _content(name: str, what: str, *, is_text: bool) -> bytes:
    path = Path(name).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_WIRE_BYTES:
            raise PayloadRejected(
                f"{what}: {path} has {size:,} bytes, and the limit is {MAX_WIRE_BYTES:,}; store the data elsewhere and "
                "pass a reference to it"
            )
        return path.read_bytes()
    except OSError as problem:
        hint = f"; write text that begins with @ as  :='\"@{name}\"'" if is_text else ""
        raise DefinitionError(f"{what}: cannot read the file {name!r}: {problem.strerror}{hint}") from None


def _read(argument: Argument, declared: Any, what: str) -> Any:
    """The value in the declared type. Text remains text if that fits; otherwise it is read as JSON."""
    value = argument.value
    if argument.is_text:
        if _fits(value, declared):
            return value
        # Only numbers, true, false and null: msgspec would also convert the text of a number to a date.
        with suppress(msgspec.ValidationError):
            meant = msgspec.convert(value, declared, strict=False, dec_hook=json_models.decode_hook)
            if meant is None or (isinstance(meant, bool | int | float) and math.isfinite(meant)):
                return msgspec.to_builtins(meant)
        with suppress(PayloadRejected):
            value = strict_json(value.encode())
    try:
        msgspec.convert(value, declared, dec_hook=json_models.decode_hook)
    except msgspec.ValidationError as problem:
        raise DefinitionError(f"{what}: {_expectation(problem, declared)} {_shortened(argument.value)}") from None
    return value


def _fits(value: object, declared: Any) -> bool:
    try:
        msgspec.convert(value, declared, dec_hook=json_models.decode_hook)
    except msgspec.ValidationError:
        return False
    return True


def located(problem: msgspec.ValidationError) -> str:
    """The message of msgspec with the path to the value."""
    message, _, path = str(problem).partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    message = message.replace("`", "")
    return f"{message[:1].lower()}{message[1:]}{f' (at {where})' if where else ''}"


def _expectation(problem: msgspec.ValidationError, declared: Any) -> str:
    """The expected type. That the value was text is left out, unless it was inside another value."""
    message = located(problem)
    if message.endswith(")"):
        return f"{message} in"
    if isinstance(declared, type) and issubclass(declared, Enum):
        return f"expected one of {', '.join(str(each.value) for each in declared)}, not"
    message = message.partition(", got ")[0]
    if message.startswith(("expected array", "expected object")):
        message = f"expected {'a list' if 'array' in message else 'an object'} as JSON"
    return f"{message}, not"


def _shortened(value: object) -> str:
    text = repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _listed(parameters: Mapping[str, Parameter]) -> str:
    shown = [
        f"{name}: {_name_of(known.type)}{'' if known.is_required else ' (optional)'}"
        for name, known in parameters.items()
    ]
    return ", ".join(shown) or "no arguments"


def _name_of(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared).replace("typing.", "")
