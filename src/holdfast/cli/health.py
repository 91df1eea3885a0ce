"""`holdfast health`: is everything well, for orchestrators and monitors; by the store, or by a worker's own probes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import click
from msgspec import Struct

from holdfast.cli.documents import Document
from holdfast.cli.failing import FAILED
from holdfast.cli.options import Site, Span, existing, given_or_global, json_option
from holdfast.cli.output import note, write, write_json
from holdfast.cli.private_queue import is_private
from holdfast.cli.style import BAD, GOOD, columns, paint, shortened
from holdfast.cli.watching import watch, watch_option
from holdfast.errors import HoldfastError
from holdfast.state.workers import WorkerRegistry
from holdfast.units import format_duration
from holdfast.values import JobFilter, JobState, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.deployment import Deployment
    from holdfast.queues.contract import Engine, EngineInfo

DEFAULT_MAX_WAIT_S: Final = 60.0
PATIENCE_S: Final = 5.0
MOST_PAGES: Final = 50
MOST_BYTES: Final = 65_536
NAGIOS_OK, NAGIOS_CRITICAL, NAGIOS_UNKNOWN = 0, 2, 3
# What has to be looked at for each question; every one asks what the one before it asks.
LIVE, READY, FULL = "live", "ready", "full"


class Check(Struct, frozen=True, kw_only=True):
    """One thing that has to be well."""

    name: str
    ok: bool
    message: str


class Health(Document, frozen=True, kw_only=True, tag="holdfast.health/1"):
    """What `health --json` prints."""

    ok: bool
    question: str
    location: str
    checks: tuple[Check, ...]


Checks: TypeAlias = Iterator[Check]


@click.command()
@click.option("--live", "question", flag_value=LIVE, help="Does it answer? Restart it if not.")
@click.option("--ready", "question", flag_value=READY, help="Can it work? The default.")
@click.option("--full", "question", flag_value=FULL, help="Does work get done, too: waiting times, lost workers.")
@click.option(
    "--max-wait",
    type=Span(),
    default=DEFAULT_MAX_WAIT_S,
    metavar="SPAN",
    help="With --full: how long a due job may wait, 60 s if not said.",
)
@click.option("--nagios", is_flag=True, help="One line and the exit codes of a Nagios plugin: 0, 2, 3.")
@watch_option
@click.option(
    "--url", metavar="URL", callback=given_or_global, help="A worker's probes, http://HOST:PORT; or where the jobs are."
)
@json_option
def health(
    question: str | None, max_wait: float, nagios: bool, watch_s: float | None, url: str | None, as_json: bool
) -> int:
    """Say whether all is well; exit with 1 if not.

    Asked at a worker's --probe-port, --live is whether its loop turns, without the database being asked: an outage of
    that is no reason to restart workers. Asked where the jobs are, --live is whether the engine answers, --ready
    whether each queue with jobs has a worker, --full whether none waits too long. Nothing is made by asking.

    \b
    Examples:
      holdfast health --full --max-wait 5m
      holdfast health --live --url http://127.0.0.1:7001
    """
    if nagios and as_json:
        raise click.UsageError("--nagios is a format of its own; leave out --json")
    question = question or READY
    if watch_s is not None:
        if nagios:
            raise click.UsageError("--nagios is one line for a monitor, which comes back by itself; leave out --watch")
        return _watch(watch_s, question, max_wait, url, as_json=as_json)
    try:
        location, checks = _answered(question, max_wait, url)
    except HoldfastError as problem:
        if not nagios:
            raise
        write(f"HOLDFAST UNKNOWN - {_line(str(problem))}")
        return NAGIOS_UNKNOWN
    seen = _health(question, location, checks)
    if nagios:
        _print_nagios(checks)
        return NAGIOS_OK if seen.ok else NAGIOS_CRITICAL
    if as_json:
        write_json(seen)
    else:
        for line in _lines(checks):
            write(line)
    return 0 if seen.ok else FAILED


def _health(question: str, location: str, checks: Sequence[Check]) -> Health:
    is_ok = all(check.ok for check in checks)
    return Health(ok=is_ok, question=question, location=location, checks=tuple(checks))


def _watch(pause_s: float, question: str, max_wait_s: float, url: str | None, *, as_json: bool) -> int:
    def look() -> Health:
        return _health(question, *_answered(question, max_wait_s, url))

    return watch(pause_s, look, lambda seen: _lines(seen.checks), as_json=as_json)


def _answered(question: str, max_wait_s: float, url: str | None) -> tuple[str, list[Check]]:
    if url is not None and url.startswith(("http://", "https://")):
        from holdfast.queues.addresses import redacted

        return redacted(url), list(_of_worker(question, url))
    with existing(url) as site:
        for name in site.deployment.others:
            note(f"backend {name} was not checked:  holdfast health --url {name}")
        return site.location, list(_of_store(question, site, max_wait_s))


def _of_worker(question: str, url: str) -> Checks:
    """What a worker says of itself."""
    yield _asked(url, "/livez")
    if question != LIVE:
        yield from _asked_verbosely(url)


def _asked(url: str, path: str) -> Check:
    status, body = _get(url, path)
    return Check(name="loop", ok=status == 200, message="turns" if status == 200 else body)


def _asked_verbosely(url: str) -> Checks:
    status, body = _get(url, "/readyz?verbose")
    lines = [line.partition(": ") for line in body.splitlines()]
    if status not in (200, 503) or not all(colon for _, colon, _ in lines):
        yield Check(name="ready", ok=False, message=body)
        return
    for name, _, said in lines:
        yield Check(name=name, ok=said == "ok", message=said)


def _get(url: str, path: str) -> tuple[int, str]:
    """The status of an answer and its text; 0 and why, if there is none."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    from holdfast.queues.addresses import redacted

    try:
        place = urlsplit(url)
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        # Not by urllib: a proxy of the environment has no business between us and a worker.
        connection = kind(place.hostname or "", place.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"{place.path.rstrip('/')}{path}")
            answer = connection.getresponse()
            return answer.status, answer.read(MOST_BYTES).decode(errors="replace").strip()
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as problem:
        return 0, f"no answer from {redacted(url)}: {problem or type(problem).__name__}"


