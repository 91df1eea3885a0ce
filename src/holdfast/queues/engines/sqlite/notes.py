"""Notes in an SQLite file: on parents whose edges disagree with their states. `edges.py` resolves them."""

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.sqlite.connections import as_json
from holdfast.queues.engines.sqlite.transactions import SqliteStatements
from holdfast.queues.engines.tables.states import COMPLETED, EDGE_CANCELLED, EDGE_OPEN

# The first condition is checked only once: without edges, no job costs anything. A note that was left while the parent
# was unfinished is replaced, and so counts as a new one.
NOTE_ENDED: Final = f"""
    INSERT OR REPLACE INTO holdfast_notes (parent)
    SELECT value FROM json_each(:seqs)
    WHERE EXISTS (SELECT 1 FROM holdfast_edges)
        AND EXISTS (SELECT 1 FROM holdfast_edges AS e WHERE e.parent = value AND e.outcome = {EDGE_OPEN})
        AND NOT EXISTS (SELECT 1 FROM holdfast_jobs AS j WHERE j.seq = value AND j.state < {COMPLETED})"""

NOTE_REOPENED: Final = f"""
    INSERT OR REPLACE INTO holdfast_notes (parent)
    SELECT value FROM json_each(:seqs)
    WHERE EXISTS (SELECT 1 FROM holdfast_edges AS e WHERE e.parent = value AND e.outcome = {EDGE_CANCELLED})"""


def note_ended(connection: SqliteStatements, sql: Callable[[str], str], numbers: Sequence[JobNumber]) -> bool:
    """Leave a note on those of these jobs that have finished or were deleted, if other jobs wait for them."""
    return connection.execute(sql(NOTE_ENDED), {"seqs": as_json(numbers)}).rowcount > 0


def note_reopened(connection: SqliteStatements, sql: Callable[[str], str], numbers: Sequence[JobNumber]) -> bool:
    """Leave a note on those of these jobs, which were replayed or blocked again, that have cancelled other jobs."""
    return connection.execute(sql(NOTE_REOPENED), {"seqs": as_json(numbers)}).rowcount > 0
