"""Reading files while they are written."""

from pathlib import Path

import pytest

from .ledgers import LINE_BYTES, GrowingFile, append_line, text_of


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_line_counts_when_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    growing = GrowingFile(path)
    assert growing.lines() == []
    append(path, b"start a 1\nend a")
    assert growing.lines() == ["start a 1"]
    append(path, b" 1")
    assert growing.lines() == ["start a 1"]
    append(path, b"\nstart b 2\n")
    assert growing.lines() == ["start a 1", "end a 1", "start b 2"]


def test_a_character_counts_when_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "said"
    first, last = "·".encode()[:1], "·".encode()[1:]
    append(path, b"1 done " + first)
    assert text_of(path) == "1 done "
    append(path, last)
    assert text_of(path) == "1 done ·"


def test_a_line_is_never_written_across_two_pages(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for number in range(20):
        append_line(path, "start", "x" * number, number)
    assert path.stat().st_size == 20 * LINE_BYTES
    assert 4096 % LINE_BYTES == 0
    assert GrowingFile(path).lines()[3].split() == ["start", "xxx", "3"]
    with pytest.raises(AssertionError):
        append_line(path, "x" * LINE_BYTES)
