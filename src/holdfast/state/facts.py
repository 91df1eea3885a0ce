"""`Facts`: what an installation stores about itself, such as the fingerprints of its signing keys."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from holdfast.values import Put

if TYPE_CHECKING:
    from holdfast.queues.contract import SharedState

COMMAND_FACTS: Final = "allowed-command"
"""The programs that workers of the installation allow command jobs to run."""


class Facts:
    """Short texts by kind. A fact is never removed."""

    def __init__(self, state: "SharedState") -> None:
        self._state = state

    def of(self, kind: str) -> frozenset[str]:
        """All facts of a kind."""
        return frozenset(cell.key for cell in self._state.read_all(kind))

    def add(self, kind: str, facts: Iterable[str]) -> None:
        """Add these facts; known ones stay as they are."""
        if writes := [Put(kind=kind, key=fact) for fact in sorted(set(facts))]:
            self._state.write(writes)
