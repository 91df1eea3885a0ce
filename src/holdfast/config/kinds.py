"""Parses and checks the values of each kind of setting."""

import re
from typing import Any, Final, cast

import msgspec

from holdfast.config.keys import HIDDEN, Key, queue_rate
from holdfast.errors import ConfigError, DefinitionError
from holdfast.queues.addresses import check_url
from holdfast.units import parse_duration
from holdfast.values import INSTALLATION_PATTERN, QUEUE_NAMES, QUEUE_PATTERN

_STRINGS: Final = "of names and strings"
_RATES: Final = 'that maps queues to rates, such as {mail = "60/min"}'
ENVIRONMENT_PATTERN: Final = "[a-z0-9][a-z0-9_-]{0,39}"
_WHOLE: Final = r"\s*[+-]?[0-9]{1,18}\s*"


def check_value(key: Key, raw: Any, where: str = "") -> Any:
    """The value of a key, from text or from TOML, or a `ConfigError` that names the key, the value and the range."""
    place = f" {where}" if where else ""
    try:
        value = _parse(key, raw)
    except ConfigError as problem:
        raise ConfigError(f"{key.name}{place}: {problem}") from None
    except ValueError as problem:
        raise ConfigError(f"{key.name} = {_repeated(key, raw)}{place}: {problem}") from None
    if key.high and not key.low <= value <= key.high:
        raise ConfigError(
            f"{key.name} = {raw}{place} is out of range: it must be between {key.bound(key.low)} and "
            f"{key.bound(key.high)}"
        )
    return value


def _repeated(key: Key, raw: Any) -> str:
    """A value as an error quotes it. If a secret is neither text nor a number, none of it is shown."""
    if key.secret and not isinstance(raw, bool | int | float):
        return repr(key.shown(raw)) if isinstance(raw, str) else HIDDEN
    return repr(raw)


def _parse(key: Key, raw: Any) -> Any:
    match key.kind:
        case "url":
            return _url(raw)
        case "text" if key.choices:
            return _choice(raw, key.choices)
        case "text" | "path":
            return _text(raw)
        case "name":
            return _name(raw)
        case "environment":
            return _environment(raw)
        case "queue":
            return _queue(raw)
        case "count":
            return _whole(raw)
        case "number":
            return _number(raw)
        case "duration":
            return as_seconds(raw)
        case "flag":
            return _flag(raw)
        case "words":
            return _words(raw)
        case "backoff":
            return _backoff(raw)
        case "queues":
            return tuple(dict.fromkeys(map(_queue, _words(raw))))
        case "lists":
            return _table(raw, dict[str, tuple[str, ...]], "that maps queues to lists of handler keys")
        case "texts":
            return _table(raw, dict[str, str], _STRINGS)
        case "urls":
            return {name: _named_url(name, url) for name, url in _table(raw, dict[str, str], _STRINGS).items()}
        case "rates":
            return {queue: _rate(queue, rate) for queue, rate in _table(raw, dict[str, Any], _RATES).items()}
        case "value":
            return raw
        case "schedules" | "command" | "instant":
            # Imported here: few projects have schedules in their settings.
            from holdfast.config import schedules

            parsers = {
                "schedules": schedules.parse_schedules,
                "command": schedules.parse_argv,
                "instant": schedules.parse_moment,
            }
            return parsers[key.kind](raw)


def as_seconds(raw: object) -> float:
    """Seconds from a number, or from text such as `90s`, `15m`, `2h`, `3d`."""
    return parse_duration(raw) if isinstance(raw, str) else _number(raw)


def _url(raw: object) -> str:
    url = _text(raw)
    if url:
        check_url(url)
    return url


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("must be a string")
    return raw


def _choice(raw: object, choices: tuple[str, ...]) -> str:
    if raw not in choices:
        raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}")
    return str(raw)


def _name(raw: object) -> str:
    name = _text(raw)
    if not re.fullmatch(INSTALLATION_PATTERN, name):
        raise ValueError("use 1 to 64 letters, digits, dashes, underscores or dots")
    return name


def _environment(raw: object) -> str:
    environment = _text(raw)
    if environment and not re.fullmatch(ENVIRONMENT_PATTERN, environment):
        raise ValueError("use up to 40 lower-case letters, digits, dashes and underscores")
    return environment


def _queue(raw: object) -> str:
    queue = _text(raw)
    if not re.fullmatch(QUEUE_PATTERN, queue):
        raise ValueError(f"{queue!r} is not a valid queue name; {QUEUE_NAMES}")
    return queue


def _whole(raw: object) -> int:
    if isinstance(raw, bool) or not (isinstance(raw, int) or (isinstance(raw, str) and re.fullmatch(_WHOLE, raw))):
        raise ValueError("must be an integer")
    return int(raw)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("must be a number")
    try:
        return float(raw)
    except ValueError:
        raise ValueError("must be a number") from None


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    flags = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if not isinstance(raw, str) or raw.lower() not in flags:
        raise ValueError("must be true or false")
    return flags[raw.lower()]


def _backoff(raw: object) -> str:
    """A backoff as text. A delay can also be a number, and a list of delays a TOML array."""
    if isinstance(raw, list | tuple):
        delays = cast("list[object]", raw)
        for delay in delays:
            as_seconds(delay)
        raw = ",".join(map(str, delays))
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError("must be a strategy, a delay, or a list of delays")
    text = str(raw).strip()
    # Imported here: commands that do not define jobs need neither, and most settings have no backoff.
    from holdfast.definition.backoff import parse_backoff
    from holdfast.definition.definition import check_backoff

    try:
        check_backoff(parse_backoff(text))
    except DefinitionError as problem:
        raise ValueError(str(problem)) from None
    return text


def _words(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        raw = raw.split(",")
    if not isinstance(raw, list | tuple) or not all(isinstance(word, str) for word in cast("list[object]", raw)):
        raise ValueError("must be a list of strings")
    return tuple(word.strip() for word in cast("list[str]", raw) if word.strip())


def _table(raw: object, kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as problem:
        raise ValueError(f"must be a table {what}: {problem}") from None


def _rate(queue: str, value: object) -> str:
    """The rate limit of a queue in its usual spelling."""
    # Imported here: few projects limit a queue.
    from holdfast.definition.definition import check_queue

    try:
        rate = queue_rate(check_queue(queue), value)
    except DefinitionError as problem:
        raise ConfigError(str(problem)) from None
    return "0" if rate is None else str(rate)


def _named_url(name: str, url: str) -> str:
    try:
        check_url(url)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    return url
