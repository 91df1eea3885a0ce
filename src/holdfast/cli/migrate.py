"""`holdfast migrate`: create the schema or bring it up to date; or print what would do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from holdfast.cli.documents import Document
from holdfast.cli.options import deployment_at, json_option, url_option
from holdfast.cli.output import note, write, write_json, write_lines
from holdfast.cli.selecting import dry_run_option
from holdfast.queues.engines.tables.migrations import Migration

if TYPE_CHECKING:
    from holdfast.deployment import Deployment
    from holdfast.queues.contract import EngineInfo

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
    from holdfast.queues.opening import Mode

    deployment = deployment_at(url)
    if as_sql:
        _print_sql(deployment, as_json=as_json)
        return
    if dry_run:
        _print_rehearsal(deployment, as_json=as_json)
        return
    before = _version(deployment)
    deployment.open(mode=Mode.MIGRATE).engine.close()
    document = _document(deployment.location(), before, _version(deployment))
    if as_json:
        write_json(document)
    else:
        write(f"✓ {deployment.location()} is up to date: {_sentence(document)}")
    for name in deployment.others:
        note(f"  other backend: {deployment.location(name)} (holdfast migrate --url {name})")


def _version(deployment: Deployment) -> int | None:
    """The version of the schema that is there: 0 if there is none yet, None if there is none to be had."""
    return _described(deployment).schema


def _described(deployment: Deployment) -> EngineInfo:
    from holdfast.queues.opening import Mode

    with deployment.open(mode=Mode.READ).engine as engine:
        return engine.describe()


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


def _print_rehearsal(deployment: Deployment, *, as_json: bool) -> None:
    from holdfast.cli.backend_info import schema_state

    said, location = _described(deployment), deployment.location()
    found = "none" if said.schema is None else schema_state(said)
    if as_json:
        write_json(
            MigrateDocument(
                location=location,
                database_schema=found,
                change="none",
                before=said.schema,
                version=said.schema,
            )
        )
        return
    match found:
        case "missing":
            write(f"would create schema {said.known_schema} in {location}")
        case "older":
            write(f"would bring {location} from schema {said.schema} to {said.known_schema}")
        case "newer":
            write(f"{location} has schema {said.schema}, newer than this program's: upgrade Holdfast here")
        case "current":
            write(f"{location} is up to date; nothing would be changed")
        case _:
            write(f"{location} needs no schema; nothing would be changed")
    note("nothing was changed: --dry-run")


def _print_sql(deployment: Deployment, *, as_json: bool) -> None:
    from holdfast.queues.addresses import kind_of

    migrations = deployment.migrations()
    if as_json:
        write_json(SqlDocument(location=deployment.location(), migrations=tuple(migrations)))
        return
    kind = kind_of(deployment.url())
    how = "to be run once, in one transaction" if kind.migrates_at_once else "to be run until it succeeds"
    for migration in migrations:
        write(f"-- Holdfast's schema, {kind.scheme}/{migration.number:04}_{migration.name}: {how}.")
        write()
        write_lines(migration.sql.splitlines())
