"""Prints queues: all of them, or one with its jobs and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from holdfast.cli.advice import starting
from holdfast.cli.documents import PauseDocument, QueueDocument, limit_document
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.output import note, write, write_json, write_jsonl, write_names
from holdfast.cli.private_queue import SHOWN, is_private
from holdfast.cli.status import folded
from holdfast.cli.style import COLOURS, DOUBTFUL, Fit, Table, Tint, paint, painted_table
from holdfast.cli.words import NOTHING, age, instant
from holdfast.rates import Rate
from holdfast.spelling import did_you_mean
from holdfast.state.limits import Usage, queue_limiter
from holdfast.state.workers import WorkerRegistry, queues_of
from holdfast.units import counted, format_duration
from holdfast.values import JobState, QueuePause, QueueWait, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.queues.contract import Engine

FIT: Final = Fit(
    pliant={"PAUSED": 12, "QUEUE": 16},
    left_out=("CANCELLED", "COMPLETED", "RUNNING", "FAILED", "OLDEST", "WORKERS", "DEAD"),
)
SHOWN_UNSERVED: Final = 10
NO_QUEUES: Final = "no queues yet; a queue appears here once it has a job or a worker, or is paused"


class NoSuchQueue(click.ClickException):
    """The queue has no jobs, no pause and no worker."""

    exit_code = NOT_FOUND


def print_queues(engine: Engine, *, quiet: bool, as_jsonl: bool, as_json: bool) -> None:
    """Print all queues."""
    documents = _documents(engine)
    if as_json:
        write_json(documents)
    elif as_jsonl:
        write_jsonl(documents)
    elif quiet:
        write_names(document.queue for document in documents if document.queue != SHOWN)
    elif documents:
        _table(documents).print()
        if unserved := [one.queue for one in documents if _is_unserved(one)]:
            more = f" and {len(unserved) - SHOWN_UNSERVED:,} more" if len(unserved) > SHOWN_UNSERVED else ""
            names = f"{', '.join(unserved[:SHOWN_UNSERVED])}{more}"
            note(f"no live worker for {names}; start one:  {starting(unserved[0])}")
    else:
        note(NO_QUEUES)


def _table(documents: Sequence[QueueDocument]) -> Table:
    shown = (JobState.PROCESSING, JobState.FAILED, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED)
    headings = ("QUEUE", "WAITING", "OLDEST", "RUNNING", *(state.upper() for state in shown[1:]), "WORKERS", "PAUSED")
    colours: list[Tint] = [None, None, None, *(COLOURS.get(state) for state in shown), None, DOUBTFUL]
    return painted_table(headings, [_row(document, shown) for document in documents], colours, fit=FIT)


def _row(document: QueueDocument, shown: Sequence[JobState]) -> list[object]:
    states = document.states
    waiting = sum(states[state] for state in (JobState.BLOCKED, JobState.SCHEDULED, JobState.PENDING))
    paused = NOTHING if document.paused is None else document.paused.reason or "yes"
    oldest = NOTHING if document.oldest_due_at is None else age(document.oldest_due_at)
    numbers = [number or NOTHING for number in (*(states[state] for state in shown), len(document.workers))]
    return [document.queue, waiting or NOTHING, oldest, *numbers, paused]


def _is_unserved(document: QueueDocument) -> bool:
    """Whether jobs of the queue are due, and no worker will run them."""
    return document.oldest_due_at is not None and not document.workers and document.paused is None


def _documents(engine: Engine) -> list[QueueDocument]:
    counts, waits = folded(engine.counts()), engine.oldest_waits()
    pauses = {pause.queue: pause for pause in engine.pauses()}
    workers = WorkerRegistry(engine.state).all()
    served = {name for view in workers for name in queues_of(view) if not is_private(name)}
    return [
        _document(name, counts.get(name, {}), waits.get(name), pauses.get(name), workers)
        for name in sorted({*counts, *pauses, *served})
    ]


def _document(
    name: str,
    numbers: Mapping[JobState, int],
    wait: QueueWait | None,
    pause: QueuePause | None,
    workers: Sequence[WorkerView],
) -> QueueDocument:
    live = (view for view in workers if view.state is WorkerState.LIVE)
    return QueueDocument(
        queue=name,
        states={state: numbers.get(state, 0) for state in JobState},
        oldest_due_at=None if wait is None else wait.since,
        paused=None if pause is None else PauseDocument(reason=pause.reason, since=pause.since),
        workers=tuple(view.report.id for view in live if name in queues_of(view)),
    )


def print_queue(engine: Engine, name: str, limit: Rate | None, *, as_json: bool) -> None:
    """Print one queue: its jobs, its workers, whether it is paused, and its rate limit."""
    known = {document.queue: document for document in _documents(engine)}
    workers = {view.report.id: view for view in WorkerRegistry(engine.state).all()}
    if name not in known:
        hint = did_you_mean(name, known)
        names = f"known queues: {', '.join(known)}" if known else NO_QUEUES
        raise NoSuchQueue(f"there is no queue '{name}'; {f'{hint} ' if hint else ''}{names}")
    document = known[name]
    usage = None if limit is None else queue_limiter(engine, name, limit).usage()
    if as_json:
        write_json(structs.replace(document, limit=None if usage is None else limit_document(usage)))
        return
    write(f"{'queue':<12} {name}")
    if (paused := document.paused) is not None:
        reason = f": {paused.reason}" if paused.reason else ""
        write(f"{'paused':<12} {paint(f'since {instant(paused.since)}{reason}', DOUBTFUL)}")
    if usage is not None:
        write(f"{'rate limit':<12} {usage_text(usage)}")
    for state, number in document.states.items():
        if number:
            write(f"{state:<12} {paint(f'{number:,}', COLOURS.get(state))}")
    if document.oldest_due_at is not None:
        write(f"{'oldest':<12} due for {age(document.oldest_due_at)}, since {instant(document.oldest_due_at)}")
    for worker_id in document.workers:
        report = workers[worker_id].report
        write(f"{'worker':<12} {f'{worker_id} on {report.host}, pid {report.pid}'}")
    if not document.workers:
        note(f"no worker processes this queue; start one:  {starting(name)}")


def usage_text(usage: Usage) -> str:
    """The usage of the rate limit of a queue, in words."""
    wait = f", the next one in {format_duration(usage.wait_s)}" if usage.wait_s else ""
    return f"{usage.rate}; {usage.available:,} of {counted(usage.burst, 'job')} can start now{wait}"
