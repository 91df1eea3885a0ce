"""Lane, mark and time: the leading columns of the only index of the jobs. They follow from the state of a job.

Every statement that changes the state writes them as well (docs/decisions/0018-mysql-lanes-and-gates.md).
"""

from functools import cache
from hashlib import sha256
from typing import Final

from holdfast.queues.engines.tables.states import COMPLETED, FAILED, FORGOTTEN, PROCESSING

# Waiting jobs have the lanes 0 to 9, the most urgent first. Then each state has one.
LAST_WAITING: Final = 9
LANE_OF_STATE: Final = 8
LEASED: Final = LANE_OF_STATE + PROCESSING
DONE: Final = LANE_OF_STATE + COMPLETED
GONE: Final = LANE_OF_STATE + FORGOTTEN

# Must come last in an update, because an assignment sees the values of those before it.
# Generated columns would do the same, but cost a tenth of a millisecond for each reference to the table.
PLACE: Final = f"""
        lane = CASE WHEN state <= {FAILED} THEN {LAST_WAITING} - priority ELSE state + {LANE_OF_STATE} END,
        mark = CASE WHEN state <= {FAILED} THEN UNHEX(LEFT(SHA2(queue, 256), 32)) ELSE '' END,
        since = CASE WHEN state <= {FAILED} THEN due_at ELSE finished_at END"""


@cache
def mark_of(queue: str) -> bytes:
    """The mark of waiting jobs in a queue. It is as long as a claim's token, so that rows never grow."""
    return sha256(queue.encode()).digest()[:16]
