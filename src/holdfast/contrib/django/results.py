"""A job as Django sees it: a `TaskResult`, from the engine's record or from a run."""

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.conf import settings
from django.utils import timezone
from msgspec import Struct

import holdfast.errors
from holdfast.contrib.django.framework import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from holdfast.handlers import JobContext
from holdfast.queues.contract import Engine
from holdfast.state.workers import WorkerRegistry
from holdfast.values import AttemptRecord, JobHistory, JobState, JobView, Outcome, RunningJob

META: Final = "django"
_RAN: Final = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CRASHED)
_STATUS: Final = {
    JobState.PROCESSING: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}


class NotStored(Struct, frozen=True):
    """Replaces the return value of a task if it was not stored, with the reason."""

    why: str


class HoldfastResult(TaskResult):  # type: ignore[type-arg] # it is not generic in Django 6
    """A result that raises if the return value of its task was not stored."""

    __slots__ = ()

    @property
    def return_value(self) -> Any:
        value: Any = self._return_value
        if isinstance(value, NotStored):
            raise ValueError(f"Task succeeded, but {value.why}; store the value elsewhere and return a reference to it")
        return super().return_value


class Call(Struct, frozen=True, kw_only=True):
    """The payload of a task: its arguments, as Django normalized them."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class EnqueuedTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Data that Django needs and a job does not have; stored with the task in `meta`."""

    at: datetime
    max_retries: int
    priority: int = 0
    run_after: datetime | None = None
    options: dict[str, Any] = {}
    """Options that were set on the task itself."""


def enqueued_of(meta: Mapping[str, Any]) -> EnqueuedTask | None:
    """The data that was stored with the task; None if the job was not enqueued through Django."""
    try:
        return msgspec.convert(meta.get(META), EnqueuedTask)
    except msgspec.ValidationError:
        return None


def local(instant: datetime | None) -> datetime | None:
    """A time as USE_TZ requires: aware, or naive in the time zone of the project."""
    if instant is None or settings.USE_TZ:
        return instant
    return timezone.make_naive(instant)


def as_enqueued(task: "Task[..., Any]", alias: str, queue: str, enqueued: EnqueuedTask | None) -> "Task[..., Any]":
    """The task with the options it was enqueued with; as declared, if the backend no longer allows them."""
    changes: dict[str, Any] = {"backend": alias, "queue_name": queue}
    if enqueued is not None:
        changes |= {"priority": enqueued.priority, "run_after": local(enqueued.run_after), **enqueued.options}
    try:
        return replace(task, **changes)
    except (InvalidTask, TypeError):  # a task of another backend's class does not have our options
        return task


def new_result(task: "Task[..., Any]", alias: str, call: Call, **known: Any) -> "TaskResult[Any]":
    """A result with the fields that are known; the others are those of a task that has not been enqueued."""
    fields: dict[str, Any] = {
        "id": "",
        "status": TaskResultStatus.READY,
        "enqueued_at": None,
        "started_at": None,
        "last_attempted_at": None,
        "finished_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return HoldfastResult(task=task, backend=alias, args=call.args, kwargs=call.kwargs, **fields | known)


def result_of_run(task: "Task[..., Any]", alias: str, context: JobContext) -> "TaskResult[Any]":
    """The result of a run that starts now. It only counts earlier runs; `refresh()` reads their details."""
    enqueued = enqueued_of(context.meta)
    now = timezone.now()
    return new_result(
        as_enqueued(task, alias, context.queue, enqueued),
        alias,
        context.payload,
        id=context.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None if enqueued is None else local(enqueued.at),
        started_at=now,
        last_attempted_at=now,
        worker_ids=[*(_run(number) for number in range(1, context.attempt)), f"{socket.gethostname()}:{os.getpid()}"],
    )


def result_of_job(task: "Task[..., Any]", alias: str, history: JobHistory, engine: Engine) -> "TaskResult[Any]":
    """The result of a job, from the engine's record."""
    job = history.job
    enqueued = enqueued_of(msgspec.json.decode(job.meta, type=dict[str, Any]))
    runs = [past.record for past in history.attempts if past.record.outcome in _RAN]
    worker_ids = [_run(number) for number in range(1, len(runs) + 1)]
    started = [run.started_at for run in runs]
    if job.state is JobState.PROCESSING:
        worker_id, running = _running(job.id, engine)
        worker_ids.append(worker_id or _run(len(runs) + 1))
        started += [running.started_at] if running is not None else []
    result = new_result(
        as_enqueued(task, alias, job.queue, enqueued),
        alias,
        _call_of(job),
        id=job.id,
        status=_STATUS.get(job.state, TaskResultStatus.READY),
        enqueued_at=local(job.accepted_at if enqueued is None else enqueued.at),
        started_at=local(started[0]) if started else None,
        last_attempted_at=local(started[-1]) if started else None,
        finished_at=local(job.finished_at),
        errors=_errors(job, runs),
        worker_ids=worker_ids,
    )
    if job.state is JobState.COMPLETED and runs:
        object.__setattr__(result, "_return_value", _value(runs[-1]))
    return result


def _value(run: AttemptRecord) -> Any:
    if run.result is None:
        return NotStored(run.note) if run.note else None
    return msgspec.json.decode(run.result)


def _call_of(job: JobView) -> Call:
    """The arguments; none if the job was not enqueued through Django and its payload is not a call."""
    try:
        return msgspec.json.decode(job.payload, type=Call)
    except msgspec.ValidationError:
        return Call()


def _run(number: int) -> str:
    # The worker of an attempt is not stored; Django counts attempts by the length of this list.
    return f"attempt-{number}"


def _running(job_id: str, engine: Engine) -> tuple[str | None, RunningJob | None]:
    """The worker that runs the job, and since when, if it has already reported it."""
    for worker in WorkerRegistry(engine.state).all():
        for job in worker.report.jobs:
            if job.id == job_id:
                return worker.report.id, job
    return None, None


def _errors(job: JobView, runs: list[AttemptRecord]) -> list[TaskError]:
    errors = [
        TaskError(exception_class_path=_class_path(run), traceback=run.error.traceback or run.error.line)
        for run in runs
        if run.error is not None
    ]
    if job.state is JobState.CANCELLED:
        reason = f"cancelled: {job.cancel_reason}" if job.cancel_reason else "cancelled"
        errors.append(TaskError(exception_class_path="holdfast.errors.JobCancelled", traceback=reason))
    elif job.state is JobState.DEAD and not (job.dead_reason is not None and job.dead_reason.follows_a_run):
        reason = f"dead ({job.dead_reason}): {job.last_error or 'no error was recorded'}"
        errors.append(TaskError(exception_class_path="holdfast.errors.JobFailed", traceback=reason))
    return errors


def _class_path(run: AttemptRecord) -> str:
    """The import path of the error class; for Holdfast's internal classes, that of the nearest public one."""
    kind = "" if run.error is None else run.error.type
    home, _, name = kind.rpartition(".")
    if run.outcome is Outcome.TIMEOUT:
        return "builtins.TimeoutError"
    if home == "holdfast":
        if name == "ResultNotJson":
            return "builtins.TypeError"
        return f"holdfast.errors.{name if hasattr(holdfast.errors, name) else 'JobFailed'}"
    return kind if home else f"builtins.{kind}"


def utc(instant: datetime) -> datetime:
    """A time in UTC; a naive one is in the time zone of the project."""
    aware = instant if timezone.is_aware(instant) else timezone.make_aware(instant)
    return aware.astimezone(UTC)
