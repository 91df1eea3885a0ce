"""The database: clock and schema, workers, queues without a worker, and jobs without a handler."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from holdfast import __version__
from holdfast.cli.advice import starting
from holdfast.cli.backend_info import schema_in_words, schema_state
from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.private_queue import is_private
from holdfast.cli.words import age
from holdfast.cli.worker.choosing import served_queues
from holdfast.errors import HandlerError
from holdfast.queues.contract import Engine, EngineInfo
from holdfast.spelling import closest, did_you_mean
from holdfast.state.workers import queues_of
from holdfast.units import counted, format_duration
from holdfast.values import FINAL_STATES, JobFilter, JobState, QueuePause, WorkerState, WorkerView

OPEN_STATES: Final = tuple(state for state in JobState if state not in FINAL_STATES)
WAITING_STATES: Final = tuple(state for state in OPEN_STATES if state is not JobState.PROCESSING)
MOST_CHECKED: Final = 10_000
PAGE: Final = 1000
NOTABLE_SKEW_S: Final = 1.0
_NAMED: Final = 10

JobCounts = Mapping[str, Mapping[JobState, int]]


def clock_findings(info: EngineInfo, *, asked_us: int, answered_us: int, lease_s: float) -> Findings:
    """Compare this host's clock with the engine's, which alone decides when jobs are due and leases expire."""
    if info.clock_us is None:
        yield fine("clocks", "the engine uses this host's clock")
        return
    # The engine read its clock at some time between request and response.
    skew_s = (info.clock_us - (asked_us + answered_us) / 2) / 1e6
    doubt_s = (answered_us - asked_us) / 2e6
    off_s = max(0.0, abs(skew_s) - doubt_s)
    if off_s < NOTABLE_SKEW_S:
        yield fine("clocks", "the server's clock and this host's agree")
        return
    side = "ahead of" if skew_s > 0 else "behind"
    report = warning if off_s < lease_s else error
    yield report(
        "clocks",
        f"the server's clock is {format_duration(off_s)} {side} this host's: due times set on this host, and "
        "ages shown on it, are off by that much",
        "synchronize both with NTP:  timedatectl set-ntp true",
    )


def heartbeat_findings(workers: Sequence[WorkerView], *, now_us: int, lease_s: float) -> Findings:
    """Find heartbeats in the future: this host's clock has been set back since."""
    ahead = max((view.heard_at.timestamp() - now_us / 1e6 for view in workers), default=0.0)
    if ahead > max(NOTABLE_SKEW_S, lease_s):
        yield error(
            "clocks",
            f"a worker's last heartbeat is {format_duration(ahead)} in the future: the clock was set back, and jobs "
            "that were already due do not run until it has caught up",
            "correct the clock; leases that last too long are shortened automatically",
        )


def schema_findings(info: EngineInfo) -> Findings:
    """Whether this program can use the schema."""
    if info.schema is None or info.known_schema is None:
        yield fine("schema", info.server)
        return
    state, remedy = schema_in_words(info)
    match schema_state(info):
        case "current":
            yield fine("schema", f"{info.server}, {state}")
        case "missing":
            yield note("schema", f"{info.server}, {state}; {remedy}")
        case "older":
            yield warning("schema", f"{state}; the first command that writes upgrades it", remedy)
        case _:
            yield error("schema", f"{state} and cannot be used", remedy)


def worker_findings(workers: Sequence[WorkerView], app: str | None = None) -> Findings:
    """Find lost workers, and workers of another version."""
    lost = [view for view in workers if view.state is WorkerState.LOST]
    alive = [view for view in workers if view.state is not WorkerState.LOST]
    for view in lost:
        report = view.report
        yield warning(
            "workers",
            f"worker {report.id[:8]} (pid {report.pid} on {report.host}) is lost: last seen {age(view.heard_at)} ago, "
            f"with {counted(report.running, 'job')}, which will be requeued when their leases expire",
            "check whether it was killed (dmesg shows out-of-memory kills) or cannot reach the engine; start another:  "
            f"{starting(app=app)}",
        )
    for version, number in Counter(view.report.version for view in alive).items():
        if version != __version__:
            yield warning(
                "workers",
                f"{counted(number, 'worker')} with Holdfast {version}, but this is {__version__}",
                "upgrade all workers first, then the programs that enqueue",
            )
    if alive:
        yield fine("workers", f"{len(alive):,} live")
    elif not lost:
        yield note("workers", "no worker is running", f"start one:  {starting(app=app)}")


