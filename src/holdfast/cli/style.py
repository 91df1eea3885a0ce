"""Colour and width: what a terminal is given beyond plain text, and when.

Whoever prints paints; `click.echo` takes the colour away again where it is not wanted: in a pipe, or as `--color`,
`NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` say.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import click

from holdfast.cli.output import glyph, nothing, plain
from holdfast.cli.progress import cells, cut
from holdfast.values import JobState

GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"
FAINT: Final = "bright_black"
USUAL_COLUMNS: Final = 80
WIDEST_TEXT: Final = 110
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
    return line if width is None else cut(line, width, glyph("…", "~"))


def painted_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Sequence[Tint] = (), *, is_wide: bool = False
) -> list[str]:
    """A table no wider than the terminal, unless it is to be; a cell with nothing in it stays faint."""
    width = None if is_wide else columns()
    empty = nothing()
    lines = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(cells(heading), *(cells(line[at]) for line in lines), 0) for at, heading in enumerate(headings)]
    tints = [*colours, *[None] * (len(headings) - len(colours))]
    drawn: list[str] = []
    for number, line in enumerate([list(headings), *lines]):
        left = width
        parts: list[str] = []
        for cell, room, tint in zip(line, widths, tints, strict=True):
            shown = shortened(cell, left)
            padding = room + 2 - cells(shown)
            shown += " " * (padding if left is None else min(padding, left - cells(shown)))
            left = None if left is None else left - cells(shown)
            colour = tint.get(cell) if isinstance(tint, Mapping) else tint
            parts.append(paint(shown, FAINT if number == 0 or cell == empty else colour))
            if left == 0:
                break
        drawn.append(_trimmed("".join(parts)))
    return drawn


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Sequence[Tint] = (), *, is_wide: bool = False
) -> None:
    """Print such a table."""
    for line in painted_table(headings, rows, colours, is_wide=is_wide):
        click.echo(line)


def definitions(rows: Iterable[tuple[str, str]]) -> str:
    """Words with what they mean beside them, wrapped where the terminal ends."""
    formatter = click.HelpFormatter(width=min(columns() or WIDEST_TEXT, WIDEST_TEXT))
    formatter.write_dl(list(rows))
    return formatter.getvalue().rstrip("\n")


def _trimmed(line: str) -> str:
    """Without blanks at its end, also where the last cell is painted."""
    plain_end = line.removesuffix("\x1b[0m")
    return plain_end.rstrip() + ("\x1b[0m" if plain_end != line else "")
