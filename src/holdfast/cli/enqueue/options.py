"""The options of `holdfast enqueue`, and what they mean for the jobs it adds."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from holdfast.cli.enqueue.instants import SpanOrWhen, When
from holdfast.cli.labels import LABEL_OPTIONS, Labels, only_said
from holdfast.cli.options import Span, json_option, url_option, wait_option, with_options
from holdfast.cli.output import utc_option

F = TypeVar("F", bound=Callable[..., Any])


class EnqueueChoices(Labels, frozen=True, kw_only=True):
    """What was chosen on the command line, by the names of the options."""

    words: tuple[str, ...]
    job: str | None
    app: str | None
    command: str | None
    file: str | None
    queue: str | None
    priority: int | None
    max_retries: int | None
    backoff: str | None
    timeout: float | None
    delay: float | None
    run_at: datetime | None
    expires: float | datetime | None
    fence: bool
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
            ("--delay", "--run-at", self.delay is not None and self.run_at is not None),
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
        is_instant = isinstance(self.expires, datetime)
        said: dict[str, Any] = {
            "queue": self.queue,
            "priority": self.priority,
            "max_retries": self.max_retries,
            "backoff": self.backoff,
            "timeout": self.timeout,
            "delay": self.delay,
            "run_at": self.run_at,
            "expires_at" if is_instant else "expires": self.expires,
            "fence": self.fence or None,
            "cwd": self.cwd,
        }
        return {**super().fields(), **only_said(said)}


class _BackoffText(click.ParamType[str]):
    """A backoff that can be read; kept as it was written."""

    name = "backoff"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from holdfast.definition.backoff import parse_backoff

        try:
            parse_backoff(str(value))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)
        return str(value)


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
    *LABEL_OPTIONS,
    click.option("--queue", "-q", metavar="NAME", help="The queue, instead of the one in the JSON."),
    click.option("--priority", "-p", type=click.IntRange(0, 9), help="0 to 9, higher first."),
    click.option("--max-retries", "-r", type=click.IntRange(0, 1000), metavar="N", help="Retries after the first run."),
    click.option(
        "--backoff",
        type=_BackoffText(),
        metavar="HOW",
        help="Between retries: none, fixed:10s, linear:5s,max=1m, exponential:2s,max=10m, or delays: 1s,5s,1m.",
    ),
    click.option("--timeout", "-t", type=Span(), metavar="SPAN", help="The longest one attempt may take."),
    click.option("--delay", type=Span(), metavar="SPAN", help="Not before that long from now."),
    click.option(
        "--run-at", "--at", "run_at", type=When(), metavar="WHEN", help="Not before then: 14:30, tomorrow 9:00, …"
    ),
    click.option("--expires", type=SpanOrWhen(), metavar="WHEN", help="Not started after that span or time."),
    click.option("--fence", is_flag=True, help="Kill a run whose worker cannot prove its lease."),
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
