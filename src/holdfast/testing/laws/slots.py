"""Slots: never more holders than places, no place without a live lease, and no job that waits forever."""

import pytest
from msgspec.structs import replace

from holdfast.errors import LeaseLost
from holdfast.queues.contract import PROMOTION_S, Engine, LeasePolicy, new_owner_token, new_session
from holdfast.testing.lab import LEASE_S, EnvelopeOptions, Lab
from holdfast.testing.laws.racing import at_once
from holdfast.values import (
    DEFAULT_QUEUE,
    Abandon,
    Ack,
    CancelAnswer,
    CancelJob,
    DeadReason,
    Entered,
    Entry,
    EntryOutcome,
    JobFilter,
    JobLease,
    JobState,
    LeaseState,
    Nack,
    Put,
    Release,
    Settlement,
    Slot,
)

ENTERED, BLOCKED, SPARED, LOST = EntryOutcome
KEY = Slot(name="key:a")
CROWD = 4
MANY_WAITERS = 40
UNATTENDED_S = 20
DONE = ("done", "a")
GUARDED = Slot(name="idem:a", unless=DONE)


def enter(lab: Lab, lease: JobLease, *slots: Slot) -> Entered:
    """The answer to one entry."""
    [answer] = lab.engine.enter([Entry(lease=lease, slots=slots or (KEY,))])
    return answer


def hold(lab: Lab, id: str, *slots: Slot, queue: str = DEFAULT_QUEUE) -> JobLease:
    """Store a job, claim it and let it enter, which must succeed."""
    lab.put(id, queue=queue)
    lease = lab.take(id, queue=queue)
    assert enter(lab, lease, *slots).outcome is ENTERED
    return lease


def block(lab: Lab, *ids: str, slot: Slot = KEY, queue: str = DEFAULT_QUEUE, priority: int = 5) -> None:
    """Store these jobs and claim them while the slot is full, so that they are blocked."""
    lab.put(*ids, queue=queue, priority=priority)
    leases = lab.claim(len(ids), queue=queue)
    assert sorted(lease.id for lease in leases) == sorted(ids)
    answers = lab.engine.enter([Entry(lease=lease, slots=(slot,)) for lease in leases])
    assert {answer.outcome for answer in answers} == {BLOCKED}


def leave(lab: Lab, lease: JobLease, *slots: Slot) -> None:
    """Complete a job, which leaves its slots."""
    names = tuple(slot.name for slot in slots or (KEY,))
    assert lab.engine.settle([Ack(lease=lease, record=lab.record(), leaves=names)]) == [True]


