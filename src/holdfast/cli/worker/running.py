"""What `holdfast worker start` does: a worker in this terminal, its jobs in processes of their own."""

import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Final, TypeAlias

import click
import msgspec

from holdfast import __version__
from holdfast.app import COMMAND_FACTS, Holdfast
from holdfast.cli.output import glyph, plain, say, span
from holdfast.cli.worker.options import StartChoices
from holdfast.errors import ConfigError, UnknownHandler
from holdfast.executor import Setup
from holdfast.handlers import COMMAND_KEY
from holdfast.logs import log_to_stderr
from holdfast.metrics import InMemoryMetrics
from holdfast.metrics.levels import JobCounts, WorkerLevels
from holdfast.state.facts import Facts
from holdfast.values import StopOrder, WorkerResult, WorkerStatus
from holdfast.worker.census import Census
from holdfast.worker.executors.guarded import orphans_adopted
from holdfast.worker.executors.process import Program, python_program
from holdfast.worker.probes import Checks, ProbeServer
from holdfast.worker.signals import heard
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.systemd import ENVIRONMENT_NAMES, Notifier

GC_THRESHOLD: Final = 20_000
Printer: TypeAlias = Callable[[Sequence[WorkerResult]], None]


def run_worker(choices: StartChoices) -> int:
    """Work jobs until told to stop; the exit code."""
    if choices.reload:
        return _run_reloading(choices)
    log_to_stderr()
    setup = choices.setup()
    notifier = Notifier.from_environment(os.environ)
    with ExitStack() as stack:
        stack.enter_context(orphans_adopted())
        hf = stack.enter_context(setup.application())
        setup = _placed(setup, hf, choices)
        if hf.commands.allowed:
            # Producers refuse commands that no worker would run; this tells them what this one runs.
            Facts(hf.backend(setup.backend).state).add(COMMAND_FACTS, hf.commands.allowed)
        if choices.probe_port is not None:
            _count_for_prometheus(hf)
        printer: Printer | None = None if choices.quiet else _documents if choices.as_json else _lines
        if choices.app is None:
            printer = _asking_for_application(printer)
        options = choices.worker_options(hf.settings)
        supervisor = hf.supervisor(
            _program(setup), options, backend=setup.backend, on_results=printer, notifier=notifier
        )
        census = Census(hf.backend(setup.backend), options.queues)
        server = stack.enter_context(_probes(choices, _metrics(hf, supervisor, census), supervisor))
        # Before it says anything: whoever has read that it is there may tell it to leave.
        stack.enter_context(heard(_answer(supervisor), _leave_signals()))
        _greet(hf, setup.backend, supervisor)
        if server is not None:
            say(f"probes at http://{server.address[0]}:{server.address[1]}")
        stack.callback(lambda: say(_farewell(supervisor)))
        with _rare_collections():
            supervisor.run()
    return 1 if supervisor.unsettled else 0


def _run_reloading(choices: StartChoices) -> int:
    from holdfast.cli.worker.reload import run_reloading, watched_directories

    patience = choices.grace + choices.kill_after + 5.0 if choices.grace else math.inf
    return run_reloading(_without_reload(sys.argv), watched_directories(), grace_s=patience)


def _program(setup: Setup) -> Program:
    """How the children are started: told the same as this process, but not to speak to systemd."""
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT_NAMES}
    return python_program("holdfast.executor", [msgspec.json.encode(setup).decode()], environment)


def _placed(setup: Setup, hf: Holdfast, choices: StartChoices) -> Setup:
    """Say which backend is worked: the one that --url names or is, or else the one the queues are in."""
    if setup.url is None:
        return msgspec.structs.replace(setup, backend=hf.deployment.name_for_all(choices.queues))
    return msgspec.structs.replace(setup, backend=setup.url) if setup.url in hf.deployment.urls else setup


def _probes(
    choices: StartChoices, metrics: Callable[[], tuple[bytes, str]] | None, supervisor: Supervisor
) -> ProbeServer | nullcontext[None]:
    if choices.probe_port is None:
        return nullcontext()
    checks = Checks(live=lambda: _why_not_live(supervisor), ready=supervisor.readiness, metrics=metrics)
    return ProbeServer(choices.probe_host, choices.probe_port, checks=checks)


def _count_for_prometheus(hf: Holdfast) -> None:
    """Let prometheus-client count, if it is there and the application has no collector of its own."""
    if type(hf.extensions.metrics) is InMemoryMetrics:
        with suppress(ConfigError):  # the extra is not installed; whoever asks is told
            from holdfast.metrics.prometheus import PrometheusMetrics

            hf.extensions.metrics = PrometheusMetrics()


def _metrics(hf: Holdfast, supervisor: Supervisor, census: Census) -> Callable[[], tuple[bytes, str]] | None:
    """What serves `/metrics`, if the collector can; ours shows how the worker stands, too."""
    follow: Callable[[Callable[[], WorkerLevels], Callable[[], JobCounts | None]], None] | None
    follow = getattr(hf.extensions.metrics, "follow", None)
    if follow is not None:
        follow(supervisor.levels, census.read)
    render: Callable[[], tuple[bytes, str]] | None = getattr(hf.extensions.metrics, "render", None)
    return render


def _why_not_live(supervisor: Supervisor) -> str | None:
    return None if supervisor.is_live() else "the loop has not turned for a while"


