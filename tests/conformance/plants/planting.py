"""Plants bugs by editing the statements and scripts of an engine."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.clock import Clock
from holdfast.testing import Lab

PROCESS_TIME = "<the time of this process>"
"""In an edited statement: the time of this process instead of the server's."""

Edit: TypeAlias = tuple[str, str, str]
"""A statement, a script or a part of several; the text to replace in it; and the replacement."""


@dataclass(frozen=True)
class Bug:
    """The clause that a bug breaks, and the edits that plant the bug."""

    breaks: str
    edits: tuple[Edit, ...]
    options: str = ""
    """Options for the server's URL."""


@dataclass(frozen=True)
class Plant:
    """An engine with a bug, and the clause that it breaks."""

    breaks: str
    open_lab: Callable[[], AbstractContextManager[Lab]]


def bug(breaks: str, *edits: Edit, options: str = "") -> Bug:
    """A bug with these edits."""
    return Bug(breaks, edits, options)


class Planting:
    """The statements of an engine with a bug."""

    def __init__(self, edits: Iterable[Edit]) -> None:
        self._texts: dict[str, str] = {}
        for text, right, wrong in edits:
            known = self._texts.get(text, text)
            assert right in known, f"the engine's statement no longer contains {right!r}: plant the bug again"
            self._texts[text] = known.replace(right, wrong)

    def edited(self, text: str, clock: Clock) -> str:
        for right, wrong in self._texts.items():
            text = text.replace(right, wrong)
        return text.replace(PROCESS_TIME, str(clock.now_us()))
