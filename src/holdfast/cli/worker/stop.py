"""`holdfast worker stop`: store a stop order in the engine, where each worker checks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click
from msgspec import Struct

from holdfast.cli.completion import complete_worker_ids
from holdfast.cli.documents import Document
from holdfast.cli.failing import TIME_IS_UP
from holdfast.cli.options import WithWait, existing, json_option, url_option, wait_option
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.progress import StatusLine
from holdfast.cli.selecting import change_options
from holdfast.cli.waiting import looks
from holdfast.cli.words import age
from holdfast.cli.worker.choosing import everywhere, is_lost, named, on_this_host, short_id
from holdfast.cli.worker.views import job_line
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted
from holdfast.values import StopOrder, WorkerView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine


class StopDocument(Document, frozen=True, kw_only=True, tag="holdfast.worker.stop/1"):
    """The stop order for a worker and its last known state; `left` if it has exited."""

    id: str
    order: StopOrder
    state: Literal["live", "draining", "lost", "left"]


@click.command(cls=WithWait)
@click.argument("worker_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_worker_ids)
@click.option("--all", "everybody", is_flag=True, help="Stop all workers, on all hosts.")
@click.option("--now", is_flag=True, help="Release running jobs at once instead of letting them finish.")
@wait_option(alone="60", help="Wait until the workers have stopped, at most this long; default: 60s.")
@change_options
@url_option
@json_option
def stop(
    worker_ids: tuple[str, ...],
    everybody: bool,
    now: bool,
    wait_s: float | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Stop the workers with these IDs, or all on this host. Running jobs finish first.

    The stop order is stored with the jobs, where each worker checks for it; no process is signalled. A prefix of an ID
    is enough. Without an ID, this stops the workers on this host, and asks first if others run on other hosts.

    \b
    Examples:
      holdfast worker stop
      holdfast worker stop 5f3a --now
      holdfast worker stop --all --wait 5m
    """
    if worker_ids and everybody:
        raise click.UsageError("pass the ids of workers or --all, not both")
    order = StopOrder.NOW if now else StopOrder.DRAIN
    with existing(url) as site:
        note_location(site.location)
        engine = site.engine
        known = WorkerRegistry(engine.state).all()
        if worker_ids:
            chosen = [named(given, known) for given in worker_ids]
        else:
            chosen = everywhere(known) if everybody else on_this_host(known, yes=yes or dry_run)
        targets = [_Target(name=short_id(view, known), view=view) for view in dict.fromkeys(chosen)]
        for target in targets if not dry_run else []:
            target.is_known = WorkerRegistry(engine.state).order_stop(target.view.report.id, order)
            if not as_json:
                _report_order(target, order)
        asked = [target for target in targets if target.is_running]
        if wait_s is not None and not dry_run:
            _wait(engine, asked, wait_s)
    if as_json:
        write_json([StopDocument(id=target.view.report.id, order=order, state=target.state) for target in targets])
    elif not targets:
        note("no workers; nothing to stop")
    elif dry_run:
        for target in targets:
            write(f"would stop {target.name} ({target.state}, {counted(target.view.report.running, 'job')} running)")
        note("dry run: no worker was asked to stop")
    elif wait_s is not None:
        for target in asked:
            _report_outcome(target)
    is_late = wait_s is not None and not dry_run and any(target.is_running for target in asked)
    return TIME_IS_UP if is_late else 0


class _Target(Struct):
    """A worker that is to stop, as it was last seen."""

    name: str
    view: WorkerView
    is_known: bool = True

    @property
    def state(self) -> Literal["live", "draining", "lost", "left"]:
        return self.view.state.value if self.is_known else "left"

    @property
    def is_running(self) -> bool:
        return self.is_known and not is_lost(self.view)


def _wait(engine: Engine, targets: Sequence[_Target], limit_s: float) -> None:
    """Wait until each worker has exited or is lost, or the wait times out."""
    line = StatusLine()
    try:
        for _ in looks(limit_s):
            present = {view.report.id: view for view in WorkerRegistry(engine.state).all()}
            for target in targets:
                target.is_known = target.view.report.id in present
                target.view = present.get(target.view.report.id, target.view)
            running = [target for target in targets if target.is_running]
            if not running:
                break
            line.show(f"waiting for {counted(len(running), 'worker')} to stop…")
    finally:
        line.clear()


def _report_order(target: _Target, order: StopOrder) -> None:
    if not target.is_known:
        write(f"✓ {target.name} has already exited")
    elif not target.is_running:
        # The order is stored nevertheless: a worker that was only disconnected finds it later.
        note(f"• {target.name} is lost, last seen {age(target.view.heard_at)} ago; if it reconnects, it will stop")
        note("  its jobs are requeued when their leases expire")
    elif order is StopOrder.NOW:
        write(f"✓ {target.name} asked to stop now; running jobs are released")
    else:
        write(f"✓ {target.name} asked to stop; running jobs finish first")


def _report_outcome(target: _Target) -> None:
    if not target.is_known:
        write(f"✓ {target.name} has stopped")
    elif target.is_running:
        note(f"✗ {target.name} has not stopped yet; {_running(target.view)}")
        for job in target.view.report.jobs:
            note(f"  {job_line(job)}")
    else:
        note(f"• {target.name} is lost; its jobs are requeued when their leases expire")


def _running(view: WorkerView) -> str:
    """The number of running jobs at the last heartbeat."""
    number = view.report.running
    return f"{age(view.heard_at)} ago it was running {counted(number, 'job') if number else 'no job'}"
