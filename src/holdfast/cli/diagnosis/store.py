"""What is kept: the engine's clock and schema, its workers, queues nobody works, and jobs nobody knows how to run."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from holdfast import __version__
from holdfast.cli.advice import starting
from holdfast.cli.diagnosis import Findings, error, fine, note, warning
from holdfast.cli.private_queue import is_private
from holdfast.cli.words import age
from holdfast.errors import HandlerError
from holdfast.queues.contract import Engine, EngineInfo
from holdfast.units import counted, format_duration
from holdfast.values import FINAL_STATES, JobFilter, JobState, QueuePause, WorkerState, WorkerView

OPEN_STATES: Final = tuple(state for state in JobState if state not in FINAL_STATES)
WAITING_STATES: Final = tuple(state for state in OPEN_STATES if state is not JobState.PROCESSING)
MOST_LOOKED_AT: Final = 10_000
PAGE: Final = 1000
NOTABLE_SKEW_S: Final = 1.0
_NAMED: Final = 10

JobCounts = Mapping[str, Mapping[JobState, int]]


def clock_findings(info: EngineInfo, *, asked_us: int, answered_us: int, lease_s: float) -> Findings:
    """This host's clock beside the engine's. Nothing is decided by ours; but what people set by it goes by theirs."""
    if info.clock_us is None:
        yield fine("clocks", "the engine goes by this host's clock")
        return
    # Somewhere between question and answer it was read.
    skew_s = (info.clock_us - (asked_us + answered_us) / 2) / 1e6
    doubt_s = (answered_us - asked_us) / 2e6
    off_s = max(0.0, abs(skew_s) - doubt_s)
    if off_s < NOTABLE_SKEW_S:
        yield fine("clocks", f"the server's differs from this host's by {format_duration(off_s)} or less")
        return
    side = "ahead of" if skew_s > 0 else "behind"
    tell = warning if off_s < lease_s else error
    yield tell(
        "clocks",
        f"the server's clock is {format_duration(off_s)} {side} this host's: due times set here, and ages shown here, "
        "are off by that much",
        "let both keep time by NTP:  timedatectl set-ntp true",
    )


def heard_findings(workers: Sequence[WorkerView], *, now_us: int, lease_s: float) -> Findings:
    """A worker that was heard in the future: this host's clock has been set back since."""
    ahead = max((view.heard_at.timestamp() - now_us / 1e6 for view in workers), default=0.0)
    if ahead > max(NOTABLE_SKEW_S, lease_s):
        yield error(
            "clocks",
            f"a worker's heartbeat is {format_duration(ahead)} in the future: the clock was set back, and jobs that "
            "were due wait until it has caught up",
            "set the clock right; leases that end too far ahead are cut by themselves",
        )


def schema_findings(info: EngineInfo) -> Findings:
    """Whether this program and the store fit each other."""
    schema, known = info.schema, info.known_schema
    if schema is None or known is None or schema == known:
        yield fine("schema", f"{info.server}{'' if schema is None else f', schema {schema} (current)'}")
    elif not schema:
        yield note("schema", f"{info.server}, no schema yet; it is made when it is first needed")
    elif schema < known:
        yield warning(
            "schema",
            f"the schema is {schema}, older than this program's {known}: the first command that writes upgrades it",
            "upgrade it when it suits you:  holdfast migrate",
        )
    else:
        yield error(
            "schema",
            f"the schema is {schema}, newer than this program's {known}: this Holdfast is shut out",
            "upgrade Holdfast here",
        )


