"""`holdfast top`: a full-screen view of queues, jobs and workers. `top_screen.py` draws it."""

from __future__ import annotations

import sys
from typing import Final

import click
from msgspec import Struct

from holdfast.cli.options import Site, Span, existing, json_option, url_option
from holdfast.cli.output import write_json
from holdfast.cli.private_queue import is_private
from holdfast.cli.status import Status, read_status
from holdfast.cli.words import age, command, possible_runs, runs
from holdfast.errors import ConfigError
from holdfast.state.workers import WorkerRegistry
from holdfast.values import CancelAnswer, JobFilter, JobState, JobView, ReplayAnswer, WorkerView

SHORTEST_INTERVAL_S: Final = 0.2
MOST_JOBS: Final = 200
# The most interesting states first.
SHOWN_FIRST: Final = (
    (JobState.PROCESSING,),
    (JobState.PENDING, JobState.FAILED),
    (JobState.DEAD,),
    (JobState.SCHEDULED, JobState.BLOCKED),
    (JobState.COMPLETED, JobState.CANCELLED),
)


@click.command()
@click.option("--every", type=Span(), default=2.0, help="Refresh interval; default: 2s.")
@url_option
@json_option
def top(every: float, url: str | None, as_json: bool) -> int:
    """Monitor queues, jobs and workers in a full-screen view; ? lists the keys, q quits.

    Requires the extra `tui`. With --json, print the same document as `holdfast status --json` and exit.

    \b
    Examples:
      holdfast top
      holdfast top --every 500ms
    """
    with existing(url) as site:
        if as_json:
            write_json(read_status(site))
            return 0
        if not sys.stdin.isatty() or not sys.stdout.isatty():
            raise click.UsageError("top needs a terminal; without one, use  holdfast status --watch")
        try:
            from holdfast.cli.top_screen import Screen
        except ModuleNotFoundError as problem:
            raise ConfigError(
                f"the full-screen view needs the package {problem.name}: pip install 'textual>=6,<9'; "
                "without it, use  holdfast status --watch"
            ) from problem
        return Screen(Board(site), every_s=max(every, SHORTEST_INTERVAL_S)).run() or 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that the view shows at one time. `jobs` are those that match the filter."""

    words: str
    status: Status
    jobs: tuple[JobView, ...]
    workers: tuple[WorkerView, ...]


class Board:
    """Reads what the view shows, and does what its keys ask for. Each action returns a sentence about its result."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.location = site.location

    def snapshot(self, words: str = "") -> Snapshot:
        """The current state. Jobs are filtered by these words."""
        engine = self._site.engine
        jobs: list[JobView] = []
        for states in SHOWN_FIRST:
            if len(jobs) < MOST_JOBS:
                page = engine.find(JobFilter(states=states), limit=MOST_JOBS)
                jobs += [job for job in page.jobs if matches(job, words)]
        return Snapshot(
            words=words,
            status=read_status(self._site),
            jobs=tuple(jobs[:MOST_JOBS]),
            workers=tuple(WorkerRegistry(engine.state).all()),
        )

    def retry(self, job_id: str) -> str:
        history = self._site.engine.get(job_id)
        if history is not None and is_private(history.job.queue):
            return f"{job_id} belongs to a `holdfast run` that has exited; no worker processes its queue"
        match self._site.engine.replay(job_id):
            case ReplayAnswer.REPLAYED:
                return f"{job_id} requeued"
            case ReplayAnswer.EXPIRED:
                return f"{job_id} has expired:  {command('holdfast', 'retry', '--ignore-expiry', job_id)}"
            case ReplayAnswer.NOT_FINAL:
                return f"{job_id} is neither dead nor cancelled"
            case ReplayAnswer.UNKNOWN:
                return f"{job_id} no longer exists"

    def cancel(self, job_id: str) -> str:
        match self._site.engine.cancel(job_id, "cancelled in holdfast top"):
            case CancelAnswer.CANCELLED:
                return f"{job_id} cancelled"
            case CancelAnswer.REQUESTED:
                return f"{job_id}: cancellation requested; its worker will stop it"
            case CancelAnswer.TOO_LATE:
                return f"{job_id} has already finished"
            case CancelAnswer.UNKNOWN:
                return f"{job_id} no longer exists"

    def discard(self, job_id: str) -> str:
        is_discarded = self._site.engine.discard(job_id)
        return f"{job_id} discarded" if is_discarded else f"{job_id} is not a dead letter; nothing was discarded"

    def pause_or_resume(self, queue: str) -> str:
        engine = self._site.engine
        if is_private(queue) or queue.startswith("run-…"):
            return "the queue of a `holdfast run` cannot be paused"
        if engine.resume(queue):
            return f"{queue} resumed"
        engine.pause(queue, "paused in holdfast top")
        return f"{queue} paused; running jobs continue"


def matches(job: JobView, words: str) -> bool:
    """Whether each word appears in one of the job's columns."""
    shown = f"{job.id} {job.state} {job.name or ''} {job.job} {job.queue} {job.last_error or ''}".lower()
    return all(word in shown for word in words.lower().split())


def job_cells(job: JobView) -> tuple[str, ...]:
    """The job as a row of the table."""
    progress = job.progress if job.state is JobState.PROCESSING else None
    message = job.last_error if progress is None else progress.message
    return (
        job.id,
        job.state,
        job.name or job.job,
        job.queue,
        f"{runs(job)}/{possible_runs(job)}",
        age(job.accepted_at),
        message or "",
    )
