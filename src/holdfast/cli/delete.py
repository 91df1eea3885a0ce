"""`holdfast delete`: delete finished jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.changing import UNKNOWN, Change, Result, make_change, only_in, view_of
from holdfast.cli.documents import DeleteDocument, Document
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import json_option, url_option
from holdfast.cli.selecting import change_options, choice_options
from holdfast.cli.words import command
from holdfast.values import JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

_FINAL: Final = tuple(state for state in JobState if state.is_final)


@click.command()
@choice_options
@change_options
@url_option
@json_option
def delete(**given: Any) -> int:
    """Delete finished jobs: completed, dead or cancelled ones. Cancel unfinished jobs first.

    Pass - as ID to read ids from stdin, one per line.

    \b
    Examples:
      holdfast delete job1
      holdfast delete --where 'state:completed age:>7d' --yes
    """
    return make_change(_DELETING, **given)


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
        _FINAL,
        lambda job_id, done: DeleteDocument(id=job_id, deleted=done),
        "deleted",
        lambda job: f"is {job.state}; cancel it first:  {command('holdfast', 'cancel', job.id)}",
    )


_DELETING: Final = Change(
    verb="delete",
    act=_delete,
    within=_FINAL,
    refusal=only_in(_FINAL),
    nothing="no matching job can be deleted",
    question="delete {} for good",
)
