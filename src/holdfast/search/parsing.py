"""Parses a text into a `Search`. An error points at the column of the mistake and says what is possible there."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Final, NamedTuple, NoReturn

from holdfast.clock import MICROSECONDS, to_us
from holdfast.errors import SearchRejected
from holdfast.search.terms import (
    Compared,
    Comparison,
    Measure,
    Pattern,
    Range,
    RangeTerm,
    Root,
    Search,
    StateTerm,
    Term,
    TextField,
    TextTerm,
    ValueTerm,
    WordTerm,
    moment_of,
)
from holdfast.spelling import closest, did_you_mean
from holdfast.units import UNITS
from holdfast.values import DeadReason, JobState

STATE: Final = "state"
# Other names for the fields: those of other job queues, and of the members of our JSON.
ALIASES: Final = {
    "status": STATE,
    "task": TextField.JOB,
    "handler": TextField.JOB,
    "tags": TextField.TAG,
    "last_error": TextField.ERROR,
    "dead_reason": TextField.REASON,
    "cancel_reason": TextField.REASON,
    "trace_id": TextField.TRACE,
    "attempt": Measure.ATTEMPTS,
    "accepted_at": Measure.ACCEPTED,
    "created": Measure.ACCEPTED,
    "due_at": Measure.DUE,
    "finished_at": Measure.FINISHED,
    "expires_at": Measure.EXPIRES,
    "payload": Root.ARGS,
}
FIELDS: Final = (STATE, *TextField, *Measure, *Root)

_NAME: Final = re.compile(r"[A-Za-z_][\w-]*")
_COMPARED: Final = re.compile(r"<=|>=|<|>|=+")
_COMPARISON: Final = re.compile(r"([A-Za-z_][\w-]*)((?:\.[\w-]+)*)(!=|<=|>=|<|>)(\S+)")
# Ages are exact to the microsecond, which is why they are not parsed as seconds.
_UNITS_US: Final = {"us": 1} | {unit: round(seconds * MICROSECONDS) for unit, seconds in UNITS.items() if unit}
_DURATION: Final = re.compile(rf"([+-]?)(\d{{1,24}}(?:\.\d{{1,9}})?)({'|'.join(_UNITS_US)})")
_WHOLE: Final = re.compile(r"-?\d{1,40}")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_MINUTE: Final = re.compile(r"(?:\d{4}-\d\d-\d\d[Tt])?\d\d:\d\d(?:[Zz]|[+-]\d\d:?\d\d)?")
_SECOND: Final = re.compile(r"(?:\d{4}-\d\d-\d\d[Tt])?\d\d:\d\d:\d\d(?:[Zz]|[+-]\d\d:?\d\d)?")
_BARE_TIME: Final = re.compile(r"\d\d:")
_HOW_TIMES_ARE_WRITTEN: Final = (
    "write a time as 2026-11-15, 2026-11-15T14:00, 14:00, today or yesterday, or as a duration: 2h is two hours ago, "
    "+2h is in two hours"
)


def parse(text: str, *, now: datetime, zone: tzinfo | None = None) -> Search:
    """Parse a search. Days and times without an offset are in `zone` (default: the time zone of this machine)."""
    return Search(tuple(_SearchReader(text, _Calendar(now, zone)).terms()))


class _Calendar(NamedTuple):
    """Converts the words for points in time: today, 14:00, 2h."""

    now: datetime
    zone: tzinfo | None

    def local(self, moment: datetime) -> datetime:
        return moment.replace(tzinfo=self.zone) if self.zone else moment.astimezone()

    def moment(self, text: str) -> tuple[int, int]:
        """The first and the last microsecond of a time, which may be a whole day; ValueError if it is invalid."""
        today = self.now.astimezone(self.zone).date()
        days = {"yesterday": -1, "today": 0, "tomorrow": 1}
        if text == "now":
            return to_us(self.now), to_us(self.now)
        if duration := _DURATION.fullmatch(text):
            at = to_us(self.now) + (1 if duration[1] == "+" else -1) * _microseconds(duration)
            return at, at
        if text in days or _DAY.fullmatch(text):
            day = today + timedelta(days=days[text]) if text in days else datetime.fromisoformat(text).date()
            first, following = (datetime(each.year, each.month, each.day) for each in (day, day + timedelta(days=1)))
            return to_us(self.local(first)), to_us(self.local(following)) - 1
        return self._time_of_day(text, today.isoformat())

    def _time_of_day(self, text: str, today: str) -> tuple[int, int]:
        at = datetime.fromisoformat(f"{today}T{text}" if _BARE_TIME.match(text) else text)
        first = to_us(at if at.tzinfo else self.local(at))
        length = 60 * MICROSECONDS if _MINUTE.fullmatch(text) else MICROSECONDS if _SECOND.fullmatch(text) else 1
        return first, first + length - 1


class _SearchReader:
    """Reads a text from left to right; `at` is the position of the next character."""

    def __init__(self, text: str, calendar: _Calendar) -> None:
        self.text = text
        self.calendar = calendar
        self.at = 0

    def terms(self) -> Iterable[Term]:
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at == len(self.text):
                return
            yield self._term()

    def _term(self) -> Term:
        began = self.at
        is_negated = self._takes("-", "!")
        if self._is_at_end():
            self._refuse(
                began, f"nothing follows '{self.text[began]}'; write a condition, as in -state:dead, or quote it: \"-\""
            )
        self._refuse_a_mistaken_comparison(is_negated)
        name = _NAME.match(self.text, self.at)
        field = None if name is None else _field(name[0])
        following = "" if name is None else self.text[name.end() : name.end() + 1]
        is_path = field in list(Root) and following == "."
        if name is None or not (following == ":" or is_path or (field in FIELDS and following and following in "<>=")):
            return self._word(is_negated)
        if field is None or field not in FIELDS:
            self._refuse_field(name)
        self.at = name.end()
        path = self._path() if is_path else ()
        self._takes(":")
        while self._takes("!"):
            is_negated = not is_negated
        if self._is_at_end():
            self._refuse(self.at, f"'{self.text[name.start() : self.at]}' needs a value")
        if field == STATE:
            return StateTerm(states=self._states(), is_negated=is_negated)
        if field in list(Root):
            return ValueTerm(root=Root(field), path=path, operands=self._operands(), is_negated=is_negated)
        if field in list(Measure):
            return self._measured(Measure(field), is_negated)
        return self._text_term(TextField(field), is_negated)

    def _word(self, is_negated: bool) -> WordTerm:
        if self.text[self.at] in "\"'":
            return WordTerm(pattern=self._quoted(), is_negated=is_negated)
        word = re.compile(r"\S+").match(self.text, self.at)
        assert word is not None  # noqa: S101 - the next character is not a space
        self.at = word.end()
        return WordTerm(pattern=Pattern(word[0]), is_negated=is_negated)

    def _path(self) -> tuple[str, ...]:
        steps: list[str] = []
        while self._takes("."):
            if self.text[self.at : self.at + 1] in ('"', "'"):
                steps.append(self._quoted().text)
                continue
            step = re.compile(r"[^\s.:<>=\"']+").match(self.text, self.at)
            if step is None:
                self._refuse(self.at, "a path has a name or a number after each dot, as in args.user.id:42")
            steps.append(step[0])
            self.at = step.end()
        if self.text[self.at : self.at + 1] not in tuple(":<>="):
            self._refuse(self.at, "a path needs a colon and a value, as in args.user.id:42; :* stands for any value")
        return tuple(steps)

    def _states(self) -> tuple[JobState, ...]:
        self._comparison("=")
        return tuple(
            JobState(self._known(pattern.text.lower(), column, JobState, "state"))
            for column, pattern in self._patterns()
        )

    def _text_term(self, field: TextField, is_negated: bool) -> TextTerm:
        self._comparison("=")
        given = list(self._patterns())
        for column, pattern in given:
            if field is TextField.REASON and pattern.is_exact and not pattern.is_quoted:
                hint = "quote the reason of a cancellation"
                self._known(pattern.text, column, DeadReason, "dead-letter reason", hint)
        return TextTerm(field=field, patterns=tuple(pattern for _, pattern in given), is_negated=is_negated)

    def _measured(self, field: Measure, is_negated: bool) -> RangeTerm:
        read: Callable[[str], tuple[int, int]] = self.calendar.moment if field.is_moment else _age
        read = read if field.is_moment or field is Measure.AGE else _whole
        ranges: list[Range] = []
        while True:
            column, sign = self.at, self._comparison()
            pattern = self._pattern()
            try:
                ranges.append(_range(sign, pattern.text, read))
                for bound in (ranges[-1].least, ranges[-1].most):
                    if field.is_moment and bound is not None:
                        moment_of(bound)  # raises beyond the calendar
            except (ValueError, OverflowError, OSError):
                self._refuse(column, f"{pattern.text!r} is not a valid value for '{field}'; {_how(field)}")
            if not sign and (field is Measure.AGE or _DURATION.fullmatch(pattern.text)) and ".." not in pattern.text:
                self._refuse(
                    column, f"'{field}' needs a comparison here: {field}:>{pattern.text} or {field}:<{pattern.text}"
                )
            if not self._takes(","):
                return RangeTerm(field=field, ranges=tuple(ranges), is_negated=is_negated)

    def _operands(self) -> tuple[Pattern | Compared, ...]:
        operands: list[Pattern | Compared] = []
        while True:
            column, sign = self.at, self._comparison()
            pattern = self._pattern()
            number = None if pattern.is_quoted else number_of(pattern.text)
            if sign and number is None:
                self._refuse(
                    column, f"'{sign}' compares numbers, as in args.amount:>100; {pattern.text!r} is not a number"
                )
            operands.append(pattern if number is None or not sign else Compared(Comparison(sign), number))
            if not self._takes(","):
                return tuple(operands)

    def _patterns(self) -> Iterable[tuple[int, Pattern]]:
        while True:
            yield self.at, self._pattern()
            if not self._takes(","):
                return

    def _pattern(self) -> Pattern:
        """One of the values of a field: quoted, or up to a comma or a space."""
        if self.text[self.at : self.at + 1] in ('"', "'"):
            column, quoted = self.at, self._quoted()
            if not self._is_at_end() and self.text[self.at] != ",":
                self._refuse(self.at, f"write a space or a comma after the quote that starts at column {column + 1}")
            return quoted
        value = re.compile(r"[^\s,]+").match(self.text, self.at)
        if value is None:
            self._refuse(self.at, "a value is missing here")
        if value[0][0] in "<>=":
            self._refuse(
                self.at, f"quote a value that starts with '{value[0][0]}'; text fields do not support comparisons"
            )
        self.at = value.end()
        return Pattern(value[0])

    def _quoted(self) -> Pattern:
        began, quote = self.at, self.text[self.at]
        match = re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL).match(self.text, self.at)
        if match is None:
            self._refuse(began, f"the quote {quote} that starts here is not closed")
        self.at = match.end()
        return Pattern(re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL), is_quoted=True)

    def _comparison(self, only: str = "") -> str:
        """The operator of a comparison, empty for equality."""
        sign = _COMPARED.match(self.text, self.at)
        if sign is None or (only and only not in sign[0][:1]):
            return ""
        self.at = sign.end()
        return "" if sign[0].startswith("=") else sign[0]

    def _takes(self, *signs: str) -> bool:
        if self.text[self.at : self.at + 1] in signs:
            self.at += 1
            return True
        return False

    def _is_at_end(self) -> bool:
        return self.at == len(self.text) or self.text[self.at].isspace()

    def _known(self, word: str, column: int, known: Iterable[str], what: str, hint: str = "") -> str:
        words = [str(each) for each in known]
        if word not in words:
            hint = f"; {hint}" if hint else ""
            self._refuse(column, f"{word!r} is not a {what}{_nearest(word, words)} use {', '.join(words)}{hint}")
        return word

    def _refuse_a_mistaken_comparison(self, is_negated: bool) -> None:
        """Refuse a word that looks like a comparison with a misspelled field or an unknown operator."""
        found = _COMPARISON.match(self.text, self.at)
        if found is None:
            return
        name, path, sign, value = found.groups()
        meant = closest(_field(name), [*FIELDS, *ALIASES])
        is_understood = _field(name) in FIELDS and sign != "!="
        if meant is None or is_understood or (path and _field(meant) not in list(Root)):
            return
        is_negated ^= sign == "!="
        written = f"{'-' if is_negated else ''}{meant}{path}:{'' if sign == '!=' else sign}{value}"
        self._refuse(
            found.start(3 if _field(name) in FIELDS else 1),
            f"'{name}{path}{sign}' is not a comparison; did you mean {written}? quote a text that contains '{sign}'",
        )

    def _refuse_field(self, name: re.Match[str]) -> NoReturn:
        near = _nearest(name[0].lower(), [*FIELDS, *ALIASES])
        self._refuse(
            name.start(),
            f"{name[0]!r} is not a field{near} use {', '.join(FIELDS)}; quote a text that contains a colon",
        )

    def _refuse(self, at: int, problem: str) -> NoReturn:
        raise SearchRejected(problem, self.text, at + 1)


def number_of(text: str) -> int | float | None:
    """The number that a text stands for, if it is valid in JSON."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if re.fullmatch(r"-?\d{1,300}(\.\d{1,300})?([eE][+-]?\d{1,3})?", text) is None:
        return None
    number = float(text)
    return number if abs(number) != float("inf") else None