def _greet(hf: Holdfast, backend: str, supervisor: Supervisor) -> None:
    handlers = [key for key in hf.registry.keys() if key != COMMAND_KEY]  # noqa: SIM118 - not a dict
    dot, report = glyph("·", "-"), supervisor.report()
    say(f"holdfast {__version__} {dot} {hf.deployment.location(backend)} {dot} worker {supervisor.id}")
    slots = "1 process" if report.processes == 1 else f"{report.processes} processes"
    if report.slots > report.processes:
        slots += f" of {supervisor.options.concurrency} slots"
    say(f"queues {', '.join(report.queues)} {dot} handlers {', '.join(handlers) or 'command jobs only'} {dot} {slots}")
    if not handlers and not hf.commands.allowed:
        say("no command is allowed yet: every command job will be refused; allow some with  --allow PROGRAM")


def _answer(supervisor: Supervisor) -> Callable[[signal.Signals], None]:
    """The first signal drains, the next one hands everything back."""
    # The supervisor obeys in its own time, and the second signal may come before.
    is_asked = False

    def answer(number: signal.Signals) -> None:
        nonlocal is_asked
        if is_asked or supervisor.is_draining:
            _say_now("handing running jobs back")
            supervisor.stop(StopOrder.NOW)
        else:
            is_asked = True
            grace = supervisor.options.grace_s
            limit = f"up to {span(grace)}" if grace else "however long it takes"
            _say_now(f"draining: {supervisor.running} running, {limit} (again: hand them back and leave)")
            supervisor.stop(StopOrder.DRAIN)

    return answer


@contextmanager
def _rare_collections() -> Generator[None]:
    """Let the garbage collector leave us alone: what is here stays, and of a batch's thousands of small objects none
    is part of a cycle.
    """
    was = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *was[1:])
    try:
        yield
    finally:
        gc.set_threshold(*was)
        gc.unfreeze()


def _leave_signals() -> tuple[signal.Signals, ...]:
    """What asks a worker to leave: also the closing of its terminal, unless it was started to outlive that."""
    asked = (signal.SIGTERM, signal.SIGINT)
    return asked if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*asked, signal.SIGHUP)


def _say_now(sentence: str) -> None:
    """Say something from a thread that must not wait for whoever holds `sys.stderr`."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


def _asking_for_application(printer: Printer | None) -> Printer:
    """The same, for a worker without an application; the first job that needs one is remarked, and why it waits."""
    is_said = False

    def on_results(results: Sequence[WorkerResult]) -> None:
        nonlocal is_said
        if printer is not None:
            printer(results)
        unknown = (each for each in results if each.error is not None and each.error.type == UnknownHandler.__name__)
        if not is_said and (first := next(unknown, None)) is not None:
            is_said = True
            say(
                f"job '{first.job}' is a function's, and this worker was started without an application, for command "
                "jobs only; name yours:  holdfast worker start APP"
            )

    return on_results


def _lines(results: Sequence[WorkerResult]) -> None:
    _print("\n".join(plain(_line(result)) for result in results if not _was_only_held(result)))


def _was_only_held(result: WorkerResult) -> bool:
    """A job that was fetched and given back without being started: nothing has happened to it."""
    return (
        result.status is WorkerStatus.RELEASED
        and result.error is None
        and not result.duration_s
        and not result.retry_in
    )


def _documents(results: Sequence[WorkerResult]) -> None:
    _print("\n".join(msgspec.json.encode(_document(result)).decode() for result in results))


class ResultDocument(WorkerResult, frozen=True, kw_only=True, tag_field="schema", tag="holdfast.worker.result/1"):
    """What `worker start --json` prints on a line for each run: what happened to which job."""


def _document(result: WorkerResult) -> ResultDocument:
    return ResultDocument(**{name: getattr(result, name) for name in result.__struct_fields__})


def _print(lines: str) -> None:
    """Whole batches at once: a line for itself costs as much as a short job. A closed pipe ends no worker."""
    if lines:
        with suppress(OSError):
            click.echo(lines)


def _line(result: WorkerResult) -> str:
    mark = glyph("✓", "*") if result.status is WorkerStatus.ACKED else glyph("✗", "x")
    took = span(result.duration_s)
    text = f"{mark} [{result.status}] {result.job or '?'} {result.job_id} (attempt {result.attempt}) {took}"
    if result.error is not None:
        text += f" {glyph('·', '-')} {result.error.line}"
    if result.retry_in is not None:
        text += f" {glyph('·', '-')} again in {span(result.retry_in)}"
    return text


def _farewell(supervisor: Supervisor) -> str:
    """What was done, and that nothing was lost: every job that was claimed has been accounted for."""
    tally = supervisor.reporter.tally
    parts = {
        "done": tally[WorkerStatus.ACKED],
        "to be retried": tally[WorkerStatus.REQUEUED],
        "dead": tally[WorkerStatus.DEAD_LETTERED] + tally[WorkerStatus.REJECTED],
        "handed back": tally[WorkerStatus.RELEASED],
        "cancelled": tally[WorkerStatus.CANCELLED],
        "taken over by another worker": tally[WorkerStatus.LOST_LEASE],
    }
    shown = [f"{number:,} {what}" for what, number in parts.items() if number or what == "done"]
    if supervisor.unsettled:
        shown.append(f"{supervisor.unsettled:,} without a verdict: they run again when their leases end")
    elif tally.total() == supervisor.claimed:
        shown.append("nothing lost")
    else:
        shown.append(f"{supervisor.claimed - tally.total():,} unaccounted for: please report this")
    return f" {glyph('·', '-')} ".join(["stopped", *shown])


def _without_reload(argv: list[str]) -> list[str]:
    return [sys.executable, "-m", "holdfast", *(word for word in argv[1:] if word != "--reload")]
