"""`holdfast breaker`: list, show, reset and trip circuit breakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from holdfast.cli import OrderedGroup
from holdfast.cli.completion import complete_breakers
from holdfast.cli.documents import BreakerResetDocument, BreakerTrippedDocument, breaker_document
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import Span, existing, json_option, jsonl_option, one_form, settings_at, url_option
from holdfast.cli.output import note, note_location, write, write_json, write_jsonl, write_names
from holdfast.cli.selecting import dry_run_option
from holdfast.cli.style import BAD, DOUBTFUL, Fit, Table, painted_table
from holdfast.cli.words import NOTHING, age, command, instant, utc_option
from holdfast.definition.definition import QUEUE_BREAKER, check_breaker
from holdfast.spelling import did_you_mean
from holdfast.state.breakers import Breakers, CircuitView, rule_of
from holdfast.state.ownership import breaker_slot
from holdfast.units import counted, format_duration
from holdfast.values import CircuitState, SlotView

FIT: Final = Fit(pliant={"CIRCUIT": 16}, left_out=("OPEN FOR", "FAILURES"))
COLOURS: Final[Mapping[str, str]] = {CircuitState.OPEN: BAD, CircuitState.HALF_OPEN: DOUBTFUL}


class NoSuchBreaker(click.ClickException):
    """No call through the breaker has failed."""

    exit_code = NOT_FOUND


@click.group(cls=OrderedGroup)
def breaker() -> None:
    """List, show, reset and trip circuit breakers.

    A circuit is listed once a call has failed or it was tripped. Circuits named `queue_…` belong to the workers of a
    queue: they open when claims fail.
    """


@breaker.command("list")
@click.option("--quiet", "-q", is_flag=True, help="Print only names, one per line.")
@jsonl_option
@url_option
@json_option
def list_breakers(quiet: bool, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List circuits and the number of jobs that wait for each."""
    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        found = Breakers(site.engine.state).all()
        names = [breaker_slot(one.name) for one in found]
        slots = {slot.name: slot for slot in site.engine.slots(names, limit=len(names))} if names else {}
    if as_json:
        write_json([breaker_document(one, slots.get(breaker_slot(one.name))) for one in found])
    elif as_jsonl:
        write_jsonl(breaker_document(one, slots.get(breaker_slot(one.name))) for one in found)
    elif quiet:
        write_names(one.name for one in found)
    elif found:
        _table([(one, slots.get(breaker_slot(one.name))) for one in found]).print()
    else:
        note("no call through a circuit breaker has failed")


def _table(circuits: Sequence[tuple[CircuitView, SlotView | None]]) -> Table:
    headings = ("CIRCUIT", "STATE", "FAILURES", "OPEN FOR", "RETRY IN", "WAITING")
    rows: list[list[object]] = [
        [
            one.name,
            one.state,
            one.failures,
            NOTHING if one.opened_at is None else age(one.opened_at),
            NOTHING if one.retry_in is None else format_duration(one.retry_in),
            (slot and slot.waiting) or NOTHING,
        ]
        for one, slot in circuits
    ]
    return painted_table(headings, rows, (None, COLOURS, None, None, None, None), fit=FIT)


@breaker.command("show")
@click.argument("name", shell_complete=complete_breakers)
@utc_option
@url_option
@json_option
def show_breaker(name: str, url: str | None, as_json: bool) -> None:
    """Show the state of a circuit and the jobs that wait for it."""
    with existing(url, _queue_of(name)) as site:
        note_location(site.location)
        found = Breakers(site.engine.state).of([name])
        slots = site.engine.slots([breaker_slot(name)])
    if not found:
        raise NoSuchBreaker(f"no call through the circuit breaker '{name}' has failed; see  holdfast breaker list")
    [view], slot = found, slots[0] if slots else None
    if as_json:
        write_json(breaker_document(view, slot))
        return
    since = "" if view.opened_at is None else f" (since {instant(view.opened_at)})"
    limit = "" if view.rule is None else f" in a row; it opens at {view.rule.failures}"
    write(f"{'circuit':<10} {view.name}")
    write(f"{'state':<10} {view.state}{since}")
    write(f"{'failures':<10} {view.failures}{limit}")
    if view.rule is not None:
        write(f"{'cooldown':<10} {format_duration(view.rule.cooldown)}")
    if view.retry_in is not None:
        write(f"{'retry in':<10} {format_duration(view.retry_in)}")
    if slot is not None:
        for waiter in slot.waiters:
            write(f"{'waiting':<10} {waiter.job_id} on {waiter.queue} (since {instant(waiter.since)})")
        if slot.waiting > len(slot.waiters):
            write(f"{'':<10} and {counted(slot.waiting - len(slot.waiters), 'more job')}")
    if view.state is not CircuitState.CLOSED:
        note(f"to close the circuit now:  {command('holdfast', 'breaker', 'reset', name)}")


