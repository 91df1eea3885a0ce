"""What will keep newly enqueued jobs waiting: a paused queue, or no worker that claims them."""

from collections.abc import Collection
from contextlib import suppress

from holdfast.cli.advice import starting
from holdfast.cli.private_queue import is_private
from holdfast.cli.words import command
from holdfast.errors import BackendError
from holdfast.handlers import COMMAND_KEY
from holdfast.queues.contract import Engine
from holdfast.spelling import did_you_mean
from holdfast.state.workers import WorkerRegistry
from holdfast.values import QueuePause, WorkerState, WorkerView


def outlook(engine: Engine, jobs: Collection[tuple[str, str]], *, app: str | None = None) -> list[str]:
    """The obstacles for jobs of these queues and handlers, as far as they are known. Never fails."""
    with suppress(BackendError):
        return remarks(jobs, engine.pauses(), WorkerRegistry(engine.state).all(), app=app)
    return []


def remarks(
    jobs: Collection[tuple[str, str]],
    pauses: Collection[QueuePause],
    workers: Collection[WorkerView],
    *,
    app: str | None = None,
) -> list[str]:
    """A sentence for each obstacle. A missing worker is not one, since it may be about to start."""
    running = [view.report for view in workers if view.state is not WorkerState.LOST]
    served = {queue.partition(":")[0] for report in running for queue in report.queues}
    queues = dict.fromkeys(queue for queue, _ in jobs)
    functions = {queue: job for queue, job in jobs if job != COMMAND_KEY}
    found = [
        f"queue '{pause.queue}' is paused{f': {pause.reason}' if pause.reason else ''}; resume it:  "
        f"{command('holdfast', 'queue', 'resume', pause.queue)}"
        for pause in pauses
        if pause.queue in queues
    ]
    public = {queue for queue in served if not is_private(queue)}
    for queue in queues:
        if public and queue not in served:
            guess = _guess(queue, public)
            start = starting(queue, app=app, job=functions.get(queue, COMMAND_KEY))
            found.append(f"no worker is running for queue '{queue}'{guess}; start one:  {start}")
    for queue, job in dict.fromkeys(jobs):
        takers = [report for report in running if queue in (each.partition(":")[0] for each in report.queues)]
        known = {handler for report in takers for handler in report.handlers}
        if takers and job not in known:
            found.append(f"no running worker of queue '{queue}' knows the handler '{job}'{_guess(job, known)}")
    return found


def _guess(word: str, known: Collection[str]) -> str:
    return f" ({near})" if (near := did_you_mean(word, known)) else ""
