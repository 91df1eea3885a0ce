"""`CronRunner`: fires the schedules stored in a backend. Any number of runners can run; each instant is fired once.

A commit moves the cursor of a schedule, on the condition that it has not moved, and stores the job and the entry in
the ledger. If the condition fails, another runner has fired the instant. What is due is decided by the engine's clock;
in between, the runner measures time with its monotonic clock.
"""

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.clock import MICROSECONDS, from_us, to_us
from holdfast.cron.planning import (
    SUPERSEDED,
    Decision,
    Due,
    ParentRun,
    PreviousRun,
    Refusal,
    WaitFor,
    decision_at,
    due_of,
    jitter_of,
    job_id_of,
    ledger_ttl,
    merged,
    plan,
)
from holdfast.cron.schedule import Schedule, named_definition
from holdfast.cron.scheduler import execution_order
from holdfast.cron.stored import Definitions, Schedules, engine_now_us, ledger_entries, refusal_of, vanished_from
from holdfast.cron.templates import Template, open_template
from holdfast.definition import JobDefinition
from holdfast.errors import (
    BackendUnavailable,
    BadSignature,
    DefinitionError,
    EnvelopeRejected,
    IdConflict,
    NotSupported,
    StateConflict,
    UnknownParent,
    WireError,
)
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Signer
from holdfast.state.schedules import (
    Cursor,
    LastRun,
    Problem,
    ProblemKind,
    RunResult,
    ScheduleCells,
    StoredSchedule,
    Tick,
    put_cursor,
    put_problem,
    put_result,
    tick_key,
)
from holdfast.units import counted
from holdfast.values import CatchUp, CellWrite, JobEnvelope, JobState, TickOutcome

log = logging.getLogger("holdfast.cron")

AT_ONCE: Final = 100
ATTEMPTS: Final = 3
LOOK_S: Final = 1.0
IDLE_LOOK_S: Final = 5.0
CLOCK_S: Final = 30.0
BEAT_S: Final = 30.0
RELOAD_S: Final = 300.0
LONGEST_PAUSE_S: Final = 30.0
INLINE_QUEUE: Final = "schedules-inline"
"""The private queue of inline jobs, which run in the runner. Each environment has its own."""

_SHORTEST_S: Final = 0.001
_MOST_JOBS: Final = 1000
_REPLAYED: Final = "its template was replaced by an earlier version"
_DEFINITION_FAILURES: Final = (DefinitionError, EnvelopeRejected, IdConflict, NotSupported, ValueError)


class Happened(Struct, frozen=True, kw_only=True):
    """The outcome of a tick for an instant of a schedule, or for `count` instants from `first` up to this one."""

    schedule: str
    instant: datetime
    outcome: TickOutcome
    reason: str = ""
    late_s: float = 0.0
    job_id: str | None = None
    first: datetime | None = None
    count: int = 1


class _Firing(NamedTuple):
    """A schedule with instants that are due, and the decisions about them."""

    schedule: Schedule
    due: Due
    decisions: list[Decision]
    cursor: Cursor
    version: int
    writes: list[CellWrite]


class _ParentIsLater(Exception):
    """A parent is due at the same instant, which is not yet accounted for. The child is planned again later."""


