"""The schema of the SQLite engine as SQL, for one prefix."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.queues.engines.tables.migrations import Migration, check_prefix, read_migrations

# By SQLite's clock: the time is only informative.
RECORD: Final = (
    "INSERT INTO holdfast_schema (version, applied_at)\n"
    "VALUES (:number, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));"
)


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, for tables with this prefix; each must run in one transaction."""
    check_prefix(prefix)
    return read_migrations("sqlite", record=RECORD, named=lambda script: script.replace("holdfast_", prefix))