@breaker.command("reset")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_breakers)
@dry_run_option
@url_option
@json_option
def reset_breakers(names: tuple[str, ...], dry_run: bool, url: str | None, as_json: bool) -> None:
    """Close circuits now. Jobs that wait for them can run."""
    chosen = list(dict.fromkeys(names))
    with existing(url, *{_queue_of(name) for name in chosen}) as site:
        note_location(site.location)
        breakers = Breakers(site.engine.state)
        known = [view.name for view in breakers.all()]
        answers = {name: name in known if dry_run else breakers.reset(name) for name in chosen}
    if as_json:
        write_json([BreakerResetDocument(circuit=name, reset=was and not dry_run) for name, was in answers.items()])
        return
    for name, was_known in answers.items():
        if was_known:
            write(f"would reset {name}" if dry_run else f"✓ {name} reset")
        else:
            hint = did_you_mean(name, known)
            note(f"no call through the circuit breaker '{name}' has failed; {hint or 'see  holdfast breaker list'}")
    if not dry_run and any(was_known and _queue_of(name) is None for name, was_known in answers.items()):
        note("  blocked jobs can run now; jobs that were snoozed by CircuitOpen keep their due times")


@breaker.command("trip")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_breakers)
@click.option(
    "--for",
    "cooldown",
    type=Span(),
    metavar="DURATION",
    help="Refuse calls for this long; default: the circuit's cooldown, or the setting breaker-cooldown.",
)
@dry_run_option
@url_option
@json_option
def trip_breakers(
    names: tuple[str, ...], cooldown: float | None, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Open circuits now. Calls are refused, and jobs that name them wait.

    \b
    Examples:
      holdfast breaker trip stripe --for 10m
    """
    for name in names:
        if (queue := _queue_of(name)) is not None:
            pause = command("holdfast", "queue", "pause", queue)
            raise click.UsageError(f"the circuit of a queue can only be reset; to stop claims, run  {pause}")
    chosen = [check_breaker(name) for name in dict.fromkeys(names)]
    settings = settings_at(url).settings()
    with existing(url, creates=not dry_run) as site:
        note_location(site.location)
        breakers = Breakers(site.engine.state)
        known = {view.name: view for view in breakers.all()}
        rules = {
            name: (known[name].rule if name in known else None)
            or rule_of(settings.breaker_failures, settings.breaker_cooldown)
            for name in chosen
        }
        lengths = {name: rule.cooldown if cooldown is None else cooldown for name, rule in rules.items()}
        if not dry_run:
            for name, rule in rules.items():
                breakers.trip(name, rule_of(rule.failures, lengths[name]))
    if as_json:
        write_json(
            [
                BreakerTrippedDocument(circuit=name, tripped=not dry_run, cooldown=length)
                for name, length in lengths.items()
            ]
        )
        return
    for name, length in lengths.items():
        write(f"{'would trip' if dry_run else '✓'} {name}{'' if dry_run else ' tripped'} for {format_duration(length)}")
        if name not in known:
            hint = did_you_mean(name, known)
            note(f"  no call through the circuit breaker '{name}' has failed yet{f'; {hint}' if hint else ''}")
    if not dry_run:
        note(f"  reset:  {command('holdfast', 'breaker', 'reset', *chosen)}")


def _queue_of(name: str) -> str | None:
    """The queue that a circuit belongs to, if it is a worker's."""
    return name.removeprefix(QUEUE_BREAKER) if name.startswith(QUEUE_BREAKER) else None
