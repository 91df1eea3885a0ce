"""`holdfast retry`: jobs that ended dead or cancelled get a new life."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.documents import RetryDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import existing, json_option, url_option
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.private_queue import is_private
from holdfast.cli.selecting import (
    Chosen,
    choice_options,
    chosen,
    dry_run_option,
    first_code,
    only_in,
    print_rehearsal,
    say_unknown,
)
from holdfast.values import JobState, JobView, ReplayAnswer

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

REPLAYABLE: Final = (JobState.DEAD, JobState.CANCELLED)
ignore_expiry_option: Final = click.option("--ignore-expiry", is_flag=True, help="Run it although it has expired.")


class OverAndDone(click.ClickException):
    """The job cannot have a new life: nobody would ever come for it."""

    exit_code = REFUSED


@click.command()
@choice_options
@ignore_expiry_option
@dry_run_option
@url_option
@json_option
def retry(
    job_ids: tuple[str, ...],
    searches: tuple[str, ...],
    ignore_expiry: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Give dead or cancelled jobs a new life: attempts from zero, history kept.

    The ids may come from stdin, one on each line, if ID is -.

    \b
    Examples:
      holdfast retry job1
      holdfast retry --where 'error:Timeout finished:>1h'
      holdfast list -q --where 'reason:timeout' | holdfast retry -
    """
    with existing(url, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        jobs = chosen(site.engine, job_ids, searches, within=REPLAYABLE)
        none = "no job that could be retried is meant"
        return replay(site.engine, jobs, ignore_expiry=ignore_expiry, dry_run=dry_run, as_json=as_json, none=none)


def replay(engine: Engine, jobs: Chosen, *, ignore_expiry: bool, dry_run: bool, as_json: bool, none: str) -> int:
    """Give these jobs a new life, say which got one, and return the exit code."""
    if jobs.found:
        # Of a run that is over nobody would come for the job.
        left = tuple(job_id for job_id, job in jobs.found.items() if not is_private(job.queue))
        jobs = Chosen(ids=left, found=jobs.found, is_bulk=jobs.is_bulk)
    elif over := next((job_id for job_id in jobs.ids if _of_a_run(engine, job_id)), None):
        raise OverAndDone(
            f"job '{over}' belongs to a 'holdfast run' that is over, and nobody works its queue: run the command again"
        )
    if dry_run:
        refusal = _refusal(ignore_expiry=ignore_expiry)
        return first_code(print_rehearsal(engine, jobs, "retry", refusal, as_json=as_json))
    answers = {job_id: engine.replay(job_id, ignore_expiry=ignore_expiry) for job_id in jobs.ids}
    if as_json:
        write_json([RetryDocument(id=job_id, answer=answer) for job_id, answer in answers.items()])
    elif not answers:
        note(none)
    else:
        for job_id, answer in answers.items():
            _say_replay(engine, job_id, answer)
    if ReplayAnswer.UNKNOWN in answers.values():
        return NOT_FOUND
    return 0 if all(answer is ReplayAnswer.REPLAYED for answer in answers.values()) else REFUSED


def _refusal(*, ignore_expiry: bool) -> Callable[[JobView], str | None]:
    now, other_state = datetime.now(UTC), only_in(REPLAYABLE)

    def refusal(job: JobView) -> str | None:
        has_expired = job.expires_at is not None and job.expires_at <= now
        return other_state(job) or ("has expired" if has_expired and not ignore_expiry else None)

    return refusal


def _of_a_run(engine: Engine, job_id: str) -> bool:
    history = engine.get(job_id)
    return history is not None and is_private(history.job.queue)


def _say_replay(engine: Engine, job_id: str, answer: ReplayAnswer) -> None:
    match answer:
        case ReplayAnswer.REPLAYED:
            write(f"✓ {job_id} waits again, attempts from zero, history kept")
        case ReplayAnswer.EXPIRED:
            note(f"✗ {job_id} has expired; to run it all the same add  --ignore-expiry")
        case ReplayAnswer.NOT_FINAL:
            history = engine.get(job_id)
            state = f"{history.job.state}, " if history is not None else ""
            note(f"✗ {job_id} is {state}neither dead nor cancelled; nothing was changed")
            note(f"  look at it:  holdfast show {job_id}")
        case ReplayAnswer.UNKNOWN:
            say_unknown(job_id)
