"""Waiting for jobs to finish: show their progress, then their results, and how each one finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.advice import starting
from holdfast.cli.failing import FAILED, INTERRUPTED, JOB_FAILED, TIME_IS_UP
from holdfast.cli.job_documents import history_document
from holdfast.cli.job_output import JobOutput
from holdfast.cli.output import json_text, note, write, write_json, write_jsonl
from holdfast.cli.progress import StatusLine
from holdfast.cli.waiting import looks
from holdfast.cli.words import command
from holdfast.state.workers import WorkerRegistry
from holdfast.units import format_duration
from holdfast.values import (
    FINAL_STATES,
    AttemptRecord,
    JobFilter,
    JobHistory,
    JobState,
    JobView,
    Outcome,
    Progress,
    WorkerState,
)

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

AT_ONCE: Final = 1000
MOST_SHOWN: Final = 20
UNFINISHED: Final = tuple(state for state in JobState if state not in FINAL_STATES)


class Shape(Enum):
    """What to print about the jobs."""

    RESULT = auto()
    """The result of one job; of several, the number in each state."""
    OUTPUT = auto()
    """The output of one job, attempt by attempt."""
    OUTPUT_JSONL = auto()
    """The same, one document for each attempt."""
    JSON = auto()
    JSONL = auto()
    NOTHING = auto()

    @property
    def is_output(self) -> bool:
        return self in (Shape.OUTPUT, Shape.OUTPUT_JSONL)


def await_job(
    engine: Engine, job_id: str, limit_s: float, shape: Shape = Shape.RESULT, *, app: str | None = None
) -> int:
    """Wait until the job finishes, print its result, and return the exit code."""
    note_missing_worker(engine, [job_id], app)
    line = StatusLine()
    history: JobHistory | None = None
    output = JobOutput(line, as_jsonl=shape is Shape.OUTPUT_JSONL)
    try:
        for _ in looks(limit_s):
            history = engine.get(job_id)
            if history is not None and shape.is_output:
                output.show(history)
            if history is None or history.job.state.is_final:
                break
            _show(line, history.job)
    except KeyboardInterrupt:
        output.close()
        now = "is running" if history is not None and history.job.state is JobState.PROCESSING else "is queued"
        note(f"no longer waiting; {job_id} {now}, see  {command('holdfast', 'show', job_id)}")
        return INTERRUPTED
    finally:
        output.close()
    if history is not None:
        _print_end(history, shape)
    return _note_end(job_id, history, limit_s)


def _print_end(history: JobHistory, shape: Shape) -> None:
    if shape is Shape.JSON:
        write_json(history_document(history))
    elif shape is Shape.JSONL:
        write_jsonl([history_document(history)])
    elif shape is Shape.RESULT and (result := _result(history)) is not None:
        write(result)


def await_jobs(
    engine: Engine, job_ids: Sequence[str], limit_s: float, shape: Shape = Shape.RESULT, *, app: str | None = None
) -> int:
    """Wait until all of these jobs finish, print how, and return the worst exit code."""
    everything = list(dict.fromkeys(job_ids))
    if _unfinished(engine, everything, limit_s, at_most=0, app=app) is None:
        return INTERRUPTED
    if shape in (Shape.JSON, Shape.JSONL):
        documents = [history_document(history) for job_id in everything if (history := engine.get(job_id))]
        (write_json if shape is Shape.JSON else write_jsonl)(documents)
    return _note_ends(_find(engine, everything), len(everything), is_counted=shape is Shape.RESULT)


def await_any(engine: Engine, job_ids: Sequence[str], limit_s: float, *, as_json: bool) -> int:
    """Wait until the first of these jobs finishes, print its id, and return the exit code."""
    waiting = _unfinished(engine, job_ids, limit_s, at_most=len(job_ids) - 1)
    if waiting is None:
        return INTERRUPTED
    first = next((job_id for job_id in job_ids if job_id not in waiting), None)
    history = None if first is None else engine.get(first)
    if as_json:
        write_json(None if history is None else history_document(history))
    if first is None:
        none = "the job has not" if len(job_ids) == 1 else f"none of the {len(job_ids):,} jobs has"
        note(f"✗ timed out after {format_duration(limit_s)}: {none} finished")
        return TIME_IS_UP
    if not as_json:
        write(first)
    return _note_end(first, history, limit_s)


def _unfinished(
    engine: Engine, job_ids: Sequence[str], limit_s: float, *, at_most: int, app: str | None = None
) -> set[str] | None:
    """Wait until at most this many of the jobs are unfinished, and return those; None if the user interrupts it."""
    note_missing_worker(engine, job_ids, app)
    waiting, line = set(job_ids), StatusLine()
    try:
        for _ in looks(limit_s):
            waiting = {job.id for job in _find(engine, [*waiting], UNFINISHED)}
            if len(waiting) <= at_most:
                break
            finished = len(job_ids) - len(waiting)
            line.show_progress(Progress(done=finished, total=len(job_ids), message="jobs finished"))
    except KeyboardInterrupt:
        line.clear()
        note(f"no longer waiting; unfinished jobs remain queued: {len(waiting):,}")
        return None
    finally:
        line.clear()
    return waiting


def _find(engine: Engine, job_ids: Sequence[str], states: tuple[JobState, ...] = ()) -> list[JobView]:
    parts = [tuple(job_ids[start : start + AT_ONCE]) for start in range(0, len(job_ids), AT_ONCE)]
    return [job for ids in parts for job in engine.find(JobFilter(ids=ids, states=states), limit=AT_ONCE).jobs]


def note_missing_worker(engine: Engine, job_ids: Sequence[str], app: str | None = None) -> None:
    """Print how to start a worker if none is running, since these jobs would otherwise never finish."""
    from holdfast.handlers import COMMAND_KEY

    waiting = _find(engine, job_ids[:AT_ONCE], UNFINISHED)
    if waiting and all(view.state is WorkerState.LOST for view in WorkerRegistry(engine.state).all()):
        first = next((job for job in waiting if job.job != COMMAND_KEY), waiting[0])
        note(f"  no worker is running; start one:  {starting(first.queue, app=app, job=first.job)}")


def _show(line: StatusLine, job: JobView) -> None:
    if job.state is not JobState.PROCESSING:
        line.show(f"{job.state}…")
    elif job.progress is None:
        line.show("running…")
    else:
        line.show_progress(job.progress)


def _succeeded(history: JobHistory) -> AttemptRecord | None:
    records = [past.record for past in history.attempts if past.record.outcome is Outcome.SUCCEEDED]
    return records[-1] if records and history.job.state is JobState.COMPLETED else None


def _result(history: JobHistory) -> str | None:
    record = _succeeded(history)
    if record is None or record.result is None or record.result == b"null":
        return None
    try:
        return json_text(msgspec.Raw(msgspec.json.format(record.result, indent=0)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bytes(record.result).decode(errors="replace")


def _note_end(job_id: str, history: JobHistory | None, limit_s: float) -> int:
    if history is None:
        note(f"✗ {job_id} has finished, but its record has been deleted; the outcome is unknown")
        return FAILED
    job = history.job
    if not job.state.is_final:
        note(f"✗ timed out after {format_duration(limit_s)}: {job_id} is still {job.state}")
        note(f"  see  {command('holdfast', 'show', job_id)}")
        return TIME_IS_UP
    record = _succeeded(history)
    if job.state is JobState.COMPLETED:
        took = f" in {format_duration(record.duration_s)}" if record else ""
        remark = f": {record.note}" if record and record.note else ""
        note(f"✓ {job_id} completed{took}{remark}")
        return 0
    note_failure(job)
    return JOB_FAILED


def note_failure(job: JobView) -> None:
    """Print why a job is dead or cancelled, if it is."""
    if job.state in (JobState.DEAD, JobState.CANCELLED):
        note(f"✗ {job.id} {_failure(job)}")
        note(f"  see  {command('holdfast', 'show', job.id)}")


def _failure(job: JobView) -> str:
    if job.state is JobState.CANCELLED:
        return f"was cancelled: {job.cancel_reason or 'no reason was given'}"
    return f"is {job.state} ({job.dead_reason or 'reason unknown'}): {job.last_error or 'no error was recorded'}"


def _note_ends(jobs: Sequence[JobView], expected: int, *, is_counted: bool) -> int:
    failed = [job for job in jobs if job.state in (JobState.DEAD, JobState.CANCELLED)]
    counts = Counter(str(job.state) for job in jobs)
    if deleted := expected - len(jobs):
        counts["deleted"] = deleted
    for job in failed[:MOST_SHOWN]:
        note(f"✗ {job.id} {_failure(job)}")
    if len(failed) > MOST_SHOWN:
        note(f"  and {len(failed) - MOST_SHOWN:,} more")
    if is_counted:
        write(" · ".join(f"{number:,} {state}" for state, number in counts.items()))
    is_unfinished = any(not job.state.is_final for job in jobs)
    if is_unfinished:
        note("timed out; unfinished jobs remain queued")
    if failed:
        return JOB_FAILED
    return TIME_IS_UP if is_unfinished else FAILED if deleted else 0
