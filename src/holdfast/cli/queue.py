"""`holdfast queue`: list queues; pause, resume, process, reap and purge them. `queue_views.py` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli import OrderedGroup
from holdfast.cli.completion import complete_queues
from holdfast.cli.documents import (
    PausedDocument,
    PurgeDocument,
    QueueLimitDocument,
    ReapDocument,
    ResumedDocument,
)
from holdfast.cli.options import (
    Span,
    States,
    WeightedQueues,
    app_option,
    existing,
    json_option,
    jsonl_option,
    merged_queues,
    one_form,
    url_option,
)
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.selecting import (
    Filters,
    change_options,
    confirm,
    confirm_severe,
    dry_run_option,
    unknown_queues,
)
from holdfast.cli.words import command, utc_option
from holdfast.cli.worker.options import work_options
from holdfast.spelling import did_you_mean
from holdfast.units import counted, format_duration
from holdfast.values import FINAL_STATES, JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

EVERYTHING: Final = "all"


class FinalStates(States):
    """Final states, separated by commas; `all` means all of them."""

    known = FINAL_STATES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[JobState, ...]:
        if str(value).strip().lower() == EVERYTHING:
            return tuple(state for state in JobState if state in FINAL_STATES)
        states = super().convert(value, param, ctx)
        for state in states:
            if state not in FINAL_STATES:
                waiting = " (they are waiting for a retry)" if state is JobState.FAILED else ""
                self.fail(
                    f"only completed, dead and cancelled jobs can be purged, not {state} jobs{waiting}; "
                    f"cancel them first:  holdfast cancel --where state:{state}",
                    param,
                    ctx,
                )
        return states


@click.group(cls=OrderedGroup)
def queue() -> None:
    """List, pause, resume and purge queues."""


@queue.command("list")
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one per line.")
@jsonl_option
@url_option
@json_option
def list_queues(quiet: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List queues that have jobs or workers, or are paused."""
    from holdfast.cli.queue_views import print_queues

    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        print_queues(site.engine, quiet=quiet, as_jsonl=as_jsonl, as_json=as_json)


@queue.command()
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@utc_option
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> None:
    """Show the jobs, workers, pause and rate limit of a queue."""
    from holdfast.cli.queue_views import print_queue

    with existing(url, name) as site:
        note_location(site.location)
        print_queue(site.engine, name, site.deployment.settings.rates.get(name), as_json=as_json)


