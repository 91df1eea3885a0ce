"""Prints one job with its history, and why it is in its state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from holdfast.cli.documents import ShownDocument, lock_document
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.job_documents import history_document, relatives_members
from holdfast.cli.job_options import trait_facts
from holdfast.cli.output import write, write_block, write_json
from holdfast.cli.progress import words
from holdfast.cli.style import BAD, COLOURS, paint
from holdfast.cli.why import CLAIMABLE, why
from holdfast.cli.words import age, attempt_summary, beginning, command, instant, possible_runs, runs
from holdfast.dead_letters import copy_id
from holdfast.errors import UnknownJob
from holdfast.state.breakers import Breakers, CircuitView
from holdfast.state.ownership import breaker_slot, slot_names_of
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted, format_duration
from holdfast.values import AttemptView, JobHistory, JobState, JobView, Relatives

if TYPE_CHECKING:
    from holdfast.cli.options import Site
    from holdfast.queues.contract import Engine


MOST_RELATIVES: Final = 10


def print_job(site: Site, job_id: str, *, as_json: bool, only_dead: bool = False) -> None:
    """Print a job with all its attempts."""
    engine = site.engine
    history = engine.get(job_id)
    if history is None:
        raise UnknownJob(job_id)
    if only_dead and history.job.state is not JobState.DEAD:
        see = command("holdfast", "show", job_id)
        raise NotDead(f"job '{job_id}' is {history.job.state}, not dead; see  {see}")
    copy = None
    if history.job.state is JobState.DEAD:
        copy = engine.get(copy_id(job_id, history.job.deliveries))
    names = slot_names_of(history.job)
    locks = engine.slots(names) if names else []
    circuit = _circuit(engine, history.job)
    usage = site.usage_of(history.job.queue) if history.job.state in CLAIMABLE else None
    workers = WorkerRegistry(engine.state).all()
    relatives = engine.relatives(job_id)
    reasons = why(history, engine.pauses(), workers, locks, datetime.now(UTC), circuit, usage, relatives)
    if as_json:
        tag = ShownDocument.__struct_config__.tag
        locked = [lock_document(one) for one in locks]
        copied = None if copy is None else copy.job.id
        document = {**history_document(history), "schema": tag, "why": reasons, "locks": locked}
        write_json({**document, "dead_letter_copy": copied, **relatives_members(relatives)})
    else:
        _print_history(history, reasons, None if copy is None else copy.job, relatives)


def _circuit(engine: Engine, job: JobView) -> CircuitView | None:
    """The circuit that the job waits for, if it does."""
    if job.breaker is None or job.blocked_on != breaker_slot(job.breaker):
        return None
    return Breakers(engine.state).get(job.breaker)


class NotDead(click.ClickException):
    """The job exists, but it is not a dead letter."""

    exit_code = NOT_FOUND


def _print_history(history: JobHistory, reasons: list[str], copy: JobView | None, relatives: Relatives) -> None:
    for name, value in _facts(history.job, reasons, copy, relatives):
        colour = COLOURS.get(history.job.state) if name == "state" else BAD if name == "last error" else None
        write(f"{name:<12} {paint(str(value), colour)}")
    for number, attempt in enumerate(history.attempts, start=1):
        _print_attempt(number, attempt)
    if history.live_output is not None:
        write()
        write(f"#{len(history.attempts) + 1} is running")
        _print_output(history.live_output.marked)


def _facts(job: JobView, reasons: list[str], copy: JobView | None, relatives: Relatives) -> list[tuple[str, object]]:
    facts: list[tuple[str, object | None]] = [
        ("id", job.id),
        ("state", f"{job.state} ({job.dead_reason})" if job.dead_reason else job.state),
        *(("why", reason) for reason in reasons),
        ("job", job.job),
        ("name", job.name),
        ("queue", f"{job.queue} (priority {job.priority})"),
        ("attempts", f"{runs(job)} of {possible_runs(job)}{f', {job.attempts} failed' if job.attempts else ''}"),
        ("crashes", job.crashes or None),
        ("accepted", instant(job.accepted_at)),
        ("due", instant(job.due_at)),
        ("finished", instant(job.finished_at) if job.finished_at else None),
        ("progress", _progress(job)),
        ("leased until", instant(job.lease_until) if job.lease_until else None),
        ("expires", instant(job.expires_at) if job.expires_at else None),
        ("timeout", None if job.timeout is None else format_duration(job.timeout) if job.timeout else "none"),
        ("cancelled", job.cancel_reason or None),
        ("cancelling", "requested; its worker will stop it" if job.cancel_requested else None),
        *((name, value) for name, value in trait_facts(job).items() if name != "depends on"),
        *(("depends on", line) for line in _parents(job, relatives)),
        *(("needed by", line) for line in _children(job, relatives)),
        ("unique", job.unique),
        ("payload", bytes(job.payload).decode(errors="replace")),
        ("last error", job.last_error),
        ("copy", None if copy is None else f"{copy.id} in queue {copy.queue} ({copy.state})"),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _parents(job: JobView, relatives: Relatives) -> list[str]:
    """The jobs that this one depends on, with their states."""
    states = {one.job_id: str(one.state) for one in relatives.parents}
    lines = [f"{parent} ({states.get(parent, 'deleted')})" for parent in job.after]
    return _shortened(lines, len(lines), job)


def _children(job: JobView, relatives: Relatives) -> list[str]:
    """The jobs that depend on this one, with their states."""
    lines = [f"{one.job_id} ({one.state})" for one in relatives.children]
    return _shortened(lines, relatives.child_count, job)


def _shortened(lines: list[str], number: int, job: JobView) -> list[str]:
    shown = lines[:MOST_RELATIVES]
    more = number - len(shown)
    return [*shown, f"and {counted(more, 'more job')}; see  {command('holdfast', 'graph', job.id)}"] if more else shown


def _progress(job: JobView) -> str | None:
    if job.progress is None:
        return None
    ago = f", {age(job.progress.at)} ago" if job.progress.at else ""
    return f"{words(job.progress)}{ago}"


def _print_attempt(number: int, attempt: AttemptView) -> None:
    record = attempt.record
    write()
    write(f"#{number} {attempt_summary(record)}")
    if record.result is not None:
        write(f"  result  {_formatted(record.result)}")
    if record.note:
        write(f"  note    {record.note}")
    if record.error is not None:
        write_block(record.error.traceback or record.error.line, "  | ")
    _print_output(record.output)


def _formatted(result: bytes) -> str:
    try:
        return msgspec.json.format(result, indent=0).decode()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return beginning(result.decode(errors="replace"))


def _print_output(output: str) -> None:
    if output:
        write("  output:")
        write_block(output, "  | ")
