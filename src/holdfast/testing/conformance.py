"""The contract of an engine as tests: give `EngineConformance` a `lab` fixture, and pytest runs every clause.

The names of the tests are the clauses. No clause checks which engine it runs on; it checks `capabilities`.
"""

from collections.abc import Callable

from holdfast.testing.lab import Lab
from holdfast.testing.laws.accepting import AcceptingLaws
from holdfast.testing.laws.carrying import CarryingLaws
from holdfast.testing.laws.claiming import ClaimingLaws
from holdfast.testing.laws.dependencies import DependencyLaws
from holdfast.testing.laws.leasing import ClockLaws, CrashLaws, RenewalLaws
from holdfast.testing.laws.live_output import LiveOutputLaws
from holdfast.testing.laws.operating import CancelLaws, DeletingLaws, PauseLaws, ReplayLaws
from holdfast.testing.laws.progress import ProgressLaws
from holdfast.testing.laws.racing import RacingLaws
from holdfast.testing.laws.reading import ReadingLaws
from holdfast.testing.laws.resizing import ResizeLaws
from holdfast.testing.laws.settling import HolderLaws, VerdictLaws
from holdfast.testing.laws.shared_state import StateLaws
from holdfast.testing.laws.slots import SlotLaws
from holdfast.testing.laws.takeover import TakeoverLaws
from holdfast.testing.laws.transacting import TransactingLaws
from holdfast.testing.laws.unique import UniqueLaws
from holdfast.testing.laws.waiting import WaitingLaws
from holdfast.testing.laws.workers import RegistryLaws


class EngineConformance(
    AcceptingLaws,
    ClaimingLaws,
    WaitingLaws,
    VerdictLaws,
    HolderLaws,
    TransactingLaws,
    RenewalLaws,
    ProgressLaws,
    LiveOutputLaws,
    CrashLaws,
    ClockLaws,
    TakeoverLaws,
    CancelLaws,
    ReplayLaws,
    DeletingLaws,
    PauseLaws,
    ReadingLaws,
    RegistryLaws,
    RacingLaws,
    StateLaws,
    CarryingLaws,
    SlotLaws,
    ResizeLaws,
    UniqueLaws,
    DependencyLaws,
):
    """Every clause. Subclass it under a name that pytest collects, next to a fixture `lab` that yields a new `Lab`."""


def clauses() -> dict[str, Callable[[Lab], None]]:
    """Every clause by its name, as a plain function of a lab."""
    suite = EngineConformance()
    return {name: getattr(suite, name) for name in dir(suite) if name.startswith("test_")}
