"""Why a job is in its state, in sentences, as far as the records show; pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from holdfast.cli.advice import starting
from holdfast.cli.private_queue import is_private
from holdfast.cli.words import command, instant
from holdfast.state.breakers import CircuitView
from holdfast.state.limits import Usage
from holdfast.units import counted, format_duration
from holdfast.values import (
    PARENT_FAILED,
    CircuitState,
    DeadReason,
    EdgeOutcome,
    JobHistory,
    JobState,
    JobView,
    Outcome,
    QueuePause,
    Relative,
    Relatives,
    SlotView,
    WorkerState,
    WorkerView,
)

CLAIMABLE: Final = (JobState.PENDING, JobState.FAILED)
"""The states of jobs that wait in their queue until a worker claims them, if they are due."""
_MOST_NAMED: Final = 5
_NO_RELATIVES: Final = Relatives()
_DEATHS: Final = {
    DeadReason.FAILED: "its last run failed, and no retry was left",
    DeadReason.TIMEOUT: "its last run timed out, and no retry was left",
    DeadReason.CRASH_LOOP: "its workers died repeatedly while running it",
    DeadReason.BAD_SIGNATURE: "its message is not signed with a key that the worker trusts; it was never started",
    DeadReason.UNDECODABLE: "its message or its record cannot be read; it was not started",
    DeadReason.WRONG_QUEUE: "its message belongs to another queue; it was never started",
    DeadReason.HANDLER_FORBIDDEN: "its handler or its command is not allowed; it was never started",
    DeadReason.NO_RETRY: "it failed with an error that is not retried",
    DeadReason.PARENT_FAILED: "a job that it depends on failed",
}


def why(
    history: JobHistory,
    pauses: Sequence[QueuePause],
    workers: Sequence[WorkerView],
    locks: Sequence[SlotView],
    now: datetime,
    circuit: CircuitView | None = None,
    usage: Usage | None = None,
    relatives: Relatives = _NO_RELATIVES,
) -> list[str]:
    """The reasons why the job is in its state; none if the state explains itself.

    `locks` are the job's keys, `circuit` is the one that it waits for, `usage` is that of the rate limit of its queue,
    and `relatives` are the jobs that it depends on.
    """
    job, last = history.job, history.attempts[-1].record if history.attempts else None
    is_put_off = job.rate_limit is not None and last is not None and last.outcome is Outcome.RATE_LIMITED
    reasons = (
        _waiting_for(job, circuit, now)
        or _blocked(job, locks, now)
        or _dependent(job, relatives, now)
        or _reasons(job, pauses, workers, now, is_put_off=is_put_off)
    )
    if usage is not None and usage.wait_s and job.state in CLAIMABLE and job.due_at <= now:
        reasons.append(limited(usage))
    reasons += _held(job, locks)
    if not history.job.damaged:
        return reasons
    return ["its record is damaged; only readable values are shown, and its state may be wrong", *reasons]


def limited(usage: Usage) -> str:
    """Why the due jobs of a queue do not start while its rate limit is reached."""
    wait = format_duration(usage.wait_s)
    return f"the queue has reached its rate limit of {usage.rate}; the next job can start in {wait}"


def _waiting_for(job: JobView, circuit: CircuitView | None, now: datetime) -> list[str]:
    """The circuit that a blocked job waits for, and when it will be tried again."""
    if circuit is None:
        return []
    since = "" if job.blocked_since is None else f" {_until(now, job.blocked_since)}"
    match circuit.state:
        case CircuitState.OPEN:
            then = f"open; a call will be tried in {format_duration(circuit.retry_in or 0.0)}"
        case CircuitState.HALF_OPEN:
            then = "half-open; another job or call decides whether it closes"
        case CircuitState.CLOSED:
            then = "closed; the job will run soon"
    return [
        f"has been waiting{since} for the circuit '{circuit.name}', which is {then}",
        f"to close the circuit now:  {command('holdfast', 'breaker', 'reset', circuit.name)}",
    ]


def _blocked(job: JobView, locks: Sequence[SlotView], now: datetime) -> list[str]:
    """The key that a blocked job waits for, and the jobs that hold it."""
    if job.blocked_on is None:
        return []
    since = "" if job.blocked_since is None else f" {_until(now, job.blocked_since)}"
    found = [f"has been waiting{since} for the key '{job.blocked_on}'"]
    for lock in locks:
        if lock.name == job.blocked_on:
            found += [f"job {one.job_id} has held it since {instant(one.since)}" for one in lock.holders if one.fence]
    return found


def _dependent(job: JobView, relatives: Relatives, now: datetime) -> list[str]:
    """The jobs that a blocked job waits for, or the failed ones because of which it was cancelled."""
    if job.state is JobState.BLOCKED and relatives.open_parents:
        since = "" if job.blocked_since is None else f" {_until(now, job.blocked_since)}"
        waits_for = [one for one in relatives.parents if one.outcome is EdgeOutcome.OPEN]
        number = f"{relatives.open_parents} of " if relatives.open_parents < len(job.after) else ""
        found = [f"has been waiting{since} for {number}{counted(len(job.after), 'job')}: {_named(waits_for)}"]
        failed = [one for one in waits_for if one.state in (JobState.DEAD, JobState.CANCELLED)]
        return (
            [*found, f"this job runs only if the failed jobs are retried and complete:  {_retry(failed)}"]
            if failed
            else found
        )
    if job.state is JobState.CANCELLED and job.cancel_reason == PARENT_FAILED:
        failed = [one for one in relatives.parents if one.outcome is EdgeOutcome.CANCELLED]
        if not failed:
            return ["a job that it depends on failed and was deleted"]
        several = "jobs that it depends on failed" if len(failed) > 1 else "a job that it depends on failed"
        parents = "those jobs" if len(failed) > 1 else "that job"
        return [f"{several}: {_named(failed)}", f"to run this job, retry {parents}:  {_retry(failed)}"]
    return []


def _retry(failed: Sequence[Relative]) -> str:
    return command("holdfast", "retry", *(one.job_id for one in failed[:_MOST_NAMED]))


def _named(relatives: Sequence[Relative]) -> str:
    named = [f"{one.job_id} ({one.state})" for one in relatives[:_MOST_NAMED]]
    more = len(relatives) - len(named)
    return ", ".join([*named, f"and {more:,} more"] if more else named)


def _held(job: JobView, locks: Sequence[SlotView]) -> list[str]:
    """The keys that the job holds, and how many jobs wait for each."""
    found: list[str] = []
    for lock in locks:
        for one in lock.holders:
            if one.job_id == job.id and one.fence:
                waiting = f"; {counted(lock.waiting, 'job')} waiting for it" if lock.waiting else ""
                found.append(f"has held the key '{lock.name}' since {instant(one.since)}{waiting}")
    return found


def _reasons(
    job: JobView, pauses: Sequence[QueuePause], workers: Sequence[WorkerView], now: datetime, *, is_put_off: bool
) -> list[str]:
    match job.state:
        case JobState.BLOCKED:
            return [] if job.damaged else ["waiting for a key that another job holds"]
        case JobState.SCHEDULED:
            due = f"due in {_until(job.due_at, now)}"
            if is_put_off:
                due = f"put off by its rate limit until {instant(job.due_at)}; {due}"
            return [due, *_obstacles(job, pauses, workers)]
        case JobState.FAILED:
            left = "" if job.max_retries is None else f", {job.max_retries + 1 - job.attempts} left"
            again = f"retrying in {_until(job.due_at, now)}" if job.due_at > now else "ready to retry"
            return [
                f"{job.attempts} {'attempt' if job.attempts == 1 else 'attempts'} failed{left}; {again}",
                *_obstacles(job, pauses, workers),
            ]
        case JobState.PENDING:
            obstacles = _obstacles(job, pauses, workers)
            return obstacles or [
                f"has been due for {_until(now, job.due_at)}; jobs with a higher priority, or older ones, run first"
            ]
        case JobState.PROCESSING:
            return [_holder(job, workers, now)]
        case JobState.DEAD:
            return [_DEATHS[job.dead_reason]] if job.dead_reason else []
        case JobState.CANCELLED | JobState.COMPLETED:
            return []


def _obstacles(job: JobView, pauses: Sequence[QueuePause], workers: Sequence[WorkerView]) -> list[str]:
    """What currently prevents workers from claiming the job."""
    found = [
        f"the queue has been paused since {instant(pause.since)}{f': {pause.reason}' if pause.reason else ''}; "
        f"resume it:  {command('holdfast', 'queue', 'resume', job.queue)}"
        for pause in pauses
        if pause.queue == job.queue
    ]
    running = [view for view in workers if view.state is not WorkerState.LOST]
    takers = [view for view in running if job.queue in (queue.partition(":")[0] for queue in view.report.queues)]
    if is_private(job.queue):
        return found if takers else [*found, "it belongs to a 'holdfast run' that may have exited"]
    if not running:
        found.append(f"no worker is running; start one:  {starting(job.queue, job=job.job)}")
    elif not takers:
        found.append(f"no worker processes this queue; start one:  {starting(job.queue, job=job.job)}")
    elif not any(job.job in view.report.handlers for view in takers):
        found.append(f"no worker of this queue knows the handler '{job.job}'")
    elif all(view.state is WorkerState.DRAINING for view in takers):
        found.append("every worker of this queue is shutting down")
    return found


def _holder(job: JobView, workers: Sequence[WorkerView], now: datetime) -> str:
    for view in workers:
        for one in view.report.jobs:
            if one.id == job.id:
                place = f"{view.report.host}, pid {view.report.pid}"
                heard = "; the worker has missed its heartbeats" if view.state is WorkerState.LOST else ""
                since = _until(now, one.started_at)
                return f"worker {view.report.id} ({place}) has been running it for {since}{heard}"
    if job.lease_until is not None and job.lease_until < now:
        is_watched = any(view.state is not WorkerState.LOST for view in workers)
        who = "a worker will requeue it soon" if is_watched else "the next worker that starts will requeue it"
        return f"its lease has expired: {who}, or run  holdfast queue reap"
    return "a worker holds it"


def _until(later: datetime, sooner: datetime) -> str:
    return format_duration(max(0.0, (later - sooner).total_seconds()))
