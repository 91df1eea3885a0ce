"""The contract in plain Python: slots and unique keys. The caller holds the lock of the store."""

import heapq
from collections.abc import Mapping, Sequence

from holdfast.queues.contract import Crowd, Place, SlotRow, SlotRows, UniqueRow, UniqueRows, Waiter
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.contract.state import CellName, cell_of
from holdfast.queues.engines.memory.connections import MemoryStore, StoredPlace
from holdfast.values import Cell, JobLease, JobState


class MemorySlots(SlotRows):
    """The slots in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, now_us: int) -> None:
        self._store = store
        self.now_us = now_us

    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        unsized = SlotRow(0)
        return {
            name: self._store.sizes.get(name, unsized)._replace(fence=self._store.fences.get(name, 0)) for name in names
        }

    def resize(self, slots: Mapping[str, SlotRow]) -> None:
        for name, row in slots.items():
            if row.size is None:
                self._store.sizes.pop(name, None)
            else:
                self._store.sizes[name] = row

    def held(self, leases: Sequence[JobLease]) -> set[tuple[JobNumber, str]]:
        return {(one.token, one.owner_token) for one in leases if self._store.held(one, self.now_us)}

    def cells(self, names: Sequence[CellName]) -> Mapping[CellName, Cell]:
        stored = {name: self._store.cells[name] for name in names if name in self._store.cells}
        return {name: cell_of(name, cell, self.now_us) for name, cell in stored.items() if cell.is_live(self.now_us)}

    def places(self, names: Sequence[str]) -> list[Place]:
        return [
            Place(name, number, place.queue, place.owner_token, place.fence, place.until_us)
            for name in names
            for number, place in self._store.places.get(name, {}).items()
            if self._store.is_taken(place, self.now_us)
        ]

    def take(self, places: Sequence[Place]) -> None:
        for one in places:
            record = self._store.by_number[one.number]
            self._store.fences[one.slot] = one.fence
            taken = self._store.places.setdefault(one.slot, {})
            taken[one.number] = StoredPlace(record, one.owner_token, one.queue, one.fence, since_us=self.now_us)

    def free(self, places: Sequence[tuple[str, JobNumber]]) -> None:
        for name, number in places:
            self._store.places.get(name, {}).pop(number, None)

    def reserve(self, places: Sequence[tuple[str, JobNumber]], until_us: int) -> None:
        for name, number in places:
            if place := self._store.places.get(name, {}).get(number):
                place.owner_token, place.fence, place.until_us, place.since_us = None, 0, until_us, self.now_us

    def block(self, waiters: Sequence[Waiter]) -> None:
        for one in waiters:
            record = self._store.by_number[one.number]
            del self._store.leased[record.envelope.id]
            record.owner_token = None
            if record.cancel_request is not None:
                record.cancel_reason = record.cancel_request
                record.finish(JobState.CANCELLED, self.now_us)
                self._store.note([record])
                continue
            record.state = JobState.BLOCKED
            record.blocked_us = self.now_us
            self._store.blocked[one.number] = one
            waiting = self._store.waiting.setdefault(one.slot, {}).setdefault(one.queue, [])
            heapq.heappush(waiting, (-record.envelope.priority, record.due_us, record.envelope.id, one))

    def queues(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(name, queue) for name in names for queue, waiting in self._waiting(name).items() if waiting]

    def best(self, crowds: Sequence[Crowd], limit: int) -> list[Waiter]:
        return [
            entry[-1]
            for name, queue, ahead in crowds
            for entry in heapq.nsmallest(
                limit, (entry for entry in self._waiting(name).get(queue, []) if entry[-1].size > ahead)
            )
        ]

    def promote(self, waiters: Sequence[Waiter], until_us: int) -> set[JobNumber]:
        promoted: set[JobNumber] = set()
        for one in waiters:
            self._remove(one)
            record = self._store.by_number.get(one.number)
            if record is not None and self._store.is_blocked(record) and self._store.blocked[one.number] is one:
                del self._store.blocked[one.number]
                record.state = JobState.PENDING
                self._store.offer(record)
                taken = self._store.places.setdefault(one.slot, {})
                taken[one.number] = StoredPlace(record, None, one.queue, until_us=until_us, since_us=self.now_us)
                promoted.add(one.number)
        return promoted

    def _remove(self, waiter: Waiter) -> None:
        waiting = self._waiting(waiter.slot)[waiter.queue]
        if waiting[0][-1] is waiter:
            heapq.heappop(waiting)
        else:
            waiting[:] = [entry for entry in waiting if entry[-1] is not waiter]
            heapq.heapify(waiting)

    def _waiting(self, name: str) -> dict[str, list[tuple[int, int, str, Waiter]]]:
        return self._store.waiting.get(name, {})


class MemoryUniques(UniqueRows):
    """The unique keys in a `MemoryStore`. `settled` are the states that jobs are about to have."""

    def __init__(self, store: MemoryStore, now_us: int, settled: Mapping[str, JobState] | None = None) -> None:
        self._store = store
        self._settled = settled or {}
        self.now_us = now_us

    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        return {key: self._store.uniques.get(key, UniqueRow(key)) for key in keys}

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        tombstones = {one: self._store.tombstones[one] for one in ids if one in self._store.tombstones}
        return {
            **{one: None for one, tombstone in tombstones.items() if tombstone.until_us > self.now_us},
            **{one: self._store.records[one].state for one in ids if one in self._store.records},
            **{one: self._settled[one] for one in ids if one in self._settled},
        }

    def store(self, rows: Sequence[UniqueRow]) -> None:
        self._store.uniques |= {row.key: row for row in rows}
