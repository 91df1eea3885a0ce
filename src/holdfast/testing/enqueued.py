"""`Enqueued`: a job that a test enqueued. `Expectation`: what the test expected, and how the two differ."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct

from holdfast import json_models
from holdfast.codec import JobMessage
from holdfast.definition import JobOptions, definition_of
from holdfast.definition.backoff import as_backoff
from holdfast.definition.definition import as_parents, as_unique_scope, check_id
from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import DefinitionError
from holdfast.handlers import FunctionHandler, Handler
from holdfast.queues.envelope import scoped_key
from holdfast.spelling import did_you_mean
from holdfast.values import DEFAULT_PRIORITY, DEFAULT_QUEUE, Backoff, JobEnvelope, JobTraits, UniqueScope, traits_of

TOLERANCE_S: Final = 5.0
_EXACTLY_S: Final = 1e-6
_SHOWN_JOBS: Final = 20
_SHOWN_CHARACTERS: Final = 200
_COMPARED_APART: Final = frozenset(
    (
        *("backoff", "delay", "expires", "idempotency_ttl", "meta", "on_conflict", "run_at", "tags", "timeout"),
        *("after", "tolerance", "unique", "unique_for"),
    )
)


class Expected(JobOptions, total=False):
    """The options that a job must have been enqueued with; every one given must match.

    `tags` may be some of the job's tags, and `meta` a part of its meta. `delay`, `run_at` and `expires` are compared
    within `tolerance`. Its default is five seconds, or exact if both sides are durations. `unique=True` matches any
    unique job.
    """

    tolerance: Duration


class Enqueued(JobTraits, frozen=True, kw_only=True):
    """One job as it was enqueued. `args` are the arguments of the handler, including its own defaults.

    `delay` counts from the moment it was enqueued, and `run_at` is the resulting time.
    """

    id: str
    job: str
    args: Any
    queue: str
    delay: float
    run_at: datetime
    enqueued_at: datetime
    max_retries: int
    backoff: Backoff | None
    timeout: float
    expires_at: datetime | None
    meta: Mapping[str, Any]  # type: ignore[assignment]
    unique: str | None = None
    """The unique key, without the handler; for `unique=True`, a digest of the arguments."""
    unique_for: str | float | None = None
    on_conflict: str | None = None
    has_instant: bool = False
    """Whether it was enqueued with `run_at`, and not with `delay`."""

    def __str__(self) -> str:
        parts = [f"{self.job}({_call(self.args)})"]
        if self.queue != DEFAULT_QUEUE:
            parts.append(f"queue {self.queue!r}")
        if self.priority != DEFAULT_PRIORITY:
            parts.append(f"priority {self.priority}")
        if self.has_instant:
            parts.append(f"run_at {_instant(self.run_at)}")
        elif self.delay:
            parts.append(f"delay {self.delay:g} s")
        if self.after:
            parts.append(f"after {shown(list(self.after))}")
        if self.name is not None:
            parts.append(f"name {self.name!r}")
        if self.tags:
            parts.append(f"tags {', '.join(self.tags)}")
        if self.meta:
            parts.append(f"meta {shown(self.meta)}")
        return ", ".join(parts)


def enqueued(envelope: JobEnvelope, message: JobMessage, handler: Handler | None, now: datetime) -> Enqueued:
    """The job of an envelope that was accepted now."""
    delay = envelope.delay
    if envelope.run_at is not None:
        delay = max(0.0, (envelope.run_at - now).total_seconds())
    return Enqueued(
        id=envelope.id,
        job=envelope.job,
        args=_arguments(handler, bytes(message.payload)),
        queue=envelope.queue,
        delay=delay,
        run_at=envelope.run_at or now + timedelta(seconds=delay),
        enqueued_at=now,
        max_retries=message.max_retries,
        backoff=message.backoff,
        timeout=message.timeout,
        expires_at=message.expires_at,
        has_instant=envelope.run_at is not None,
        **_uniqueness(envelope),
        **{**traits_of(message), "meta": msgspec.json.decode(message.meta)},
    )


def _uniqueness(envelope: JobEnvelope) -> dict[str, Any]:
    unique = envelope.unique
    if unique is None:
        return {}
    return {
        "unique": unique.key.removeprefix(scoped_key(envelope.job, "")),
        "unique_for": unique.period if unique.scope is UniqueScope.PERIOD else str(unique.scope),
        "on_conflict": str(unique.on_conflict),
    }


def _arguments(handler: Handler | None, payload: bytes) -> Any:
    """The arguments that the handler will receive; the plain JSON if the handler is unknown or cannot decode it."""
    try:
        value = msgspec.json.decode(payload) if handler is None else handler.decode(payload)
    except Exception:  # the handler's types may raise anything
        return msgspec.json.decode(payload)
    if not isinstance(handler, FunctionHandler):
        return value
    parameters = inspect.signature(handler.function).parameters
    given = msgspec.structs.asdict(value)
    return {name: parameters[name].default if one is UNSET else one for name, one in given.items()}


class Expectation:
    """The conditions of one assertion about enqueued jobs."""

    def __init__(self, job: str | None, handler: Handler | None, args: object, expected: Expected) -> None:
        self.job = job
        self._args = args
        self._expected = expected
        _check(expected)
        if job is not None:
            _check_arguments(job, handler, args)

    def __str__(self) -> str:
        conditions = [f"args={shown(self._args)}"] if self._args is not None else []
        conditions += [f"{name}={shown(value)}" for name, value in self._expected.items()]
        what = f"'{self.job}'" if self.job is not None else "any job"
        return f"{what} with {', '.join(conditions)}" if conditions else what

    def matches(self, job: Enqueued) -> bool:
        return self.job in (None, job.job) and not any(self.differences(job))

    def differences(self, job: Enqueued) -> Iterator[str]:
        """Each difference between a job and the expectation, apart from its handler."""
        expected = self._expected
        if self._args is not None:
            yield from _differences("args", self._args, job.args)
        for name, wanted in expected.items():
            if name not in _COMPARED_APART and wanted != (found := getattr(job, name)):
                yield _is_not(name, found, wanted)
        if "backoff" in expected and as_backoff(expected["backoff"]) != job.backoff:
            yield _is_not("backoff", job.backoff, expected["backoff"])
        if "timeout" in expected and in_seconds("timeout", expected["timeout"]) != job.timeout:
            yield _is_not("timeout", job.timeout, expected["timeout"])
        if "after" in expected and set(as_parents(expected["after"])) != set(job.after):
            yield _is_not("after", list(job.after), list(as_parents(expected["after"])))
        yield from self._differences_in_ownership(job)
        yield from self._differences_in_time(job)
        missing = [tag for tag in expected.get("tags", ()) if tag not in job.tags]
        if missing:
            yield f"tags are {shown(list(job.tags))}, without {shown(missing)}"
        if "meta" in expected:
            yield from _differences("meta", expected["meta"], job.meta)

    def _differences_in_ownership(self, job: Enqueued) -> Iterator[str]:
        expected = self._expected
        if (
            "idempotency_ttl" in expected
            and in_seconds("idempotency_ttl", expected["idempotency_ttl"]) != job.idempotency_ttl
        ):
            yield _is_not("idempotency_ttl", job.idempotency_ttl, expected["idempotency_ttl"])
        if "unique" in expected:
            wanted = expected["unique"]
            if wanted != job.unique and wanted is not (job.unique is not None):
                yield _is_not("unique", job.unique, wanted)
        if "unique_for" in expected and as_unique_scope(expected["unique_for"]) != job.unique_for:
            yield _is_not("unique_for", job.unique_for, expected["unique_for"])
        if "on_conflict" in expected and expected["on_conflict"] != job.on_conflict:
            yield _is_not("on_conflict", job.on_conflict, expected["on_conflict"])

    def _differences_in_time(self, job: Enqueued) -> Iterator[str]:
        expected = self._expected
        tolerance = _tolerance_of(expected)
        if "delay" in expected:
            delay = in_seconds("delay", expected["delay"])
            allowed = tolerance if tolerance is not None else TOLERANCE_S if job.has_instant else 0.0
            if abs(job.delay - delay) > allowed + _EXACTLY_S:
                yield f"delay is {job.delay:g} s, not {delay:g} s{_give_or_take(allowed)}"
        allowed = TOLERANCE_S if tolerance is None else tolerance
        if "run_at" in expected:
            yield from _difference_of_instants("run_at", job.run_at, expected["run_at"], allowed)
        if "expires" in expected:
            expires = expected["expires"]
            if not isinstance(expires, datetime):
                expires = job.enqueued_at + timedelta(seconds=in_seconds("expires", expires))
            yield from _difference_of_instants("expires", job.expires_at, expires, allowed)

    def listing(self, jobs: Sequence[Enqueued]) -> str:
        """A list of all enqueued jobs, those of the same handler first, each with its differences."""
        if not jobs:
            return "nothing was enqueued"
        ordered = sorted(jobs, key=lambda job: self.job not in (None, job.job))
        lines = [f"{counted(len(jobs))} enqueued:"]
        for job in ordered[:_SHOWN_JOBS]:
            lines.append(f"  {job}")
            if self.job in (None, job.job):
                differences = list(self.differences(job))
                lines += [f"      {difference}" for difference in differences or ["matches"]]
        if len(jobs) > _SHOWN_JOBS:
            lines.append(f"  and {len(jobs) - _SHOWN_JOBS} more")
        return "\n".join(lines)


def _difference_of_instants(name: str, found: datetime | None, wanted: datetime, allowed: float) -> Iterator[str]:
    if found is None or abs((found - wanted).total_seconds()) > allowed + _EXACTLY_S:
        shown_instant = None if found is None else _instant(found)
        yield f"{name} is {shown_instant}, not {_instant(wanted)}{_give_or_take(allowed)}"


def counted(number: int) -> str:
    """`1 job was`, `2 jobs were`."""
    return "1 job was" if number == 1 else f"{number} jobs were"


def shown(value: object) -> str:
    """The repr of a value; a long one is truncated."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _check(expected: Expected) -> None:
    """Refuse a condition that no job can meet: refuting it would prove nothing."""
    unknown = sorted(set(expected) - Expected.__optional_keys__)
    if unknown:
        raise DefinitionError(
            f"'{unknown[0]}' is not a condition; pass an argument of the job as args={{'{unknown[0]}': …}}; "
            f"known conditions: {', '.join(sorted(Expected.__optional_keys__))}"
        )
    options = {name: value for name, value in expected.items() if name not in ("id", "meta", "tolerance")}
    definition_of("any", None, cast("JobOptions", options))
    if "id" in expected:
        check_id(expected["id"])
    tolerance = _tolerance_of(expected)
    if tolerance is not None and not tolerance >= 0:
        raise DefinitionError(f"tolerance must be a duration of 0 s or more, not {tolerance:g} s")
    if tolerance is not None and not {"delay", "run_at", "expires"} & set(expected):
        raise DefinitionError("tolerance needs a delay, a run_at or an expires to apply to")


