"""`holdfast health`: whether everything is working, for orchestrators and monitoring.

It checks the database of the jobs, or the probes of one worker.
"""

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
from holdfast.cli.style import BAD, DOUBTFUL, GOOD, columns, paint, shortened
from holdfast.cli.why import limited
from holdfast.errors import HoldfastError
from holdfast.state.workers import WorkerRegistry
from holdfast.units import format_duration
from holdfast.values import JobState, WorkerState, WorkerView

if TYPE_CHECKING:
    from holdfast.deployment import Deployment
    from holdfast.queues.contract import Engine, EngineInfo

PROBE_TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 65_536
# Each level also checks what the one before it checks.
LIVE, READY, FULL = "live", "ready", "full"


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check. `warning` if it passed, but should not be overlooked."""

    name: str
    ok: bool
    message: str
    warning: bool = False


class Health(Document, frozen=True, kw_only=True, tag="holdfast.health/1"):
    """The document of `health --json`."""

    ok: bool
    question: str
    location: str
    checks: tuple[Check, ...]


Checks: TypeAlias = Iterator[Check]


@click.command()
@click.option("--live", "level", flag_value=LIVE, help="Check liveness: the worker or the engine responds.")
@click.option(
    "--ready",
    "level",
    flag_value=READY,
    help="Check readiness (default): jobs can be run.",
)
@click.option("--full", "level", flag_value=FULL, help="Also check for lost workers and for jobs that wait too long.")
@click.option("--max-wait", type=Span(), default=60.0, help="With --full: how long a due job may wait; default: 60s.")
@click.option(
    "--url",
    metavar="URL",
    callback=given_or_global,
    help="URL of a worker's probes (http://HOST:PORT), or a backend: its URL or name.",
)
@json_option
def health(level: str | None, max_wait: float, url: str | None, as_json: bool) -> int:
    """Check whether everything is working; exit with 1 if not.

    If --url is the address of a worker's probes, --live checks whether the worker's loop is running. It does not query
    the database: a database outage is not a reason to restart workers. Otherwise --live checks whether the engine
    responds, --ready also checks whether each queue with jobs has a worker and whether schedules run, and --full also
    checks whether a worker is lost or a job has waited too long. A missed run is reported for 24 hours.
    This command does not create files or tables.

    \b
    Examples:
      holdfast health --full --max-wait 5m
      holdfast health --live --url http://127.0.0.1:7001
    """
    level = level or READY
    if url is not None and url.startswith(("http://", "https://")):
        from holdfast.queues.addresses import redacted

        location, checks = redacted(url), tuple(_of_worker(level, url))
    else:
        with existing(url) as site:
            for name in site.deployment.others:
                note(f"backend {name} was not checked:  holdfast health --url {name}")
            location, checks = site.location, tuple(_of_store(level, site, max_wait))
    is_ok = all(check.ok for check in checks)
    if as_json:
        write_json(Health(ok=is_ok, question=level, location=location, checks=checks))
    else:
        _print(checks)
    return 0 if is_ok else FAILED


def _of_worker(level: str, url: str) -> Checks:
    """The checks that a worker's probes report."""
    status, body = _get(url, "/livez")
    yield Check(name="loop", ok=status == 200, message="running" if status == 200 else body)
    if level == LIVE:
        return
    status, body = _get(url, "/readyz?verbose")
    lines = [line.partition(": ") for line in body.splitlines()]
    if status not in (200, 503) or not all(colon for _, colon, _ in lines):
        yield Check(name="ready", ok=False, message=body)
        return
    for name, _, message in lines:
        yield Check(name=name, ok=message == "ok", message=message)


