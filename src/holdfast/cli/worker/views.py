"""`holdfast worker list` and `show`: the workers on all hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import click
import msgspec

from holdfast.cli.advice import starting
from holdfast.cli.completion import complete_worker_ids
from holdfast.cli.options import existing, json_option, jsonl_option, one_form, url_option
from holdfast.cli.output import note, note_location, write, write_json, write_jsonl, write_names
from holdfast.cli.style import BAD, DOUBTFUL, GOOD, Fit, Table, columns, paint, painted_table, shortened
from holdfast.cli.words import NOTHING, age, instant, utc_option
from holdfast.cli.worker.choosing import is_lost, named, short_id
from holdfast.plaintext import plain
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted, format_duration, format_size
from holdfast.values import RunningJob, StopOrder, WorkerReport, WorkerState, WorkerView

COLUMNS: Final = ("ID", "STATE", "HOST", "PID", "QUEUES", "SLOTS", "DONE", "FAILED", "MEMORY", "UP", "SEEN")
FIT: Final = Fit(
    pliant={"QUEUES": 12, "HOST": 12},
    left_out=("MEMORY", "UP", "FAILED", "DONE", "PID", "HOST", "SEEN", "QUEUES"),
)
STATES: Final[Mapping[str, str]] = {WorkerState.LIVE: GOOD, WorkerState.DRAINING: DOUBTFUL, WorkerState.LOST: BAD}


class WorkerDocument(WorkerReport, frozen=True, kw_only=True, tag_field="schema", tag="holdfast.worker/1"):
    """The last report of a worker, when it was received, and the stop order for the worker."""

    state: WorkerState
    heard_at: datetime
    order: StopOrder | None


@click.command("list")
@click.option("--jobs", "with_jobs", is_flag=True, help="Also show the jobs that each worker is running.")
@click.option("--quiet", "-q", is_flag=True, help="Print only ids, one per line.")
@jsonl_option
@url_option
@json_option
def list_workers(with_jobs: bool, quiet: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List workers; lost workers come last."""
    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        workers = sorted(WorkerRegistry(site.engine.state).all(), key=is_lost)
    if as_json:
        write_json([_document(view) for view in workers])
    elif as_jsonl:
        write_jsonl(_document(view) for view in workers)
    elif quiet:
        write_names(view.report.id for view in workers)
    elif workers:
        _table(workers, with_jobs=with_jobs).print()
        _explain_lost(workers)
    else:
        note(f"no workers; start one:  {starting()}")


@click.command("show")
@click.argument("worker_id", metavar="ID", shell_complete=complete_worker_ids)
@utc_option
@url_option
@json_option
def show_worker(worker_id: str, url: str | None, as_json: bool) -> None:
    """Show one worker: its queues, its running jobs and its counts. A prefix of the ID is enough.

    \b
    Examples:
      holdfast worker show 5f3a
    """
    with existing(url) as site:
        note_location(site.location)
        known = WorkerRegistry(site.engine.state).all()
    view = named(worker_id, known)
    if as_json:
        write_json(_document(view))
        return
    for label, value in _facts(view):
        write(f"{label:<10} {paint(str(value), STATES.get(view.state) if label == 'state' else None)}")
    for line in _job_lines(view):
        write(line)
    _explain_lost([view])


def _facts(view: WorkerView) -> list[tuple[str, object]]:
    report = view.report
    asked = f" (asked to stop: {view.order})" if view.order is not None else ""
    return [
        ("id", report.id),
        ("state", f"{view.state}{asked}"),
        ("where", f"pid {report.pid} on {report.host}"),
        ("version", report.version),
        ("up", f"{age(report.started_at)}, since {instant(report.started_at)}"),
        ("seen", f"{age(view.heard_at)} ago, heartbeat every {format_duration(report.beat_every_s)}"),
        ("queues", ", ".join(report.queues)),
        ("handlers", ", ".join(report.handlers) or "command jobs only"),
        ("slots", f"{report.running} of {report.slots} busy, in {counted(report.processes, 'process', 'processes')}"),
        ("runs", f"{report.done:,} done · {report.failed:,} failed"),
        ("memory", format_size(report.memory_bytes) if report.memory_bytes else NOTHING),
    ]


def _table(workers: Sequence[WorkerView], *, with_jobs: bool) -> Table:
    table = painted_table(COLUMNS, [_row(view, workers) for view in workers], (None, STATES), fit=FIT)
    heading, *lines = table.lines
    shown = [heading]
    for view, line in zip(workers, lines, strict=True):
        shown += [line, *(_job_lines(view) if with_jobs else [])]
    return msgspec.structs.replace(table, lines=shown)


def _explain_lost(workers: Sequence[WorkerView]) -> None:
    if any(is_lost(view) for view in workers):
        note("lost: missed three heartbeats; its jobs are requeued when their leases expire")


def _job_lines(view: WorkerView) -> list[str]:
    more = view.report.running - len(view.report.jobs)
    lines = [*map(job_line, view.report.jobs), *([f"and {more:,} more"] if more else [])]
    return [shortened(f"  └ {line}", columns()) for line in lines]


def job_line(job: RunningJob) -> str:
    return plain(f"{job.id} {job.job} on {job.queue} for {age(job.started_at)}")


def _row(view: WorkerView, known: Sequence[WorkerView]) -> tuple[object, ...]:
    report = view.report
    is_asked = view.order is not None and view.state is WorkerState.LIVE
    return (
        short_id(view, known),
        f"{view.state} (asked to stop)" if is_asked else view.state,
        report.host,
        report.pid,
        ",".join(report.queues),
        f"{report.running}/{report.slots}",
        f"{report.done:,}",
        f"{report.failed:,}",
        format_size(report.memory_bytes) if report.memory_bytes else NOTHING,
        age(report.started_at),
        f"{age(view.heard_at)} ago",
    )


def _document(view: WorkerView) -> WorkerDocument:
    facts = msgspec.structs.asdict(view.report)
    return WorkerDocument(**facts, state=view.state, heard_at=view.heard_at, order=view.order)
