"""Colour and width: what a terminal is given beyond plain text, and when.

Whoever prints paints; `click.echo` takes the colour away again where it is not wanted: in a pipe, or as `--color`,
`NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` say.
"""

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import click
from msgspec import Struct

from holdfast.cli.output import note, write
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
# The colour of a column, or of what its cells may say.
Tint: TypeAlias = str | Mapping[str, str] | None
COLOURS: Final[Mapping[str, str]] = {JobState.PROCESSING: "cyan", JobState.FAILED: DOUBTFUL, JobState.DEAD: BAD}


def paint(text: str, colour: str | None) -> str:
    """Text in a colour; what it says is made safe first, for a terminal obeys whatever it is sent."""
    return click.style(plain(text), fg=colour) if colour else plain(text)


def columns() -> int | None:
    """How many columns a line may take; None where nobody looks: in a pipe or a file nothing is cut."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    if not sys.stdout.isatty():
        return None
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stdout.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS


def shortened(line: str, width: int | None) -> str:
    """The line, cut where the terminal would break it."""
    return line if width is None else cut(line, width, "…")


class Fit(Struct, frozen=True, kw_only=True):
    """What gives way where a terminal is too narrow for a table: columns by their headings, the first of each first."""

    # Down to how many cells these may be shortened before a column is left out.
    pliant: Mapping[str, int] = {}
    # Shortened in the middle: both ends of an id tell it from others.
    in_the_middle: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    # How everything is seen.
    shows_all: str = "--json has all"


class Table(Struct, frozen=True, kw_only=True):
    """A table as it is drawn, and what had to be left out of it."""

    lines: list[str]
    remark: str = ""

    def print(self) -> None:
        """Print it; what is not in it is said beside it."""
        for line in self.lines:
            write(line)
        self.say_what_is_missing()

    def say_what_is_missing(self) -> None:
        """Tell a person which columns there are, too."""
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
    """A table no wider than the terminal, unless it is to be; a cell with nothing in it stays faint."""
    fit = fit or Fit()
    width = None if is_wide else columns()
    empty = NOTHING
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
            parts.append(paint(padded, FAINT if number == 0 or cell == empty else colour))
        drawn.append(_trimmed("".join(parts)))
    return Table(lines=drawn, remark=_remark(natural, widths, fit))


def _fitted(natural: Mapping[str, int], width: int, fit: Fit) -> dict[str, int]:
    """The columns that are shown, and how wide they are."""
    least = {heading: min(room, fit.pliant.get(heading, room)) for heading, room in natural.items()}
    for heading in fit.left_out:
        if _taken(least) > width:
            least.pop(heading, None)
    widths = {heading: natural[heading] for heading in least}
    # The last column is cut where nothing else helps: it is the one that is read on.
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
    mark = "…"
    tail = (room - 1) // 2
    return f"{cell[: room - 1 - tail]}{mark}{cell[len(cell) - tail :]}"


def _remark(natural: Mapping[str, int], widths: Mapping[str, int], fit: Fit) -> str:
    missing = ", ".join(heading for heading in natural if heading not in widths)
    cut_ids = ", ".join(each for each in fit.in_the_middle if each in widths and widths[each] < natural[each])
    said = [f"{what}: {names}" for what, names in (("shortened", cut_ids), ("left out", missing)) if names]
    return f"{'; '.join(said)} ({fit.shows_all})" if said else ""


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Sequence[Tint] = ()) -> None:
    """Print such a table."""
    painted_table(headings, rows, colours).print()


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Words with what they mean beside them, wrapped where the terminal ends."""
    formatter = click.HelpFormatter(width=min(columns() or WIDEST_TEXT, WIDEST_TEXT))
    formatter.write_dl(list(rows))
    return formatter.getvalue().rstrip("\n")


def _trimmed(line: str) -> str:
    """Without blanks at its end, also where the last cell is painted."""
    plain_end = line.removesuffix("\x1b[0m")
    return plain_end.rstrip() + ("\x1b[0m" if plain_end != line else "")
