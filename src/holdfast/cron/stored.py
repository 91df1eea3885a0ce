"""`Schedules`: the schedules stored in a backend, for programs that change or show them. The runner fires them.

Every change is one write, on the condition that the schedule has not changed in the meantime.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.clock import MICROSECONDS, from_us, to_us
from holdfast.cron.planning import Decision, Due, job_id_of, ledger_ttl, plan
from holdfast.cron.schedule import Schedule, check_parents
from holdfast.cron.scheduler import execution_order
from holdfast.cron.templates import Template, describe_template, open_template, seal_template
from holdfast.errors import DefinitionError, WireError
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer, Unsigned
from holdfast.spelling import did_you_mean
from holdfast.state.schedules import (
    Cursor,
    LedgerEntry,
    Problem,
    RunResult,
    ScheduleCells,
    StoredSchedule,
    Switch,
    Tick,
    drop_problem,
    note_change,
    put_build,
    put_cursor,
    put_schedule,
    put_switch,
    put_tick,
    removal,
)
from holdfast.values import CellWrite, JobFilter, JobState, ScheduleSource, Write

BUILD_LIVE_S: Final = 120.0
_AT_ONCE: Final = 200
_BACKLOG: Final = 100_000
_CHANGED: Final = "the schedule was changed before it ran"


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A stored schedule as users see it. `schedule` is not verified; it is None if it cannot be read.

    `through` is the instant up to which its ledger is complete, and `history` has its last entries, newest first.
    """

    name: str
    schedule: Schedule | None
    source: ScheduleSource
    origin: str = ""
    build: str = ""
    vanished_at: datetime | None = None
    switch: Switch | None = None
    through: datetime | None = None
    problem: Problem | None = None
    history: tuple[LedgerEntry, ...] = ()

    @property
    def refusal(self) -> str:
        """The reason why the schedule does not run; empty if it does."""
        if self.vanished_at is not None:
            return vanished_from(self.source)
        return "" if self.schedule is None else refusal_of(self.schedule, self.switch)


class Definitions(Struct, frozen=True, kw_only=True):
    """All schedules that an application or a file defines for one backend, and which version of it does.

    Of several versions, the newest one that is in use determines what is stored. The default name of a version is a
    digest of the schedules.
    """

    source: ScheduleSource
    origin: str
    schedules: tuple[Schedule, ...]
    build: str = ""

    def __post_init__(self) -> None:
        if not self.build and self.source is not ScheduleSource.STORED:
            msgspec.structs.force_setattr(self, "build", _digest(self.schedules))


class Reconciled(Struct, frozen=True, kw_only=True):
    """The result of reconciling a program's definitions: the names of schedules that were stored or have vanished, and
    a sentence about each that was refused. Nothing is done if a newer build is in use.
    """

    is_newest: bool
    saved: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class _Known(NamedTuple):
    """The stored state of a schedule, and the versions of its cells."""

    stored: StoredSchedule | None
    version: int
    cursor: Cursor | None
    cursor_version: int
    switch: Switch | None


