"""The bar: what it says, that it never takes a second line, and that output and it do not disturb each other."""

import os
import sys

import pytest

from holdfast.cli.progress import StatusLine, bar, cells, cut, words
from holdfast.values import Progress


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(done=30, total=100), "30/100 (30 %)"),
        (Progress(done=30, total=100, message="resizing"), "30/100 (30 %) resizing"),
        (Progress(done=1234567, total=2000000), "1,234,567/2,000,000 (61 %)"),
        (Progress(done=0.5, total=2), "0.50/2 (25 %)"),
        (Progress(done=7), "7"),
        (Progress(done=7, message="so far"), "7 so far"),
        (Progress(done=7, total=0), "7"),
        (Progress(done=999, total=1000), "999/1,000 (99 %)"),
        (Progress(done=12, total=10), "12/10 (100 %)"),
        (Progress(done=-1, total=10), "-1/10 (0 %)"),
        (Progress(done=1, total=2, message="a\r\x1b[2Jb\n\tc"), "1/2 (50 %) a��[2Jb c"),
    ],
)
def test_progress_in_words(progress: Progress, said: str) -> None:
    assert words(progress) == said


def test_the_bar_is_as_long_as_the_share_that_is_done() -> None:
    assert bar(Progress(done=1, total=4)) == f"{'█' * 6}{'░' * 18} 1/4 (25 %)"
    assert bar(Progress(done=9, total=4)).count("█") == 24
    assert bar(Progress(done=9)) == "9"


def test_a_bar_that_is_no_number_is_still_one_line() -> None:
    assert bar(Progress(done=float("nan"), total=10)).endswith("nan/10 (0 %)")
    assert bar(Progress(done=1, total=float("inf"))).endswith("1/inf (0 %)")


class Wires:
    """A line whose writes are kept here instead of on a terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, columns: int = 40, stdout: bool = True) -> None:
        self.written = ""
        self._columns = columns
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "get_terminal_size", self._size)
        monkeypatch.setenv("TERM", "xterm")

    def _write(self, descriptor: int, data: bytes) -> int:
        assert descriptor == 2
        self.written += data.decode()
        return len(data)

    def _size(self, descriptor: int) -> os.terminal_size:
        return os.terminal_size((self._columns, 24))

    def write(self, text: str) -> None:
        self.written += text


def test_a_line_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch, columns=20)
    StatusLine().show("0123456789" * 3)
    assert wires.written == "012345678901234567…"


def test_wide_signs_take_two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch, columns=10)
    line = StatusLine()
    line.show("日本日本日本")
    assert wires.written == "日本日本…"
    wires.written = ""
    line.clear()
    assert wires.written == f"\r{' ' * 9}\r"


def test_a_shorter_text_leaves_nothing_of_the_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch)
    line = StatusLine()
    line.show("long text")
    line.show("short")
    line.clear()
    assert wires.written == f"long text\r{' ' * 9}\rshort\r{' ' * 5}\r"


def test_the_same_text_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch)
    line = StatusLine()
    line.show("running…")
    line.show("running…")
    assert wires.written == "running…"


def test_output_goes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch)
    line = StatusLine()
    line.show("bar")
    line.pass_by("one\n", wires.write)
    assert wires.written == "bar\r   \rone\nbar"


def test_the_line_waits_for_the_end_of_a_line_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch)
    line = StatusLine()
    line.pass_by("half", wires.write)
    line.show("bar")
    line.pass_by("", wires.write)
    assert wires.written == "half"
    line.pass_by(" whole\n", wires.write)
    assert wires.written == "half whole\nbar"


def test_output_that_goes_elsewhere_does_not_move_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch, stdout=False)
    line = StatusLine()
    line.pass_by("half", wires.write)
    line.show("bar")
    assert wires.written == "halfbar"


def test_a_terminal_that_cannot_move_its_cursor_sees_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    StatusLine().show("bar")
    assert wires.written == ""


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("abcdef", 1, "…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("", 0, ""),
    ],
)
def test_a_text_is_cut_by_the_cells_it_takes(text: str, room: int, shown: str) -> None:
    assert cut(text, room, "…") == shown
    assert cells(shown) <= max(room, 1)


def test_a_text_without_end_is_cut_at_once() -> None:
    # In quadratic time this would take days.
    assert cut("tag, " * 2_000_000, 10, "…") == "tag, tag,…"
