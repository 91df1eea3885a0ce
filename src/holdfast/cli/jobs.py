"""`holdfast list` and `holdfast show`: jobs, and one job."""

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.options import States, existing, json_option, url_option
from holdfast.cli.output import (
    age,
    history_document,
    instant,
    job_document,
    plain,
    print_json,
    print_table,
    say,
    say_where,
    span,
)
from holdfast.cli.progress import words
from holdfast.errors import ConfigError, UnknownJob
from holdfast.values import AttemptView, JobFilter, JobHistory, JobState, JobView, Page


@click.command("list")
@click.option("--state", "states", type=States(), multiple=True, metavar="S", help="Only these states; repeatable.")
@click.option("--queue", "-q", metavar="NAME", help="Only this queue.")
@click.option("--job", metavar="KEY", help="Only jobs of this handler.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--after", metavar="CURSOR", help="Continue where the page before ended.")
@url_option
@json_option
def list_jobs(
    states: tuple[tuple[JobState, ...], ...],
    queue: str | None,
    job: str | None,
    limit: int,
    after: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show jobs, newest first.

    \b
    Examples:
      holdfast list --state pending
      holdfast list --state failed,dead --queue mail --json
    """
    where = JobFilter(states=tuple(state for group in states for state in group), queue=queue, job=job)
    with existing(url) as hf:
        say_where(hf.location)
        page = find_page(hf, where, limit, after)
    print_page(page, as_json=as_json)


def find_page(hf: Holdfast, where: JobFilter, limit: int, after: str | None) -> Page:
    """One page of jobs; a cursor that is none is the caller's mistake."""
    try:
        return hf.backend().find(where, limit=limit, after=after)
    except (ValueError, OverflowError):
        if after is None:
            raise
        raise ConfigError(f"{after!r} is no cursor: pass what the page before printed") from None


def print_page(page: Page, *, as_json: bool) -> None:
    """Jobs as a table, or as a JSON array."""
    if as_json:
        print_json([job_document(job) for job in page.jobs])
    elif page.jobs:
        print_table(("ID", "STATE", "JOB", "QUEUE", "TRY", "AGE", "ERROR"), [_row(job) for job in page.jobs])
    else:
        say("no jobs")
    if page.next is not None:
        say(f"more:  --after {page.next}")


def _row(job: JobView) -> tuple[object, ...]:
    runs = "?" if job.max_retries is None else job.max_retries + 1
    error = job.cancel_reason if job.state is JobState.CANCELLED else job.last_error
    shortened = f"{error[:77]}…" if error and len(error) > 78 else error
    return (
        job.id,
        job.state,
        job.name or job.job,
        job.queue,
        f"{job.attempts}/{runs}",
        age(job.accepted_at),
        shortened or "",
    )


@click.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show one job with its history."""
    with existing(url) as hf:
        say_where(hf.location)
        history = hf.backend().get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    print_history(history, as_json=as_json)


def print_history(history: JobHistory, *, as_json: bool) -> None:
    """One job with every attempt."""
    if as_json:
        print_json(history_document(history))
        return
    for name, value in _facts(history.job):
        click.echo(f"{name:<12} {plain(value)}")
    for number, attempt in enumerate(history.attempts, start=1):
        _print_attempt(number, attempt)


def _facts(job: JobView) -> list[tuple[str, object]]:
    facts: list[tuple[str, object | None]] = [
        ("id", job.id),
        ("state", f"{job.state} ({job.dead_reason})" if job.dead_reason else job.state),
        ("job", job.job),
        ("name", job.name),
        ("queue", f"{job.queue} (priority {job.priority})"),
        ("attempts", f"{job.attempts} failed of {'?' if job.max_retries is None else job.max_retries + 1}"),
        ("crashes", job.crashes or None),
        ("accepted", instant(job.accepted_at)),
        ("due", instant(job.due_at)),
        ("finished", instant(job.finished_at) if job.finished_at else None),
        ("progress", _progress(job)),
        ("leased until", instant(job.lease_until) if job.lease_until else None),
        ("expires", instant(job.expires_at) if job.expires_at else None),
        ("timeout", None if job.timeout is None else span(job.timeout) if job.timeout else "none"),
        ("fenced", "killed if its worker cannot prove its lease" if job.fence else None),
        ("cancelled", job.cancel_reason),
        ("cancelling", "asked for, its worker will see it" if job.cancel_requested else None),
        ("tags", ", ".join(job.tags) or None),
        ("trace", job.trace_id),
        ("meta", bytes(job.meta).decode(errors="replace") if bytes(job.meta) != b"{}" else None),
        ("payload", bytes(job.payload).decode(errors="replace")),
        ("last error", job.last_error),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _progress(job: JobView) -> str | None:
    if job.progress is None:
        return None
    ago = f", {age(job.progress.at)} ago" if job.progress.at else ""
    return f"{words(job.progress)}{ago}"


def _print_attempt(number: int, attempt: AttemptView) -> None:
    record = attempt.record
    click.echo(f"\n#{number} {record.outcome} at {instant(record.started_at)}, took {span(record.duration_s)}")
    if record.result is not None:
        click.echo(f"  result  {plain(msgspec.json.format(record.result, indent=0).decode())}")
    if record.note:
        click.echo(f"  note    {plain(record.note)}")
    if record.error is not None:
        click.echo(_indented(record.error.traceback or record.error.line))
    if record.output:
        click.echo("  output:")
        click.echo(_indented(record.output))


def _indented(text: str) -> str:
    return "\n".join(f"  | {plain(line)}" for line in text.rstrip("\n").split("\n"))
