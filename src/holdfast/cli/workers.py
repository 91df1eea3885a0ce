"""`holdfast worker`: start one; `list`, `show` and `stop` those that have said they are there, on whichever host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec
from msgspec import Struct

from holdfast.cli.documents import Document
from holdfast.cli.failing import NOT_FOUND, REFUSED, TIME_IS_UP
from holdfast.cli.options import WithWait, existing, json_option, jsonl_option, one_form, url_option, wait_option
from holdfast.cli.output import (
    age,
    glyph,
    instant,
    nothing,
    plain,
    print_json,
    print_jsonl,
    say,
    say_where,
    span,
    utc_option,
)
from holdfast.cli.progress import StatusLine
from holdfast.cli.selecting import dry_run_option
from holdfast.cli.start_options import StartChoices, start_options
from holdfast.cli.style import BAD, DOUBTFUL, GOOD, Fit, Table, columns, paint, painted_table, shortened
from holdfast.cli.waiting import looks
from holdfast.cli.watching import watch, watch_option
from holdfast.values import RunningJob, StopOrder, WorkerReport, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

SHORTEST_ID: Final = 8
COLUMNS: Final = ("ID", "STATE", "HOST", "PID", "QUEUES", "SLOTS", "DONE", "FAILED", "MEMORY", "UP", "HEARD")
FIT: Final = Fit(
    pliant={"QUEUES": 12, "HOST": 12},
    left_out=("MEMORY", "UP", "FAILED", "DONE", "PID", "HOST", "HEARD", "QUEUES"),
)
NOBODY: Final = "no workers; start one:  holdfast worker start APP"
STATES: Final[Mapping[str, str]] = {WorkerState.LIVE: GOOD, WorkerState.DRAINING: DOUBTFUL, WorkerState.LOST: BAD}


class NoSuchWorker(click.ClickException):
    """Nobody is known by that id."""

    exit_code = NOT_FOUND


class WhichWorker(click.ClickException):
    """Several could be meant."""

    exit_code = REFUSED


class WorkerDocument(WorkerReport, frozen=True, kw_only=True, tag_field="schema", tag="holdfast.worker/1"):
    """What a worker last said of itself, when it was heard, and what is asked of it."""

    state: WorkerState
    heard_at: datetime
    order: StopOrder | None


class StopDocument(Document, frozen=True, kw_only=True, tag="holdfast.worker.stop/1"):
    """What was asked of a worker, and how it was seen last; `left`, if it is not there any more."""

    id: str
    order: StopOrder
    state: Literal["live", "draining", "lost", "left"]


@click.group()
def worker() -> None:
    """Run jobs."""


@worker.command()
@start_options
def start(**said: Any) -> int:
    """Work jobs until told to stop.

    APP is your application, as MODULE:NAME. Without one, only command jobs are run, and only allowed programs.
    Jobs run in processes of their own, which may crash without a job being lost. Ctrl-C, SIGTERM or the closing of the
    terminal lets running jobs finish; a second one hands them back at once.

    \b
    Examples:
      holdfast worker start shop:hf --queue mail:3,default --count 4
      holdfast worker start --allow sleep --burst
    """
    from holdfast.cli.worker import run_worker

    return run_worker(StartChoices(**said))


@worker.command("list")
@click.option("--jobs", "with_jobs", is_flag=True, help="Show what each is running.")
@click.option("--quiet", "-q", is_flag=True, help="Print only ids, one on each line.")
@jsonl_option
@watch_option
@url_option
@json_option
def list_workers(
    with_jobs: bool, quiet: bool, as_jsonl: bool, watch_s: float | None, url: str | None, as_json: bool
) -> int:
    """Show the workers: live ones, draining ones, and lost ones last."""
    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as hf:
        if not quiet:
            say_where(hf.location)
        if watch_s is not None:
            return _watch(hf.backend(), watch_s, with_jobs=with_jobs, as_json=as_json or as_jsonl)
        workers = _known(hf.backend())
    if as_json:
        print_json([_document(view) for view in workers])
    elif as_jsonl:
        print_jsonl(_document(view) for view in workers)
    elif quiet:
        for view in workers:
            click.echo(plain(view.report.id))
    elif workers:
        _table(workers, with_jobs=with_jobs).print()
        _say_lost(workers)
    else:
        say(NOBODY)
    return 0


def _known(engine: Engine) -> list[WorkerView]:
    return sorted(engine.workers(), key=_is_lost)


def _watch(engine: Engine, pause_s: float, *, with_jobs: bool, as_json: bool) -> int:
    if as_json:
        return watch(pause_s, lambda: [_document(view) for view in _known(engine)], lambda _: [], as_json=True)

    def lines(seen: Sequence[WorkerView]) -> list[str]:
        return _table(seen, with_jobs=with_jobs).lines if seen else [NOBODY]

    return watch(pause_s, lambda: _known(engine), lines)


@worker.command("show")
@click.argument("worker_id", metavar="ID")
@utc_option
@url_option
@json_option
def show_worker(worker_id: str, url: str | None, as_json: bool) -> None:
    """Show one worker: what it works, what it is running, what it has done. The beginning of an ID is enough.

    \b
    Examples:
      holdfast worker show 5f3a
    """
    with existing(url) as hf:
        say_where(hf.location)
        known = hf.backend().workers()
    view = _named(worker_id, known)
    if as_json:
        print_json(_document(view))
        return
    for label, value in _facts(view):
        click.echo(f"{label:<10} {paint(str(value), STATES.get(view.state) if label == 'state' else None)}")
    for line in _job_lines(view):
        click.echo(line)
    _say_lost([view])


def _facts(view: WorkerView) -> list[tuple[str, object]]:
    report, dot = view.report, glyph("·", "-")
    asked = f" (asked to stop: {view.order})" if view.order is not None else ""
    return [
        ("id", report.id),
        ("state", f"{view.state}{asked}"),
        ("where", f"pid {report.pid} on {report.host}"),
        ("version", report.version),
        ("up", f"{age(report.started_at)}, since {instant(report.started_at)}"),
        ("heard", f"{age(view.heard_at)} ago, speaks every {span(report.beat_every_s)}"),
        ("queues", ", ".join(report.queues)),
        ("handlers", ", ".join(report.handlers) or "command jobs only"),
        ("slots", f"{report.running} of {report.slots} busy, in {_counted(report.processes, 'process', 'processes')}"),
        ("runs", f"{report.done:,} done {dot} {report.failed:,} failed"),
        ("memory", _memory(report.memory_bytes)),
    ]


@worker.command(cls=WithWait)
@click.argument("worker_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everybody", is_flag=True, help="Every worker.")
@click.option("--now", is_flag=True, help="Hand running jobs back at once.")
@wait_option(alone="60", help="Wait that long until they have stopped, 60 s if not said.")
@dry_run_option
@url_option
@json_option
def stop(
    worker_ids: tuple[str, ...],
    everybody: bool,
    now: bool,
    wait_s: float | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Ask workers to stop, wherever they run. Running jobs finish first.

    The order is left with the jobs, where each worker looks for it; no process is signalled. The beginning of an ID
    is enough. Without one, the only worker there is.

    \b
    Examples:
      holdfast worker stop
      holdfast worker stop 5f3a --now
      holdfast worker stop --all --wait 5m
    """
    if worker_ids and everybody:
        raise click.UsageError("name the workers by their ids, or say --all")
    order = StopOrder.NOW if now else StopOrder.DRAIN
    with existing(url) as hf:
        say_where(hf.location)
        engine = hf.backend()
        known = engine.workers()
        chosen = [_named(given, known) for given in worker_ids] if worker_ids else _unnamed(known, everybody=everybody)
        ends = [_End(name=_short(view, known), view=view) for view in dict.fromkeys(chosen)]
        for end in ends if not dry_run else []:
            end.is_known = engine.order_stop(end.view.report.id, order)
            if not as_json:
                _say_order(end, order)
        asked = [end for end in ends if end.is_running]
        if wait_s is not None and not dry_run:
            _wait(engine, asked, wait_s)
    if as_json:
        print_json([StopDocument(id=end.view.report.id, order=order, state=end.state) for end in ends])
    elif not ends:
        say("no workers; nothing to stop")
    elif dry_run:
        for end in ends:
            click.echo(f"would stop {end.name} ({end.state}, {_counted(end.view.report.running, 'job')} running)")
        say("nobody was asked: --dry-run")
    elif wait_s is not None:
        for end in asked:
            _say_end(end)
    is_late = wait_s is not None and not dry_run and any(end.is_running for end in asked)
    return TIME_IS_UP if is_late else 0


