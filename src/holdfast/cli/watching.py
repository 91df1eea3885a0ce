"""`--watch`: look again and again, until somebody presses Ctrl-C."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from holdfast.cli.failing import INTERRUPTED
from holdfast.cli.options import Span
from holdfast.cli.output import redraw, write_jsonl
from holdfast.cli.style import columns, shortened

F = TypeVar("F", bound=Callable[..., Any])
Seen = TypeVar("Seen")

WATCH_EVERY: Final = "2"
LEAST_PAUSE_S: Final = 0.01


def watch_option(command: F) -> F:
    return click.option(
        "--watch",
        "watch_s",
        type=Span(),
        is_flag=False,
        flag_value=WATCH_EVERY,
        metavar="[SPAN]",
        help="Look again and again, every 2 s if not said.",
    )(command)


def watch(
    pause_s: float, look: Callable[[], Seen], lines: Callable[[Seen], Sequence[str]], *, as_json: bool = False
) -> int:
    """A terminal shows the latest look; elsewhere one follows another, as JSON each in a line."""
    is_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not as_json
    drawn = 0
    try:
        while True:
            seen = look()
            if as_json:
                # In one line also on a terminal: a stream of documents is for programs.
                write_jsonl([seen])
            else:
                # A line that the terminal breaks would count as two when it is drawn over.
                shown = [_fitting(line) for line in lines(seen)][: _rows() if is_screen else None]
                # Back to the first of our lines and over them: what was on the screen before stays.
                redraw(shown, over=drawn if is_screen else 0)
                drawn = len(shown)
            time.sleep(max(pause_s, LEAST_PAUSE_S))
    except KeyboardInterrupt:
        return INTERRUPTED


def _fitting(line: str) -> str:
    """A line of a table fits already, and what is painted must not be cut in the middle of a colour."""
    return line if "\x1b" in line else shortened(line, columns())


def _rows() -> int:
    return max(2, os.get_terminal_size(sys.stdout.fileno()).lines - 1)
