"""Unique jobs: decides which envelopes may be stored. Implemented once, on rows that engines provide.

A row names the job that was last stored with a key. The key is taken while that job is in scope, so nothing has to be
released when the job starts or finishes, and no key can stop a job from being retried.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.clock import duration_us
from holdfast.errors import UniqueConflict
from holdfast.values import JobEnvelope, JobState, Unique, UniqueScope

_STARTED = frozenset({JobState.PROCESSING, JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED})


class UniqueRow(NamedTuple):
    """The job that was last stored with a key ("" if none was), and the end of its period (0 if it has none)."""

    key: str
    job_id: str = ""
    until_us: int = 0


class UniqueRows(ABC):
    """The rows of unique keys, in one open transaction and at one instant, `now_us`. Arguments are never empty."""

    now_us: int

    @abstractmethod
    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        """Lock these keys in this order until the transaction ends, creating those that do not exist."""

    @abstractmethod
    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        """The states of the jobs that exist, by id; None for a tombstone. Jobs that have not started are locked, so
        that they cannot start before the transaction ends.
        """

    @abstractmethod
    def store(self, rows: Sequence[UniqueRow]) -> None:
        """Store these rows, whose keys are locked."""


def find_duplicates(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    """The ids of the envelopes that must not be stored, each with the id of the job that has its key.

    The other envelopes take their keys. An envelope whose own id is already known is not a duplicate, but a repeated
    call.
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
