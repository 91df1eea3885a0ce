"""`manage.py holdfast …`: the command line of Holdfast for a backend in TASKS."""

import os
import sys
from argparse import REMAINDER
from pathlib import Path
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from holdfast.cli import COMMANDS, main
from holdfast.config import KEYS
from holdfast.contrib.django import worker
from holdfast.contrib.django.backend import backend_of
from holdfast.contrib.django.framework import DEFAULT_TASK_BACKEND_ALIAS
from holdfast.contrib.django.place import BackendPlace
from holdfast.queues.keyfiles import KEY_VARIABLE

TAKE_APP: Final = (["worker", "start"], ["queue", "work"], ["cronjob", "daemon"], ["doctor"])
"""The commands that take an application."""


class Command(BaseCommand):
    help = "Run Holdfast commands for a backend in TASKS, such as `worker start`, `list` and `dlq retry`."
    requires_system_checks: Any = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--backend", default=DEFAULT_TASK_BACKEND_ALIAS, metavar="ALIAS", help="Alias of the backend in TASKS."
        )
        parser.add_argument(
            "arguments",
            nargs=REMAINDER,
            metavar="COMMAND ...",
            help=f"One of {', '.join(COMMANDS)}, with its options; add --help for details. `cron` runs schedules until "
            "stopped; with arguments, it is the same as `cronjob`.",
        )

    def handle(self, *_: Any, backend: str, arguments: list[str], **__: Any) -> None:
        if arguments[:1] == ["cron"]:
            arguments = ["cronjob", *(arguments[1:] or ["daemon"])]
        try:
            place = backend_of(backend).place
        except ImproperlyConfigured as problem:
            raise CommandError(str(problem)) from problem
        if place.problem is not None:
            raise CommandError(place.problem)
        if arguments[:1] != ["doctor"] and takes_app(arguments):
            self.check()
        os.environ["PYTHONPATH"] = _path()
        if not takes_app(arguments):
            # An application has these settings already, and in a worker they would also apply to other backends.
            os.environ |= _environment(backend, place)
        if arguments[:1] == ["generate"] and len(arguments) > 1:
            arguments = [*arguments, "--django", str(Path(sys.argv[0]).resolve().parent), backend]
        arguments = with_app(arguments, f"{worker.__name__}:{backend}")
        # A worker with --reload restarts itself with these arguments.
        sys.argv = ["holdfast", *arguments]
        main(arguments)


def takes_app(arguments: list[str]) -> bool:
    """Whether this is a command that takes an application."""
    runs_due = arguments[:2] == ["cronjob", "run"] and "--due" in arguments and "--dry-run" not in arguments
    return runs_due or any(arguments[: len(command)] == command for command in TAKE_APP)


def with_app(arguments: list[str], app: str) -> list[str]:
    """The arguments with the application added."""
    if not takes_app(arguments):
        return arguments
    if arguments[1:2] in (["start"], ["daemon"]):
        return [*arguments[:2], app, *arguments[2:]]
    return [*arguments, "--app", app]


def _environment(backend: str, place: BackendPlace) -> dict[str, str]:
    """The environment variables with which other commands find the jobs of this backend."""
    key = {} if place.signing_key is None else {KEY_VARIABLE: place.signing_key}
    settings = {variable: value for name, value in _settings(backend) if (variable := KEYS[name].variable) is not None}
    queue = {"HOLDFAST_DEFAULT_QUEUE": place.settings.default_queue}
    return {**settings, **key, **queue, "HOLDFAST_URL": place.url}


def _settings(backend: str) -> list[tuple[str, str]]:
    """The settings among the OPTIONS, as environment variables have them."""
    options: dict[str, Any] = backend_of(backend).options
    named = [(name.replace("_", "-"), value) for name, value in options.items()]
    return [
        (name, ",".join(value) if isinstance(value, list | tuple) else str(value))  # pyright: ignore[reportUnknownArgumentType]
        for name, value in named
        if name in KEYS and not isinstance(value, dict)
    ]


def _path() -> str:
    """The Python path on which worker processes find the project: the directory of `manage.py` first."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(Path(sys.path[0]).resolve()), *(place for place in given if place)])
