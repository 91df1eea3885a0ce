"""Which jobs a command is about: filters and searches for those that read, and ids or a search for those that change.

What was not named by its id is counted first; before it is destroyed, people are asked, and programs have to say --yes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.completion import complete_handlers, complete_job_ids, complete_queues
from holdfast.cli.documents import RehearsalDocument
from holdfast.cli.failing import NOT_FOUND, REFUSED
from holdfast.cli.options import States, did_you_mean, with_options
from holdfast.cli.output import note, write, write_json
from holdfast.cli.private_queue import is_private
from holdfast.errors import ConfigError
from holdfast.plaintext import abridged
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted
from holdfast.values import JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine
    from holdfast.search import Plan, Search
    from holdfast.search.terms import Term

F = TypeVar("F", bound=Callable[..., Any])

STDIN: Final = "-"
NO_INPUT: Final = "holdfast.no_input"


class Moment(click.ParamType[tuple[int, int]]):
    """A moment: a day, a time, or a span that is over. As the first and the last microsecond of it."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        from holdfast.search.parsing import moment

        try:
            return moment(str(value), now=datetime.now(UTC))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def where_option(command: F) -> F:
    return click.option(
        "--where",
        "searches",
        multiple=True,
        metavar="SEARCH",
        help="Only what the search means, such as 'state:dead error:Timeout age:>1h'; repeatable.",
    )(command)


def choice_options(command: F) -> F:
    """The ids and the search of commands that change jobs."""
    ids = click.argument("job_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_job_ids)
    return with_options((ids, where_option), command)


def filter_options(command: F) -> F:
    """The filters of commands that read; they arrive as the fields of `Filters`."""
    return with_options(_FILTERS, command)


# In the order of the help.
_FILTERS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--queue", metavar="NAME", shell_complete=complete_queues, help="Only this queue; * stands for anything."
    ),
    click.option(
        "--job",
        metavar="KEY",
        shell_complete=complete_handlers,
        help="Only jobs of this handler; * stands for anything.",
    ),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only jobs with this tag; repeatable."),
    where_option,
    click.option(
        "--since", type=Moment(), metavar="WHEN", help="Only jobs accepted then or later, such as 2h or today."
    ),
    click.option("--until", type=Moment(), metavar="WHEN", help="Only jobs accepted then or before."),
)


class Filters(Struct, frozen=True, kw_only=True):
    """What was chosen, by the names of the options."""

    queue: str | None
    job: str | None
    tags: tuple[str, ...]
    searches: tuple[str, ...]
    since: tuple[int, int] | None
    until: tuple[int, int] | None
    states: tuple[tuple[JobState, ...], ...] = ()

    def plan(self) -> Plan:
        """Where to look for these jobs, now."""
        from holdfast.search import plan
        from holdfast.search.terms import Measure, Pattern, Range, RangeTerm, StateTerm, TextField, TextTerm

        now = datetime.now(UTC)
        terms: list[Term] = []
        if states := tuple(state for group in self.states for state in group):
            terms.append(StateTerm(states=states))
        named = ((TextField.QUEUE, self.queue), (TextField.JOB, self.job), *((TextField.TAG, tag) for tag in self.tags))
        for _, text in named:
            (text or "").encode()
        terms += [TextTerm(field=field, patterns=(Pattern(text),)) for field, text in named if text is not None]
        if self.since is not None:
            terms.append(RangeTerm(field=Measure.ACCEPTED, ranges=(Range(least=self.since[0]),)))
        if self.until is not None:
            terms.append(RangeTerm(field=Measure.ACCEPTED, ranges=(Range(most=self.until[1]),)))
        return plan(_search(self.searches, now).and_also(*terms), now=now)


def state_option(command: F) -> F:
    return click.option(
        "--state",
        "--status",
        "states",
        type=States(),
        multiple=True,
        metavar="S",
        help="Only these states; repeatable.",
    )(command)


def _search(searches: Sequence[str], now: datetime) -> Search:
    from holdfast.search import Search, parse

    for text in searches:
        text.encode()  # what is no text could be found nowhere; it is refused like any other such argument
    return Search(tuple(term for text in searches for term in parse(text, now=now).terms))


def dry_run_option(command: F) -> F:
    return click.option("--dry-run", is_flag=True, help="Change nothing; show what would be changed.")(command)


def change_options(command: F) -> F:
    """`--yes`, `--dry-run` and `--no-input`, for commands that may destroy much at once."""
    options: tuple[Callable[[Any], Any], ...] = (
        click.option("--yes", "--force", "yes", is_flag=True, help="Do not ask."),
        dry_run_option,
        click.option(
            "--no-input",
            is_flag=True,
            expose_value=False,
            callback=_note_no_input,
            help="Never ask; without --yes, refuse what would have to be asked.",
        ),
    )
    return with_options(options, command)


