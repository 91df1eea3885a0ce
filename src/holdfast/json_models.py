"""Models that write and read their own JSON, as pydantic's do: what msgspec is to ask them.

Nothing is imported for it. A class is a model if it has the two methods by which pydantic's have done so since 2.0.
"""

from typing import Any

import msgspec


def is_model(kind: object) -> bool:
    """Whether a class reads its own JSON."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json")


def encode_hook(value: object) -> Any:
    """What is to be written in place of a value that msgspec does not know: of a model, the JSON it writes."""
    kind = type(value)
    if not is_model(kind):
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not a JSON type")
    model: Any = value
    # By its aliases, without what is computed from the rest: so it is what the same model reads.
    text: str = model.model_dump_json(by_alias=True, round_trip=True)
    return msgspec.json.decode(text)


def decode_hook(kind: type[object], value: Any) -> Any:
    """An object of a class that msgspec does not know: of a model, as that reads it from JSON."""
    if not is_model(kind):
        raise NotImplementedError  # msgspec says what it can, and cannot, read
    reader: Any = kind
    try:
        return reader.model_validate_json(msgspec.json.encode(value))
    except ValueError as problem:
        raise ValueError(_said(problem)) from problem


def _said(problem: ValueError) -> str:
    """What a model says of the first thing that is wrong with a value, with the place inside of it, in one line."""
    if not hasattr(problem, "errors"):
        return str(problem)
    detailed: Any = problem
    found: list[dict[str, Any]] = detailed.errors()
    place = ".".join(str(part) for part in found[0]["loc"])
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{place}: {found[0]['msg']}{more}" if place else f"{found[0]['msg']}{more}"
