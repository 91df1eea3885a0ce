"""Progress of a job: in words, and as a bar in a status line that is redrawn in place."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Final

from holdfast.cli.output import draw_status
from holdfast.cli.words import in_ascii, shows_unicode
from holdfast.plaintext import plain
from holdfast.values import Progress

BAR_CELLS: Final = 24


class StatusLine:
    """The last line of the terminal on stderr. Without a terminal nothing is shown. Any thread may call it."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shares_terminal = self._is_seen and sys.stdout.isatty()
        self._encoding = sys.stderr.encoding
        self._is_ascii = not shows_unicode()
        self._lock = threading.Lock()
        self._text = ""
        self._drawn = ""
        self._is_at_start = True

    def show(self, text: str) -> None:
        """Show this text in the line."""
        with self._lock:
            self._text = in_ascii(text) if self._is_ascii else text
            self._draw()

    def show_progress(self, progress: Progress) -> None:
        """Show a bar in the line, or only the numbers if the total is unknown."""
        self.show(bar(progress))

    def clear(self) -> None:
        """Empty the line."""
        self.show("")

    def pass_by(self, text: str, write: Callable[[str], None]) -> None:
        """Write output to stdout. If that is the same terminal, the status line is redrawn below the output."""
        if not self._shares_terminal:
            write(text)
            return
        with self._lock:
            self._erase()
            write(text)
            self._is_at_start = text.endswith("\n") if text else self._is_at_start
            self._draw()

    def _draw(self) -> None:
        # In the middle of a line of output there is no room for ours; it is drawn when that line is complete.
        if not self._is_seen or not self._is_at_start:
            return
        text = cut(self._text, _columns() - 1, "~" if self._is_ascii else "…")
        if text != self._drawn:
            over, self._drawn = cells(self._drawn), text  # noted first: an interrupt may come between the two
            draw_status(text, over=over, encoding=self._encoding)

    def _erase(self) -> None:
        if self._drawn:
            over, self._drawn = cells(self._drawn), ""
            draw_status("", over=over, encoding=self._encoding)


def bar(progress: Progress) -> str:
    """A bar with its numbers and message, in one line; only the numbers if the total is unknown."""
    share = _share(progress)
    if share is None:
        return words(progress)
    filled = int(share * BAR_CELLS)
    return f"{'█' * filled}{'░' * (BAR_CELLS - filled)} {words(progress)}"


def words(progress: Progress) -> str:
    """The numbers and the message: `30/100 (30 %) resizing`."""
    numbers = _number(progress.done)
    share = _share(progress)
    if share is not None and progress.total is not None:
        numbers += f"/{_number(progress.total)} ({int(share * 100)} %)"
    message = " ".join(plain(progress.message).split())
    return f"{numbers} {message}".rstrip()


def _share(progress: Progress) -> float | None:
    if progress.total is None or not progress.total > 0:
        return None
    return min(1.0, max(0.0, progress.done / progress.total))


def _number(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.2f}"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def cut(text: str, room: int, mark: str) -> str:
    """The text in at most this many terminal cells, ending in the mark if it was cut, so that it never wraps."""
    taken = fitting = 0
    for at, sign in enumerate(text, start=1):
        taken += _cell(sign)
        if taken < room:
            fitting = at
        elif taken > room:
            return text[:fitting] + mark
    return text


def cells(text: str) -> int:
    """The number of terminal cells that a text takes."""
    return sum(map(_cell, text))


def _cell(sign: str) -> int:
    if sign.isascii():
        return 1
    import unicodedata

    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