class Schedules:
    """The schedules in the backend of an engine. To change them, the signer must have a key."""

    def __init__(self, engine: Engine, signer: Signer) -> None:
        self.cells = ScheduleCells(engine.state)
        self._engine = engine
        self._signer = signer

    def now(self) -> datetime:
        """The engine's time, which decides what is due."""
        return from_us(engine_now_us(self._engine))

    def views(self, names: Sequence[str] | None = None, *, history: int = 0) -> list[ScheduleView]:
        """The schedules with these names, or all, by name, with the last entries of their ledgers."""
        stored = self.cells.all() if names is None else _without_versions(self.cells.get(names))
        found = sorted(stored)
        switches, problems = self.cells.switches(names), self.cells.problems(names)
        cursors = self.cells.cursors(found)
        return [
            ScheduleView(
                name=name,
                schedule=describe_template(stored[name].template.encode()),
                source=stored[name].source,
                origin=stored[name].origin,
                build=stored[name].build,
                vanished_at=_instant(stored[name].vanished_us),
                switch=switches.get(name),
                through=_through(cursors.get(name)),
                problem=problems.get(name),
                history=tuple(self.history(name, history)) if history else (),
            )
            for name in found
        ]

    def history(self, name: str, limit: int = 30) -> list[LedgerEntry]:
        """The last entries of a schedule's ledger, newest first."""
        entries = self.cells.ticks(name, limit)
        # A job that an operator or a failed parent has cancelled has no result until the schedule fires again.
        open_ids = [job_id_of(name, one.instant) for one in entries if one.tick.job_id and one.result is None]
        ended = self.ended(open_ids)
        return [replace(one, result=one.result or ended.get(job_id_of(name, one.instant))) for one in entries]

    def ended(self, ids: Sequence[str]) -> dict[str, RunResult | None]:
        """The results of the jobs among these that are not open; None if there is no record of the job."""
        found: dict[str, RunResult | None] = dict.fromkeys(ids)
        for start in range(0, len(ids), _AT_ONCE):
            page = self._engine.find(JobFilter(ids=tuple(ids[start : start + _AT_ONCE])), limit=_AT_ONCE)
            for job in page.jobs:
                if not job.state.is_final:
                    del found[job.id]
                    continue
                reason = job.cancel_reason if job.state is JobState.CANCELLED else job.dead_reason
                finished = job.finished_at or job.due_at
                found[job.id] = RunResult(state=job.state, finished_us=to_us(finished), reason=str(reason or ""))
        return found

    def save(self, schedule: Schedule) -> bool:
        """Store a schedule that is not defined in code or settings. Returns whether that changed anything.

        A new schedule, and one whose timing has changed, fires from now on.
        """
        others = {name: describe_template(one.template.encode()) for name, one in self.cells.all().items()}
        others[schedule.name] = schedule
        try:
            check_parents(schedule.depends_on, [name for name in others if name != schedule.name])
        except DefinitionError as problem:
            raise DefinitionError(f"schedule '{schedule.name}': {problem}") from None
        execution_order(filter(None, others.values()))
        defined = Definitions(source=ScheduleSource.STORED, origin="", schedules=(schedule,))
        saved, refused = self._save(defined)
        if refused:
            raise DefinitionError(refused[0])
        return bool(saved)

    def remove(self, name: str) -> bool:
        """Remove a schedule; False if there is none. Its ledger stays until it expires."""
        stored = self.cells.all()
        if name not in stored:
            return False
        described = {one: describe_template(cell.template.encode()) for one, cell in stored.items()}
        children = [one for one, child in described.items() if child is not None and name in child.depends_on]
        if children:
            raise DefinitionError(
                f"schedule '{name}' cannot be removed, because '{children[0]}' depends on it; remove or change "
                f"'{children[0]}' first"
            )
        self.cells.state.write(removal(name))
        return True

    def enable(self, name: str, *, reason: str = "", by: str = "") -> None:
        """Enable a schedule, even if its definition disables it."""
        self._switch(name, Switch(enabled=True, reason=reason, by=by, at_us=engine_now_us(self._engine)))

    def disable(self, name: str, *, reason: str = "", by: str = "") -> None:
        """Stop a schedule. Its instants are recorded as skipped until it is enabled."""
        self._switch(name, Switch(enabled=False, reason=reason, by=by, at_us=engine_now_us(self._engine)))

    def reconcile(self, defined: Definitions) -> Reconciled:
        """Store the schedules that a program defines, and mark those that it no longer defines as vanished, if its
        build is the newest one in use.
        """
        if not self.beat(defined):
            return Reconciled(is_newest=False)
        saved, refused = self._save(defined)
        return Reconciled(is_newest=True, saved=saved, vanished=self._mark_vanished(defined), refused=refused)

    def beat(self, defined: Definitions) -> bool:
        """Report that this build is in use, which a program does every 30 seconds. Returns whether it is the newest one
        in use.
        """
        if not defined.schedules and not self._of(defined):
            return True
        now_us, ours = engine_now_us(self._engine), defined.build
        builds = self.cells.builds(defined.origin)
        since_us = builds[ours][0].since_us if ours in builds else now_us
        self.cells.state.write([put_build(defined.origin, ours, since_us)])
        live = {
            build: one.since_us
            for build, (one, seen_us) in builds.items()
            if now_us - seen_us <= BUILD_LIVE_S * MICROSECONDS
        }
        return max({**live, ours: since_us}.items(), key=lambda one: (one[1], one[0]))[0] == ours

    def _save(self, defined: Definitions) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Store what has changed. Returns the names, and a sentence about each that was refused."""
        saved: list[str] = []
        refused: list[str] = []
        for start in range(0, len(defined.schedules), _AT_ONCE):
            part = defined.schedules[start : start + _AT_ONCE]
            while True:
                names, problems, writes = self._changes(part, defined)
                if not writes or self.cells.state.write([*writes, note_change()]) is not None:
                    break
            saved += names
            refused += problems
        return tuple(saved), tuple(refused)

    def _changes(self, schedules: Sequence[Schedule], defined: Definitions) -> tuple[list[str], list[str], list[Write]]:
        known = self._known([one.name for one in schedules])
        now_us = engine_now_us(self._engine)
        names: list[str] = []
        problems: list[str] = []
        writes: list[Write] = []
        for one in schedules:
            try:
                changes = self._change(one, defined, known[one.name], now_us)
            except DefinitionError as problem:
                problems.append(str(problem))
                continue
            if changes:
                names.append(one.name)
                writes += changes
        return names, problems, writes

    def _change(self, schedule: Schedule, defined: Definitions, known: _Known, now_us: int) -> list[Write]:
        """The writes that store a schedule; none if nothing changes."""
        stored, cursor = known.stored, known.cursor
        if stored is not None and stored.vanished_us is None:
            _check_owner(schedule.name, stored, defined)
        before = None if stored is None else self._verified(schedule.name, stored)
        if stored is not None and before is not None and cursor is not None and before.revision >= cursor.revision:
            is_same = before.schedule == schedule and (stored.source, stored.origin) == (defined.source, defined.origin)
            if is_same and stored.vanished_us is None:
                return []
        revision = max(
            now_us, 0 if before is None else before.revision + 1, 0 if cursor is None else cursor.revision + 1
        )
        template = seal_template(schedule, revision, self._signer).decode()
        put = StoredSchedule(template=template, source=defined.source, origin=defined.origin, build=defined.build)
        writes: list[Write] = [put_schedule(schedule.name, put, if_version=known.version)]
        entries: list[CellWrite] = []
        if cursor is None:
            moved = Cursor(through_us=now_us, revision=revision)
        elif before is None:
            moved = replace(cursor, through_us=max(cursor.through_us, now_us), revision=revision)
        elif _when(before.schedule) == _when(schedule):
            moved = replace(cursor, revision=revision)
        else:
            moved = replace(cursor, through_us=max(cursor.through_us, now_us), revision=revision)
            found = before.schedule.instants(from_us(cursor.through_us), from_us(now_us), _BACKLOG)
            refusal = refusal_of(before.schedule, known.switch) or _CHANGED
            entries = ledger_entries(
                before.schedule,
                plan(before.schedule, Due(instants=tuple(found)), from_us(now_us), refusal=refusal),
                now_us,
            )
        is_replayed = before is not None and cursor is not None and before.revision < cursor.revision
        if stored is not None and (before is None or is_replayed):
            writes.append(drop_problem(schedule.name))
        return [*writes, put_cursor(schedule.name, moved, if_version=known.cursor_version), *entries]

    def _mark_vanished(self, defined: Definitions) -> tuple[str, ...]:
        ours = {one.name for one in defined.schedules}
        gone = [name for name in self._of(defined) if name not in ours]
        vanished: list[str] = []
        for name, (stored, version) in self.cells.get(gone).items():
            if stored.vanished_us is None:
                marked = replace(stored, vanished_us=engine_now_us(self._engine))
                put = put_schedule(name, marked, if_version=version)
                if self.cells.state.write([put, note_change()]) is not None:
                    vanished.append(name)
        return tuple(vanished)

    def _of(self, defined: Definitions) -> list[str]:
        """The names of the stored schedules that this application or file has defined."""
        where = defined.source, defined.origin
        return [name for name, one in self.cells.all().items() if (one.source, one.origin) == where]

    def _known(self, names: Sequence[str]) -> Mapping[str, _Known]:
        stored, cursors, switches = self.cells.get(names), self.cells.cursors(names), self.cells.switches(names)
        known: dict[str, _Known] = {}
        for name in names:
            (schedule, version), (cursor, moved) = stored.get(name, (None, 0)), cursors.get(name, (None, 0))
            known[name] = _Known(schedule, version, cursor, moved, switches.get(name))
        return known

    def _verified(self, name: str, stored: StoredSchedule) -> Template | None:
        try:
            return open_template(name, stored.template.encode(), self._signer)
        except WireError:
            return None

    def _switch(self, name: str, switch: Switch) -> None:
        if not self.cells.get([name]):
            known = sorted(self.cells.all())
            hint = did_you_mean(name, known) or f"known schedules: {', '.join(known) or 'none'}"
            raise DefinitionError(f"there is no schedule '{name}'; {hint}")
        self.cells.state.write(put_switch(name, switch))


def engine_now_us(engine: Engine) -> int:
    """The time by the engine's clock, which all programs share."""
    asked = engine.describe().clock_us
    return engine.clock.now_us() if asked is None else asked


