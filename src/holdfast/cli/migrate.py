"""`holdfast migrate`: create the schema or bring it up to date; or print what would do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from holdfast.cli.documents import Document
from holdfast.cli.options import json_option, onlooker, url_option
from holdfast.cli.output import glyph, print_json, say
from holdfast.cli.selecting import dry_run_option
from holdfast.queues.engines.tables.migrations import Migration

if TYPE_CHECKING:
    from holdfast.app import Holdfast

SchemaChange: TypeAlias = Literal["made", "upgraded", "none"]


class MigrateDocument(Document, frozen=True, kw_only=True, tag="holdfast.migrate/1"):
    """What `migrate --json` prints: what became of the schema, and its version before and now.

    With `--dry-run` it is how the schema was found. 0 is no schema yet, and null that the engine has none.
    """

    location: str
    database_schema: str
    change: SchemaChange
    before: int | None
    version: int | None


class SqlDocument(Document, frozen=True, kw_only=True, tag="holdfast.migrate.sql/1"):
    """What `migrate --sql --json` prints: every step, oldest first."""

    location: str
    migrations: tuple[Migration, ...]


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL that makes the schema, and execute nothing.")
@dry_run_option
@url_option
@json_option
def migrate(as_sql: bool, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Create the schema or bring it up to date; safe to run from many places at once.

    The engines do this by themselves, except in an SQLite database that other programs use.

    \b
    Examples:
      holdfast migrate
      holdfast migrate --sql --url postgresql://db/shop > holdfast.sql
    """
    from holdfast.app import Holdfast
    from holdfast.backends import DEFAULT

    hf = Holdfast.at(url)
    if as_sql:
        _print_sql(hf, as_json=as_json)
        return
    if dry_run:
        _print_rehearsal(hf, as_json=as_json)
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


def _print_rehearsal(hf: Holdfast, *, as_json: bool) -> None:
    from holdfast.cli.backend_info import schema_state

    engine, _ = onlooker(hf).open(hf.url)
    with engine:
        said = engine.describe()
    found = "none" if said.schema is None else schema_state(said)
    if as_json:
        print_json(
            MigrateDocument(
                location=hf.location, database_schema=found, change="none", before=said.schema, version=said.schema
            )
        )
        return
    match found:
        case "missing":
            click.echo(f"would create schema {said.known_schema} in {hf.location}")
        case "older":
            click.echo(f"would bring {hf.location} from schema {said.schema} to {said.known_schema}")
        case "newer":
            click.echo(f"{hf.location} has schema {said.schema}, newer than this program's: upgrade Holdfast here")
        case "current":
            click.echo(f"{hf.location} is up to date; nothing would be changed")
        case _:
            click.echo(f"{hf.location} needs no schema; nothing would be changed")
    say("nothing was changed: --dry-run")


def _print_sql(hf: Holdfast, *, as_json: bool) -> None:
    from holdfast.queues.addresses import kind_of

    migrations = onlooker(hf).migrations(hf.url)
    if as_json:
        print_json(SqlDocument(location=hf.location, migrations=tuple(migrations)))
        return
    kind = kind_of(hf.url)
    how = "to be run once, in one transaction" if kind.migrates_at_once else "to be run until it succeeds"
    for migration in migrations:
        click.echo(f"-- Holdfast's schema, {kind.scheme}/{migration.number:04}_{migration.name}: {how}.\n")
        click.echo(migration.sql)
