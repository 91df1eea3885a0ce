"""`holdfast dlq`: dead letters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.completion import complete_job_ids, complete_queues
from holdfast.cli.delete import code_of, discard_all, states_of_the_rest
from holdfast.cli.documents import DiscardDocument
from holdfast.cli.jobs import ListShape, print_job, print_list, shape_options, taken
from holdfast.cli.options import existing, json_option, url_option, with_options
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.retry import ignore_expiry_option, replay
from holdfast.cli.selecting import (
    Chosen,
    Filters,
    change_options,
    choice_options,
    chosen,
    dry_run_option,
    filter_options,
    first_code,
    found_by,
    only_in,
    print_rehearsal,
    say_unknown,
)
from holdfast.cli.words import utc_option
from holdfast.units import counted
from holdfast.values import JobState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

F = TypeVar("F", bound=Callable[..., Any])

NONE: Final = "there are no dead letters"


def _choice_options(command: F) -> F:
    """The ids, the search, and the ways to mean many dead letters at once."""
    options: tuple[Callable[[Any], Any], ...] = (
        choice_options,
        click.option("--all", "everything", is_flag=True, help="Every dead letter."),
        click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="With --all: only of this queue."),
    )
    return with_options(options, command)


@click.group()
def dlq() -> None:
    """Look at dead letters; run them again or discard them."""


@dlq.command("list")
@filter_options
@shape_options
def list_dead(url: str | None, **said: Any) -> int:
    """Show dead letters, the last ones first."""
    return print_list(url, taken(Filters, {**said, "states": ((JobState.DEAD,),)}), taken(ListShape, said))


@dlq.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@utc_option
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show one dead letter with its history."""
    with existing(url, job=job_id) as site:
        note_location(site.location)
        print_job(site.engine, job_id, as_json=as_json, only_dead=True)


@dlq.command()
@_choice_options
@ignore_expiry_option
@dry_run_option
@url_option
@json_option
def retry(
    job_ids: tuple[str, ...],
    searches: tuple[str, ...],
    everything: bool,
    queue: str | None,
    ignore_expiry: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Give dead or cancelled jobs a new life: attempts from zero, history kept.

    The ids may come from stdin, one on each line, if ID is -. A search looks among dead letters only.

    \b
    Examples:
      holdfast dlq retry job1
      holdfast dlq retry --all --queue mail
      holdfast dlq retry --where 'error:Timeout' --dry-run
    """
    with existing(url, queue, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        jobs = _chosen(site.engine, job_ids, searches, everything=everything, queue=queue)
        return replay(site.engine, jobs, ignore_expiry=ignore_expiry, dry_run=dry_run, as_json=as_json, none=NONE)


@dlq.command()
@_choice_options
@change_options
@url_option
@json_option
def discard(
    job_ids: tuple[str, ...],
    searches: tuple[str, ...],
    everything: bool,
    queue: str | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Forget dead letters for good.

    The ids may come from stdin, one on each line, if ID is -.
    """
    with existing(url, queue, job=next(iter(job_ids), None)) as site:
        note_location(site.location)
        engine = site.engine
        jobs = _chosen(engine, job_ids, searches, everything=everything, queue=queue)
        if dry_run:
            return first_code(print_rehearsal(engine, jobs, "discard", only_in((JobState.DEAD,)), as_json=as_json))
        question = f"discard {counted(len(jobs.ids), 'dead letter')} for good"
        answers = discard_all(engine, jobs, (JobState.DEAD,), question, yes=yes)
        states = states_of_the_rest(engine, answers)
    if as_json:
        write_json([DiscardDocument(id=job_id, discarded=answer) for job_id, answer in answers.items()])
    elif not answers:
        note(NONE)
    else:
        for job_id, done in answers.items():
            if done:
                write(f"✓ {job_id} discarded")
            elif states[job_id] is None:
                say_unknown(job_id, see="holdfast dlq list")
            else:
                note(f"✗ {job_id} is no dead letter; nothing was discarded: see  holdfast show {job_id}")
    return code_of(states)


def _chosen(
    engine: Engine, job_ids: tuple[str, ...], searches: tuple[str, ...], *, everything: bool, queue: str | None
) -> Chosen:
    from holdfast.search import Search, plan
    from holdfast.search.terms import Pattern, StateTerm, TextField, TextTerm

    if queue is not None and not everything:
        raise click.UsageError("--queue belongs to --all; in a search write queue:NAME")
    if not everything:
        return chosen(engine, job_ids, searches, within=[JobState.DEAD], others="or say --all, ")
    if job_ids or searches:
        raise click.UsageError("name the jobs by their ids, or say --all, or say --where SEARCH: one of them")
    dead = Search((StateTerm(states=(JobState.DEAD,)),))
    if queue is not None:
        dead = dead.and_also(TextTerm(field=TextField.QUEUE, patterns=(Pattern(queue, is_quoted=True),)))
    return found_by(engine, plan(dead, now=datetime.now(UTC)))
