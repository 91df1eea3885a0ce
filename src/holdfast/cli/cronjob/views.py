"""Schedules and their ledgers as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import msgspec

from holdfast.cli.cronjob.reading import Known
from holdfast.cli.output import write
from holdfast.cli.style import BAD, DOUBTFUL, GOOD, Fit, Table, painted_table
from holdfast.cli.words import NOTHING, UTC_KEY, instant
from holdfast.clock import from_us
from holdfast.cron.schedule import Schedule
from holdfast.cron.zones import zone_named
from holdfast.handlers import COMMAND_KEY
from holdfast.handlers.command import CommandPayload
from holdfast.plaintext import one_line
from holdfast.state.schedules import LedgerEntry
from holdfast.units import format_duration
from holdfast.values import JobState, ScheduleSource, TickOutcome

BAR: Final = 30
FIT: Final = Fit(pliant={"NAME": 16, "ON": 12, "SCHEDULE": 16}, left_out=("RUNS", "ZONE", "LAST"))
HISTORY_FIT: Final = Fit(pliant={"REASON": 20, "JOB": 16}, left_out=("FINISHED", "REASON"))
# The characters of the bar: one for each result of a job and each reason for not having one.
_SIGNS: Final[Mapping[str, str]] = {
    JobState.COMPLETED: "█",
    JobState.DEAD: "✗",
    JobState.CANCELLED: "–",
    TickOutcome.FIRED: "•",
    TickOutcome.LATE: "•",
    TickOutcome.SKIPPED: "░",
    TickOutcome.MISSED: "!",
}
_COLOURS: Final[Mapping[str, str]] = {
    JobState.COMPLETED: GOOD,
    JobState.DEAD: BAD,
    TickOutcome.MISSED: BAD,
    JobState.CANCELLED: DOUBTFUL,
}
_OPEN: Final = "not finished"
LEGEND: Final = "runs, newest on the right: █ completed, ✗ dead, – cancelled, • not finished, ░ skipped, ! missed"


def outcome_of(entry: LedgerEntry) -> str:
    """The final state of the entry's job; without a job, or while it is unfinished, the outcome of the entry."""
    return entry.tick.outcome if entry.result is None else entry.result.state


def bar(history: Sequence[LedgerEntry]) -> str:
    """The last entries as signs, newest on the right."""
    signs = "".join(_SIGNS[outcome_of(entry)] * min(entry.tick.count, BAR) for entry in history)
    return signs[:BAR][::-1]


def local(moment: datetime, schedule: Schedule) -> str:
    """The local time in the schedule's zone, with its offset; with `--utc`, the time in UTC."""
    context = click.get_current_context(silent=True)
    is_utc = context is not None and context.meta.get(UTC_KEY)
    zone = UTC if is_utc else zone_named(schedule.timing.zone)
    return moment.astimezone(zone).isoformat(sep=" ", timespec="seconds")


def schedules_table(known: Sequence[Known]) -> Table:
    """The table of `cronjob list`."""
    headings = ("NAME", "SCHEDULE", "ZONE", "LAST", "NEXT", "RUNS", "ON")
    rows = [_row(one) for one in known]
    lasts = {
        row[3]: _COLOURS.get(outcome_of(one.view.history[0]))
        for one, row in zip(known, rows, strict=True)
        if one.view.history
    }
    tints: Sequence[Mapping[str, str]] = (
        {text: colour for text, colour in lasts.items() if colour is not None},
        {row[6]: DOUBTFUL for row in rows if row[6] != "yes"},
    )
    return painted_table(headings, rows, (None, None, None, tints[0], None, None, tints[1]), fit=FIT)


def _row(known: Known) -> list[str]:
    view, schedule = known.view, known.view.schedule
    return [
        view.name,
        NOTHING if schedule is None else schedule.timing.describe(),
        NOTHING if schedule is None else schedule.timing.zone,
        _last(known),
        _next(known),
        bar(view.history) or NOTHING,
        f"no: {one_line(known.reason)}" if known.reason else "yes",
    ]


def _last(known: Known) -> str:
    if not known.view.history:
        return NOTHING
    entry = known.view.history[0]
    ago = format_duration(max(0.0, (known.now - entry.instant).total_seconds()))
    return f"{outcome_of(entry)} {ago} ago"


def _next(known: Known) -> str:
    schedule, following = known.view.schedule, known.next_at
    if schedule is None or following is None:
        return NOTHING
    return "now" if following <= known.now else local(following, schedule)


