"""Bugs in the decisions about slots and unique keys, planted in the memory engine. All engines but Redis share them."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import pytest
from msgspec.structs import replace

from holdfast.queues.contract import Crowd, LockedSlots, UniqueRow, UniqueRows, Waiter, find_duplicates, uniques
from holdfast.queues.contract.slots import JobNumber, Place, _Changes  # pyright: ignore[reportPrivateUsage]
from holdfast.queues.contract.state import CellName
from holdfast.queues.engines.memory import jobs
from holdfast.queues.engines.memory.engine import MemoryEngine
from holdfast.testing import Lab
from holdfast.values import (
    Cell,
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


@contextmanager
def lab_with(module: ModuleType, name: str, broken: object) -> Generator[Lab]:
    """A lab in which this decision is replaced by a broken one."""
    with pytest.MonkeyPatch.context() as patch, lab_of(MemoryEngine) as lab:
        patch.setattr(module, name, broken)
        yield lab


HEALTHY = partial(lab_with, jobs, "LockedSlots", LockedSlots)
PLANTS = {
    **{bug.__name__: Plant(breaks, partial(lab_with, jobs, "LockedSlots", bug)) for bug, breaks in SLOTS.items()},
    **{
        bug.__name__: Plant(breaks, partial(lab_with, jobs, "find_duplicates", bug))
        for bug, breaks in DUPLICATES.items()
    },
    **{bug.__name__: Plant(breaks, partial(lab_with, uniques, "_is_in_scope", bug)) for bug, breaks in SCOPES.items()},
}
