"""`holdfast retry`: replay dead and cancelled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.changing import UNKNOWN, Change, Result, make_change, only_in, view_of, with_children
from holdfast.cli.documents import RetryDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import json_option, url_option
from holdfast.cli.private_queue import is_private
from holdfast.cli.selecting import Chosen, choice_options, dry_run_option
from holdfast.cli.words import command
from holdfast.values import JobState, JobView, ReplayAnswer

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

REPLAYABLE: Final = (JobState.DEAD, JobState.CANCELLED)
ignore_expiry_option: Final = click.option("--ignore-expiry", is_flag=True, help="Also retry jobs that have expired.")


class OverAndDone(click.ClickException):
    """The job belongs to a `holdfast run` that has exited, so no worker processes its queue."""

    exit_code = REFUSED


@click.command()
@choice_options
@ignore_expiry_option
@dry_run_option
@url_option
@json_option
def retry(ignore_expiry: bool, **given: Any) -> int:
    """Retry dead or cancelled jobs. Attempts restart at zero; the history is retained.

    Pass - as ID to read ids from stdin, one per line.

    \b
    Examples:
      holdfast retry job1
      holdfast retry --where 'error:Timeout finished:today'
      holdfast list -q --where 'reason:timeout' | holdfast retry -
    """
    return make_change(replaying(ignore_expiry=ignore_expiry), **given)


def _without_private(engine: Engine, jobs: Chosen) -> Chosen:
    """The jobs without those of a `holdfast run`, which no worker would process. To name one is an error."""
    if jobs.found:
        ids = tuple(job_id for job_id, job in jobs.found.items() if not is_private(job.queue))
        return Chosen(ids=ids, found=jobs.found, is_bulk=jobs.is_bulk)
    for job_id in jobs.ids:
        job = view_of(engine, job_id)
        if job is not None and is_private(job.queue):
            raise OverAndDone(f"job '{job_id}' belongs to a 'holdfast run' that has exited; run the command again")
    return jobs


def replaying(
    *,
    ignore_expiry: bool,
    within: tuple[JobState, ...] = REPLAYABLE,
    nothing: str = "no matching job can be retried",
) -> Change:
    """The change that `retry` and `dlq retry` make."""
    now, in_another_state = datetime.now(UTC), only_in(REPLAYABLE)

    def refusal(job: JobView) -> str | None:
        has_expired = job.expires_at is not None and job.expires_at <= now and not ignore_expiry
        return in_another_state(job) or ("has expired and would be refused" if has_expired else None)

    def act(engine: Engine, job_ids: Sequence[str]) -> list[Result]:
        results = [_result(engine, job_id, engine.replay(job_id, ignore_expiry=ignore_expiry)) for job_id in job_ids]
        return with_children(engine, results)

    return Change(verb="retry", act=act, within=within, refusal=refusal, nothing=nothing, narrow=_without_private)


def _result(engine: Engine, job_id: str, answer: ReplayAnswer) -> Result:
    document = RetryDocument(id=job_id, answer=answer)
    match answer:
        case ReplayAnswer.REPLAYED:
            return Result(job_id, document, 0, "requeued (attempts reset, history retained)")
        case ReplayAnswer.EXPIRED:
            return Result(job_id, document, REFUSED, "has expired; to retry it anyway, add  --ignore-expiry")
        case ReplayAnswer.NOT_FINAL:
            job = view_of(engine, job_id)
            state = "neither dead nor cancelled" if job is None else f"{job.state}, neither dead nor cancelled"
            sentence = f"is {state}; nothing was changed, see  {command('holdfast', 'show', job_id)}"
            return Result(job_id, document, REFUSED, sentence)
        case ReplayAnswer.UNKNOWN:
            return Result(job_id, document, NOT_FOUND, UNKNOWN)
