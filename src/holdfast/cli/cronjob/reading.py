"""The schedules that `holdfast cronjob` shows: those in a backend, and those in the settings that are not there yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from holdfast.cli.failing import NOT_FOUND
from holdfast.config.schedules import configured_schedules
from holdfast.cron.stored import Schedules, ScheduleView
from holdfast.deployment import DEFAULT
from holdfast.queues.signing import Unsigned
from holdfast.spelling import did_you_mean
from holdfast.state.schedules import ProblemKind
from holdfast.values import ScheduleSource

if TYPE_CHECKING:
    from holdfast.cli.options import Site

NOT_STORED: Final = "no runner has stored it yet"
# The search for the next instants of a schedule stops here.
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)


class NoSuchSchedule(click.ClickException):
    """No schedule has that name."""

    exit_code = NOT_FOUND


class Known(Struct, frozen=True, kw_only=True):
    """A schedule as it is now: whether it runs here, and when."""

    view: ScheduleView
    now: datetime
    environment: str = ""
    is_stored: bool = True

    @property
    def reason(self) -> str:
        """The reason why it does not run here; empty if it does."""
        schedule, problem = self.view.schedule, self.view.problem
        if problem is not None and problem.kind in (ProblemKind.ALTERED, ProblemKind.UNREADABLE):
            return f"{problem.kind}: {problem.message}"
        if schedule is None:
            return "unreadable"
        if self.view.refusal:
            return self.view.refusal
        if not schedule.runs_in(self.environment):
            return f"limited to {', '.join(schedule.environments)}"
        return "" if self.is_stored else NOT_STORED

    @property
    def runs(self) -> bool:
        return not self.reason

    @property
    def next_at(self) -> datetime | None:
        """The next instant at which it runs; in the past if it is due."""
        schedule = self.view.schedule
        if schedule is None or not self.runs:
            return None
        return schedule.next_after(self.view.through or self.now)


def schedules_in(site: Site) -> Schedules:
    """The schedules in a backend, to be read, switched or removed, which does not require a key."""
    return Schedules(site.engine, Unsigned())


def known_schedules(
    site: Site, names: Sequence[str] | None = None, *, url: str | None = None, history: int = 0
) -> list[Known]:
    """The schedules with these names, or all, by name. Schedules in the settings are included if no URL was given."""
    schedules = schedules_in(site)
    settings, now = site.deployment.settings, schedules.now()
    views = schedules.views(names, history=history)
    known = [Known(view=view, now=now, environment=settings.environment) for view in views]
    stored = {view.name for view in views}
    for one in configured_schedules(settings) if url is None else ():
        here = site.deployment.name_for(one.definition.queue) == DEFAULT
        if here and one.name not in stored and (names is None or one.name in names):
            view = ScheduleView(name=one.name, schedule=one, source=ScheduleSource.CONFIG)
            known.append(Known(view=view, now=now, environment=settings.environment, is_stored=False))
    return sorted(known, key=lambda one: one.view.name)


def known_schedule(site: Site, name: str, *, url: str | None, history: int = 0) -> Known:
    """The schedule with this name, or an error that suggests another one."""
    found = known_schedules(site, [name], url=url, history=history)
    if not found:
        raise no_such_schedule(name, [one.view.name for one in known_schedules(site, url=url)])
    return found[0]


def no_such_schedule(name: str, known: Sequence[str]) -> NoSuchSchedule:
    """The error for a name that no schedule has."""
    hint = did_you_mean(name, known) or "see  holdfast cronjob list"
    return NoSuchSchedule(f"there is no schedule '{name}'; {hint}")
