"""`Schedule`, a job with the instants at which it is enqueued, and `ScheduleBuilder`, which builds one step by step."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, Self, TypeVar

import msgspec
from msgspec import Struct

from holdfast.cron.frequencies import Frequencies
from holdfast.cron.timing import Timing
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.definition.definition import check_definition
from holdfast.definition.durations import Duration, in_seconds
from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged
from holdfast.spelling import did_you_mean
from holdfast.values import CatchUp, OnParentFailure, Overlap

MAX_CATCH_UP: Final = 1000
MAX_JITTER_S: Final = 86_400.0
_NOTE_LIMIT: Final = 500
_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_environment = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_INSTANT: Final = timedelta(microseconds=1)

E = TypeVar("E", CatchUp, Overlap)


class Schedule(Struct, frozen=True, kw_only=True):
    """A job and the instants at which it is enqueued.

    Without `environments`, it applies everywhere. Instants before `starts_at` and after `ends_at` do not exist.
    """

    name: str
    definition: JobDefinition
    timing: Timing
    depends_on: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    enabled: bool = True
    inline: bool = False
    catch_up: CatchUp = CatchUp.NONE
    catch_up_limit: int = 10
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    note: str = ""
    owner: str = ""

    def __post_init__(self) -> None:
        check_schedule_name(self.name)
        try:
            self._check()
        except DefinitionError as problem:
            raise DefinitionError(f"schedule '{self.name}': {problem}") from problem.__cause__

    def _check(self) -> None:
        _check_scheduled(check_definition(self.definition))
        for parent in self.depends_on:
            check_schedule_name(parent)
        for environment in self.environments:
            check_environment(environment)
        if isinstance(self.catch_up_limit, bool) or not 1 <= self.catch_up_limit <= MAX_CATCH_UP:
            raise DefinitionError(
                f"the catch-up limit must be between 1 and {MAX_CATCH_UP:,}, not {self.catch_up_limit!r}"
            )
        if not 0 <= self.jitter <= MAX_JITTER_S:
            raise DefinitionError(
                f"the jitter must be between 0 and {MAX_JITTER_S / 3600:g} hours, not {self.jitter:g} s"
            )
        for what, instant in (("start", self.starts_at), ("end", self.ends_at)):
            if instant is not None and instant.tzinfo is None:
                raise DefinitionError(f"the {what} {instant.isoformat()} has no time zone; pass an aware datetime")
        if self.starts_at is not None and self.ends_at is not None and self.ends_at < self.starts_at:
            raise DefinitionError(f"its end, {self.ends_at.isoformat()}, is before its start")
        if self.overlap is Overlap.QUEUE and self.depends_on:
            # A job has one policy for all of its parents: it cannot run after a failed run and be cancelled by a failed
            # parent.
            raise DefinitionError(
                "overlap 'queue' cannot be combined with depends_on; use single_instance() to run one job at a time"
            )
        for what, text in (("note", self.note), ("owner", self.owner)):
            if len(text) > _NOTE_LIMIT or not (text.isprintable() or what == "note"):
                raise DefinitionError(f"the {what} must be up to {_NOTE_LIMIT} printable characters")

    def next_after(self, instant: datetime) -> datetime | None:
        """The first instant of the schedule after this one; None if there is none."""
        if self.starts_at is not None and instant < self.starts_at:
            instant = self.starts_at - _INSTANT
        found = self.timing.next_after(instant)
        return None if found is None or (self.ends_at is not None and found > self.ends_at) else found

    def instants(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Up to `limit` instants of the schedule after `after` and not after `until`."""
        found: list[datetime] = []
        instant = self.next_after(after)
        while instant is not None and instant <= until and len(found) < limit:
            found.append(instant)
            instant = self.next_after(instant)
        return found

    def has(self, instant: datetime) -> bool:
        """Whether this is one of its instants."""
        return self.next_after(instant - _INSTANT) == instant

    def runs_in(self, environment: str) -> bool:
        """Whether the schedule applies in this environment."""
        return not self.environments or environment in self.environments


