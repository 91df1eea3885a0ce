"""`holdfast delete`: delete finished jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.changing import UNKNOWN, Change, Result, make_change, only_in, view_of
from holdfast.cli.documents import DeleteDocument, Document
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import existing, json_option, url_option
from holdfast.cli.output import note_location
from holdfast.cli.selecting import change_options, choice_options, chosen
from holdfast.cli.words import command
from holdfast.values import FINAL_STATES, JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine


@click.command()
@choice_options
@change_options
@url_option
@json_option
def delete(
    job_ids: tuple[str, ...], searches: tuple[str, ...], yes: bool, dry_run: bool, url: str | None, as_json: bool
) -> int:
    """Delete finished jobs: completed, dead or cancelled ones. Cancel unfinished jobs first.

    Pass - as ID to read ids from stdin, one per line.

    \b
    Examples:
      holdfast delete job1
      holdfast delete --where 'state:completed finished:<7d' --yes
    """
    with existing(url, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        jobs = chosen(site.engine, job_ids, searches, within=[state for state in JobState if state.is_final])
        return make_change(_DELETING, site.engine, jobs, yes=yes, dry_run=dry_run, as_json=as_json)


def removed(
    engine: Engine,
    job_ids: Sequence[str],
    states: Sequence[JobState],
    document: Callable[[str, bool], Document],
    done: str,
    refusal: Callable[[JobView], str],
) -> list[Result]:
    """Discard the jobs that are in these states."""
    results: list[Result] = []
    for job_id in job_ids:
        if engine.discard(job_id, states=tuple(states)):
            results.append(Result(job_id, document(job_id, True), 0, done))
        elif (job := view_of(engine, job_id)) is None:
            results.append(Result(job_id, document(job_id, False), NOT_FOUND, UNKNOWN))
        else:
            results.append(Result(job_id, document(job_id, False), REFUSED, refusal(job)))
    return results


def _delete(engine: Engine, job_ids: Sequence[str]) -> list[Result]:
    return removed(
        engine,
        job_ids,
        tuple(FINAL_STATES),
        lambda job_id, done: DeleteDocument(id=job_id, deleted=done),
        "deleted",
        lambda job: f"is {job.state}; cancel it first:  {command('holdfast', 'cancel', job.id)}",
    )


_DELETING = Change(
    verb="delete",
    act=_delete,
    refusal=only_in(FINAL_STATES),
    nothing="no matching job can be deleted",
    question="delete {} for good",
)
