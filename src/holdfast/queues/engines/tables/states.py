"""The codes of stored states. `WAITING` is shown as scheduled or pending, depending on the time; `FORGOTTEN` rows are
tombstones.
"""

from typing import Final

from holdfast.values import JobState

WAITING, FAILED, PROCESSING, BLOCKED, COMPLETED, DEAD, CANCELLED, FORGOTTEN = range(8)
STATES: Final = {
    WAITING: JobState.PENDING,
    FAILED: JobState.FAILED,
    PROCESSING: JobState.PROCESSING,
    BLOCKED: JobState.BLOCKED,
    COMPLETED: JobState.COMPLETED,
    DEAD: JobState.DEAD,
    CANCELLED: JobState.CANCELLED,
}
CODES: Final = {state: code for code, state in STATES.items()}
