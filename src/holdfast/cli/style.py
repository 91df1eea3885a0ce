"""Colours and tables.

Commands always paint. `click.echo` removes the colours where they are not wanted: in a pipe, or as `--color`,
`NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` ask.
"""

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import click
from msgspec import Struct

from holdfast.cli.output import RESET, note, paint as paint, write
from holdfast.cli.progress import cells, cut
from holdfast.cli.words import NOTHING
from holdfast.plaintext import plain
from holdfast.values import JobState

GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"
FAINT: Final = "bright_black"
USUAL_COLUMNS: Final = 80
WIDEST_TEXT: Final = 110
SHORTEST_CELL: Final = 8
# The colour of a column, or the colour for each value in it.
Tint: TypeAlias = str | Mapping[str, str] | None
COLOURS: Final[Mapping[str, str]] = {JobState.PROCESSING: "cyan", JobState.FAILED: DOUBTFUL, JobState.DEAD: BAD}


def columns() -> int | None:
    """The width of the terminal; None in a pipe or a file, where nothing is cut."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    if not sys.stdout.isatty():
        return None
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def shortened(line: str, width: int | None) -> str:
    """The line, cut to this width."""
    return line if width is None else cut(line, width, "…")


class Fit(Struct, frozen=True, kw_only=True):
    """How a table adapts to a narrow terminal. Columns are named by their headings; the first yields first."""

    # The fewest cells that these columns are cut to before other columns are left out.
    pliant: Mapping[str, int] = {}
    # Cut in the middle: ids differ at either end.
    in_the_middle: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    shows_all: str = "--json has all"


class Table(Struct, frozen=True, kw_only=True):
    """A table as it is drawn, and a remark on the columns that did not fit."""

    lines: list[str]
    remark: str = ""

    def print(self) -> None:
        """Print the table to stdout and the remark to stderr."""
        for line in self.lines:
            write(line)
        self.say_what_is_missing()

    def say_what_is_missing(self) -> None:
        """Print the remark to stderr."""
        for line in textwrap.wrap(self.remark, columns() or WIDEST_TEXT):
            note(line)


def painted_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    colours: Sequence[Tint] = (),
    *,
    fit: Fit | None = None,
    is_wide: bool = False,
) -> Table:
    """A table no wider than the terminal, unless `is_wide`. Empty cells are faint."""
    fit = fit or Fit()
    width = None if is_wide else columns()
    lines = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    natural = {
        heading: max(cells(heading), *(cells(line[at]) for line in lines), 0) for at, heading in enumerate(headings)
    }
    widths = natural if width is None else _fitted(natural, width, fit)
    tints = dict(zip(headings, [*colours, *[None] * (len(headings) - len(colours))], strict=True))
    drawn: list[str] = []
    for number, line in enumerate([list(headings), *lines]):
        parts: list[str] = []
        for heading, cell in zip(headings, line, strict=True):
            if heading not in widths:
                continue
            shown = _in_room(cell, widths[heading], is_in_the_middle=heading in fit.in_the_middle and number > 0)
            padded = shown + " " * (widths[heading] + 2 - cells(shown))
            tint = tints[heading]
            colour = tint.get(cell) if isinstance(tint, Mapping) else tint
            parts.append(paint(padded, FAINT if number == 0 or cell == NOTHING else colour))
        drawn.append(_trimmed("".join(parts)))
    return Table(lines=drawn, remark=_remark(natural, widths, fit))


def _fitted(natural: Mapping[str, int], width: int, fit: Fit) -> dict[str, int]:
    """The columns to show, with their widths."""
    least = {heading: min(room, fit.pliant.get(heading, room)) for heading, room in natural.items()}
    for heading in fit.left_out:
        if _taken(least) > width:
            least.pop(heading, None)
    widths = {heading: natural[heading] for heading in least}
    # The last column is cut when nothing else helps.
    last = next(reversed(widths))
    order = [*(heading for heading in fit.pliant if heading in widths), last]
    for floors, headings in ((least, order), (dict.fromkeys(order, SHORTEST_CELL), order[::-1])):
        for heading in headings:
            widths[heading] -= max(0, min(_taken(widths) - width, widths[heading] - floors[heading]))
    while _taken(widths) > width:
        excess = _taken(widths) - width
        heading, room = widths.popitem()
        if not widths or room - excess >= SHORTEST_CELL:
            widths[heading] = max(1, room - excess)
            break
    return widths


def _taken(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _in_room(cell: str, room: int, *, is_in_the_middle: bool) -> str:
    if not is_in_the_middle or cells(cell) <= room or not cell.isascii():
        return shortened(cell, room)
    tail = (room - 1) // 2
    return f"{cell[: room - 1 - tail]}…{cell[len(cell) - tail :]}"


def _remark(natural: Mapping[str, int], widths: Mapping[str, int], fit: Fit) -> str:
    missing = ", ".join(heading for heading in natural if heading not in widths)
    cut_ids = ", ".join(each for each in fit.in_the_middle if each in widths and widths[each] < natural[each])
    parts = [f"{what}: {names}" for what, names in (("shortened", cut_ids), ("left out", missing)) if names]
    return f"{'; '.join(parts)} ({fit.shows_all})" if parts else ""


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Sequence[Tint] = ()) -> None:
    """Print a table."""
    painted_table(headings, rows, colours).print()


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Terms with their definitions next to them, wrapped to the terminal."""
    formatter = click.HelpFormatter(width=min(columns() or WIDEST_TEXT, WIDEST_TEXT))
    formatter.write_dl(list(rows))
    return formatter.getvalue().rstrip("\n")


def _trimmed(line: str) -> str:
    """The line without trailing blanks, also if the last cell is painted."""
    unpainted = line.removesuffix(RESET)
    return unpainted.rstrip() + (RESET if unpainted != line else "")