def queue_findings(
    counts: JobCounts, workers: Sequence[WorkerView], pauses: Sequence[QueuePause], app: str | None = None
) -> Findings:
    """Find queues with waiting jobs that are paused or have no worker."""
    found = seen = 0
    served = served_queues(workers)
    reasons = {pause.queue: pause.reason for pause in pauses}
    for queue, states in sorted(counts.items()):
        waiting = sum(states.get(state, 0) for state in WAITING_STATES)
        if not waiting or is_private(queue):
            continue
        seen += 1
        if queue in reasons:
            found += 1
            why = f" ({reasons[queue]})" if reasons[queue] else ""
            message = f"{queue} is paused{why}, with {counted(waiting, 'job')} waiting"
            yield note("queues", message, f"holdfast queue resume {shlex.quote(queue)}")
        if queue not in served:
            found += 1
            near = closest(queue, served)
            guess = f"; a worker processes '{near}': is one of the names misspelled?" if near else ""
            yield error(
                "queues",
                f"{queue} has {counted(waiting, 'job')} waiting and no worker{guess}",
                f"start one:  {starting(queue, app=app)}",
            )
    if not found:
        yield fine("queues", "every queue with waiting jobs has a worker" if seen else "no jobs are waiting")


def handler_findings(engine: Engine, resolve: Callable[[str, str], object], source: str) -> Findings:
    """Find waiting jobs whose handler `resolve(key, queue)` does not know."""
    kinds, is_all = _waiting_kinds(engine)
    refusals: dict[str, int] = {}
    for (job, queue), number in kinds.items():
        try:
            resolve(job, queue)
        except HandlerError as problem:
            refusals[str(problem)] = refusals.get(str(problem), 0) + number
    for sentence, number in list(refusals.items())[:_NAMED]:
        yield error(
            "handlers",
            f"{counted(number, 'waiting job')} cannot be run by {source}: {sentence}",
            "start workers with the application that has this handler, or cancel the jobs:  holdfast cancel ID",
        )
    if len(refusals) > _NAMED:
        yield error("handlers", f"{len(refusals) - _NAMED:,} more handlers are unknown", "see above")
    if not refusals:
        checked = "every waiting job" if is_all else f"each of the newest {MOST_CHECKED:,} waiting jobs"
        yield fine("handlers", f"{checked} can be run by {source}" if kinds else "no jobs are waiting")


def of_workers(workers: Sequence[WorkerView]) -> Callable[[str, str], object]:
    """A check against the handlers of the live workers. A queue without a worker is another finding."""
    known: dict[str, set[str]] = {}
    for view in workers:
        if view.state is WorkerState.LIVE:
            for queue in queues_of(view):
                known.setdefault(queue, set()).update(view.report.handlers)

    def resolve(job: str, queue: str) -> None:
        handlers: Collection[str] = known.get(queue, ())
        if queue in known and job not in handlers:
            guess = f"; {near}" if (near := did_you_mean(job, handlers)) else ""
            raise HandlerError(f"no live worker of queue '{queue}' has the handler '{job}'{guess}")

    return resolve


def _waiting_kinds(engine: Engine) -> tuple[Counter[tuple[str, str]], bool]:
    """The number of waiting jobs by handler and queue, newest first, and whether all were counted."""
    kinds: Counter[tuple[str, str]] = Counter()
    after: str | None = None
    for _ in range(MOST_CHECKED // PAGE):
        page = engine.find(JobFilter(states=WAITING_STATES), limit=PAGE, after=after)
        kinds.update((job.job, job.queue) for job in page.jobs if not is_private(job.queue))
        after = page.next
        if after is None:
            return kinds, True
    return kinds, False
