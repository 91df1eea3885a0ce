"""`holdfast lock`: the keys that jobs hold or wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from holdfast.cli import OrderedGroup
from holdfast.cli.documents import lock_document
from holdfast.cli.failing import NOT_FOUND
from holdfast.cli.options import existing, json_option, jsonl_option, one_form, url_option
from holdfast.cli.output import note, note_location, write, write_json, write_jsonl, write_names
from holdfast.cli.style import Fit, Table, painted_table
from holdfast.cli.words import NOTHING, age, command, instant, utc_option
from holdfast.units import counted
from holdfast.values import SlotView

FIT: Final = Fit(pliant={"HELD BY": 16, "KEY": 16}, left_out=("SINCE", "WAITING"))
PAGE: Final = 100


class NoSuchLock(click.ClickException):
    """No job holds the key or waits for it."""

    exit_code = NOT_FOUND


@click.group(cls=OrderedGroup)
def lock() -> None:
    """List and show the keys that jobs hold or wait for.

    A key starts with its kind: `instance:` for single instances, `key:` for concurrency keys, `breaker:` for circuit
    breakers, and `idempotency:` for idempotency keys, followed by the handler. There is no command to free a key:
    cancel the job that holds it.
    """


@lock.command("list")
@click.option("--quiet", "-q", is_flag=True, help="Print only keys, one per line.")
@click.option("--limit", "-n", type=click.IntRange(1), default=PAGE, help=f"Maximum number of keys; default: {PAGE}.")
@jsonl_option
@url_option
@json_option
def list_locks(quiet: bool, limit: int, as_jsonl: bool, url: str | None, as_json: bool) -> None:
    """List the keys that jobs hold or wait for."""
    one_form({"--json": as_json, "--jsonl": as_jsonl, "--quiet": quiet})
    with existing(url) as site:
        if not quiet:
            note_location(site.location)
        found = site.engine.slots(limit=limit + 1)
    locks = found[:limit]
    if as_json:
        write_json([lock_document(one) for one in locks])
    elif as_jsonl:
        write_jsonl(lock_document(one) for one in locks)
    elif quiet:
        write_names(one.name for one in locks)
    elif locks:
        _table(locks).print()
        if len(found) > limit:
            note(f"more keys exist; to show them:  holdfast lock list --limit {limit * 10}")
    else:
        note("no job holds a key or waits for one")


def _table(locks: Sequence[SlotView]) -> Table:
    headings = ("KEY", "HELD BY", "SINCE", "WAITING")
    return painted_table(headings, [_row(one) for one in locks], (None, None, None, None), fit=FIT)


def _row(lock: SlotView) -> list[object]:
    since = age(lock.holders[0].since) if lock.holders else NOTHING
    return [lock.name, _holders(lock), since, lock.waiting or NOTHING]


def _holders(lock: SlotView) -> str:
    return ", ".join(f"{one.job_id}{'' if one.fence else ' (next)'}" for one in lock.holders) or NOTHING


@lock.command("show")
@click.argument("key")
@utc_option
@url_option
@json_option
def show_lock(key: str, url: str | None, as_json: bool) -> None:
    """Show which jobs hold a key, and which wait for it.

    \b
    Examples:
      holdfast lock show key:customer-7
    """
    with existing(url) as site:
        note_location(site.location)
        found = site.engine.slots([key])
        meant = [] if found else site.engine.slots([f"{kind}:{key}" for kind in ("key", "instance", "idempotency")])
    if not found:
        see = command("holdfast", "lock", "show", meant[0].name) if meant else "holdfast lock list"
        raise NoSuchLock(f"no job holds the key '{key}' or waits for it; see  {see}")
    [view] = found
    if as_json:
        write_json(lock_document(view))
        return
    write(f"{'key':<10} {view.name}")
    for holder in view.holders:
        if holder.fence is None:
            write(f"{'next':<10} {holder.job_id} on {holder.queue} (promoted at {instant(holder.since)})")
        else:
            since = instant(holder.since)
            write(f"{'held by':<10} {holder.job_id} on {holder.queue} (since {since}, fence {holder.fence})")
    for waiter in view.waiters:
        write(f"{'waiting':<10} {waiter.job_id} on {waiter.queue} (since {instant(waiter.since)})")
    if view.waiting > len(view.waiters):
        write(f"{'':<10} and {counted(view.waiting - len(view.waiters), 'more job')}")
    holding = [holder.job_id for holder in view.holders if holder.fence is not None]
    if holding:
        note(f"to free the key, cancel the job:  {command('holdfast', 'cancel', *holding)}")
