"""The schema of the PostgreSQL engine as SQL, for one prefix. No driver is needed to print it."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.errors import ConfigError
from holdfast.queues.engines.tables.migrations import Migration, read_migrations

RECORD: Final = "INSERT INTO holdfast.schema (version) VALUES (:number);"
_prefix_pattern = re.compile(r"[a-z_][a-z0-9_]{0,39}")


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, in the namespace of this prefix; each must run in one transaction."""
    namespace = f'"{namespace_of(prefix)}"'

    def in_namespace(script: str) -> str:
        return script.replace('"holdfast"', namespace).replace("holdfast.", f"{namespace}.")

    return read_migrations("postgres", record=RECORD, named=in_namespace)


def namespace_of(prefix: str) -> str:
    """The PostgreSQL schema of the tables: what is a prefix of table names on other engines is a schema here."""
    if not _prefix_pattern.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} is not a valid prefix; use up to 40 lower-case letters, digits and '_'")
    return prefix.rstrip("_") or prefix