class CronRunner:
    """Fires the schedules of a backend, in the order of their dependencies, in this environment.

    `definitions` are the schedules that this program defines. They are stored if it is the newest build in use; what
    is fired is always what is stored.
    """

    def __init__(
        self, engine: Engine, signer: Signer, *, environment: str = "", definitions: Sequence[Definitions] = ()
    ) -> None:
        self.schedules = Schedules(engine, signer)
        self.environment = environment
        self.definitions = tuple(definitions)
        self._cells: ScheduleCells = self.schedules.cells
        self._engine = engine
        self._signer = signer
        self._clock = engine.clock
        self._verified: dict[str, tuple[str, Template]] = {}
        self._stored: dict[str, Schedule] = {}
        self._order: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self.inline_queues: tuple[str, ...] = ()
        """The private queues of the stored schedules that run inline in this environment."""
        self._problems: dict[str, CellWrite] = {}
        self._unreadable: set[str] = set()
        self._settled: dict[int, int] = {}
        self._reported: dict[str, str] = {}
        self._changes = -1
        self._asked_us = 0
        # When each of these was done last, by the monotonic clock.
        self._asked_at = self._looked_at = self._loaded_at = self._beat_at = float("-inf")
        self._failures = 0

    def prepare(self) -> tuple[str, ...]:
        """Store the schedules that this program defines, and return `inline_queues`."""
        self._beat()
        self._load()
        return self.inline_queues

    # The loop.

    def run(self, wait: Callable[[float], bool]) -> None:
        """Fire schedules until `wait` returns True. It gets the number of seconds to wait, like `Event.wait`."""
        pause = 0.0
        while not wait(pause):
            pause = self.step()

    def step(self) -> float:
        """Do what is due now, and return the seconds until there is something to do. No exception ends the loop."""
        try:
            self._beat()
            if self._is_something_due():
                self.tick()
        except Exception as problem:
            self._failures += 1
            pause = min(2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE_S)
            expected = isinstance(problem, BackendUnavailable)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "schedules cannot be fired: %s; retrying in %g s",
                problem,
                pause,
                exc_info=None if expected else problem,
            )
            return pause
        self._failures = 0
        return self._pause()

    @property
    def next_at(self) -> datetime | None:
        """The next instant at which a schedule is due, as far as this runner knows."""
        next_us = self._next_us()
        return None if next_us is None else from_us(next_us)

    def _is_something_due(self) -> bool:
        now = self._clock.monotonic()
        if now - self._looked_at >= self._look_s:
            self._looked_at = now
            if self._cells.changes() != self._changes or now - self._loaded_at >= RELOAD_S:
                self._load()
                self._store_problems()
        next_us = self._next_us()
        if next_us is None:
            return False
        return next_us <= self._estimated_us() or now - self._asked_at >= CLOCK_S

    def _beat(self) -> None:
        """Report the builds of this program every 30 seconds, and store its schedules if it is the newest build."""
        now = self._clock.monotonic()
        if not self.definitions or now - self._beat_at < BEAT_S:
            return
        for at, defined in enumerate(self.definitions):
            try:
                self._store(at, defined)
            except BackendUnavailable:
                raise
            except Exception:
                # The stored schedules are fired anyway.
                log.exception("schedules defined in %s could not be stored; retrying in %g s", defined.origin, BEAT_S)
        self._beat_at = now

    def _store(self, at: int, defined: Definitions) -> None:
        """Store these schedules, unless a newer build is in use or nothing has changed since they were stored."""
        if not self.schedules.beat(defined):
            self._settled.pop(at, None)
            return
        if self._settled.get(at) == self._cells.changes():
            return
        done = self.schedules.reconcile(defined)
        self._settled[at] = self._cells.changes()
        for sentence in done.refused:
            self._report_once(sentence, sentence)
        if done.saved:
            log.info("stored %s defined in %s", counted(len(done.saved), "schedule"), defined.origin)
        for name in done.vanished:
            log.warning("schedule '%s' is no longer defined in %s and will not run", name, defined.origin)

    def _pause(self) -> float:
        next_us = self._next_us()
        until_s = LOOK_S if next_us is None else (next_us - self._estimated_us()) / MICROSECONDS
        look_s = self._look_s - (self._clock.monotonic() - self._looked_at)
        return max(_SHORTEST_S, min(until_s, look_s) if next_us is not None else look_s)

    @property
    def _look_s(self) -> float:
        return LOOK_S if self._stored else IDLE_LOOK_S

    def _now_us(self) -> int:
        self._asked_us, self._asked_at = engine_now_us(self._engine), self._clock.monotonic()
        return self._asked_us

    def _estimated_us(self) -> int:
        if self._asked_at == float("-inf"):
            return self._now_us()
        return self._asked_us + int((self._clock.monotonic() - self._asked_at) * MICROSECONDS)

    def _next_us(self) -> int | None:
        while self._heap and self._next.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _wake_at(self, name: str, next_us: int | None) -> None:
        if next_us is None:
            self._next.pop(name, None)
        elif self._next.get(name) != next_us:
            self._next[name] = next_us
            heapq.heappush(self._heap, (next_us, name))

    # What is stored.

    def _load(self) -> None:
        """Read all schedules and find out when each is due next."""
        changes, now_us = self._cells.changes(), self._now_us()
        stored = self._cells.all()
        self._stored = {
            name: template.schedule for name, one in stored.items() if (template := self._open(name, one)) is not None
        }
        self._verified = {name: one for name, one in self._verified.items() if name in self._stored}
        try:
            order = execution_order(self._stored.values())
        except DefinitionError as problem:
            # Only a write that bypasses `Schedules` could store a cycle. Each of its members waits for another.
            self._report_once("cycle", str(problem))
            order = tuple(self._stored.values())
        self._order = {one.name: at for at, one in enumerate(order)}
        self._next, self._heap = {}, []
        mine = [name for name, one in self._stored.items() if one.runs_in(self.environment)]
        cursors = self._cells.cursors(mine)
        for name in mine:
            cursor, _ = cursors.get(name, (None, 0))
            self._schedule_next(self._stored[name], now_us if cursor is None else cursor.through_us)
            if cursor is None:
                self._wake_at(name, now_us)
        self.inline_queues = tuple(
            sorted({self._inline_queue(self._stored[name]) for name in mine if self._stored[name].inline})
        )
        self._changes, self._loaded_at = changes, self._clock.monotonic()

    def _schedule_next(self, schedule: Schedule, through_us: int) -> None:
        following = schedule.next_after(from_us(through_us))
        self._wake_at(schedule.name, None if following is None else to_us(following))

    def _open(self, name: str, stored: StoredSchedule) -> Template | None:
        """The verified template, or None if this program must not fire the schedule, which is reported."""
        known = self._verified.get(name)
        if known is not None and known[0] == stored.template:
            return known[1]
        try:
            template = open_template(name, stored.template.encode(), self._signer)
        except (BadSignature, EnvelopeRejected) as problem:
            self._report(name, ProblemKind.ALTERED, str(problem))
            return None
        except WireError as problem:
            self._report(name, ProblemKind.UNREADABLE, str(problem))
            self._unreadable.add(name)
            return None
        self._unreadable.discard(name)
        if known is not None and template.revision < known[1].revision:
            self._report(name, ProblemKind.ALTERED, _REPLAYED)
            return None
        self._verified[name] = stored.template, template
        return template

    def _report(self, name: str, kind: ProblemKind, message: str) -> None:
        """Report that a schedule cannot be fired: once in the log, and in the backend until it is fixed."""
        self._report_once(name, f"schedule '{name}' cannot be fired: {message}")
        self._problems[name] = put_problem(name, Problem(kind=kind, message=message, at_us=self._estimated_us()))
        self._stored.pop(name, None)
        self._wake_at(name, None)

    def _store_problems(self) -> None:
        if self._problems:
            self._cells.state.write(list(self._problems.values()))
            self._problems.clear()

    def _report_once(self, what: str, sentence: str) -> None:
        """Log a sentence, unless it was the last one about this."""
        if self._reported.get(what) != sentence:
            self._reported[what] = sentence
            log.error("%s", sentence)

    # Firing.

    def tick(self, at: datetime | None = None, *, only: Collection[str] = ()) -> list[Happened]:
        """Fire everything that is due now by the engine's clock, or at a given time, and return what happened.

        With `only`, no other schedules are considered, and parents that are not among them are not waited for.
        """
        happened = self._tick(at, only, self._fire)
        self._store_problems()
        return happened

    def preview(self, at: datetime | None = None, *, only: Collection[str] = ()) -> list[Happened]:
        """Return what `tick` would do, without changing anything."""

        def planned(names: Sequence[str], now: datetime, tick: "_Tick") -> list[Happened]:
            firings = self._plan(names, now, tick)
            tick.decided.update({one.schedule.name: one.decisions for one in firings})
            return [one for firing in firings for one in _happened(firing)]

        return self._tick(at, only, planned)

    def run_now(self, *names: str) -> dict[str, str]:
        """Enqueue the jobs of these schedules now, whatever their timings say, and return their ids by schedule. Each
        waits for the jobs of its parents among them. The ledger is not changed.
        """
        jobs: dict[str, JobEnvelope] = {}
        for schedule in execution_order(self._runnable(name) for name in names):
            after = tuple(jobs[parent].id for parent in schedule.depends_on if parent in jobs)
            definition = replace(named_definition(schedule), schedule=schedule.name, after=after)
            if schedule.inline:
                definition = self._inline(schedule, definition)
            jobs[schedule.name] = self._engine.envelopes.make(definition)
        self._engine.accept(list(jobs.values()))
        return {name: jobs[name].id for name in names}

    def _runnable(self, name: str) -> Schedule:
        """The stored schedule, verified."""
        stored = self._cells.get([name])
        template = self._open(name, stored[name][0]) if name in stored else None
        cursor, _ = self._cells.cursors([name]).get(name, (None, 0))
        if template is not None and cursor is not None and template.revision < cursor.revision:
            self._report(name, ProblemKind.ALTERED, _REPLAYED)
            template = None
        if template is None:
            self._store_problems()
            raise DefinitionError(f"there is no schedule '{name}' that can be run; see  holdfast cronjob list")
        return template.schedule

    def _tick(
        self,
        at: datetime | None,
        only: Collection[str],
        fire: Callable[[Sequence[str], datetime, "_Tick"], list[Happened]],
    ) -> list[Happened]:
        if self._loaded_at == float("-inf"):
            self._load()
        now = from_us(self._now_us()) if at is None else at
        now_us = to_us(now)
        due = sorted(
            (name for name, next_us in self._next.items() if next_us <= now_us and (not only or name in only)),
            key=lambda name: self._order.get(name, 0),
        )
        tick = _Tick(only)
        return [one for start in range(0, len(due), AT_ONCE) for one in fire(due[start : start + AT_ONCE], now, tick)]

    def _fire(self, names: Sequence[str], now: datetime, tick: "_Tick") -> list[Happened]:
        """Fire these schedules in one commit; one by one if that fails."""
        happened: list[Happened] = []
        for _ in range(ATTEMPTS):
            try:
                for part in _parts(self._plan(names, now, tick)):
                    happened += self._commit(part, now, tick)
            except (StateConflict, UnknownParent):
                # Another runner was faster, or the record of a parent has just been deleted.
                continue
            except BackendUnavailable:
                raise
            except Exception as problem:
                if len(names) == 1:
                    return [*happened, *self._failed(names[0], now, tick, problem)]
                break
            else:
                return happened
        if len(names) == 1:
            self._wake_at(names[0], to_us(now) + MICROSECONDS)
            return happened
        return [*happened, *(one for name in names for one in self._fire([name], now, tick))]

    def _failed(self, name: str, now: datetime, tick: "_Tick", problem: Exception) -> list[Happened]:
        """Give up the instants of a schedule if its definition is to blame. Otherwise they are fired later; the other
        schedules do not wait for it.
        """
        try:
            if isinstance(problem, _DEFINITION_FAILURES):
                return self._give_up(name, now, tick, problem)
        except BackendUnavailable:
            raise
        except Exception as another:
            problem = another
        self._report_once(name, f"schedule '{name}' cannot be fired: {problem}; retrying every {LONGEST_PAUSE_S:g} s")
        self._wake_at(name, to_us(now) + int(LONGEST_PAUSE_S) * MICROSECONDS)
        return []

    def _give_up(self, name: str, now: datetime, tick: "_Tick", problem: Exception) -> list[Happened]:
        """Record that the jobs of a schedule could not be enqueued."""
        reason = f"its job could not be enqueued: {problem}"
        self._report_once(name, f"schedule '{name}': {reason}")
        firings: list[_Firing] = []
        for one in self._plan([name], now, tick):
            decisions = merged(
                replace(decision, outcome=TickOutcome.MISSED, reason=reason, late_s=0.0, after=())
                if decision.outcome.has_job
                else decision
                for decision in one.decisions
            )
            failure = Problem(kind=ProblemKind.FAILED, message=reason, at_us=to_us(now))
            firings.append(one._replace(decisions=decisions, writes=[*one.writes, put_problem(name, failure)]))
        try:
            return self._commit(firings, now, tick)
        except StateConflict:
            return []

    def _commit(self, firings: Sequence[_Firing], now: datetime, tick: "_Tick") -> list[Happened]:
        envelopes: list[JobEnvelope] = []
        writes: list[CellWrite] = []
        for one in firings:
            runs = [decision for decision in one.decisions if decision.outcome.has_job]
            envelopes += [self._envelope(one.schedule, decision) for decision in runs]
            writes += [
                put_cursor(one.schedule.name, _moved(one, runs), if_version=one.version),
                *ledger_entries(one.schedule, one.decisions, to_us(now)),
                *one.writes,
            ]
        if writes:
            self._engine.accept(envelopes, writes=writes)
        happened: list[Happened] = []
        for one in firings:
            tick.decided[one.schedule.name] = one.decisions
            self._schedule_next(one.schedule, to_us(one.due.instants[-1]) if one.due.instants else to_us(now))
            happened += _happened(one)
        return happened

    def _envelope(self, schedule: Schedule, decision: Decision) -> JobEnvelope:
        definition = named_definition(schedule)
        delay_s = jitter_of(schedule, decision.instant) + (definition.delay or 0.0)
        definition = replace(
            definition,
            schedule=schedule.name,
            scheduled_for=decision.instant,
            ledger_ttl=ledger_ttl(schedule, decision.instant),
            delay=None,
            run_at=decision.instant + timedelta(seconds=delay_s),
            after=decision.after,
            on_parent_failure=decision.on_parent_failure,
        )
        if schedule.inline:
            definition = self._inline(schedule, definition)
        return self._engine.envelopes.make(definition, id=job_id_of(schedule.name, decision.instant))

    def _inline(self, schedule: Schedule, definition: JobDefinition) -> JobDefinition:
        retries = 0 if definition.max_retries is None else definition.max_retries
        return replace(definition, queue=self._inline_queue(schedule), max_retries=retries)

    def _inline_queue(self, schedule: Schedule) -> str:
        return inline_queue(self.environment if schedule.environments else "")

    # Planning.

    def _plan(self, names: Sequence[str], now: datetime, tick: "_Tick") -> list[_Firing]:
        """Plan the instants of these schedules, whose state is read again. Names are in the order of execution."""
        stored, cursors = self._cells.get(names), self._cells.cursors(names)
        switches = self._cells.switches(names)
        due: dict[str, tuple[Schedule, Due, Cursor, int]] = {}
        for name in names:
            if name not in stored:
                self._wake_at(name, None)
                continue
            template = self._open(name, stored[name][0])
            if template is None:
                continue
            self._stored[name] = template.schedule
            cursor, version = cursors.get(name, (None, 0))
            if cursor is None:
                # It was deleted or damaged: what was due before is unknown.
                cursor = Cursor(through_us=to_us(now), revision=template.revision)
                due[name] = template.schedule, Due(instants=()), cursor, version
                continue
            if template.revision < cursor.revision:
                self._report(name, ProblemKind.ALTERED, _REPLAYED)
                continue
            cursor = replace(cursor, revision=template.revision)
            found = due_of(template.schedule, from_us(cursor.through_us), now)
            if found.instants:
                due[name] = template.schedule, found, cursor, version
            else:
                self._schedule_next(template.schedule, cursor.through_us)
        previous = self._previous([(name, cursor) for name, (_, _, cursor, _) in due.items()])
        parents = _Parents(self, tick, [(schedule, found) for schedule, found, _, _ in due.values()])
        firings: list[_Firing] = []
        for name, (schedule, found, cursor, version) in due.items():
            before, writes = previous.get(name) or (None, list[CellWrite]())
            vanished = stored[name][0].vanished_us is not None
            refusal = vanished_from(stored[name][0].source) if vanished else refusal_of(schedule, switches.get(name))
            try:
                decisions = plan(schedule, found, now, refusal=refusal, previous=before, parents=parents.run_of)
            except _ParentIsLater:
                self._wake_at(name, to_us(now) + MICROSECONDS)
                continue
            parents.planned[name] = decisions
            firings.append(_Firing(schedule, found, decisions, cursor, version, writes))
        self._add_problems(firings, now)
        return firings

    def _previous(self, cursors: Sequence[tuple[str, Cursor]]) -> dict[str, tuple[PreviousRun, list[CellWrite]]]:
        """The last run of each schedule, and the writes of results that no worker has stored: its job was cancelled
        by an operator or because a parent failed, or died without a settlement.
        """
        lasts = {name: cursor.last for name, cursor in cursors if cursor.last is not None}
        keys = {name: tick_key(name, last.instant_us) for name, last in lasts.items()}
        results = self._cells.results(list(keys.values()))
        without = [last.job_id for name, last in lasts.items() if keys[name] not in results]
        ended = self.schedules.ended(without)
        found: dict[str, tuple[PreviousRun, list[CellWrite]]] = {}
        for name, last in lasts.items():
            is_open = keys[name] not in results and last.job_id not in ended
            run = PreviousRun(instant=from_us(last.instant_us), job_id=last.job_id, is_open=is_open)
            writes: list[CellWrite] = []
            if (result := ended.get(last.job_id)) is not None:
                writes = [put_result(keys[name], result, ttl=ledger_ttl(self._stored[name], run.instant))]
            found[name] = run, writes
        return found

    def is_for_others(self, name: str) -> bool:
        """Whether only another program, such as a newer one, can read this schedule."""
        return name in self._unreadable

    def verified(self, name: str) -> Schedule | None:
        """The stored schedule with this name, if this program may fire it."""
        return self._stored.get(name)

    def _add_problems(self, firings: Sequence[_Firing], now: datetime) -> None:
        """Report the instants that were missed, and their number."""
        missed = {one.schedule.name: count for one in firings if (count := _missed(one.decisions))}
        if not missed:
            return
        known = self._cells.problems(list(missed))
        for one in firings:
            name = one.schedule.name
            if name in missed:
                before = known.get(name)
                more = before.count if before is not None and before.kind is ProblemKind.MISSED else 0
                last = next(decision for decision in reversed(one.decisions) if _counts_as_missed(decision))
                problem = Problem(
                    kind=ProblemKind.MISSED, message=last.reason, at_us=to_us(last.instant), count=missed[name] + more
                )
                one.writes.append(put_problem(name, problem))