def _field(name: str) -> str:
    word = name.lower().replace("-", "_")
    return ALIASES.get(word, word)


def _nearest(word: str, known: Iterable[str]) -> str:
    return f"; {near}" if (near := did_you_mean(word, known)) else ";"


def _range(sign: str, text: str, read: Callable[[str], tuple[int, int]]) -> Range:
    if not sign and text == "*":
        return Range()
    if not sign and ".." in text:
        first, _, last = text.partition("..")
        return Range(read(first)[0] if first else None, read(last)[1] if last else None)
    first_us, last_us = read(text)
    match sign:
        case ">":
            return Range(least=last_us + 1)
        case ">=":
            return Range(least=first_us)
        case "<":
            return Range(most=first_us - 1)
        case "<=":
            return Range(most=last_us)
        case _:
            return Range(first_us, last_us)


def _age(text: str) -> tuple[int, int]:
    duration = _DURATION.fullmatch(text)
    if duration is None or duration[1] == "+":
        raise ValueError(text)
    length = _microseconds(duration) * (-1 if duration[1] else 1)
    return length, length


def _whole(text: str) -> tuple[int, int]:
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(text)
    return int(text), int(text)


def _microseconds(duration: re.Match[str]) -> int:
    unit = _UNITS_US[duration[3]]
    return round(float(duration[2]) * unit) if "." in duration[2] else int(duration[2]) * unit


def _how(field: Measure) -> str:
    if field.is_moment:
        return _HOW_TIMES_ARE_WRITTEN
    return (
        "write a duration such as 90s, 15m, 2h or 3d"
        if field is Measure.AGE
        else f"write an integer, as in {field}:3, {field}:>2 or {field}:2..4"
    )


def moment(text: str, *, now: datetime, zone: tzinfo | None = None) -> tuple[int, int]:
    """Parse a point in time as a search does: its first and its last microsecond. ValueError explains the format."""
    try:
        first, last = _Calendar(now, zone).moment(text.strip())
        for bound in (first, last):
            moment_of(bound)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a valid time; {_HOW_TIMES_ARE_WRITTEN}") from None
    return first, last
