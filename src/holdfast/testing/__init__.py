"""Testing an application: `JobKit`, also as pytest fixtures. Testing an engine: `Lab`, `EngineConformance` and
`machine_for`, which are not stable yet.

The kit needs only Holdfast. The tests for engines need the extra `testing` (pytest and Hypothesis). Each name is
imported when it is first used, so that neither part loads the other.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import TravellingClock
    from holdfast.testing.conformance import EngineConformance, clauses
    from holdfast.testing.drained import Drained
    from holdfast.testing.enqueued import Enqueued, Expected
    from holdfast.testing.kit import JobKit
    from holdfast.testing.lab import Lab, memory_lab, sqlite_lab
    from holdfast.testing.machine import machine_for

__all__ = [
    "Drained",
    "EngineConformance",
    "Enqueued",
    "Expected",
    "JobKit",
    "Lab",
    "TravellingClock",
    "clauses",
    "machine_for",
    "memory_lab",
    "sqlite_lab",
]

_HOMES = {
    "holdfast.testing.clock": ("TravellingClock",),
    "holdfast.testing.conformance": ("EngineConformance", "clauses"),
    "holdfast.testing.drained": ("Drained",),
    "holdfast.testing.enqueued": ("Enqueued", "Expected"),
    "holdfast.testing.kit": ("JobKit",),
    "holdfast.testing.lab": ("Lab", "memory_lab", "sqlite_lab"),
    "holdfast.testing.machine": ("machine_for",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

# The clauses are plain asserts in modules that pytest does not collect. It explains their failures only if the modules
# are registered before they are imported.
if _pytest := sys.modules.get("pytest"):
    _pytest.register_assert_rewrite("holdfast.testing.lab", "holdfast.testing.laws", "holdfast.testing.machine")


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as problem:
        if problem.name not in ("pytest", "hypothesis"):
            raise
        raise ModuleNotFoundError(
            f"holdfast.testing.{name} needs the package {problem.name}: pip install 'pytest>=8' 'hypothesis>=6.100'",
            name=problem.name,
        ) from problem


def __dir__() -> list[str]:
    return __all__
