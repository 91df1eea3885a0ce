"""Adding, enabling, disabling and removing schedules."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli.arguments import parse_arguments, untyped
from holdfast.cli.cronjob.documents import RemovedDocument, SavedDocument, SwitchedDocument
from holdfast.cli.cronjob.options import OPTIONS
from holdfast.cli.cronjob.reading import known_schedules, no_such_schedule, schedules_in
from holdfast.cli.cronjob.views import local
from holdfast.cli.options import deployment_at, existing
from holdfast.cli.output import note, note_location, write, write_json
from holdfast.cli.words import command
from holdfast.config import check_value
from holdfast.config.schedules import MEMBERS, schedule_of
from holdfast.values import ScheduleSource


def switch(names: Sequence[str], reason: str, *, enabled: bool, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Enable or disable schedules. None is changed if one does not exist."""
    chosen = list(dict.fromkeys(names))
    with existing(url) as site:
        note_location(site.location)
        schedules = schedules_in(site)
        known = {one.view.name: one for one in known_schedules(site)}
        for name in chosen:
            if name not in known or not known[name].is_stored:
                raise no_such_schedule(name, list(known))
        for name in () if dry_run else chosen:
            (schedules.enable if enabled else schedules.disable)(name, reason=reason, by=_user())
        after = {one.view.name: one for one in known_schedules(site, chosen)}
    if as_json:
        write_json(
            [SwitchedDocument(schedule=name, enabled=enabled, reason=reason, changed=not dry_run) for name in chosen]
        )
        return
    verb = "enable" if enabled else "disable"
    for name in chosen:
        write(f"would {verb} {name}" if dry_run else f"✓ {name} {verb}d")
        if enabled and not dry_run and after[name].reason:
            note(f"  it still does not run: {after[name].reason}")
    if not enabled and not dry_run:
        note(f"  enable:  {command('holdfast', 'cronjob', 'enable', *chosen)}")


def remove_schedules(names: Sequence[str], *, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Remove schedules, children before their parents. None is removed if one does not exist."""
    with existing(url) as site:
        note_location(site.location)
        schedules = schedules_in(site)
        known = {one.view.name: one.view for one in known_schedules(site)}
        for name in names:
            if name not in known:
                raise no_such_schedule(name, list(known))
        chosen = _children_first([(name, known[name].schedule) for name in dict.fromkeys(names)])
        for name in () if dry_run else chosen:
            schedules.remove(name)
    if as_json:
        write_json([RemovedDocument(schedule=name, removed=not dry_run) for name in chosen])
        return
    for name in chosen:
        write(f"would remove {name}" if dry_run else f"✓ {name} removed")
        view = known[name]
        if view.source is not ScheduleSource.STORED and view.vanished_at is None and not dry_run:
            where = "the settings" if view.source is ScheduleSource.CONFIG else f"the code of {view.origin}"
            note(f"  if {where} still define{'' if where == 'the settings' else 's'} it, it will be stored again")


def add_schedule(
    *,
    name: str,
    words: Sequence[str],
    job: str | None,
    dry_run: bool,
    url: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Store a schedule."""
    schedule = schedule_of(name, _table(words, job, given))
    with Holdfast(deployment=deployment_at(url)) as hf:
        schedule = hf.checked_schedule(schedule)
        backend = hf.deployment.name_for(schedule.definition.queue)
        note_location(hf.deployment.location(backend))
        schedules = hf.stored_schedules(backend)
        was_known = name in schedules.cells.get([name])
        is_changed = not dry_run and schedules.save(schedule)
        following = schedule.next_after(schedules.now())
    if as_json:
        write_json(SavedDocument(schedule=name, saved=is_changed, next=following))
        return
    verb = "replace" if was_known else "add"
    if dry_run:
        write(f"would {verb} {name}")
    elif is_changed:
        write(f"✓ {name} {verb.removesuffix('e')}ed")
    else:
        write(f"• {name} is unchanged")
    when = "not due again" if following is None else f"next {local(following, schedule)}"
    note(f"  {schedule.timing.describe()}, {when}")
    if not schedule.runs_in(hf.settings.environment):
        note(f"  it does not run in this environment, only in {', '.join(schedule.environments)}")


def _table(words: Sequence[str], job: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the schedule, as in the settings."""
    table: dict[str, Any] = {}
    for member in OPTIONS:
        raw = given[member.field]
        if raw is not None and raw is not False:
            table[member.name] = check_value(member, raw)
    if ("cron" in table) == ("every" in table):
        raise click.UsageError("pass either --cron or --every, for example --cron '0 2 * * *' or --every 90s")
    if job is not None:
        payload = untyped(parse_arguments(words))
        return {**table, "job": job, **({"payload": payload} if payload else {})}
    if not words:
        raise click.UsageError("nothing to run; pass a command after --, or --job KEY with its arguments")
    return {**table, "command": check_value(MEMBERS["command"], list(words))}


def _children_first(chosen: Sequence[tuple[str, Any]]) -> list[str]:
    from graphlib import TopologicalSorter

    graph: TopologicalSorter[str] = TopologicalSorter()
    for name, schedule in chosen:
        graph.add(name)
        for parent in () if schedule is None else schedule.depends_on:
            if parent in dict(chosen):
                graph.add(parent, name)
    return list(graph.static_order())


def _user() -> str:
    """The user who runs this command; empty if unknown."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return ""
