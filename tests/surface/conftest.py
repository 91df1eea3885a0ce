"""What the tests of the command line share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield terminal
    terminal.close()
