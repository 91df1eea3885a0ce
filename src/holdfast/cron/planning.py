"""Decides what to do with each due instant of a schedule. Pure functions: the runner reads and writes the state.

Unless the schedule catches up, only the last instant is run, and only if it passed at most five minutes ago. All others
are missed.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cron.schedule import Schedule
from holdfast.values import CatchUp, OnParentFailure, Overlap, TickOutcome

LATE_AFTER_S: Final = 10.0
LATE_LIMIT_S: Final = 300.0
AT_ONCE: Final = 1000
LEDGER_S: Final = 30 * 86_400.0
LEDGER_RUNS: Final = 40
LEDGER_MOST_RUNS: Final = 5000
_LEDGER_LIMIT_S: Final = 50 * 366 * 86_400.0

NOT_RUNNING: Final = "no runner was running"
SUPERSEDED: Final = "the next run was already due"


class Due(Struct, frozen=True, kw_only=True):
    """The instants that are due, oldest first. If `more` follow, none of these is the last one, and none can be run."""

    instants: tuple[datetime, ...]
    more: bool = False


class PreviousRun(Struct, frozen=True, kw_only=True):
    """The run before an instant, and whether its job has not finished."""

    instant: datetime
    job_id: str
    is_open: bool


class WaitFor(Struct, frozen=True):
    """The parent runs at the same instant. This is its job."""

    job_id: str


class Refusal(Struct, frozen=True):
    """The parent does not run at the same instant, although it is due: the reason to skip the child."""

    reason: str


ParentRun: TypeAlias = WaitFor | Refusal | None
"""The run of a parent at an instant; None if the parent is not due, so the child does not wait."""


class Decision(Struct, frozen=True, kw_only=True):
    """The decision about an instant, or about `count` instants from `first` up to this one. If the outcome has a job,
    the job waits for the jobs `after`.
    """

    instant: datetime
    outcome: TickOutcome
    reason: str = ""
    late_s: float = 0.0
    first: datetime | None = None
    count: int = 1
    after: tuple[str, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.CANCEL

    def covers(self, instant: datetime) -> bool:
        """Whether this decision is about this instant of the schedule."""
        return (self.first or self.instant) <= instant <= self.instant


def due_of(schedule: Schedule, through: datetime, now: datetime) -> Due:
    """The instants after `through` that are due now, as many as can be decided at once."""
    kept = schedule.catch_up_limit if schedule.catch_up is CatchUp.ALL else 1
    found = schedule.instants(through, now, AT_ONCE + kept + 1)
    if len(found) <= AT_ONCE + kept:
        return Due(instants=tuple(found))
    # The last ones may be run: they are decided when it is known that no others follow.
    return Due(instants=tuple(found[:-kept]), more=True)


def plan(
    schedule: Schedule,
    due: Due,
    now: datetime,
    *,
    refusal: str = "",
    previous: PreviousRun | None = None,
    parents: Callable[[str, datetime], ParentRun] = lambda _name, _instant: None,
) -> list[Decision]:
    """Decide about each instant that is due. A `refusal` is the reason why the schedule does not run at all."""
    if refusal:
        skipped = [Decision(instant=one, outcome=TickOutcome.SKIPPED, reason=refusal) for one in due.instants]
        return merged(skipped)
    decisions: list[Decision] = []
    for decision in _by_age(schedule, due, now):
        if decision.outcome.has_job:
            decision = _restrained(schedule, decision, previous, parents)
        if decision.outcome.has_job:
            job_id = job_id_of(schedule.name, decision.instant)
            previous = PreviousRun(instant=decision.instant, job_id=job_id, is_open=True)
        decisions.append(decision)
    return merged(decisions)


def _by_age(schedule: Schedule, due: Due, now: datetime) -> Iterable[Decision]:
    """Which instants are run, as far as only their age and the schedule's policy matter."""
    last = 0 if due.more else len(due.instants)
    match schedule.catch_up:
        case CatchUp.NONE | CatchUp.LAST:
            first = last - 1
        case CatchUp.ALL:
            first = last - schedule.catch_up_limit
    for at, instant in enumerate(due.instants):
        late_s = (now - instant).total_seconds()
        is_old = late_s > LATE_LIMIT_S
        if first <= at < last and not (is_old and schedule.catch_up is CatchUp.NONE):
            is_late = late_s > LATE_AFTER_S
            outcome = TickOutcome.LATE if is_late else TickOutcome.FIRED
            yield Decision(instant=instant, outcome=outcome, late_s=late_s if is_late else 0.0)
        else:
            yield Decision(instant=instant, outcome=TickOutcome.MISSED, reason=_why_missed(schedule, is_old=is_old))