def ledger_entries(schedule: Schedule, decisions: Iterable[Decision], at_us: int) -> list[CellWrite]:
    """The writes that add these decisions to the ledger."""
    return [
        put_tick(
            schedule.name,
            to_us(one.instant),
            Tick(
                outcome=one.outcome,
                late_s=one.late_s,
                reason=one.reason,
                job_id=job_id_of(schedule.name, one.instant) if one.outcome.has_job else None,
                first_us=None if one.first is None else to_us(one.first),
                count=one.count,
                at_us=at_us,
            ),
            ttl=ledger_ttl(schedule, one.instant),
        )
        for one in decisions
    ]


def _digest(schedules: Iterable[Schedule]) -> str:
    import hashlib  # imported here: it loads OpenSSL, and programs that only read do not need it

    digest = hashlib.blake2b(digest_size=8)
    for one in sorted(schedules, key=lambda schedule: schedule.name):
        digest.update(seal_template(one, 0, Unsigned()))
    return digest.hexdigest()


def refusal_of(schedule: Schedule, switch: Switch | None) -> str:
    """The reason why a schedule does not run; empty if it does."""
    if switch is None:
        return "" if schedule.enabled else "disabled in its definition"
    if switch.enabled:
        return ""
    by = f" by {switch.by}" if switch.by else ""
    return f"disabled{by}: {switch.reason}" if switch.reason else f"disabled{by}"


