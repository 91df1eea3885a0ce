"""Decides whether a job matches a search, from its view."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from holdfast.clock import to_us
from holdfast.search.parsing import number_of
from holdfast.search.terms import (
    Compared,
    Measure,
    Pattern,
    RangeTerm,
    Root,
    StateTerm,
    Term,
    TextField,
    TextTerm,
    ValueTerm,
    WordTerm,
)
from holdfast.values import DeadReason, JobView

_DEAD_REASONS: Final = frozenset(DeadReason)
_WORDS: Final = {"true": True, "false": False, "null": None}


def matches(terms: Iterable[Term], job: JobView, now: datetime) -> bool:
    """Whether every term holds for the job."""
    return all(_holds(term, job, now) is not term.is_negated for term in terms)


def _holds(term: Term, job: JobView, now: datetime) -> bool:
    match term:
        case StateTerm():
            return job.state in term.states
        case TextTerm():
            return any(_TEXTS[term.field](job, pattern) for pattern in term.patterns)
        case RangeTerm():
            number = _measure(term.field, job, now)
            return number is not None and any(part.holds(number) for part in term.ranges)
        case ValueTerm():
            return _holds_value(term, job)
        case WordTerm():
            texts = (job.id, job.job, job.name, job.last_error, job.cancel_reason)
            return any(text is not None and term.pattern.is_in(text) for text in texts)


def _fits(text: str | None, pattern: Pattern) -> bool:
    return text is not None and pattern.fits(text)


def _is_error(job: JobView, pattern: Pattern) -> bool:
    return job.last_error is not None and pattern.is_in(job.last_error)


def _is_reason(job: JobView, pattern: Pattern) -> bool:
    """Reasons of dead letters are a closed list; the reason of a cancellation is free text."""
    if pattern.is_exact and not pattern.is_quoted and pattern.text in _DEAD_REASONS:
        return job.dead_reason == pattern.text
    return _fits(job.dead_reason, pattern) or (job.cancel_reason is not None and pattern.is_in(job.cancel_reason))


_TEXTS: Final[dict[TextField, Callable[[JobView, Pattern], bool]]] = {
    TextField.ID: lambda job, pattern: pattern.fits(job.id),
    TextField.QUEUE: lambda job, pattern: pattern.fits(job.queue),
    TextField.JOB: lambda job, pattern: pattern.fits(job.job),
    TextField.NAME: lambda job, pattern: _fits(job.name, pattern),
    TextField.TAG: lambda job, pattern: any(pattern.fits(tag) for tag in job.tags),
    TextField.TRACE: lambda job, pattern: _fits(job.trace_id, pattern),
    TextField.ERROR: _is_error,
    TextField.REASON: _is_reason,
}


def _measure(field: Measure, job: JobView, now: datetime) -> int | None:
    match field:
        case Measure.ATTEMPTS:
            return job.attempts
        case Measure.CRASHES:
            return job.crashes
        case Measure.DELIVERIES:
            return job.deliveries
        case Measure.PRIORITY:
            return job.priority
        case Measure.AGE:
            return to_us(now) - to_us(job.accepted_at)
        case Measure.ACCEPTED:
            return to_us(job.accepted_at)
        case Measure.DUE:
            return to_us(job.due_at)
        case Measure.FINISHED:
            return None if job.finished_at is None else to_us(job.finished_at)
        case Measure.EXPIRES:
            return None if job.expires_at is None else to_us(job.expires_at)


def _holds_value(term: ValueTerm, job: JobView) -> bool:
    try:
        whole: Any = msgspec.json.decode(job.payload if term.root is Root.ARGS else job.meta)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return False  # it is unverified, and may not be JSON
    found = _at(whole, term.path) if term.path else _leaves(whole)
    return any(_is_value(value, operand) for value in found for operand in term.operands)


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """The values at a path. A step is a name or the number of an element; without a number, every element counts."""
    elements = _elements(value)
    if elements is not None:
        if not path:
            yield elements
            yield from elements
        elif path[0].isdecimal() and len(path[0]) < 10:
            if int(path[0]) < len(elements):
                yield from _at(elements[int(path[0])], path[1:])
        else:
            for element in elements:
                yield from _at(element, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(cast("dict[str, Any]", value)[path[0]], path[1:])


def _leaves(value: Any) -> Iterator[Any]:
    parts = cast("dict[str, Any]", value).values() if isinstance(value, dict) else _elements(value)
    if parts is None:
        yield value
        return
    for part in parts:
        yield from _leaves(part)


def _elements(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None  # pyright: ignore[reportUnknownVariableType]


def _is_value(value: Any, operand: Pattern | Compared) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(operand, Compared):
        return is_number and operand.comparison.holds(value, operand.number)
    if not operand.is_quoted and operand.text == "*":
        return True
    if isinstance(value, str):
        return operand.fits(value)
    if operand.is_quoted:
        return False
    if is_number:
        return bool(number_of(operand.text) == value)
    return operand.text in _WORDS and not isinstance(value, dict | list) and value is _WORDS[operand.text]