def print_schedule(known: Known) -> None:
    """Print everything about one schedule."""
    view, schedule, problem = known.view, known.view.schedule, known.view.problem
    rows: list[tuple[str, object]] = [("schedule", view.name)]
    if schedule is not None:
        timing = schedule.timing
        rows += [("when", f"{timing.describe()} ({timing.text()})"), ("zone", timing.zone), ("job", _job(schedule))]
        rows += _options(schedule)
    rows += [("defined", _source(known)), ("on", f"no: {known.reason}" if known.reason else "yes")]
    if view.switch is not None and view.switch.enabled:
        by = f" by {view.switch.by}" if view.switch.by else ""
        rows.append(("enabled", f"{instant(from_us(view.switch.at_us))}{by}: {view.switch.reason or NOTHING}"))
    if problem is not None:
        times = f" ({problem.count} times)" if problem.count > 1 else ""
        rows.append(("problem", f"{problem.kind}{times} at {instant(from_us(problem.at_us))}: {problem.message}"))
    rows += [("last", _last(known)), ("next", _next(known)), ("runs", bar(view.history) or NOTHING)]
    for label, value in rows:
        write(f"{label:<12} {value}")


def _job(schedule: Schedule) -> str:
    definition = schedule.definition
    what = f"{definition.handler} {bytes(definition.payload).decode(errors='replace')}"
    if definition.handler == COMMAND_KEY:
        with suppress(msgspec.MsgspecError):
            what = shlex.join(msgspec.json.decode(definition.payload, type=CommandPayload).argv)
    return f"{what}{f' on {definition.queue}' if definition.queue else ''}"


def _options(schedule: Schedule) -> Iterable[tuple[str, object]]:
    """The options that are set."""
    limit = f", up to {schedule.catch_up_limit}" if schedule.catch_up == "all" else ""
    options: tuple[tuple[str, object, bool], ...] = (
        ("inline", "yes", schedule.inline),
        ("depends on", ", ".join(schedule.depends_on), bool(schedule.depends_on)),
        ("only in", ", ".join(schedule.environments), bool(schedule.environments)),
        ("catch up", f"{schedule.catch_up}{limit}", schedule.catch_up != "none"),
        ("overlap", schedule.overlap, schedule.overlap != "allow"),
        ("jitter", f"up to {format_duration(schedule.jitter)}", bool(schedule.jitter)),
        ("starts", instant(schedule.starts_at), schedule.starts_at is not None),
        ("ends", instant(schedule.ends_at), schedule.ends_at is not None),
        ("owner", schedule.owner, bool(schedule.owner)),
        ("note", schedule.note, bool(schedule.note)),
    )
    return [(label, value) for label, value, is_set in options if is_set]


def _source(known: Known) -> str:
    view = known.view
    match view.source:
        case ScheduleSource.CODE:
            build = f", build {view.build}" if view.build else ""
            return f"in the code of {view.origin}{build}"
        case ScheduleSource.CONFIG:
            return "in the settings"
        case ScheduleSource.STORED:
            return "at run time"


def history_table(entries: Sequence[LedgerEntry]) -> Table:
    """The table of `cronjob history`."""
    headings = ("INSTANT", "OUTCOME", "RESULT", "JOB", "FINISHED", "REASON")
    tint = {**_COLOURS, TickOutcome.LATE: DOUBTFUL}
    return painted_table(headings, [_entry(one) for one in entries], (None, tint, tint), fit=HISTORY_FIT)


def _entry(entry: LedgerEntry) -> list[str]:
    tick, result = entry.tick, entry.result
    count = f" ×{tick.count}" if tick.count > 1 else ""
    first = "" if tick.first_us is None or tick.count == 1 else f"{instant(from_us(tick.first_us))} to "
    ended = NOTHING if tick.job_id is None else _OPEN if result is None else str(result.state)
    late = f"{format_duration(tick.late_s)} late" if tick.late_s else ""
    reasons = [tick.reason, late, "" if result is None else result.reason]
    return [
        f"{first}{instant(entry.instant)}",
        f"{tick.outcome}{count}",
        ended,
        tick.job_id or NOTHING,
        NOTHING if result is None else instant(from_us(result.finished_us)),
        "; ".join(filter(None, reasons)) or NOTHING,
    ]


def clock_changes(schedule: Schedule, moments: Sequence[datetime]) -> list[str]:
    """For each of these instants, a note if clocks have changed since the one before it."""
    zone = zone_named(schedule.timing.zone)
    notes: list[str] = []
    before: timedelta | None = None
    for moment in moments:
        shown = moment.astimezone(zone)
        offset = shown.utcoffset()
        notes.append(f"clocks changed to {shown.isoformat()[-6:]}" if before is not None and offset != before else "")
        before = offset
    return notes
