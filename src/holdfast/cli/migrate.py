"""`holdfast migrate`: create the schema or bring it up to date; or print what would do so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option, onlooker, url_option
from holdfast.cli.output import glyph, print_json

if TYPE_CHECKING:
    from holdfast.app import Holdfast


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL that makes the schema, and execute nothing.")
@url_option
@json_option
def migrate(as_sql: bool, url: str | None, as_json: bool) -> None:
    """Create the schema or bring it up to date; safe to run from many places at once.

    The engines do this by themselves, except in an SQLite database that other programs use.

    \b
    Examples:
      holdfast migrate
      holdfast migrate --sql --url postgresql://db/shop > holdfast.sql
    """
    from holdfast.app import Holdfast

    hf = Holdfast(url)
    if as_sql:
        _print_sql(hf, as_json=as_json)
        return
    with hf:
        hf.create_schema()
    if as_json:
        print_json({"location": hf.location, "schema": "current"})
    else:
        click.echo(f"{glyph('✓', '*')} {hf.location} is up to date")


def _print_sql(hf: Holdfast, *, as_json: bool) -> None:
    from holdfast.queues.opening import engine_of

    migrations = onlooker(hf).migrations(hf.url)
    if as_json:
        print_json({"location": hf.location, "migrations": migrations})
        return
    engine = engine_of(hf.url)
    how = "to be run until it succeeds" if engine == "mysql" else "to be run once, in one transaction"
    for migration in migrations:
        click.echo(f"-- Holdfast's schema, {engine}/{migration.number:04}_{migration.name}: {how}.\n")
        click.echo(migration.sql)
