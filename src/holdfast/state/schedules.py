"""`ScheduleCells`: the stored state of schedules. Each schedule has a template, a cursor and its ledger.

Every instant up to the cursor is accounted for. To fire, a runner moves the cursor, on the condition that it has not
changed, in the commit that stores the job and the entry in the ledger. So each instant is fired once, no matter how
many runners there are.

The worker that ends the job stores its result next to the entry, in the commit of the settlement.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from holdfast.clock import from_us, to_us
from holdfast.values import (
    Abandon,
    Ack,
    CancelJob,
    Cell,
    CellWrite,
    Drop,
    JobState,
    Put,
    ScheduleSource,
    Settlement,
    TickOutcome,
    Write,
)

if TYPE_CHECKING:
    from holdfast.codec import JobMessage
    from holdfast.queues.contract import SharedState

SCHEDULES: Final = "schedules"
CURSORS: Final = "schedule-cursors"
SWITCHES: Final = "schedule-switches"
TICKS: Final = "schedule-ticks"
RESULTS: Final = "schedule-results"
PROBLEMS: Final = "schedule-problems"
BUILDS: Final = "schedule-builds"
CHANGES: Final = "schedule-changes"

DEFAULT_LEDGER_S: Final = 30 * 86_400.0
PROBLEM_SHOWN_S: Final = 86_400.0
BUILD_REMEMBERED_S: Final = 30 * 86_400.0
_CHANGES_KEY: Final = "all"
_LAST_US: Final = 2**63 - 1
_AT_ONCE: Final = 500
_REASON_LIMIT: Final = 500

S = TypeVar("S", bound=Struct)


class StoredSchedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as its cell stores it: the signed template, and where it was defined, which is not signed.

    `origin` is the application or file that defines it, `build` the version of that application. A schedule has
    vanished if the newest build of its application no longer defines it.
    """

    template: str
    source: ScheduleSource
    origin: str = ""
    build: str = ""
    vanished_us: int | None = None


class LastRun(Struct, frozen=True, kw_only=True):
    """The last instant that became a job."""

    instant_us: int
    job_id: str