def _tolerance_of(expected: Expected) -> float | None:
    return in_seconds("tolerance", expected["tolerance"]) if "tolerance" in expected else None


def _check_arguments(job: str, handler: Handler | None, args: object) -> None:
    if not isinstance(handler, FunctionHandler) or args is None or callable(args):
        return
    if not isinstance(args, Mapping):
        raise DefinitionError(
            f"args of job '{job}' must be a mapping of names to values, like {{'name': value}}, not {args!r}"
        )
    for name in cast("Mapping[object, object]", args):
        if not isinstance(name, str) or not handler.takes(name):
            known = [known for known in inspect.signature(handler.function).parameters if handler.takes(known)]
            guess = f"; {near}" if (near := did_you_mean(str(name), known)) else ";"
            raise DefinitionError(f"job '{job}' has no parameter {name!r}{guess} it has {', '.join(known) or 'none'}")


def _differences(path: str, expected: object, found: object) -> Iterator[str]:
    """Each difference between two values. An expected mapping may have some of the members; a function is called."""
    if callable(expected) and not isinstance(expected, type):
        if not cast("Callable[[object], object]", expected)(found):
            yield f"{path} is {shown(found)}, which {_name_of(expected)} rejects"
    elif isinstance(expected, Mapping):
        yield from _differences_in_members(path, cast("Mapping[object, object]", expected), found)
    elif isinstance(expected, list | tuple):
        yield from _differences_in_order(path, cast("Sequence[object]", expected), found)
    elif not (expected == found or _plain(expected) == _plain(found)):
        yield _is_not(path, found, expected)


