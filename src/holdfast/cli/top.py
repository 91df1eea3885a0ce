"""`holdfast top`: a live view of queues, jobs and workers; what it shows and does, apart from the screen itself."""

from __future__ import annotations

import sys
from typing import Final

import click
from msgspec import Struct

from holdfast.cli.jobs import possible_runs, runs
from holdfast.cli.options import Site, Span, existing, json_option, url_option
from holdfast.cli.output import write_json
from holdfast.cli.private_queue import is_private
from holdfast.cli.status import Status, look
from holdfast.cli.words import age, command
from holdfast.errors import ConfigError
from holdfast.state.workers import WorkerRegistry
from holdfast.values import CancelAnswer, JobFilter, JobState, JobView, ReplayAnswer, WorkerView

EVERY_S: Final = 2.0
LEAST_S: Final = 0.2
MOST_JOBS: Final = 200
# What is most worth seeing first.
SHOWN_FIRST: Final = (
    (JobState.PROCESSING,),
    (JobState.PENDING, JobState.FAILED),
    (JobState.DEAD,),
    (JobState.SCHEDULED, JobState.BLOCKED),
    (JobState.COMPLETED, JobState.CANCELLED),
)


@click.command()
@click.option("--every", type=Span(), default=EVERY_S, metavar="SPAN", help="How often to look, every 2 s if not said.")
@url_option
@json_option
def top(every: float, url: str | None, as_json: bool) -> int:
    """Watch queues, jobs and workers live, in a view that fills the terminal; ? shows its keys, q leaves.

    It needs the extra `tui`. With --json the numbers of `status` are printed once, and nothing else.

    \b
    Examples:
      holdfast top
      holdfast top --every 500ms
    """
    with existing(url) as site:
        if as_json:
            write_json(look(site))
            return 0
        if not sys.stdin.isatty() or not sys.stdout.isatty():
            raise click.UsageError("this needs a terminal; elsewhere there is  holdfast status --watch")
        try:
            from holdfast.cli.top_screen import Screen
        except ModuleNotFoundError as problem:
            raise ConfigError(
                f"the view that fills the terminal needs the package {problem.name}: pip install 'textual>=6,<9'; "
                "without it there is  holdfast status --watch"
            ) from problem
        return Screen(Board(site), every_s=max(every, LEAST_S)).run() or 0


class Picture(Struct, frozen=True, kw_only=True):
    """One look at everything there is to see; of the jobs, those that fit the needle."""

    needle: str
    status: Status
    jobs: tuple[JobView, ...]
    workers: tuple[WorkerView, ...]


class Board:
    """Looks at jobs and does to them what a key asks for; each answers with a sentence."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.location = site.location

    def look(self, needle: str = "") -> Picture:
        """What there is now; of the jobs, those that have the needle in what is shown of them."""
        engine = self._site.engine
        jobs: list[JobView] = []
        for states in SHOWN_FIRST:
            if len(jobs) < MOST_JOBS:
                page = engine.find(JobFilter(states=states), limit=MOST_JOBS)
                jobs += [job for job in page.jobs if is_shown(job, needle)]
        return Picture(
            needle=needle,
            status=look(self._site),
            jobs=tuple(jobs[:MOST_JOBS]),
            workers=tuple(WorkerRegistry(engine.state).all()),
        )

    def retry(self, job_id: str) -> str:
        history = self._site.engine.get(job_id)
        if history is not None and is_private(history.job.queue):
            return f"{job_id} belongs to a `holdfast run` that is over, and nobody works its queue"
        match self._site.engine.replay(job_id):
            case ReplayAnswer.REPLAYED:
                return f"{job_id} is back in its queue"
            case ReplayAnswer.EXPIRED:
                return (
                    f"{job_id} is too late to start:  {command('holdfast', 'dlq', 'retry', '--ignore-expiry', job_id)}"
                )
            case ReplayAnswer.NOT_FINAL:
                return f"{job_id} is neither dead nor cancelled"
            case ReplayAnswer.UNKNOWN:
                return f"{job_id} is not known any more"

    def cancel(self, job_id: str) -> str:
        match self._site.engine.cancel(job_id, "cancelled in holdfast top"):
            case CancelAnswer.CANCELLED:
                return f"{job_id} is cancelled"
            case CancelAnswer.REQUESTED:
                return f"{job_id} is running; its worker will stop it"
            case CancelAnswer.TOO_LATE:
                return f"{job_id} has ended already"
            case CancelAnswer.UNKNOWN:
                return f"{job_id} is not known any more"

    def discard(self, job_id: str) -> str:
        is_gone = self._site.engine.discard(job_id)
        return f"{job_id} is discarded" if is_gone else f"{job_id} is no dead letter; only those can be discarded"

    def pause_or_resume(self, queue: str) -> str:
        engine = self._site.engine
        if is_private(queue) or queue.startswith("run-…"):
            return "the queue of a `holdfast run` is not paused"
        if engine.resume(queue):
            return f"{queue} is worked again"
        engine.pause(queue, "paused in holdfast top")
        return f"{queue} is paused; what is running goes on"


def is_shown(job: JobView, needle: str) -> bool:
    """Whether a job has every word of the needle somewhere in what is shown of it."""
    shown = f"{job.id} {job.state} {job.name or ''} {job.job} {job.queue} {job.last_error or ''}".lower()
    return all(word in shown for word in needle.lower().split())


def job_cells(job: JobView) -> tuple[str, ...]:
    """A job as a row."""
    said = job.progress.message if job.progress is not None and job.state is JobState.PROCESSING else job.last_error
    return (
        job.id,
        job.state,
        job.name or job.job,
        job.queue,
        f"{runs(job)}/{possible_runs(job)}",
        age(job.accepted_at),
        said or "",
    )
