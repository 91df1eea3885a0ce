"""`holdfast queue`: what is in queues, whether they are worked, and what operators do with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.advice import starting
from holdfast.cli.completion import complete_queues
from holdfast.cli.documents import (
    PausedDocument,
    PauseDocument,
    PurgeDocument,
    QueueDocument,
    ReapDocument,
    ResumedDocument,
)
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import (
    Span,
    States,
    WeightedQueues,
    app_option,
    did_you_mean,
    existing,
    json_option,
    jsonl_option,
    merged_queues,
    one_form,
    url_option,
)
from holdfast.cli.output import note, note_location, write, write_json, write_jsonl, write_names
from holdfast.cli.private_queue import SHOWN, is_private
from holdfast.cli.selecting import (
    change_options,
    confirm,
    confirm_severe,
    dry_run_option,
    unknown_queues,
)
from holdfast.cli.style import COLOURS, DOUBTFUL, Fit, Table, Tint, paint, painted_table
from holdfast.cli.watching import watch, watch_option
from holdfast.cli.words import NOTHING, command, instant, utc_option
from holdfast.cli.worker.options import work_options
from holdfast.clock import to_us
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted, format_duration
from holdfast.values import FINAL_STATES, JobState, QueuePause, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine
    from holdfast.search import Search

EVERYTHING: Final = "all"
FIT: Final = Fit(
    pliant={"PAUSED": 12, "QUEUE": 16}, left_out=("CANCELLED", "COMPLETED", "RUNNING", "FAILED", "WORKERS", "DEAD")
)
NO_QUEUES: Final = "no queues yet; they come with their first job"


class NoSuchQueue(click.ClickException):
    """Nothing is known of the queue: no job, no pause, no worker."""

    exit_code = NOT_FOUND


class FinalStates(States):
    """Final states, separated by commas; `all` are all of them."""

    known = FINAL_STATES

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[JobState, ...]:
        if str(value).strip().lower() == EVERYTHING:
            return tuple(state for state in JobState if state in FINAL_STATES)
        states = super().convert(value, param, ctx)
        for state in states:
            if state not in FINAL_STATES:
                waits = ", which wait for their retry" if state is JobState.FAILED else ""
                self.fail(
                    f"only completed, dead and cancelled jobs can be purged, not {state} ones{waits}: "
                    "end them first with  holdfast cancel --where",
                    param,
                    ctx,
                )
        return states


@click.group()
def queue() -> None:
    """Look at queues; pause, work, reap and purge them."""


@queue.command("list")
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one on each line.")
@jsonl_option
@watch_option
@url_option
@json_option
def list_queues(quiet: bool, as_jsonl: bool, watch_s: float | None, url: str | None, as_json: bool) -> int:
    """Show the queues: those with jobs, those that are paused, those that workers take from."""
    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        if watch_s is not None:
            return watch(watch_s, lambda: _documents(site.engine), _lines, as_json=as_json or as_jsonl)
        documents = _documents(site.engine)
    if as_json:
        write_json(documents)
    elif as_jsonl:
        write_jsonl(documents)
    elif quiet:
        write_names(document.queue for document in documents if document.queue != SHOWN)
    elif documents:
        _table(documents).print()
    else:
        note(NO_QUEUES)
    return 0


def _lines(documents: Sequence[QueueDocument]) -> list[str]:
    return _table(documents).lines if documents else [NO_QUEUES]


def _table(documents: Sequence[QueueDocument]) -> Table:
    shown = (JobState.PROCESSING, JobState.FAILED, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    headings = ("QUEUE", "WAITING", "RUNNING", *(state.upper() for state in shown[1:]), "WORKERS", "PAUSED")
    colours: list[Tint] = [None, None, *(COLOURS.get(state) for state in shown), None, DOUBTFUL]
    return painted_table(headings, [_row(document, shown) for document in documents], colours, fit=FIT)


def _row(document: QueueDocument, shown: Sequence[JobState]) -> list[object]:
    states = document.states
    waiting = sum(states[state] for state in (JobState.BLOCKED, JobState.SCHEDULED, JobState.PENDING))
    paused = NOTHING if document.paused is None else document.paused.reason or "yes"
    numbers = [number or NOTHING for number in (waiting, *(states[state] for state in shown), len(document.workers))]
    return [document.queue, *numbers, paused]


def _documents(engine: Engine) -> list[QueueDocument]:
    counts, pauses, workers = (
        engine.counts(),
        {pause.queue: pause for pause in engine.pauses()},
        WorkerRegistry(engine.state).all(),
    )
    folded: dict[str, dict[JobState, int]] = {}
    for name, numbers in counts.items():
        states = folded.setdefault(SHOWN if is_private(name) else name, {})
        for state, number in numbers.items():
            states[state] = states.get(state, 0) + number
    taken = {name for view in workers for name in _queues(view) if not is_private(name)}
    return [
        _document(name, folded.get(name, {}), pauses.get(name), workers) for name in sorted({*folded, *pauses, *taken})
    ]


def _document(
    name: str, numbers: dict[JobState, int], pause: QueuePause | None, workers: Sequence[WorkerView]
) -> QueueDocument:
    live = (view for view in workers if view.state is WorkerState.LIVE)
    return QueueDocument(
        queue=name,
        states={state: numbers.get(state, 0) for state in JobState},
        paused=None if pause is None else PauseDocument(reason=pause.reason, since=pause.since),
        workers=tuple(view.report.id for view in live if name in _queues(view)),
    )


def _queues(view: WorkerView) -> Iterable[str]:
    return [name.partition(":")[0] for name in view.report.queues]


@queue.command()
@click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
@utc_option
@url_option
@json_option
def show(name: str, url: str | None, as_json: bool) -> None:
    """Show one queue: its jobs by state, its pause, its workers."""
    with existing(url, name) as site:
        note_location(site.location)
        engine = site.engine
        known = {document.queue: document for document in _documents(engine)}
        workers = {view.report.id: view for view in WorkerRegistry(engine.state).all()}
    if name not in known:
        hint = did_you_mean(name, known)
        names = f"known are {', '.join(known)}" if known else "none is known yet, they come with their first job"
        raise NoSuchQueue(f"nothing is known of a queue '{name}'; {f'{hint} ' if hint else ''}{names}")
    document = known[name]
    if as_json:
        write_json(document)
        return
    write(f"{'queue':<12} {name}")
    if (paused := document.paused) is not None:
        reason = f": {paused.reason}" if paused.reason else ""
        write(f"{'paused':<12} {paint(f'since {instant(paused.since)}{reason}', DOUBTFUL)}")
    for state, number in document.states.items():
        if number:
            write(f"{state:<12} {paint(f'{number:,}', COLOURS.get(state))}")
    for worker_id in document.workers:
        report = workers[worker_id].report
        write(f"{'worker':<12} {f'{worker_id} on {report.host}, pid {report.pid}'}")
    if not document.workers:
        note(f"no worker takes jobs of this queue; start one:  {starting(name)}")


@queue.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever wonders.")
@dry_run_option
@url_option
@json_option
def pause(names: tuple[str, ...], reason: str, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Let no worker take more jobs of a queue; what is running goes on."""
    from holdfast.definition.definition import check_queue

    chosen = [check_queue(name) for name in dict.fromkeys(names)]
    with existing(url, *chosen, creates=not dry_run) as site:
        note_location(site.location)
        unknown = {} if as_json else unknown_queues(site.engine, *chosen)
        if not dry_run:
            for name in chosen:
                site.engine.pause(name, reason)
    if as_json:
        write_json([PausedDocument(queue=name, paused=not dry_run, reason=reason) for name in chosen])
        return
    for name in chosen:
        write(f"would pause {name}" if dry_run else f"✓ {name} is paused")
    for name, hint in unknown.items():
        undo = "" if dry_run else f"  undo it:  {command('holdfast', 'queue', 'resume', name)}"
        note(f"  nothing is known of a queue '{name}': no job, no worker; {hint or 'see  holdfast queue list'}{undo}")
    if not dry_run and len(unknown) < len(chosen):
        note(f"  go on:  {command('holdfast', 'queue', 'resume', *(name for name in chosen if name not in unknown))}")


