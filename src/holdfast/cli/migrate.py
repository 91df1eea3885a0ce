"""`holdfast migrate`: create the schema or bring it up to date; or print what would do so."""

from typing import Literal, TypeAlias

import click
from msgspec import Struct

from holdfast.app import Holdfast
from holdfast.backends import DEFAULT
from holdfast.cli.options import json_option, onlooker, url_option
from holdfast.cli.output import glyph, print_json, say
from holdfast.queues.opening import engine_of

SchemaChange: TypeAlias = Literal["made", "upgraded", "none"]


class MigrateDocument(Struct, frozen=True, kw_only=True):
    """What `migrate --json` prints: what became of the schema, and its version before and now.

    0 is no schema yet, and null that the engine has none.
    """

    location: str
    database_schema: Literal["current"]
    change: SchemaChange
    before: int | None
    version: int | None


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
    hf = Holdfast.at(url)
    if as_sql:
        _print_sql(hf, as_json=as_json)
        return
    before = _version(hf)
    with hf:
        hf.create_schema(DEFAULT)
    document = _document(hf.location, before, _version(hf))
    if as_json:
        print_json(document)
    else:
        click.echo(f"{glyph('✓', '*')} {hf.location} is up to date: {_sentence(document)}")
    for name in hf.backends.urls:
        if name != DEFAULT:
            say(f"  there is {hf.location_of(name)}, too:  holdfast migrate --url {name}")


def _version(hf: Holdfast) -> int | None:
    """The version of the schema that is there: 0 if there is none yet, None if there is none to be had."""
    engine, _ = onlooker(hf).open(hf.url)
    with engine:
        return engine.describe().schema


def _document(location: str, before: int | None, after: int | None) -> MigrateDocument:
    change: SchemaChange = "none" if before == after else "upgraded" if before else "made"
    return MigrateDocument(location=location, database_schema="current", change=change, before=before, version=after)


def _sentence(document: MigrateDocument) -> str:
    match document.change:
        case "made":
            return f"schema {document.version} was made"
        case "upgraded":
            return f"schema {document.before} was brought to {document.version}"
        case "none":
            return "it needs no schema" if document.version is None else f"schema {document.version} was there already"


def _print_sql(hf: Holdfast, *, as_json: bool) -> None:
    migrations = onlooker(hf).migrations(hf.url)
    if as_json:
        print_json({"location": hf.location, "migrations": migrations})
        return
    engine = engine_of(hf.url)
    how = "to be run until it succeeds" if engine == "mysql" else "to be run once, in one transaction"
    for migration in migrations:
        click.echo(f"-- Holdfast's schema, {engine}/{migration.number:04}_{migration.name}: {how}.\n")
        click.echo(migration.sql)
