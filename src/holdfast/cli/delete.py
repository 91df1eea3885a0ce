"""`holdfast delete`: forget jobs that have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from holdfast.cli.documents import DeleteDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import existing, json_option, url_option
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.selecting import (
    Chosen,
    change_options,
    choice_options,
    chosen,
    confirm,
    first_code,
    only_in,
    print_rehearsal,
    say_unknown,
)
from holdfast.units import counted
from holdfast.values import FINAL_STATES, JobState

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
    """Forget jobs that are completed, dead or cancelled, for good; what has not ended is cancelled, never deleted.

    The ids may come from stdin, one on each line, if ID is -.

    \b
    Examples:
      holdfast delete job1
      holdfast delete --where 'state:completed finished:<7d' --yes
    """
    with existing(url, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        engine = site.engine
        jobs = chosen(engine, job_ids, searches, within=[state for state in JobState if state.is_final])
        if dry_run:
            return first_code(print_rehearsal(engine, jobs, "delete", only_in(FINAL_STATES), as_json=as_json))
        answers = discard_all(engine, jobs, FINAL_STATES, f"delete {counted(len(jobs.ids), 'job')} for good", yes=yes)
        states = states_of_the_rest(engine, answers)
    if as_json:
        write_json([DeleteDocument(id=job_id, deleted=done) for job_id, done in answers.items()])
    elif not answers:
        note("no job that could be deleted is meant")
    else:
        _say_answers(answers, states)
    return code_of(states)


def discard_all(
    engine: Engine, jobs: Chosen, states: Iterable[JobState], question: str, *, yes: bool
) -> dict[str, bool]:
    """Forget these jobs, once somebody has agreed, and return which are forgotten."""
    if jobs.is_bulk and jobs.ids:
        confirm(question, yes=yes)
    wanted = tuple(states)
    return {job_id: engine.discard(job_id, states=wanted) for job_id in jobs.ids}


def states_of_the_rest(engine: Engine, answers: Mapping[str, bool]) -> dict[str, JobState | None]:
    """Where the jobs are that were not forgotten; None if they are not known."""
    histories = {job_id: engine.get(job_id) for job_id, done in answers.items() if not done}
    return {job_id: None if history is None else history.job.state for job_id, history in histories.items()}


def code_of(states_of_the_rest: Mapping[str, JobState | None]) -> int:
    return first_code(NOT_FOUND if state is None else REFUSED for state in states_of_the_rest.values())


def _say_answers(answers: Mapping[str, bool], states: Mapping[str, JobState | None]) -> None:
    for job_id, done in answers.items():
        state = states.get(job_id)
        if done:
            write(f"✓ {job_id} deleted")
        elif state is None:
            say_unknown(job_id)
        else:
            note(f"✗ {job_id} is {state}, not over: end it first with  holdfast cancel {job_id}")
