"""Running schedules from the command line: some now, all that are due, those of a given time, or until stopped."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import datetime

import click
from msgspec.structs import replace

from holdfast import __version__
from holdfast.app import Holdfast
from holdfast.cli.cronjob.documents import RunDocument
from holdfast.cli.cronjob.frozen import Frozen, frozen_at
from holdfast.cli.cronjob.reading import Known, known_schedules, no_such_schedule
from holdfast.cli.cronjob.views import local
from holdfast.cli.failing import JOB_FAILED
from holdfast.cli.options import deployment_at, existing
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.words import instant
from holdfast.cron.runner import CronRunner, Happened
from holdfast.cron.schedule import Schedule
from holdfast.logs import log_to_stderr
from holdfast.queues.signing import Unsigned
from holdfast.units import format_duration
from holdfast.values import TickOutcome, WorkerResult, WorkerStatus
from holdfast.worker.signals import handling_signals


def run_schedules(
    *,
    names: tuple[str, ...],
    due: bool,
    test_time: str | None,
    only: str | None,
    enqueue: bool,
    app: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
) -> int:
    """Run schedules, or show what would run, as the options say."""
    if names and (due or only is not None):
        raise click.UsageError("pass names or --due, not both" if due else "pass names or --only, not both")
    if enqueue and test_time is None:
        raise click.UsageError("--enqueue requires --test-time")
    chosen = list(dict.fromkeys((*names, *filter(None, (only or "").replace(" ", "").split(",")))))
    if test_time is not None:
        rows = _run_at(test_time, chosen, url=url, as_json=as_json)
        due_then = [row.schedule for row in rows if row.outcome is not None]
        jobs = _enqueue(due_then, url) if enqueue and not dry_run else {}
        _print([replace(row, job=jobs.get(row.schedule), dry_run=not jobs) for row in rows], as_json=as_json)
        if not jobs and not as_json:
            note("nothing was enqueued" if enqueue else "nothing was enqueued; to enqueue these jobs, add --enqueue")
        return 0
    if due:
        return _run_due(chosen, app, url, dry_run=dry_run, as_json=as_json)
    if not names:
        raise click.UsageError(
            "nothing to run; pass the names of schedules to run them now, --due to run everything that is due, or "
            "--test-time to see what would run"
        )
    with existing(url) as site:
        note_location(site.location)
        _check_known(chosen, known_schedules(site, url=url))
    jobs = {} if dry_run else _enqueue(chosen, url)
    rows = [
        RunDocument(schedule=name, outcome=TickOutcome.FIRED, job=jobs.get(name), dry_run=dry_run) for name in chosen
    ]
    _print(rows, as_json=as_json)
    return 0


def _check_known(names: Sequence[str], known: Sequence[Known]) -> None:
    found = [one.view.name for one in known]
    for name in names:
        if name not in found:
            raise no_such_schedule(name, found)


def _enqueue(names: Sequence[str], url: str | None) -> dict[str, str]:
    """Enqueue the jobs of these schedules, in addition to their regular runs, and return their ids by schedule."""
    if not names:
        return {}
    with Holdfast(deployment=deployment_at(url)) as hf:
        runner = hf.cron_runner()
        if url is None:  # otherwise, the schedules in the settings belong to another backend
            runner.prepare()
        return runner.run_now(*names)


# At a given time.


def _run_at(text: str, only: Sequence[str], *, url: str | None, as_json: bool) -> list[RunDocument]:
    """Preview these schedules, or all, in the minute that the text specifies."""
    with existing(url) as site:
        note_location(site.location)
        known = known_schedules(site, url=url)
    _check_known(only, known)
    remarks: dict[str, None] = {}
    rows: list[RunDocument] = []
    for one in known:
        schedule = one.view.schedule
        if only and one.view.name not in only:
            continue
        if schedule is None:
            rows.append(RunDocument(schedule=one.view.name, reason=one.reason, dry_run=True))
            continue
        frozen = _frozen(text, schedule, one.now)
        remarks[frozen.remark] = None
        rows.append(_planned(one, schedule, frozen))
    for remark in filter(None, () if as_json else remarks):
        note(remark)
    return rows


def _frozen(text: str, schedule: Schedule, now: datetime) -> Frozen:
    try:
        return frozen_at(text, schedule.timing.zone, now)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--test-time") from None


def _planned(known: Known, schedule: Schedule, frozen: Frozen) -> RunDocument:
    due = frozen.due(schedule)
    reason = known.reason if known.is_stored else ""
    if due is None and not reason:
        following = schedule.next_after(frozen.moment)
        reason = "not due again" if following is None else f"not due; next {local(following, schedule)}"
    outcome = None if reason else TickOutcome.FIRED
    if due is None or outcome is None:
        return RunDocument(schedule=schedule.name, reason=reason, dry_run=True)
    return RunDocument(schedule=schedule.name, outcome=outcome, instant=due, local=local(due, schedule), dry_run=True)


# All that are due.


def _run_due(only: Sequence[str], app: str | None, url: str | None, *, dry_run: bool, as_json: bool) -> int:
    if dry_run:
        with existing(url) as site:
            note_location(site.location)
            known = known_schedules(site, url=url)
            _check_known(only, known)
            runner = CronRunner(site.engine, Unsigned(), environment=site.deployment.settings.environment)
            happened, failed = runner.preview(only=only), False
    else:
        with _application(app, url) as hf:
            runner = hf.cron_runner()
            runner.prepare()
            known_names = runner.schedules.cells.all()
            for name in only:
                if name not in known_names:
                    raise no_such_schedule(name, sorted(known_names))
            happened = runner.tick(only=only)
            failed = _run_inline_jobs(hf, runner.inline_queues)
    _print([_happened(one, runner.verified(one.schedule), dry_run=dry_run) for one in happened], as_json=as_json)
    if not happened and not as_json:
        following = runner.next_at
        note(f"nothing is due{f'; next at {instant(following)}' if following is not None else ''}")
    return JOB_FAILED if failed else 0


def _application(app: str | None, url: str | None) -> Holdfast:
    """The application. If none is given, only the schedules in the settings and in the backend are run."""
    if app is None:
        return Holdfast(deployment=deployment_at(url))
    from holdfast.loading import load_app

    hf = load_app(app)
    if url is not None:
        hf.engines.move_to(hf.deployment.at(url))
    return hf


def _run_inline_jobs(hf: Holdfast, queues: Sequence[str]) -> bool:
    """Run the inline jobs that are due. Returns whether one of them has failed for good."""
    if not queues:
        return False
    statuses: set[WorkerStatus] = set()

    def on_result(result: WorkerResult) -> None:
        statuses.add(result.status)
        if result.error is not None:
            note(f"✗ {result.job or '?'} {result.job_id}: {result.error.line}")

    with hf.worker() as worker:
        hf.loop(worker, queues, burst=True, on_result=on_result).run()
    return not statuses.isdisjoint((WorkerStatus.DEAD_LETTERED, WorkerStatus.REJECTED))


# Until stopped.


def run_daemon(*, app: str | None, log_level: str, url: str | None) -> int:
    """Run schedules until a signal arrives."""
    from holdfast.worker.schedules import ScheduleDaemon

    log_to_stderr(log_level)
    with _application(app, url) as hf, hf.worker() as worker:
        runner = hf.cron_runner()
        daemon = ScheduleDaemon(runner, lambda queues: hf.loop(worker, queues, burst=True))

        def answer(number: signal.Signals) -> None:
            note("stopping")
            daemon.stop()

        with handling_signals(answer):
            note(f"holdfast {__version__} · {hf.deployment.location()} · running schedules; press Ctrl-C to stop")
            daemon.run()
    return 0


def _happened(one: Happened, schedule: Schedule | None, *, dry_run: bool) -> RunDocument:
    return RunDocument(
        schedule=one.schedule,
        outcome=one.outcome,
        instant=one.instant,
        local=None if schedule is None else local(one.instant, schedule),
        first=one.first,
        count=one.count,
        late_s=one.late_s,
        reason=one.reason,
        job=None if dry_run else one.job_id,
        dry_run=dry_run,
    )


def _print(rows: Sequence[RunDocument], *, as_json: bool) -> None:
    if as_json:
        write_json(rows)
        return
    for row in rows:
        write(_line(row))


def _line(row: RunDocument) -> str:
    at = "" if row.instant is None else f" for {row.local or instant(row.instant)}"
    match row.outcome:
        case None:
            return f"• {row.schedule}: {row.reason}"
        case TickOutcome.SKIPPED | TickOutcome.MISSED:
            times = f" ({row.count} times)" if row.count > 1 else ""
            mark = "✗" if row.outcome is TickOutcome.MISSED else "•"
            return f"{mark} {row.schedule}: {row.outcome}{times}{at}: {row.reason}"
        case _ if row.dry_run:
            return f"would run {row.schedule}{at}"
        case _:
            late = f", {format_duration(row.late_s)} late" if row.late_s else ""
            return f"✓ {row.schedule} enqueued as {row.job}{at}{late}"
