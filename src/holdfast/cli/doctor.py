"""`holdfast doctor`: diagnose an installation and suggest fixes."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec import structs

from holdfast.cli.diagnosis import Finding, Level, error, fine, note
from holdfast.cli.documents import Document
from holdfast.cli.failing import FAILED
from holdfast.cli.options import Span, app_option, json_option, settings_at, url_option
from holdfast.cli.output import write, write_json
from holdfast.cli.style import BAD, DOUBTFUL, FAINT, GOOD, columns, paint
from holdfast.errors import HoldfastError, UnknownHandler
from holdfast.plaintext import plain
from holdfast.state.facts import Facts
from holdfast.state.workers import WorkerRegistry
from holdfast.units import counted
from holdfast.values import WorkerState

if TYPE_CHECKING:
    from holdfast.app import Holdfast
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
    """The document of `doctor --json`: all findings, and `ok` unless one of them is an error."""

    ok: bool
    location: str
    findings: tuple[Finding, ...]


@click.command()
@app_option("Check whether this application can run the waiting jobs; default: the setting app.")
@click.option(
    "--grace", type=Span(), default=0.0, help="Value of --grace that your workers use; default: 0 = no limit."
)
@click.option(
    "--kill-after", type=Span(), default=10.0, help="Value of --kill-after that your workers use; default: 10s."
)
@click.option("--strict", is_flag=True, help="Also exit with 1 on warnings.")
@url_option
@json_option
def doctor(app: str | None, grace: float, kill_after: float, strict: bool, url: str | None, as_json: bool) -> int:
    """Diagnose problems that stop or lose jobs, and suggest fixes.

    This command does not create or change anything.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --app shop:hf --strict
    """
    from holdfast.deployment import Deployment
    from holdfast.loading import load_app
    from holdfast.queues.addresses import check_url

    location, findings = "", list[Finding]()
    try:
        hf = load_app(app) if app else None
        deployment = Deployment.configured() if hf is None else hf.deployment
        if url is not None:
            deployment = deployment.with_default(deployment.urls.get(url, url))
        check_url(deployment.url())
        location = deployment.location()
        subject = Subject(deployment, hf, app)
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
    """The findings when the settings cannot be used: their problems, and the exception if it is not one of them."""
    from holdfast.cli.diagnosis.settings import is_reported, problem_findings
    from holdfast.config.checking import check_settings

    found = [each for each in problem_findings(check_settings(settings_at(url))) if each not in before]
    if not is_reported(problem, found):
        found.append(error("settings", str(problem)))
    return [*found, note("the rest", "skipped; fix the errors above and run  holdfast doctor  again")]


class Subject(NamedTuple):
    """The backends to examine, and the application that runs their jobs, if one was named."""

    deployment: Deployment
    hf: Holdfast | None
    app: str | None

    def resolve(self, key: str, queue: str) -> None:
        """Raise if the application cannot run a job. Handlers that the settings name are known without an import."""
        assert self.hf is not None  # noqa: S101 - asked only for an application
        try:
            self.hf.registry.resolve_for(key, queue)
        except UnknownHandler:
            if key not in self.hf.extensions.handler_keys:
                raise


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
    found = list(settings_findings(problems, deployment.settings, grace_s=grace_s, kill_after_s=kill_after_s))
    yield from version_findings()
    yield from path_findings(deployment)
    yield from permission_findings(deployment)
    yield from file_system_findings(deployment)
    yield from found
    yield from elsewhere_findings(deployment)
    yield from _examined_engine(subject, found)
    if url is None:
        yield from _examined_others(subject, found)


def _examined_others(subject: Subject, reported: Sequence[Finding]) -> Iterator[Finding]:
    """The problems of the other backends, and one line for each backend without any."""
    for name in subject.deployment.others:
        other = subject.deployment.at(name)
        examined = _examined_engine(subject._replace(deployment=other), reported)
        for each in [each for each in examined if each.level is not Level.OK] or [fine("backend", other.location())]:
            yield structs.replace(each, message=f"{name}: {each.message}")


def _examined_engine(subject: Subject, reported: Sequence[Finding]) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.keys import key_findings
    from holdfast.cli.diagnosis.settings import is_reported
    from holdfast.queues.opening import Mode

    deployment = subject.deployment
    try:
        engine, _ = deployment.open(mode=Mode.READ)
    except HoldfastError as problem:
        if is_reported(problem, reported):
            yield note("engine", f"{deployment.location()} was not checked: fix its settings first")
        else:
            yield error("engine", str(problem), "correct the url, or install the driver for this engine")
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
        yield error(
            "engine", str(problem), "check that it is running, and that this machine and this user can connect to it"
        )
        yield from key_findings(subject.deployment, frozenset(), has_jobs=False)
        return
    answered_us = engine.clock.now_us()
    yield from schema_findings(info)
    yield from clock_findings(
        info, asked_us=asked_us, answered_us=answered_us, lease_s=subject.deployment.settings.lease
    )
    if info.schema is not None and info.schema != info.known_schema:
        # Reading jobs would create the schema, or fail.
        yield from key_findings(subject.deployment, frozenset(), has_jobs=False)
        return
    try:
        yield from _examined_jobs(subject, engine)
    except HoldfastError as problem:
        yield error("engine", str(problem), "check that this user can read and write it")


def _examined_jobs(subject: Subject, engine: Engine) -> Iterator[Finding]:
    from holdfast.cli.diagnosis.keys import key_findings
    from holdfast.cli.diagnosis.schedules import schedule_findings
    from holdfast.cli.diagnosis.store import (
        handler_findings,
        heartbeat_findings,
        of_workers,
        queue_findings,
        worker_findings,
    )
    from holdfast.queues.keyfiles import KEY_FACTS

    counts, workers = engine.counts(), WorkerRegistry(engine.state).all()
    yield from key_findings(subject.deployment, Facts(engine.state).of(KEY_FACTS), has_jobs=bool(counts))
    yield from heartbeat_findings(workers, now_us=time.time_ns() // 1000, lease_s=subject.deployment.settings.lease)
    yield from worker_findings(workers, subject.app)
    yield from queue_findings(counts, workers, engine.pauses(), subject.app)
    yield from schedule_findings(engine, workers, subject.deployment.settings.environment)
    if subject.app is not None:
        yield from handler_findings(engine, subject.resolve, subject.app)
    elif any(view.state is WorkerState.LIVE for view in workers):
        yield from handler_findings(engine, of_workers(workers), "the live workers")
    else:
        yield note("handlers", "not checked: no worker is running", "pass your application:  holdfast doctor --app APP")


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
            # Not wrapped, so that it can be copied.
            write(f"{' ' * len(head)}{paint('→', colour)} {finding.advice}")
    counts = {level: sum(finding.level is level for finding in findings) for level in (Level.ERROR, Level.WARNING)}
    write(_verdict(counts[Level.ERROR], counts[Level.WARNING]))


def _wrapped(message: str, width: int | None) -> list[str]:
    """The lines of a message. A command, which has two spaces on each side, is never wrapped."""
    parts = message.split("  ")
    parts[1::2] = [part.replace(" ", _UNBROKEN) for part in parts[1::2]]
    whole = "  ".join(parts)
    lines = [whole] if width is None else textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]


def _verdict(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "no problems found"
    numbers = {"error": errors, "warning": warnings}
    return ", ".join(counted(number, what) for what, number in numbers.items() if number)
