"""A job described in JSON: its fields, their spellings, and the definition that they make."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, cast, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.cli.words import DEPENDS_ON
from holdfast.definition import JobBuilder, JobDefinition, JobOptions
from holdfast.errors import DefinitionError
from holdfast.handlers import COMMAND_KEY, parse_command
from holdfast.spelling import did_you_mean
from holdfast.values import Backoff, OnConflict, OnParentFailure

Instant = Annotated[datetime, Meta(tz=True)]

# Spellings from the reference documents and their users.
_ALIASES: Final = {"timeout_seconds": "timeout", "handler": "job", "after": DEPENDS_ON}
# Members of jobs in the reference documents, with the value that a new job must have; None stands for any value.
_OF_NEW_JOBS: Final[dict[str, Any]] = {"state": "pending", "attempts": 0, "created_at": None, "updated_at": None}
_ACTIONS: Final = {"on_conflict": OnConflict, "on_parent_failure": OnParentFailure}
_EITHER: Final = (("delay", "run_at"), ("expires", "expires_at"))


class JobSpec(Struct, frozen=True, kw_only=True):
    """One job: a `command`, or a `job` with its `payload`, and its options."""

    command: str | list[str] | UnsetType = UNSET
    cwd: str | None = None
    job: str | UnsetType = UNSET
    payload: Any = None
    options: JobOptions = {}

    @property
    def id(self) -> str | None:
        return self.options.get("id")

    def definition(self, template: JobDefinition | None = None) -> JobDefinition:
        """The job to enqueue. The template, if given, supplies the other options."""
        options: JobOptions = {**self.options}
        options.pop("id", None)
        return self._described(template).with_options(**options)

    def _described(self, template: JobDefinition | None) -> JobDefinition:
        if self.command is not UNSET:
            if self.job is not UNSET or self.payload is not None:
                raise DefinitionError("pass either a command, or a job with its payload, not both")
            return command_job(parse_command(self.command), self.cwd).definition()
        if self.job is UNSET:
            raise DefinitionError('nothing to run: add "command": "sleep 2", or "job": "name" with its "payload"')
        if self.cwd is not None:
            raise DefinitionError("cwd is only valid for commands")
        return (template or JobDefinition(handler=self.job)).with_payload(self.payload)


_HINTS: Final = get_type_hints(JobOptions)
# Where Python takes a `timedelta`, JSON takes text such as "90s".
_DURATIONS: Final = [name for name, hint in _HINTS.items() if timedelta in get_args(hint)]
_TASK: Final = ("command", "cwd", "job", "payload")
FIELD_TYPES: Final = {
    **{name: get_type_hints(JobSpec)[name] for name in _TASK},
    **{DEPENDS_ON if name == "after" else name: hint for name, hint in _HINTS.items()},
    DEPENDS_ON: list[str],
    **dict.fromkeys(_DURATIONS, float | str),
    "backoff": float | str | list[float | str] | Backoff,
    "run_at": Instant,
    "expires_at": Instant,
}


def read_spec(fields: Mapping[str, Any], overriding: Mapping[str, Any]) -> JobSpec:
    """The job that a JSON object describes. An unknown field, or one of the wrong type, is an error.

    Fields in `overriding` replace those of the object, except that tags and meta are added to them.
    """
    known, given = _known_fields(fields), dict(overriding)
    for ours, theirs in _EITHER:
        if ours in given or theirs in given:
            known.pop(ours, None)
            known.pop(theirs, None)
    both = {**known, **given}
    if "tags" in known and "tags" in given:
        both["tags"] = [*_converted("tags", known["tags"]), *given["tags"]]
    if "meta" in known and "meta" in given:
        both["meta"] = {**_converted("meta", known["meta"]), **given["meta"]}
    values = {name: _converted(name, value) for name, value in both.items() if value is not None}
    task = {name: values.pop(name) for name in _TASK if name in values}
    return JobSpec(**task, options=_options(values))


def _options(values: dict[str, Any]) -> JobOptions:
    if "expires_at" in values:
        if "expires" in values:
            raise DefinitionError("pass either expires or expires_at, not both")
        values["expires"] = values.pop("expires_at")
    if DEPENDS_ON in values:
        values["after"] = values.pop(DEPENDS_ON)
    return cast("JobOptions", values)


def _converted(name: str, value: object) -> Any:
    try:
        return msgspec.convert(value, FIELD_TYPES[name])
    except msgspec.ValidationError as problem:
        if name in _ACTIONS:
            raise DefinitionError(f"field '{name}': {value!r} is not one of {', '.join(_ACTIONS[name])}") from None
        message, _, path = str(problem).partition(" - at `$")
        raise DefinitionError(f"field '{name}{path.rstrip('`')}': {message}") from None


def _known_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by their canonical names."""
    known: dict[str, Any] = {}
    for spelled, value in fields.items():
        name = "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in spelled).replace("-", "_")
        name = _ALIASES.get(name, name)
        if name in _OF_NEW_JOBS:
            _check_new(spelled, value, _OF_NEW_JOBS[name])
            continue
        if name not in FIELD_TYPES:
            hint = did_you_mean(name, FIELD_TYPES) or f"known fields: {', '.join(FIELD_TYPES)}"
            raise DefinitionError(f"unknown field '{spelled}'; {hint}")
        if name in known:
            raise DefinitionError(f"field '{name}' is given twice, once as '{spelled}'")
        known[name] = value
    return known


def _check_new(spelled: str, value: object, of_new_jobs: object) -> None:
    if of_new_jobs is not None and (value != of_new_jobs or isinstance(value, bool)):
        raise DefinitionError(f"field '{spelled}': must be {of_new_jobs!r} for a new job, not {value!r}; leave it out")


def command_job(argv: Sequence[str], cwd: str | None = None) -> JobBuilder:
    """A command as a job, named as it would be typed."""
    typed = "".join(sign if sign.isprintable() else " " for sign in shlex.join(argv))
    payload = {"argv": list(argv)} if cwd is None else {"argv": list(argv), "cwd": cwd}
    return JobBuilder(COMMAND_KEY, payload).named(typed if len(typed) <= 200 else f"{typed[:199]}…")
