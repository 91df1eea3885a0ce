"""The schema of the MySQL engine as SQL, for one prefix. No driver is needed to print it."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.queues.engines.tables.migrations import Migration, check_prefix, read_migrations

# In UTC, whatever the time zone of the session: another tool may execute it.
RECORD: Final = (
    "INSERT INTO holdfast_schema (version, applied_at)\n"
    "VALUES (:number, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));"
)


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, for tables with this prefix; one that was interrupted may be repeated."""
    check_prefix(prefix)
    return read_migrations("mysql", record=RECORD, named=lambda script: script.replace("holdfast_", prefix))
