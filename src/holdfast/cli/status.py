"""`holdfast status`: the number of jobs by queue and state, once or refreshed."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct

from holdfast.cli.completion import complete_queues
from holdfast.cli.documents import Document
from holdfast.cli.failing import INTERRUPTED
from holdfast.cli.options import Site, Span, existing, json_option, url_option
from holdfast.cli.output import note, redraw, write_json, write_jsonl, write_lines
from holdfast.cli.private_queue import SHOWN, is_private
from holdfast.cli.selecting import say_if_unknown
from holdfast.cli.style import COLOURS, Fit, Table, columns, painted_table, shortened
from holdfast.cli.words import NOTHING
from holdfast.plaintext import plain
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobState, WorkerState

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

SHORTEST_QUEUE: Final = 16
SHORTEST_PAUSE_S: Final = 0.01
# The states that a narrow terminal leaves out, the least important first.
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
    """The number of workers by state, of running jobs, and of slots."""

    live: int = 0
    draining: int = 0
    lost: int = 0
    running: int = 0
    slots: int = 0


class Status(Document, frozen=True, kw_only=True, tag="holdfast.status/1"):
    """The document of `status --json`: jobs by state, in total and by queue. A queue also has `paused`."""

    location: str
    totals: Mapping[str, int]
    queues: Mapping[str, Mapping[str, int | bool]]
    workers: Workers


@click.command()
@click.option("--queue", "-q", metavar="NAME", shell_complete=complete_queues, help="Only this queue.")
@click.option(
    "--watch",
    "watch_s",
    type=Span(),
    is_flag=False,
    flag_value="2s",
    metavar="[DURATION]",
    help="Refresh at this interval until Ctrl-C; default: 2s.",
)
@url_option
@json_option
def status(queue: str | None, watch_s: float | None, url: str | None, as_json: bool) -> int:
    """Show the number of jobs by queue and state.

    With --watch, a terminal is redrawn at each refresh. If stdout is not a terminal, each status is appended; with
    --json, each is one line.

    \b
    Examples:
      holdfast status
      holdfast status --watch=5s
    """
    with existing(url, queue) as site:
        if watch_s is not None:
            return _watch(site, queue, watch_s, as_json=as_json)
        current = read_status(site, queue)
        if not current.queues and not as_json:
            say_if_unknown(site.engine, queue)
    if as_json:
        write_json(current)
        return 0
    write_lines(_lines(current))
    if current.queues:
        _table(current).say_what_is_missing()
    if url is None and queue is None:
        for name in site.deployment.others:
            note(f"other backend: {name} (holdfast status --url {name})")
    if not current.queues and queue is None:
        note("no jobs yet; enqueue one:  holdfast enqueue -- COMMAND")
    return 0


def _watch(site: Site, queue: str | None, pause_s: float, *, as_json: bool) -> int:
    is_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    drawn = 0
    try:
        while True:
            current = read_status(site, queue)
            if as_json:
                write_jsonl([current])
            else:
                # A line that the terminal wraps would count as two when it is overwritten.
                lines = [line if "\x1b" in line else shortened(line, columns()) for line in _lines(current)]
                lines = lines[: _rows() if is_screen else None]
                redraw(lines, over=drawn if is_screen else 0)
                drawn = len(lines)
            time.sleep(max(pause_s, SHORTEST_PAUSE_S))
    except KeyboardInterrupt:
        return INTERRUPTED


def _rows() -> int:
    return max(2, os.get_terminal_size(sys.stdout.fileno()).lines - 1)


def read_status(site: Site, queue: str | None = None) -> Status:
    """The current status."""
    engine = site.engine
    counts = engine.counts(queue)
    paused = {pause.queue for pause in engine.pauses()}
    return Status(
        location=site.location,
        totals={state: sum(states.get(state, 0) for states in counts.values()) for state in JobState},
        queues={
            name: {**{state: states.get(state, 0) for state in JobState}, "paused": name in paused}
            for name, states in sorted(folded(counts).items())
        },
        workers=_workers(engine),
    )


def _lines(current: Status) -> list[str]:
    lines = [plain(current.location)]  # not shortened, so that it can be copied
    if current.queues:
        lines += _table(current).lines
    if workers := worker_line(current.workers):
        lines.append(shortened(workers, columns()))
    return lines


def _table(current: Status) -> Table:
    rows = [
        (f"{name} (paused)" if states["paused"] else name, *(states[state] or NOTHING for state in JobState))
        for name, states in current.queues.items()
    ]
    colours = (None, *(COLOURS.get(state) for state in JobState))
    # States without jobs are left out first.
    order = sorted(UNIMPORTANT, key=lambda state: bool(current.totals[state]))
    fit = Fit(pliant={"QUEUE": SHORTEST_QUEUE}, left_out=tuple(state.upper() for state in order))
    return painted_table(("QUEUE", *(state.upper() for state in JobState)), rows, colours, fit=fit)


def worker_line(workers: Workers) -> str:
    """The workers in one line, or an empty text if there are none."""
    numbers = {"live": workers.live, "draining": workers.draining, "lost": workers.lost}
    known = [f"{number:,} {what}" for what, number in numbers.items() if number]
    if not known:
        return ""
    return f"workers {', '.join(known)} · {workers.running:,} of {workers.slots:,} slots busy"


def _workers(engine: Engine) -> Workers:
    views = WorkerRegistry(engine.state).all()
    states = Counter(view.state for view in views)
    present = [view.report for view in views if view.state is not WorkerState.LOST]
    return Workers(
        live=states[WorkerState.LIVE],
        draining=states[WorkerState.DRAINING],
        lost=states[WorkerState.LOST],
        running=sum(report.running for report in present),
        slots=sum(report.slots for report in present),
    )


def folded(counts: Mapping[str, Mapping[JobState, int]]) -> dict[str, Counter[JobState]]:
    """The counts with the private queues of `holdfast run` added up as one: every run has its own."""
    sums: dict[str, Counter[JobState]] = {}
    for name, states in counts.items():
        sums.setdefault(SHOWN if is_private(name) else name, Counter()).update(states)
    return sums
