"""The schema of the SQLite engine as SQL, in the names of one installation."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.errors import ConfigError
from holdfast.queues.engines.tables.migrations import Migration, read_migrations

# By the library's clock: the time is for people, and nothing depends on it.
RECORD: Final = (
    "INSERT INTO holdfast_schema (version, applied_at)\n"
    "VALUES (:number, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));"
)
_prefix_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, for tables whose names begin with the prefix; each is to be one transaction."""
    check_prefix(prefix)
    return read_migrations("sqlite", record=RECORD, named=lambda script: script.replace("holdfast_", prefix))


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that cannot begin the name of a table."""
    if not _prefix_pattern.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} cannot be a table prefix: use letters, digits and '_', at most 40")
