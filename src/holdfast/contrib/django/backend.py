"""`HoldfastBackend`: stores Django's tasks as jobs, which Holdfast's workers run (`running.py`)."""

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from holdfast.app import Holdfast
from holdfast.config.declared import undeclared
from holdfast.contrib.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from holdfast.contrib.django.place import BackendPlace, place_of
from holdfast.contrib.django.results import META, Call, EnqueuedTask, new_result, result_of_job, utc
from holdfast.contrib.django.running import handler_of
from holdfast.definition import JobDefinition, JobOptions, definition_of
from holdfast.definition.definition import check_queue
from holdfast.errors import DefinitionError, HoldfastError, JobCancelled, JobFailed
from holdfast.queues.engines.memory.sync import SyncEngine
from holdfast.queues.envelope import JobIds

APP: Final = "holdfast.contrib.django"
NEUTRAL: Final = 5
_new_id = JobIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldfastTask(Task):  # type: ignore[type-arg] # it is not generic in Django 6
    """A task with options: `@task(max_retries=5, timeout=60)`. None = as the backend is configured."""

    max_retries: int | None = None
    timeout: float | None = None

    def using(self, **options: Any) -> "HoldfastTask":
        """The same task with other options: Django's or those of this class."""
        changes = {name: value for name, value in options.items() if value is not None}
        return replace(self, **changes)


class HoldfastBackend(BaseTaskBackend):
    """Stores tasks as jobs, in one of Django's databases or at a URL."""

    task_class = HoldfastTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.enqueue_on_commit: bool = params.get("ENQUEUE_ON_COMMIT", True)
        self._place: BackendPlace | None = None

    @property
    def place(self) -> BackendPlace:
        """Where its jobs are stored. Determined again only if Django's database has changed, as in tests."""
        if self._place is None or not self._place.is_still_there():
            self._place = place_of(self.alias, self.options)
        return self._place

    @property
    def app(self) -> Holdfast:
        """Its Holdfast application. All threads share one, although each has its own backend object."""
        return _applications.of(self)

    def validate_task(self, task: "Task[..., Any]") -> None:
        super().validate_task(task)
        try:
            self._template(task)
        except HoldfastError as problem:
            raise InvalidTask(f"{task.module_path}: {problem}") from problem
        _tasks.setdefault(task.module_path, task)

    def enqueue(self, task: "Task[..., Any]", args: Iterable[Any], kwargs: Mapping[str, Any]) -> "TaskResult[Any]":
        """Store the task for a worker: in the caller's transaction, if there is one, so that both commit or neither."""
        self.validate_task(task)
        result = new_result(task, self.alias, Call(args=list(args), kwargs=dict(kwargs)))
        app, place = self.app, self.place
        engine = app.backend()
        if isinstance(engine, SyncEngine):
            return self._run_here(app, result)
        object.__setattr__(result, "id", _new_id())
        connection = connections[place.database or DEFAULT_DB_ALIAS]
        can_join = place.database is not None and engine.capabilities.transactional_enqueue
        if self.enqueue_on_commit and can_join and _is_in_transaction(connection):
            self._store(app, result, tx=connection)
        elif self.enqueue_on_commit and connection.in_atomic_block:
            connection.on_commit(partial(self._store, app, result))
        else:
            self._store(app, result)
        return result

    def get_result(self, result_id: str) -> "TaskResult[Any]":
        engine = self.app.backend()
        history = engine.get(result_id)
        if history is None:
            raise TaskResultDoesNotExist(result_id)
        task = self.task_of(history.job.job)
        if task is None:
            raise TaskResultDoesNotExist(
                f"{result_id} is a job of {history.job.job!r}, which is not a known task; import the module that "
                f"declares it, or add the module to TASKS[{self.alias!r}]['OPTIONS']['modules']"
            )
        return result_of_job(task, self.alias, history, engine)

    def task_of(self, key: str) -> "Task[..., Any] | None":
        """The task with this path, if a module declares one."""
        if key not in _tasks:
            self.discover()
        return _tasks.get(key)

    def discover(self) -> None:
        """Import the modules that declare tasks: `tasks` of each application, and those named in OPTIONS."""
        autodiscover_modules("tasks")
        names = [f"{config.name}.tasks" for config in apps.get_app_configs()]
        for name in self.options.get("modules", ()):
            import_module(name)
            names.append(name)
        # A task that was declared for another kind of backend may be enqueued to this one.
        for module in [sys.modules[name] for name in names if name in sys.modules]:
            found = [value for value in vars(module).values() if isinstance(value, Task)]
            _tasks.update({task.module_path: task for task in found if task.module_path not in _tasks})

    def worker_app(self) -> Holdfast:
        """The application that a worker runs, with all declared tasks."""
        self.discover()
        return self.app

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """The messages for Django's system checks."""
        yield from super().check()
        where = f"TASKS[{self.alias!r}]"
        place = self.place
        if place.problem is not None:
            yield checks.Error(place.problem, obj=where, id="holdfast.E001")
        for queue in sorted(map(str, self.queues)):
            try:
                check_queue(queue)
                problem = undeclared(queue, place.settings.queues)
            except DefinitionError as wrong:
                problem = str(wrong)
            if problem:
                yield checks.Error(f"QUEUES: {problem}", obj=where, id="holdfast.E002")
        for name in self.options.get("modules", ()):
            try:
                import_module(name)
            except ImportError as missing:
                yield checks.Error(f"OPTIONS, modules: {missing}", obj=where, id="holdfast.E003")
        if not apps.is_installed(APP):
            hint = f"add {APP!r}: it provides `manage.py holdfast`, and lets `migrate` create the tables"
            yield checks.Warning("Holdfast is not in INSTALLED_APPS", hint=hint, obj=where, id="holdfast.W001")
        if place.url.startswith("memory:") and not place.is_of_tests:
            hint = "store them in a database; in tests, use the fixture `holdfast`"
            yield checks.Warning(
                "jobs in memory:// are lost when the process exits, and no worker can run them",
                hint=hint,
                obj=where,
                id="holdfast.W002",
            )
        if place.database is not None and place.url.startswith("sqlite:") and _begins_late(place.database):
            hint = f"set DATABASES[{place.database!r}]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'"
            yield checks.Warning(
                "a transaction that reads before it enqueues can find the SQLite file locked by a worker",
                hint=hint,
                obj=where,
                id="holdfast.W003",
            )

    def _run_here(self, app: Holdfast, result: "TaskResult[Any]") -> "TaskResult[Any]":
        """Run the job in this process. The engine `sync` raises if it fails; Django reads the error from the result."""
        object.__setattr__(result, "id", f"sync-{_new_id()}")
        with suppress(JobFailed, JobCancelled):
            self._store(app, result)
        return self.get_result(result.id)

    def _store(self, app: Holdfast, result: "TaskResult[Any]", tx: Any = None) -> None:
        now = timezone.now()
        object.__setattr__(result, "enqueued_at", now)
        app.enqueue(self._definition(app, result, utc(now)), id=result.id, tx=tx)
        # Robust: the job is stored, even if a receiver fails.
        announce = partial(task_enqueued.send_robust, type(self), task_result=result)
        if tx is not None and tx.in_atomic_block:
            tx.on_commit(announce)
        else:
            announce()

    def _definition(self, app: Holdfast, result: "TaskResult[Any]", now: datetime) -> JobDefinition:
        task = result.task
        template = self._template(task)
        max_retries = app.settings.max_retries if template.max_retries is None else template.max_retries
        enqueued = EnqueuedTask(
            at=now,
            max_retries=max_retries,
            priority=int(task.priority),
            run_after=None if task.run_after is None else utc(task.run_after),
            options=dict(_own_options(task)),
        )
        call = Call(args=result.args, kwargs=result.kwargs)
        return template.with_payload(call).with_options(max_retries=max_retries, meta={META: enqueued})

    def _template(self, task: "Task[..., Any]") -> JobDefinition:
        options: JobOptions = {"queue": task.queue_name, "priority": priority_of(int(task.priority))}
        if task.run_after is not None:
            options["run_at"] = utc(task.run_after)
        return definition_of(task.module_path, None, {**options, **_own_options(task)})


