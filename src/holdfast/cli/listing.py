"""Prints a list of jobs: as a table, JSON, CSV or ids, or only their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.cli.documents import CountDocument
from holdfast.cli.job_documents import job_document
from holdfast.cli.jobs import TABLE, USUAL, ListShape
from holdfast.cli.options import existing
from holdfast.cli.output import json_text, note, note_location, write, write_csv, write_json, write_jsonl, write_names
from holdfast.cli.progress import words
from holdfast.cli.selecting import Filters, say_if_unknown
from holdfast.cli.style import BAD, COLOURS, Fit, Table, Tint, painted_table
from holdfast.cli.words import DEPENDS_ON, age, beginning, instant, possible_runs, runs
from holdfast.errors import ConfigError
from holdfast.units import counted
from holdfast.values import JobFilter, JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine
    from holdfast.search import Plan, ScanResult

# Columns made for tables. Every member of the JSON document can also be a column.
SHORT: Final[dict[str, Callable[[JobView], object]]] = {
    "job": lambda job: job.name or job.job,
    "try": lambda job: f"{runs(job)}/{possible_runs(job)}",
    "age": lambda job: age(job.accepted_at),
    "error": lambda job: beginning(_error(job)),
}
# The columns of -o wide.
MORE: Final = (*USUAL[:-1], "priority", "accepted_at", "due_at", "finished_at", "tags", "error")
FIT: Final = Fit(
    pliant={"ID": 17, "JOB": 12, "ERROR": 24},
    in_the_middle=("ID",),
    left_out=("QUEUE", "TRY", "AGE", "JOB"),
    shows_all="-o wide shows all",
)
# Columns that the user chose are never left out.
CHOSEN_FIT: Final = msgspec.structs.replace(FIT, left_out=())
TINTS: Final[dict[str, Tint]] = {"state": COLOURS, "error": BAD, "last_error": BAD}


def print_list(url: str | None, filters: Filters, shape: ListShape) -> int:
    """Print the matching jobs and return the exit code."""
    form = shape.form()
    with existing(url, filters.queue) as site:
        engine = site.engine
        if form != "quiet":
            note_location(site.location)
        made = filters.plan()
        if shape.count:
            _print_count(engine, made, shape, as_json=form in ("json", "jsonl"))
            return 0
        finding = _find(engine, made, shape)
        _print_finding(finding, shape, form)
        if not finding.jobs and form == TABLE:
            note("no jobs")
            say_if_unknown(engine, filters.queue)
    if finding.is_cut:
        note(
            f"searched {finding.looked_at:,} jobs; to continue with older ones, add  --after {finding.next}  "
            "or search all of them with  --look-at 0"
        )
    elif finding.next is not None:
        note(f"more:  --after {finding.next}")
    return 0


def _find(engine: Engine, made: Plan, shape: ListShape) -> ScanResult:
    """One page of the plan's jobs. An invalid cursor is the caller's error."""
    from holdfast.search import scan
    from holdfast.search.scanning import LOOK_AT

    try:
        look_at = LOOK_AT if shape.look_at is None else shape.look_at
        return scan(engine, made, limit=shape.limit, after=shape.after, look_at=look_at)
    except (ValueError, OverflowError):
        if shape.after is None:
            raise
        raise ConfigError(
            f"{shape.after!r} is not a valid cursor; copy the value of --after from the last line of the previous page"
        ) from None


def _print_count(engine: Engine, made: Plan, shape: ListShape, *, as_json: bool) -> None:
    number, looked_at = _count(engine, made, shape.look_at)
    if as_json:
        write_json(CountDocument(count=number, is_exact=looked_at is None))
    else:
        write(number)
    if looked_at is not None:
        note(f"this is a lower bound: only the newest {looked_at:,} jobs were counted; to count all, add  --look-at 0")


def _count(engine: Engine, made: Plan, look_at: int | None) -> tuple[int, int | None]:
    """The number of jobs of a plan, and how many were searched if that was not all of them."""
    from holdfast.search.scanning import LOOK_AT, count

    where = made.where
    if where is None:
        return 0, None
    if not made.rest and where == JobFilter(states=where.states, queue=where.queue):
        numbers = engine.counts(where.queue)
        states = where.states or tuple(JobState)
        return sum(queue.get(state, 0) for queue in numbers.values() for state in states), None
    return count(engine, made, look_at=LOOK_AT if look_at is None else look_at)


def _print_finding(finding: ScanResult, shape: ListShape, form: str) -> None:
    match form:
        case "quiet":
            write_names(job.id for job in finding.jobs)
        case "json":
            write_json([_members(job, shape.columns) for job in finding.jobs])
        case "jsonl":
            write_jsonl(_members(job, shape.columns) for job in finding.jobs)
        case "csv":
            _print_csv(finding, shape.columns or USUAL)
        case _:
            if finding.jobs:
                _table(finding.jobs, shape, form).print()


def _table(jobs: Sequence[JobView], shape: ListShape, form: str) -> Table:
    columns = shape.columns or (MORE if form == "wide" else USUAL)
    rows = [[_cell(job, column, shape.columns) for column in columns] for job in jobs]
    tints = [TINTS.get(column) for column in columns]
    headings = [name.replace("_", " ").upper() for name in columns]
    fit = CHOSEN_FIT if shape.columns else FIT
    return painted_table(headings, rows, tints, fit=fit, is_wide=form == "wide")


def _members(job: JobView, columns: tuple[str, ...] | None) -> dict[str, Any]:
    document = job_document(job)
    if columns is None:
        return document
    return {name: document[name] if name in document else _cell(job, name, None) for name in columns}


def _print_csv(finding: ScanResult, columns: tuple[str, ...]) -> None:
    """Print complete values for programs. A text that a spreadsheet would run as a formula is quoted."""
    rows: list[Sequence[str]] = [columns]
    for job in finding.jobs:
        age_s = round((datetime.now(UTC) - job.accepted_at).total_seconds(), 3)
        error = job.last_error or job.cancel_reason
        document = {**job_document(job), "error": error, "try": SHORT["try"](job), "age": age_s}
        rows.append([_csv_text(document[name]) for name in columns])
    write_csv(rows)


def _csv_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case str():
            return f"'{value}" if value[:1] in tuple("=+-@\t") else value
        case int() | float():
            return str(value)
        case _:
            return json_text(value)


def _cell(job: JobView, column: str, chosen: tuple[str, ...] | None) -> object:
    if column in SHORT and (column != "job" or chosen is None):
        return SHORT[column](job)
    value = getattr(job, "after" if column == DEPENDS_ON else column)
    match value:
        case None:
            return ""
        case datetime():
            return instant(value)
        case tuple():
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case msgspec.Raw():
            return beginning(bytes(value).decode(errors="replace"))
        case _:
            return words(value) if column == "progress" else value


def _error(job: JobView) -> str | None:
    if job.damaged:
        return "damaged record"
    if job.blocked_on is not None:
        return f"waiting for {job.blocked_on}"
    if job.state is JobState.BLOCKED and job.after:
        return f"waiting for {job.after[0] if len(job.after) == 1 else counted(len(job.after), 'job')}"
    return job.cancel_reason if job.state is JobState.CANCELLED else job.last_error
