"""`holdfast doctor`: what is wrong with an installation, and what to do about it."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec import structs

from holdfast.cli.diagnosis import Finding, Level, error, fine, note
from holdfast.cli.documents import Document
from holdfast.cli.failing import FAILED
from holdfast.cli.options import Span, app_option, json_option, settings_at, url_option
from holdfast.cli.output import write, write_json
from holdfast.cli.style import BAD, DOUBTFUL, FAINT, GOOD, columns, paint
from holdfast.errors import HoldfastError
from holdfast.plaintext import plain
from holdfast.state.facts import Facts
from holdfast.state.workers import WorkerRegistry
from holdfast.values import WorkerState

if TYPE_CHECKING:
    from holdfast.deployment import Deployment
    from holdfast.queues.contract import Engine

MARKS: Final = {
    Level.OK: ("✓", GOOD),
    Level.NOTE: ("•", FAINT),
    Level.WARNING: ("⚠", DOUBTFUL),
    Level.ERROR: ("✗", BAD),
}
WIDEST: Final = 110
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


class Diagnosis(Document, frozen=True, kw_only=True, tag="holdfast.doctor/1"):
    """What `doctor --json` prints: `ok` unless there is an error, and everything that was looked at."""

    ok: bool
    location: str
    findings: tuple[Finding, ...]


@click.command()
@app_option("Application to check: can it run the waiting jobs? Default: the setting app.")
@click.option("--grace", type=Span(), default=30.0, metavar="SPAN", help="The --grace your workers are started with.")
@click.option(
    "--kill-after", type=Span(), default=10.0, metavar="SPAN", help="The --kill-after your workers are started with."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@url_option
@json_option
def doctor(app: str | None, grace: float, kill_after: float, strict: bool, url: str | None, as_json: bool) -> int:
    """Look for what keeps jobs from being run, or could lose them, and say what to do.

    Nothing is made or changed by looking.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --app shop:hf --strict
    """
    from holdfast.executor import Setup
    from holdfast.queues.addresses import check_url

    location, findings = "", list[Finding]()
    try:
        hf = Setup(app=app, url=url).application()
        deployment = hf.deployment
        if url is not None and url in deployment.urls:
            deployment = deployment.with_default(deployment.url(url))
        check_url(deployment.url())
        location = deployment.location()
        subject = Subject(deployment, app, hf.registry.resolve_for)
        findings += _examined(subject, url=url, grace_s=grace, kill_after_s=kill_after)
    except HoldfastError as problem:
        findings += _refused(problem, url, findings)
    is_ok = all(finding.level is not Level.ERROR for finding in findings)
    if as_json:
        write_json(Diagnosis(ok=is_ok, location=location, findings=tuple(findings)))
    else:
        _print(findings)
    failing = (Level.ERROR, Level.WARNING) if strict else (Level.ERROR,)
    return FAILED if any(finding.level in failing for finding in findings) else 0


def _refused(problem: HoldfastError, url: str | None, before: Sequence[Finding]) -> list[Finding]:
    """Why nothing more can be looked at: all that is wrong with the settings, and what else it is."""
    from holdfast.cli.diagnosis.settings import is_told, problem_findings
    from holdfast.config.checking import check_settings

    told = [one for one in problem_findings(check_settings(settings_at(url))) if one not in before]
    if not is_told(problem, told):
        told.append(error("settings", str(problem)))
    return [*told, note("the rest", "was not looked at: set that right, and ask again")]


class Subject(NamedTuple):
    """What is examined: where the jobs live, and the application that runs them, if one was named."""

    deployment: Deployment
    app: str | None
    resolve: Callable[[str, str], object]


def _examined(subject: Subject, *, url: str | None, grace_s: float, kill_after_s: float) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.host import (
        elsewhere_findings,
        file_system_findings,
        path_findings,
        permission_findings,
        version_findings,
    )
    from holdfast.cli.diagnosis.settings import reading_of, settings_findings
    from holdfast.config.checking import check_settings

    deployment = subject.deployment
    problems = check_settings(reading_of(deployment, url))
    told = list(settings_findings(problems, deployment.settings, grace_s=grace_s, kill_after_s=kill_after_s))
    yield from version_findings()
    yield from path_findings(deployment)
    yield from permission_findings(deployment)
    yield from file_system_findings(deployment)
    yield from told
    yield from elsewhere_findings(deployment)
    yield from _examined_engine(subject, told)
    if url is None:
        yield from _of_others(subject, told)


def _of_others(subject: Subject, told: Sequence[Finding]) -> Iterator[Finding]:
    """What is wrong in the other backends, one after the other; a line for each in which nothing is."""
    for name in subject.deployment.others:
        other = subject.deployment.at(name)
        examined = _examined_engine(subject._replace(deployment=other), told)
        for one in [one for one in examined if one.level is not Level.OK] or [fine("backend", other.location())]:
            yield structs.replace(one, message=f"{name}: {one.message}")


def _examined_engine(subject: Subject, told: Sequence[Finding]) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.keys import key_findings
    from holdfast.cli.diagnosis.settings import is_told
    from holdfast.queues.opening import Mode

    deployment = subject.deployment
    try:
        engine, _ = deployment.open(mode=Mode.READ)
    except HoldfastError as problem:
        if is_told(problem, told):
            yield note("engine", f"{deployment.location()} was not checked: fix its settings first")
        else:
            yield error("engine", str(problem), "set url right, or install what the engine needs")
        yield from key_findings(subject.deployment, frozenset(), has_jobs=False)
        return
    with engine:
        yield from _examined_store(subject, engine)


def _examined_store(subject: Subject, engine: Engine) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.keys import key_findings
    from holdfast.cli.diagnosis.store import clock_findings, schema_findings

    asked_us = engine.clock.now_us()
    try:
        info = engine.describe()
    except HoldfastError as problem:
        yield error("engine", str(problem), "see that it runs, and that this machine and this user may reach it")
        yield from key_findings(subject.deployment, frozenset(), has_jobs=False)
        return
    answered_us = engine.clock.now_us()
    yield from schema_findings(info)
    yield from clock_findings(
        info, asked_us=asked_us, answered_us=answered_us, lease_s=subject.deployment.settings.lease
    )
    if info.schema is not None and info.schema != info.known_schema:
        # To look any further would make the schema, or fail on it.
        yield from key_findings(subject.deployment, frozenset(), has_jobs=False)
        return
    try:
        yield from _examined_jobs(subject, engine)
    except HoldfastError as problem:
        yield error("engine", str(problem), "see that this user may read and write there")


def _examined_jobs(subject: Subject, engine: Engine) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.keys import key_findings
    from holdfast.cli.diagnosis.store import (
        handler_findings,
        heard_findings,
        of_workers,
        queue_findings,
        worker_findings,
    )
    from holdfast.queues.keyfiles import KEY_FACTS

    counts, workers = engine.counts(), WorkerRegistry(engine.state).all()
    yield from key_findings(subject.deployment, Facts(engine.state).of(KEY_FACTS), has_jobs=bool(counts))
    yield from heard_findings(workers, now_us=time.time_ns() // 1000, lease_s=subject.deployment.settings.lease)
    yield from worker_findings(workers, subject.app)
    yield from queue_findings(counts, workers, engine.pauses(), subject.app)
    if subject.app is not None:
        yield from handler_findings(engine, subject.resolve, subject.app)
    elif any(view.state is WorkerState.LIVE for view in workers):
        yield from handler_findings(engine, of_workers(workers), "the live workers")
    else:
        yield note("handlers", "not looked at: no worker is live", "name your application:  holdfast doctor --app APP")


def _print(findings: list[Finding]) -> None:
    width = columns()
    for finding in findings:
        mark, colour = MARKS[finding.level]
        head = f"{mark} {finding.check:<12}"
        room = None if width is None else max(20, min(width, WIDEST) - len(head))
        lines = _wrapped(plain(finding.message), room)
        write(f"{paint(mark, colour)} {finding.check:<12}{lines[0]}")
        for line in lines[1:]:
            write(f"{' ' * len(head)}{line}")
        if finding.advice:
            # Not wrapped: it is to be copied.
            write(f"{' ' * len(head)}{paint('→', colour)} {finding.advice}")
    counts = {level: sum(finding.level is level for finding in findings) for level in (Level.ERROR, Level.WARNING)}
    write(_verdict(counts[Level.ERROR], counts[Level.WARNING]))


def _wrapped(message: str, width: int | None) -> list[str]:
    """The lines of a message. Between two spaces and the next two stands a command, which is kept whole."""
    parts = message.split("  ")
    parts[1::2] = [part.replace(" ", _UNBROKEN) for part in parts[1::2]]
    whole = "  ".join(parts)
    lines = [whole] if width is None else textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]


def _verdict(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "nothing is wrong"
    said = [
        f"{number} {what if number == 1 else f'{what}s'}"
        for number, what in ((errors, "error"), (warnings, "warning"))
        if number
    ]
    return ", ".join(said)
