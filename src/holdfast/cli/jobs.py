"""`holdfast list`, `show` and `graph`. `listing.py`, `showing.py` and `graph.py` do the work; they are imported when
needed.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.options import existing, json_option, jsonl_option, one_form, url_option, with_options
from holdfast.cli.output import note_location
from holdfast.cli.selecting import Filters, filter_options, state_option
from holdfast.cli.words import DEPENDS_ON, utc_option
from holdfast.spelling import did_you_mean
from holdfast.values import JobView

F = TypeVar("F", bound=Callable[..., Any])
USUAL: Final = ("id", "state", "job", "queue", "try", "age", "error")
_FIELDS: Final = tuple(DEPENDS_ON if name == "after" else name for name in JobView.__struct_fields__)
COLUMNS: Final = tuple(dict.fromkeys((*USUAL, *_FIELDS)))


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
    from holdfast.cli.listing import print_list

    return print_list(url, taken(Filters, given), taken(ListShape, given))


T = TypeVar("T", bound=Struct)


def taken(kind: type[T], given: dict[str, Any]) -> T:
    """The struct with those of the options that are its fields."""
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@utc_option
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show a job with its history, and why it is in its state."""
    from holdfast.cli.showing import print_job

    with existing(url, job=job_id) as site:
        note_location(site.location)
        print_job(site, job_id, as_json=as_json)


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@click.option(
    "--depth",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Maximum number of steps from the job in each direction.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum number of jobs.",
)
@url_option
@json_option
def graph(job_id: str, depth: int, limit: int, url: str | None, as_json: bool) -> None:
    """Show the jobs that a job depends on, and those that depend on it, as a tree.

    \b
    Examples:
      holdfast graph report
      holdfast graph report --depth 1 --json
    """
    from holdfast.cli.graph import print_graph

    with existing(url, job=job_id) as site:
        note_location(site.location)
        print_graph(site.engine, job_id, depth=depth, limit=limit, as_json=as_json)