def vanished_from(source: ScheduleSource) -> str:
    """The reason why a schedule that has vanished does not run."""
    return "no longer defined in the code" if source is ScheduleSource.CODE else "no longer defined in the settings"


def _when(schedule: Schedule) -> tuple[object, ...]:
    """The options that determine the instants of a schedule. No cursor moves where the schedule does not apply."""
    return schedule.timing, schedule.starts_at, schedule.ends_at, schedule.environments


def _check_owner(name: str, stored: StoredSchedule, defined: Definitions) -> None:
    """Refuse a name that is already defined somewhere else."""
    if (stored.source, stored.origin) == (defined.source, defined.origin):
        return
    where = {
        ScheduleSource.CODE: f"in the code of '{stored.origin}'",
        ScheduleSource.CONFIG: f"in {stored.origin}",
        ScheduleSource.STORED: "at run time",
    }[stored.source]
    raise DefinitionError(
        f"schedule '{name}' is already defined {where}; choose another name, or remove that definition and then run  "
        f"holdfast cronjob remove {name}"
    )


def _without_versions(found: Mapping[str, tuple[StoredSchedule, int]]) -> dict[str, StoredSchedule]:
    return {name: one for name, (one, _) in found.items()}


def _through(found: tuple[Cursor | None, int] | None) -> datetime | None:
    return None if found is None or found[0] is None else from_us(found[0].through_us)


def _instant(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