class _Tick:
    """One tick: the schedules that it is limited to, if any, and what was decided for those that were committed."""

    def __init__(self, only: Collection[str]) -> None:
        self.only = frozenset(only)
        self.decided: dict[str, list[Decision]] = {}


class _Parents:
    """The runs of parents at the instants of their children: in this commit, in this tick, or in the ledger."""

    def __init__(self, runner: CronRunner, tick: _Tick, due: Iterable[tuple[Schedule, Due]]) -> None:
        self.planned: dict[str, list[Decision]] = {}
        self._runner = runner
        self._tick = tick
        asked: dict[str, tuple[str, datetime]] = {}
        for schedule, found in due:
            kept = schedule.catch_up_limit if schedule.catch_up is CatchUp.ALL else 1
            for parent in schedule.depends_on:
                for instant in found.instants[-kept:]:
                    asked[tick_key(parent, to_us(instant))] = parent, instant
        cells = runner.schedules.cells
        self._cursors: Mapping[str, tuple[Cursor | None, int]] = {}
        self._ticks: Mapping[str, Tick] = {}
        self._results: Mapping[str, RunResult] = {}
        self._ended: Mapping[str, RunResult | None] = {}
        if asked:
            self._cursors = cells.cursors(list(dict.fromkeys(parent for parent, _ in asked.values())))
            self._ticks = cells.ticks_at(list(asked))
            self._results = cells.results(list(self._ticks))
            ids = [one.job_id for key, one in self._ticks.items() if one.job_id and key not in self._results]
            self._ended = runner.schedules.ended(ids)

    def run_of(self, name: str, instant: datetime) -> ParentRun:
        """The parent's run at this instant."""
        if self._tick.only and name not in self._tick.only:
            return None
        parent = self._runner.verified(name)
        if parent is None:
            if self._runner.is_for_others(name):
                raise _ParentIsLater
            return Refusal("it does not exist, or could not be verified")
        if not parent.runs_in(self._runner.environment) or not parent.has(instant):
            return None
        for decided in (self.planned, self._tick.decided):
            decision = decision_at(decided.get(name, ()), instant)
            if decision is not None:
                return WaitFor(job_id_of(name, instant)) if decision.outcome.has_job else Refusal(decision.reason)
        return self._in_ledger(name, instant)

    def _in_ledger(self, name: str, instant: datetime) -> ParentRun:
        key = tick_key(name, to_us(instant))
        tick = self._ticks.get(key)
        if tick is None:
            cursor, _ = self._cursors.get(name, (None, 0))
            if cursor is not None and cursor.through_us < to_us(instant):
                raise _ParentIsLater
            return Refusal("it has no entry in the ledger")
        if tick.job_id is None:
            return Refusal(tick.reason)
        result = self._results.get(key)
        if result is None and tick.job_id not in self._ended:
            return WaitFor(tick.job_id)
        result = result or self._ended[tick.job_id]
        if result is None or result.state is JobState.COMPLETED:
            return None
        return Refusal(f"its job is {result.state}")


