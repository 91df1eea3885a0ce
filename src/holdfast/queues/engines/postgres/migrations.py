"""The schema of the PostgreSQL engine as SQL, in the names of one installation. No driver is needed to print it."""

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
    """The steps of the schema, in the namespace of this prefix; each is to be one transaction."""
    namespace = f'"{namespace_of(prefix)}"'

    def in_namespace(script: str) -> str:
        return script.replace('"holdfast"', namespace).replace("holdfast.", f"{namespace}.")

    return read_migrations("postgres", record=RECORD, named=in_namespace)


def namespace_of(prefix: str) -> str:
    """What other engines begin the names of their tables with is a schema here."""
    if not _prefix_pattern.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} cannot be a prefix: use small letters, digits and '_', at most 40")
    return prefix.rstrip("_") or prefix
