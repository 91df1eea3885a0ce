"""Records that another program, a failing disk or a partial restore has damaged.

A strict table refuses to update a row that holds a value of the wrong type, so every column is cast.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.sqlite.connections import as_json
from holdfast.queues.engines.sqlite.notes import note_ended
from holdfast.queues.engines.sqlite.transactions import SqliteStatements
from holdfast.queues.engines.tables.states import DEAD

# Every column of a job, cast to its type. A missing id is replaced by one that no other job has.
_TYPES: Final = {
    "INTEGER": ("priority", "due_at", "accepted_at", "attempts", "crashes", "deliveries", "ignore_expiry", "expired"),
    "TEXT": ("queue", "job"),
}
_MAYBE: Final = {
    "INTEGER": ("claimed_at", "lease_us", "lease_until"),
    "TEXT": ("trace_id", "cancel_request", "cancel_reason"),
    "BLOB": ("digest",),
}
_CASTS: Final = {
    "id": "CAST(coalesce(id, 'damaged-' || seq) AS TEXT)",
    **{name: f"CAST(coalesce({name}, '') AS {kind})" for kind, names in _TYPES.items() for name in names},
    **{name: f"CAST({name} AS {kind})" for kind, names in _MAYBE.items() for name in names},
}
_REPAIRED: Final = ", ".join(f"{name} = {cast}" for name, cast in _CASTS.items())

REPAIR: Final = f"""
    UPDATE holdfast_jobs
    SET {_REPAIRED}, state = CAST(state AS INTEGER), finished_at = CAST(finished_at AS INTEGER),
        owner_token = CAST(owner_token AS BLOB), dead_reason = CAST(dead_reason AS TEXT),
        last_error = CAST(last_error AS TEXT)
    WHERE id = :id OR seq = :seq"""

DEAD_LETTER: Final = f"""
    UPDATE holdfast_jobs
    SET {_REPAIRED}, state = {DEAD}, dead_reason = 'undecodable', finished_at = :now, owner_token = NULL,
        last_error = :problem
    WHERE seq = :seq"""


def dead_letter(
    connection: SqliteStatements, sql: Callable[[str], str], seq: int, now: int, problem: sqlite3.IntegrityError
) -> None:
    """Dead-letter a job whose record cannot be updated."""
    import logging  # imported here: commands that only read do not need it

    log = logging.getLogger("holdfast.sqlite")
    log.error("job number %d was dead-lettered: its record is damaged: %s", seq, problem)
    connection.execute(sql(DEAD_LETTER), {"seq": seq, "now": now, "problem": f"DamagedRecord: {problem}"})
    note_ended(connection, sql, [seq])


def change_jobs(
    connection: SqliteStatements, sql: Callable[[str], str], statement: str, numbers: Sequence[JobNumber], now: int
) -> set[JobNumber]:
    """Change these jobs and return those that were changed. A damaged record is dead-lettered instead."""
    try:
        rows = connection.execute(sql(statement), {"seqs": as_json(numbers), "now": now}).fetchall()
    except sqlite3.IntegrityError as problem:
        if len(numbers) > 1:
            return {seq for number in numbers for seq in change_jobs(connection, sql, statement, [number], now)}
        dead_letter(connection, sql, int(numbers[0]), now, problem)
        return set()
    return {seq for (seq,) in rows}
