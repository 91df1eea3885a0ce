"""Splits a search into a filter for the engine and conditions that are checked job by job."""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from holdfast.clock import from_us, to_us
from holdfast.search.matching import matches
from holdfast.search.terms import Measure, Pattern, RangeTerm, Search, StateTerm, Term, TextField, TextTerm
from holdfast.values import DeadReason, JobFilter, JobState, JobView

# Every engine stores times in this range exactly. Conditions beyond it are checked job by job.
_FIRST_US, _LAST_US = 0, to_us(datetime(2200, 1, 1, tzinfo=UTC))


class Plan(Struct, frozen=True, kw_only=True):
    """A search in two parts: a filter for the engine, and the rest. Without a filter, no job can match."""

    where: JobFilter | None
    rest: tuple[Term, ...]
    now: datetime

    def admits(self, job: JobView) -> bool:
        """Whether a job that the engine found also matches the rest."""
        return matches(self.rest, job, self.now)


def plan(search: Search, *, now: datetime) -> Plan:
    """Split a search. Ages are relative to `now`."""
    where: JobFilter | None = JobFilter()
    rest: list[Term] = []
    for term in search.terms:
        narrowed = None if where is None else _narrowed(where, term, now)
        if narrowed is None:
            rest.append(term)
        else:
            where = _unless_impossible(narrowed)
    return Plan(where=where, rest=tuple(rest), now=now)


class _Nothing(Struct, frozen=True):
    """No job can match."""


def _unless_impossible(narrowed: JobFilter | _Nothing) -> JobFilter | None:
    return None if isinstance(narrowed, _Nothing) else narrowed


def _narrowed(where: JobFilter, term: Term, now: datetime) -> JobFilter | _Nothing | None:
    """The filter narrowed by the term; None if a filter cannot express it."""
    match term:
        case StateTerm():
            return _with_states(where, [state for state in JobState if (state in term.states) is not term.is_negated])
        case TextTerm(is_negated=False) if all(_is_plain(pattern) for pattern in term.patterns):
            return _with_texts(where, term.field, tuple(dict.fromkeys(pattern.text for pattern in term.patterns)), term)
        case RangeTerm(is_negated=False) if len(term.ranges) == 1:
            [part] = term.ranges
            return _with_range(where, term.field, part.least, part.most, now)
        case _:
            return None


def _is_plain(pattern: Pattern) -> bool:
    """Whether it matches exactly one text, which every engine can look up."""
    return pattern.is_exact and pattern.text != "" and pattern.text.isprintable()


def _with_states(where: JobFilter, states: Iterable[JobState]) -> JobFilter | _Nothing:
    left = tuple(state for state in states if not where.states or state in where.states)
    return msgspec.structs.replace(where, states=left) if left else _Nothing()


def _with_texts(
    where: JobFilter, field: TextField, texts: tuple[str, ...], term: TextTerm
) -> JobFilter | _Nothing | None:
    one = texts[0] if len(texts) == 1 else None
    if field is TextField.ID:
        ids = tuple(text for text in texts if not where.ids or text in where.ids)
        return msgspec.structs.replace(where, ids=ids) if ids else _Nothing()
    if one is None:
        return None
    if field is TextField.QUEUE and where.queue in (None, one):
        return msgspec.structs.replace(where, queue=one)
    if field is TextField.JOB and where.job in (None, one):
        return msgspec.structs.replace(where, job=one)
    is_dead_reason = field is TextField.REASON and one in list(DeadReason) and not term.patterns[0].is_quoted
    if is_dead_reason and where.dead_reason in (None, one):
        return msgspec.structs.replace(where, dead_reason=DeadReason(one))
    return None


def _with_range(
    where: JobFilter, field: Measure, least: int | None, most: int | None, now: datetime
) -> JobFilter | None:
    if field is Measure.AGE:
        field = Measure.ACCEPTED
        least, most = (None if bound is None else to_us(now) - bound for bound in (most, least))
    if least is not None and not _FIRST_US <= least <= _LAST_US:
        return None
    if most is not None and not _FIRST_US <= most < _LAST_US:
        return None
    start, before = (None if at is None else from_us(at) for at in (least, None if most is None else most + 1))
    if field is Measure.ACCEPTED:
        return msgspec.structs.replace(
            where,
            accepted_from=_later(where.accepted_from, start),
            accepted_before=_sooner(where.accepted_before, before),
        )
    if field is Measure.FINISHED and (start is not None or before is not None):
        return msgspec.structs.replace(
            where,
            finished_from=_later(where.finished_from, start),
            finished_before=_sooner(where.finished_before, before),
        )
    return None


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _sooner(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)
