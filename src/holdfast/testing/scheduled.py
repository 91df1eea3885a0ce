"""`ScheduledRuns`: the schedules of an application under test. They fire on the clock of the test."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.cron.runner import CronRunner
from holdfast.cron.schedule import Schedule
from holdfast.cron.stored import ScheduleView
from holdfast.cron.zones import end_of_gap, occurrences, zone_named
from holdfast.spelling import did_you_mean

_SHOWN: Final = 3


class ScheduledRuns:
    """Fires the schedules of an application, as a worker would, and finds out when they would run."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._runners: dict[str, CronRunner] = {}

    def runner(self, environment: str | None) -> CronRunner:
        """The runner of an environment. It has stored the schedules that the code and the settings define."""
        environment = self._app.settings.environment if environment is None else environment
        runner = self._runners.get(environment)
        if runner is None:
            runner = self._runners[environment] = self._app.cron_runner(environment=environment)
            # In the kit, all backends are one.
            others = [self._app.cron_runner(name).definitions for name in self._app.deployment.others]
            runner.definitions = tuple(
                replace(one, schedules=(*one.schedules, *(each for more in others for each in more[at].schedules)))
                for at, one in enumerate(runner.definitions)
            )
        runner.prepare()
        return runner

    def problem(self, name: str, at: datetime | None, environment: str | None) -> str:
        """The reason why a schedule does not run, or not at this time; empty if it does."""
        runner = self.runner(environment)
        views = {view.name: view for view in runner.schedules.views()}
        if name not in views:
            hint = did_you_mean(name, views) or f"known schedules: {', '.join(views) or 'none'}"
            return f"there is no schedule '{name}'; {hint}"
        view, schedule = views[name], views[name].schedule
        if schedule is None:
            return f"schedule '{name}' cannot be read"
        if view.refusal:
            return f"schedule '{name}' does not run: {view.refusal}"
        if not schedule.runs_in(runner.environment):
            return f"schedule '{name}' runs only in {', '.join(schedule.environments)}, not in '{runner.environment}'"
        if at is not None and not schedule.has(at := in_zone(at, schedule)):
            shown = at.astimezone(zone_named(schedule.timing.zone)).isoformat(sep=" ")
            instead = self._next(schedule, view, runner)
            return f"schedule '{name}' is not due at {shown}; its next times are {instead}"
        return ""

    def find(self, name: str) -> Schedule:
        """A schedule that exists."""
        [view] = self.runner(None).schedules.views([name])
        assert view.schedule is not None  # `problem` has found none
        return view.schedule

    def _next(self, schedule: Schedule, view: ScheduleView, runner: CronRunner) -> str:
        zone = zone_named(schedule.timing.zone)
        shown = (one.astimezone(zone).isoformat(sep=" ") for one in _following(schedule, view, runner))
        return ", ".join(shown) or "none"


def _following(schedule: Schedule, view: ScheduleView, runner: CronRunner) -> Iterator[datetime]:
    instant: datetime | None = view.through or runner.schedules.now()
    for _ in range(_SHOWN):
        instant = None if instant is None else schedule.next_after(instant)
        if instant is not None:
            yield instant


def in_zone(moment: datetime, schedule: Schedule) -> datetime:
    """The time; without an offset, it is in the time zone of the schedule."""
    if moment.tzinfo is not None:
        return moment
    zone = zone_named(schedule.timing.zone)
    found: Sequence[datetime] = occurrences(moment, zone) or (end_of_gap(moment, zone),)
    return found[0]
