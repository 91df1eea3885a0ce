"""`holdfast worker start`: run a worker in this terminal, and its jobs in child processes."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from holdfast import __version__
from holdfast.app import Holdfast
from holdfast.cli.options import check_queues
from holdfast.cli.output import note, write_jsonl, write_lines
from holdfast.cli.words import instant
from holdfast.cli.worker.options import StartChoices
from holdfast.config import find_project
from holdfast.cron.runner import CronRunner
from holdfast.errors import UnknownHandler
from holdfast.executor import Setup
from holdfast.handlers import COMMAND_KEY
from holdfast.logs import log_to_stderr
from holdfast.units import counted, format_duration
from holdfast.values import WorkerResult, WorkerStatus
from holdfast.worker.executors.process import Program, python_program
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.systemd import ENVIRONMENT_NAMES, Notifier

Printer: TypeAlias = Callable[[Sequence[WorkerResult]], None]


def run_worker(choices: StartChoices) -> int:
    """Run a worker until it is stopped, and return the exit code."""
    if choices.reload:
        return _run_reloading(choices)
    log_to_stderr(choices.log_level, with_outcomes=choices.quiet or choices.as_json)
    setup = choices.setup()
    with setup.application() as hf:
        setup = _placed(setup, hf, choices)
        check_queues(hf.deployment, hf.backend(setup.backend), choices.queues)
        printer: Printer | None = None if choices.quiet else _documents if choices.as_json else _lines
        if choices.app is None:
            printer = _asking_for_application(printer)
        schedules = hf.cron_runner(setup.backend) if choices.runs_schedules else None
        service = hf.workers.service(
            hf.engines.get(setup.backend),
            _program(setup),
            choices.worker_options(hf.settings),
            on_results=printer,
            notifier=Notifier.from_environment(os.environ),
            probes=None if choices.probe_port is None else (choices.probe_host, choices.probe_port),
            session_dir=hf.deployment.session_directory(setup.backend),
            schedules=schedules,
        )
        return service.run(
            lambda probes: _greet(hf, setup.backend, service.supervisor, probes, schedules),
            lambda: note(_farewell(service.supervisor)),
        )


def _run_reloading(choices: StartChoices) -> int:
    from holdfast.worker.reload import run_reloading

    patience = choices.grace + choices.kill_after + 5.0 if choices.grace else math.inf
    return run_reloading(_without_reload(sys.argv), watched_directories(), grace_s=patience, say=note)


def watched_directories() -> list[Path]:
    """The directory of the project; outside any project, the current one."""
    return [find_project().directory or Path.cwd()]


def _program(setup: Setup) -> Program:
    """The program of the child processes. They get this setup, and do not notify systemd."""
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT_NAMES}
    return python_program("holdfast.executor", [msgspec.json.encode(setup).decode()], environment)


def _placed(setup: Setup, hf: Holdfast, choices: StartChoices) -> Setup:
    """The setup with its backend: the one given by --url, or else the one that has the queues."""
    if setup.url is None:
        return msgspec.structs.replace(setup, backend=hf.deployment.name_for_all(choices.queues or (None,)))
    return msgspec.structs.replace(setup, backend=setup.url) if setup.url in hf.deployment.urls else setup


def _greet(
    hf: Holdfast, backend: str, supervisor: Supervisor, probes: str | None, schedules: CronRunner | None
) -> None:
    handlers = [key for key in hf.registry.keys() if key != COMMAND_KEY]  # noqa: SIM118 - not a dict
    report = supervisor.report()
    note(f"holdfast {__version__} · {hf.deployment.location(backend)} · worker {supervisor.id}")
    slots = counted(report.processes, "process", "processes")
    if report.slots > report.processes:
        slots += f" with {supervisor.options.concurrency} slots each"
    note(f"queues {', '.join(report.queues)} · handlers {', '.join(handlers) or 'command jobs only'} · {slots}")
    if not handlers and not hf.commands.allowed:
        note("no program is allowed: every command job will be rejected; allow programs with  --allow PROGRAM")
    if schedules is not None and schedules.next_at is not None:
        note(f"schedules: next at {instant(schedules.next_at)}")
    if probes is not None:
        note(f"probes at {probes}")


def _asking_for_application(printer: Printer | None) -> Printer:
    """The printer of a worker without an application, which also explains the first job that needs one."""
    is_explained = False

    def on_results(results: Sequence[WorkerResult]) -> None:
        nonlocal is_explained
        if printer is not None:
            printer(results)
        unknown = (each for each in results if each.error is not None and each.error.type == UnknownHandler.__name__)
        if not is_explained and (first := next(unknown, None)) is not None:
            is_explained = True
            note(
                f"job '{first.job}' needs an application, and this worker runs only command jobs; pass yours:  "
                "holdfast worker start APP"
            )

    return on_results


def _lines(results: Sequence[WorkerResult]) -> None:
    # A closed pipe must not stop the worker.
    with suppress(OSError):
        write_lines(_line(result) for result in results if _is_shown(result))


def _is_shown(result: WorkerResult) -> bool:
    """Whether the result has a line: the log contains open circuits and errors of the worker, and a job that was
    released before it started was not affected.
    """
    if result.job_id is None:
        return result.status is WorkerStatus.RATE_LIMITED
    return result.status is not WorkerStatus.RELEASED or bool(result.error or result.duration_s or result.retry_in)


def _documents(results: Sequence[WorkerResult]) -> None:
    with suppress(OSError):
        write_jsonl(map(_document, results))


class ResultDocument(WorkerResult, frozen=True, kw_only=True, tag_field="schema", tag="holdfast.worker.result/1"):
    """The document that `worker start --json` prints for each run, one per line."""


def _document(result: WorkerResult) -> ResultDocument:
    return ResultDocument(**{name: getattr(result, name) for name in result.__struct_fields__})


_MARKS: Final = {WorkerStatus.ACKED: "✓", WorkerStatus.SKIPPED_IDEMPOTENT: "•", WorkerStatus.RATE_LIMITED: "•"}


def _line(result: WorkerResult) -> str:
    if result.job_id is None:
        wait = format_duration(result.retry_in or 0)
        return f"• queue {result.queue} has reached its rate limit; the next job can start in {wait}"
    mark = _MARKS.get(result.status, "✗")
    return f"{mark} {result.job or '?'} {result.job_id} {_outcome(result)}"


def _outcome(result: WorkerResult) -> str:
    error = f": {result.error.line}" if result.error else ""
    again = f"; retrying in {format_duration(result.retry_in)}" if result.retry_in else "; retrying now"
    match result.status:
        case WorkerStatus.ACKED:
            return f"done in {format_duration(result.duration_s)}"
        case WorkerStatus.REQUEUED:
            return f"failed (attempt {result.attempt} of {result.max_attempts}){error}{again}"
        case WorkerStatus.DEAD_LETTERED:
            return f"failed for good (attempt {result.attempt} of {result.max_attempts}){error}"
        case WorkerStatus.REJECTED:
            return f"rejected and dead-lettered{error}"
        case WorkerStatus.RELEASED if result.error is not None:
            return f"requeued{error}{again}"
        case WorkerStatus.RELEASED:
            return f"requeued{f', due in {format_duration(result.retry_in)}' if result.retry_in else ''}"
        case WorkerStatus.RATE_LIMITED:
            return f"put off by its rate limit; due in {format_duration(result.retry_in or 0)}"
        case WorkerStatus.SKIPPED_IDEMPOTENT:
            return "skipped: another job has completed its idempotency key"
        case WorkerStatus.LOST_LEASE:
            return "result discarded: lease lost before the job was settled"
        case _:
            return f"{result.status}{error}"


def _farewell(supervisor: Supervisor) -> str:
    """The closing line: the number of jobs by outcome, and that every claimed job is accounted for.

    A job that needed a retry may also be counted as done or failed for good, so retries are listed separately.
    """
    reporter, tally, to_retry = supervisor.reporter, supervisor.reporter.tally, supervisor.reporter.jobs_to_retry
    parts = {
        "done": tally[WorkerStatus.ACKED],
        "failed for good": tally[WorkerStatus.DEAD_LETTERED] + tally[WorkerStatus.REJECTED],
        "cancelled": tally[WorkerStatus.CANCELLED],
        "skipped": tally[WorkerStatus.SKIPPED_IDEMPOTENT],
        "requeued": tally[WorkerStatus.RELEASED],
        "put off by a rate limit": tally[WorkerStatus.RATE_LIMITED],
        "taken over by another worker": tally[WorkerStatus.LOST_LEASE],
    }
    shown = [f"{number:,} {what}" for what, number in parts.items() if number or what == "done"]
    if supervisor.unsettled:
        jobs, lease = (
            ("job was", "its lease expires") if supervisor.unsettled == 1 else ("jobs were", "their leases expire")
        )
        shown.append(f"{supervisor.unsettled:,} {jobs} not settled and will run again when {lease}")
    elif tally.total() == reporter.claimed:
        shown.append("nothing lost")
    else:
        shown.append(f"{reporter.claimed - tally.total():,} unaccounted for: please report this")
    retried = f"; {counted(to_retry, 'job')} needed a retry" if to_retry else ""
    return " · ".join(["stopped", *shown]) + retried


def _without_reload(argv: list[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "holdfast", *(word for word in argv[1:] if word != "--reload")]