class _End(Struct):
    """One worker that shall stop: as it was when the order was given, then as it was seen last."""

    name: str
    view: WorkerView
    is_known: bool = True

    @property
    def state(self) -> Literal["live", "draining", "lost", "left"]:
        return self.view.state.value if self.is_known else "left"

    @property
    def is_running(self) -> bool:
        return self.is_known and not _is_lost(self.view)


def _named(given: str, known: Sequence[WorkerView]) -> WorkerView:
    """The one worker whose id begins like that."""
    found = [view for view in known if view.report.id.startswith(given)] if given else []
    exact = [view for view in found if view.report.id == given]
    match exact or found:
        case [view]:
            return view
        case []:
            raise NoSuchWorker(f"no worker '{plain(given)}' is known here; see  holdfast worker list")
        case several:
            which = f"'{plain(given)}' may be any of {len(several)} workers; write more of it:"
            raise WhichWorker(f"{which}\n{_candidates(several, known)}")


def _unnamed(known: Sequence[WorkerView], *, everybody: bool) -> list[WorkerView]:
    running = [view for view in known if not _is_lost(view)]
    if everybody or len(running) == 1:
        return running
    if running:
        raise WhichWorker(f"several workers are running; name some, or say --all:\n{_candidates(running, known)}")
    lost = "; lost ones have nothing to stop" if known else ""
    raise NoSuchWorker(f"no worker is running{lost}; see  holdfast worker list")


