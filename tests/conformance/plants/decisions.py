"""Bugs in the decisions about slots, unique keys and edges, planted in the memory engine. All engines but Redis share
them.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import pytest
from msgspec.structs import replace

from holdfast.queues.contract import (
    Change,
    Crowd,
    LockedSlots,
    Resolved,
    Turn,
    UniqueRow,
    UniqueRows,
    Waiter,
    edges,
    engine,
    find_duplicates,
    uniques,
)
from holdfast.queues.contract.slots import JobNumber, Place, _Changes  # pyright: ignore[reportPrivateUsage]
from holdfast.queues.contract.state import CellName
from holdfast.queues.engines.memory import edges as memory_edges, jobs
from holdfast.queues.engines.memory.edges import MemoryEdges
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.testing import Lab
from holdfast.values import (
    Cell,
    EdgeOutcome,
    Entered,
    Entry,
    JobEnvelope,
    JobState,
    OnConflict,
    Release,
    Settlement,
    Slot,
    Unique,
    UniqueScope,
)

from .memory import lab_of
from .planting import Plant


class EntersWithoutALease(LockedSlots):
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        everyone: set[tuple[JobNumber, str]] = {(one.lease.token, one.lease.owner_token) for one in entries}
        self._rows.held = lambda leases: everyone  # type: ignore[method-assign]
        return super().enter(entries)


class EntersAgain(LockedSlots):
    def _enter(self, entry: Entry, done: Mapping[CellName, Cell], changes: _Changes) -> Entered:
        for slot in entry.slots:
            self._taken[slot.name].pop(entry.lease.token, None)
        return super()._enter(entry, done, changes)


class MoreHoldersThanPlaces(LockedSlots):
    def _is_full(self, slot: Slot, number: JobNumber, *, is_promoted: bool) -> bool:
        return super()._is_full(replace(slot, size=slot.size + 1), number, is_promoted=is_promoted)


class NewJobsOvertake(LockedSlots):
    def _is_recent(self, promotion: Place) -> bool:
        return False


class NewJobsNeverOvertake(LockedSlots):
    def _is_recent(self, promotion: Place) -> bool:
        return True


class PromotedJobsWaitForEachOther(LockedSlots):
    def _is_full(self, slot: Slot, number: JobNumber, *, is_promoted: bool) -> bool:
        return super()._is_full(slot, number, is_promoted=False)


class BlockedJobKeepsItsPromotion(LockedSlots):
    def _enter(self, entry: Entry, done: Mapping[CellName, Cell], changes: _Changes) -> Entered:
        mine = {slot.name: self._taken[slot.name].get(entry.lease.token) for slot in entry.slots}
        answer = super()._enter(entry, done, changes)
        for name, place in mine.items():
            if place is not None and (name, place.number) in changes.freed:
                self._taken[name][place.number] = place
        return answer


class FencesOfTheClockAlone(LockedSlots):
    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        self._slots = {name: row._replace(fence=0) for name, row in self._slots.items()}
        return super().enter(entries)


class DoneWorkNotNoticed(LockedSlots):
    def _enter(self, entry: Entry, done: Mapping[CellName, Cell], changes: _Changes) -> Entered:
        return super()._enter(entry, {}, changes)


class DoneWorkSparesOneJob(LockedSlots):
    def _promote(self, freed: Mapping[str, int], finished: Collection[str] = ()) -> int:
        return super()._promote(freed)


class LeavesWithoutAPromotion(LockedSlots):
    def leave(self, settlements: Sequence[Settlement]) -> int:
        return 0


class ReturnedJobLosesItsTurn(LockedSlots):
    def leave(self, settlements: Sequence[Settlement]) -> int:
        ends = [replace(one, unstarted=False) if isinstance(one, Release) else one for one in settlements]
        return super().leave(ends)


class DelayedJobKeepsItsTurn(LockedSlots):
    """Trusts what was reserved, without reading which jobs can still enter."""

    def leave(self, settlements: Sequence[Settlement]) -> int:
        returned = [one for one in settlements if isinstance(one, Release) and one.unstarted]
        return super().leave([one for one in settlements if one not in returned])


class OneJobPromotedOfAllQueues(LockedSlots):
    def _ahead(self, name: str, queue: str) -> int:
        return len(self._taken[name])


class EveryJobPromoted(LockedSlots):
    def _has_place(self, waiter: Waiter) -> bool:
        return True


class BlockedThoughThereIsAPlace(LockedSlots):
    """Promotes no job of a queue where one was just blocked, although only a job of another queue is ahead."""

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        self._is_entering = True
        return super().enter(entries)

    def _has_place(self, waiter: Waiter) -> bool:
        return not getattr(self, "_is_entering", False) and super()._has_place(waiter)


class StaleWaiterKeepsThePlace(LockedSlots):
    def _restore(self, waiter: Waiter, place: Place | None) -> None:
        pass


class SizesOfTheFirstWaitersAlone(LockedSlots):
    def _crowd(self, name: str, queue: str, *, is_finished: bool) -> Crowd:
        return super()._crowd(name, queue, is_finished=is_finished)._replace(ahead=0)


class LargerSizesLookedForOnce(LockedSlots):
    def _promote(self, freed: Mapping[str, int], finished: Collection[str] = ()) -> int:
        return super()._promote(dict.fromkeys(freed, 0), finished)


def no_duplicates(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    return {}


def one_by_one(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    return {id: existing for one in envelopes if one.unique for id, existing in find_duplicates([one], rows).items()}


def never_rejected(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    uniques = [one.unique and replace(one.unique, on_conflict=OnConflict.IGNORE) for one in envelopes]
    asking = [replace(one, unique=unique) for one, unique in zip(envelopes, uniques, strict=True)]
    return find_duplicates(asking, rows)


class NothingIsKnown(UniqueRows):
    """Rows by which no job exists yet, except for those that have keys."""

    def __init__(self, rows: UniqueRows) -> None:
        self._rows = rows
        self.now_us = rows.now_us

    def lock(self, keys: Sequence[str]) -> Mapping[str, UniqueRow]:
        self._locked = self._rows.lock(keys)
        return self._locked

    def states(self, ids: Sequence[str]) -> Mapping[str, JobState | None]:
        holders = {row.job_id for row in self._locked.values()}
        return {id: state for id, state in self._rows.states(ids).items() if id in holders}

    def store(self, rows: Sequence[UniqueRow]) -> None:
        self._rows.store(rows)


def repetitions_are_duplicates(envelopes: Sequence[JobEnvelope], rows: UniqueRows) -> dict[str, str]:
    return find_duplicates(envelopes, NothingIsKnown(rows))


in_scope = uniques._is_in_scope  # pyright: ignore[reportPrivateUsage]
right_changes = edges._changes  # pyright: ignore[reportPrivateUsage]


def waiting_until_done(row: UniqueRow, unique: Unique, states: Mapping[str, JobState | None], now_us: int) -> bool:
    scope = UniqueScope.OPEN if unique.scope is UniqueScope.WAITING else unique.scope
    return in_scope(row, replace(unique, scope=scope), states, now_us)


def open_until_started(row: UniqueRow, unique: Unique, states: Mapping[str, JobState | None], now_us: int) -> bool:
    scope = UniqueScope.WAITING if unique.scope is UniqueScope.OPEN else unique.scope
    return in_scope(row, replace(unique, scope=scope), states, now_us)


def period_until_done(row: UniqueRow, unique: Unique, states: Mapping[str, JobState | None], now_us: int) -> bool:
    scope = UniqueScope.OPEN if unique.scope is UniqueScope.PERIOD else unique.scope
    return in_scope(row, replace(unique, scope=scope), states, now_us)


def period_without_end(row: UniqueRow, unique: Unique, states: Mapping[str, JobState | None], now_us: int) -> bool:
    return in_scope(row, unique, states, 0)


class FirstParentDecides(MemoryEdges):
    def outcomes(self, children: Sequence[JobNumber]) -> set[tuple[JobNumber, EdgeOutcome]]:
        found = super().outcomes(children)
        return {(child, one) for child, one in found if one is not EdgeOutcome.OPEN} or found


class CancelledByHandAndRevived(MemoryEdges):
    def lock(self, children: Sequence[JobNumber]) -> Mapping[JobNumber, JobState]:
        return {child: self._store.by_number[child].state for child in children}


class CancelledChildrenNotNoted(MemoryEdges):
    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        notes = dict(self._store.notes)
        super().change(change, children)
        if change is Change.CANCEL:
            self._store.notes = notes


class ReopenedChildrenNotNoted(MemoryEdges):
    def change(self, change: Change, children: Sequence[JobNumber]) -> None:
        notes = dict(self._store.notes)
        super().change(change, children)
        if change is Change.REOPEN:
            self._store.notes = notes


class NotesForgottenAtOnce(MemoryEdges):
    def parents(self, limit: int) -> Mapping[JobNumber, JobState | None]:
        found = super().parents(limit)
        self._store.notes.clear()
        return found

    def forget(self, parents: Sequence[JobNumber]) -> None:
        pass


class NotesOfUnfinishedParentsForgotten(MemoryEdges):
    """Dismisses notes on unfinished parents, although these have cancelled children."""

    def dismiss(self) -> None:
        for parent in list(self._store.notes):
            if (record := self._store.by_number.get(parent)) is not None and not record.state.is_final:
                del self._store.notes[parent]


right_turns = edges.turns_of


def failures_ignored(parent: JobNumber, state: JobState | None) -> list[Turn]:
    return [] if state in (JobState.DEAD, JobState.CANCELLED) else right_turns(parent, state)


def failed_is_completed(parent: JobNumber, state: JobState | None) -> list[Turn]:
    return right_turns(parent, JobState.COMPLETED if state is JobState.DEAD else state)


def every_policy_cancels(parent: JobNumber, state: JobState | None) -> list[Turn]:
    if state is JobState.COMPLETED:
        return right_turns(parent, state)
    return [one._replace(after=EdgeOutcome.CANCELLED) for one in right_turns(parent, state)]


def waiting_is_cancelled(parent: JobNumber, state: JobState | None) -> list[Turn]:
    return right_turns(parent, None if state is JobState.DEAD else state)


def waits_for_the_deleted(parent: JobNumber, state: JobState | None) -> list[Turn]:
    return right_turns(parent, JobState.DEAD if state is None else state)


def replay_revives_nothing(parent: JobNumber, state: JobState | None) -> list[Turn]:
    return right_turns(parent, state) if state is None or state.is_final else []


def all_parents_count(state: JobState, outcomes: Collection[EdgeOutcome]) -> Collection[Change]:
    """A child is cancelled only when it waits for no parent."""
    return () if EdgeOutcome.OPEN in outcomes and state is JobState.BLOCKED else right_changes(state, outcomes)


def one_replay_revives(state: JobState, outcomes: Collection[EdgeOutcome]) -> Collection[Change]:
    return right_changes(state, {EdgeOutcome.OPEN} if EdgeOutcome.OPEN in outcomes else outcomes)


def once(resolve_once: Callable[[], Resolved]) -> int:
    return resolve_once().edges


def unchecked(envelopes: Sequence[JobEnvelope]) -> None:
    pass


SLOTS: dict[type[LockedSlots], str] = {
    EntersWithoutALease: "test_a_job_without_a_lease_cannot_enter",
    EntersAgain: "test_repeating_an_entry_returns_the_same_fence",
    MoreHoldersThanPlaces: "test_as_many_jobs_enter_as_the_slot_has_places",
    NewJobsOvertake: "test_a_newcomer_does_not_overtake_a_promoted_job",
    NewJobsNeverOvertake: "test_a_promotion_expires",
    PromotedJobsWaitForEachOther: "test_of_jobs_promoted_in_two_queues_one_enters",
    BlockedJobKeepsItsPromotion: "test_a_promoted_job_that_is_blocked_elsewhere_passes_the_slot_on",
    FencesOfTheClockAlone: "test_fences_grow_from_holder_to_holder",
    DoneWorkNotNoticed: "test_done_work_spares_the_job_and_all_that_wait",
    DoneWorkSparesOneJob: "test_done_work_spares_the_job_and_all_that_wait",
    LeavesWithoutAPromotion: "test_leaving_promotes_the_next_job_in_the_same_commit",
    ReturnedJobLosesItsTurn: "test_a_job_that_is_returned_unstarted_keeps_its_turn",
    DelayedJobKeepsItsTurn: "test_a_job_that_is_returned_unstarted_but_not_due_passes_the_slot_on",
    OneJobPromotedOfAllQueues: "test_a_paused_queue_does_not_keep_the_others_waiting",
    EveryJobPromoted: "test_each_of_many_jobs_is_claimed_at_most_twice",
    BlockedThoughThereIsAPlace: "test_a_promoted_job_of_a_paused_queue_does_not_delay_a_new_one",
    StaleWaiterKeepsThePlace: "test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others",
    SizesOfTheFirstWaitersAlone: "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
    LargerSizesLookedForOnce: "test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one",
}
DUPLICATES: dict[Callable[[Sequence[JobEnvelope], UniqueRows], dict[str, str]], str] = {
    no_duplicates: "test_a_second_job_with_the_key_is_not_stored",
    one_by_one: "test_of_jobs_in_one_call_the_first_is_stored",
    never_rejected: "test_a_rejected_job_refuses_the_whole_call",
    repetitions_are_duplicates: "test_repeating_a_call_answers_for_its_own_job",
}
SCOPES: dict[Callable[[UniqueRow, Unique, Mapping[str, JobState | None], int], bool], str] = {
    waiting_until_done: "test_while_it_waits_ends_with_the_start_of_the_job",
    open_until_started: "test_until_done_ends_with_the_job",
    period_until_done: "test_a_period_ends_by_the_clock_alone",
    period_without_end: "test_a_period_ends_by_the_clock_alone",
}

EDGES: dict[type[MemoryEdges], str] = {
    FirstParentDecides: "test_parents_that_complete_one_after_the_other_release_the_child_once",
    CancelledByHandAndRevived: "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
    CancelledChildrenNotNoted: "test_a_cascade_reaches_every_descendant",
    ReopenedChildrenNotNoted: "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
    NotesForgottenAtOnce: "test_no_call_changes_more_than_a_thousand_children",
    NotesOfUnfinishedParentsForgotten: "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
}
TURNS: dict[Callable[[JobNumber, JobState | None], list[Turn]], str] = {
    failures_ignored: "test_every_end_of_a_parent_is_noticed",
    failed_is_completed: "test_a_cascade_reaches_every_descendant",
    every_policy_cancels: "test_a_parent_that_has_ended_counts_at_once",
    waiting_is_cancelled: "test_a_deleted_parent_counts_as_failed",
    waits_for_the_deleted: "test_a_deleted_parent_counts_as_failed",
    replay_revives_nothing: "test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else",
}
CHANGES: dict[Callable[[JobState, Collection[EdgeOutcome]], Collection[Change]], str] = {
    all_parents_count: "test_a_replayed_child_no_longer_waits_for_the_parent_that_failed",
    one_replay_revives: "test_a_child_of_two_failed_parents_is_revived_when_both_are_replayed",
}


@contextmanager
def lab_with(module: ModuleType, name: str, broken: object) -> Generator[Lab]:
    """A lab in which this decision is replaced by a broken one."""
    with pytest.MonkeyPatch.context() as patch, lab_of(MemoryEngine) as lab:
        patch.setattr(module, name, broken)
        yield lab


HEALTHY = partial(lab_with, jobs, "LockedSlots", LockedSlots)
PLANTS = {
    bug.__name__: Plant(breaks, partial(lab_with, module, name, bug))
    for module, name, bugs in (
        (jobs, "LockedSlots", SLOTS),
        (jobs, "find_duplicates", DUPLICATES),
        (uniques, "_is_in_scope", SCOPES),
        (memory_edges, "MemoryEdges", EDGES),
        (edges, "turns_of", TURNS),
        (edges, "_changes", CHANGES),
        (memory_edges, "resolve_all", {once: "test_a_cascade_reaches_every_descendant"}),
        (engine, "check_parents", {unchecked: "test_jobs_that_wait_for_each_other_are_refused"}),
    )
    for bug, breaks in bugs.items()
}
