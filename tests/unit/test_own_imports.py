"""Tests do not meet each other's modules, in whatever order they run."""

import sys
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_a_test_imports_the_module_in_its_own_directory(tmp_path: Path, number: int) -> None:
    (tmp_path / "shop_of_a_test.py").write_text(f"number = {number}\n")
    sys.path.insert(0, str(tmp_path))
    assert import_module("shop_of_a_test").number == number
