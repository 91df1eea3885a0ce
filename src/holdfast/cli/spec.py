"""A job as people write it in JSON: the fields, their spellings, and the definition they make."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.config import parse_span
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.errors import DefinitionError
from holdfast.handlers import COMMAND_KEY, parse_command
from holdfast.values import Backoff, BackoffStrategy

Span = float | str
Instant = Annotated[datetime, Meta(tz=True)]


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
    fence: bool = False

    def definition(self) -> JobDefinition:
        """What to enqueue."""
        builder = self._builder()
        if self.name is not None:
            builder.named(self.name)
        if self.queue is not None:
            builder.queue(self.queue)
        if self.priority is not None:
            builder.priority(self.priority)
        if self.max_retries is not None:
            builder.max_retries(self.max_retries)
        if self.backoff is not None:
            builder.backoff(_backoff(self.backoff))
        if self.trace_id is not None:
            builder.trace_id(self.trace_id)
        if self.fence:
            builder.fence()
        self._set_times(builder)
        return builder.tags(*self.tags).meta(self.meta).definition()

    def _builder(self) -> JobBuilder:
        if self.command is not UNSET:
            if self.job is not UNSET or self.payload is not None:
                raise DefinitionError("a job has either a command, or a job and its payload, not both")
            return command_job(parse_command(self.command), self.cwd)
        if self.job is UNSET:
            raise DefinitionError('say what to run: "command": "sleep 2", or "job": "name" with its "payload"')
        if self.cwd is not None:
            raise DefinitionError("only a command has a cwd")
        return JobBuilder(self.job, self.payload)

    def _set_times(self, builder: JobBuilder) -> None:
        if self.timeout is not None:
            builder.timeout(_span("timeout", self.timeout))
        if self.delay is not None and self.run_at is not None:
            raise DefinitionError("a job has either a delay or a run_at, not both")
        if self.delay is not None:
            builder.delay(_span("delay", self.delay))
        if self.run_at is not None:
            builder.run_at(self.run_at)
        if self.expires is not None and self.expires_at is not None:
            raise DefinitionError("a job expires either after a span or at an instant, not both")
        if self.expires is not None:
            builder.expires(_span("expires", self.expires))
        if self.expires_at is not None:
            builder.expires(self.expires_at)


def read_spec(fields: Mapping[str, Any], overriding: Mapping[str, Any]) -> JobSpec:
    """The job that a JSON object describes; an unknown or ill-typed field is an error that says what is known."""
    known: dict[str, Any] = {}
    for spelled, value in fields.items():
        name = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in spelled).replace("-", "_")
        if name not in JobSpec.__struct_fields__:
            near = get_close_matches(name, JobSpec.__struct_fields__, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known fields: {', '.join(JobSpec.__struct_fields__)}"
            raise DefinitionError(f"unknown field '{spelled}'; {hint}")
        if name in known:
            raise DefinitionError(f"field '{name}' is given twice, once as '{spelled}'")
        known[name] = value
    try:
        return msgspec.convert({**known, **overriding}, JobSpec)
    except msgspec.ValidationError as problem:
        message, _, path = str(problem).partition(" - at `$.")
        raise DefinitionError(f"field '{path.rstrip('`')}': {message}" if path else message) from None


def command_job(argv: Sequence[str], cwd: str | None = None) -> JobBuilder:
    """A command as a job, named by how it would be typed."""
    typed = "".join(sign if sign.isprintable() else " " for sign in shlex.join(argv))
    payload = {"argv": list(argv)} if cwd is None else {"argv": list(argv), "cwd": cwd}
    return JobBuilder(COMMAND_KEY, payload).named(typed if len(typed) <= 200 else f"{typed[:199]}…")


def _backoff(value: str | list[float] | Backoff) -> str | list[float] | Backoff:
    if isinstance(value, str) and value not in list(BackoffStrategy):
        raise DefinitionError(
            f"field 'backoff': {value!r} is no strategy; choose one of {', '.join(BackoffStrategy)}, "
            "or give a list of delays"
        )
    if isinstance(value, list) and not value:
        raise DefinitionError("field 'backoff': a list of delays holds at least one")
    return value


def _span(field: str, value: object) -> float:
    try:
        return parse_span(value)
    except ValueError as problem:
        raise DefinitionError(f"field '{field}': {value!r}: {problem}") from None
