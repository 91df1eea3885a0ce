"""The contract in plain Python: shared state."""

from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.queues.contract.slots import LockedSlots, resized_slots
from holdfast.queues.contract.state import (
    PAGE,
    SharedState,
    apply_writes,
    cell_of,
    parted,
    spend_all,
    versions_of,
)
from holdfast.queues.engines.memory.connections import MemoryStore
from holdfast.queues.engines.memory.slots import MemorySlots
from holdfast.values import Cell, Spend, Spent, Write


class MemoryState(SharedState):
    """The shared state in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        with self._store.lock:
            now = self._clock.now_us()
            found = [
                cell_of(name, stored, now)
                for name, stored in self._store.cells.items()
                if name[0] == kind and stored.is_live(now) and (name[1] > after if keys is None else name[1] in keys)
            ]
        # Python compares by code points, which is the order of UTF-8 bytes.
        return sorted(found, key=lambda cell: cell.key)[:limit]

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        with self._store.lock:
            now = self._clock.now_us()
            cells, resizes = parted(writes)
            applied = apply_writes(cells, self._store.cells, now)
            if applied is None:
                return None
            self._store.cells |= applied.cells
            if resizes:
                LockedSlots(MemorySlots(self._store, now), resized_slots(resizes)).resize(resizes)
            return versions_of(writes, applied.versions)

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        with self._store.lock:
            return spend_all(spends, self._store.buckets, self._clock.now_us())

    def sweep(self, limit: int = PAGE) -> int:
        with self._store.lock:
            now = self._clock.now_us()
            # A cell whose version is ahead of the clock stays: the next version of its key has to be greater.
            cells = [
                name for name, stored in self._store.cells.items() if not stored.is_live(now) and stored.version < now
            ][:limit]
            buckets = [name for name, full_at in self._store.buckets.items() if full_at <= now][:limit]
            for name in cells:
                del self._store.cells[name]
            for bucket in buckets:
                del self._store.buckets[bucket]
            return len(cells) + len(buckets)
