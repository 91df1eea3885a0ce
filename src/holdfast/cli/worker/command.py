"""`holdfast worker`: its commands, and `start`, of which nothing is loaded before it runs."""

from typing import Any

import click

from holdfast.cli.worker.options import StartChoices, start_options
from holdfast.cli.worker.stop import stop
from holdfast.cli.worker.views import list_workers, show_worker


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
    from holdfast.cli.worker.running import run_worker

    return run_worker(StartChoices(**said))


worker.add_command(list_workers)
worker.add_command(show_worker)
worker.add_command(stop)
