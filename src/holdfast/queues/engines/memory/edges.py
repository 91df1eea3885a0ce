"""The contract in plain Python: edges between jobs, and notes. The caller holds the lock of the store."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.errors import UnknownParent
from holdfast.queues.contract import Change, Edge, EdgeRows, Turn, resolve, resolve_all
from holdfast.queues.contract.slots import JobNumber
from holdfast.queues.engines.memory.connections import MemoryStore, StoredEdge, StoredJob
from holdfast.values import PARENT_FAILED, EdgeOutcome, JobEnvelope, JobState


class MemoryEdges(EdgeRows):
    """The edges in a `MemoryStore`."""

    def __init__(self, store: MemoryStore, now_us: int) -> None:
        self._store = store
        self.now_us = now_us

    def dismiss(self) -> None:
        for parent in [one for one in self._store.notes if not self._is_actionable(one)]:
            del self._store.notes[parent]

    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        actionable = [parent for parent in self._store.notes if self._is_actionable(parent)]
        return {parent: self._state(parent) for parent in actionable[:limit]}

    def _is_actionable(self, parent: JobNumber) -> bool:
        state = self._state(parent)
        edges = self._store.children.get(parent, {}).values()
        return state is None or state.is_final or any(one.outcome is EdgeOutcome.CANCELLED for one in edges)

    def _state(self, number: JobNumber) -> JobState | None:
        record = self._store.by_number.get(number)
        return None if record is None else record.state

    def edges(self, turns: Sequence[Turn], limit: int) -> list[Edge]:
        found = [
            Edge(turn.parent, child, turn.before, turn.after)
            for turn in turns
            for child, edge in self._store.children.get(turn.parent, {}).items()
            if (edge.on_failure, edge.outcome) == (turn.on_failure, turn.before)
        ]
        return found[:limit]

    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        records = [self._store.by_number[one] for one in children if one in self._store.by_number]
        return {
            one.number: one.state
            for one in records
            if one.state is JobState.BLOCKED or (one.state is JobState.CANCELLED and one.cancel_reason == PARENT_FAILED)
        }

    def turn(self, edges: Sequence[Edge]) -> None:
        for one in edges:
            self._store.children[one.parent][one.child].outcome = one.after

    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        return {(child, edge.outcome) for child in children for edge in self._store.parents[child].values()}

    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        for record in [self._store.by_number[child] for child in children]:
            match change:
                case Change.RELEASE:
                    record.state = JobState.PENDING
                    self._store.offer(record)
                case Change.CANCEL:
                    record.cancel_reason = PARENT_FAILED
                    record.finish(JobState.CANCELLED, self.now_us)
                    self._store.note([record])
                case Change.REOPEN:
                    record.state = JobState.BLOCKED
                    record.blocked_us = self.now_us
                    record.cancel_reason = record.finished_us = None
                    self._store.note([record])

    def forget(self, parents: Sequence[JobNumber]) -> None:
        for parent in parents:
            del self._store.notes[parent]


def resolve_notes(store: MemoryStore, now_us: int) -> int:
    """Do what the notes imply, until there are none. Returns how many edges were changed."""
    rows = MemoryEdges(store, now_us)
    rows.dismiss()
    return resolve_all(lambda: resolve(rows)) if store.notes else 0


def check_known_parents(store: MemoryStore, envelopes: Iterable[JobEnvelope], known: Collection[str]) -> None:
    """Refuse a job whose parent has no record and is not among the jobs to be stored."""
    for one in envelopes:
        for parent in one.after:
            if parent not in store.records and parent not in known:
                raise UnknownParent(one.id, parent)


def connect(store: MemoryStore, records: Sequence[StoredJob]) -> None:
    """Add the edges of jobs that were just stored, and block these jobs."""
    for child in records:
        parents = [store.records[parent] for parent in child.envelope.after]
        if not parents:
            continue
        child.state = JobState.BLOCKED
        child.blocked_us = child.accepted_us
        for parent in parents:
            edge = StoredEdge(child.envelope.on_parent_failure)
            store.children.setdefault(parent.number, {})[child.number] = edge
            store.parents.setdefault(child.number, {})[parent.number] = edge
        store.note(parents)
