"""The group `holdfast cronjob`.

`reading.py` finds schedules and `views.py` prints them, `changing.py` adds, switches and removes them, and `running.py`
runs them.
"""

from __future__ import annotations

from typing import Any, Final

import click

from holdfast.cli import OrderedGroup
from holdfast.cli.completion import complete_schedules
from holdfast.cli.cronjob.options import add_options, daemon_options, run_options
from holdfast.cli.options import existing, json_option, jsonl_option, one_form, url_option
from holdfast.cli.output import note, note_location, write, write_json, write_jsonl, write_names
from holdfast.cli.selecting import dry_run_option
from holdfast.cli.words import command, utc_option

PAGE: Final = 30
NEXT: Final = 10


@click.group(cls=OrderedGroup)
def cronjob() -> None:
    """List, run and change schedules.

    A schedule enqueues a job at certain times. Schedules are defined in the code of an application, in the settings,
    or with `cronjob add`. Workers run them, and so do `cronjob daemon` and `cronjob run --due`.
    """


@cronjob.command("list")
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one per line.")
@jsonl_option
@utc_option
@url_option
@json_option
def list_schedules(quiet: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List schedules with their last and next runs.

    NEXT is in the schedule's own time zone.
    """
    from holdfast.cli.cronjob.documents import cronjob_document
    from holdfast.cli.cronjob.reading import known_schedules
    from holdfast.cli.cronjob.views import BAR, LEGEND, schedules_table

    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        found = known_schedules(site, url=url, history=0 if quiet else BAR)
    if as_json:
        write_json([cronjob_document(one) for one in found])
    elif as_jsonl:
        write_jsonl(cronjob_document(one) for one in found)
    elif quiet:
        write_names(one.view.name for one in found)
    elif found:
        schedules_table(found).print()
        if any(one.view.history for one in found):
            note(LEGEND)
    else:
        note("no schedules yet; add one:  holdfast cronjob add NAME --cron '0 2 * * *' -- COMMAND")
    if not quiet and url is None:
        for name in site.deployment.others:
            note(f"other backend: {name} (holdfast cronjob list --url {name})")


@cronjob.command("show")
@click.argument("name", shell_complete=complete_schedules)
@utc_option
@url_option
@json_option
def show_schedule(name: str, url: str | None, as_json: bool) -> None:
    """Show one schedule."""
    from holdfast.cli.cronjob.documents import cronjob_document
    from holdfast.cli.cronjob.reading import known_schedule
    from holdfast.cli.cronjob.views import BAR, print_schedule

    with existing(url) as site:
        note_location(site.location)
        known = known_schedule(site, name, url=url, history=BAR)
    if as_json:
        write_json(cronjob_document(known))
    else:
        print_schedule(known)


@cronjob.command("history")
@click.argument("name", shell_complete=complete_schedules)
@click.option("--limit", "-n", type=click.IntRange(1), default=PAGE, help=f"Maximum number of lines; default: {PAGE}.")
@jsonl_option
@utc_option
@url_option
@json_option
def show_history(name: str, limit: int, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """Show the history of a schedule, newest first.

    Each instant was fired, late, skipped or missed. Entries are retained for 30 days, or 40 runs if that is longer. The
    history of a removed schedule can still be shown.
    """
    from holdfast.cli.cronjob.documents import entry_document
    from holdfast.cli.cronjob.reading import known_schedule, schedules_in
    from holdfast.cli.cronjob.views import history_table

    one_form({"--json": as_json, "--jsonl": as_jsonl})
    with existing(url) as site:
        note_location(site.location)
        entries = schedules_in(site).history(name, limit + 1)
        if not entries:
            known_schedule(site, name, url=url)
    shown = entries[:limit]
    if as_json:
        write_json([entry_document(name, entry) for entry in shown])
    elif as_jsonl:
        write_jsonl(entry_document(name, entry) for entry in shown)
    elif shown:
        history_table(shown).print()
        if len(entries) > limit:
            note(f"more exist; to show them:  {command('holdfast', 'cronjob', 'history', name, '-n', limit * 10)}")
    else:
        note(f"{name} has not been due since it was added")


@cronjob.command("next")
@click.argument("name", shell_complete=complete_schedules)
@click.option("-n", "number", type=click.IntRange(1, 1000), default=NEXT, help=f"Number of instants; default: {NEXT}.")
@utc_option
@url_option
@json_option
def next_instants(name: str, number: int, url: str | None, as_json: bool) -> None:
    """Print the next instants of a schedule, in its own time zone."""
    from holdfast.cli.cronjob.documents import InstantDocument
    from holdfast.cli.cronjob.reading import LATEST, known_schedule
    from holdfast.cli.cronjob.views import clock_changes, local

    with existing(url) as site:
        note_location(site.location)
        known = known_schedule(site, name, url=url)
    schedule = known.view.schedule
    moments = [] if schedule is None else schedule.instants(known.now, LATEST, number)
    if schedule is not None:
        rows = [
            InstantDocument(schedule=name, at=moment, local=local(moment, schedule), note=remark)
            for moment, remark in zip(moments, clock_changes(schedule, moments), strict=True)
        ]
        if as_json:
            write_json(rows)
            return
        for row in rows:
            write(f"{row.local}{f'  {row.note}' if row.note else ''}")
    elif as_json:
        write_json([])
    if known.reason and not as_json:
        note(f"{name} does not run: {known.reason}")
    elif not moments and not as_json:
        note(f"{name} is not due again")


_names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_schedules)


@cronjob.command("enable")
@_names_argument
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown with the schedule.")
@dry_run_option
@url_option
@json_option
def enable(names: tuple[str, ...], reason: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Enable schedules, even if their definitions disable them.

    Runs that were skipped while a schedule was disabled are not caught up.
    """
    from holdfast.cli.cronjob.changing import switch

    switch(names, reason, enabled=True, dry_run=dry_run, url=url, as_json=as_json)


@cronjob.command("disable")
@_names_argument
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown with the schedule and in its history.")
@dry_run_option
@url_option
@json_option
def disable(names: tuple[str, ...], reason: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Stop schedules until they are enabled again. Jobs that are already enqueued still run.

    \b
    Examples:
      holdfast cronjob disable sync-crm --reason "vendor outage"
    """
    from holdfast.cli.cronjob.changing import switch

    switch(names, reason, enabled=False, dry_run=dry_run, url=url, as_json=as_json)


@cronjob.command("add")
@add_options
def add(**given: Any) -> None:
    """Add a schedule for a command or a job, or replace the one that was added under this name.

    Running workers pick it up within a second; no deployment is needed. COMMAND must be allowed, as with enqueue.

    \b
    Examples:
      holdfast cronjob add backup --cron "0 2 * * *" --timezone Europe/Berlin -- backup --all
      holdfast cronjob add poll --every 90s --job poll_rates base=EUR
    """
    from holdfast.cli.cronjob.changing import add_schedule

    add_schedule(**given)


@cronjob.command("remove")
@_names_argument
@dry_run_option
@url_option
@json_option
def remove(names: tuple[str, ...], dry_run: bool, url: str | None, as_json: bool) -> None:
    """Remove schedules. Jobs that are already enqueued still run.

    A schedule that is still defined in the code or the settings is stored again when a program that defines it starts.
    To stop such a schedule, use `cronjob disable`.
    """
    from holdfast.cli.cronjob.changing import remove_schedules

    remove_schedules(names, dry_run=dry_run, url=url, as_json=as_json)


@cronjob.command("run")
@run_options
def run(**given: Any) -> int:
    """Run schedules now, run those that are due, or show what would run at a given time.

    With names, the job of each schedule is enqueued once, in addition to its regular runs. With --due, the
    command runs everything that is due, as a worker would, and exits; if no worker or daemon is running, call it every
    minute from the system's cron.

    With --test-time, the command shows what would run in that minute and enqueues nothing, unless --enqueue is given. A
    time without an offset is interpreted in the time zone of each schedule.

    \b
    Examples:
      holdfast cronjob run nightly-report
      holdfast cronjob run --due
      holdfast cronjob run --test-time "2027-03-28 02:30"
    """
    from holdfast.cli.cronjob.running import run_schedules

    return run_schedules(**given)


@cronjob.command("daemon")
@daemon_options
def daemon(**given: Any) -> int:
    """Run schedules until stopped, without a worker.

    The daemon enqueues the jobs that are due; workers run them. Inline jobs run in the daemon. Any number of daemons
    and workers can run at once; each instant still becomes one job. APP is your application, as MODULE:NAME; default:
    the setting app.

    \b
    Examples:
      holdfast cronjob daemon
    """
    from holdfast.cli.cronjob.running import run_daemon

    return run_daemon(**given)
