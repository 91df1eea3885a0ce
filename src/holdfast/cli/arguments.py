"""Arguments as words of the command line: `name=text`, `name:=JSON`, and either read from a file with `@FILE`.

Where the type of an argument is known, text is read as that type; what is JSON has to be of it already.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints, is_typeddict

import msgspec

from holdfast import json_models
from holdfast.codec import MAX_WIRE_BYTES, strict_json
from holdfast.errors import DefinitionError, PayloadRejected

JSON_SIGN: Final = ":"
FILE_SIGN: Final = "@"
_JSON_BEGINS: Final = tuple('{["-0123456789')


class Argument(NamedTuple):
    """What a word says: a text, which may stand for something else, or a JSON value."""

    value: Any
    is_text: bool


class Parameter(NamedTuple):
    """What is known of an argument before it is given."""

    type: Any
    is_required: bool


def parse_arguments(words: Iterable[str], *, what: str = "argument") -> dict[str, Argument]:
    """The arguments that the words give, by name; `what` they are called in errors."""
    arguments: dict[str, Argument] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.rstrip(JSON_SIGN).strip():
            raise DefinitionError(
                f"{word!r} is no {what}: write NAME=TEXT or NAME:=JSON, with no blanks around the =, and in quotes "
                "what holds blanks, such as 'to=Ada Lovelace'"
            )
        is_text, name = not name.endswith(JSON_SIGN), name.removesuffix(JSON_SIGN)
        if name != name.strip():
            raise DefinitionError(f"{word!r}: write {name.strip()}={value.strip()}, with no blanks around the =")
        if name in arguments:
            raise DefinitionError(f"{what} '{name}' is given twice")
        arguments[name] = _argument(f"{what} '{name}'", value, is_text=is_text)
    return arguments


def untyped(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """The values where nothing is known of their types: text is text."""
    return {name: argument.value for name, argument in arguments.items()}


def typed(arguments: Mapping[str, Argument], payload_type: Any, *, job: str) -> dict[str, Any]:
    """The values as the job declares them; a name it does not know, or one that is missing, is an error."""
    parameters = parameters_of(payload_type)
    if parameters is None:
        return untyped(arguments)
    for name in arguments:
        if name not in parameters:
            near = get_close_matches(name.replace("-", "_"), parameters, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it takes {_listed(parameters)}"
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
    """The members of a payload of this type, if it says which it has."""
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
            raise PayloadRejected(f"{problem}; text is written with = instead of :=") from None
    try:
        return Argument(content.decode(), is_text=True)
    except UnicodeDecodeError:
        raise DefinitionError(f"{what} is no text in UTF-8") from None


def _content(name: str, what: str, *, is_text: bool) -> bytes:
    path = Path(name).expanduser()
    try:
        size = path.stat().st_size
        if size > MAX_WIRE_BYTES:
            raise PayloadRejected(
                f"{what}: {path} has {size:,} bytes, the limit is {MAX_WIRE_BYTES:,}: store the data elsewhere and "
                "send a reference to it"
            )
        return path.read_bytes()
    except OSError as problem:
        hint = f"; a text that begins with @ is written as  :='\"@{name}\"'" if is_text else ""
        raise DefinitionError(f"{what}: cannot read the file {name!r}: {problem.strerror}{hint}") from None


def _read(argument: Argument, declared: Any, what: str) -> Any:
    """The value as its parameter wants it: text stays text where it may, else it is what it looks like."""
    value = argument.value
    if argument.is_text:
        if _fits(value, declared):
            return value
        # Text that is a number, true, false or null; not the text of a number that could be a date.
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
    """What msgspec says of a value, and the path to it."""
    said, _, path = str(problem).partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    said = said.replace("`", "")
    return f"{said[:1].lower()}{said[1:]}{f' (at {where})' if where else ''}"


def _expectation(problem: msgspec.ValidationError, declared: Any) -> str:
    """What was expected; that text was given is no news to who typed it, unless it was inside of something."""
    said = located(problem)
    if said.endswith(")"):
        return f"{said} in"
    if isinstance(declared, type) and issubclass(declared, Enum):
        return f"expected one of {', '.join(str(each.value) for each in declared)}, not"
    said = said.partition(", got ")[0]
    if said.startswith(("expected array", "expected object")):
        said = f"expected {'a list' if 'array' in said else 'an object'} as JSON"
    return f"{said}, not"


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
