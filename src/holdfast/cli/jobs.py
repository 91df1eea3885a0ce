"""`holdfast list` and `holdfast show`: many jobs, and one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec
from msgspec import Struct

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.documents import CountDocument, ShownDocument
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.job_documents import history_document, job_document
from holdfast.cli.options import existing, json_option, jsonl_option, one_form, url_option, with_options
from holdfast.cli.output import (
    json_text,
    note,
    note_location,
    write,
    write_block,
    write_csv,
    write_json,
    write_jsonl,
    write_names,
)
from holdfast.cli.progress import words
from holdfast.cli.selecting import Filters, filter_options, say_if_unknown, state_option
from holdfast.cli.style import BAD, COLOURS, Fit, Table, Tint, paint, painted_table
from holdfast.cli.why import why
from holdfast.cli.words import age, attempt_summary, command, instant, utc_option
from holdfast.errors import ConfigError, UnknownJob
from holdfast.spelling import did_you_mean
from holdfast.state.workers import WorkerRegistry
from holdfast.units import format_duration
from holdfast.values import AttemptView, JobFilter, JobHistory, JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine
    from holdfast.search import Plan, ScanResult

F = TypeVar("F", bound=Callable[..., Any])

# Columns made for tables. Every member of the JSON document can also be a column.
SHORT: Final[dict[str, Callable[[JobView], object]]] = {
    "job": lambda job: job.name or job.job,
    "try": lambda job: f"{runs(job)}/{possible_runs(job)}",
    "age": lambda job: age(job.accepted_at),
    "error": lambda job: _shortened(_error(job)),
}
USUAL: Final = ("id", "state", "job", "queue", "try", "age", "error")
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
COLUMNS: Final = tuple(dict.fromkeys((*USUAL, *JobView.__struct_fields__)))


def runs(job: JobView) -> int:
    """The number of runs a job has started in this life: the failed ones, and the one that succeeded or is running."""
    return job.attempts + (job.state in (JobState.COMPLETED, JobState.PROCESSING))


def possible_runs(job: JobView) -> str:
    """The number of runs after which a job is dead; `?` if unknown."""
    return "?" if job.max_retries is None else str(job.max_retries + 1)


class Columns(click.ParamType[tuple[str, ...]]):
    """Column names, separated by commas."""

    name = "columns"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        names = tuple(name.strip().lower().replace("-", "_") for name in str(value).split(","))
        for name in names:
            if name not in COLUMNS:
                hint = f"{near} " if (near := did_you_mean(name, COLUMNS)) else ""
                self.fail(f"{name!r} is not a column; {hint}known columns: {', '.join(COLUMNS)}", param, ctx)
        return names


class ListShape(Struct, frozen=True, kw_only=True):
    """The extent and the format of a list, by the names of the options."""

    limit: int
    after: str | None
    look_at: int | None
    columns: tuple[str, ...] | None
    count: bool
    quiet: bool
    as_csv: bool
    as_jsonl: bool
    as_json: bool
    output: str | None

    def form(self) -> str:
        """The format to print. More than one is an error."""
        flags = {"--json": self.as_json, "--jsonl": self.as_jsonl, "--csv": self.as_csv, "--quiet": self.quiet}
        one_form({**flags, f"-o {self.output}": self.output is not None})
        form = self.output or next((name.removeprefix("--") for name, given in flags.items() if given), TABLE)
        return "quiet" if form == "ids" else form


TABLE: Final = "table"


def shape_options(command: F) -> F:
    """Add the options of lists; they arrive as the fields of `ListShape`."""
    return with_options(_SHAPES, command)


_SHAPES: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Maximum number of jobs."
    ),
    click.option("--after", metavar="CURSOR", help="Continue from this cursor, which the previous page printed."),
    click.option(
        "--look-at",
        type=click.IntRange(min=0),
        metavar="N",
        help="Search at most N jobs; default: 100000; 0 = no limit.",
    ),
    click.option(
        "--columns",
        "--fields",
        type=Columns(),
        metavar="A,B",
        help="Columns to show; JSON field names are also accepted.",
    ),
    click.option("--count", is_flag=True, help="Print only the number of jobs."),
    click.option("--quiet", "-q", is_flag=True, help="Print only ids, one per line."),
    click.option(
        "--output",
        "-o",
        type=click.Choice(("wide", "json", "jsonl", "csv", "ids")),
        metavar="FORMAT",
        help="Output format: wide (more columns, not truncated), json, jsonl, csv, ids.",
    ),
    click.option("--csv", "as_csv", is_flag=True, help="Print CSV."),
    jsonl_option,
    utc_option,
    url_option,
    json_option,
)


@click.command("list")
@state_option
@filter_options
@shape_options
def list_jobs(url: str | None, **given: Any) -> int:
    """List jobs, newest first.

    \b
    Examples:
      holdfast list --state pending
      holdfast list --state failed,dead --queue mail --json
      holdfast list --where 'state:dead error:Timeout args.user:42 age:>1h'
      holdfast list -q --where 'tag:import -state:completed' | holdfast cancel - --yes
    """
    return print_list(url, taken(Filters, given), taken(ListShape, given))


T = TypeVar("T", bound=Struct)


def taken(kind: type[T], given: dict[str, Any]) -> T:
    """The struct with those of the options that are its fields."""
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})


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
    value = getattr(job, column)
    match value:
        case None:
            return ""
        case datetime():
            return instant(value)
        case tuple():
            return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case msgspec.Raw():
            return _shortened(bytes(value).decode(errors="replace"))
        case _:
            return words(value) if column == "progress" else value


def _error(job: JobView) -> str | None:
    if job.damaged:
        return "damaged record"
    return job.cancel_reason if job.state is JobState.CANCELLED else job.last_error


def _shortened(text: str | None) -> str:
    return f"{text[:77]}…" if text and len(text) > 78 else text or ""


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@utc_option
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show a job with its history, and why it is in its state."""
    with existing(url, job=job_id) as site:
        note_location(site.location)
        print_job(site.engine, job_id, as_json=as_json)


