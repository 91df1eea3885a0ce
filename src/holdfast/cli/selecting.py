"""Which jobs a command is about: filters and searches for commands that read, ids or a search for those that change.

`changing.py` acts on the chosen jobs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.completion import complete_handlers, complete_job_ids, complete_queues
from holdfast.cli.options import States, with_options
from holdfast.cli.output import ask_for_word, ask_yes_or_no, note
from holdfast.cli.private_queue import is_private
from holdfast.errors import ConfigError
from holdfast.spelling import did_you_mean
from holdfast.values import JobState, JobView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine
    from holdfast.search import Plan, Search
    from holdfast.search.terms import Term

F = TypeVar("F", bound=Callable[..., Any])

STDIN: Final = "-"
NO_INPUT: Final = "holdfast.no_input"


class Moment(click.ParamType[tuple[int, int]]):
    """A day, a time, or a duration ago; as its first and last microsecond."""

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
        help="Only jobs that match, such as 'state:dead error:Timeout age:>1h'. Repeatable.",
    )(command)


def choice_options(command: F) -> F:
    """Add the ids and the search of commands that change jobs."""
    ids = click.argument("job_ids", metavar="[ID]...", nargs=-1, shell_complete=complete_job_ids)
    return with_options((ids, where_option), command)


def filter_options(command: F) -> F:
    """Add the filters of commands that read; they arrive as the fields of `Filters`."""
    return with_options(_FILTERS, command)


# In the order of the help.
_FILTERS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option(
        "--queue", metavar="NAME", shell_complete=complete_queues, help="Only this queue; * matches any text."
    ),
    click.option(
        "--job", metavar="KEY", shell_complete=complete_handlers, help="Only jobs of this handler; * matches any text."
    ),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only jobs with this tag. Repeatable."),
    where_option,
    click.option(
        "--since",
        type=Moment(),
        metavar="WHEN",
        help="Only jobs accepted at or after this time, such as 2h (ago) or today.",
    ),
    click.option("--until", type=Moment(), metavar="WHEN", help="Only jobs accepted at or before this time."),
)


class Filters(Struct, frozen=True, kw_only=True):
    """The filters that were given, by the names of the options."""

    queue: str | None
    job: str | None
    tags: tuple[str, ...]
    searches: tuple[str, ...]
    since: tuple[int, int] | None
    until: tuple[int, int] | None
    states: tuple[tuple[JobState, ...], ...] = ()

    def plan(self) -> Plan:
        """The plan that finds these jobs now."""
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
        help="Only these states. Repeatable.",
    )(command)


def _search(searches: Sequence[str], now: datetime) -> Search:
    from holdfast.search import Search, parse

    for text in searches:
        text.encode()  # bytes that are not UTF-8 are refused here as in any other argument
    return Search(tuple(term for text in searches for term in parse(text, now=now).terms))


def dry_run_option(command: F) -> F:
    return click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")(command)


def change_options(command: F) -> F:
    """Add `--yes`, `--dry-run` and `--no-input`, for commands that may destroy many jobs at once."""
    options: tuple[Callable[[Any], Any], ...] = (
        click.option("--yes", "--force", "yes", is_flag=True, help="Do not ask for confirmation."),
        dry_run_option,
        click.option(
            "--no-input",
            is_flag=True,
            expose_value=False,
            callback=_note_no_input,
            help="Never prompt; fail if a confirmation is needed.",
        ),
    )
    return with_options(options, command)


def _note_no_input(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    ctx.meta[NO_INPUT] = given or ctx.meta.get(NO_INPUT, False)


class Chosen(Struct, frozen=True, kw_only=True):
    """The jobs to change. `found` has those that a search found; `is_bulk` if they were not named by their ids."""

    ids: tuple[str, ...]
    found: Mapping[str, JobView]
    is_bulk: bool


def chosen(
    engine: Engine,
    job_ids: Sequence[str],
    searches: Sequence[str],
    *,
    within: Sequence[JobState],
    everything: bool | None = None,
    queue: str | None = None,
) -> Chosen:
    """The jobs that were named, read from stdin, or found in these states.

    `everything` is the option --all, which chooses all of them, or those of one queue; None if there is no such option.
    """
    from holdfast.search import plan, walk
    from holdfast.search.terms import Pattern, StateTerm, TextField, TextTerm

    if queue is not None and not everything:
        raise click.UsageError("--queue needs --all; in a search, write queue:NAME")
    if [bool(job_ids), bool(searches), bool(everything)].count(True) != 1:
        ways = "either job ids or --where SEARCH" if everything is None else "one of job ids, --where SEARCH and --all"
        raise click.UsageError(f"pass {ways}; - reads ids from stdin")
    if job_ids:
        return Chosen(ids=tuple(ids_of(job_ids)), found={}, is_bulk=STDIN in job_ids)
    now = datetime.now(UTC)
    search = _search(searches, now).and_also(StateTerm(states=tuple(within)))
    if queue is not None:
        search = search.and_also(TextTerm(field=TextField.QUEUE, patterns=(Pattern(queue, is_quoted=True),)))
    found = {job.id: job for job in walk(engine, plan(search, now=now))}
    return Chosen(ids=tuple(found), found=found, is_bulk=True)


def ids_of(words: Sequence[str]) -> list[str]:
    """The ids in these arguments, each once; `-` stands for the ids on stdin."""
    return list(dict.fromkeys(job_id for word in words for job_id in (_ids_on_stdin() if word == STDIN else [word])))


def _ids_on_stdin() -> Iterator[str]:
    """Ids, one per line, as they are or in JSON documents."""
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
            f"line {number} of stdin is not a JSON document with an id ({problem}); "
            "pass ids, or the output of  holdfast list --jsonl"
        ) from None
    if not isinstance(job_id, str):
        raise ConfigError(f"line {number} of stdin: an id must be a string, not {job_id!r}; put it in quotes")
    return job_id


def confirm(question: str, *, yes: bool) -> None:
    """Ask before many jobs are destroyed. Without a terminal to ask on, the command fails."""
    if yes:
        return
    if not _can_ask():
        raise click.UsageError(f"this would {question}; pass --yes, or check first with --dry-run")
    ask_yes_or_no(f"{question[:1].upper()}{question[1:]}?")


def confirm_severe(question: str, word: str, *, said: str | None) -> None:
    """Ask for a word to be typed before everything is destroyed; a quick yes is not enough."""
    if said is None and _can_ask():
        said = ask_for_word(f"{question[:1].upper()}{question[1:]}? Type '{word}' to continue")
        if said != word:
            raise click.Abort
    if said is None:
        raise click.UsageError(f"this would {question}; pass --confirm={word}, or check first with --dry-run")
    if said != word:
        raise click.UsageError(f"this would {question}; --confirm must be '{word}', not '{said}'; nothing was done")


def _can_ask() -> bool:
    context = click.get_current_context(silent=True)
    return sys.stdin.isatty() and not (context is not None and context.meta.get(NO_INPUT))


def say_if_unknown(engine: Engine, *queues: str | None) -> None:
    """Note which of these queues are unknown, in case one was mistyped."""
    for queue, hint in unknown_queues(engine, *queues).items():
        note(f"queue '{queue}' is unknown; {hint or 'see  holdfast queue list'}")


def unknown_queues(engine: Engine, *queues: str | None) -> dict[str, str]:
    """The queues without a job, a pause or a worker, each with a suggestion."""
    from holdfast.state.workers import WorkerRegistry

    known = {*engine.counts(), *(pause.queue for pause in engine.pauses())}
    known |= {name.partition(":")[0] for view in WorkerRegistry(engine.state).all() for name in view.report.queues}
    return {
        queue: did_you_mean(queue, (name for name in known if not is_private(name)))
        for queue in queues
        if queue is not None and queue not in known and "*" not in queue
    }
