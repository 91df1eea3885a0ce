"""Files that processes write while a test reads them: no line is read in part, and none is cut off by a kill."""

import codecs
import os
from contextlib import suppress
from pathlib import Path

# A divisor of the page size: the kernel copies a write page by page. Between two pages a reader sees the first half,
# and a process that is killed leaves no more than that.
LINE_BYTES = 256


def append_line(path: Path, *words: object) -> None:
    """Append one line of these words, padded to a fixed length, in one write within one page."""
    line = " ".join(map(str, words)).encode()
    assert len(line) < LINE_BYTES
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.write(file, line.ljust(LINE_BYTES - 1) + b"\n")
    os.close(file)


def text_of(path: Path) -> str:
    """The text of a file so far, without the first bytes of an unfinished character."""
    return codecs.getincrementaldecoder("utf-8")().decode(path.read_bytes())


class GrowingFile:
    """The lines of a file that only grows. A line counts once it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._read_to = 0

    def lines(self) -> list[str]:
        """The finished lines so far; none before the file exists."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_to)
            finished, newline, _ = file.read().rpartition(b"\n")
            if newline:
                self._lines += finished.decode().split("\n")
                self._read_to += len(finished) + 1
        return list(self._lines)
