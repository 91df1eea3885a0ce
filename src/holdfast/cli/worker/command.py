"""The group `holdfast worker`, and `start`, whose code is imported only when it runs."""

from typing import Any

import click

from holdfast.cli import OrderedGroup
from holdfast.cli.worker.options import StartChoices, start_options
from holdfast.cli.worker.stop import stop
from holdfast.cli.worker.views import list_workers, show_worker


@click.group(cls=OrderedGroup)
def worker() -> None:
    """Start, list and stop workers."""


@worker.command()
@start_options
def start(**given: Any) -> int:
    """Run jobs until stopped.

    APP is your application, as MODULE:NAME; default: the setting app. Without one, the worker runs only command jobs
    with allowed programs. Jobs run in child processes; no job is lost when one of them crashes. Ctrl-C, SIGTERM or
    closing the terminal stops the worker once its running jobs have finished. A second signal stops it at once and
    requeues them.

    \b
    Examples:
      holdfast worker start shop:hf --queue mail:3,default --count 4
      holdfast worker start --allow sleep --burst
    """
    from holdfast.cli.worker.running import run_worker

    return run_worker(StartChoices(**given))


worker.add_command(list_workers)
worker.add_command(show_worker)
worker.add_command(stop)
