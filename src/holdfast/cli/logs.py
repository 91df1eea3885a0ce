"""`holdfast logs`: print a job's output, attempt by attempt."""

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
from holdfast.units import counted
from holdfast.values import JobHistory, JobState

if TYPE_CHECKING:
    from holdfast.cli.documents import LogDocument
    from holdfast.queues.contract import Engine


class NoSuchAttempt(click.ClickException):
    """The job has no attempt with that number."""

    exit_code = NOT_FOUND


@click.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@click.option("--follow", "-f", is_flag=True, help="Print output as it appears, until the job finishes.")
@click.option(
    "--attempt",
    "number",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only attempt N; numbering continues after `holdfast retry`.",
)
@jsonl_option
@utc_option
@url_option
@json_option
def logs(job_id: str, follow: bool, number: int | None, as_jsonl: bool, url: str | None, as_json: bool) -> int:
    """Print a job's output. The output of a running job is updated every second.

    \b
    Examples:
      holdfast logs job1
      holdfast logs job1 --attempt 2
      holdfast logs job1 -f
    """
    if as_json and (as_jsonl or follow):
        raise click.UsageError("--json prints one document at the end; pass --jsonl instead")
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
        note("no output")
    return 0


def _nothing_yet(history: JobHistory) -> str:
    job = history.job
    if job.state is JobState.PROCESSING:
        return f"{job.id} is running and has no output yet; wait for it with  -f"
    return f"{job.id} is {job.state} and has no attempt yet; wait for it with  -f"


def _get(engine: Engine, job_id: str) -> JobHistory:
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    return history


def _documents(history: JobHistory) -> list[LogDocument]:
    """The output of each attempt; of a running one, if there is any."""
    job = history.job
    documents = [ended_document(job.id, at, attempt) for at, attempt in enumerate(history.attempts, start=1)]
    if history.live_output is not None:
        documents.append(live_document(job, len(documents) + 1, history.live_output))
    return documents


def _check_number(history: JobHistory, number: int | None) -> None:
    made = len(_documents(history))
    if number is not None and number > made:
        so_far, hint = ("", "") if history.job.state.is_final else (" so far", "; wait for it with  --follow")
        raise NoSuchAttempt(
            f"job '{history.job.id}' has no attempt {number}, only {counted(made, 'attempt')}{so_far}{hint}"
        )


def _follow(engine: Engine, history: JobHistory, number: int | None, output: JobOutput) -> int:
    """Print output as it appears, until nothing more can come."""
    from holdfast.cli.endings import note_failure, note_missing_worker

    line, job_id = output.line, history.job.id
    note_missing_worker(engine, [job_id])
    try:
        for _ in looks(0):
            output.show(history)
            if history.job.state.is_final or (number is not None and output.ended >= number):
                break
            line.show("running…" if history.job.state is JobState.PROCESSING else f"{history.job.state}…")
            found = engine.get(job_id)
            if found is None:
                output.close()
                note(f"the record of {job_id} has been deleted")
                return FAILED
            history = found
    finally:
        output.close()
    _check_number(history, number)
    if number is None:
        note_failure(history.job)
    return 0
