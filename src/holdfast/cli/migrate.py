"""`holdfast migrate`: create or upgrade the database schema, or print the SQL for it."""

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

SchemaChange: TypeAlias = Literal["created", "upgraded", "none"]


class MigrateDocument(Document, frozen=True, kw_only=True, tag="holdfast.migrate/1"):
    """The document of `migrate --json`: what was done, and the version of the schema before and after.

    With `--dry-run`, both are the current version. 0 means no schema yet; null means that the engine needs none.
    """

    location: str
    database_schema: str
    change: SchemaChange
    before: int | None
    version: int | None


class SqlDocument(Document, frozen=True, kw_only=True, tag="holdfast.migrate.sql/1"):
    """The document of `migrate --sql --json`: all migrations, oldest first."""

    location: str
    migrations: tuple[Migration, ...]


@click.command()
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL that creates the schema instead of executing it.")
@dry_run_option
@url_option
@json_option
def migrate(as_sql: bool, dry_run: bool, url: str | None, as_json: bool) -> None:
    """Create or upgrade the database schema. It is safe to run this more than once, and on several machines
    at the same time.

    Holdfast does this automatically, except in an SQLite database that belongs to another program.

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
    before = _described(deployment)
    if not dry_run:
        deployment.open(mode=Mode.MIGRATE).engine.close()
    after = before if dry_run else _described(deployment)
    if as_json:
        write_json(_document(deployment.location(), before, after, is_dry_run=dry_run))
    elif dry_run:
        write(f"{deployment.location()}: {_plan(before)}")
        note("dry run: nothing was changed")
    else:
        write(f"✓ {deployment.location()} is up to date: {_result(before, after)}")
    for name in () if dry_run else deployment.others:
        note(f"  other backend: {deployment.location(name)} (holdfast migrate --url {name})")


def _described(deployment: Deployment) -> EngineInfo:
    from holdfast.queues.opening import Mode

    with deployment.open(mode=Mode.READ).engine as engine:
        return engine.describe()


def _document(location: str, before: EngineInfo, after: EngineInfo, *, is_dry_run: bool) -> MigrateDocument:
    from holdfast.cli.backend_info import schema_state

    found = "none" if before.schema is None else schema_state(before)
    change: SchemaChange = "none" if before.schema == after.schema else "upgraded" if before.schema else "created"
    return MigrateDocument(
        location=location,
        database_schema=found if is_dry_run else "current",
        change=change,
        before=before.schema,
        version=after.schema,
    )


def _result(before: EngineInfo, after: EngineInfo) -> str:
    if after.schema is None:
        return "this engine needs no schema"
    if before.schema == after.schema:
        return f"schema {after.schema} already exists"
    return (
        f"schema upgraded from {before.schema} to {after.schema}" if before.schema else f"schema {after.schema} created"
    )


def _plan(info: EngineInfo) -> str:
    """What a migration would do."""
    from holdfast.cli.backend_info import schema_in_words, schema_state

    if info.schema is None:
        return "this engine needs no schema; nothing to do"
    match schema_state(info):
        case "missing":
            return f"would create schema {info.known_schema}"
        case "older":
            return f"would upgrade from schema {info.schema} to {info.known_schema}"
        case "current":
            return f"schema {info.schema} already exists; nothing to do"
        case _:
            return ": ".join(schema_in_words(info))


def _print_sql(deployment: Deployment, *, as_json: bool) -> None:
    from holdfast.queues.addresses import kind_of

    migrations = deployment.migrations()
    if as_json:
        write_json(SqlDocument(location=deployment.location(), migrations=tuple(migrations)))
        return
    kind = kind_of(deployment.url())
    how = "run it once, in one transaction" if kind.migrates_at_once else "run it until it succeeds"
    for migration in migrations:
        write(f"-- Holdfast schema, {kind.scheme}/{migration.number:04}_{migration.name}: {how}.")
        write()
        write_lines(migration.sql.splitlines())