@queue.command()
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@click.option("--reset", is_flag=True, help="Make all tokens available again.")
@dry_run_option
@url_option
@json_option
def limit(name: str, reset: bool, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Show the rate limit of a queue and its usage, or reset it.

    \b
    Examples:
      holdfast queue limit mail
      holdfast queue limit mail --reset
    """
    from holdfast.cli.queue_views import usage_text
    from holdfast.definition.definition import check_queue
    from holdfast.state.limits import queue_limiter

    with existing(url, check_queue(name)) as site:
        note_location(site.location)
        limiter = queue_limiter(site.engine, name, site.deployment.settings.rate_of(name))
        if reset and not dry_run:
            limiter.reset()
        usage = limiter.usage()
    if as_json:
        fields = {field: getattr(usage, field) for field in usage.__struct_fields__}
        write_json(QueueLimitDocument(queue=name, reset=reset and not dry_run, **fields))
    else:
        sign = "" if not reset else "would reset " if dry_run else "✓ "
        write(f"{sign}{name}: {usage_text(usage)}")
        if reset and not dry_run:
            note("  jobs that were snoozed by RateLimited keep their due times")


@queue.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@click.option("--reason", default="", metavar="TEXT", help="Reason for the pause, shown with the queue.")
@dry_run_option
@url_option
@json_option
def pause(names: tuple[str, ...], reason: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Stop workers from claiming jobs from a queue. Running jobs continue."""
    from holdfast.definition.definition import check_queue

    chosen = [check_queue(name) for name in dict.fromkeys(names)]
    with existing(url, *chosen, creates=not dry_run) as site:
        note_location(site.location)
        unknown = {} if as_json else unknown_queues(site.engine, *chosen)
        if not dry_run:
            for name in chosen:
                site.engine.pause(name, reason)
    if as_json:
        write_json([PausedDocument(queue=name, paused=not dry_run, reason=reason) for name in chosen])
        return
    for name in chosen:
        write(f"would pause {name}" if dry_run else f"✓ {name} paused")
    for name, hint in unknown.items():
        undo = "" if dry_run else f"  undo:  {command('holdfast', 'queue', 'resume', name)}"
        note(f"  queue '{name}' has no jobs and no worker; {hint or 'see  holdfast queue list'}{undo}")
    if not dry_run and len(unknown) < len(chosen):
        note(f"  resume:  {command('holdfast', 'queue', 'resume', *(name for name in chosen if name not in unknown))}")


@queue.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@dry_run_option
@url_option
@json_option
def resume(names: tuple[str, ...], dry_run: bool, url: str | None, as_json: bool) -> None:
    """Let workers claim jobs from a paused queue again."""
    from holdfast.definition.definition import check_queue

    chosen = [check_queue(name) for name in dict.fromkeys(names)]
    with existing(url, *chosen) as site:
        note_location(site.location)
        paused = {pause.queue for pause in site.engine.pauses()}
        answers = {name: name in paused if dry_run else site.engine.resume(name) for name in chosen}
    if as_json:
        write_json([ResumedDocument(queue=name, resumed=was and not dry_run) for name, was in answers.items()])
        return
    for name, was_paused in answers.items():
        if was_paused:
            write(f"would resume {name}" if dry_run else f"✓ {name} resumed")
        else:
            hint = did_you_mean(name, paused)
            note(f"{name} is not paused; {hint or 'see  holdfast queue list'}")


@queue.command()
@click.argument(
    "queues",
    metavar="[QUEUE]...",
    nargs=-1,
    type=WeightedQueues(),
    callback=merged_queues,
    shell_complete=complete_queues,
)
@app_option("Application to run; default: the setting app. Without one, only command jobs run.")
@click.option("--once", "--oneTime", "-oneTime", "once", is_flag=True, help="Run one job, if one is due, and exit.")
@work_options
@click.pass_context
def work(ctx: click.Context, /, once: bool, **given: Any) -> Any:
    """Run jobs from these queues until stopped. Default: the setting default-queue.

    Same as `holdfast worker start`, but takes the queues as arguments.

    \b
    Examples:
      holdfast queue work mail --app shop:hf
      holdfast queue work mail:3 default --allow sleep --burst
    """
    from holdfast.cli.worker.command import start

    if once:
        given |= {"burst": True, "max_jobs": 1}
    return ctx.invoke(start, **given)


@queue.command()
@click.argument("name", metavar="[QUEUE]", required=False, shell_complete=complete_queues)
@dry_run_option
@url_option
@json_option
def reap(name: str | None, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Requeue jobs whose leases have expired. Workers do this automatically."""
    from holdfast.definition.definition import check_queue

    if name is not None:
        check_queue(name)
    with existing(url, name) as site:
        note_location(site.location)
        engine = site.engine
        number = _expired(engine, name) if dry_run else engine.reap_expired(name)
    if as_json:
        write_json(ReapDocument(reaped=0 if dry_run else number, expired=number))
    elif dry_run:
        write(f"would reap {counted(number, 'job')}")
    else:
        write(f"✓ {counted(number, 'job')} reaped")


def _expired(engine: Engine, name: str | None) -> int:
    now = datetime.now(UTC)
    leased = _jobs(engine, name, (JobState.PROCESSING,))
    return sum(job.lease_until is not None and job.lease_until < now for job in leased)


@queue.command()
@click.argument("name", metavar="[QUEUE]", required=False, shell_complete=complete_queues)
@click.option("--queue", "named", metavar="NAME", shell_complete=complete_queues, help="Same as QUEUE.")
@click.option("--all", "everything", is_flag=True, help="Purge every queue.")
@click.option("--confirm", "confirmation", metavar="all", help="Confirm --all without a prompt.")
@click.option(
    "--state",
    "--status",
    "states",
    type=FinalStates(),
    default="completed",
    metavar="STATE",
    help="States to purge: completed, dead, cancelled, or all; default: completed.",
)
@click.option("--before", "age_s", type=Span(), help="Only jobs that finished longer ago than this.")
@change_options
@url_option
@json_option
def purge(
    name: str | None,
    named: str | None,
    everything: bool,
    confirmation: str | None,
    states: tuple[JobState, ...],
    age_s: float | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Permanently delete finished jobs. Unfinished jobs are never purged.

    \b
    Examples:
      holdfast queue purge mail --before 7d --dry-run
      holdfast queue purge --all --state completed,cancelled --confirm=all
    """
    from holdfast.definition.definition import check_queue

    if len({word for word in (name, named) if word is not None}) + everything != 1:
        raise click.UsageError("name one queue, or pass --all")
    name = name or named
    if confirmation is not None and not everything:
        raise click.UsageError("--confirm is for --all; for one queue pass --yes")
    place = "all queues" if name is None else f"queue {check_queue(name)}"
    with existing(url, name) as site:
        note_location(site.location)
        engine = site.engine
        meant = _finished(engine, name, states, age_s)
        kind = ",".join(states)
        what = f"{counted(meant, f'{kind} job')} from {place}"
        if meant and not dry_run:
            if everything:
                confirm_severe(f"permanently delete {what}", EVERYTHING, said=confirmation)
            else:
                confirm(f"permanently delete {what}", yes=yes)
            older_than = None if age_s is None else timedelta(seconds=age_s)
            number = engine.purge(states, queue=name, older_than=older_than)
        else:
            number = 0
    if as_json:
        write_json(PurgeDocument(purged=number, meant=meant))
    elif dry_run:
        write(f"would purge {what}")
    elif meant:
        write(f"✓ {counted(number, 'job')} purged from {place}")
    else:
        ago = "" if age_s is None else f" that finished more than {format_duration(age_s)} ago"
        note(f"no {' or '.join(states)} jobs{ago} in {place}")


def _finished(engine: Engine, name: str | None, states: tuple[JobState, ...], age_s: float | None) -> int:
    """The exact number of jobs that a purge would delete."""
    if age_s is None:
        return sum(numbers.get(state, 0) for numbers in engine.counts(name).values() for state in set(states))
    latest = datetime.now(UTC) - timedelta(seconds=age_s)
    return sum(job.finished_at is not None and job.finished_at <= latest for job in _jobs(engine, name, states))


def _jobs(engine: Engine, name: str | None, states: tuple[JobState, ...]) -> Iterator[JobView]:
    from holdfast.search import walk

    filters = Filters(queue=name, job=None, tags=(), searches=(), since=None, until=None, states=(states,))
    return walk(engine, filters.plan())
