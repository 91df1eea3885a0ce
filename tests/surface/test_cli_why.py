"""Why a job is where it is: what `show` makes of pauses, workers and the record."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from holdfast.cli.why import why
from holdfast.values import (
    DeadReason,
    JobHistory,
    JobState,
    JobView,
    QueuePause,
    RunningJob,
    SlotHolder,
    SlotView,
    WorkerReport,
    WorkerState,
    WorkerView,
)

from .registry import report

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
JOB = JobView(
    id="a",
    queue="mail",
    state=JobState.PENDING,
    job="send",
    max_retries=3,
    accepted_at=NOW - timedelta(hours=2),
    due_at=NOW - timedelta(minutes=5),
)


def worker(state: WorkerState = WorkerState.LIVE, **changes: object) -> WorkerView:
    said: WorkerReport = report("w1", **{"queues": ("mail:3",), "handlers": ("send",), **changes})
    return WorkerView(report=said, state=state, heard_at=NOW)


def reasons(job: JobView, *workers: WorkerView, pauses: tuple[QueuePause, ...] = ()) -> list[str]:
    return why(JobHistory(job=job, attempts=()), pauses, workers, (), NOW)


def test_a_blocked_job_names_its_key_and_the_job_that_holds_it() -> None:
    job = replace(JOB, state=JobState.BLOCKED, blocked_on="key:a", blocked_since=NOW - timedelta(minutes=3))
    holders = (
        SlotHolder(job_id="j7", queue="mail", since=NOW, fence=9),
        SlotHolder(job_id="j8", queue="mail", since=NOW),
    )
    locks = [SlotView(name="key:a", holders=holders), SlotView(name="key:b", holders=holders)]
    waiting, held = why(JobHistory(job=job, attempts=()), (), (), locks, NOW)
    assert waiting == "has been waiting 3 m for the key 'key:a'"
    assert held.startswith("job j7 has held it since ")


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ((), "no worker is running; start one:  holdfast worker start APP --queue mail"),
        ((worker(WorkerState.LOST),), "no worker is running"),
        (
            (worker(queues=("default",)),),
            "no worker processes this queue; start one:  holdfast worker start APP --queue mail",
        ),
        ((worker(handlers=("other",)),), "no worker of this queue knows the handler 'send'"),
        ((worker(WorkerState.DRAINING),), "every worker of this queue is shutting down"),
        ((worker(),), "has been due for 5 m; jobs with a higher priority, or older ones, run first"),
    ],
)
def test_a_waiting_job_waits_for_somebody(workers: tuple[WorkerView, ...], says: str) -> None:
    [reason] = reasons(JOB, *workers)
    assert reason.startswith(says)


def test_a_command_needs_no_application_and_the_usual_queue_no_name() -> None:
    assert reasons(replace(JOB, job="command")) == [
        "no worker is running; start one:  holdfast worker start --queue mail"
    ]
    assert reasons(replace(JOB, queue="default")) == ["no worker is running; start one:  holdfast worker start APP"]


def test_a_paused_queue_is_named_first_with_its_reason() -> None:
    pause = QueuePause(queue="mail", reason="vendor is down", since=NOW)
    first, second = reasons(JOB, pauses=(pause, replace(pause, queue="other")))
    assert "vendor is down; resume it:  holdfast queue resume mail" in first
    assert second.startswith("no worker is running")


def test_what_waits_for_its_time_says_how_long() -> None:
    later = NOW + timedelta(seconds=90)
    assert reasons(replace(JOB, state=JobState.SCHEDULED, due_at=later), worker()) == ["due in 90 s"]
    failed = replace(JOB, state=JobState.FAILED, due_at=later, attempts=1)
    assert reasons(failed, worker()) == ["1 attempt failed, 3 left; retrying in 90 s"]


def test_a_running_job_names_who_runs_it() -> None:
    running = replace(JOB, state=JobState.PROCESSING, lease_until=NOW + timedelta(seconds=30))
    here = RunningJob(id="a", job="send", queue="mail", started_at=NOW - timedelta(seconds=12))
    assert reasons(running, worker(jobs=(here,))) == ["worker w1 (web-1, pid 4121) has been running it for 12 s"]
    assert "missed its heartbeats" in reasons(running, worker(WorkerState.LOST, jobs=(here,)))[0]
    assert reasons(running) == ["a worker holds it"]


def test_a_job_whose_lease_has_ended_waits_for_whoever_takes_it_back() -> None:
    left = replace(JOB, state=JobState.PROCESSING, lease_until=NOW - timedelta(seconds=1))
    ended = "its lease has expired:"
    assert reasons(left, worker()) == [f"{ended} a worker will requeue it soon, or run  holdfast queue reap"]
    for workers in ((), (worker(WorkerState.LOST),)):
        [reason] = reasons(left, *workers)
        assert reason == f"{ended} the next worker that starts will requeue it, or run  holdfast queue reap"


@pytest.mark.parametrize("reason", DeadReason)
def test_every_death_is_explained(reason: DeadReason) -> None:
    assert reasons(replace(JOB, state=JobState.DEAD, dead_reason=reason))


def test_the_job_of_a_run_needs_no_other_worker() -> None:
    [reason] = reasons(replace(JOB, queue="run-0123456789ab"), worker())
    assert "holdfast run" in reason
