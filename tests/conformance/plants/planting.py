"""How bugs are planted: an engine says one of its own texts in other words."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.clock import Clock
from holdfast.testing import Lab

PROCESS_TIME = "<the time of this process>"
"""In a text with a bug: the process's own time, where the server's was to be asked."""

Edit: TypeAlias = tuple[str, str, str]
"""A statement, a script, or a part that several have in common; what it says; and what it says with the bug."""


@dataclass(frozen=True)
class Bug:
    """The clause that breaks, and what the engine says otherwise than it should."""

    breaks: str
    edits: tuple[Edit, ...]
    options: str = ""
    """What is added to the server's address."""


@dataclass(frozen=True)
class Plant:
    """An engine with a bug, and the clause that breaks."""

    breaks: str
    open_lab: Callable[[], AbstractContextManager[Lab]]


def bug(breaks: str, *edits: Edit, options: str = "") -> Bug:
    """A bug made of these edits."""
    return Bug(breaks, edits, options)


class Planting:
    """What an engine says with a bug in it."""

    def __init__(self, edits: Iterable[Edit]) -> None:
        self._texts: dict[str, str] = {}
        for text, right, wrong in edits:
            said = self._texts.get(text, text)
            assert right in said, f"the engine no longer says {right!r}: plant the bug anew"
            self._texts[text] = said.replace(right, wrong)

    def say(self, text: str, clock: Clock) -> str:
        for right, wrong in self._texts.items():
            text = text.replace(right, wrong)
        return text.replace(PROCESS_TIME, str(clock.now_us()))
