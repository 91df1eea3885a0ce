"""`Scheduler`: the registry of the schedules that an application defines in its code."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from holdfast.cron.schedule import Schedule, ScheduleBuilder, check_parents
from holdfast.definition import JobDefinition, definition_of
from holdfast.errors import DefinitionError


class Scheduler:
    """Collects schedules, and checks them together: names, parents and cycles.

    `backend_of` returns the backend of a queue: parents and children are enqueued in one commit.
    """

    def __init__(self, backend_of: Callable[[str | None], str] = lambda _: "") -> None:
        self._backend_of = backend_of
        self._builders: list[ScheduleBuilder] = []
        self._added: list[Schedule] = []

    def define(self, handler: str, payload: object = None) -> ScheduleBuilder:
        """Describe a schedule step by step, for the job of this handler with this payload."""
        return self.schedule(definition_of(handler, payload, {}))

    def schedule(self, definition: JobDefinition) -> ScheduleBuilder:
        """Describe a schedule step by step, for a job that is already defined: `report.define("a")`."""
        builder = ScheduleBuilder(definition)
        self._builders.append(builder)
        return builder

    def add(self, schedule: Schedule) -> None:
        """Add a complete schedule."""
        self._added.append(schedule)

    def clear(self) -> None:
        """Remove all schedules."""
        self._builders.clear()
        self._added.clear()

    def definitions(self) -> tuple[Schedule, ...]:
        """All schedules, in the order in which they were defined, checked."""
        schedules = (*self._added, *(builder.schedule() for builder in self._builders))
        by_name: dict[str, Schedule] = {}
        for one in schedules:
            if by_name.setdefault(one.name, one) is not one:
                raise DefinitionError(
                    f"two schedules are named '{one.name}'; give one of them another name with named(...)"
                )
        for one in schedules:
            self._check_parents(one, by_name)
        execution_order(schedules)
        return schedules

    def execution_order(self) -> tuple[Schedule, ...]:
        """All schedules, parents before their children."""
        return execution_order(self.definitions())

    def _check_parents(self, schedule: Schedule, known: Mapping[str, Schedule]) -> None:
        try:
            check_parents(schedule.depends_on, list(known))
        except DefinitionError as problem:
            raise DefinitionError(f"schedule '{schedule.name}': {problem}") from None
        ours = self._backend_of(schedule.definition.queue)
        for parent in schedule.depends_on:
            theirs = self._backend_of(known[parent].definition.queue)
            if ours != theirs:
                raise DefinitionError(
                    f"schedule '{schedule.name}' is in backend '{ours}' and cannot depend on '{parent}', which is in "
                    f"backend '{theirs}'; use queues in the same backend"
                )


def execution_order(schedules: Iterable[Schedule]) -> tuple[Schedule, ...]:
    """The schedules, parents before their children. Parents that are not among them do not count."""
    by_name = {one.name: one for one in schedules}
    graph: dict[str, Sequence[str]] = {
        name: [parent for parent in one.depends_on if parent in by_name] for name, one in by_name.items()
    }
    try:
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as problem:
        path = " → ".join(reversed(problem.args[1]))
        raise DefinitionError(f"these schedules depend on each other, so none of them could run: {path}") from None
    return tuple(by_name[name] for name in order)
