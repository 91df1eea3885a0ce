"""The tables `[schedules.NAME]` of the configuration file: their options, and the schedules that they define."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.config.keys import Key, Settings
from holdfast.config.project import OWN_FILE
from holdfast.errors import ConfigError, DefinitionError
from holdfast.plaintext import abridged
from holdfast.spelling import did_you_mean

if TYPE_CHECKING:  # settings without schedules need none of these
    from holdfast.cron.schedule import Schedule
    from holdfast.definition import JobDefinition

_DAY: Final = 86400
MEMBERS: Final = {
    member.name: member
    for member in (
        Key(name="cron", kind="text", meaning="cron expression with five fields, or @hourly to @yearly"),
        Key(name="every", kind="duration", low=1, high=366 * _DAY, meaning="interval, such as 90s (instead of cron)"),
        Key(name="timezone", kind="text", meaning="time zone of the cron expression, such as Europe/Berlin"),
        Key(name="command", kind="command", meaning="command to run: a list of arguments, or text without expansions"),
        Key(name="job", kind="text", meaning="key of the job to enqueue (instead of command)"),
        Key(name="payload", kind="value", meaning="arguments of the job"),
        Key(name="queue", kind="queue", meaning="queue of the job; default: the setting default-queue"),
        Key(name="max-retries", kind="count", high=1000, meaning="number of retries; default: the setting max-retries"),
        Key(
            name="timeout",
            kind="duration",
            high=366 * _DAY,
            meaning="time limit for one attempt; default: the setting timeout",
        ),
        Key(name="inline", kind="flag", meaning="run the job in the schedule runner instead of in a worker"),
        Key(name="depends-on", kind="words", meaning="schedules to wait for if they are due at the same instant"),
        Key(name="environments", kind="words", meaning="run only in these environments (see the setting environment)"),
        Key(
            name="catch-up",
            kind="text",
            choices=("none", "last", "all"),
            meaning="which runs to catch up on after a period without a runner; default: none",
        ),
        Key(
            name="catch-up-limit",
            kind="count",
            low=1,
            high=1000,
            meaning="maximum number of runs with catch-up = all; default: 10",
        ),
        Key(
            name="overlap",
            kind="text",
            choices=("allow", "skip", "queue"),
            meaning="what to do if the previous run has not finished; default: allow",
        ),
        Key(name="jitter", kind="duration", high=_DAY, meaning="delay each run by up to this duration"),
        Key(name="starts-at", kind="instant", meaning="do not run before this time"),
        Key(name="ends-at", kind="instant", meaning="do not run after this time"),
        Key(name="enabled", kind="flag", meaning="whether the schedule runs"),
        Key(name="note", kind="text", meaning="a note, shown by cronjob show"),
        Key(name="owner", kind="text", meaning="the person or team responsible for the schedule"),
    )
}
# The options that have the same name in a `Schedule`.
_SAME: Final = (
    *("depends_on", "environments", "catch_up", "catch_up_limit", "overlap", "jitter", "enabled", "inline"),
    *("note", "owner"),
)


def parse_schedules(raw: object) -> dict[str, dict[str, Any]]:
    """The options of each table by its name, checked; durations are in seconds."""
    if not isinstance(raw, dict):
        raise ValueError('must be a table of schedules, such as {backup = {cron = "0 2 * * *", command = ["backup"]}}')
    tables: dict[str, dict[str, Any]] = {}
    schedules: list[Schedule] = []
    for name, table in cast("dict[str, object]", raw).items():
        with _named(name):
            tables[name] = _members(table)
            schedules.append(schedule_of(name, tables[name]))
    if schedules:
        from holdfast.cron.scheduler import execution_order

        try:
            execution_order(schedules)
        except DefinitionError as problem:
            raise ConfigError(str(problem)) from None
    return tables


def configured_schedules(settings: Settings) -> list["Schedule"]:
    """The schedules that the settings define."""
    return [schedule_of(name, {"queue": settings.default_queue, **table}) for name, table in settings.schedules.items()]


def schedules_origin(settings: Settings) -> str:
    """The origin of these schedules: projects that share a backend are told apart by their application."""
    package = settings.app.partition(":")[0].partition(".")[0]
    return f"{OWN_FILE}:{package}" if package else OWN_FILE


def schedule_of(name: str, table: Mapping[str, Any]) -> "Schedule":
    """The schedule that a table defines."""
    from holdfast.cron.schedule import Schedule
    from holdfast.cron.timing import parse_timing
    from holdfast.cron.zones import zone_named

    given = {member.replace("-", "_"): value for member, value in table.items()}
    _one_of(given, "cron", "every")
    zone = given.get("timezone", "UTC")
    timing = parse_timing(given["cron"] if "cron" in given else f"every {given['every']:.15g}s", zone)
    same: dict[str, Any] = {member: given[member] for member in _SAME if member in given}
    for at in ("starts_at", "ends_at"):
        moment: datetime | None = given.get(at)
        # A time without an offset is in the time zone of the schedule.
        same[at] = moment if moment is None or moment.tzinfo else moment.replace(tzinfo=zone_named(zone))
    return Schedule(name=name, definition=_definition(given), timing=timing, **same)


def _definition(given: Mapping[str, Any]) -> "JobDefinition":
    from holdfast.definition.definition import JobOptions, definition_of
    from holdfast.handlers import COMMAND_KEY

    _one_of(given, "command", "job")
    if "command" in given and "payload" in given:
        raise DefinitionError("payload is only valid for a job, not for a command")
    handler, payload = given.get("job", COMMAND_KEY), given.get("payload", {})
    options = {member: given[member] for member in ("queue", "max_retries", "timeout") if member in given}
    return definition_of(
        handler, {"argv": given["command"]} if "command" in given else payload, cast("JobOptions", options)
    )


def _one_of(given: Mapping[str, Any], one: str, other: str) -> None:
    if (one in given) == (other in given):
        raise DefinitionError(f"set {one} or {other}{', not both' if one in given else ''}")


def _members(raw: object) -> dict[str, Any]:
    from holdfast.config.kinds import check_value

    if not isinstance(raw, dict):
        raise ConfigError("must be a table with options such as cron and command")
    members: dict[str, Any] = {}
    for spelled, value in cast("dict[str, object]", raw).items():
        name = spelled.replace("_", "-").lower()
        if name not in MEMBERS:
            hint = did_you_mean(name, MEMBERS) or f"known options: {', '.join(MEMBERS)}"
            raise ConfigError(f"a schedule has no option {abridged(repr(spelled))}; {hint}")
        if name in members:
            raise ConfigError(f"{name} is set twice, with a dash and with an underscore; remove one")
        members[name] = check_value(MEMBERS[name], value)
    return members


@contextmanager
def _named(name: str) -> Generator[None]:
    """Put the name of the table in front of an error."""
    try:
        yield
    except (ConfigError, DefinitionError) as problem:
        message = str(problem).removeprefix(f"schedule '{name}': ")
        raise ConfigError(f"[schedules.{abridged(name)}] {message}") from None


def parse_argv(raw: object) -> tuple[str, ...]:
    """The arguments of a command."""
    from holdfast.handlers import parse_command

    if not isinstance(raw, str | list | tuple):
        raise ValueError("must be a list of strings")
    try:
        return tuple(parse_command(cast("str | Sequence[str]", raw)))
    except DefinitionError as problem:
        raise ValueError(str(problem)) from None


def parse_moment(raw: object) -> datetime:
    """A point in time. Without an offset, it is in the time zone of the schedule."""
    if isinstance(raw, str):
        try:
            return datetime.fromisoformat(raw)
        except ValueError:
            pass
    if isinstance(raw, datetime):
        return raw
    if isinstance(raw, date):
        return datetime.combine(raw, time())
    raise ValueError("must be a time, such as 2026-12-01T06:00:00 or 2026-12-01T06:00:00+01:00")
