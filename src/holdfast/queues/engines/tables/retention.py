"""How long engines with tables retain finished records, and how they delete them: a batch at a time, so that no lock is
held for long. An engine provides the two steps; `purge` and `prune` repeat them.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeAlias

from msgspec import Struct

from holdfast.clock import span_us
from holdfast.queues.contract import TOMBSTONE_S, LeasePolicy, check_purge
from holdfast.queues.engines.tables.rows import CANCELLED, CODES, COMPLETED, DEAD, NEVER, PRUNE_BATCH, Row
from holdfast.values import JobState


class Outdated(Struct, frozen=True, kw_only=True):
    """Which finished records to delete: by stored state, by queue (None: all) and by age (None: any).

    Their ids stay known for an hour from now or, with `known_us`, for that long after their jobs finished.
    """

    state: int
    queue: str | None = None
    age_us: int | None = None
    known_us: int | None = None

    def before(self, now: int) -> int:
        """The latest instant at which they finished."""
        return NEVER if self.age_us is None else now - self.age_us

    def parted(self, found: Sequence[Row], now: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Of records (number, when it finished), those that leave a tombstone, with its end; and those that do not."""
        hour = now + span_us(TOMBSTONE_S)
        ends: list[tuple[int, int]] = [
            (seq, hour if self.known_us is None else finished_at + self.known_us) for seq, finished_at in found
        ]
        return [end for end in ends if end[1] > now], [seq for seq, until in ends if until <= now]


Forget: TypeAlias = Callable[[Outdated], int]
"""Deletes up to `PRUNE_BATCH` of these records, the oldest first, and returns how many it found."""


def purge(forget: Forget, states: Iterable[JobState], queue: str | None, older_than: timedelta | None) -> int:
    """Delete jobs in these final states that finished longer ago than `older_than`."""
    age_us = None if older_than is None else span_us(older_than.total_seconds())
    chosen = [Outdated(state=CODES[state], queue=queue, age_us=age_us) for state in sorted(check_purge(states))]
    return sum(until_done(lambda: forget(outdated)) for outdated in chosen)  # noqa: B023 - called at once


def prune(forget: Forget, drop_tombstones: Callable[[], int], policy: LeasePolicy) -> int:
    """Delete what the policy no longer retains, and expired tombstones."""
    retained_s = {COMPLETED: policy.retain_completed_s, CANCELLED: policy.retain_completed_s}
    if policy.retain_dead_s is not None:
        retained_s[DEAD] = policy.retain_dead_s
    deleted = 0
    for state, seconds in retained_s.items():
        # A record that was retained for an hour needs no tombstone.
        known_us = span_us(max(seconds, TOMBSTONE_S))
        outdated = Outdated(state=state, age_us=span_us(seconds), known_us=known_us)
        deleted += until_done(lambda: forget(outdated))  # noqa: B023 - called at once
    until_done(drop_tombstones)
    return deleted


def until_done(work: Callable[[], int]) -> int:
    """Repeat `work` as long as it finds a whole batch. Returns the total."""
    total, batch = 0, PRUNE_BATCH
    while batch == PRUNE_BATCH:
        batch = work()
        total += batch
    return total