class Cursor(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every instant up to and including `through_us` is accounted for. `revision` is that of the newest template."""

    through_us: int
    revision: int = 0
    last: LastRun | None = None


class Switch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's decision, which overrides the definition."""

    enabled: bool
    reason: str = ""
    by: str = ""
    at_us: int = 0


class Tick(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in the ledger: what a schedule did at an instant, or at `count` instants from `first_us` on, up to this
    one.
    """

    outcome: TickOutcome
    late_s: float = 0.0
    reason: str = ""
    job_id: str | None = None
    first_us: int | None = None
    count: int = 1
    at_us: int = 0


class RunResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of the job of an entry: completed, dead or cancelled."""

    state: JobState
    finished_us: int
    reason: str = ""


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """An entry in the ledger, with the result of its job if that has ended."""

    instant: datetime
    tick: Tick
    result: RunResult | None = None


class ProblemKind(StrEnum):
    """The kind of a problem with a schedule: it should have run but did not; its template was changed by someone
    without the key; this program cannot read it, but another one may; or its job could not be enqueued.
    """

    MISSED = "missed"
    ALTERED = "altered"
    UNREADABLE = "unreadable"
    FAILED = "failed"


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem with a schedule that an operator should know about, and how often it occurred."""

    kind: ProblemKind
    message: str
    at_us: int
    count: int = 1


class Build(Struct, frozen=True, kw_only=True):
    """A version of an application that has schedules in its code, and when it was first seen."""

    since_us: int


class ScheduleCells:
    """The cells of all schedules in a backend."""

    def __init__(self, state: "SharedState") -> None:
        self.state = state

    def all(self) -> dict[str, StoredSchedule]:
        """All schedules by name. One whose cell cannot be read has an empty template, which never verifies."""
        return {cell.key: _stored(cell.value) for cell in self.state.read_all(SCHEDULES)}

    def get(self, names: Sequence[str]) -> dict[str, tuple[StoredSchedule, int]]:
        """These schedules, with the versions of their cells."""
        return {cell.key: (_stored(cell.value), cell.version) for cell in self._read(SCHEDULES, names)}

    def cursors(self, names: Sequence[str]) -> dict[str, tuple[Cursor | None, int]]:
        """The cursors of these schedules, with the versions of their cells; None if a cursor is damaged."""
        return {cell.key: (_decode(cell.value, Cursor), cell.version) for cell in self._read(CURSORS, names)}

    def switches(self, names: Sequence[str] | None = None) -> dict[str, Switch]:
        """The decisions of operators, for these schedules or for all."""
        return self._values(SWITCHES, Switch, names)

    def problems(self, names: Sequence[str] | None = None) -> dict[str, Problem]:
        """The problems of these schedules, or of all."""
        return self._values(PROBLEMS, Problem, names)

    def changes(self) -> int:
        """A number that increases with each change of a schedule or switch. Reading it is cheap."""
        cells = self.state.read(CHANGES, [_CHANGES_KEY])
        return cells[0].version if cells else 0

    def ticks(self, name: str, limit: int) -> list[LedgerEntry]:
        """The last entries of a schedule's ledger, newest first."""
        prefix = f"{name}@"
        entries: dict[str, LedgerEntry] = {}
        for cell in self.state.read(TICKS, after=prefix, limit=limit):
            instant_us = _instant_us(cell.key.removeprefix(prefix)) if cell.key.startswith(prefix) else None
            tick = _decode(cell.value, Tick)
            if instant_us is not None and tick is not None:
                entries[cell.key] = LedgerEntry(instant=from_us(instant_us), tick=tick)
        results = self.results(list(entries))
        return [
            LedgerEntry(instant=one.instant, tick=one.tick, result=results.get(key)) for key, one in entries.items()
        ]

    def ticks_at(self, keys: Sequence[str]) -> dict[str, Tick]:
        """The entries under these keys: see `tick_key`."""
        return self._values(TICKS, Tick, keys)

    def results(self, keys: Sequence[str]) -> dict[str, RunResult]:
        """The results under the keys of these entries."""
        return self._values(RESULTS, RunResult, keys)

    def builds(self, origin: str) -> dict[str, tuple[Build, int]]:
        """The builds of an application, with the versions of their cells: the engine's time of the last beat."""
        found = ((cell, _decode(cell.value, Build)) for cell in self.state.read_all(BUILDS))
        prefix = f"{origin}/"
        return {
            cell.key.removeprefix(prefix): (build, cell.version)
            for cell, build in found
            if build is not None and cell.key.startswith(prefix)
        }

    def _values(self, kind: str, value: type[S], keys: Sequence[str] | None) -> dict[str, S]:
        cells = self.state.read_all(kind) if keys is None else self._read(kind, keys)
        found = ((cell.key, _decode(cell.value, value)) for cell in cells)
        return {key: one for key, one in found if one is not None}

    def _read(self, kind: str, keys: Sequence[str]) -> Iterable[Cell]:
        for start in range(0, len(keys), _AT_ONCE):
            yield from self.state.read(kind, keys[start : start + _AT_ONCE])


def tick_key(name: str, instant_us: int) -> str:
    """The key of an entry in the ledger. Keys are ordered by their bytes, so the newest entry comes first."""
    return f"{name}@{_LAST_US - instant_us:019d}"


def put_schedule(name: str, stored: StoredSchedule, *, if_version: int) -> CellWrite:
    """The write that stores a schedule, if its cell still has this version."""
    return _put(SCHEDULES, name, stored, if_version=if_version)


def note_change() -> CellWrite:
    """The write that lets runners notice that schedules have changed."""
    return Put(kind=CHANGES, key=_CHANGES_KEY)


def put_cursor(name: str, cursor: Cursor, *, if_version: int | None = None) -> CellWrite:
    """The write that moves a cursor; with `if_version`, only if it has not moved."""
    return _put(CURSORS, name, cursor, if_version=if_version)


def put_tick(name: str, instant_us: int, tick: Tick, *, ttl: float) -> CellWrite:
    """The write that adds an entry to the ledger."""
    tick = msgspec.structs.replace(tick, reason=tick.reason[:_REASON_LIMIT])
    return _put(TICKS, tick_key(name, instant_us), tick, ttl=ttl)


def put_result(key: str, result: RunResult, *, ttl: float) -> CellWrite:
    """The write that stores the result of the job of an entry."""
    result = msgspec.structs.replace(result, reason=result.reason[:_REASON_LIMIT])
    return _put(RESULTS, key, result, ttl=ttl)


def put_problem(name: str, problem: Problem) -> CellWrite:
    """The write that reports a problem. It is shown for a day after it was last seen."""
    return _put(PROBLEMS, name, problem, ttl=PROBLEM_SHOWN_S)


def put_switch(name: str, switch: Switch) -> list[Write]:
    """The writes that enable or disable a schedule."""
    return [_put(SWITCHES, name, switch), note_change()]


def drop_problem(name: str) -> CellWrite:
    """The write that deletes the problem of a schedule."""
    return Drop(kind=PROBLEMS, key=name)


def put_build(origin: str, build: str, since_us: int) -> CellWrite:
    """The write that reports that a build is in use."""
    return _put(BUILDS, f"{origin}/{build}", Build(since_us=since_us), ttl=BUILD_REMEMBERED_S)


def removal(name: str) -> list[Write]:
    """The writes that remove a schedule. Its ledger stays until it expires."""
    return [*(Drop(kind=kind, key=name) for kind in (SCHEDULES, CURSORS, SWITCHES, PROBLEMS)), note_change()]


def result_of_run(message: "JobMessage", settlement: Settlement) -> tuple[CellWrite, ...]:
    """The write that stores the result of a scheduled job in the commit of the settlement that ends it."""
    record = settlement.record
    match settlement:
        case Ack():
            state, reason = JobState.COMPLETED, ""
        case Abandon(reason=why):
            error = None if record is None else record.error
            state, reason = JobState.DEAD, str(why) if error is None else error.line
        case CancelJob(reason=why, expired=expired):
            state, reason = JobState.CANCELLED, "expired" if expired else why
        case _:
            return ()
    ended_us = to_us(settlement.lease.claimed_at) if record is None else record.ended_us
    return ledger_result(message, RunResult(state=state, finished_us=ended_us, reason=reason))


def ledger_result(message: "JobMessage", result: RunResult) -> tuple[CellWrite, ...]:
    """The write that stores the result of a job, if a schedule created it."""
    if message.schedule is None or message.scheduled_for is None:
        return ()
    key = tick_key(message.schedule, to_us(message.scheduled_for))
    try:
        return (put_result(key, result, ttl=message.ledger_ttl or DEFAULT_LEDGER_S),)
    except ValueError:  # another program has signed a name that is not a valid key; the job itself is valid
        return ()


def _put(kind: str, key: str, value: Struct, *, ttl: float | None = None, if_version: int | None = None) -> Put:
    return Put(kind=kind, key=key, value=msgspec.json.encode(value), ttl=ttl, if_version=if_version)


def _stored(value: bytes) -> StoredSchedule:
    return _decode(value, StoredSchedule) or StoredSchedule(template="", source=ScheduleSource.STORED)


def _decode(value: bytes, kind: type[S]) -> S | None:
    """The value of a cell; None if it is damaged, or from a newer version that this one cannot read."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _instant_us(digits: str) -> int | None:
    return _LAST_US - int(digits) if len(digits) == 19 and digits.isascii() and digits.isdigit() else None