def _why_missed(schedule: Schedule, *, is_old: bool) -> str:
    if not is_old:
        return SUPERSEDED
    match schedule.catch_up:
        case CatchUp.NONE:
            return NOT_RUNNING
        case CatchUp.LAST:
            return f"{NOT_RUNNING}; catch-up is limited to the last run"
        case CatchUp.ALL:
            return f"{NOT_RUNNING}; catch-up is limited to {schedule.catch_up_limit:,} runs"


def _restrained(
    schedule: Schedule,
    decision: Decision,
    previous: PreviousRun | None,
    parents: Callable[[str, datetime], ParentRun],
) -> Decision:
    """The decision, after the schedule's parents and its previous run have been considered."""
    after: list[str] = []
    for name in schedule.depends_on:
        match parents(name, decision.instant):
            case WaitFor(job_id=job_id):
                after.append(job_id)
            case Refusal(reason=reason):
                return _skipped(decision, f"its parent '{name}' did not run: {reason}")
            case None:
                pass
    if previous is not None and previous.is_open:
        if schedule.overlap is Overlap.SKIP:
            return _skipped(decision, f"the run of {shown(previous.instant)} has not finished")
        if schedule.overlap is Overlap.QUEUE:
            return replace(decision, after=(previous.job_id,), on_parent_failure=OnParentFailure.RUN)
    return replace(decision, after=tuple(after))


def _skipped(decision: Decision, reason: str) -> Decision:
    return Decision(instant=decision.instant, outcome=TickOutcome.SKIPPED, reason=reason)


def merged(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions, with consecutive ones that have no job and the same reason as one."""
    result: list[Decision] = []
    for one in decisions:
        before = result[-1] if result else None
        if before is None or one.outcome.has_job or (before.outcome, before.reason) != (one.outcome, one.reason):
            result.append(one)
        else:
            first = before.first or before.instant
            result[-1] = replace(one, first=first, count=before.count + one.count)
    return result


def decision_at(decisions: Sequence[Decision], instant: datetime) -> Decision | None:
    """The decision about this instant."""
    return next((one for one in decisions if one.covers(instant)), None)


def job_id_of(name: str, instant: datetime) -> str:
    """The id of the job of a schedule at an instant."""
    fraction = f".{instant:%f}" if instant.microsecond else ""
    return f"{name}@{instant:%Y%m%dT%H%M%S}{fraction}Z"


def jitter_of(schedule: Schedule, instant: datetime) -> float:
    """The delay of a run in seconds: the same for every runner, and different from run to run."""
    if not schedule.jitter:
        return 0.0
    import hashlib  # imported here: it loads OpenSSL, and few schedules need it

    digest = hashlib.blake2b(job_id_of(schedule.name, instant).encode(), digest_size=8).digest()
    return round(schedule.jitter * int.from_bytes(digest) / 2**64, 6)


def ledger_ttl(schedule: Schedule, instant: datetime) -> float:
    """The retention time of an entry in the ledger: 30 days, but at most 5,000 runs, and at least 40."""
    following = schedule.timing.next_after(instant)
    interval = LEDGER_S if following is None else (following - instant).total_seconds()
    return min(max(LEDGER_RUNS * interval, min(LEDGER_S, LEDGER_MOST_RUNS * interval)), _LEDGER_LIMIT_S)


def is_overdue(schedule: Schedule, through: datetime, now: datetime) -> bool:
    """Whether an instant passed so long ago, without an entry in the ledger, that no runner can be running."""
    following = schedule.next_after(through)
    return following is not None and now - following > timedelta(seconds=LATE_LIMIT_S)


def shown(instant: datetime) -> str:
    """An instant in a sentence."""
    return f"{instant:%Y-%m-%d %H:%M} UTC" if not instant.second else f"{instant:%Y-%m-%d %H:%M:%S} UTC"