class _Applications:
    """The application of each backend by its alias. If the place changes, as in tests, a new one is created."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: dict[str, tuple[BackendPlace, Holdfast]] = {}
        self._registered: dict[str, set[str]] = {}

    def of(self, backend: HoldfastBackend) -> Holdfast:
        alias, place = backend.alias, backend.place
        with self._lock:
            before, app = self._made.get(alias, (None, None))
            if app is None or (before is not place and before != place):
                if app is not None:
                    app.close()
                app = place.application()
                self._made[alias], self._registered[alias] = (place, app), set()
            # Modules may declare more tasks later, when they are imported.
            for path in _tasks.keys() - self._registered[alias]:
                app.registry.register(path, handler_of(_tasks[path], alias, type(backend)))
                self._registered[alias].add(path)
            return app


_tasks: "dict[str, Task[..., Any]]" = {}
"""All known tasks by path. A task that is declared once can run for any alias."""

_applications = _Applications()


def backends() -> Iterator[HoldfastBackend]:
    """Every Holdfast backend in TASKS."""
    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, HoldfastBackend):
            yield backend


def backend_of(alias: str) -> HoldfastBackend:
    """The Holdfast backend with this alias."""
    backend = task_backends[alias] if alias in task_backends else None  # noqa: SIM401 - not a dictionary
    if not isinstance(backend, HoldfastBackend):
        ours = ", ".join(repr(one.alias) for one in backends()) or "none"
        raise ImproperlyConfigured(f"TASKS[{alias!r}] is not a Holdfast backend; Holdfast backends: {ours}")
    return backend


def _own_options(task: "Task[..., Any]") -> JobOptions:
    options: JobOptions = {}
    if isinstance(task, HoldfastTask):
        if task.max_retries is not None:
            options["max_retries"] = task.max_retries
        if task.timeout is not None:
            options["timeout"] = task.timeout
    return options


def priority_of(priority: int) -> int:
    """Convert a Django priority, -100 to 100, to 0 to 9. Higher ones run first in both; 0 becomes 5."""
    if priority > 0:
        return NEUTRAL + -(-priority // 25)
    return NEUTRAL - -(priority // 20)


def _is_in_transaction(connection: Any) -> bool:
    """Whether a transaction is open, also if the program manages transactions by hand."""
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def _begins_late(database: str) -> bool:
    """Whether SQLite transactions lock only at the first write, when the file may already be locked."""
    options: Mapping[str, Any] = connections[database].settings_dict["OPTIONS"]
    return str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE")