@queue.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@dry_run_option
@url_option
@json_option
def resume(names: tuple[str, ...], dry_run: bool, url: str | None, as_json: bool) -> None:
    """Let workers take jobs of a paused queue again."""
    from holdfast.definition.definition import check_queue

    chosen = [check_queue(name) for name in dict.fromkeys(names)]
    with existing(url, *chosen) as site:
        note_location(site.location)
        paused = {pause.queue for pause in site.engine.pauses()}
        answers = {name: name in paused if dry_run else site.engine.resume(name) for name in chosen}
    if as_json:
        write_json([ResumedDocument(queue=name, resumed=was and not dry_run) for name, was in answers.items()])
        return
    for name, was_paused in answers.items():
        if was_paused:
            write(f"would resume {name}" if dry_run else f"✓ {name} is worked again")
        else:
            hint = did_you_mean(name, paused)
            note(f"{name} is not paused; {hint or 'see  holdfast queue list'}")


@queue.command()
@click.argument(
    "queues",
    metavar="[QUEUE]...",
    nargs=-1,
    type=WeightedQueues(),
    callback=merged_queues,
    shell_complete=complete_queues,
)
@app_option("Application to run; default: the setting app. Without one, only command jobs run.")
@click.option("--once", "--oneTime", "-oneTime", "once", is_flag=True, help="Work one job, if one is due, and stop.")
@work_options
@click.pass_context
def work(ctx: click.Context, /, once: bool, **said: Any) -> Any:
    """Work these queues, or `default`, until told to stop, like  holdfast worker start --queue.

    \b
    Examples:
      holdfast queue work mail --app shop:hf
      holdfast queue work mail:3 default --allow sleep --burst
    """
    from holdfast.cli.worker.command import start

    if once:
        said |= {"burst": True, "max_jobs": 1}
    return ctx.invoke(start, **said)


