"""Finds problems with the schedules of a backend, for `health` and `doctor`."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from holdfast.cli.words import command, instant
from holdfast.clock import from_us
from holdfast.cron.planning import is_overdue
from holdfast.cron.schedule import check_parents
from holdfast.cron.scheduler import execution_order
from holdfast.cron.stored import Schedules, ScheduleView
from holdfast.errors import DefinitionError
from holdfast.queues.contract import Engine
from holdfast.queues.signing import Unsigned
from holdfast.state.schedules import Problem, ProblemKind
from holdfast.units import counted

_NAMED: Final = 5


class Trouble(Struct, frozen=True, kw_only=True):
    """A problem with schedules, and its fix. A warning does not stop a run."""

    message: str
    advice: str
    is_warning: bool = False


class Condition(Struct, frozen=True, kw_only=True):
    """The numbers of schedules in a backend that run and that do not, and their problems."""

    on: int
    off: int
    troubles: tuple[Trouble, ...]

    def __bool__(self) -> bool:
        """Whether there are any schedules."""
        return bool(self.on + self.off)

    def __str__(self) -> str:
        return f"{self.on:,} on{f', {self.off:,} off' if self.off else ''}"


def condition_of(engine: Engine, environment: str) -> Condition:
    """The condition of all schedules in a backend. Those of other environments need no runner in this one."""
    schedules = Schedules(engine, Unsigned())
    views = schedules.views()
    if not views:
        return Condition(on=0, off=0, troubles=())
    now = schedules.now()
    unread = (ProblemKind.ALTERED, ProblemKind.UNREADABLE)
    broken = {view.name for view in views if view.problem is not None and view.problem.kind in unread}
    off = sum(bool(view.refusal) or view.name in broken or view.schedule is None for view in views)
    overdue = [
        view
        for view in views
        if view.schedule is not None and view.through is not None and view.name not in broken
        if view.schedule.runs_in(environment) and is_overdue(view.schedule, view.through, now)
    ]
    each = (one for view in views for one in _of(view))
    return Condition(on=len(views) - off, off=off, troubles=(*_waiting(views), *_not_running(overdue), *each))


def _waiting(views: Sequence[ScheduleView]) -> Iterator[Trouble]:
    """Dependencies with which no run is possible. Programs store their schedules without knowing all of the others."""
    names = [view.name for view in views]
    schedules = [view.schedule for view in views if view.schedule is not None]
    for one in schedules:
        try:
            check_parents(one.depends_on, names)
        except DefinitionError as problem:
            yield Trouble(
                message=f"{one.name} is always skipped: {problem}", advice="add that schedule, or change this one"
            )
    try:
        execution_order(schedules)
    except DefinitionError as problem:
        yield Trouble(message=str(problem), advice="change the dependencies of one of them")


def _not_running(overdue: Sequence[ScheduleView]) -> Iterator[Trouble]:
    if overdue:
        more = f" and {len(overdue) - _NAMED:,} more" if len(overdue) > _NAMED else ""
        names = f"{', '.join(view.name for view in overdue[:_NAMED])}{more}"
        yield Trouble(
            message=f"no runner is running: {counted(len(overdue), 'schedule')} overdue ({names})",
            advice="start a worker, or run  holdfast cronjob daemon",
        )


def _of(view: ScheduleView) -> Iterator[Trouble]:
    history = command("holdfast", "cronjob", "history", view.name)
    if view.problem is not None:
        yield Trouble(message=_in_words(view.name, view.problem), advice=_advice(view, view.problem, history))
    elif view.schedule is None:
        yield Trouble(
            message=f"{view.name} does not run: it cannot be read",
            advice=f"add it again, or remove it:  {command('holdfast', 'cronjob', 'remove', view.name)}",
        )
    if view.vanished_at is not None:
        yield Trouble(
            message=f"{view.name} does not run: it is {view.refusal} (since {instant(view.vanished_at)})",
            advice=f"remove it:  {command('holdfast', 'cronjob', 'remove', view.name)}",
            is_warning=True,
        )


def _in_words(name: str, problem: Problem) -> str:
    at = instant(from_us(problem.at_us))
    match problem.kind:
        case ProblemKind.MISSED:
            return f"{name} missed {counted(problem.count, 'run')}, the last at {at}: {problem.message}"
        case ProblemKind.FAILED:
            return f"{name} failed at {at}: {problem.message}"
        case _:
            return f"{name} does not run, because it was {problem.kind}: {problem.message}"


def _advice(view: ScheduleView, problem: Problem, history: str) -> str:
    match problem.kind:
        case ProblemKind.MISSED | ProblemKind.FAILED:
            return f"see  {history}  and run it now with  {command('holdfast', 'cronjob', 'run', view.name)}"
        case _:
            return (
                "find out who can write to the database; then restart the program that defines it, or add it again with"
                "  holdfast cronjob add"
            )