def _get(url: str, path: str) -> tuple[int, str]:
    """The status and the text of a response; 0 and the reason if there is none."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    from holdfast.queues.addresses import redacted

    try:
        place = urlsplit(url)
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        # urllib would use the proxy of the environment, which must not come between us and a worker.
        connection = kind(place.hostname or "", place.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", f"{place.path.rstrip('/')}{path}")
            answer = connection.getresponse()
            return answer.status, answer.read(MOST_BYTES).decode(errors="replace").strip()
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as problem:
        return 0, f"no response from {redacted(url)}: {problem or type(problem).__name__}"


def _of_store(level: str, site: Site, max_wait_s: float) -> Checks:
    """The checks of the database of the jobs."""
    try:
        asked = time.monotonic()
        info = site.engine.describe()
        store = _store(site, info, format_duration(time.monotonic() - asked), level)
        # Without a schema there are no jobs, and reading them would create it.
        has_jobs = store.ok and level != LIVE and info.schema != 0
        checks = list(_jobs(site, level, max_wait_s)) if has_jobs else []
    except HoldfastError as problem:
        store, checks = Check(name="store", ok=False, message=str(problem)), []
    yield store
    if level != LIVE and not site.deployment.settings.verify:
        message = "not verified: anyone who can write to the database can run any registered handler"
        yield Check(name="signatures", ok=True, message=message, warning=True)
    yield from checks


def _store(site: Site, info: EngineInfo, took: str, level: str) -> Check:
    from holdfast.cli.backend_info import schema_in_words, schema_state

    if info.schema == 0 and level != LIVE and _is_foreign_file(site.deployment):
        message = (
            f"{info.server}; this file belongs to another program: choose another file, or "
            "add Holdfast's tables to it with  holdfast migrate"
        )
        return Check(name="store", ok=False, message=message)
    if info.schema is None:
        return Check(name="store", ok=True, message=f"{info.server}, {took}")
    is_ok = schema_state(info) in ("current", "missing")
    state, remedy = schema_in_words(info)
    return Check(name="store", ok=is_ok, message=f"{info.server}, {took}, {state}{'' if is_ok else f': {remedy}'}")


def _is_foreign_file(deployment: Deployment) -> bool:
    """Whether a file without a schema contains something else. An empty file is one that has no jobs yet."""
    from holdfast.queues.addresses import embedded_file

    file = embedded_file(deployment.url())
    return file is not None and file.exists() and file.stat().st_size > 0


def _jobs(site: Site, level: str, max_wait_s: float) -> Checks:
    engine = site.engine
    counts, workers = engine.counts(), WorkerRegistry(engine.state).all()
    paused = {pause.queue for pause in engine.pauses()}
    waiting = [
        queue
        for queue, states in sorted(counts.items())
        if states.get(JobState.PENDING, 0) + states.get(JobState.FAILED, 0) and not is_private(queue)
    ]
    live = [view for view in workers if view.state is WorkerState.LIVE]
    yield _served(waiting, live, paused)
    yield from _schedules(engine, site.deployment.settings.environment)
    if level == FULL:
        yield _lost(workers)
        waits = engine.oldest_waits()
        late = [
            (queue, waits[queue].seconds)
            for queue in waiting
            if queue in waits and queue not in paused and waits[queue].seconds > max_wait_s
        ]
        yield from _late(site, late, format_duration(max_wait_s))


def _served(waiting: Sequence[str], live: Sequence[WorkerView], paused: set[str]) -> Check:
    from holdfast.cli.worker.choosing import served_queues

    missing = [queue for queue in waiting if queue not in served_queues(live) and queue not in paused]
    without = f"; no worker for {', '.join(missing)}" if missing else ""
    return Check(name="workers", ok=not missing, message=f"{len(live):,} live{without}")


def _schedules(engine: Engine, environment: str) -> Checks:
    """The schedules, if there are any. A missed run is a failure for a day."""
    from holdfast.cli.cronjob.troubles import condition_of

    condition = condition_of(engine, environment)
    for trouble in condition.troubles:
        yield Check(
            name="schedules",
            ok=trouble.is_warning,
            message=f"{trouble.message}; {trouble.advice}",
            warning=trouble.is_warning,
        )
    if condition and not condition.troubles:
        yield Check(name="schedules", ok=True, message=str(condition))


def _lost(workers: Sequence[WorkerView]) -> Check:
    lost = [view.report.id[:8] for view in workers if view.state is WorkerState.LOST]
    return Check(name="lost", ok=not lost, message=f"lost: {', '.join(lost)}" if lost else "none")


def _late(site: Site, late: Sequence[tuple[str, float]], limit: str) -> Checks:
    """The queues in which a job has waited too long. It is not a failure if the queue has reached its rate limit."""
    is_ok = True
    for queue, wait_s in late:
        usage = site.usage_of(queue)
        reason = "" if usage is None or not usage.wait_s else f"; {limited(usage)}"
        is_ok = is_ok and bool(reason)
        message = f"{queue}: a job has waited {format_duration(wait_s)} (limit: {limit}){reason}"
        yield Check(name="waiting", ok=bool(reason), message=message)
    if is_ok:
        other = "other " if late else ""
        yield Check(name="waiting", ok=True, message=f"no {other}due job has waited longer than {limit}")


def _print(checks: Sequence[Check]) -> None:
    width = columns()
    for check in checks:
        mark, colour = ("⚠", DOUBTFUL) if check.warning else ("✓", GOOD) if check.ok else ("✗", BAD)
        message = " ".join(check.message.split())
        line = shortened(f"{check.name:<10} {message}", None if width is None else width - 2)
        write(f"{paint(mark, colour)} {paint(line, None)}")
    failed = sum(not check.ok for check in checks)
    write(f"unhealthy: {failed} of {len(checks)} checks failed" if failed else "healthy")
