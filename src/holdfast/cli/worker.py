"""`holdfast worker start`: a worker in this terminal, its jobs in processes of their own."""

import gc
import math
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import click
import msgspec

from holdfast import __version__
from holdfast.app import COMMAND_FACTS, Holdfast
from holdfast.cli.options import Size, Span, WeightedQueues, json_option, merged_queues, url_option
from holdfast.cli.output import glyph, plain, say, span
from holdfast.errors import ConfigError
from holdfast.executor import Setup
from holdfast.handlers import COMMAND_KEY
from holdfast.metrics import InMemoryMetrics
from holdfast.plaintext import log_to_stderr
from holdfast.values import StopOrder, WorkerResult, WorkerStatus
from holdfast.worker.executors.guarded import orphans_adopted
from holdfast.worker.executors.process import python_program
from holdfast.worker.options import WorkerOptions
from holdfast.worker.probes import Checks, ProbeServer
from holdfast.worker.signals import heard
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.systemd import ENVIRONMENT_NAMES, Notifier

GC_THRESHOLD: Final = 20_000
MOST_PROCESSES: Final = 512
MOST_SLOTS: Final = 1000


@click.group()
def worker() -> None:
    """Run jobs."""


@worker.command()
@click.argument("app", required=False)
@click.option(
    "--queue",
    "-q",
    "queues",
    type=WeightedQueues(),
    multiple=True,
    callback=merged_queues,
    metavar="A,B",
    help="Queues to work; a:3,b gives a three turns for one of b; repeatable. Default: default.",
)
@click.option(
    "--count", type=click.IntRange(1, MOST_PROCESSES), default=1, metavar="N", help="Processes that run jobs."
)
@click.option(
    "--concurrency", type=click.IntRange(1, MOST_SLOTS), default=1, metavar="C", help="Jobs at once in each process."
)
@click.option("--allow", multiple=True, metavar="PROGRAM", help="A program that command jobs may run; repeatable.")
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--max-jobs", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N jobs; 0 = never.")
@click.option(
    "--max-jobs-per-child",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Replace a process after N jobs; 0 = never.",
)
@click.option("--max-memory", type=Size(), default=0, metavar="SIZE", help="Replace a process that has grown past it.")
@click.option(
    "--nice",
    type=click.IntRange(0, 19),
    default=5,
    metavar="N",
    help="How far jobs step back behind the worker when the processor is wanted by both; 0 = not.",
)
@click.option(
    "--grace",
    type=Span(),
    default=30.0,
    metavar="SPAN",
    help="How long running jobs may finish when the worker stops; 0 = for ever.",
)
@click.option(
    "--kill-after",
    type=Span(),
    default=10.0,
    metavar="SPAN",
    help="Kill what has not stopped that long after its timeout or its cancellation.",
)
@click.option(
    "--give-up-after",
    type=Span(),
    default=0.0,
    metavar="SPAN",
    help="End, with an error, when the engine has not answered for that long; 0 = wait for ever.",
)
@click.option("--probe-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve /livez, /readyz, /metrics.")
@click.option("--probe-host", default="127.0.0.1", metavar="HOST", help="Where to; 0.0.0.0 for an orchestrator.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes, for development.")
@click.option("--quiet", is_flag=True, help="Print no line for each job.")
@url_option
@json_option
def start(
    app: str | None,
    queues: dict[str, int],
    count: int,
    concurrency: int,
    allow: tuple[str, ...],
    burst: bool,
    max_jobs: int,
    max_jobs_per_child: int,
    max_memory: int,
    nice: int,
    grace: float,
    kill_after: float,
    give_up_after: float,
    probe_port: int | None,
    probe_host: str,
    reload: bool,
    quiet: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Work jobs until told to stop.

    APP is your application, as MODULE:NAME. Without one, only command jobs are run, and only allowed programs.
    Jobs run in processes of their own, which may crash without a job being lost. Ctrl-C, SIGTERM or the closing of the
    terminal lets running jobs finish; a second one hands them back at once.

    \b
    Examples:
      holdfast worker start shop:hf --queue mail:3,default --count 4
      holdfast worker start --allow sleep --burst
    """
    if reload:
        from holdfast.cli.reload import run_reloading, watched_directories

        patience = grace + kill_after + 5.0 if grace else math.inf
        return run_reloading(_without_reload(sys.argv), watched_directories(), grace_s=patience)
    log_to_stderr()
    setup = Setup(
        app=app,
        url=url,
        allow=allow,
        slots=concurrency,
        max_jobs=max_jobs_per_child,
        max_memory_bytes=max_memory,
        nice=nice,
    )
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT_NAMES}
    program = python_program("holdfast.executor", [msgspec.json.encode(setup).decode()], environment)
    notifier = Notifier.from_environment(os.environ)
    with ExitStack() as stack:
        stack.enter_context(orphans_adopted())
        hf = stack.enter_context(_application(setup))
        metrics = None if probe_port is None else _metrics(hf)
        options = WorkerOptions(
            queues=queues,
            processes=count,
            concurrency=concurrency,
            burst=burst,
            max_jobs=max_jobs,
            grace_s=grace,
            kill_after_s=kill_after,
            give_up_after_s=give_up_after,
            poll_interval_s=hf.settings.poll_interval,
            reap_interval_s=min(hf.settings.reap_interval, hf.settings.lease / 2),
        )
        printer = None if quiet else _documents if as_json else _lines
        supervisor = hf.supervisor(program, options, on_results=printer, notifier=notifier)
        server: ProbeServer | None = None
        if probe_port is not None:
            checks = Checks(live=lambda: _why_not_live(supervisor), ready=supervisor.readiness, metrics=metrics)
            server = stack.enter_context(ProbeServer(probe_host, probe_port, checks=checks))
        _greet(hf, supervisor)
        if server is not None:
            say(f"probes at http://{server.address[0]}:{server.address[1]}")
        stack.callback(lambda: say(_farewell(supervisor)))
        with _rare_collections(), heard(_answer(supervisor), _leave_signals()):
            supervisor.run()
    return 1 if supervisor.unsettled else 0


def _application(setup: Setup) -> Holdfast:
    hf = setup.application()
    if hf.commands.allowed:
        # Producers refuse commands that no worker would run; this tells them what this one runs.
        hf.backend().add_facts(COMMAND_FACTS, hf.commands.allowed)
    return hf


def _metrics(hf: Holdfast) -> Callable[[], tuple[bytes, str]] | None:
    """What serves `/metrics`: counted by prometheus-client, if it is there and the application has no own collector."""
    if type(hf.metrics) is InMemoryMetrics:
        try:
            from holdfast.metrics.prometheus import PrometheusMetrics
        except ConfigError:  # the extra is not installed; whoever asks is told
            return None
        hf.metrics = PrometheusMetrics()
    render: Callable[[], tuple[bytes, str]] | None = getattr(hf.metrics, "render", None)
    return render


def _why_not_live(supervisor: Supervisor) -> str | None:
    return None if supervisor.is_live() else "the loop has not turned for a while"


def _greet(hf: Holdfast, supervisor: Supervisor) -> None:
    handlers = [key for key in hf.registry.keys() if key != COMMAND_KEY]  # noqa: SIM118 - not a dict
    dot, report = glyph("·", "-"), supervisor.report()
    say(f"holdfast {__version__} {dot} {hf.location} {dot} worker {supervisor.id}")
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
    _print("\n".join(msgspec.json.encode(result).decode() for result in results))


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
