"""What a type checker says about calls: `calls.py` marks those that are wrong."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CALLS = Path(__file__).parent / "calls.py"
ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": ("-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--cache-dir=/dev/null"),
    "pyright": ("-m", "pyright", "--project", str(ROOT)),
}
_error = re.compile(r"calls\.py:(\d+):.*?error")


@pytest.mark.parametrize("options", CHECKERS.values(), ids=CHECKERS)
def test_what_is_wrong_is_an_error_and_nothing_else_is(options: Sequence[str], tmp_path: Path) -> None:
    shutil.copy(CALLS, tmp_path)  # where it is, it is excluded
    checking = [sys.executable, *options, str(tmp_path / CALLS.name)]
    said = subprocess.run(checking, cwd=ROOT, capture_output=True, text=True, check=False)
    complained = {int(found) for found in _error.findall(said.stdout)}
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert complained == wrong, said.stdout
