"""The options of `holdfast enqueue`, and what they mean for the jobs it adds."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.job_options import job_options
from holdfast.cli.options import json_option, url_option, wait_option, with_options
from holdfast.cli.words import utc_option

F = TypeVar("F", bound=Callable[..., Any])


class EnqueueChoices(Struct, frozen=True, kw_only=True):
    """The parameters of the command. `options` are those of the jobs, as JSON fields."""

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
        """Refuse what contradicts itself."""
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
            raise click.UsageError("--json is one document at the end of everything; say --jsonl to --follow")

    @property
    def is_waiting(self) -> bool:
        return self.wait_s is not None or self.follow

    def fields(self) -> dict[str, Any]:
        """The JSON fields that replace those of every job."""
        return self.options if self.cwd is None else {**self.options, "cwd": self.cwd}


def enqueue_options(command: F) -> F:
    """Give a command all of them, which arrive as the fields of `EnqueueChoices`."""
    return with_options(_OPTIONS, command)


# In the order of the help.
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.argument("words", metavar="[SPEC]...", nargs=-1, type=click.UNPROCESSED),
    click.option("--job", metavar="KEY", help="The handler; what follows are its arguments, K=TEXT or K:=JSON."),
    click.option("--app", metavar="MODULE:NAME", help="Your application: jobs are checked against its functions."),
    click.option("--command", "-c", metavar="TEXT", help="A command in one text, split as a shell would."),
    click.option("--file", "--from-file", "file", metavar="FILE", help="Read SPEC from this file, like @FILE."),
    *job_options(),
    click.option("--cwd", metavar="DIR", help="The directory a command runs in, on its worker."),
    wait_option(alone="0", help="Wait that long for the job to end, and print its result."),
    click.option("--follow", is_flag=True, help="Wait, and print what it has printed, attempt by attempt."),
    click.option("--dry-run", is_flag=True, help="Keep nothing; check everything and show what would be kept."),
    click.option("--quiet", is_flag=True, help="Print ids only."),
    click.option("--no-input", is_flag=True, help="Never wait for somebody to type."),
    utc_option,
    url_option,
    json_option,
    click.option("--jsonl", "as_jsonl", is_flag=True, help="Print a JSON document on each line."),
)
