"""`holdfast logs`: what a job has printed, attempt by attempt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.documents import LogDocument
from holdfast.cli.failing import FAILED, NOT_FOUND
from holdfast.cli.options import existing, json_option, jsonl_option, url_option
from holdfast.cli.output import instant, plain, print_json, print_jsonl, say, say_where, span, utc_option
from holdfast.cli.progress import StatusLine
from holdfast.cli.waiting import looks
from holdfast.errors import UnknownJob
from holdfast.values import AttemptView, JobHistory, JobState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine


class NoSuchAttempt(click.ClickException):
    """The job has made no attempt of that number."""

    exit_code = NOT_FOUND


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", "number", type=click.IntRange(min=1), metavar="N", help="Only of this attempt, from 1 on.")
@jsonl_option
@utc_option
@url_option
@json_option
def logs(job_id: str, follow: bool, number: int | None, as_jsonl: bool, url: str | None, as_json: bool) -> int:
    """Print what a job has printed. An attempt's output is kept when the attempt ends.

    \b
    Examples:
      holdfast logs job1
      holdfast logs job1 --attempt 2
      holdfast logs job1 -f
    """
    if as_json and (as_jsonl or follow):
        raise click.UsageError("--json is one document at the end of everything; say --jsonl instead")
    with existing(url, job=job_id) as hf:
        say_where(hf.location)
        engine = hf.backend()
        history = _get(engine, job_id)
        if follow:
            return _follow(engine, history, number, as_jsonl=as_jsonl)
    attempts = _chosen(history, number)
    if as_json:
        print_json([_document(at, attempt) for at, attempt in attempts])
        return 0
    for at, attempt in attempts:
        print_attempt(at, attempt, as_jsonl=as_jsonl)
    if not attempts:
        say(f"{job_id} is {history.job.state} and has made no attempt yet; wait for it with  -f")
    elif not as_jsonl and not any(attempt.record.output for _, attempt in attempts):
        say("nothing was printed")
    return 0


def _get(engine: Engine, job_id: str) -> JobHistory:
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    return history


def _chosen(history: JobHistory, number: int | None) -> list[tuple[int, AttemptView]]:
    attempts = list(enumerate(history.attempts, start=1))
    if number is None:
        return attempts
    if number > len(attempts):
        made = f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'}"
        raise NoSuchAttempt(
            f"job '{history.job.id}' has made {made} so far, so there is no attempt {number}: name another, or wait "
            "for it with  --follow"
        )
    return [attempts[number - 1]]


def _follow(engine: Engine, history: JobHistory, number: int | None, *, as_jsonl: bool) -> int:
    """Print attempts as they end, until there can be no more that is asked for."""
    line, printed, job_id = StatusLine(), 0, history.job.id
    try:
        for _ in looks(0):
            for at, attempt in list(enumerate(history.attempts, start=1))[printed:]:
                printed = at
                if number in (None, at):
                    line.clear()
                    print_attempt(at, attempt, as_jsonl=as_jsonl)
            if history.job.state.is_final or (number is not None and printed >= number):
                break
            line.show("running…" if history.job.state is JobState.PROCESSING else f"{history.job.state}…")
            found = engine.get(job_id)
            if found is None:
                line.clear()
                say(f"the record of {job_id} is no longer kept")
                return FAILED
            history = found
    finally:
        line.clear()
    if number is not None and printed < number:
        _chosen(history, number)
    return 0


def print_attempt(number: int, attempt: AttemptView, *, as_jsonl: bool) -> None:
    """What an attempt has printed, under a line that says which it was."""
    record = attempt.record
    if as_jsonl:
        print_jsonl([_document(number, attempt)])
        return
    say(f"#{number} {record.outcome} at {instant(record.started_at)}, took {span(record.duration_s)}")
    if record.output:
        click.echo(plain(record.output), nl=not record.output.endswith("\n"))
        sys.stdout.flush()


def _document(number: int, attempt: AttemptView) -> LogDocument:
    record = attempt.record
    return LogDocument(
        attempt=number,
        delivery=attempt.delivery,
        outcome=record.outcome,
        started_at=record.started_at,
        ended_at=record.ended_at,
        output=record.output,
    )
