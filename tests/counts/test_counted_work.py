"""No change may do more work than the table says: statements, round trips, bytes, system calls, calls, allocations."""

import os
import sqlite3

import pytest

from .counting import work_of
from .operations import SIZES
from .sites import SITES
from .table import PAGE, UPDATE, UPDATE_VARIABLE, differences, load, save, slope, with_table

IS_UPDATE = os.environ.get(UPDATE_VARIABLE) == "1"
# For whole batches. Failures and results have more to store, and may take a statement for each job.
BATCHED = ("enqueue", "exchange", "renew", "lease_states")
SHARED_BY_A_BATCH = ("statements", "round_trips", "commits")
# The page layout differs between versions of SQLite: these are compared only with the version that wrote the table.
SQLITE_OF_THE_TABLE = (3, 40)
KINDS_OF_SQLITE = {"pages_written", "reads", "writes"}
# One statement for a hundred rows, in two tables.
MOST_PER_JOB = 0.02


@pytest.mark.parametrize("engine", SITES)
def test_each_operation_does_as_much_work_as_the_table_says(engine: str) -> None:
    with SITES[engine]() as site:
        counted = work_of(site)
    table = load()
    if IS_UPDATE:
        save(table | {engine: counted})
        return
    is_other_sqlite = engine == "sqlite" and sqlite3.sqlite_version_info[:2] != SQLITE_OF_THE_TABLE
    changes = differences(table.get(engine, {}), counted, apart_from=KINDS_OF_SQLITE if is_other_sqlite else ())
    assert not changes, "\n".join(
        [
            f"the work on {engine} differs from tests/counts/counted_work.toml (batches of {SIZES} jobs):",
            *changes,
            f"if that is intended, rewrite the table and commit it with the change:  {UPDATE}",
        ]
    )


def test_a_batch_shares_its_statements_round_trips_and_commits() -> None:
    paid_by_each_job = [
        f"{engine}: {operation}: {kind} {counts}"
        for engine, work in load().items()
        for operation in BATCHED
        for kind in SHARED_BY_A_BATCH
        if isinstance(counts := work[operation].get(kind), list)
        and isinstance(sizes := work[operation]["sizes"], list)
        and slope(sizes, counts) > MOST_PER_JOB
    ]
    assert not paid_by_each_job


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    expected = with_table(page, load())
    if IS_UPDATE:
        PAGE.write_text(expected, encoding="utf-8")
        return
    assert page == expected, f"docs/performance.md does not show the table: {UPDATE}"
