"""`Retention`: how long engines with tables keep finished records, and how they let go of them: a batch at a time."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from msgspec import Struct

from holdfast.clock import span_us
from holdfast.queues.contract import TOMBSTONE_S, LeasePolicy, QueueInspector, check_purge
from holdfast.queues.engines.tables.rows import CANCELLED, CODES, COMPLETED, DEAD, NEVER, PRUNE_BATCH, Row
from holdfast.values import JobState


class Outdated(Struct, frozen=True, kw_only=True):
    """Which finished records are to be forgotten: of a stored state, of a queue or all, finished that long ago or ever.

    Their ids stay known for an hour from now, or (`known_us`) until that long after their jobs finished.
    """

    state: int
    queue: str | None = None
    age_us: int | None = None
    known_us: int | None = None

    def before(self, now: int) -> int:
        """When they have finished at the latest."""
        return NEVER if self.age_us is None else now - self.age_us

    def parted(self, found: Sequence[Row], now: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Of records (number, when it finished), those that leave a tombstone, with its end; and those that do not."""
        hour = now + span_us(TOMBSTONE_S)
        ends: list[tuple[int, int]] = [
            (seq, hour if self.known_us is None else finished_at + self.known_us) for seq, finished_at in found
        ]
        return [end for end in ends if end[1] > now], [seq for seq, until in ends if until <= now]


class Retention(QueueInspector):
    """What the policy means, and how a purge goes about it. An engine forgets up to `PRUNE_BATCH` records at a time, so
    that nobody waits long for a lock, and says how many it found.
    """

    policy: LeasePolicy

    @abstractmethod
    def _forget_some(self, outdated: Outdated) -> int:
        """Forget the oldest of these."""

    @abstractmethod
    def _drop_some_tombstones(self) -> int:
        """Drop the oldest tombstones of those whose time is over."""

    def purge(
        self, states: Iterable[JobState], *, queue: str | None = None, older_than: timedelta | None = None
    ) -> int:
        age_us = None if older_than is None else span_us(older_than.total_seconds())
        return sum(
            self._forget_all(Outdated(state=CODES[state], queue=queue, age_us=age_us))
            for state in sorted(check_purge(states))
        )

    def prune(self) -> int:
        kept_s = {COMPLETED: self.policy.retain_completed_s, CANCELLED: self.policy.retain_completed_s}
        if self.policy.retain_dead_s is not None:
            kept_s[DEAD] = self.policy.retain_dead_s
        dropped = 0
        for state, seconds in kept_s.items():
            # A record that was kept for an hour needs no tombstone.
            known_us = span_us(max(seconds, TOMBSTONE_S))
            dropped += self._forget_all(Outdated(state=state, age_us=span_us(seconds), known_us=known_us))
        until_done(self._drop_some_tombstones)
        return dropped

    def _forget_all(self, outdated: Outdated) -> int:
        return until_done(lambda: self._forget_some(outdated))


def until_done(work: Callable[[], int]) -> int:
    """Repeat it as long as it does a whole batch; how much it did."""
    total, batch = 0, PRUNE_BATCH
    while batch == PRUNE_BATCH:
        batch = work()
        total += batch
    return total
