"""`DeclaredSchedules`, which is `hf.schedules`: the schedules that an application defines in its code.
`NamedSchedule`, which is `hf.schedule(name)`: one that is created and changed at run time.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from holdfast.definition import JobDefinition, definition_of

if TYPE_CHECKING:
    from holdfast.cron.schedule import Schedule, ScheduleBuilder
    from holdfast.cron.scheduler import Scheduler
    from holdfast.cron.stored import Schedules

# The rest of this package is imported when it is needed: most programs only enqueue jobs.

P = ParamSpec("P")
P_contra = ParamSpec("P_contra")
Register = TypeVar("Register", bound=Callable[["Scheduler"], object])


class DeclaredSchedules:
    """Schedules that are defined with `@hf.schedules` or `@hf.job(cron=...)`.

    The decorated functions are called once, when the schedules are needed, never at import. `origin` names the
    application: schedules of another one with the same name are not replaced.
    """

    def __init__(self, backend_of: Callable[[str | None], str]) -> None:
        self.origin = ""
        self._backend_of = backend_of
        self._added: list[Schedule] = []
        self._registers: list[Callable[[Scheduler], object]] = []
        self._scheduler: Scheduler | None = None
        self._lock = threading.Lock()

    def __call__(self, register: Register) -> Register:
        """Define schedules in this function: `@hf.schedules` above `def register(scheduler): ...`."""
        self._registers.append(register)
        self._name_origin(register)
        return register

    def add(self, definition: JobDefinition, cron: str, timezone: str | None, function: object) -> None:
        """Define the schedule of a job that is decorated with `@hf.job(cron=...)`."""
        from holdfast.cron.schedule import ScheduleBuilder

        builder = ScheduleBuilder(definition).cron(cron)
        self._added.append((builder if timezone is None else builder.timezone(timezone)).schedule())
        self._name_origin(function)

    def definitions(self) -> "tuple[Schedule, ...]":
        """All schedules, checked together."""
        from holdfast.cron.scheduler import Scheduler

        with self._lock:
            if self._scheduler is None:
                scheduler = Scheduler(self._backend_of)
                for schedule in self._added:
                    scheduler.add(schedule)
                for register in self._registers:
                    register(scheduler)
                self._scheduler = scheduler
        return self._scheduler.definitions()

    def _name_origin(self, function: object) -> None:
        if not self.origin:
            self.origin = str(getattr(function, "__module__", "")).partition(".")[0]


class Definer(Protocol[P_contra]):
    """A job that defines its calls."""

    def define(self, *args: P_contra.args, **kwargs: P_contra.kwargs) -> JobDefinition: ...


class ScheduleStore(Protocol):
    """An application that stores schedules."""

    def save_schedule(self, schedule: "Schedule") -> None: ...

    def schedules_with(self, name: str) -> "Schedules":
        """The schedules of the backend that has the one with this name, or the default one."""
        ...


class NamedSchedule:
    """A schedule that is managed at run time, without a deployment."""

    def __init__(self, name: str, store: ScheduleStore) -> None:
        self.name = name
        self._store = store

    def job(self, job: Definer[P], *args: P.args, **kwargs: P.kwargs) -> "ScheduleBuilder":
        """Describe when to enqueue this call of a job; `save()` stores the schedule."""
        return self._builder(job.define(*args, **kwargs))

    def define(self, handler: str, payload: object = None) -> "ScheduleBuilder":
        """Describe when to enqueue a job of this handler; `save()` stores the schedule."""
        return self._builder(definition_of(handler, payload, {}))

    def pause(self, reason: str = "", *, by: str = "") -> None:
        """Stop the schedule. Its instants are recorded as skipped until it is resumed."""
        self._store.schedules_with(self.name).disable(self.name, reason=reason, by=by)

    def resume(self, reason: str = "", *, by: str = "") -> None:
        """Let the schedule run again."""
        self._store.schedules_with(self.name).enable(self.name, reason=reason, by=by)

    def remove(self) -> bool:
        """Remove the schedule; False if there is none."""
        return self._store.schedules_with(self.name).remove(self.name)

    def _builder(self, definition: JobDefinition) -> "ScheduleBuilder":
        from holdfast.cron.schedule import ScheduleBuilder

        return ScheduleBuilder(definition, save=self._store.save_schedule).named(self.name)