def _wait(engine: Engine, ends: Sequence[_End], limit_s: float) -> None:
    """Until each has left or is lost, or the time is up."""
    line = StatusLine()
    try:
        for _ in looks(limit_s):
            there = {view.report.id: view for view in engine.workers()}
            for end in ends:
                end.is_known = end.view.report.id in there
                end.view = there.get(end.view.report.id, end.view)
            running = [end for end in ends if end.is_running]
            if not running:
                break
            line.show(f"waiting for {_counted(len(running), 'worker')} to stop…")
    finally:
        line.clear()


def _say_order(end: _End, order: StopOrder) -> None:
    if not end.is_known:
        click.echo(f"{glyph('✓', '*')} {end.name} has left already")
    elif not end.is_running:
        # The order is left all the same: a worker that is only out of reach finds it when it comes back.
        say(f"{glyph('•', '-')} {end.name} is lost, heard {age(end.view.heard_at)} ago: there is nothing to stop")
        say("  its jobs come back by themselves when their leases end; should it come back itself, it will stop")
    elif order is StopOrder.NOW:
        click.echo(f"{glyph('✓', '*')} {end.name} asked to stop now; running jobs are handed back")
    else:
        click.echo(f"{glyph('✓', '*')} {end.name} asked to stop; running jobs finish first")


def _say_end(end: _End) -> None:
    if not end.is_known:
        click.echo(f"{glyph('✓', '*')} {end.name} has stopped")
    elif end.is_running:
        say(f"{glyph('✗', 'x')} {end.name} has not stopped yet; {_running(end.view)}")
        for job in end.view.report.jobs:
            say(f"  {_job(job)}")
    else:
        say(f"{glyph('•', '-')} {end.name} is lost; its jobs come back by themselves when their leases end")


def _running(view: WorkerView) -> str:
    """What it said it was doing; it may be about something else by now."""
    number = view.report.running
    return f"{age(view.heard_at)} ago it was running {_counted(number, 'job') if number else 'no job'}"


def _counted(number: int, what: str, many: str = "") -> str:
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def _table(workers: Sequence[WorkerView], *, with_jobs: bool) -> Table:
    table = painted_table(COLUMNS, [_row(view, workers) for view in workers], (None, STATES), fit=FIT)
    heading, *lines = table.lines
    shown = [heading]
    for view, line in zip(workers, lines, strict=True):
        shown += [line, *(_job_lines(view) if with_jobs else [])]
    return msgspec.structs.replace(table, lines=shown)


def _say_lost(workers: Sequence[WorkerView]) -> None:
    if any(_is_lost(view) for view in workers):
        say("lost: not heard of for three of its heartbeats; its jobs come back by themselves when their leases end")


def _job_lines(view: WorkerView) -> list[str]:
    more = view.report.running - len(view.report.jobs)
    said = [*map(_job, view.report.jobs), *([f"and {more:,} more"] if more else [])]
    return [shortened(f"  {glyph('└', '-')} {line}", columns()) for line in said]


def _job(job: RunningJob) -> str:
    return plain(f"{job.id} {job.job} on {job.queue} for {age(job.started_at)}")


def _row(view: WorkerView, known: Sequence[WorkerView]) -> tuple[object, ...]:
    report = view.report
    is_asked = view.order is not None and view.state is WorkerState.LIVE
    return (
        _short(view, known),
        f"{view.state} (asked to stop)" if is_asked else view.state,
        report.host,
        report.pid,
        ",".join(report.queues),
        f"{report.running}/{report.slots}",
        f"{report.done:,}",
        f"{report.failed:,}",
        _memory(report.memory_bytes),
        age(report.started_at),
        f"{age(view.heard_at)} ago",
    )


def _memory(size: int) -> str:
    if not size:
        return nothing()
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _short(view: WorkerView, known: Sequence[WorkerView]) -> str:
    """The beginning of an id that no other one shares."""
    whole = view.report.id
    others = [other.report.id for other in known if other.report.id != whole]
    for length in range(min(SHORTEST_ID, len(whole)), len(whole)):
        if not any(other.startswith(whole[:length]) for other in others):
            return plain(whole[:length])
    return plain(whole)


def _candidates(workers: Sequence[WorkerView], known: Sequence[WorkerView]) -> str:
    return "\n".join(
        plain(f"  {_short(view, known)}  {view.state}, pid {view.report.pid} on {view.report.host}") for view in workers
    )


def _is_lost(view: WorkerView) -> bool:
    return view.state is WorkerState.LOST


def _document(view: WorkerView) -> WorkerDocument:
    facts = msgspec.structs.asdict(view.report)
    return WorkerDocument(**facts, state=view.state, heard_at=view.heard_at, order=view.order)
