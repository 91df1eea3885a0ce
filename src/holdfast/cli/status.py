"""`holdfast status`: how many jobs are where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from holdfast.cli.completion import complete_queues
from holdfast.cli.documents import Document
from holdfast.cli.options import Site, existing, json_option, url_option
from holdfast.cli.output import note, write, write_json
from holdfast.cli.private_queue import SHOWN, is_private
from holdfast.cli.selecting import say_if_unknown
from holdfast.cli.style import COLOURS, Fit, Table, columns, painted_table, shortened
from holdfast.cli.watching import watch, watch_option
from holdfast.cli.words import NOTHING
from holdfast.plaintext import plain
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobState, WorkerState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

SHORTEST_QUEUE: Final = 16
# What a narrow terminal is not shown, the least important state first.
UNIMPORTANT: Final = (
    JobState.BLOCKED,
    JobState.CANCELLED,
    JobState.SCHEDULED,
    JobState.COMPLETED,
    JobState.PROCESSING,
    JobState.PENDING,
    JobState.FAILED,
)


class Workers(Struct, frozen=True, kw_only=True):
    """How many workers there are, how many jobs they run and how many they could."""

    live: int = 0
    draining: int = 0
    lost: int = 0
    running: int = 0
    slots: int = 0


class Status(Document, frozen=True, kw_only=True, tag="holdfast.status/1"):
    """What `status --json` prints: jobs by state, in all and by queue; a queue also says whether it is `paused`."""

    location: str
    totals: Mapping[str, int]
    queues: Mapping[str, Mapping[str, int | bool]]
    workers: Workers


@click.command()
@click.option("--queue", "-q", metavar="NAME", shell_complete=complete_queues, help="Only this queue.")
@watch_option
@url_option
@json_option
def status(queue: str | None, watch_s: float | None, url: str | None, as_json: bool) -> int:
    """Show how many jobs are where.

    Watching, a terminal shows the latest look; elsewhere one follows another, with --json as a line each.

    \b
    Examples:
      holdfast status
      holdfast status --watch=5s
    """
    with existing(url, queue) as site:
        if watch_s is not None:
            return watch(watch_s, lambda: look(site, queue), lines, as_json=as_json)
        seen = look(site, queue)
        if not seen.queues and not as_json:
            say_if_unknown(site.engine, queue)
    if as_json:
        write_json(seen)
        return 0
    for line in lines(seen):
        write(line)
    if seen.queues:
        _table(seen).say_what_is_missing()
    if url is None and queue is None:
        for name in site.deployment.others:
            note(f"other backend: {name} (holdfast status --url {name})")
    if not seen.queues and queue is None:
        note("no jobs yet; add one:  holdfast enqueue -- COMMAND")
    return 0


def look(site: Site, queue: str | None = None) -> Status:
    """What there is at this moment."""
    engine = site.engine
    counts = engine.counts(queue)
    paused = {pause.queue for pause in engine.pauses()}
    return Status(
        location=site.location,
        totals={state: sum(states.get(state, 0) for states in counts.values()) for state in JobState},
        queues={
            name: {**{state: states.get(state, 0) for state in JobState}, "paused": name in paused}
            for name, states in sorted(_folded(counts).items())
        },
        workers=_workers(engine),
    )


def lines(seen: Status) -> list[str]:
    """The same for people, no wider than their terminal."""
    shown = [plain(seen.location)]  # whole: it is to be copied
    if seen.queues:
        shown += _table(seen).lines
    if workers := worker_line(seen.workers):
        shown.append(shortened(workers, columns()))
    return shown


def _table(seen: Status) -> Table:
    rows = [
        (f"{name} (paused)" if states["paused"] else name, *(states[state] or NOTHING for state in JobState))
        for name, states in seen.queues.items()
    ]
    colours = (None, *(COLOURS.get(state) for state in JobState))
    # Where no job is, nothing is lost by not saying so.
    order = sorted(UNIMPORTANT, key=lambda state: bool(seen.totals[state]))
    fit = Fit(pliant={"QUEUE": SHORTEST_QUEUE}, left_out=tuple(state.upper() for state in order))
    return painted_table(("QUEUE", *(state.upper() for state in JobState)), rows, colours, fit=fit)


def worker_line(workers: Workers) -> str:
    """The workers in one line; nothing if none is known."""
    numbers = {"live": workers.live, "draining": workers.draining, "lost": workers.lost}
    known = [f"{number:,} {what}" for what, number in numbers.items() if number]
    if not known:
        return ""
    return f"workers {', '.join(known)} · {workers.running:,} of {workers.slots:,} slots busy"


def _workers(engine: Engine) -> Workers:
    views = WorkerRegistry(engine.state).all()
    states = Counter(view.state for view in views)
    there = [view.report for view in views if view.state is not WorkerState.LOST]
    return Workers(
        live=states[WorkerState.LIVE],
        draining=states[WorkerState.DRAINING],
        lost=states[WorkerState.LOST],
        running=sum(report.running for report in there),
        slots=sum(report.slots for report in there),
    )


def _folded(counts: dict[str, dict[JobState, int]]) -> dict[str, Counter[JobState]]:
    """The private queues of `holdfast run` in one line: there is one for every run."""
    folded: dict[str, Counter[JobState]] = {}
    for name, states in counts.items():
        shown = SHOWN if is_private(name) else name
        folded.setdefault(shown, Counter()).update(states)
    return folded
