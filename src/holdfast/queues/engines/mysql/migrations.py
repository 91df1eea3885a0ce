"""The schema of the MySQL engine as SQL, in the names of one installation. No driver is needed to print it."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from holdfast.errors import ConfigError
from holdfast.queues.engines.tables.migrations import Migration, read_migrations

# By UTC, whichever zone the session is in that executes it: it may be that of somebody else's tool.
RECORD: Final = (
    "INSERT INTO holdfast_schema (version, applied_at)\n"
    "VALUES (:number, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)));"
)
_prefix_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


@cache
def migrations(prefix: str) -> Sequence[Migration]:
    """The steps of the schema, for tables whose names begin so; one that was cut off may be repeated."""
    if not _prefix_pattern.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} cannot be a table prefix: use letters, digits and '_', at most 40")
    return read_migrations("mysql", record=RECORD, named=lambda script: script.replace("holdfast_", prefix))
