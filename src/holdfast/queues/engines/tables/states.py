"""The codes of stored states, and of edges between jobs. `WAITING` is shown as scheduled or pending, depending on the
time; `FORGOTTEN` rows are tombstones.
"""

from typing import Final

from holdfast.values import EdgeOutcome, JobState, OnParentFailure

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

EDGE_OPEN, EDGE_MET, EDGE_CANCELLED = range(3)
OUTCOMES: Final = {
    EDGE_OPEN: EdgeOutcome.OPEN,
    EDGE_MET: EdgeOutcome.MET,
    EDGE_CANCELLED: EdgeOutcome.CANCELLED,
}
OUTCOME_CODES: Final = {outcome: code for code, outcome in OUTCOMES.items()}
POLICIES: Final = {0: OnParentFailure.CANCEL, 1: OnParentFailure.RUN, 2: OnParentFailure.WAIT}
POLICY_CODES: Final = {policy: code for code, policy in POLICIES.items()}
