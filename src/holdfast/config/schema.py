"""The JSON schema of the configuration file, with which editors complete, explain and check settings."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.config.keys import KEYS, Key
from holdfast.config.kinds import ENVIRONMENT_PATTERN
from holdfast.config.schedules import MEMBERS
from holdfast.rates import RATE_PATTERN
from holdfast.units import DURATION_PATTERN
from holdfast.values import INSTALLATION_PATTERN, MAX_TOKENS, QUEUE_PATTERN

# The draft that language servers for TOML support best.
DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_WORDS: Final = {"type": "array", "items": {"type": "string"}}
_DURATION_TEXT: Final = {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}
_QUEUE: Final = {"type": "string", "pattern": f"^{QUEUE_PATTERN}$"}


def settings_schema() -> dict[str, Any]:
    """The schema of `holdfast.toml`, and of `[tool.holdfast]` in `pyproject.toml`.

    It is stricter than the program, which also accepts numbers and flags written as text. The range of a duration is
    checked only if it is written as a number.
    """
    keys = [key for key in KEYS.values() if key.in_file]
    return {
        "$schema": DRAFT,
        "title": "Holdfast",
        "description": "Holdfast settings, in holdfast.toml or in [tool.holdfast] of pyproject.toml.",
        **_object({key.name: _property(key) for key in keys}, ""),
    }


def _object(properties: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """A table with these members, which is at this place in the schema."""
    return {
        "type": "object",
        "properties": properties,
        # Names with underscores are patterns, so that editors accept them but do not offer them as completions.
        "patternProperties": {
            f"^{name.replace('-', '_')}$": {"$ref": f"#{pointer}/properties/{name}"}
            for name in properties
            if "-" in name
        },
        "additionalProperties": False,
    }


def _property(key: Key) -> dict[str, Any]:
    described = _described(key)
    return (
        described
        if key.default is None
        else {**described, "default": msgspec.json.decode(msgspec.json.encode(key.default))}
    )


def _described(key: Key) -> dict[str, Any]:
    return {"description": key.meaning[0].upper() + key.meaning[1:] + ".", **_values(key)}


def _values(key: Key) -> dict[str, Any]:
    bounds = {"minimum": _tidy(key.low), "maximum": _tidy(key.high)}
    match key.kind:
        case "url" | "text" | "path":
            return {"enum": list(key.choices)} if key.choices else {"type": "string"}
        case "environment":
            return {"type": "string", "pattern": f"^({ENVIRONMENT_PATTERN})?$"}
        case "queue":
            return _QUEUE
        case "name":
            return {"type": "string", "pattern": f"^{INSTALLATION_PATTERN}$"}
        case "count":
            return {"type": "integer", **bounds}
        case "number":
            return {"type": "number", **bounds}
        case "duration":
            return {"anyOf": [{"type": "number", **bounds}, _DURATION_TEXT]}
        case "flag":
            return {"type": "boolean"}
        case "backoff":
            number = {"type": "number", "minimum": 0}
            delays = {"type": "array", "items": {"anyOf": [number, _DURATION_TEXT]}, "minItems": 1}
            return {"anyOf": [{"enum": list(key.choices)}, {"type": "string", "pattern": "[0-9]"}, number, delays]}
        case "words":
            return _WORDS
        case "queues":
            return {"type": "array", "items": _QUEUE}
        case "lists":
            return {"type": "object", "additionalProperties": _WORDS}
        case "texts" | "urls":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case "rates":
            rate = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^{RATE_PATTERN}$"}]}
            table = {
                "type": "object",
                "properties": {"rate": rate, "burst": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}},
                "required": ["rate"],
                "additionalProperties": False,
            }
            return {"type": "object", "additionalProperties": {"anyOf": [*rate["anyOf"], table]}}
        case "command":
            return {"anyOf": [{**_WORDS, "minItems": 1}, {"type": "string"}]}
        case "instant":
            return {}  # an editor may see a TOML time as text, or as a type of its own
        case "value":
            return {}
        case "schedules":
            members = {member.name: _described(member) for member in MEMBERS.values()}
            schedule = {
                **_object(members, f"/properties/{key.name}/additionalProperties"),
                "allOf": [
                    {"oneOf": [{"required": [one]}, {"required": [other]}]}
                    for one, other in (("cron", "every"), ("command", "job"))
                ],
            }
            return {"type": "object", "additionalProperties": schedule}


def _tidy(bound: float) -> float:
    """The bound as an integer if it is whole."""
    return int(bound) if float(bound).is_integer() else bound
