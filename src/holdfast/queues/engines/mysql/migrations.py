"""The schema of the MySQL engine as SQL, in the names of one installation. No driver is needed to print it."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.queues.engines.tables.migrations import Migration, check_prefix, read_migrations

# By UTC, whichever zone the session is in that executes it: it may be that of somebody else's tool.
RECORD: Final = (
    "INSERT INTO holdfast_schema (version, applied_at)\n"
    "VALUES (:number, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));"
)


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, for tables whose names begin so; one that was cut off may be repeated."""
    check_prefix(prefix)
    return read_migrations("mysql", record=RECORD, named=lambda script: script.replace("holdfast_", prefix))