def _of_store(question: str, site: Site, max_wait_s: float) -> Checks:
    """What can be seen where the jobs are."""
    try:
        asked = time.monotonic()
        info = site.engine.describe()
        store = _store(site, info, format_duration(time.monotonic() - asked), question)
        # Before there is a schema there is no work either, and reading it would create one.
        has_work = store.ok and question != LIVE and info.schema != 0
        checks = list(_work(site.engine, info, question, max_wait_s)) if has_work else []
    except HoldfastError as problem:
        store, checks = Check(name="store", ok=False, message=str(problem)), []
    yield store
    yield from checks


def _store(site: Site, info: EngineInfo, took: str, question: str) -> Check:
    schema, known = info.schema, info.known_schema
    if schema and known and schema > known:
        said = f"{info.server}, schema {schema}, newer than this program's {known}: upgrade Holdfast here"
        return Check(name="store", ok=False, message=said)
    if schema and known and schema < known:
        said = f"{info.server}, schema {schema}, older than this program's {known}: run  holdfast migrate"
        return Check(name="store", ok=False, message=said)
    if schema == 0 and question != LIVE and _is_foreign_file(site.deployment):
        said = f"{info.server}, a file of another program: choose another one, or run  holdfast migrate  to share it"
        return Check(name="store", ok=False, message=said)
    state = "" if schema is None else ", no schema yet" if not schema else f", schema {schema} (current)"
    return Check(name="store", ok=True, message=f"{info.server}, {took}{state}")


