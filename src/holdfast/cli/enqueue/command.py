"""`holdfast enqueue`: add jobs from arguments, JSON, a file, stdin, or a command."""

from typing import Any

import click
from msgspec.structs import replace

from holdfast.cli.enqueue.options import EnqueueChoices, enqueue_options
from holdfast.cli.job_options import take_options
from holdfast.cli.options import WithWait, configured_app


@click.command(cls=WithWait)
@enqueue_options
def enqueue(**given: Any) -> int:
    """Add jobs from --job and its arguments, a JSON object, @FILE, - (JSON lines on stdin), or a command after --.

    All jobs in one call are added, or none are. Options apply to every job and override the JSON.

    \b
    Examples:
      holdfast enqueue '{"id": "job1", "command": "sleep 2"}'
      holdfast enqueue --job send_mail to=ada@example.org copies:=2 --at 'tomorrow 9:00'
      holdfast enqueue --app shop:hf --job resize width=640 --wait 5m
      holdfast enqueue '{"job": "send_mail", "payload": {"to": "ada@example.org"}, "priority": 8}'
      holdfast enqueue @jobs.jsonl
      make-jobs | holdfast enqueue -
      holdfast enqueue --queue nightly --delay 2h -- pg_dump shop
    """
    # Imported here: --help does not need it.
    from holdfast.cli.enqueue.adding import act

    choices = EnqueueChoices(options=take_options(given), **given)
    choices.check()
    if choices.job is not None and choices.app is None:
        choices = replace(choices, app=configured_app())
    return act(choices)
