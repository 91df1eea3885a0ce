"""`holdfast cancel`: end jobs that shall not run, or not run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.documents import CancelDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED, TIME_IS_UP
from holdfast.cli.options import WithWait, existing, json_option, url_option, wait_option
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.progress import StatusLine
from holdfast.cli.selecting import change_options, choice_options, chosen, confirm, only_in, print_rehearsal
from holdfast.cli.waiting import looks
from holdfast.plaintext import abridged
from holdfast.units import counted
from holdfast.values import FINAL_STATES, CancelAnswer, JobState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

UNFINISHED: Final = tuple(state for state in JobState if state not in FINAL_STATES)


@click.command(cls=WithWait)
@choice_options
@click.option("--reason", default="", metavar="TEXT", help="Kept with the job.")
@wait_option(alone="0", help="Wait that long for running jobs to end.")
@change_options
@url_option
@json_option
def cancel(
    job_ids: tuple[str, ...],
    searches: tuple[str, ...],
    reason: str,
    wait_s: float | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Cancel waiting jobs at once; have running ones stopped by their workers.

    The ids may come from stdin, one on each line, if ID is -.

    \b
    Examples:
      holdfast cancel job1
      holdfast cancel job1 job2 --reason "ordered twice" --wait 1m
      holdfast cancel --where 'queue:mail tag:import age:>1h' --dry-run
    """
    with existing(url, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        engine = site.engine
        jobs = chosen(engine, job_ids, searches, within=UNFINISHED)
        if dry_run:
            # What is cancelled already is no mistake, here as there.
            refusal = only_in((*UNFINISHED, JobState.CANCELLED))
            return max(print_rehearsal(engine, jobs, "cancel", refusal, as_json=as_json), default=0)
        if jobs.is_bulk and jobs.ids:
            confirm(f"cancel {counted(len(jobs.ids), 'job')}", yes=yes)
        answers = {job_id: engine.cancel(job_id, reason) for job_id in jobs.ids}
        if wait_s is not None:
            _wait(engine, [job_id for job_id, answer in answers.items() if answer is CancelAnswer.REQUESTED], wait_s)
        states = {job_id: _state(engine, job_id) for job_id in answers}
    codes = [_code(answer, states[job_id], waited=wait_s is not None) for job_id, answer in answers.items()]
    if as_json:
        write_json([_document(job_id, answer, states[job_id]) for job_id, answer in answers.items()])
    elif not answers:
        note("no job that could be cancelled is meant")
    else:
        for (job_id, answer), code in zip(answers.items(), codes, strict=True):
            sentence = _sentence(answer, states[job_id], code)
            if code:
                note(f"✗ {abridged(job_id)} {sentence}")
            else:
                write(f"✓ {job_id} {sentence}")
    return max(codes, default=0)


def _wait(engine: Engine, job_ids: list[str], limit_s: float) -> None:
    """Until none of them is running any more, or the time is up."""
    line = StatusLine()
    try:
        for _ in looks(limit_s):
            job_ids = [job_id for job_id in job_ids if _state(engine, job_id) is JobState.PROCESSING]
            if not job_ids:
                break
            line.show(f"{len(job_ids)} running…")
    except KeyboardInterrupt:
        line.clear()
        note("no longer waiting; that they are to be stopped is not taken back")
        raise
    finally:
        line.clear()


def _state(engine: Engine, job_id: str) -> JobState | None:
    history = engine.get(job_id)
    return None if history is None else history.job.state


def _code(answer: CancelAnswer, state: JobState | None, *, waited: bool) -> int:
    match answer:
        case CancelAnswer.CANCELLED:
            return 0
        case CancelAnswer.REQUESTED:
            if state is JobState.PROCESSING:
                return TIME_IS_UP if waited else 0
            # It may have ended by itself before its worker saw the request.
            return 0 if state is JobState.CANCELLED or not waited else REFUSED
        case CancelAnswer.TOO_LATE:
            return 0 if state is JobState.CANCELLED else REFUSED
        case CancelAnswer.UNKNOWN:
            return NOT_FOUND


def _sentence(answer: CancelAnswer, state: JobState | None, code: int) -> str:
    ended = "gone" if state is None else state
    match answer:
        case CancelAnswer.CANCELLED:
            return "cancelled"
        case CancelAnswer.REQUESTED:
            if state is JobState.CANCELLED:
                return "cancelled; its worker has stopped it"
            if code == TIME_IS_UP:
                return "is still running; its worker has been asked to stop it"
            if code == REFUSED:
                return f"is {ended}: its run ended before its worker saw the request"
            return "asked; its worker stops it in a moment"
        case CancelAnswer.TOO_LATE:
            return "was cancelled before; nothing was changed" if not code else f"is {ended}; nothing was changed"
        case CancelAnswer.UNKNOWN:
            return "is not known here; see  holdfast list"


def _document(job_id: str, answer: CancelAnswer, state: JobState | None) -> CancelDocument:
    return CancelDocument(id=job_id, answer=answer, state=state)
