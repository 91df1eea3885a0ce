"""The Python types that a payload can be decoded into, and their decoders."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import inspect as types

from holdfast import json_models
from holdfast.errors import DefinitionError

# The keys of JSON objects are text. msgspec can decode numbers, dates and the like from it, but no composite types.
_NEVER_A_KEY = (
    types.CollectionType,
    types.TupleType,
    types.DictType,
    types.StructType,
    types.DataclassType,
    types.TypedDictType,
    types.NamedTupleType,
)
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache(maxsize=1024)
def decoder_of(payload_type: Any) -> "msgspec.json.Decoder[Any]":
    """The decoder of a type, created once."""
    return msgspec.json.Decoder(payload_type, dec_hook=json_models.decode_hook)


def decoded(payload: bytes, payload_type: Any) -> Any:
    """The payload as its type.

    A dataclass or TypedDict refuses members that it does not have, as the signature of a function does; msgspec ignores
    them. Structs and pydantic models declare this themselves.
    """
    value = decoder_of(payload_type).decode(payload)
    names = _closed_names(payload_type)
    if names is not None:
        for name in _members_decoder.decode(payload):
            if name not in names:
                raise msgspec.ValidationError(f"Object contains unknown field `{name}`")
    return value


@lru_cache(maxsize=1024)
def _closed_names(payload_type: Any) -> frozenset[str] | None:
    """The names of all members that an object of this type can have; None if the type itself checks them."""
    described = types.type_info(payload_type)
    if isinstance(described, types.DataclassType | types.TypedDictType):
        return frozenset(field.encode_name for field in described.fields)
    return None


def check_readable(annotation: Any, *, what: str) -> None:
    """Refuse a type that JSON cannot be decoded into; `what` names it in the error."""
    problem = why_unreadable(annotation)
    if problem is not None:
        raise DefinitionError(
            f"{what} cannot be decoded from JSON: {problem}; declare a type that JSON can carry (str, int, list, "
            "dict, datetime, a dataclass, a msgspec Struct, a pydantic model, …) and convert it in the handler"
        )


def why_unreadable(annotation: Any) -> str | None:
    """Why JSON cannot be decoded into this type; None if it can."""
    try:
        decoder_of(annotation)
        described = types.type_info(annotation)
    except (TypeError, NameError, RecursionError) as problem:
        return str(problem)
    for part in _parts_of(described):
        # msgspec accepts any class as a "custom type" that a hook decodes; our hook decodes only models.
        if isinstance(part, types.CustomType) and not json_models.is_model(part.cls):
            return f"{part.cls.__module__}.{part.cls.__qualname__} is not a JSON type"
        if isinstance(part, types.DictType) and isinstance(part.key_type, _NEVER_A_KEY):
            return "the keys of a JSON object are text"
    return None


def _parts_of(described: types.Type) -> Iterator[types.Type]:
    """The type and all its parts, each once: types may contain themselves."""
    seen: set[int] = set()
    waiting = [described]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for name in part.__struct_fields__:
            value: Any = getattr(part, name)
            for member in cast("Iterable[object]", value) if isinstance(value, tuple) else (value,):
                inner = member.type if isinstance(member, types.Field) else member
                if isinstance(inner, types.Type):
                    waiting.append(inner)
