"""A job as people write it in JSON: the fields, their spellings, and the definition they make."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.codec import encode_payload
from holdfast.config import parse_span
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.backoff import as_backoff, parse_backoff
from holdfast.definition.definition import unique
from holdfast.errors import DefinitionError
from holdfast.handlers import COMMAND_KEY, parse_command
from holdfast.values import Backoff

Span = float | str
Instant = Annotated[datetime, Meta(tz=True)]

# Other names for the same: of the reference's documents and of its users.
_ALIASES: Final = {"timeout_seconds": "timeout", "handler": "job"}
# What the reference's jobs say of themselves, which is so of every new job; None stands for anything.
_OF_NEW_JOBS: Final[dict[str, Any]] = {"state": "pending", "attempts": 0, "created_at": None, "updated_at": None}
_EITHER: Final = (("delay", "run_at"), ("expires", "expires_at"))


class JobSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job: a `command`, or a `job` with its `payload`; everything else is optional."""

    id: str | None = None
    command: str | list[str] | UnsetType = UNSET
    cwd: str | None = None
    job: str | UnsetType = UNSET
    payload: Any = None
    name: str | None = None
    queue: str | None = None
    priority: int | None = None
    max_retries: int | None = None
    backoff: str | list[float] | Backoff | None = None
    timeout: Span | None = None
    delay: Span | None = None
    run_at: Instant | None = None
    expires: Span | None = None
    expires_at: Instant | None = None
    tags: list[str] = []
    meta: dict[str, Any] = {}
    trace_id: str | None = None
    fence: bool | None = None

    def definition(self, template: JobDefinition | None = None) -> JobDefinition:
        """What to enqueue; what is not said here is as in the template of the job, if there is one."""
        changes: dict[str, Any] = {
            option: value
            for option in ("name", "queue", "priority", "max_retries", "trace_id", "fence")
            if (value := getattr(self, option)) is not None
        }
        if self.backoff is not None:
            changes["backoff"] = as_backoff(_backoff(self.backoff))
        if self.tags:
            changes["tags"] = unique(self.tags)
        if self.meta:
            changes["meta"] = encode_payload(self.meta, what="the meta")
        return msgspec.structs.replace(self._described(template), **changes, **self._times())

    def _described(self, template: JobDefinition | None) -> JobDefinition:
        if self.command is not UNSET:
            if self.job is not UNSET or self.payload is not None:
                raise DefinitionError("a job has either a command, or a job and its payload, not both")
            return command_job(parse_command(self.command), self.cwd).definition()
        if self.job is UNSET:
            raise DefinitionError('say what to run: "command": "sleep 2", or "job": "name" with its "payload"')
        if self.cwd is not None:
            raise DefinitionError("only a command has a cwd")
        return (template or JobDefinition(handler=self.job)).with_payload(self.payload)

    def _times(self) -> dict[str, Any]:
        times: dict[str, Any] = {}
        if self.timeout is not None:
            times["timeout"] = _span("timeout", self.timeout)
        if self.delay is not None and self.run_at is not None:
            raise DefinitionError("a job has either a delay or a run_at, not both")
        if self.delay is not None or self.run_at is not None:
            delay = None if self.delay is None else _span("delay", self.delay)
            times |= {"delay": delay, "run_at": self.run_at}
        if self.expires is not None and self.expires_at is not None:
            raise DefinitionError("a job expires either after a span or at an instant, not both")
        if self.expires is not None or self.expires_at is not None:
            expires_in = None if self.expires is None else _span("expires", self.expires)
            times |= {"expires_in": expires_in, "expires_at": self.expires_at}
        return times


def read_spec(fields: Mapping[str, Any], overriding: Mapping[str, Any]) -> JobSpec:
    """The job that a JSON object describes; an unknown or ill-typed field is an error that says what is known.

    What `overriding` says counts instead, except that tags and meta are added to those of the object.
    """
    known = _known_fields(fields)
    for ours, theirs in _EITHER:
        if ours in overriding or theirs in overriding:
            known.pop(ours, None)
            known.pop(theirs, None)
    try:
        spec = msgspec.convert(known, JobSpec)
        given = msgspec.convert(dict(overriding), JobSpec)
    except msgspec.ValidationError as problem:
        message, _, path = str(problem).partition(" - at `$.")
        raise DefinitionError(f"field '{path.rstrip('`')}': {message}" if path else message) from None
    if not overriding:
        return spec
    changes: dict[str, Any] = {name: getattr(given, name) for name in overriding}
    changes |= {"tags": [*spec.tags, *given.tags], "meta": {**spec.meta, **given.meta}}
    return msgspec.structs.replace(spec, **changes)


def _known_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by the names they have here."""
    known: dict[str, Any] = {}
    for spelled, value in fields.items():
        name = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in spelled).replace("-", "_")
        name = _ALIASES.get(name, name)
        if name in _OF_NEW_JOBS:
            _check_new(spelled, value, _OF_NEW_JOBS[name])
            continue
        if name not in JobSpec.__struct_fields__:
            near = get_close_matches(name, JobSpec.__struct_fields__, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known fields: {', '.join(JobSpec.__struct_fields__)}"
            raise DefinitionError(f"unknown field '{spelled}'; {hint}")
        if name in known:
            raise DefinitionError(f"field '{name}' is given twice, once as '{spelled}'")
        known[name] = value
    return known


def _check_new(spelled: str, value: object, of_new_jobs: object) -> None:
    if of_new_jobs is not None and (value != of_new_jobs or isinstance(value, bool)):
        raise DefinitionError(f"field '{spelled}': a new job has {of_new_jobs!r} there, not {value!r}; leave it out")


def command_job(argv: Sequence[str], cwd: str | None = None) -> JobBuilder:
    """A command as a job, named by how it would be typed."""
    typed = "".join(sign if sign.isprintable() else " " for sign in shlex.join(argv))
    payload = {"argv": list(argv)} if cwd is None else {"argv": list(argv), "cwd": cwd}
    return JobBuilder(COMMAND_KEY, payload).named(typed if len(typed) <= 200 else f"{typed[:199]}…")


def _backoff(value: str | list[float] | Backoff) -> list[float] | Backoff:
    if isinstance(value, str):
        try:
            return parse_backoff(value)
        except ValueError as problem:
            raise DefinitionError(f"field 'backoff': {problem}") from None
    if isinstance(value, list) and not value:
        raise DefinitionError("field 'backoff': a list of delays holds at least one")
    return value


def _span(field: str, value: object) -> float:
    try:
        return parse_span(value)
    except ValueError as problem:
        raise DefinitionError(f"field '{field}': {value!r}: {problem}") from None
