"""Command lines that several commands suggest."""

from holdfast.cli.words import command
from holdfast.values import DEFAULT_QUEUE


def starting(queue: str = DEFAULT_QUEUE, *, app: str | None = None, job: str | None = None) -> str:
    """The command that starts a worker for a queue. It names the application, unless the setting `app` does."""
    from holdfast.cli.options import configured_app
    from holdfast.handlers import COMMAND_KEY

    words, configured = ["holdfast", "worker", "start"], configured_app()
    if job != COMMAND_KEY and not (configured and app in (None, configured)):
        words.append(app or "APP")
    if queue != DEFAULT_QUEUE:
        words += ["--queue", queue]
    return command(*words)
