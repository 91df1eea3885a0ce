"""Command lines that several commands suggest."""

from holdfast.cli.words import command


def starting(queue: str | None = None, *, app: str | None = None, job: str | None = None) -> str:
    """The command that starts a worker for a queue. It names the application, unless the setting `app` does."""
    from holdfast.cli.options import configured
    from holdfast.handlers import COMMAND_KEY

    words, configured_app = ["holdfast", "worker", "start"], configured("app")
    if job != COMMAND_KEY and not (configured_app and app in (None, configured_app)):
        words.append(app or "APP")
    if queue not in (None, configured("default-queue")):
        words += ["--queue", queue]
    return command(*words)
