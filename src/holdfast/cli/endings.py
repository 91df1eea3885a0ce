"""What becomes of jobs: wait until they have ended, show how far they are meanwhile, and say how each ended."""

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
from holdfast.cli.output import note, write, write_json, write_jsonl
from holdfast.cli.progress import StatusLine
from holdfast.cli.waiting import looks
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
    """What is printed of jobs that are waited for."""

    RESULT = auto()
    """The result of one, how many ended how of several."""
    OUTPUT = auto()
    """What one has printed, attempt by attempt."""
    OUTPUT_JSONL = auto()
    """The same, a document for each attempt."""
    JSON = auto()
    JSONL = auto()
    NOTHING = auto()

    @property
    def is_output(self) -> bool:
        return self in (Shape.OUTPUT, Shape.OUTPUT_JSONL)


def await_job(
    engine: Engine, job_id: str, limit_s: float, shape: Shape = Shape.RESULT, *, app: str | None = None
) -> int:
    """Wait until the job has ended, print its result, and return the exit code for it."""
    say_if_nobody_works(engine, [job_id], app)
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
        now = "goes on" if history is not None and history.job.state is JobState.PROCESSING else "stays queued"
        note(f"no longer waiting: {job_id} {now}; look at it:  holdfast show {job_id}")
        return INTERRUPTED
    finally:
        output.close()
    if history is not None:
        _print_end(history, shape)
    return _say_end(job_id, history, limit_s)


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
    """Wait until all of these jobs have ended, say how, and return the exit code of the worst."""
    say_if_nobody_works(engine, job_ids, app)
    everything = list(dict.fromkeys(job_ids))
    waiting = everything
    line = StatusLine()
    try:
        for _ in looks(limit_s):
            waiting = [job.id for job in _find(engine, waiting, UNFINISHED)]
            if not waiting:
                break
            ended = len(everything) - len(waiting)
            line.show_progress(Progress(done=ended, total=len(everything), message="jobs ended"))
    except KeyboardInterrupt:
        line.clear()
        note(f"no longer waiting: {len(waiting):,} jobs stay queued")
        return INTERRUPTED
    finally:
        line.clear()
    if shape in (Shape.JSON, Shape.JSONL):
        documents = [history_document(history) for job_id in everything if (history := engine.get(job_id))]
        (write_json if shape is Shape.JSON else write_jsonl)(documents)
    return _say_ends(_find(engine, everything), len(everything), is_counted=shape is Shape.RESULT)


def await_any(engine: Engine, job_ids: Sequence[str], limit_s: float, *, as_json: bool) -> int:
    """Wait until the first of these jobs has ended, print which and its result, and return the exit code for it."""
    say_if_nobody_works(engine, job_ids)
    line = StatusLine()
    first: str | None = None
    try:
        for _ in looks(limit_s):
            waiting = {job.id for job in _find(engine, job_ids, UNFINISHED)}
            first = next((job_id for job_id in job_ids if job_id not in waiting), None)
            if first is not None:
                break
            line.show(f"{len(waiting):,} jobs not ended yet…")
    except KeyboardInterrupt:
        line.clear()
        note(f"no longer waiting: {len(job_ids):,} jobs stay queued")
        return INTERRUPTED
    finally:
        line.clear()
    if first is None:
        if as_json:
            write_json(None)
        note(f"✗ none of {len(job_ids):,} jobs has ended after {format_duration(limit_s)}; they stay queued")
        return TIME_IS_UP
    history = engine.get(first)
    if as_json:
        write_json(None if history is None else history_document(history))
    else:
        write(first)
    return _say_end(first, history, limit_s)


def _find(engine: Engine, job_ids: Sequence[str], states: tuple[JobState, ...] = ()) -> list[JobView]:
    parts = [tuple(job_ids[start : start + AT_ONCE]) for start in range(0, len(job_ids), AT_ONCE)]
    return [job for ids in parts for job in engine.find(JobFilter(ids=ids, states=states), limit=AT_ONCE).jobs]


def say_if_nobody_works(engine: Engine, job_ids: Sequence[str], app: str | None = None) -> None:
    """Whoever waits for jobs that nobody would work waits long."""
    from holdfast.handlers import COMMAND_KEY

    waiting = _find(engine, job_ids[:AT_ONCE], UNFINISHED)
    if waiting and all(view.state is WorkerState.LOST for view in WorkerRegistry(engine.state).all()):
        first = next((job for job in waiting if job.job != COMMAND_KEY), waiting[0])
        note(f"  no worker is running here; start one:  {starting(first.queue, app=app, job=first.job)}")


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
        return msgspec.json.format(record.result, indent=0).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bytes(record.result).decode(errors="replace")


def _say_end(job_id: str, history: JobHistory | None, limit_s: float) -> int:
    if history is None:
        note(f"✗ {job_id} has ended, but its record is not kept: how it ended is not known")
        return FAILED
    job = history.job
    if not job.state.is_final:
        note(f"✗ {job_id} is still {job.state} after {format_duration(limit_s)}; it stays queued")
        note(f"  look at it:  holdfast show {job_id}")
        return TIME_IS_UP
    record = _succeeded(history)
    if job.state is JobState.COMPLETED:
        took = f" in {format_duration(record.duration_s)}" if record else ""
        remark = f": {record.note}" if record and record.note else ""
        note(f"✓ {job_id} completed{took}{remark}")
        return 0
    say_fate(job)
    return JOB_FAILED


def say_fate(job: JobView) -> None:
    """What became of a job that ended badly."""
    if job.state in (JobState.DEAD, JobState.CANCELLED):
        note(f"✗ {job.id} {_fate(job)}")
        note(f"  look at it:  holdfast show {job.id}")


def _fate(job: JobView) -> str:
    if job.state is JobState.CANCELLED:
        return f"was cancelled: {job.cancel_reason or 'no reason was given'}"
    return f"is {job.state} ({job.dead_reason or 'reason unknown'}): {job.last_error or 'no error was recorded'}"


def _say_ends(jobs: Sequence[JobView], expected: int, *, is_counted: bool) -> int:
    failed = [job for job in jobs if job.state in (JobState.DEAD, JobState.CANCELLED)]
    counts = Counter(str(job.state) for job in jobs)
    if gone := expected - len(jobs):
        counts["no longer on record"] = gone
    for job in failed[:MOST_SHOWN]:
        note(f"✗ {job.id} {_fate(job)}")
    if len(failed) > MOST_SHOWN:
        note(f"  and {len(failed) - MOST_SHOWN:,} more")
    if is_counted:
        write(" · ".join(f"{number:,} {state}" for state, number in counts.items()))
    is_unfinished = any(not job.state.is_final for job in jobs)
    if is_unfinished:
        note("the time is up; what has not ended stays queued")
    if failed:
        return JOB_FAILED
    return TIME_IS_UP if is_unfinished else FAILED if gone else 0