class SlotLaws:
    """The guarantees of `enter`, `leaves` and `repair`."""

    def test_a_job_that_finds_its_slot_full_is_blocked_at_no_cost(self, lab: Lab) -> None:
        hold(lab, "first")
        block(lab, "second")
        view = lab.view("second")
        assert (view.state, view.attempts, view.crashes) == (JobState.BLOCKED, 0, 0)
        assert (view.blocked_on, view.blocked_since) == (KEY.name, lab.now())
        assert lab.history("second").attempts == ()
        assert lab.claim() == []
        assert lab.engine.counts()[DEFAULT_QUEUE] == {JobState.PROCESSING: 1, JobState.BLOCKED: 1}
        assert lab.ids(JobFilter(states=(JobState.BLOCKED,))) == ["second"]

    def test_other_slots_and_jobs_without_slots_are_not_affected(self, lab: Lab) -> None:
        hold(lab, "first")
        hold(lab, "other", Slot(name="key:b"))
        lab.put("plain")
        assert lab.engine.ack(lab.take("plain"))

    def test_as_many_jobs_enter_as_the_slot_has_places(self, lab: Lab) -> None:
        wide = Slot(name="key:wide", size=3)
        lab.put("a", "b", "c", "d", "e")
        leases = lab.claim()
        answers = lab.engine.enter([Entry(lease=lease, slots=(wide,)) for lease in leases])
        assert [answer.outcome for answer in answers] == [ENTERED] * 3 + [BLOCKED] * 2
        leave(lab, leases[1], wide)
        assert [lease.id for lease in lab.claim()] == ["d"]

    def test_leaving_promotes_the_next_job_in_the_same_commit(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        end = Ack(lease=first, record=lab.record(), leaves=(KEY.name,))
        answers, leases = lab.engine.exchange([end], DEFAULT_QUEUE, 10, owner_token=new_owner_token())
        assert answers == [True]
        assert [lease.id for lease in leases] == ["second"]
        assert enter(lab, leases[0]).outcome is ENTERED
        leave(lab, leases[0])
        assert enter(lab, lab.take("third")).outcome is ENTERED

    def test_every_verdict_leaves(self, lab: Lab) -> None:
        lab.put("nack", "release", "abandon", "cancel")
        slots = {lease: Slot(name=f"key:{lease.id}") for lease in lab.claim()}
        nack, release, abandon, cancel = slots
        for lease, slot in slots.items():
            assert enter(lab, lease, slot).outcome is ENTERED
            block(lab, f"after-{lease.id}", slot=slot)
        ends: list[Settlement] = [
            Nack(lease=nack, delay=60, leaves=(slots[nack].name,)),
            Release(lease=release, delay=60, leaves=(slots[release].name,)),
            Abandon(lease=abandon, reason=DeadReason.FAILED, leaves=(slots[abandon].name,)),
            CancelJob(lease=cancel, leaves=(slots[cancel].name,)),
        ]
        assert lab.engine.settle(ends) == [True] * 4
        ids = sorted(lease.id for lease in lab.claim())
        assert ids == ["after-abandon", "after-cancel", "after-nack", "after-release"]

    def test_the_best_waiting_job_is_promoted(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "low", priority=1)
        lab.advance(1)
        block(lab, "high", priority=9)
        block(lab, "a-later", "b-later", priority=1)
        leave(lab, first)
        for id in ("high", "low", "a-later", "b-later"):
            lease = lab.take(id)
            assert enter(lab, lease).outcome is ENTERED
            leave(lab, lease)

    def test_a_newcomer_does_not_overtake_a_promoted_job(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second")
        leave(lab, first)
        lab.put("newcomer", priority=9)
        assert enter(lab, lab.take("newcomer")).outcome is BLOCKED
        second = lab.take("second")
        assert enter(lab, second).outcome is ENTERED
        leave(lab, second)
        assert enter(lab, lab.take("newcomer")).outcome is ENTERED

    def test_each_of_many_jobs_is_claimed_at_most_twice(self, lab: Lab) -> None:
        first = hold(lab, "first")
        ids = [f"job{number:02}" for number in range(MANY_WAITERS)]
        block(lab, *ids)
        leave(lab, first)
        order: list[str] = []
        while leases := lab.claim():
            [lease] = leases
            assert enter(lab, lease).outcome is ENTERED
            order.append(lease.id)
            leave(lab, lease)
        assert order == ids
        assert {lab.view(id).deliveries for id in ids} == {2}

    def test_a_paused_queue_does_not_keep_the_others_waiting(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "paused", queue="slow", priority=9)
        block(lab, "second")
        lab.engine.pause("slow")
        leave(lab, first)
        second = lab.take("second")
        assert enter(lab, second).outcome is ENTERED
        leave(lab, second)
        lab.engine.resume("slow")
        assert enter(lab, lab.take("paused", queue="slow")).outcome is ENTERED

    def test_a_promoted_job_of_a_paused_queue_does_not_delay_a_new_one(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "paused", queue="slow")
        lab.engine.pause("slow")
        leave(lab, first)
        block(lab, "newcomer")
        newcomer = lab.take("newcomer")
        assert enter(lab, newcomer).outcome is ENTERED
        leave(lab, newcomer)
        lab.engine.resume("slow")
        assert enter(lab, lab.take("paused", queue="slow")).outcome is ENTERED

    def test_of_jobs_promoted_in_two_queues_one_enters(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "mail", queue="mail")
        block(lab, "second")
        leave(lab, first)
        second, mail = lab.take("second"), lab.take("mail", queue="mail")
        assert enter(lab, second).outcome is ENTERED
        assert enter(lab, mail).outcome is BLOCKED
        leave(lab, second)
        assert enter(lab, lab.take("mail", queue="mail")).outcome is ENTERED

    def test_two_slots_are_taken_together_or_not_at_all(self, lab: Lab) -> None:
        other = Slot(name="key:b")
        first = hold(lab, "first", other)
        lab.put("both")
        assert enter(lab, lab.take("both"), KEY, other).outcome is BLOCKED
        assert lab.view("both").blocked_on == other.name
        free = hold(lab, "free", KEY)
        leave(lab, free, KEY)
        leave(lab, first, other)
        both = lab.take("both")
        assert enter(lab, both, KEY, other).outcome is ENTERED
        block(lab, "third", slot=KEY)
        block(lab, "fourth", slot=other)
        leave(lab, both, KEY, other)
        assert sorted(lease.id for lease in lab.claim()) == ["fourth", "third"]

    def test_a_promoted_job_that_is_blocked_elsewhere_passes_the_slot_on(self, lab: Lab) -> None:
        other = Slot(name="key:b")
        first = hold(lab, "first", KEY)
        hold(lab, "blocker", other)
        lab.put("both")
        assert enter(lab, lab.take("both"), KEY, other).outcome is BLOCKED
        block(lab, "next")
        leave(lab, first, KEY)
        assert enter(lab, lab.take("both"), KEY, other).outcome is BLOCKED
        assert lab.view("both").blocked_on == other.name
        assert enter(lab, lab.take("next"), KEY).outcome is ENTERED

    def test_jobs_promoted_in_two_slots_do_not_keep_each_other_waiting(self, lab: Lab) -> None:
        other = Slot(name="key:b")
        first = hold(lab, "first", KEY, other)
        slots = {"a": (KEY, other), "b": (other, KEY), "c": (KEY, other), "d": (other, KEY)}
        for id, asked in slots.items():
            lab.put(id)
            assert enter(lab, lab.take(id), *asked).outcome is BLOCKED
        leave(lab, first, KEY, other)
        order: list[str] = []
        for _ in slots:
            [entered] = [one for one in lab.claim() if enter(lab, one, *slots[one.id]).outcome is ENTERED]
            leave(lab, entered, KEY, other)
            order.append(entered.id)
        assert order == sorted(slots)

    def test_fences_grow_from_holder_to_holder(self, lab: Lab) -> None:
        other = Slot(name="key:b")
        fences: list[int] = []
        for slots in ((KEY,), (other,), (KEY, other), (KEY,), (other,)):
            lab.put("job" + str(len(fences)))
            [lease] = lab.claim()
            fences.append(enter(lab, lease, *slots).fence)
            leave(lab, lease, *slots)
        lab.set_back(600)
        lab.put("later")
        fences.append(enter(lab, lab.take("later"), KEY).fence)
        keyed, others = [fences[at] for at in (0, 2, 3, 5)], [fences[at] for at in (1, 2, 4)]
        assert keyed == sorted(set(keyed))
        assert others == sorted(set(others))

    def test_repeating_an_entry_returns_the_same_fence(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        answer = enter(lab, lease)
        lab.advance(1)
        assert enter(lab, lease) == answer
        block(lab, "b")

    def test_repeating_an_entry_that_was_blocked_changes_nothing(self, lab: Lab) -> None:
        hold(lab, "first")
        lab.put("second")
        lease = lab.take("second")
        assert enter(lab, lease).outcome is BLOCKED
        with lab.unchanged():
            assert enter(lab, lease).outcome is LOST
            assert not lab.engine.ack(lease)
            assert lab.engine.renew_many([lease]) == [LeaseState.LOST]

    def test_a_job_without_a_lease_cannot_enter(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert enter(lab, replace(lease, owner_token=new_owner_token())).outcome is LOST
        lab.advance(LEASE_S)
        assert enter(lab, lease).outcome is LOST
        hold_again = lab.engine.reap_expired()
        assert hold_again == 1
        assert enter(lab, lab.take("a")).outcome is ENTERED

    def test_a_holder_whose_lease_expired_neither_keeps_nor_frees_the_slot(self, lab: Lab) -> None:
        stale = hold(lab, "first")
        block(lab, "second")
        lab.advance(LEASE_S)
        lab.put("third")
        third = lab.take("third")
        assert enter(lab, third).outcome is ENTERED
        with lab.unchanged():
            assert lab.engine.settle([Ack(lease=stale, record=lab.record(), leaves=(KEY.name,))]) == [False]
            assert lab.claim(queue="none") == []
        lab.put("fourth")
        fourth = next(lease for lease in lab.claim() if lease.id == "fourth")
        assert enter(lab, fourth).outcome is BLOCKED

    def test_a_dead_holder_is_noticed_by_the_reaper(self, lab: Lab) -> None:
        hold(lab, "first")
        block(lab, "second", priority=9)
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        assert enter(lab, lab.take("second")).outcome is ENTERED

    def test_a_dead_session_passes_its_slots_on(self, lab: Lab) -> None:
        session = new_session()
        lab.put("first")
        [lease] = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=new_owner_token(session))
        assert enter(lab, lease).outcome is ENTERED
        block(lab, "second", priority=9)
        lab.engine.expire_leases([session])
        lab.engine.reap_expired()
        assert enter(lab, lab.take("second")).outcome is ENTERED

    def test_repair_finishes_what_a_reaper_left_undone(self, lab: Lab) -> None:
        hold(lab, "first")
        block(lab, "second", priority=9)
        lab.advance(LEASE_S)
        assert lab.engine.jobs.reap_expired() == 1
        assert lab.engine.repair() == 1
        assert lab.engine.repair() == 0
        assert enter(lab, lab.take("second")).outcome is ENTERED

    def test_repair_notices_a_dead_holder_though_another_one_enters_again(self, lab: Lab) -> None:
        wide = Slot(name="key:wide", size=2)
        hold(lab, "first", wide)
        lab.advance(LEASE_S / 2)
        second = hold(lab, "second", wide)
        block(lab, "third", slot=wide)
        lab.advance(LEASE_S / 2)
        assert enter(lab, second, wide).outcome is ENTERED
        lab.engine.records.delete_unused()
        assert lab.engine.repair() == 1
        assert enter(lab, lab.take("third"), wide).outcome is ENTERED

    def test_a_promoted_job_that_was_cancelled_passes_the_slot_on(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        leave(lab, first)
        assert lab.engine.cancel("second") is CancelAnswer.CANCELLED
        assert lab.engine.repair() == 1
        assert enter(lab, lab.take("third")).outcome is ENTERED

    def test_a_promoted_job_that_was_rescheduled_passes_the_slot_on(self, lab: Lab) -> None:
        for number, options in enumerate((EnvelopeOptions(delay=60), EnvelopeOptions(queue="other"))):
            key = Slot(name=f"key:{number}")
            first = hold(lab, f"first-{number}", key)
            block(lab, f"second-{number}", f"third-{number}", slot=key)
            leave(lab, first, key)
            assert lab.engine.reschedule([lab.envelope(f"second-{number}", **options)]) == [True]
            assert lab.engine.repair() == 1
            assert enter(lab, lab.take(f"third-{number}"), key).outcome is ENTERED

    def test_jobs_that_no_worker_claims_for_long_are_claimed_at_most_twice(self, lab: Lab) -> None:
        first = hold(lab, "first")
        ids = [f"job{number}" for number in range(9)]
        block(lab, *ids)
        leave(lab, first)
        for id in ids:
            for _ in range(int(UNATTENDED_S / PROMOTION_S)):
                assert lab.engine.repair() == 0
                lab.advance(PROMOTION_S)
            [lease] = lab.claim()
            assert lease.id == id
            assert enter(lab, lease).outcome is ENTERED
            leave(lab, lease)
        assert {lab.view(id).deliveries for id in ids} == {2}

    def test_a_promoted_job_that_enters_late_does_not_lose_its_place(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        leave(lab, first)
        second = lab.take("second")
        lab.advance(PROMOTION_S)
        assert lab.engine.repair() == 0
        assert enter(lab, second).outcome is ENTERED
        assert lab.claim() == []

    def test_a_promoted_job_that_dies_before_it_enters_passes_the_slot_on(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        leave(lab, first)
        lab.take("second")
        lab.advance(LEASE_S)
        assert lab.engine.repair() == 1
        assert enter(lab, lab.take("third")).outcome is ENTERED

    def test_a_job_that_is_returned_unstarted_keeps_its_turn(self, lab: Lab) -> None:
        wide = Slot(name="key:wide", size=2)
        first, other = hold(lab, "first", wide), hold(lab, "other", wide)
        block(lab, "second", "third", "fourth", slot=wide)
        leave(lab, first, wide)
        second = lab.take("second")
        assert enter(lab, second, wide).outcome is ENTERED
        for turn in range(3):
            returned = Release(lease=second, unstarted=True, record=lab.record(), leaves=(wide.name,))
            assert lab.engine.settle([returned]) == [True]
            lab.advance(1)
            lab.put(f"newcomer{turn}")
            assert lab.engine.repair() == 0
            second, newcomer = lab.claim()
            assert second.id == "second"
            assert enter(lab, newcomer, wide).outcome is BLOCKED
            assert turn == 1 or enter(lab, second, wide).outcome is ENTERED  # or it is returned before it enters
        leave(lab, other, wide)
        assert enter(lab, lab.take("third"), wide).outcome is ENTERED
        leave(lab, second, wide)
        assert enter(lab, lab.take("fourth"), wide).outcome is ENTERED

    def test_a_job_that_is_returned_unstarted_but_not_due_passes_the_slot_on(self, lab: Lab) -> None:
        requested, delayed = hold(lab, "requested"), hold(lab, "delayed", Slot(name="key:b"))
        block(lab, "after-requested")
        block(lab, "after-delayed", slot=Slot(name="key:b"))
        assert lab.engine.cancel("requested") is CancelAnswer.REQUESTED
        ends = [
            Release(lease=requested, unstarted=True, leaves=(KEY.name,)),
            Release(lease=delayed, unstarted=True, delay=60, leaves=("key:b",)),
        ]
        assert lab.engine.settle(ends) == [True, True]
        assert lab.view("requested").state is JobState.CANCELLED
        assert sorted(lease.id for lease in lab.claim()) == ["after-delayed", "after-requested"]

    def test_a_job_that_is_to_be_cancelled_is_cancelled_instead_of_blocked(self, lab: Lab) -> None:
        first = hold(lab, "first")
        lab.put("second", "third", "fourth")
        leases = lab.claim()
        assert lab.engine.cancel("second", "not needed") is CancelAnswer.REQUESTED
        assert lab.engine.cancel("third") is CancelAnswer.REQUESTED
        answers = lab.engine.enter([Entry(lease=lease, slots=(KEY,)) for lease in leases])
        assert {answer.outcome for answer in answers} == {BLOCKED}
        second, third = lab.view("second"), lab.view("third")
        assert (second.state, second.cancel_reason, second.finished_at) == (JobState.CANCELLED, "not needed", lab.now())
        assert (third.state, third.cancel_reason) == (JobState.CANCELLED, "")
        assert (second.attempts, second.crashes, second.deliveries) == (0, 0, 1)
        assert (second.cancel_requested, second.blocked_on, second.lease_until) == (False, None, None)
        assert lab.engine.counts()[DEFAULT_QUEUE] == {
            JobState.PROCESSING: 1,
            JobState.BLOCKED: 1,
            JobState.CANCELLED: 2,
        }
        assert [one.waiting for one in lab.engine.slots()] == [1]
        assert not lab.engine.ack(leases[0])
        leave(lab, first)
        assert [lease.id for lease in lab.claim()] == ["fourth"]

    def test_a_job_with_a_larger_limit_does_not_wait_for_those_with_a_smaller_one(self, lab: Lab) -> None:
        narrow, wide = replace(KEY, size=2), replace(KEY, size=5)
        first, *_ = (hold(lab, f"holder{number}", wide) for number in range(5))
        for numbers in (range(10), range(10, 20)):
            block(lab, *(f"narrow{number:02}" for number in numbers), slot=narrow)
        block(lab, "wide0", "wide1", "wide2", "wide3", "wide4", slot=wide)
        assert lab.claim() == []
        lab.advance(LEASE_S / 2)
        leave(lab, first)
        assert enter(lab, lab.take("wide0"), wide).outcome is ENTERED
        lab.advance(LEASE_S / 2)
        assert lab.engine.reap_expired() == 4
        left = [f"narrow{number:02}" for number in range(1, 20)]
        assert sorted(lab.ids(JobFilter(states=(JobState.BLOCKED,)))) == [*left, "wide4"]

    def test_a_promoted_job_that_is_refused_passes_the_slot_on_at_once(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        leave(lab, first)
        refused = Abandon(lease=lab.take("second"), reason=DeadReason.HANDLER_FORBIDDEN, leaves=(KEY.name,))
        assert lab.engine.settle([refused]) == [True]
        assert enter(lab, lab.take("third")).outcome is ENTERED

    def test_a_promotion_expires(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second")
        leave(lab, first)
        lab.advance(PROMOTION_S)
        lab.put("third", priority=9)
        third = lab.take("third")
        assert enter(lab, third).outcome is ENTERED
        assert enter(lab, lab.take("second")).outcome is BLOCKED
        leave(lab, third)
        assert enter(lab, lab.take("second")).outcome is ENTERED

    def test_a_blocked_job_can_be_cancelled_and_does_not_stop_the_others(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second", "third")
        assert lab.engine.cancel("second", "not needed") is CancelAnswer.CANCELLED
        assert (lab.view("second").state, lab.view("second").blocked_on) == (JobState.CANCELLED, None)
        leave(lab, first)
        assert [lease.id for lease in lab.claim()] == ["third"]
        assert lab.view("second").state is JobState.CANCELLED

    def test_a_blocked_job_that_was_replayed_waits_only_once(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second")
        lab.engine.cancel("second")
        lab.engine.replay("second")
        assert enter(lab, lab.take("second")).outcome is BLOCKED
        leave(lab, first)
        second = lab.take("second")
        assert enter(lab, second).outcome is ENTERED
        leave(lab, second)
        assert lab.engine.repair() == 0
        assert lab.view("second").state is JobState.COMPLETED

    def test_a_blocked_job_that_was_rescheduled_reserves_nothing(self, lab: Lab) -> None:
        first = hold(lab, "first")
        block(lab, "second")
        assert lab.engine.reschedule([lab.envelope("second", payload="of another kind")]) == [True]
        leave(lab, first)
        lab.advance(1)
        lab.put("third")
        second, third = lab.claim()
        assert (second.id, third.id) == ("second", "third")
        assert enter(lab, third).outcome is ENTERED

    def test_a_refused_settlement_leaves_nothing(self, lab: Lab) -> None:
        lease = hold(lab, "first")
        block(lab, "second")
        forged = Ack(lease=replace(lease, owner_token=new_owner_token()), leaves=(KEY.name,))
        with lab.unchanged():
            assert lab.engine.settle([forged]) == [False]
        assert lab.engine.repair() == 0
        assert lab.claim() == []

    def test_a_repeated_settlement_leaves_once(self, lab: Lab) -> None:
        end = Ack(lease=hold(lab, "first"), record=lab.record(), leaves=(KEY.name,))
        block(lab, "second", "third")
        assert lab.engine.settle([end]) == [True]
        second = lab.take("second")
        assert enter(lab, second).outcome is ENTERED
        assert lab.engine.settle([end]) == [True]
        assert lab.claim() == []
        assert lab.view("third").state is JobState.BLOCKED

    def test_done_work_spares_the_job_and_all_that_wait(self, lab: Lab) -> None:
        first = hold(lab, "first", GUARDED)
        block(lab, "second", "third", "fourth", slot=GUARDED)
        mark = Put(kind=DONE[0], key=DONE[1], value=b"result", ttl=60)
        end = Ack(lease=first, record=lab.record(), leaves=(GUARDED.name,), writes=(mark,))
        assert lab.engine.settle([end]) == [True]
        answer = enter(lab, lab.take("second"), GUARDED)
        assert (answer.outcome, answer.cell and answer.cell.value) == (SPARED, b"result")
        leases = lab.claim()
        assert [lease.id for lease in leases] == ["third", "fourth"]
        answers = lab.engine.enter([Entry(lease=lease, slots=(GUARDED,)) for lease in leases])
        assert {answer.outcome for answer in answers} == {SPARED}
        assert lab.view("second").state is JobState.PROCESSING

    def test_expired_marks_spare_nothing(self, lab: Lab) -> None:
        first = hold(lab, "first", GUARDED)
        mark = Put(kind=DONE[0], key=DONE[1], ttl=60)
        lab.engine.settle([Ack(lease=first, record=lab.record(), leaves=(GUARDED.name,), writes=(mark,))])
        lab.advance(60)
        hold(lab, "second", GUARDED)

    def test_a_transaction_leaves_with_its_commit(self, lab: Lab) -> None:
        if not lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine has no transactions for handlers")
        lease = hold(lab, "first", GUARDED)
        block(lab, "second", slot=GUARDED)
        mark = Put(kind=DONE[0], key=DONE[1], value=b"result", ttl=60)
        transaction = lab.engine.transaction("first", lease.delivery)
        transaction.complete(lab.record(), leaves=(GUARDED.name,), writes=(mark,))
        assert enter(lab, lab.take("second"), GUARDED).outcome is SPARED

    def test_a_transaction_that_lost_its_lease_leaves_nothing(self, lab: Lab) -> None:
        if not lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine has no transactions for handlers")
        lease = hold(lab, "first")
        block(lab, "second")
        transaction = lab.engine.transaction("first", lease.delivery)
        lab.advance(LEASE_S)
        with pytest.raises(LeaseLost):
            transaction.complete(lab.record(), leaves=(KEY.name,))
        assert lab.claim() == []

    def test_slots_can_be_listed(self, lab: Lab) -> None:
        first = hold(lab, "first", KEY, Slot(name="key:b"))
        block(lab, *(f"job{number:02}" for number in range(12)))
        a, b = lab.engine.slots()
        assert (a.name, b.name) == (KEY.name, "key:b")
        [holder] = a.holders
        assert (holder.job_id, holder.queue, holder.since) == ("first", DEFAULT_QUEUE, lab.now())
        assert holder.fence == b.holders[0].fence
        assert (a.waiting, b.waiting) == (12, 0)
        assert [waiter.job_id for waiter in a.waiters] == [f"job{number:02}" for number in range(10)]
        assert (a.waiters[0].queue, a.waiters[0].since) == (DEFAULT_QUEUE, lab.now())
        assert lab.engine.slots(["key:b"]) == [b]
        assert [one.name for one in lab.engine.slots(limit=1)] == [KEY.name]
        assert [one.name for one in lab.engine.slots(after=KEY.name)] == ["key:b"]
        leave(lab, first, KEY, Slot(name="key:b"))
        [left] = lab.engine.slots()
        assert [(one.job_id, one.fence) for one in left.holders] == [("job00", None)]
        assert left.waiting == 11

    def test_unused_slots_are_deleted(self, lab: Lab) -> None:
        first = hold(lab, "first")
        fence = enter(lab, first).fence
        leave(lab, first)
        hold(lab, "second", Slot(name="key:b"))
        lab.advance(3601)
        lab.engine.reap_expired()
        lab.engine.prune()
        assert lab.engine.slots() == []
        assert lab.engine.records.delete_unused() == 0
        answer = enter(lab, lab.take("second"))
        assert answer.outcome is ENTERED
        assert answer.fence > fence

    def test_racing_jobs_never_exceed_the_places(self, lab: Lab) -> None:
        wide = Slot(name="key:wide", size=2)
        leave(lab, hold(lab, "before", wide), wide)  # from now on, the slot exists
        ids = [f"job{number:02}" for number in range(24)]
        lab.put(*ids)
        most: list[int] = []

        def work(engine: Engine, _: int) -> list[str]:
            done: list[str] = []
            for _ in range(200):
                engine.repair()
                leases = engine.claim(DEFAULT_QUEUE, 2, owner_token=new_owner_token())
                entered = engine.enter([Entry(lease=lease, slots=(wide,)) for lease in leases])
                mine = [one for one, answer in zip(leases, entered, strict=True) if answer.outcome is ENTERED]
                fences = [holder.fence for slot in engine.slots([wide.name]) for holder in slot.holders]
                most.append(sum(fence is not None for fence in fences))
                engine.settle([Ack(lease=one, record=lab.record(), leaves=(wide.name,)) for one in mine])
                done += [lease.id for lease in mine]
                if not leases and engine.counts().get(DEFAULT_QUEUE) == {JobState.COMPLETED: len(ids) + 1}:
                    break
            return done

        done = [id for mine in at_once(lab, CROWD, work) for id in mine]
        assert sorted(done) == ids
        assert max(most) == wide.size

    def test_jobs_of_two_slots_in_opposite_orders_do_not_deadlock(self, lab: Lab) -> None:
        lab.put(*(f"job{number:02}" for number in range(24)))
        slots = (Slot(name="key:a", size=2), Slot(name="key:b", size=2))

        def work(engine: Engine, number: int) -> int:
            mine = slots if number % 2 else slots[::-1]
            done = 0
            for _ in range(200):
                engine.repair()
                leases = engine.claim(DEFAULT_QUEUE, 2, owner_token=new_owner_token())
                entered = engine.enter([Entry(lease=lease, slots=mine) for lease in leases])
                ends = [
                    Ack(lease=one, record=lab.record(), leaves=tuple(slot.name for slot in mine))
                    for one, answer in zip(leases, entered, strict=True)
                    if answer.outcome is ENTERED
                ]
                done += sum(engine.settle(ends))
                if not leases and engine.counts().get(DEFAULT_QUEUE) == {JobState.COMPLETED: 24}:
                    break
            return done

        assert sum(at_once(lab, CROWD, work)) == 24

    def test_a_holder_that_crashes_too_often_frees_the_slot(self, lab: Lab) -> None:
        engine = lab.open(LeasePolicy(crash_limit=1))
        hold(lab, "first")
        block(lab, "second")
        lab.advance(LEASE_S)
        assert engine.reap_expired() == 1
        assert lab.view("first").state is JobState.DEAD
        assert enter(lab, lab.take("second")).outcome is ENTERED
