"""Resizing a slot: exactly as many jobs as fit are promoted, in the commit that also writes cells, or not at all."""

from holdfast.queues.contract import PROMOTION_S, Engine
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.testing.laws.racing import at_once
from holdfast.testing.laws.shared_state import put, read_one, written
from holdfast.testing.laws.slots import BLOCKED, ENTERED, KEY, block, enter, hold, leave
from holdfast.values import DEFAULT_QUEUE, MAX_SLOT_SIZE, JobState, Resize, Slot

WIDE = Slot(name="breaker:stripe", size=MAX_SLOT_SIZE)
RACERS = 16


def resized(lab: Lab, size: int | None, *, closed_for: float = 0.0, slot: Slot = WIDE) -> None:
    """Resize the slot."""
    assert written(lab, Resize(slot=slot.name, size=size, closed_for=closed_for)) == [0]


def waiting(lab: Lab, *ids: str, queue: str = DEFAULT_QUEUE) -> None:
    """Block these jobs on the slot, which admits no job."""
    block(lab, *ids, slot=WIDE, queue=queue)


class ResizeLaws:
    """The guarantees of `Resize`."""

    def test_a_slot_of_size_none_blocks_no_job(self, lab: Lab) -> None:
        for number in range(20):
            hold(lab, f"job{number}", WIDE)

    def test_a_slot_of_size_0_admits_no_job_and_promotes_none(self, lab: Lab) -> None:
        first = hold(lab, "first", WIDE)
        resized(lab, 0)
        waiting(lab, "second", "third")
        leave(lab, first, WIDE)
        lab.advance(PROMOTION_S)
        assert lab.engine.repair() == 0
        assert lab.claim() == []

    def test_the_stored_size_counts_not_that_of_the_message(self, lab: Lab) -> None:
        resized(lab, 2, slot=KEY)
        hold(lab, "first")
        hold(lab, "second")
        block(lab, "third")
        resized(lab, None, slot=KEY)
        assert lab.claim() == []

    def test_resizing_promotes_exactly_as_many_as_fit(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "a", "b", "c", "d")
        resized(lab, 1)
        [first] = lab.claim()
        assert first.id == "a"
        assert enter(lab, first, WIDE).outcome is ENTERED
        resized(lab, 3)
        assert [lease.id for lease in lab.claim()] == ["b", "c"]
        resized(lab, 3)
        assert lab.claim() == []

    def test_resizing_to_none_promotes_all(self, lab: Lab) -> None:
        resized(lab, 0)
        ids = [f"job{number:02}" for number in range(40)]
        for at in range(0, 40, 10):
            waiting(lab, *ids[at : at + 10])
        resized(lab, None)
        leases = lab.claim(100)
        assert sorted(lease.id for lease in leases) == ids
        assert {enter(lab, lease, WIDE).outcome for lease in leases} == {ENTERED}

    def test_a_closed_slot_admits_no_job_before_its_time(self, lab: Lab) -> None:
        resized(lab, 3, closed_for=60)
        waiting(lab, "a")
        lab.advance(60 - lab.grain_s)
        assert lab.engine.repair() == 0
        waiting(lab, "b")
        assert lab.view("a").state is JobState.BLOCKED

    def test_a_slot_that_was_closed_admits_its_size_afterwards(self, lab: Lab) -> None:
        resized(lab, 1, closed_for=60)
        waiting(lab, "a", "b")
        waiting(lab, "m", queue="mail")
        lab.advance(60 + lab.grain_s)
        lab.engine.repair()
        leases = [*lab.claim(), *lab.claim(queue="mail")]
        outcomes = [enter(lab, lease, WIDE).outcome for lease in leases]
        assert outcomes.count(ENTERED) == 1
        entered = next(lease for lease, outcome in zip(leases, outcomes, strict=True) if outcome is ENTERED)
        leave(lab, entered, WIDE)
        assert [*lab.claim(), *lab.claim(queue="mail")]

    def test_a_queue_that_nobody_works_on_does_not_keep_a_slot_closed(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "m", queue="mail")
        resized(lab, 1)
        resized(lab, 1, closed_for=60)
        waiting(lab, "a")
        lab.advance(60 + lab.grain_s)
        assert lab.engine.repair() == 1
        assert enter(lab, lab.take("a"), WIDE).outcome is ENTERED

    def test_closing_again_takes_the_place_of_a_promoted_job(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "a")
        resized(lab, 1)
        lease = lab.take("a")
        resized(lab, 1, closed_for=60)
        assert enter(lab, lease, WIDE).outcome is BLOCKED
        lab.advance(60 + lab.grain_s)
        assert lab.engine.repair() == 1
        assert enter(lab, lab.take("a"), WIDE).outcome is ENTERED

    def test_jobs_that_entered_before_the_slot_was_closed_keep_their_places(self, lab: Lab) -> None:
        first, second = hold(lab, "first", WIDE), hold(lab, "second", WIDE)
        resized(lab, 1, closed_for=LEASE_S / 4)
        waiting(lab, "third")
        leave(lab, first, WIDE)
        lab.advance(LEASE_S / 2)
        lab.engine.repair()
        assert lab.claim() == []
        leave(lab, second, WIDE)
        assert enter(lab, lab.take("third"), WIDE).outcome is ENTERED

    def test_an_unused_slot_keeps_its_size_and_its_closing_time(self, lab: Lab) -> None:
        resized(lab, 1, closed_for=10 * 86_400)
        lab.advance(9 * 86_400)
        lab.engine.records.delete_unused()
        waiting(lab, "a")
        resized(lab, 1)
        lab.advance(9 * 86_400)
        lab.engine.records.delete_unused()
        assert enter(lab, lab.take("a"), WIDE).outcome is ENTERED
        block(lab, "b", slot=WIDE)

    def test_a_fence_neither_loses_the_size_nor_is_lost_with_it(self, lab: Lab) -> None:
        resized(lab, 1)
        first = hold(lab, "first", WIDE)
        waiting(lab, "second")
        leave(lab, first, WIDE)
        second = lab.take("second")
        before = enter(lab, second, WIDE)
        resized(lab, None)
        leave(lab, second, WIDE)
        lab.put("third")
        assert enter(lab, lab.take("third"), WIDE).fence > before.fence

    def test_a_refused_write_resizes_nothing(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "a")
        with lab.unchanged():
            assert lab.engine.state.write([put("x", if_version=7), Resize(slot=WIDE.name)]) is None
            assert lab.engine.state.write([Resize(slot=WIDE.name), put("x", if_version=7)]) is None
        assert read_one(lab, "x") is None
        assert lab.engine.repair() == 0
        assert lab.claim() == []

    def test_cells_and_sizes_are_written_together(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "a")
        first, size, second = written(lab, put("x", b"1", if_version=0), Resize(slot=WIDE.name), put("y", b"2"))
        assert size == 0
        assert {cell.key: cell.version for cell in lab.engine.state.read("thing")} == {"x": first, "y": second}
        assert enter(lab, lab.take("a"), WIDE).outcome is ENTERED

    def test_of_racing_writers_one_resizes(self, lab: Lab) -> None:
        resized(lab, 0)
        waiting(lab, "a", "b", "c")
        [version] = written(lab, put("circuit"))

        def race(engine: Engine, number: int) -> bool:
            trial = put("circuit", bytes([number]), if_version=version)
            return engine.state.write([trial, Resize(slot=WIDE.name, size=1)]) is not None

        assert at_once(lab, RACERS, race).count(True) == 1
        assert [lease.id for lease in lab.claim()] == ["a"]
