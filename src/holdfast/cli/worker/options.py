"""The options of `holdfast worker start`, and what they mean for the worker and for the processes that run its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.options import Size, Span, WeightedQueues, json_option, merged_queues, url_option, with_options

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.executor import Setup
    from holdfast.worker.options import WorkerOptions

F = TypeVar("F", bound=Callable[..., Any])

MOST_PROCESSES: Final = 512
MOST_SLOTS: Final = 1000
KILL_AFTER_S: Final = 10.0


class StartChoices(Struct, frozen=True, kw_only=True):
    """What was chosen on the command line, by the names of the options."""

    app: str | None
    queues: dict[str, int]
    count: int
    concurrency: int
    allow: tuple[str, ...]
    burst: bool
    max_jobs: int
    max_jobs_per_child: int
    max_memory: int
    nice: int
    grace: float
    kill_after: float
    give_up_after: float
    probe_port: int | None
    probe_host: str
    reload: bool
    quiet: bool
    url: str | None
    as_json: bool

    def setup(self) -> Setup:
        """What the processes that run jobs are told."""
        from holdfast.executor import Setup

        return Setup(
            app=self.app,
            url=self.url,
            allow=self.allow,
            slots=self.concurrency,
            max_jobs=self.max_jobs_per_child,
            max_memory_bytes=self.max_memory,
            nice=self.nice,
        )

    def worker_options(self, settings: Settings) -> WorkerOptions:
        from holdfast.worker.options import WorkerOptions

        return WorkerOptions(
            queues=self.queues,
            processes=self.count,
            concurrency=self.concurrency,
            burst=self.burst,
            max_jobs=self.max_jobs,
            grace_s=self.grace,
            kill_after_s=self.kill_after,
            give_up_after_s=self.give_up_after,
            poll_interval_s=settings.poll_interval,
            reap_interval_s=min(settings.reap_interval, settings.lease / 2),
        )


def start_options(command: F) -> F:
    """Give a command all of them, which arrive as the fields of `StartChoices`."""
    return with_options((click.argument("app", required=False), queue_option, *_OPTIONS), command)


def work_options(command: F) -> F:
    """Give a command all of them but those that say which application and which queues."""
    return with_options(_OPTIONS, command)


queue_option: Final = click.option(
    "--queue",
    "-q",
    "queues",
    type=WeightedQueues(),
    multiple=True,
    callback=merged_queues,
    metavar="A,B",
    help="Queues to work; a:3,b gives a three turns for one of b; repeatable. Default: default.",
)
size_options: Final = (
    click.option(
        "--count", type=click.IntRange(1, MOST_PROCESSES), default=1, metavar="N", help="Processes that run jobs."
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, MOST_SLOTS),
        default=1,
        metavar="C",
        help="Jobs at once in each process.",
    ),
)
grace_option: Final = click.option(
    "--grace",
    type=Span(),
    default=30.0,
    metavar="SPAN",
    help="How long running jobs may finish when the worker stops; 0 = for ever.",
)
# In the order of the help.
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    *size_options,
    click.option("--allow", multiple=True, metavar="PROGRAM", help="A program that command jobs may run; repeatable."),
    click.option("--burst", is_flag=True, help="Stop when nothing is due."),
    click.option(
        "--max-jobs",
        "--max",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Stop after N jobs; 0 = never.",
    ),
    click.option(
        "--max-jobs-per-child",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Replace a process after N jobs; 0 = never.",
    ),
    click.option(
        "--max-memory", type=Size(), default=0, metavar="SIZE", help="Replace a process that has grown past it."
    ),
    click.option(
        "--nice",
        type=click.IntRange(0, 19),
        default=5,
        metavar="N",
        help="How far jobs step back behind the worker when the processor is wanted by both; 0 = not.",
    ),
    grace_option,
    click.option(
        "--kill-after",
        type=Span(),
        default=KILL_AFTER_S,
        metavar="SPAN",
        help="Kill what has not stopped that long after its timeout or its cancellation.",
    ),
    click.option(
        "--give-up-after",
        type=Span(),
        default=0.0,
        metavar="SPAN",
        help="End, with an error, when the engine has not answered for that long; 0 = wait for ever.",
    ),
    click.option(
        "--probe-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve /livez, /readyz, /metrics."
    ),
    click.option("--probe-host", default="127.0.0.1", metavar="HOST", help="Where to; 0.0.0.0 for an orchestrator."),
    click.option("--reload", is_flag=True, help="Start anew when a Python file changes, for development."),
    click.option("--quiet", is_flag=True, help="Print no line for each job."),
    url_option,
    json_option,
)
