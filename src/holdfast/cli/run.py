"""`holdfast run`: enqueue one command as a job and run it in this process."""

from __future__ import annotations

import re
import shlex
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.job_documents import history_document
from holdfast.cli.job_options import LABELS, job_options, take_options
from holdfast.cli.options import Span, deployment_at, json_option, url_option, with_options
from holdfast.cli.output import note, write_json, write_output
from holdfast.cli.private_queue import new_private_queue
from holdfast.cli.progress import StatusLine
from holdfast.cli.words import command as quoted
from holdfast.errors import UnknownJob
from holdfast.units import format_duration
from holdfast.values import ErrorInfo, JobView, WorkerResult, WorkerStatus

if TYPE_CHECKING:
    from holdfast.worker import QueueWorker

# The exit code of timeout(1); a cancelled command has the same one.
TIMED_OUT: Final = 124
CANCELLED: Final = 124


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--timeout", type=Span(), default=0.0, metavar="DURATION", help="Time limit for the command; 0 = no limit."
)
@partial(with_options, job_options(*LABELS))
@click.option("--cwd", metavar="DIR", help="Directory to run the command in.")
@url_option
@json_option
def run(command: tuple[str, ...], timeout: float, cwd: str | None, url: str | None, as_json: bool, **given: Any) -> int:
    """Store COMMAND as a job, run it here, and exit with its exit code.

    The job is stored durably before it starts, on a private queue. The command is allowed for this one job only.

    \b
    Examples:
      holdfast run -- make backup
      holdfast run --name nightly --tag backup --timeout 2h -- make backup
    """
    from holdfast.app import Holdfast
    from holdfast.cli.run_watch import RunWatch
    from holdfast.cli.spec import read_spec
    from holdfast.handlers import parse_command

    argv = parse_command(command)
    queue = new_private_queue()
    fields = {"command": argv, "cwd": cwd, "queue": queue, "max_retries": 0, "timeout": timeout}
    spec = read_spec(fields, take_options(given))
    with Holdfast(deployment=deployment_at(url)) as hf:
        hf.commands.allowed |= {argv[0]}
        job_id = hf.enqueue(spec.definition(), id=spec.id)
        note(f"✓ stored as {job_id} in {hf.deployment.location()}")
        line = StatusLine()

        with RunWatch(line, None if as_json else partial(write_output, is_trusted=True)) as watch:
            watch.worker = worker = hf.worker(tee=watch.printed, on_progress=watch.progressed)
            result, stopped_by = _work(worker, queue)
        if stopped_by is not None:
            hf.backend().cancel(job_id, "interrupted at the terminal")
        history = hf.backend().get(job_id)
        if history is None:
            raise UnknownJob(job_id)
    if as_json:
        write_json(history_document(history))
    if stopped_by is not None:
        note(f"✗ {shlex.join(argv)}: {history.job.state}, received {stopped_by.name}")
        return 128 + stopped_by
    return _finish(history.job, result, argv)


def _work(worker: QueueWorker, queue: str) -> tuple[WorkerResult, signal.Signals | None]:
    """Run the only job of the queue. Return its result, and the signal that stopped it, if any."""
    from holdfast.worker.signals import handling_signals

    stopped_by: signal.Signals | None = None

    def interrupt(number: signal.Signals) -> None:
        nonlocal stopped_by
        stopped_by = number
        worker.interrupt()

    with worker, handling_signals(interrupt):
        result = worker.process_once(queue, unless=lambda: stopped_by is not None)
    return result, stopped_by


def _finish(job: JobView, result: WorkerResult, argv: list[str]) -> int:
    took, typed = format_duration(result.duration_s), shlex.join(argv)
    if result.status is WorkerStatus.LOST_LEASE:
        note(f"✗ {typed}: lost its lease after {took}; the job is {job.state}")
    elif result.status is WorkerStatus.CANCELLED:
        note(f"✗ {typed}: cancelled after {took}: {job.cancel_reason or 'no reason was given'}")
        return CANCELLED
    elif result.error is None:
        note(f"✓ {typed}: completed in {took}")
    else:
        note(f"✗ {typed}: {job.state} after {took}: {result.error.line}")
        note(f"  see  {quoted('holdfast', 'show', job.id)}")
    return 0 if result.error is None else _exit_code(result.error)


def _exit_code(error: ErrorInfo) -> int:
    """The exit code of the command, from the record of its failed attempt; 128 + n if signal n killed it.

    As in a shell, a command that was not found has 127, and one that cannot be run has 126.
    """
    from holdfast.execution.timeout import JobTimeout

    message = error.message
    if error.type.endswith(JobTimeout.__name__):
        return TIMED_OUT
    if code := re.fullmatch(r"exit code (\d+)", message):
        return int(code[1])
    if killed := re.fullmatch(r"killed by (?:signal (\d+)|(SIG\w+))", message):
        return 128 + (int(killed[1]) if killed[1] else signal.Signals[killed[2]])
    return 126 if "cannot be run: " in message else 127
