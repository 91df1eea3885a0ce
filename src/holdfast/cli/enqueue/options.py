"""The options of `holdfast enqueue`."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.job_options import job_options
from holdfast.cli.options import json_option, jsonl_option, url_option, wait_option, with_options
from holdfast.cli.words import utc_option

F = TypeVar("F", bound=Callable[..., Any])


class EnqueueChoices(Struct, frozen=True, kw_only=True):
    """The parameters of the command. `options` are the job options, as JSON fields."""

    options: dict[str, Any]
    words: tuple[str, ...]
    job: str | None
    app: str | None
    command: str | None
    file: str | None
    cwd: str | None
    wait_s: float | None
    follow: bool
    dry_run: bool
    quiet: bool
    no_input: bool
    url: str | None
    as_json: bool
    as_jsonl: bool

    def check(self) -> None:
        """Refuse options that contradict each other."""
        for first, second, are_both in (
            ("--delay", "--run-at", "delay" in self.options and "run_at" in self.options),
            ("--command", "--job", self.command is not None and self.job is not None),
            ("--command", "arguments", self.command is not None and bool(self.words)),
            ("--command", "--file", self.command is not None and self.file is not None),
            ("--file", "arguments", self.file is not None and bool(self.words)),
            ("--cwd", "--job", self.cwd is not None and self.job is not None),
            ("--json", "--jsonl", self.as_json and self.as_jsonl),
            ("--quiet", "--json", self.quiet and (self.as_json or self.as_jsonl)),
            ("--dry-run", "--wait", self.dry_run and self.is_waiting),
        ):
            if are_both:
                raise click.UsageError(f"{first} and {second} cannot both be given")
        if self.follow and self.as_json:
            raise click.UsageError("--json prints one document at the end; pass --jsonl with --follow")

    @property
    def is_waiting(self) -> bool:
        return self.wait_s is not None or self.follow

    def fields(self) -> dict[str, Any]:
        """The JSON fields that override those of every job."""
        return self.options if self.cwd is None else {**self.options, "cwd": self.cwd}


def enqueue_options(command: F) -> F:
    """Add the options to a command; they arrive as the fields of `EnqueueChoices`."""
    return with_options(_OPTIONS, command)


# In the order of the help.
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.argument("words", metavar="[SPEC]...", nargs=-1, type=click.UNPROCESSED),
    click.option("--job", metavar="KEY", help="Handler key; its arguments follow, as K=TEXT or K:=JSON."),
    click.option("--app", metavar="MODULE:NAME", help="Application to check the jobs against."),
    click.option("--command", "-c", metavar="TEXT", help="Command as a single string, split the way a shell would."),
    click.option("--file", "--from-file", "file", metavar="FILE", help="Read SPEC from this file, like @FILE."),
    *job_options(),
    click.option("--cwd", metavar="DIR", help="Working directory for the command, on the worker's host."),
    wait_option(alone="0", help="Wait up to this long for the job to finish, and print its result."),
    click.option("--follow", is_flag=True, help="Wait, and print the output of each attempt."),
    click.option("--dry-run", is_flag=True, help="Check the jobs and show them, without storing them."),
    click.option("--quiet", is_flag=True, help="Print only ids, one per line."),
    click.option("--no-input", is_flag=True, help="Never read from a terminal."),
    utc_option,
    url_option,
    json_option,
    jsonl_option,
)
