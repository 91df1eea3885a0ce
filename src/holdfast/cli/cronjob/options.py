"""The options of `holdfast cronjob add`, `run` and `daemon`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from holdfast.cli.completion import complete_app, complete_queues, complete_schedules
from holdfast.cli.options import app_option, given_or_configured, json_option, url_option, with_options
from holdfast.cli.selecting import dry_run_option
from holdfast.cli.words import utc_option
from holdfast.cli.worker.options import LOG_LEVELS
from holdfast.config.schedules import MEMBERS

F = TypeVar("F", bound=Callable[..., Any])

_METAVARS: Final = {
    "cron": "EXPRESSION",
    "timezone": "ZONE",
    "queue": "NAME",
    "depends-on": "NAME,NAME",
    "environments": "NAME,NAME",
    "starts-at": "WHEN",
    "ends-at": "WHEN",
    "owner": "TEXT",
    "note": "TEXT",
}
_COMPLETIONS: Final = {"queue": complete_queues, "depends-on": complete_schedules}
# The arguments of the command define the job, and a new schedule is enabled.
OPTIONS: Final = [member for name, member in MEMBERS.items() if name not in ("command", "job", "payload", "enabled")]


def add_options(command: F) -> F:
    """Add the options of a schedule."""
    return with_options((*_ADDING, *(_member_option(member.name) for member in OPTIONS), *_COMMON), command)


def run_options(command: F) -> F:
    return with_options(_RUNNING, command)


def daemon_options(command: F) -> F:
    return with_options(_DAEMON, command)


def _member_option(name: str) -> Callable[[Any], Any]:
    member = MEMBERS[name]
    help = f"{member.meaning[:1].upper()}{member.meaning[1:]}."
    if member.kind == "flag":
        return click.option(f"--{name}", is_flag=True, help=help)
    kinds = {"duration": "DURATION", "count": "N"}
    return click.option(
        f"--{name}",
        type=click.Choice(member.choices) if member.choices else str,
        metavar=None if member.choices else kinds.get(member.kind) or _METAVARS[name],
        shell_complete=_COMPLETIONS.get(name),
        help=help,
    )


_COMMON: Final = (dry_run_option, utc_option, url_option, json_option)
_ADDING: Final = (
    click.argument("name"),
    click.argument("words", metavar="[COMMAND | ARGUMENT]...", nargs=-1, type=click.UNPROCESSED),
    click.option("--job", metavar="KEY", help="Handler key; its arguments follow, as K=TEXT or K:=JSON."),
)
_RUNNING: Final = (
    click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_schedules),
    click.option("--due", is_flag=True, help="Run all schedules that are due now."),
    click.option(
        "--test-time",
        "-testTime",
        "test_time",
        metavar="WHEN",
        help="Show what would run in this minute, such as '2027-03-28 02:30'; enqueue nothing.",
    ),
    click.option(
        "--only",
        "-only",
        "only",
        metavar="NAME,NAME",
        shell_complete=complete_schedules,
        help="With --due or --test-time: only these schedules.",
    ),
    click.option("--enqueue", is_flag=True, help="With --test-time: enqueue the jobs that would run, once each."),
    app_option("Application whose schedules are run with --due; default: the setting app."),
    *_COMMON,
)
_DAEMON: Final = (
    click.argument("app", required=False, callback=given_or_configured, shell_complete=complete_app),
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="info",
        help="Log level on stderr; info logs each run. Default: info.",
    ),
    url_option,
)