def worker_findings(workers: Sequence[WorkerView], app: str | None = None) -> Findings:
    """Workers lost, and workers of another version."""
    lost = [view for view in workers if view.state is WorkerState.LOST]
    alive = [view for view in workers if view.state is not WorkerState.LOST]
    for view in lost:
        report = view.report
        yield warning(
            "workers",
            f"worker {report.id[:8]} (pid {report.pid} on {report.host}) is lost: heard {age(view.heard_at)} ago, with "
            f"{counted(report.running, 'job')}; what it held comes back when the leases end",
            "look whether it was killed (dmesg says so, if memory ran out) or cannot reach the engine; start another:  "
            f"{starting(app=app)}",
        )
    for version, number in Counter(view.report.version for view in alive).items():
        if version != __version__:
            yield warning(
                "workers",
                f"{number:,} of the live workers run Holdfast {version}, and this is {__version__}",
                "upgrade all of them; workers first, then those who enqueue",
            )
    if alive:
        yield fine("workers", f"{len(alive):,} live")
    elif not lost:
        yield note("workers", "none is running", f"start one:  {starting(app=app)}")


def queue_findings(
    counts: JobCounts, workers: Sequence[WorkerView], pauses: Sequence[QueuePause], app: str | None = None
) -> Findings:
    """Queues with jobs that nobody will take."""
    found = seen = 0
    worked = worked_queues(workers)
    reasons = {pause.queue: pause.reason for pause in pauses}
    for queue, states in sorted(counts.items()):
        waiting = sum(states.get(state, 0) for state in WAITING_STATES)
        if not waiting or is_private(queue):
            continue
        seen += 1
        if queue in reasons:
            found += 1
            why = f" ({reasons[queue]})" if reasons[queue] else ""
            yield note("queues", f"{queue} is paused{why}, with {counted(waiting, 'job')} waiting")
        if queue not in worked:
            found += 1
            near = get_close_matches(queue, worked, n=1)
            guess = f"; a worker works '{near[0]}': is one of the two mistyped?" if near else ""
            yield error(
                "queues",
                f"{queue} has {counted(waiting, 'job')} waiting and no worker{guess}",
                f"start one:  {starting(queue, app=app)}",
            )
    if not found:
        yield fine("queues", "every queue with waiting jobs has a worker" if seen else "no job waits")


def worked_queues(workers: Sequence[WorkerView]) -> set[str]:
    """The queues that live workers work; each says them with their weights."""
    return {
        queue.partition(":")[0] for view in workers if view.state is WorkerState.LIVE for queue in view.report.queues
    }


def handler_findings(engine: Engine, resolve: Callable[[str, str], object], source: str) -> Findings:
    """Waiting jobs whose handler `resolve(key, queue)` does not know."""
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
            "start workers with the application that knows it, or cancel the jobs:  holdfast cancel ID",
        )
    if len(refusals) > _NAMED:
        yield error("handlers", f"more handlers are not known: {len(refusals) - _NAMED:,}", "see above")
    if not refusals:
        looked = "every waiting job" if is_all else f"the newest {MOST_LOOKED_AT:,} waiting jobs"
        yield fine("handlers", f"{looked} can be run by {source}" if kinds else "no job waits for one")


def of_workers(workers: Sequence[WorkerView]) -> Callable[[str, str], object]:
    """Resolves a handler as the live workers of a queue can; a queue without one has a finding of its own."""
    known: dict[str, set[str]] = {}
    for view in workers:
        if view.state is WorkerState.LIVE:
            for queue in view.report.queues:
                known.setdefault(queue.partition(":")[0], set()).update(view.report.handlers)

    def resolve(job: str, queue: str) -> None:
        handlers: Collection[str] = known.get(queue, ())
        if queue in known and job not in handlers:
            near = get_close_matches(job, handlers, n=1)
            guess = f", did you mean '{near[0]}'?" if near else ""
            raise HandlerError(f"no live worker of queue '{queue}' has a handler '{job}'{guess}")

    return resolve


def _waiting_kinds(engine: Engine) -> tuple[Counter[tuple[str, str]], bool]:
    """How many waiting jobs there are of each handler and queue, newest first, and whether these are all."""
    kinds: Counter[tuple[str, str]] = Counter()
    after: str | None = None
    for _ in range(MOST_LOOKED_AT // PAGE):
        page = engine.find(JobFilter(states=WAITING_STATES), limit=PAGE, after=after)
        kinds.update((job.job, job.queue) for job in page.jobs if not is_private(job.queue))
        after = page.next
        if after is None:
            return kinds, True
    return kinds, False
