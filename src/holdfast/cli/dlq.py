"""`holdfast dlq`: dead letters."""

import sys
from collections.abc import Iterator

import click

from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.jobs import find_page, print_history, print_page
from holdfast.cli.options import existing, json_option, url_option
from holdfast.cli.output import glyph, print_json, say, say_where
from holdfast.cli.private_queue import is_private
from holdfast.errors import UnknownJob
from holdfast.queues.contract import Engine
from holdfast.values import JobFilter, JobState, ReplayAnswer


class NotDead(click.ClickException):
    """The job is there, but it is no dead letter."""

    exit_code = NOT_FOUND


class OverAndDone(click.ClickException):
    """The job cannot have a new life: nobody would ever come for it."""

    exit_code = REFUSED


@click.group()
def dlq() -> None:
    """Look at dead letters; run them again or discard them."""


@dlq.command("list")
@click.option("--queue", "-q", metavar="NAME", help="Only this queue.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many.")
@click.option("--after", metavar="CURSOR", help="Continue where the page before ended.")
@url_option
@json_option
def list_dead(queue: str | None, limit: int, after: str | None, url: str | None, as_json: bool) -> None:
    """Show dead letters, the last ones first."""
    with existing(url) as hf:
        say_where(hf.location)
        page = find_page(hf, JobFilter(states=(JobState.DEAD,), queue=queue), limit, after)
    print_page(page, as_json=as_json)


@dlq.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def show(job_id: str, url: str | None, as_json: bool) -> None:
    """Show one dead letter with its history."""
    with existing(url) as hf:
        say_where(hf.location)
        history = hf.backend().get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    if history.job.state is not JobState.DEAD:
        raise NotDead(f"job '{job_id}' is {history.job.state}, not dead; look at it with  holdfast show {job_id}")
    print_history(history, as_json=as_json)


@dlq.command()
@click.argument("job_ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--queue", "-q", metavar="NAME", help="With --all: only of this queue.")
@click.option("--ignore-expiry", is_flag=True, help="Run it although it has expired.")
@url_option
@json_option
def retry(
    job_ids: tuple[str, ...], everything: bool, queue: str | None, ignore_expiry: bool, url: str | None, as_json: bool
) -> int:
    """Give dead or cancelled jobs a new life: attempts from zero, history kept."""
    with existing(url) as hf:
        say_where(hf.location)
        engine = hf.backend()
        chosen = list(_chosen(engine, job_ids, everything=everything, queue=queue))
        if everything:
            chosen = [job_id for job_id in chosen if not _of_a_run(engine, job_id)]
        elif over := next((job_id for job_id in chosen if _of_a_run(engine, job_id)), None):
            raise OverAndDone(
                f"job '{over}' belongs to a 'holdfast run' that is over, and nobody works its queue: "
                "run the command again"
            )
        answers = {job_id: engine.replay(job_id, ignore_expiry=ignore_expiry) for job_id in chosen}
    if as_json:
        print_json([{"id": job_id, "answer": answer} for job_id, answer in answers.items()])
    elif not answers:
        say("there are no dead letters")
    else:
        for job_id, answer in answers.items():
            _say_replay(job_id, answer)
    if ReplayAnswer.UNKNOWN in answers.values():
        return NOT_FOUND
    return 0 if all(answer is ReplayAnswer.REPLAYED for answer in answers.values()) else REFUSED


@dlq.command()
@click.argument("job_ids", metavar="ID...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--queue", "-q", metavar="NAME", help="With --all: only of this queue.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def discard(
    job_ids: tuple[str, ...], everything: bool, queue: str | None, yes: bool, url: str | None, as_json: bool
) -> int:
    """Forget dead letters for good."""
    with existing(url) as hf:
        say_where(hf.location)
        engine = hf.backend()
        chosen = list(_chosen(engine, job_ids, everything=everything, queue=queue))
        if everything and chosen and not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"this would discard {len(chosen):,} dead letters for good: say --yes")
            click.confirm(f"Discard {len(chosen):,} dead letters for good?", abort=True, err=True)
        answers = {job_id: engine.discard(job_id) for job_id in chosen}
    if as_json:
        print_json([{"id": job_id, "discarded": answer} for job_id, answer in answers.items()])
    elif not answers:
        say("there are no dead letters")
    else:
        for job_id, done in answers.items():
            if done:
                click.echo(f"{glyph('✓', '*')} {job_id} discarded")
            else:
                say(f"{glyph('✗', 'x')} {job_id} is no dead letter; nothing was discarded")
    return 0 if all(answers.values()) else NOT_FOUND


def _of_a_run(engine: Engine, job_id: str) -> bool:
    history = engine.get(job_id)
    return history is not None and is_private(history.job.queue)


def _chosen(engine: Engine, job_ids: tuple[str, ...], *, everything: bool, queue: str | None) -> Iterator[str]:
    if bool(job_ids) == everything:
        raise click.UsageError("name the jobs by their ids, or say --all")
    yield from job_ids
    after: str | None = None
    while everything:
        page = engine.dead_letters(queue=queue, limit=1000, after=after)
        yield from [job.id for job in page.jobs]
        after = page.next
        everything = after is not None


def _say_replay(job_id: str, answer: ReplayAnswer) -> None:
    match answer:
        case ReplayAnswer.REPLAYED:
            click.echo(f"{glyph('✓', '*')} {job_id} waits again, attempts from zero, history kept")
        case ReplayAnswer.EXPIRED:
            say(f"{glyph('✗', 'x')} {job_id} has expired; to run it all the same add  --ignore-expiry")
        case ReplayAnswer.NOT_FINAL:
            say(f"{glyph('✗', 'x')} {job_id} is neither dead nor cancelled; nothing was changed")
        case ReplayAnswer.UNKNOWN:
            say(f"{glyph('✗', 'x')} {job_id} is not known here")
