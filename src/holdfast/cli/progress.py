"""How far a job is: in words, and as a bar in one line of the terminal that is written over again and again."""

import os
import sys
import threading
import unicodedata
from collections.abc import Callable
from typing import Final

from holdfast.cli.output import write_status
from holdfast.plaintext import plain
from holdfast.values import Progress

BAR_CELLS: Final = 24


class StatusLine:
    """The last line of a terminal on stderr; where there is none, nothing is shown. Any thread may call.

    It is written to the descriptor: while a job runs here, `sys.stderr` is the job's.
    """

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shares_terminal = self._is_seen and sys.stdout.isatty()
        self._encoding = sys.stderr.encoding
        self._full, self._empty, self._cut = "█", "░", "…"
        self._lock = threading.Lock()
        self._text = ""
        self._drawn = ""
        self._is_at_start = True

    def show(self, text: str) -> None:
        """Put this text into the line."""
        with self._lock:
            self._text = text
            self._draw()

    def show_progress(self, progress: Progress) -> None:
        """Put a bar into the line, or what is known if there can be none."""
        self.show(bar(progress, self._full, self._empty))

    def clear(self) -> None:
        """Leave the line empty."""
        self.show("")

    def pass_by(self, text: str, write: Callable[[str], None]) -> None:
        """Write output to stdout; if that is the same terminal, the line makes room and comes back below it."""
        if not self._shares_terminal:
            write(text)
            return
        with self._lock:
            self._erase()
            write(text)
            self._is_at_start = text.endswith("\n") if text else self._is_at_start
            self._draw()

    def _draw(self) -> None:
        # In the middle of a line of output there is no room for ours: it comes when that line has ended.
        if not self._is_seen or not self._is_at_start:
            return
        text = cut(self._text, _columns() - 1, self._cut)
        if text != self._drawn:
            self._erase()
            self._drawn = text  # noted first: an interrupt may come between the two
            self._put(text)

    def _erase(self) -> None:
        if self._drawn:
            self._put(f"\r{' ' * cells(self._drawn)}\r")
            self._drawn = ""

    def _put(self, text: str) -> None:
        write_status(text, self._encoding)


def bar(progress: Progress, full: str = "#", empty: str = ".") -> str:
    """A bar with its numbers and message, in one line; without a total there are only the numbers."""
    share = _share(progress)
    if share is None:
        return words(progress)
    filled = int(share * BAR_CELLS)
    return f"{full * filled}{empty * (BAR_CELLS - filled)} {words(progress)}"


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
    """The text in at most that many cells of the terminal, so that it never wraps into a second line."""
    if cells(text) <= room:
        return text
    while text and cells(text) + 1 > room:
        text = text[:-1]
    return text + mark


def cells(text: str) -> int:
    """How many cells of the terminal a text takes."""
    return sum(_cell(sign) for sign in text)


def _cell(sign: str) -> int:
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
