"""For tests: a laboratory to open engines in, the laws they obey, and a machine that looks for what no law foresaw.

Needs the extra `testing` (pytest and Hypothesis).
"""

import pytest

# The clauses are plain asserts in modules pytest does not collect; it explains their failures only if told to.
pytest.register_assert_rewrite("holdfast.testing.lab", "holdfast.testing.laws", "holdfast.testing.machine")

from holdfast.testing.conformance import EngineConformance, clauses  # noqa: E402
from holdfast.testing.lab import Lab, memory_lab, sqlite_lab  # noqa: E402
from holdfast.testing.machine import machine_for  # noqa: E402

__all__ = ["EngineConformance", "Lab", "clauses", "machine_for", "memory_lab", "sqlite_lab"]
