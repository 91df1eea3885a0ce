"""`holdfast dlq`: dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from holdfast.cli.changing import Change, Result, make_change, only_in
from holdfast.cli.completion import complete_job_ids, complete_queues
from holdfast.cli.delete import removed
from holdfast.cli.documents import DiscardDocument
from holdfast.cli.jobs import ListShape, shape_options, taken
from holdfast.cli.options import existing, json_option, url_option, with_options
from holdfast.cli.output import note_location
from holdfast.cli.retry import ignore_expiry_option, replaying
from holdfast.cli.selecting import Filters, change_options, choice_options, dry_run_option, filter_options
from holdfast.cli.words import command, utc_option
from holdfast.values import JobState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

F = TypeVar("F", bound=Callable[..., Any])

NONE: Final = "there are no dead letters"
_DEAD: Final = (JobState.DEAD,)


def _choice_options(command: F) -> F:
    """Add the ids, the search, and the options that choose many dead letters at once."""
    options: tuple[Callable[[Any], Any], ...] = (
        choice_options,
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="With --all: only this queue."),
    )
    return with_options(options, command)


@click.group()
def dlq() -> None:
    """List, show, retry and discard dead letters."""


@dlq.command("list")
@filter_options
@shape_options
def list_dead(url: str | None, **given: Any) -> int:
    """List dead letters, newest first."""
    from holdfast.cli.listing import print_list

    return print_list(url, taken(Filters, {**given, "states": (_DEAD,)}), taken(ListShape, given))


@dlq.command()
@click.argument("job_id", metavar="ID", shell_complete=complete_job_ids)
@utc_option
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show a dead letter with its history."""
    from holdfast.cli.showing import print_job

    with existing(url, job=job_id) as site:
        note_location(site.location)
        print_job(site, job_id, as_json=as_json, only_dead=True)


@dlq.command()
@_choice_options
@ignore_expiry_option
@dry_run_option
@url_option
@json_option
def retry(ignore_expiry: bool, **given: Any) -> int:
    """Retry dead letters. Attempts restart at zero; the history is retained.

    Pass - as ID to read ids from stdin, one per line. Cancelled jobs can be retried by id; a search finds only dead
    letters.

    \b
    Examples:
      holdfast dlq retry job1
      holdfast dlq retry --all --queue mail
      holdfast dlq retry --where 'error:Timeout' --dry-run
    """
    return make_change(replaying(ignore_expiry=ignore_expiry, within=_DEAD, nothing=NONE), **given)


@dlq.command()
@_choice_options
@change_options
@url_option
@json_option
def discard(**given: Any) -> int:
    """Delete dead letters for good.

    Pass - as ID to read ids from stdin, one per line.
    """
    return make_change(_DISCARDING, **given)


def _discard(engine: Engine, job_ids: Sequence[str]) -> list[Result]:
    return removed(
        engine,
        job_ids,
        _DEAD,
        lambda job_id, done: DiscardDocument(id=job_id, discarded=done),
        "discarded",
        lambda job: f"is not a dead letter; nothing was discarded, see  {command('holdfast', 'show', job.id)}",
    )


_DISCARDING: Final = Change(
    verb="discard",
    act=_discard,
    within=_DEAD,
    refusal=only_in(_DEAD),
    nothing=NONE,
    question="discard {} for good",
    noun="dead letter",
)
