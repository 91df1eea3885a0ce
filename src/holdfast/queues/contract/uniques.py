"""Unique jobs: which envelopes may be stored. Written once, on rows that each engine locks, reads and writes.

A row says which job was last stored with a key. It counts while that job is in scope, so nothing has to be released
when the job starts or finishes, and no key can stop a job from being retried.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.clock import duration_us
from holdfast.errors import UniqueConflict
from holdfast.values import JobEnvelope, JobState, Unique, UniqueScope

_STARTED = frozenset({JobState.PROCESSING, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED})


class UniqueRow(NamedTuple):
    """The job that was last stored with a key ("" if none was), and until when it is the only one, if for a period."""

    key: str
    job_id: str = ""
    until_us: int = 0


class UniqueRows(ABC):
    """The rows of unique keys, in one open transaction and at one instant, `now_us`. No list is empty."""

    now_us: int

    @abstractmethod
    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        """Lock these keys in this order until the transaction ends, creating those that do not exist."""

    @abstractmethod
    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        """The states of the known jobs among these; None for a tombstone. Those that have not started are locked, so
        that they cannot start before the transaction ends.
        """

    @abstractmethod
    def store(self, rows: Sequence[UniqueRow]) -> None:
        """Store these rows, whose keys are locked."""


def find_duplicates(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    """Which envelopes must not be stored: their ids, each with the id of the job that has its key.

    The keys of the others are taken. A job whose own id is already known is not a duplicate: the call is repeated.
    """
    asking = [(one, one.unique) for one in envelopes if one.unique is not None]
    stored = dict(rows.lock(sorted({unique.key for _, unique in asking})))
    ids = {row.job_id for row in stored.values() if row.job_id} | {one.id for one, _ in asking}
    states = dict(rows.states(sorted(ids)))
    taken: dict[str, UniqueRow] = {}
    duplicates: dict[str, str] = {}
    for envelope, unique in asking:
        if envelope.id in states:
            continue
        row = taken.get(unique.key)
        if row is not None and row.job_id == envelope.id:
            continue
        if row is None and not _is_in_scope(stored[unique.key], unique, states, rows.now_us):
            until_us = rows.now_us + duration_us(unique.period) if unique.scope is UniqueScope.PERIOD else 0
            taken[unique.key] = UniqueRow(unique.key, envelope.id, until_us)
            continue
        existing = (row or stored[unique.key]).job_id
        if unique.reject:
            raise UniqueConflict(unique.key, existing)
        duplicates[envelope.id] = existing
    if taken:
        rows.store(list(taken.values()))
    return duplicates


def _is_in_scope(row: UniqueRow, unique: Unique, states: Mapping[str, JobState | None], now_us: int) -> bool:
    state = states.get(row.job_id)
    match unique.scope:
        case UniqueScope.PERIOD:
            return bool(row.job_id) and row.until_us > now_us
        case UniqueScope.WAITING:
            return state is not None and state not in _STARTED
        case UniqueScope.OPEN:
            return state is not None and not state.is_final
