"""Slots: semaphores whose holders are running jobs. The decisions are implemented once, on rows that engines provide.

A holder is a live lease: the row of a place names a job and a claim, and is valid while that job is processing under
that claim. When a worker dies, nothing has to be freed; waiting jobs only have to be promoted. A transaction locks a
slot before it reads it, in a new statement. Otherwise a job could find the slot full while its holder is leaving, and
would never be woken up.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from holdfast.clock import duration_us
from holdfast.queues.contract.state import CellName
from holdfast.values import Cell, Entered, Entry, EntryOutcome, JobLease, Release, Resize, Settlement, Slot

PROMOTION_S: Final = 5.0
"""How long a promoted job can enter its slot before new ones."""
PROMOTE_AT_ONCE: Final = 16
MAX_PROMOTIONS: Final = 1000
"""The maximum number of waiting jobs that one commit tries to promote. The next settlement or `repair` continues."""

JobNumber: TypeAlias = int | str
"""The engine's number for a job: the `token` of its lease."""


class SlotRow(NamedTuple):
    """A locked slot: the last fence number assigned, the size that a `Resize` has set, if any, and until when the slot
    admits no job.
    """

    fence: int
    size: int | None = None
    closed_until_us: int = 0


class Place(NamedTuple):
    """A place in a slot, taken by a running job or, without an owner token, reserved for a promoted job. Before
    `until_us`, new jobs cannot take a reserved place.
    """

    slot: str
    number: JobNumber
    queue: str
    owner_token: str | None = None
    fence: int = 0
    until_us: int = 0


class Waiter(NamedTuple):
    """A job that is blocked on a slot, and the size of the slot according to its message."""

    slot: str
    number: JobNumber
    queue: str
    size: int


class Crowd(NamedTuple):
    """The jobs of a queue that are blocked on a slot, and the number of places that are taken before theirs."""

    slot: str
    queue: str
    ahead: int


