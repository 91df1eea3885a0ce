"""The options of `holdfast worker start`, for the worker and for the processes that run its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from holdfast.cli.completion import complete_app, complete_queues
from holdfast.cli.options import (
    Size,
    Span,
    WeightedQueues,
    given_or_configured,
    json_option,
    merged_queues,
    url_option,
    with_options,
)

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.executor import Setup
    from holdfast.worker.options import WorkerOptions

F = TypeVar("F", bound=Callable[..., Any])

MOST_PROCESSES: Final = 512
MOST_SLOTS: Final = 1000
KILL_AFTER_S: Final = 10.0
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class StartChoices(Struct, frozen=True, kw_only=True):
    """The options as given on the command line."""

    app: str | None
    queues: dict[str, int]
    no_schedules: bool
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
    log_level: str
    url: str | None
    as_json: bool

    def setup(self) -> Setup:
        """The setup of the processes that run jobs."""
        from holdfast.executor import Setup

        return Setup(
            app=self.app,
            url=self.url,
            allow=self.allow,
            slots=self.concurrency,
            max_jobs=self.max_jobs_per_child,
            max_memory_bytes=self.max_memory,
            nice=self.nice,
            log_level=self.log_level,
        )

    @property
    def runs_schedules(self) -> bool:
        """Whether this worker runs schedules. A burst worker does not, because it exits soon."""
        return not (self.no_schedules or self.burst)

    def worker_options(self, settings: Settings) -> WorkerOptions:
        from holdfast.worker.options import WorkerOptions

        return WorkerOptions(
            queues=self.queues or {settings.default_queue: 1},
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
    """Give a command all options; they become the fields of `StartChoices`."""
    return with_options((_app_argument, queue_option, _schedules_option, *_OPTIONS), command)


def work_options(command: F) -> F:
    """Give a command all options except the application and the queues."""
    return with_options(_OPTIONS, command)


_app_argument: Final = click.argument("app", required=False, callback=given_or_configured, shell_complete=complete_app)
queue_option: Final = click.option(
    "--queue",
    "-q",
    "queues",
    type=WeightedQueues(),
    shell_complete=complete_queues,
    multiple=True,
    callback=merged_queues,
    metavar="A,B",
    help="Queues to process; a:3,b:1 serves a three times as often as b. Repeatable; "
    "default: the setting default-queue.",
)
_schedules_option: Final = click.option(
    "--no-schedules", is_flag=True, help="Do not run schedules. Implied by --burst."
)
size_options: Final = (
    click.option(
        "--count",
        type=click.IntRange(1, MOST_PROCESSES),
        default=1,
        metavar="N",
        help="Number of processes that run jobs; default: 1.",
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, MOST_SLOTS),
        default=1,
        metavar="C",
        help="Jobs that each process runs at the same time; default: 1.",
    ),
)
grace_option: Final = click.option(
    "--grace",
    type=Span(),
    default=0.0,
    help="Grace period for running jobs at shutdown; default: 0 = no limit.",
)
# In the order of the help.
_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    *size_options,
    click.option(
        "--allow", multiple=True, metavar="PROGRAM", help="Allow command jobs to run this program. Repeatable."
    ),
    click.option("--burst", is_flag=True, help="Exit when no job is due. Waits for rate limits of queues."),
    click.option(
        "--max-jobs",
        "--max",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Exit after N runs, counting each retry; default: 0 = no limit.",
    ),
    click.option(
        "--max-jobs-per-child",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Restart a process after N jobs; default: 0 = never.",
    ),
    click.option(
        "--max-memory",
        type=Size(),
        default=0,
        metavar="SIZE",
        help="Restart a process that uses more memory than this, for example 300M; default: 0 = no limit.",
    ),
    click.option(
        "--nice",
        type=click.IntRange(0, 19),
        default=5,
        metavar="N",
        help="Niceness added to the processes that run jobs, so that the worker gets the CPU first; default: 5.",
    ),
    grace_option,
    click.option(
        "--kill-after",
        type=Span(),
        default=KILL_AFTER_S,
        help="Kill a job that is still running this long after its timeout or cancellation; default: 10s.",
    ),
    click.option(
        "--give-up-after",
        type=Span(),
        default=0.0,
        help="Exit with an error when the engine has been unavailable for this long; default: 0 = never.",
    ),
    click.option(
        "--probe-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve /livez, /readyz and /metrics on this port; 0 = any free port. Off by default.",
    ),
    click.option(
        "--probe-host",
        default="127.0.0.1",
        metavar="HOST",
        help="Address that the probes listen on; default: 127.0.0.1; 0.0.0.0 = reachable from other hosts.",
    ),
    click.option("--reload", is_flag=True, help="Restart when a Python file changes (for development)."),
    click.option("--quiet", is_flag=True, help="Do not print a line for each job."),
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="warning",
        help="Log level on stderr; default: warning; debug also logs the start of each job.",
    ),
    url_option,
    json_option,
)