@queue.command()
@click.argument("name", metavar="[QUEUE]", required=False, shell_complete=complete_queues)
@dry_run_option
@url_option
@json_option
def reap(name: str | None, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Take back jobs whose workers have gone without a verdict. Workers do this by themselves."""
    from holdfast.definition.definition import check_queue

    if name is not None:
        check_queue(name)
    with existing(url, name) as site:
        note_location(site.location)
        engine = site.engine
        number = _expired(engine, name) if dry_run else engine.reap_expired(name)
    if as_json:
        write_json(ReapDocument(reaped=0 if dry_run else number, expired=number))
    elif dry_run:
        write(f"would take back {counted(number, 'job')}")
    else:
        write(f"✓ {counted(number, 'job')} taken back")


def _expired(engine: Engine, name: str | None) -> int:
    from holdfast.search import plan, walk

    now = datetime.now(UTC)
    leased = _search((JobState.PROCESSING,), name)
    return sum(job.lease_until is not None and job.lease_until < now for job in walk(engine, plan(leased, now=now)))


@queue.command()
@click.argument("name", metavar="[QUEUE]", required=False, shell_complete=complete_queues)
@click.option("--queue", "named", metavar="NAME", shell_complete=complete_queues, help="The same as QUEUE.")
@click.option("--all", "everything", is_flag=True, help="Of every queue.")
@click.option("--confirm", "said", metavar="all", help="With --all, instead of typing it when asked.")
@click.option(
    "--state",
    "--status",
    "states",
    type=FinalStates(),
    default="completed",
    show_default=True,
    metavar="S",
    help="Completed, dead, cancelled, or all.",
)
@click.option("--before", "age_s", type=Span(), metavar="SPAN", help="Only what finished longer ago than that.")
@change_options
@url_option
@json_option
def purge(
    name: str | None,
    named: str | None,
    everything: bool,
    said: str | None,
    states: tuple[JobState, ...],
    age_s: float | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Forget finished jobs for good; work that is not done is never purged.

    \b
    Examples:
      holdfast queue purge mail --before 7d --dry-run
      holdfast queue purge --all --state completed,cancelled --confirm=all
    """
    from holdfast.definition.definition import check_queue

    if len({word for word in (name, named) if word is not None}) + everything != 1:
        raise click.UsageError("name the queue, or say --all")
    name = name or named
    if said is not None and not everything:
        raise click.UsageError("--confirm belongs to --all; of one queue say --yes")
    place = "all queues" if name is None else f"queue {check_queue(name)}"
    with existing(url, name) as site:
        note_location(site.location)
        engine = site.engine
        meant = _finished(engine, name, states, age_s)
        what = f"{counted(meant, f'{chr(44).join(states)} job')} of {place}"
        if meant and not dry_run:
            if everything:
                confirm_severe(f"purge {what} for good", EVERYTHING, said=said)
            else:
                confirm(f"purge {what} for good", yes=yes)
            older_than = None if age_s is None else timedelta(seconds=age_s)
            number = engine.purge(states, queue=name, older_than=older_than)
        else:
            number = 0
    if as_json:
        write_json(PurgeDocument(purged=number, meant=meant))
    elif dry_run:
        write(f"would purge {what}")
    elif meant:
        write(f"✓ {counted(number, 'job')} purged from {place}")
    else:
        ago = "" if age_s is None else f" that finished more than {format_duration(age_s)} ago"
        note(f"there are no {' or '.join(states)} jobs{ago} in {place}")


def _finished(engine: Engine, name: str | None, states: tuple[JobState, ...], age_s: float | None) -> int:
    """How many jobs a purge would take, exactly."""
    from holdfast.search import plan, walk
    from holdfast.search.terms import Measure, Range, RangeTerm

    if age_s is None:
        return sum(numbers.get(state, 0) for numbers in engine.counts(name).values() for state in set(states))
    now = datetime.now(UTC)
    longest_ago = Range(most=to_us(now) - round(age_s * 1_000_000))
    old = _search(states, name).and_also(RangeTerm(field=Measure.FINISHED, ranges=(longest_ago,)))
    return sum(1 for _ in walk(engine, plan(old, now=now)))


def _search(states: tuple[JobState, ...], name: str | None) -> Search:
    from holdfast.search import Search
    from holdfast.search.terms import Pattern, StateTerm, TextField, TextTerm

    search = Search((StateTerm(states=states),))
    if name is None:
        return search
    return search.and_also(TextTerm(field=TextField.QUEUE, patterns=(Pattern(name, is_quoted=True),)))
