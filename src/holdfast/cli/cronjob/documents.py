"""The JSON documents of `holdfast cronjob`."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from holdfast.cli.cronjob.reading import Known
from holdfast.cli.documents import Document
from holdfast.clock import from_us
from holdfast.cron.schedule import Schedule
from holdfast.state.schedules import LedgerEntry, ProblemKind
from holdfast.values import CatchUp, JobState, Overlap, ScheduleSource, TickOutcome


class EntryDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.entry/1"):
    """An instant in the ledger of a schedule, or `count` instants from `first` on, up to this one."""

    schedule: str
    instant: datetime
    first: datetime | None
    count: int
    outcome: TickOutcome
    late_s: float
    reason: str
    job: Annotated[str | None, Meta(description="The id of the job that was enqueued.")]
    state: Annotated[JobState | None, Meta(description="State in which the job ended; null until then.")]
    error: str
    finished_at: datetime | None


class CronjobProblemDocument(Struct, frozen=True, kw_only=True):
    """A problem with a schedule that an operator should know about."""

    kind: ProblemKind
    message: str
    at: datetime
    count: int


class CronjobDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob/1"):
    """One schedule, with the last entries of its ledger, newest first. If it cannot be read, its members are null."""

    name: str
    schedule: Annotated[str | None, Meta(description="The cron expression, or `every` with an interval.")]
    described: str | None
    timezone: str | None
    runs: Annotated[bool, Meta(description="Whether it runs; `reason` says why it does not.")]
    reason: str
    next: Annotated[datetime | None, Meta(description="The next instant at which it runs.")]
    source: ScheduleSource
    origin: str
    build: str
    stored: Annotated[bool, Meta(description="False if the settings define it and no runner has stored it yet.")]
    job: str | None
    payload: Any
    queue: str | None
    max_retries: int | None
    timeout: float | None
    inline: bool | None
    depends_on: tuple[str, ...]
    environments: tuple[str, ...]
    catch_up: CatchUp | None
    catch_up_limit: int | None
    overlap: Overlap | None
    jitter: float | None
    starts_at: datetime | None
    ends_at: datetime | None
    note: str
    owner: str
    problem: CronjobProblemDocument | None
    history: tuple[EntryDocument, ...]


class InstantDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.instant/1"):
    """An instant at which a schedule will run; `local` is the local time in its time zone."""

    schedule: str
    at: datetime
    local: str
    note: str


class RunDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.run/1"):
    """The outcome of `run` for a schedule, or with `--dry-run`, the outcome that it would have: at an instant, at
    `count` instants from `first` on, or, without an instant, at the user's request. Without an outcome, the schedule
    was not due or does not run.
    """

    schedule: str
    outcome: TickOutcome | None = None
    instant: datetime | None = None
    local: Annotated[str | None, Meta(description="Local time in the schedule's time zone.")] = None
    first: datetime | None = None
    count: int = 1
    late_s: float = 0.0
    reason: str = ""
    job: Annotated[str | None, Meta(description="The id of the job that was enqueued.")] = None
    dry_run: bool


class SwitchedDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.switch/1"):
    """A schedule that was enabled or disabled; `changed` is false with `--dry-run`."""

    schedule: str
    enabled: bool
    reason: str
    changed: bool


class SavedDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.add/1"):
    """A schedule that was added or replaced; `saved` is false if it was the same before, or with `--dry-run`."""

    schedule: str
    saved: bool
    next: datetime | None


class RemovedDocument(Document, frozen=True, kw_only=True, tag="holdfast.cronjob.remove/1"):
    """Whether a schedule was removed."""

    schedule: str
    removed: bool


def cronjob_document(known: Known) -> CronjobDocument:
    """A schedule as a JSON document."""
    view, schedule, problem = known.view, known.view.schedule, known.view.problem
    job = None if schedule is None else schedule.definition
    return CronjobDocument(
        name=view.name,
        schedule=None if schedule is None else schedule.timing.text(),
        described=None if schedule is None else schedule.timing.describe(),
        timezone=None if schedule is None else schedule.timing.zone,
        runs=known.runs,
        reason=known.reason,
        next=known.next_at,
        source=view.source,
        origin=view.origin,
        build=view.build,
        stored=known.is_stored,
        job=None if job is None else job.handler,
        payload=None if job is None else msgspec.json.decode(job.payload),
        queue=None if job is None else job.queue,
        max_retries=None if job is None else job.max_retries,
        timeout=None if job is None else job.timeout,
        **_members(schedule),
        problem=None
        if problem is None
        else CronjobProblemDocument(
            kind=problem.kind, message=problem.message, at=from_us(problem.at_us), count=problem.count
        ),
        history=tuple(entry_document(view.name, entry) for entry in view.history),
    )


def _members(schedule: Schedule | None) -> dict[str, Any]:
    names = (
        *("inline", "depends_on", "environments", "catch_up", "catch_up_limit", "overlap", "jitter"),
        *("starts_at", "ends_at", "note", "owner"),
    )
    if schedule is None:
        return {name: {"depends_on": (), "environments": (), "note": "", "owner": ""}.get(name) for name in names}
    members = {name: getattr(schedule, name) for name in names}
    return {name: one.astimezone(UTC) if isinstance(one, datetime) else one for name, one in members.items()}


def entry_document(name: str, entry: LedgerEntry) -> EntryDocument:
    """An entry of a ledger as a JSON document."""
    tick, result = entry.tick, entry.result
    return EntryDocument(
        schedule=name,
        instant=entry.instant,
        first=None if tick.first_us is None else from_us(tick.first_us),
        count=tick.count,
        outcome=tick.outcome,
        late_s=tick.late_s,
        reason=tick.reason,
        job=tick.job_id,
        state=None if result is None else result.state,
        error="" if result is None else result.reason,
        finished_at=None if result is None else from_us(result.finished_us),
    )
