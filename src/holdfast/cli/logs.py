"""`holdfast logs`: what a job has printed, attempt by attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_job_ids
from holdfast.cli.failing import FAILED, NOT_FOUND
from holdfast.cli.job_output import JobOutput, ended_document, live_document
from holdfast.cli.options import existing, json_option, jsonl_option, url_option
from holdfast.cli.output import note, note_location, write_json
from holdfast.cli.progress import StatusLine
from holdfast.cli.waiting import looks
from holdfast.cli.words import utc_option
from holdfast.errors import UnknownJob
from holdfast.values import JobHistory, JobState

if TYPE_CHECKING:
    from holdfast.cli.documents import LogDocument
    from holdfast.queues.contract import Engine


class NoSuchAttempt(click.ClickException):
    """The job has made no attempt of that number."""

    exit_code = NOT_FOUND


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "--attempt",
    "number",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only of attempt N, counted over all lives of the job.",
)
@jsonl_option
@utc_option
@url_option
@json_option
def logs(job_id: str, follow: bool, number: int | None, as_jsonl: bool, url: str | None, as_json: bool) -> int:
    """Print what a job has printed. Of a running one, that is what its worker tells each second.

    \b
    Examples:
      holdfast logs job1
      holdfast logs job1 --attempt 2
      holdfast logs job1 -f
    """
    if as_json and (as_jsonl or follow):
        raise click.UsageError("--json is one document at the end of everything; say --jsonl instead")
    output = JobOutput(StatusLine(), follows=follow, number=number, as_jsonl=as_jsonl)
    with existing(url, job=job_id) as site:
        note_location(site.location)
        engine = site.engine
        history = _get(engine, job_id)
        if follow:
            return _follow(engine, history, number, output)
    _check_number(history, number)
    if as_json:
        documents = _documents(history)
        write_json(documents if number is None else [documents[number - 1]])
        return 0
    output.show(history)
    output.close()
    shown = [one for at, one in enumerate(_documents(history), start=1) if number in (None, at)]
    if not shown:
        note(_nothing_yet(history))
    elif not as_jsonl and not any(one.output for one in shown):
        note("nothing was printed")
    return 0


def _nothing_yet(history: JobHistory) -> str:
    job = history.job
    if job.state is JobState.PROCESSING:
        return f"{job.id} is running, and its worker has told no output yet; wait for it with  -f"
    return f"{job.id} is {job.state} and has made no attempt yet; wait for it with  -f"


def _get(engine: Engine, job_id: str) -> JobHistory:
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    return history


def _documents(history: JobHistory) -> list[LogDocument]:
    """Of each attempt what it has printed; of a running one, if it has printed anything."""
    job = history.job
    documents = [ended_document(job.id, at, attempt) for at, attempt in enumerate(history.attempts, start=1)]
    if history.live_output is not None:
        documents.append(live_document(job, len(documents) + 1, history.live_output))
    return documents


def _check_number(history: JobHistory, number: int | None) -> None:
    made = len(_documents(history))
    if number is not None and number > made:
        so_far, or_wait = ("", "") if history.job.state.is_final else (" so far", ", or wait for it with  --follow")
        raise NoSuchAttempt(
            f"job '{history.job.id}' has made {made} attempt{'' if made == 1 else 's'}{so_far}, so there is no attempt "
            f"{number}: name another{or_wait}"
        )


def _follow(engine: Engine, history: JobHistory, number: int | None, output: JobOutput) -> int:
    """Print what comes, until there can be no more that is asked for."""
    from holdfast.cli.endings import say_fate, say_if_nobody_works

    line, job_id = output.line, history.job.id
    say_if_nobody_works(engine, [job_id])
    try:
        for _ in looks(0):
            output.show(history)
            if history.job.state.is_final or (number is not None and output.ended >= number):
                break
            line.show("running…" if history.job.state is JobState.PROCESSING else f"{history.job.state}…")
            found = engine.get(job_id)
            if found is None:
                output.close()
                note(f"the record of {job_id} is no longer kept")
                return FAILED
            history = found
    finally:
        output.close()
    _check_number(history, number)
    if number is None:
        say_fate(history.job)
    return 0