def _note_no_input(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    ctx.meta[NO_INPUT] = given or ctx.meta.get(NO_INPUT, False)


class Chosen(Struct, frozen=True, kw_only=True):
    """The jobs a change is about. Of those that a search found, how they looked is known; `is_bulk`: none was named."""

    ids: tuple[str, ...]
    found: Mapping[str, JobView]
    is_bulk: bool


def chosen(
    engine: Engine, job_ids: Sequence[str], searches: Sequence[str], *, within: Sequence[JobState], others: str = ""
) -> Chosen:
    """The jobs that were named, read from stdin, or found in these states; `others` is what else can be said."""
    from holdfast.search import plan
    from holdfast.search.terms import StateTerm

    if bool(job_ids) == bool(searches):
        raise click.UsageError(f"name the jobs by their ids, {others}or say --where SEARCH; - reads ids from stdin")
    if searches:
        now = datetime.now(UTC)
        return found_by(engine, plan(_search(searches, now).and_also(StateTerm(states=tuple(within))), now=now))
    ids = tuple(dict.fromkeys(job_id for word in job_ids for job_id in (ids_from_stdin() if word == STDIN else [word])))
    return Chosen(ids=ids, found={}, is_bulk=STDIN in job_ids)


def found_by(engine: Engine, made: Plan) -> Chosen:
    """All the jobs of a plan."""
    from holdfast.search import walk

    found = {job.id: job for job in walk(engine, made)}
    return Chosen(ids=tuple(found), found=found, is_bulk=True)


def ids_from_stdin() -> Iterator[str]:
    """Ids, one on each line, as they are or as members of JSON documents."""
    for number, line in enumerate(sys.stdin, start=1):
        word = line.strip()
        if word.startswith("{"):
            word = _id_in(word, number)
        if word:
            yield word


def _id_in(line: str, number: int) -> str:
    import json

    try:
        document: Any = json.loads(line)
        job_id: Any = document["id"]
    except (ValueError, KeyError) as problem:
        raise ConfigError(
            f"line {number} of stdin is no JSON document with an id ({problem}): "
            "pass ids, or what  holdfast list --jsonl  prints"
        ) from None
    if not isinstance(job_id, str):
        raise ConfigError(f"line {number} of stdin: an id is text, not {job_id!r}: put it in quotes")
    return job_id


def confirm(question: str, *, yes: bool) -> None:
    """Ask before many are destroyed; nobody to ask is no answer."""
    if yes:
        return
    if not _can_ask():
        raise click.UsageError(f"this would {question}: say --yes, or look first with --dry-run")
    click.confirm(f"{question[:1].upper()}{question[1:]}?", abort=True, err=True)


def confirm_severe(question: str, word: str, *, said: str | None) -> None:
    """Have the word typed before everything there is is destroyed; a quick yes is not enough."""
    if said is None and _can_ask():
        asked = f"{question[:1].upper()}{question[1:]}? Type '{word}' to go on"
        said = str(click.prompt(asked, default="", show_default=False, err=True)).strip()
        if said != word:
            raise click.Abort
    if said is None:
        raise click.UsageError(f"this would {question}: say --confirm={word}, or look first with --dry-run")
    if said != word:
        raise click.UsageError(f"this would {question}: --confirm={said} is not --confirm={word}; nothing was done")


def _can_ask() -> bool:
    context = click.get_current_context(silent=True)
    return sys.stdin.isatty() and not (context is not None and context.meta.get(NO_INPUT))


def say_if_unknown(engine: Engine, *queues: str | None) -> None:
    """Tell whoever may have mistyped a queue which one it could have been."""
    for queue, hint in unknown_queues(engine, *queues).items():
        note(f"nothing is known of a queue '{queue}' yet; {hint or 'see  holdfast queue list'}")


def unknown_queues(engine: Engine, *queues: str | None) -> dict[str, str]:
    """Those of the queues of which there is no job, no pause and no worker, each with what could have been meant."""
    known = {*engine.counts(), *(pause.queue for pause in engine.pauses())}
    known |= {name.partition(":")[0] for view in WorkerRegistry(engine.state).all() for name in view.report.queues}
    return {
        queue: did_you_mean(queue, (name for name in known if not is_private(name)))
        for queue in queues
        if queue is not None and queue not in known and "*" not in queue
    }


def print_rehearsal(
    engine: Engine, jobs: Chosen, verb: str, refusal: Callable[[JobView], str | None], *, as_json: bool
) -> list[int]:
    """What would be done to which jobs, and the exit code for each; `refusal` is why it would not be done to one."""
    views = {job_id: jobs.found.get(job_id) or _view(engine, job_id) for job_id in jobs.ids}
    refusals = {job_id: None if job is None else refusal(job) for job_id, job in views.items()}
    if as_json:
        write_json(
            [
                RehearsalDocument(
                    id=job_id, state=job.state if job else None, would=verb, refused=refusals[job_id] is not None
                )
                for job_id, job in views.items()
            ]
        )
    else:
        for job_id, job in views.items():
            if job is None:
                say_unknown(job_id)
            elif (why := refusals[job_id]) is not None:
                note(f"✗ {job_id} {why}: would be refused")
            else:
                write(f"would {verb} {job_id} ({job.state} on {job.queue})")
        note(f"nothing was changed: {counted(len(views), 'job')}, --dry-run")
    return [NOT_FOUND if job is None else REFUSED if refusals[job_id] else 0 for job_id, job in views.items()]


def say_unknown(job_id: str, *, see: str = "holdfast list") -> None:
    """Tell that there is no job of this id."""
    note(f"✗ {abridged(job_id)} is not known here; see  {see}")


def only_in(states: Iterable[JobState]) -> Callable[[JobView], str | None]:
    """The refusal of a command that acts only on jobs in these states."""
    wanted = frozenset(states)
    return lambda job: None if job.state in wanted else f"is {job.state}"


def first_code(codes: Iterable[int]) -> int:
    """The exit code of a command that was asked for several jobs: one that is not known counts before a refusal."""
    return min(filter(None, codes), default=0)


def _view(engine: Engine, job_id: str) -> JobView | None:
    history = engine.get(job_id)
    return None if history is None else history.job
