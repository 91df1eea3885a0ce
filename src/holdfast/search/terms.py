"""The parts of a search as values. `str()` returns a text that parses to the same value."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from holdfast.values import JobState

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class TextField(StrEnum):
    """Fields that are compared as text."""

    ID = "id"
    QUEUE = "queue"
    JOB = "job"
    NAME = "name"
    TAG = "tag"
    TRACE = "trace"
    ERROR = "error"
    REASON = "reason"


class Measure(StrEnum):
    """Fields that are compared as numbers: counts, ages in microseconds, times in microseconds since the epoch."""

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
    """The start of a path into the values of a job."""

    ARGS = "args"
    META = "meta"


class Comparison(StrEnum):
    """The operator that compares a number at a path."""

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
    """A text to compare with. Unless it is quoted, `*` matches any characters, and 42 also matches the number."""

    text: str
    is_quoted: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether it matches exactly one text."""
        return self.is_quoted or "*" not in self.text

    def fits(self, text: str) -> bool:
        """Whether the whole text matches."""
        if self.is_exact:
            return text == self.text
        first, *middle, last = self.text.split("*")
        end = len(text) - len(last)
        if not (len(first) <= end and text.startswith(first) and text.endswith(last)):
            return False
        return _follow_each_other(middle, text, len(first), end)

    def is_in(self, text: str) -> bool:
        """Whether the text contains this one, ignoring case."""
        parts = [self.text] if self.is_quoted else self.text.split("*")
        folded = text.casefold()
        return _follow_each_other([part.casefold() for part in parts], folded, 0, len(folded))

    def __str__(self) -> str:
        escaped = self.text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"' if self.is_quoted else self.text


def _follow_each_other(parts: Sequence[str], text: str, start: int, end: int) -> bool:
    """Whether the text contains the parts in this order between these positions."""
    # The first position of each part leaves most room for the rest. A regular expression would also try all the others,
    # which can take exponential time.
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
    """An inclusive range of whole numbers; None = unbounded."""

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
    """A text of the job matches one of these; errors and reasons of cancellations need only contain it."""

    field: TextField
    patterns: tuple[Pattern, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}{self.field}:{','.join(map(str, self.patterns))}"


class RangeTerm(Struct, frozen=True, kw_only=True):
    """A number, an age or a time of the job is in one of these ranges."""

    field: Measure
    ranges: tuple[Range, ...]
    is_negated: bool = False

    def __str__(self) -> str:
        return f"{_sign(self)}{self.field}:{','.join(_range_text(self.field, part) for part in self.ranges)}"


class ValueTerm(Struct, frozen=True, kw_only=True):
    """A value at a path in the arguments or the meta matches one of these; without a path, any value does."""

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
    """Selects the jobs for which every term holds; without terms, all jobs."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def and_also(self, *terms: Term) -> "Search":
        """This search with more terms."""
        return Search((*self.terms, *terms))


def moment_of(microseconds: int) -> datetime:
    """The time this many microseconds after the epoch, exact over the whole calendar; OverflowError beyond it."""
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
