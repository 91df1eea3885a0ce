"""Templates: the stored form of a schedule, signed and bound to its name. Nothing in it is used unverified, except to
show it.

Unknown members are refused: a program that does not know an option must not fire a schedule without it.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from holdfast.cron.schedule import Schedule
from holdfast.cron.timing import parse_timing
from holdfast.definition import JobDefinition
from holdfast.errors import BadSignature, DefinitionError, EnvelopeRejected, NewerWire, UnknownMember
from holdfast.queues.signing import Signer, Unsigned
from holdfast.values import MAX_CELL_BYTES, CatchUp, Overlap

TEMPLATE_VERSION: Final = 1
PURPOSE: Final = "schedule"
# The cell has room for more than the template.
MAX_TEMPLATE_BYTES: Final = MAX_CELL_BYTES * 3 // 4

_FIELDS: Final = [one for one in msgspec.structs.fields(JobDefinition) if one.name != "has_traits"]

if TYPE_CHECKING:
    _Job: TypeAlias = JobDefinition
else:
    # Like a definition, but strict, and without the members that have their default values.
    _Job = msgspec.defstruct(
        "_Job",
        [(one.name, one.type, *(() if one.default is msgspec.NODEFAULT else (one.default,))) for one in _FIELDS],
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )


class _Template(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The signed content of a template. Its `revision` is greater than in all earlier templates of the schedule."""

    v: int
    name: str
    revision: int
    job: _Job
    timing: str
    zone: str = "UTC"
    depends_on: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    enabled: bool = True
    inline: bool = False
    catch_up: CatchUp = CatchUp.NONE
    catch_up_limit: int = 10
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    note: str = ""
    owner: str = ""
    kid: str = ""


class _VersionOnly(Struct):
    v: int = 0


_SAME: Final = (
    *("name", "depends_on", "environments", "enabled", "inline", "catch_up", "catch_up_limit", "overlap", "jitter"),
    *("starts_at", "ends_at", "note", "owner"),
)
_decoder = msgspec.json.Decoder(_Template)


class Template(Struct, frozen=True, kw_only=True):
    """A schedule that was read from the store, and its revision."""

    schedule: Schedule
    revision: int


def seal_template(schedule: Schedule, revision: int, signer: Signer) -> bytes:
    """The signed form of a schedule."""
    template = _Template(
        v=TEMPLATE_VERSION,
        revision=revision,
        job=_Job(**{one.name: getattr(schedule.definition, one.name) for one in _FIELDS}),
        timing=schedule.timing.text(),
        zone=schedule.timing.zone,
        kid=signer.kid,
        **{field: getattr(schedule, field) for field in _SAME},
    )
    wire = signer.sign_for(PURPOSE, msgspec.json.encode(template))
    if len(wire) > MAX_TEMPLATE_BYTES:
        raise DefinitionError(
            f"schedule '{schedule.name}' is {len(wire):,} bytes; the limit is {MAX_TEMPLATE_BYTES:,}: store the data "
            "elsewhere and send a reference to it"
        )
    return wire


def open_template(name: str, wire: bytes, signer: Signer) -> Template:
    """The schedule in a template that was stored under this name, after its signature has been verified."""
    template = _decoded(signer.open_for(PURPOSE, wire))
    if template.schedule.name != name:
        raise BadSignature(f"the schedule was signed as '{template.schedule.name}', not as '{name}'")
    return template


def describe_template(wire: bytes) -> Schedule | None:
    """The schedule in a stored template, to be shown; None if it cannot be read. The signature is not verified."""
    try:
        return _decoded(Unsigned().open_for(PURPOSE, wire)).schedule
    except (EnvelopeRejected, NewerWire, UnknownMember):
        return None


def _decoded(content: bytes) -> Template:
    try:
        read = _decoder.decode(content)
        definition = JobDefinition(**{one.name: getattr(read.job, one.name) for one in _FIELDS})
        schedule = Schedule(
            definition=definition,
            timing=parse_timing(read.timing, read.zone),
            **{field: getattr(read, field) for field in _SAME},
        )
    except DefinitionError as problem:
        raise EnvelopeRejected(f"not a valid schedule: {problem}") from problem
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise _why_unreadable(content, problem) from problem
    if read.v != TEMPLATE_VERSION:
        raise NewerWire(read.v, TEMPLATE_VERSION)
    return Template(schedule=schedule, revision=read.revision)


def _why_unreadable(content: bytes, problem: Exception) -> Exception:
    try:
        version = msgspec.json.decode(content, type=_VersionOnly).v
        members = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return EnvelopeRejected("not a valid schedule: it is not valid JSON")
    if version > TEMPLATE_VERSION:
        return NewerWire(version, TEMPLATE_VERSION)
    job = cast("dict[str, Any]", members["job"] if isinstance(members.get("job"), dict) else {})
    for known, given in ((_Template, members), (_Job, job)):
        if unknown := sorted(set(given) - set(known.__struct_fields__)):
            return UnknownMember(unknown[0])
    text = "".join(character if character.isprintable() else "\ufffd" for character in str(problem)[:300])
    return EnvelopeRejected(f"not a valid schedule: {text}")