class ScheduleBuilder(JobBuilder, Frequencies):
    """Collects the options of a schedule and of its job, in any order. `schedule()` returns the immutable value.

    `named` is the name of the schedule; default: the key of the handler.
    """

    def __init__(self, definition: JobDefinition, *, save: Callable[[Schedule], None] | None = None) -> None:
        super().__init__(check_definition(definition).handler)
        self._definition = definition
        self._name: str | None = None
        self._save = save
        self._depends_on: tuple[str, ...] = ()
        self._environments: tuple[str, ...] = ()
        self._enabled = True
        self._inline = False
        self._catch_up, self._catch_up_limit = CatchUp.NONE, 10
        self._overlap = Overlap.ALLOW
        self._jitter = 0.0
        self._starts_at: datetime | None = None
        self._ends_at: datetime | None = None
        self._note = self._owner = ""

    def named(self, name: str) -> Self:
        """Name of the schedule, unique in its backend."""
        self._name = check_schedule_name(name)
        return self

    def depends_on(self, *schedules: str) -> Self:
        """Wait for the jobs of these schedules, if they are due at the same instant. If one fails, this job is
        cancelled; if one is skipped, it is skipped.
        """
        self._depends_on = tuple(dict.fromkeys((*self._depends_on, *map(check_schedule_name, schedules))))
        return self

    def environments(self, *environments: str) -> Self:
        """Run only if the setting `environment` is one of these."""
        self._environments = tuple(dict.fromkeys(map(check_environment, environments)))
        return self

    def enabled(self, enabled: bool = True) -> Self:
        """Whether the schedule runs. An operator can override this with `cronjob enable` and `cronjob disable`."""
        self._enabled = enabled
        return self

    def inline(self) -> Self:
        """Run the job in the schedule runner instead of in a worker. It is not retried unless `max_retries` is
        set.
        """
        self._inline = True
        return self

    def catch_up(self, policy: Literal["none", "last", "all"], *, limit: int = 10) -> Self:
        """Set which of the instants that passed while no runner was running are run: none, the last one, or all up to a
        limit.
        """
        self._catch_up, self._catch_up_limit = _one_of(CatchUp, "catch_up", policy), limit
        return self

    def overlap(self, policy: Literal["allow", "skip", "queue"]) -> Self:
        """Set what happens if the previous run has not finished: run at the same time, skip this run, or queue it."""
        self._overlap = _one_of(Overlap, "overlap", policy)
        return self

    def jitter(self, jitter: Duration) -> Self:
        """Delay each run by up to this duration. The delay of an instant is always the same."""
        self._jitter = in_seconds("jitter", jitter)
        return self

    def starting(self, instant: datetime) -> Self:
        """Do not run before this time."""
        self._starts_at = instant
        return self

    def ending(self, instant: datetime) -> Self:
        """Do not run after this time."""
        self._ends_at = instant
        return self

    def note(self, note: str) -> Self:
        """Set a note, which `cronjob show` prints."""
        self._note = note
        return self

    def owner(self, owner: str) -> Self:
        """Set the person or team responsible for the schedule."""
        self._owner = owner
        return self

    def schedule(self) -> Schedule:
        """The schedule."""
        definition, job_id = self.definition_and_id()
        name = self._name or definition.handler
        if job_id is not None:
            raise DefinitionError(f"schedule '{name}': each of its jobs gets its own id; leave out id()")
        return Schedule(
            name=name,
            definition=definition,
            timing=self._timing_of(name),
            depends_on=self._depends_on,
            environments=self._environments,
            enabled=self._enabled,
            inline=self._inline,
            catch_up=self._catch_up,
            catch_up_limit=self._catch_up_limit,
            overlap=self._overlap,
            jitter=self._jitter,
            starts_at=self._starts_at,
            ends_at=self._ends_at,
            note=self._note,
            owner=self._owner,
        )

    def _timing_of(self, name: str) -> Timing:
        try:
            return self.timing()
        except DefinitionError as problem:
            raise DefinitionError(f"schedule '{name}': {problem}") from None

    def save(self) -> Schedule:
        """Store the schedule in its backend. It replaces the one with the same name."""
        if self._save is None:
            raise RuntimeError(
                "a schedule that is defined in the code cannot be saved; the runner stores it when it starts"
            )
        schedule = self.schedule()
        self._save(schedule)
        return schedule


def check_schedule_name(name: str) -> str:
    """The name of a schedule, if it is valid."""
    if not isinstance(name, str) or not _name.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(
            f"{abridged(repr(name))} is not a valid name for a schedule; use up to 100 letters, digits, '_', '.', ':' "
            "and '-', starting with a letter, digit or '_'"
        )
    return name


def check_environment(environment: str) -> str:
    """The name of an environment, if it is valid."""
    if not isinstance(environment, str) or not _environment.fullmatch(environment):  # pyright: ignore[reportUnnecessaryIsInstance] - the same
        raise DefinitionError(
            f"{abridged(repr(environment))} is not a valid environment; use up to 40 lower-case letters, digits, '_' "
            "and '-', starting with a letter or digit"
        )
    return environment


def check_parents(parents: Sequence[str], known: Sequence[str]) -> None:
    """Refuse parents that do not exist."""
    for parent in parents:
        if parent not in known:
            hint = did_you_mean(parent, known) or f"known schedules: {', '.join(known) or 'none'}"
            raise DefinitionError(f"it depends on '{parent}', which does not exist; {hint}")


def _check_scheduled(definition: JobDefinition) -> None:
    """Refuse options that make no sense for a job that is enqueued again and again."""
    for option, advice, is_set in (
        ("run_at", "the schedule decides when it runs", definition.run_at is not None),
        ("an expiry at a point in time", "pass a duration, such as expires('1h')", definition.expires_at is not None),
        ("after", "use depends_on to wait for another schedule", bool(definition.after)),
        (
            "unique",
            "each instant is enqueued once; use overlap('skip') for one run at a time",
            definition.unique is not False,
        ),
    ):
        if is_set:
            raise DefinitionError(f"its job cannot have {option}: {advice}")
    if definition.on_parent_failure is not OnParentFailure.CANCEL:
        raise DefinitionError("its job cannot have on_parent_failure: a job whose parent failed is cancelled")


def _one_of(kind: type[E], option: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise DefinitionError(f"{option} must be {', '.join(map(repr, map(str, kind)))}, not {value!r}") from None


def named_definition(schedule: Schedule) -> JobDefinition:
    """The definition of the schedule's job, named like the schedule unless it has a name of its own."""
    definition = schedule.definition
    return definition if definition.name is not None else msgspec.structs.replace(definition, name=schedule.name)
