"""What a search says, as values; each can be written down again as the text it could have been parsed from."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from holdfast.values import JobState

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TextField(StrEnum):
    """What is compared as text."""

    ID = "id"
    QUEUE = "queue"
    JOB = "job"
    NAME = "name"
    TAG = "tag"
    TRACE = "trace"
    ERROR = "error"
    REASON = "reason"


class Measure(StrEnum):
    """What is compared as a number: counts, an age in microseconds, moments in microseconds since the epoch."""

    ATTEMPTS = "attempts"
    CRASHES = "crashes"
    DELIVERIES = "deliveries"
    PRIORITY = "priority"
    AGE = "age"
    ACCEPTED = "accepted"
    DUE = "due"
    FINISHED = "finished"
    EXPIRES = "expires"

    @property
    def is_moment(self) -> bool:
        return self in (Measure.ACCEPTED, Measure.DUE, Measure.FINISHED, Measure.EXPIRES)


class Root(StrEnum):
    """Where a path into a job's values begins."""

    ARGS = "args"
    META = "meta"


class Comparison(StrEnum):
    """How a number found at a path is compared."""

    BELOW = "<"
    UP_TO = "<="
    FROM = ">="
    ABOVE = ">"

    def holds(self, found: float, given: float) -> bool:
        match self:
            case Comparison.BELOW:
                return found < given
            case Comparison.UP_TO:
                return found <= given
            case Comparison.FROM:
                return found >= given
            case Comparison.ABOVE:
                return found > given


class Pattern(Struct, frozen=True):
    """A text to compare with. Unless it was quoted, `*` stands for any characters, and 42 is a number as well."""

    text: str
    is_quoted: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether exactly one text fits."""
        return self.is_quoted or "*" not in self.text

    def fits(self, text: str) -> bool:
        """Whether the whole text is this one."""
        if self.is_exact:
            return text == self.text
        first, *middle, last = self.text.split("*")
        end = len(text) - len(last)
        if not (len(first) <= end and text.startswith(first) and text.endswith(last)):
            return False
        return _follow_each_other(middle, text, len(first), end)

    def is_in(self, text: str) -> bool:
        """Whether the text contains this one, in whatever case."""
        parts = [self.text] if self.is_quoted else self.text.split("*")
        folded = text.casefold()
        return _follow_each_other([part.casefold() for part in parts], folded, 0, len(folded))

    def __str__(self) -> str:
        escaped = self.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"' if self.is_quoted else self.text


def _follow_each_other(parts: Sequence[str], text: str, start: int, end: int) -> bool:
    """Whether the parts are found one behind the other between these places."""
    # The first place of each part leaves most room for the rest. A regular expression would try all the others as well,
    # for longer than anybody waits.
    for part in parts:
        found = text.find(part, start, end)
        if found < 0:
            return False
        start = found + len(part)
    return True


class Compared(Struct, frozen=True):
    """A number to compare with."""

    comparison: Comparison
    number: int | float

    def __str__(self) -> str:
        return f"{self.comparison}{self.number!r}"


class Range(Struct, frozen=True):
    """Whole numbers between two, both included; None is no bound."""

    least: int | None = None
    most: int | None = None

    def holds(self, number: int) -> bool:
        return (self.least is None or number >= self.least) and (self.most is None or number <= self.most)


class StateTerm(Struct, frozen=True, kw_only=True):
    """The job is in one of these states."""

    states: tuple[JobState, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}state:{','.join(self.states)}"


class TextTerm(Struct, frozen=True, kw_only=True):
    """A text of the job is one of these, or contains it (errors, reasons of cancellations)."""

    field: TextField
    patterns: tuple[Pattern, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}{self.field}:{','.join(map(str, self.patterns))}"


class RangeTerm(Struct, frozen=True, kw_only=True):
    """A number, an age or a moment of the job lies in one of these ranges."""

    field: Measure
    ranges: tuple[Range, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}{self.field}:{','.join(_range_text(self.field, part) for part in self.ranges)}"


class ValueTerm(Struct, frozen=True, kw_only=True):
    """A value at a path of the arguments or of the meta data is one of these; without a path, any value in there."""

    root: Root
    path: tuple[str, ...]
    operands: tuple[Pattern | Compared, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        steps = "".join(f".{_step_text(step)}" for step in self.path)
        return f"{_sign(self)}{self.root}{steps}:{','.join(map(str, self.operands))}"


class WordTerm(Struct, frozen=True, kw_only=True):
    """The id, the job, its name or its error contains this."""

    pattern: Pattern
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}{self.pattern}"


Term: TypeAlias = StateTerm | TextTerm | RangeTerm | ValueTerm | WordTerm


class Search(Struct, frozen=True):
    """Which jobs: every term must hold. Without terms, all of them."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def and_also(self, *terms: Term) -> "Search":
        """The same, narrowed further."""
        return Search((*self.terms, *terms))


def moment_of(microseconds: int) -> datetime:
    """The moment that many microseconds after the epoch, exact over the whole calendar; OverflowError beyond it."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _sign(term: Term) -> str:
    return "-" if term.is_negated else ""


def _step_text(step: str) -> str:
    return step if re.fullmatch(r"[\w-]+", step) else str(Pattern(step, is_quoted=True))


def _range_text(field: Measure, part: Range) -> str:
    def written(number: int) -> str:
        if field.is_moment:
            return moment_of(number).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return f"{number}us" if field is Measure.AGE else str(number)

    if part.least is not None and part.most is not None:
        return f"{written(part.least)}..{written(part.most)}"
    if part.least is not None:
        return f">={written(part.least)}"
    return f"<={written(part.most)}" if part.most is not None else "*"