def _parts(firings: Sequence[_Firing]) -> Iterable[list[_Firing]]:
    """The firings, in parts that are small enough for one commit."""
    part: list[_Firing] = []
    jobs = 0
    for one in firings:
        runs = sum(decision.outcome.has_job for decision in one.decisions)
        if part and jobs + runs > _MOST_JOBS:
            yield part
            part, jobs = [], 0
        part.append(one)
        jobs += runs
    yield part


def _moved(firing: _Firing, runs: Sequence[Decision]) -> Cursor:
    """The cursor after the last instant that is due."""
    cursor = firing.cursor
    if runs:
        last = runs[-1].instant
        job_id = job_id_of(firing.schedule.name, last)
        cursor = replace(cursor, last=LastRun(instant_us=to_us(last), job_id=job_id))
    return replace(cursor, through_us=to_us(firing.due.instants[-1])) if firing.due.instants else cursor


def _happened(firing: _Firing) -> list[Happened]:
    name = firing.schedule.name
    return [
        Happened(
            schedule=name,
            instant=one.instant,
            outcome=one.outcome,
            reason=one.reason,
            late_s=one.late_s,
            job_id=job_id_of(name, one.instant) if one.outcome.has_job else None,
            first=one.first,
            count=one.count,
        )
        for one in firing.decisions
    ]


def _missed(decisions: Iterable[Decision]) -> int:
    return sum(one.count for one in decisions if _counts_as_missed(one))


def _counts_as_missed(decision: Decision) -> bool:
    """Whether to report it to the operator. If the next run was due within minutes, it replaced this one."""
    return decision.outcome is TickOutcome.MISSED and decision.reason != SUPERSEDED


def inline_queue(environment: str = "") -> str:
    """The private queue of the jobs that runners of this environment run."""
    return f"{INLINE_QUEUE}-{environment}" if environment else INLINE_QUEUE