def _differences_in_order(path: str, expected: Sequence[object], found: object) -> Iterator[str]:
    items = _items(found)
    if items is None or len(items) != len(expected):
        yield _is_not(path, found, expected)
        return
    for place, (one, other) in enumerate(zip(expected, items, strict=True)):
        yield from _differences(f"{path}[{place}]", one, other)


def _differences_in_members(path: str, expected: Mapping[object, object], found: object) -> Iterator[str]:
    members = _members(found)
    if members is None:
        yield _is_not(path, found, expected)
        return
    for name, value in expected.items():
        key = name if name in members else str(name)  # JSON has only text for keys
        if key in members:
            yield from _differences(f"{path}.{key}", value, members[key])
        else:
            yield f"{path} has no {shown(name)}"


def _items(value: object) -> Sequence[object] | None:
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else None


def _members(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value)
    if isinstance(value, Struct):
        return cast("Mapping[object, object]", msgspec.structs.asdict(value))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return cast("Mapping[object, object]", vars(value)) if hasattr(value, "__dict__") else None


def _plain(value: object) -> object:
    """The value as JSON has it, so that a date equals its text; the value itself if JSON cannot represent it."""
    try:
        return msgspec.to_builtins(value, enc_hook=json_models.encode_hook)
    except (TypeError, ValueError):
        return value


def _is_not(path: str, found: object, expected: object) -> str:
    return f"{path} is {shown(found)}, not {shown(expected)}"


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", "")
    return str(name) if name.isidentifier() else "the function given for it"


def _instant(instant: datetime) -> str:
    return instant.isoformat(sep=" ", timespec="seconds")


def _call(args: object) -> str:
    if not isinstance(args, dict):
        return shown(args)
    return ", ".join(f"{name}={shown(value)}" for name, value in cast("dict[str, object]", args).items())


def _give_or_take(tolerance: float) -> str:
    return f" ± {tolerance:g} s" if tolerance else ""
