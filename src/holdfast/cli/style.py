"""Colour and width: what a terminal is given beyond plain text, and when.

Whoever prints paints; `click.echo` takes the colour away again where it is not wanted: in a pipe, or as `--color`,
`NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` say.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import click

from holdfast.cli.output import glyph, plain
from holdfast.cli.progress import cells, cut
from holdfast.values import JobState

GOOD: Final = "green"
DOUBTFUL: Final = "yellow"
BAD: Final = "red"
FAINT: Final = "bright_black"
COLOURS: Final = {JobState.PROCESSING: "cyan", JobState.FAILED: DOUBTFUL, JobState.DEAD: BAD}


def paint(text: str, colour: str | None) -> str:
    """Text in a colour; what it says is made safe first, for a terminal obeys whatever it is sent."""
    return click.style(plain(text), fg=colour) if colour else plain(text)


def columns() -> int | None:
    """How many columns a line may take; None where nobody looks: in a pipe or a file nothing is cut."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shortened(line: str, width: int | None) -> str:
    """The line, cut where the terminal would break it."""
    return line if width is None else cut(line, width, glyph("…", "~"))


def painted_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], colours: Sequence[str | None] = ()
) -> list[str]:
    """A table no wider than the terminal, each column in its colour; a cell with nothing in it stays faint."""
    width = columns()
    lines = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(cells(heading), *(cells(line[at]) for line in lines), 0) for at, heading in enumerate(headings)]
    tints = [*colours, *[None] * (len(headings) - len(colours))]
    drawn: list[str] = []
    for number, line in enumerate([list(headings), *lines]):
        left = width
        parts: list[str] = []
        for cell, room, tint in zip(line, widths, tints, strict=True):
            padded = cell + " " * (room - cells(cell)) + "  "
            shown = padded if left is None else shortened(padded, left)
            left = None if left is None else left - cells(shown)
            parts.append(paint(shown, FAINT if number == 0 or cell == "–" else tint))
            if left == 0:
                break
        drawn.append(_trimmed("".join(parts)))
    return drawn


def _trimmed(line: str) -> str:
    """Without blanks at its end, also where the last cell is painted."""
    plain_end = line.removesuffix("\x1b[0m")
    return plain_end.rstrip() + ("\x1b[0m" if plain_end != line else "")