def print_job(engine: Engine, job_id: str, *, as_json: bool, only_dead: bool = False) -> None:
    """Print a job with all its attempts."""
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    if only_dead and history.job.state is not JobState.DEAD:
        see = command("holdfast", "show", job_id)
        raise NotDead(f"job '{job_id}' is {history.job.state}, not dead; see  {see}")
    reasons = why(history, engine.pauses(), WorkerRegistry(engine.state).all(), datetime.now(UTC))
    if as_json:
        tag = ShownDocument.__struct_config__.tag
        write_json({**history_document(history), "schema": tag, "why": reasons})
    else:
        _print_history(history, reasons)


class NotDead(click.ClickException):
    """The job exists, but it is not a dead letter."""

    exit_code = NOT_FOUND


def _print_history(history: JobHistory, reasons: list[str]) -> None:
    for name, value in _facts(history.job, reasons):
        colour = COLOURS.get(history.job.state) if name == "state" else BAD if name == "last error" else None
        write(f"{name:<12} {paint(str(value), colour)}")
    for number, attempt in enumerate(history.attempts, start=1):
        _print_attempt(number, attempt)
    if history.live_output is not None:
        write()
        write(f"#{len(history.attempts) + 1} is running")
        _print_output(history.live_output.marked)


def _facts(job: JobView, reasons: list[str]) -> list[tuple[str, object]]:
    from holdfast.cli.job_options import trait_facts  # loads all that describes a job

    facts: list[tuple[str, object | None]] = [
        ("id", job.id),
        ("state", f"{job.state} ({job.dead_reason})" if job.dead_reason else job.state),
        *(("why", reason) for reason in reasons),
        ("job", job.job),
        ("name", job.name),
        ("queue", f"{job.queue} (priority {job.priority})"),
        ("attempts", f"{runs(job)} of {possible_runs(job)}{f', {job.attempts} failed' if job.attempts else ''}"),
        ("crashes", job.crashes or None),
        ("accepted", instant(job.accepted_at)),
        ("due", instant(job.due_at)),
        ("finished", instant(job.finished_at) if job.finished_at else None),
        ("progress", _progress(job)),
        ("leased until", instant(job.lease_until) if job.lease_until else None),
        ("expires", instant(job.expires_at) if job.expires_at else None),
        ("timeout", None if job.timeout is None else format_duration(job.timeout) if job.timeout else "none"),
        ("cancelled", job.cancel_reason or None),
        ("cancelling", "requested; its worker will stop it" if job.cancel_requested else None),
        *trait_facts(job).items(),
        ("payload", bytes(job.payload).decode(errors="replace")),
        ("last error", job.last_error),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _progress(job: JobView) -> str | None:
    if job.progress is None:
        return None
    ago = f", {age(job.progress.at)} ago" if job.progress.at else ""
    return f"{words(job.progress)}{ago}"


def _print_attempt(number: int, attempt: AttemptView) -> None:
    record = attempt.record
    write()
    write(f"#{number} {attempt_summary(record)}")
    if record.result is not None:
        write(f"  result  {_formatted(record.result)}")
    if record.note:
        write(f"  note    {record.note}")
    if record.error is not None:
        write_block(record.error.traceback or record.error.line, "  | ")
    _print_output(record.output)


def _formatted(result: bytes) -> str:
    try:
        return msgspec.json.format(result, indent=0).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _shortened(result.decode(errors="replace"))


def _print_output(output: str) -> None:
    if output:
        write("  output:")
        write_block(output, "  | ")