def _is_foreign_file(deployment: Deployment) -> bool:
    """Whether a file without a schema has something else in it; an empty one is only waiting for its first job."""
    from holdfast.queues.addresses import embedded_file

    file = embedded_file(deployment.url())
    return file is not None and file.exists() and file.stat().st_size > 0


def _work(engine: Engine, info: EngineInfo, question: str, max_wait_s: float) -> Checks:
    counts, workers = engine.counts(), WorkerRegistry(engine.state).all()
    paused = {pause.queue for pause in engine.pauses()}
    waiting = [
        queue
        for queue, states in sorted(counts.items())
        if states.get(JobState.PENDING, 0) + states.get(JobState.FAILED, 0) and not is_private(queue)
    ]
    live = [view for view in workers if view.state is WorkerState.LIVE]
    yield _worked(waiting, live, paused)
    if question == FULL:
        yield _lost(workers)
        # By the engine's clock, as far as it tells: a job is due by that.
        now = (info.clock_us or engine.clock.now_us()) / 1e6
        yield from _waits(engine, [queue for queue in waiting if queue not in paused], now, max_wait_s)


def _worked(waiting: Sequence[str], live: Sequence[WorkerView], paused: set[str]) -> Check:
    from holdfast.cli.diagnosis.store import worked_queues

    unworked = [queue for queue in waiting if queue not in worked_queues(live) and queue not in paused]
    said = f"{len(live):,} live"
    if unworked:
        return Check(name="workers", ok=False, message=f"{said}; nobody works {', '.join(unworked)}")
    return Check(name="workers", ok=True, message=said)


def _lost(workers: Sequence[WorkerView]) -> Check:
    lost = [view.report.id[:8] for view in workers if view.state is WorkerState.LOST]
    return Check(name="lost", ok=not lost, message=f"lost: {', '.join(lost)}" if lost else "no worker is lost")


def _waits(engine: Engine, queues: Sequence[str], now: float, max_wait_s: float) -> Checks:
    late = [said for queue in queues if (said := _late(engine, queue, now, max_wait_s))]
    for said in late:
        yield Check(name="waiting", ok=False, message=said)
    if not late:
        yield Check(name="waiting", ok=True, message=f"no due job has waited longer than {format_duration(max_wait_s)}")


def _late(engine: Engine, queue: str, now: float, max_wait_s: float) -> str | None:
    """What is wrong with the waiting of a queue. The first job that has waited too long is enough to know."""
    from holdfast.cli.diagnosis.store import PAGE

    where = JobFilter(states=(JobState.PENDING, JobState.FAILED), queue=queue)
    after: str | None = None
    for _ in range(MOST_PAGES):
        page = engine.find(where, limit=PAGE, after=after)
        waited = max((now - job.due_at.timestamp() for job in page.jobs), default=0.0)
        if waited > max_wait_s:
            return f"{queue}: a job has waited {format_duration(waited)}, the limit is {format_duration(max_wait_s)}"
        after = page.next
        if after is None:
            break
    return None


def _lines(checks: Sequence[Check]) -> list[str]:
    width, lines = columns(), list[str]()
    for check in checks:
        mark, colour = ("✓", GOOD) if check.ok else ("✗", BAD)
        line = shortened(f"{check.name:<10} {_line(check.message)}", None if width is None else width - 2)
        lines.append(f"{paint(mark, colour)} {paint(line, None)}")
    wrong = sum(not check.ok for check in checks)
    return [*lines, "healthy" if not wrong else f"unhealthy: {wrong} of {len(checks)}"]


def _print_nagios(checks: Sequence[Check]) -> None:
    wrong = [check for check in checks if not check.ok]
    state = "CRITICAL" if wrong else "OK"
    # A bar would begin what Nagios reads as numbers.
    said = "; ".join(f"{check.name}: {_line(check.message)}" for check in wrong or checks).replace("|", "/")
    write(f"HOLDFAST {state} - {paint(said, None)} | failed={len(wrong)} checks={len(checks)}")


def _line(text: str) -> str:
    return " ".join(text.split())
