"""Lets msgspec encode and decode models that write and read their own JSON, such as pydantic models.

Pydantic is not imported: a class is a model if it has pydantic's two methods for this, which exist since 2.0.
"""

from typing import Any

import msgspec


def is_model(kind: object) -> bool:
    """Whether a class reads its own JSON."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")


def encode_hook(value: object) -> Any:
    """Encode a value that msgspec does not know: a model, as the JSON that it writes."""
    kind = type(value)
    if not is_model(kind):
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not a JSON type")
    model: Any = value
    # With aliases and without computed fields: exactly what the same model reads.
    text: str = model.model_dump_json(by_alias=True, round_trip=True)
    return msgspec.json.decode(text)


def decode_hook(kind: type[object], value: Any) -> Any:
    """Decode into a class that msgspec does not know: a model, as it reads itself from JSON."""
    if not is_model(kind):
        raise NotImplementedError  # msgspec then raises an error that names the type
    reader: Any = kind
    try:
        return reader.model_validate_json(msgspec.json.encode(value))
    except ValueError as problem:
        raise ValueError(_first_error(problem)) from problem


def _first_error(problem: ValueError) -> str:
    """The first error that a model found, with its place inside the value, on one line."""
    if not hasattr(problem, "errors"):
        return str(problem)
    detailed: Any = problem
    found: list[dict[str, Any]] = detailed.errors()
    place = ".".join(str(part) for part in found[0]["loc"])
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{place}: {found[0]['msg']}{more}" if place else f"{found[0]['msg']}{more}"