class SlotRows(ABC):
    """The rows of slots, in one open transaction and at one instant, `now_us`. Arguments are never empty."""

    now_us: int

    @abstractmethod
    def lock(self, names: Sequence[str]) -> Mapping[str, SlotRow]:
        """Lock these slots in this order until the transaction ends, creating those that do not exist."""

    @abstractmethod
    def resize(self, slots: Mapping[str, SlotRow]) -> None:
        """Store the size of each slot, and until when it admits no job."""

    @abstractmethod
    def held(self, leases: Sequence[JobLease]) -> set[tuple[JobNumber, str]]:
        """Lock the jobs of these leases, and return the (number, owner token) of those that are still valid."""

    @abstractmethod
    def cells(self, names: Sequence[CellName]) -> Mapping[CellName, Cell]:
        """The live cells among these."""

    @abstractmethod
    def places(self, names: Sequence[str]) -> list[Place]:
        """The places that are taken in these slots: by jobs that are processing under that owner token with an
        unexpired lease, and by promoted jobs that can still enter, no matter when they were promoted. Those are due in
        that queue, or processing with an unexpired lease. Other rows tell `repair` that a place is free, so they may be
        deleted only together with a promotion, or if no job waits for the slot.
        """

    @abstractmethod
    def take(self, places: Sequence[Place]) -> None:
        """Store the place of each job that enters, replacing its promotion, and the slot's new fence number."""

    @abstractmethod
    def free(self, places: Sequence[tuple[str, JobNumber]]) -> None:
        """Delete the place of each (slot, job), if there is one."""

    @abstractmethod
    def reserve(self, places: Sequence[tuple[str, JobNumber]], until_us: int) -> None:
        """Turn the place of each (slot, job), if there is one, into a promotion."""

    @abstractmethod
    def block(self, waiters: Sequence[Waiter]) -> None:
        """End the leases of these jobs, without counting an attempt or a crash, and block each job on its slot. If
        cancellation of a job was requested, it is cancelled instead.
        """

    @abstractmethod
    def queues(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The (slot, queue) pairs in which jobs are waiting."""

    @abstractmethod
    def best(self, crowds: Sequence[Crowd], limit: int) -> list[Waiter]:
        """Of each crowd, the first `limit` waiters whose size is greater than `ahead`: by priority, due time and id."""

    @abstractmethod
    def promote(self, waiters: Sequence[Waiter], until_us: int) -> set[JobNumber]:
        """Make these jobs claimable and store a promotion for each. Returns those that were still blocked. The others
        were cancelled or changed; they no longer wait.
        """


class _Changes(NamedTuple):
    """The changes that a batch of entries makes: places taken and freed, jobs blocked, and slots whose work is done."""

    taken: list[Place]
    freed: list[tuple[str, JobNumber]]
    blocked: list[Waiter]
    finished: set[str]


class LockedSlots:
    """The decisions about a set of slots, which are locked when this object is created."""

    def __init__(self, rows: SlotRows, names: Iterable[str]) -> None:
        self._rows = rows
        self._names = sorted(set(names))
        self._slots: dict[str, SlotRow] = dict(rows.lock(self._names))
        self._taken: dict[str, dict[JobNumber, Place]] = {}

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        """Let each job take all of its slots, or block it on the first one that is full."""
        held = self._rows.held([entry.lease for entry in entries])
        self._read()
        # After the places: a job that ends without leaving its slots writes its cell in the commit that ends its lease.
        unless = {slot.unless for entry in entries for slot in entry.slots if slot.unless is not None}
        done: Mapping[CellName, Cell] = self._rows.cells(sorted(unless)) if unless else {}
        changes = _Changes([], [], [], set())
        answers = [
            self._enter(entry, done, changes)
            if (entry.lease.token, entry.lease.owner_token) in held
            else Entered(outcome=EntryOutcome.LOST)
            for entry in entries
        ]
        if changes.freed:
            self._rows.free(changes.freed)
        if changes.taken:
            self._rows.take(changes.taken)
        if changes.blocked:
            self._rows.block(changes.blocked)
        freed = [name for name, _ in changes.freed]
        # A place may be reserved for a job of another queue, which is perhaps paused.
        freed += [one.slot for one in changes.blocked if self._has_place(one)]
        self._promote({**dict.fromkeys(changes.finished, 0), **Counter(freed)}, changes.finished)
        return answers

    def _enter(self, entry: Entry, done: Mapping[CellName, Cell], changes: _Changes) -> Entered:
        lease, number = entry.lease, entry.lease.token
        mine = [self._taken[slot.name].get(number) for slot in entry.slots]
        if all(place is not None and place.owner_token == lease.owner_token for place in mine):
            # The entry was repeated because its answer was lost.
            return Entered(outcome=EntryOutcome.ENTERED, fence=max(place.fence for place in mine if place is not None))
        spared = [slot for slot in entry.slots if slot.unless in done]
        # A job that was promoted in one slot does not wait for jobs promoted in another, which may be waiting for it.
        is_promoted = any(place is not None for place in mine)
        full = next((slot for slot in entry.slots if self._is_full(slot, number, is_promoted=is_promoted)), None)
        if not spared and full is None:
            return Entered(outcome=EntryOutcome.ENTERED, fence=self._take(entry, changes))
        for slot in entry.slots:
            if self._taken[slot.name].pop(number, None) is not None:
                changes.freed.append((slot.name, number))
        if full is not None and not spared:
            changes.blocked.append(Waiter(full.name, number, lease.queue, full.size))
            return Entered(outcome=EntryOutcome.BLOCKED)
        changes.finished.update(slot.name for slot in spared)
        cell = next(done[slot.unless] for slot in spared if slot.unless is not None)
        return Entered(outcome=EntryOutcome.SPARED, cell=cell)

    def _take(self, entry: Entry, changes: _Changes) -> int:
        """Take a place in every slot. Returns the fence number, which is greater than the last one of each slot."""
        fence = max(self._rows.now_us, *(self._slots[slot.name].fence + 1 for slot in entry.slots))
        for slot in entry.slots:
            place = Place(slot.name, entry.lease.token, entry.lease.queue, entry.lease.owner_token, fence)
            changes.taken.append(place)
            self._taken[slot.name][place.number] = place
            self._slots[slot.name] = self._slots[slot.name]._replace(fence=fence)
        return fence

    def leave(self, settlements: Sequence[Settlement]) -> int:
        """Let the jobs of settlements that were just applied leave their slots. A job that was returned before it
        started keeps its turn. Returns how many jobs were promoted.
        """
        left = [(name, one.lease.token, keeps_turn(one)) for one in settlements for name in one.leaves]
        if freed := [(name, number) for name, number, keeps in left if not keeps]:
            self._rows.free(freed)
        if reserved := [(name, number) for name, number, keeps in left if keeps]:
            self._rows.reserve(reserved, self._rows.now_us + duration_us(PROMOTION_S))
        if not left:
            return 0
        self._read()
        return self._promote(Counter(name for name, _, _ in left))

    def promote(self) -> int:
        """Promote as many waiting jobs as there are free places, and return how many."""
        self._read()
        self._open()
        return self._promote(dict.fromkeys(self._names, MAX_PROMOTIONS))

    def _open(self) -> None:
        """Clear the closing time of slots whose cooldown has expired, so that `repair` does not find them again."""
        opened = {
            name: row._replace(closed_until_us=0)
            for name, row in self._slots.items()
            if 0 < row.closed_until_us <= self._rows.now_us
        }
        if opened:
            self._slots |= opened
            self._rows.resize(opened)

    def resize(self, resizes: Sequence[Resize]) -> int:
        """Change the sizes of these slots, and promote the jobs that have a place now. Returns how many."""
        for one in resizes:
            closed_until_us = self._rows.now_us + duration_us(one.closed_for) if one.closed_for else 0
            row = self._slots[one.slot]._replace(size=one.size, closed_until_us=closed_until_us)
            self._slots[one.slot] = row
        self._rows.resize({one.slot: self._slots[one.slot] for one in resizes})
        return self.promote()

    def _read(self) -> None:
        self._taken = {name: {} for name in self._names}
        for place in self._rows.places(self._names):
            self._taken[place.slot][place.number] = place

    def _is_full(self, slot: Slot, number: JobNumber, *, is_promoted: bool) -> bool:
        """Whether there is no place for this job. A new job cannot take the places of recently promoted ones."""
        others = [
            place
            for place in self._taken[slot.name].values()
            if place.number != number
            and (place.owner_token is not None or (not is_promoted and self._is_recent(place)))
        ]
        return len(others) >= self._size(slot.name, slot.size)

    def _is_recent(self, promotion: Place) -> bool:
        # If it would expire later than is possible, its row is damaged or the clock was set back.
        return 0 < promotion.until_us - self._rows.now_us <= duration_us(PROMOTION_S)

    def _size(self, name: str, size: int) -> int:
        """The current size of a slot: 0 while it is closed, else the one that was set, or the one in the message."""
        row = self._slots[name]
        if row.closed_until_us > self._rows.now_us:
            return 0
        return size if row.size is None else row.size

    def _promote(self, freed: Mapping[str, int], finished: Collection[str] = ()) -> int:
        """Promote the best jobs of each queue, because a paused queue must not hold up the others. `freed` has the
        number of places that became free in each slot: once that many jobs of a queue are promoted, there are no others
        to find. If the work of a slot is finished, all jobs that wait for it are promoted, since none of them has
        to run.
        """
        names = sorted(freed)
        missing = {pair: freed[pair[0]] for pair in (self._rows.queues(names) if names else ())}
        until_us = self._rows.now_us + duration_us(PROMOTION_S)
        promoted = tried = 0
        while missing and tried < MAX_PROMOTIONS:
            crowds = [self._crowd(*pair, is_finished=pair[0] in finished) for pair in missing]
            found = self._rows.best(crowds, PROMOTE_AT_ONCE)
            before = {(one.slot, one.number): self._taken[one.slot].get(one.number) for one in found}
            chosen = [waiter for waiter in found if self._reserve(waiter, until_us, waiter.slot in finished)]
            really: set[JobNumber] = self._rows.promote(chosen, until_us) if chosen else set()
            promoted += len(really)
            tried += len(chosen)
            for waiter in chosen:
                if waiter.number not in really:
                    # Its row was stale. If it has a place by now, that place is still valid.
                    self._restore(waiter, before[waiter.slot, waiter.number])
            missing = _still_missing(missing, found, chosen, really)
        return promoted

    def _crowd(self, name: str, queue: str, *, is_finished: bool) -> Crowd:
        ahead = self._ahead(name, queue)
        size = self._slots[name].size
        # If the sizes in the messages do not matter, the first jobs are the best.
        return Crowd(name, queue, 0 if is_finished or (size is not None and size > ahead) else ahead)

    def _ahead(self, name: str, queue: str) -> int:
        """The number of places that are taken before those of the jobs of this queue."""
        return sum(one.owner_token is not None or one.queue == queue for one in self._taken[name].values())

    def _has_place(self, waiter: Waiter) -> bool:
        return self._ahead(waiter.slot, waiter.queue) < self._size(waiter.slot, waiter.size)

    def _reserve(self, waiter: Waiter, until_us: int, is_finished: bool) -> bool:
        """Reserve a place for a waiting job, if there is one."""
        if not self._has_place(waiter) and not is_finished:
            return False
        self._taken[waiter.slot][waiter.number] = Place(waiter.slot, waiter.number, waiter.queue, until_us=until_us)
        return True

    def _restore(self, waiter: Waiter, place: Place | None) -> None:
        """Undo the reservation for a job that does not wait."""
        taken = self._taken[waiter.slot]
        if place is None:
            del taken[waiter.number]
        else:
            taken[waiter.number] = place


def _still_missing(
    missing: Mapping[tuple[str, str], int],
    found: Sequence[Waiter],
    chosen: Sequence[Waiter],
    really: Collection[JobNumber],
) -> dict[tuple[str, str], int]:
    """The (slot, queue) pairs in which more jobs may have a place, and the number of places left: all jobs found were
    chosen, or fewer were promoted than places became free, because rows were stale or because of different sizes.
    """
    each_found = Counter((one.slot, one.queue) for one in found)
    each_chosen = Counter((one.slot, one.queue) for one in chosen)
    stale = Counter((one.slot, one.queue) for one in chosen if one.number not in really)
    left = {pair: number - each_chosen[pair] + stale[pair] for pair, number in missing.items()}
    return {
        pair: number
        for pair, number in left.items()
        if each_chosen[pair] == PROMOTE_AT_ONCE
        or (number > 0 and each_chosen[pair] and (stale[pair] or each_found[pair] == PROMOTE_AT_ONCE))
    }


def keeps_turn(settlement: Settlement) -> bool:
    """Whether the job was returned before it started, to be claimed again at once."""
    return isinstance(settlement, Release) and settlement.unstarted and not settlement.delay


def slot_names(entries: Iterable[Entry]) -> set[str]:
    """The slots that these entries ask for."""
    return {slot.name for entry in entries for slot in entry.slots}


def resized_slots(resizes: Iterable[Resize]) -> set[str]:
    """The slots whose sizes these change."""
    return {one.slot for one in resizes}


def left_slots(settlements: Iterable[Settlement]) -> set[str]:
    """The slots that these settlements leave."""
    return {name for one in settlements for name in one.leaves}
