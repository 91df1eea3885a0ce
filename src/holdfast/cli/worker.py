"""`holdfast worker`: run jobs in this terminal."""

import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import click

from holdfast import __version__
from holdfast.app import COMMAND_FACTS, Holdfast
from holdfast.cli.options import QueueNames, json_option, load_app, url_option
from holdfast.cli.output import glyph, plain, print_json, say, span
from holdfast.handlers import COMMAND_KEY
from holdfast.values import DEFAULT_QUEUE, WorkerResult, WorkerStatus
from holdfast.worker import QueueWorker, WorkerLoop
from holdfast.worker.signals import heard


@click.group()
def worker() -> None:
    """Run jobs."""


@worker.command()
@click.argument("app", required=False)
@click.option(
    "--queue",
    "-q",
    "queues",
    type=QueueNames(),
    default=(DEFAULT_QUEUE,),
    metavar="A,B",
    help="Queues to work, in turn.",
)
@click.option("--allow", multiple=True, metavar="PROGRAM", help="A program that command jobs may run; repeatable.")
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option("--max-jobs", type=click.IntRange(min=0), default=0, metavar="N", help="Stop after N jobs; 0 = never.")
@url_option
@json_option
def start(
    app: str | None,
    queues: tuple[str, ...],
    allow: tuple[str, ...],
    burst: bool,
    max_jobs: int,
    url: str | None,
    as_json: bool,
) -> None:
    """Work jobs until told to stop.

    APP is your application, as MODULE:NAME. Without one, only command jobs are run, and only allowed programs.
    Ctrl-C or SIGTERM lets the running job finish; a second one gives it back at once.

    \b
    Examples:
      holdfast worker start shop:hf --queue mail,default
      holdfast worker start --allow sleep --burst
    """
    _log_to_stderr()
    with _application(app, url, allow) as hf:
        tally: Counter[WorkerStatus] = Counter()

        def on_result(result: WorkerResult) -> None:
            tally[result.status] += 1
            if as_json:
                print_json(result)
            else:
                click.echo(plain(_line(result)))

        with hf.worker() as queue_worker:
            loop = hf.loop(queue_worker, queues, burst=burst, max_jobs=max_jobs, on_result=on_result)
            _greet(hf, queues)
            with heard(_answer(loop, queue_worker)):
                loop.run()
        say(_farewell(tally))


class _PlainFormatter(logging.Formatter):
    """Log lines quote what jobs say: nothing in them may move the cursor or look like another line's beginning."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n    ")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _application(app: str | None, url: str | None, allow: tuple[str, ...]) -> Holdfast:
    hf = load_app(app) if app else Holdfast(url)
    if app and url:
        hf.close()  # the module may have used it while it was imported
        hf.url = url
    hf.commands.allowed |= frozenset(allow)
    if hf.commands.allowed:
        # Producers refuse commands that no worker would run; this tells them what this one runs.
        hf.backend().add_facts(COMMAND_FACTS, hf.commands.allowed)
    return hf


def _greet(hf: Holdfast, queues: tuple[str, ...]) -> None:
    handlers = [key for key in hf.registry.keys() if key != COMMAND_KEY]  # noqa: SIM118 - not a dict
    say(f"holdfast {__version__} {glyph('·', '-')} {hf.location}")
    say(f"queues {', '.join(queues)} {glyph('·', '-')} handlers {', '.join(handlers) or 'command jobs only'}")
    if not handlers and not hf.commands.allowed:
        say("no command is allowed yet: every command job will be refused; allow some with  --allow PROGRAM")


def _answer(loop: WorkerLoop, queue_worker: QueueWorker) -> Callable[[signal.Signals], None]:
    """The first signal drains, the next one hands the running job back."""

    def answer(number: signal.Signals) -> None:
        if loop.is_stopping:
            _say_now("giving the running job back")
            queue_worker.interrupt()
        else:
            _say_now("draining: a running job finishes first (again: give it back and leave)")
            loop.stop()

    return answer


def _say_now(sentence: str) -> None:
    """Say something while a job runs: not through `sys.stderr`, which is the running job's."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


def _line(result: WorkerResult) -> str:
    mark = glyph("✓", "*") if result.status is WorkerStatus.ACKED else glyph("✗", "x")
    took = span(result.duration_s)
    text = f"{mark} [{result.status}] {result.job or '?'} {result.job_id} (attempt {result.attempt}) {took}"
    if result.error is not None:
        text += f" {glyph('·', '-')} {result.error.line}"
    if result.retry_in is not None:
        text += f" {glyph('·', '-')} again in {span(result.retry_in)}"
    return text


def _farewell(tally: Counter[WorkerStatus]) -> str:
    parts = {
        "done": tally[WorkerStatus.ACKED],
        "to be retried": tally[WorkerStatus.REQUEUED],
        "dead": tally[WorkerStatus.DEAD_LETTERED] + tally[WorkerStatus.REJECTED],
        "given back": tally[WorkerStatus.RELEASED],
        "cancelled": tally[WorkerStatus.CANCELLED],
        "taken over by another worker": tally[WorkerStatus.LOST_LEASE],
    }
    shown = [f"{number:,} {what}" for what, number in parts.items() if number or what == "done"]
    dot = f" {glyph('·', '-')} "
    return dot.join(["stopped", *shown])
