"""Holding and losing a lease: renewal, reaping, the crash limit, and clocks that are wrong."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from holdfast.clock import ManualClock, from_us
from holdfast.queues.contract import LeasePolicy, new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import (
    DEFAULT_QUEUE,
    Ack,
    CancelAnswer,
    DeadReason,
    JobLease,
    JobState,
    LeaseState,
    Nack,
    Outcome,
    Release,
)

CRASH_LIMIT = 3


class RenewalLaws:
    """The guarantees of `renew`, `renew_many` and `lease_states`."""

    def test_a_renewed_lease_expires_a_full_length_from_now(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S - lab.grain_s)
        assert lab.engine.renew_many([lease]) == [LeaseState.HELD]
        lease_until = lab.view("a").lease_until
        assert lease_until is not None
        assert abs(lease_until - lab.now() - timedelta(seconds=LEASE_S)) <= timedelta(seconds=lab.grain_s)
        lab.advance(LEASE_S - lab.grain_s)
        assert lab.engine.reap_expired() == 0
        assert lab.engine.ack(lease)

    def test_a_renewed_lease_expires_if_it_is_not_renewed_again(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S / 2)
        assert lab.engine.renew_many([lease]) == [LeaseState.HELD]
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        assert not lab.engine.ack(lease)

    def test_a_renewal_does_not_change_the_length_of_a_lease(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.open(LeasePolicy(lease_s=7)).fetch(DEFAULT_QUEUE)
        assert lease is not None
        lab.advance(5)
        assert lab.engine.renew_many([lease]) == [LeaseState.HELD]
        lab.advance(7 - lab.grain_s)
        assert lab.engine.reap_expired() == 0
        lab.advance(lab.grain_s)
        assert lab.engine.reap_expired() == 1

    def test_a_job_may_run_for_many_leases(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        for _ in range(10):
            lab.advance(LEASE_S - lab.grain_s)
            renewed = lab.engine.renew(lease)
            assert renewed is not None
            lease = renewed
            assert lab.open().reap_expired() == 0
        assert lab.engine.ack(lease)
        assert (lab.view("a").deliveries, lab.view("a").crashes) == (1, 0)

    def test_renewing_changes_only_the_fence_of_a_lease(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(20)
        renewed = lab.engine.renew(lease)
        assert renewed is not None
        assert lease.fence_at + 20 <= renewed.fence_at <= lab.clock.monotonic() + LEASE_S
        assert replace(renewed, fence_at=lease.fence_at) == lease

    def test_lease_states_are_read_without_extending_a_lease(self, lab: Lab) -> None:
        lab.put("held", "cancelled", "done")
        held, cancelled, done = lab.claim()
        lab.advance(LEASE_S / 2)
        assert lab.engine.cancel("cancelled") is CancelAnswer.REQUESTED
        assert lab.engine.ack(done)
        with lab.unchanged():
            states = lab.open().lease_states([done, cancelled, held])
        assert states == [LeaseState.LOST, LeaseState.CANCEL_REQUESTED, LeaseState.HELD]
        lab.advance(LEASE_S / 2)
        assert lab.engine.lease_states([held, cancelled]) == [LeaseState.LOST, LeaseState.LOST]
        assert lab.engine.reap_expired() == 2

    def test_reading_the_state_of_no_leases_returns_nothing(self, lab: Lab) -> None:
        assert lab.engine.lease_states([]) == []

    def test_an_expired_lease_is_never_revived(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S)
        self._is_lost(lab, lease)
        assert lab.engine.reap_expired() == 1

    def test_a_reaped_lease_is_lost(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        self._is_lost(lab, lease)
        lab.take("a")
        lab.advance(1)
        self._is_lost(lab, lease)

    def test_a_settled_lease_is_lost(self, lab: Lab) -> None:
        lab.put("acked", "nacked", "released")
        acked, nacked, released = lab.claim()
        assert lab.engine.settle([Ack(lease=acked), Nack(lease=nacked), Release(lease=released)]) == [True] * 3
        for lease in (acked, nacked, released):
            self._is_lost(lab, lease)

    def test_a_forged_lease_is_lost(self, lab: Lab) -> None:
        lab.put("a", "b")
        lease, other = lab.claim()
        lab.advance(1)
        self._is_lost(lab, replace(lease, owner_token=new_owner_token()))
        self._is_lost(lab, replace(lease, id="nobody", token=-1 if isinstance(lease.token, int) else "nobody"))
        assert lab.engine.renew_many([lease, other]) == [LeaseState.HELD, LeaseState.HELD]

    def _is_lost(self, lab: Lab, lease: JobLease) -> None:
        with lab.unchanged():
            assert lab.engine.lease_states([lease]) == [LeaseState.LOST]
            assert lab.engine.renew_many([lease]) == [LeaseState.LOST]
            assert lab.engine.renew(lease) is None

    def test_many_leases_are_renewed_one_by_one(self, lab: Lab) -> None:
        lab.put("stale")
        stale = lab.take("stale")
        lab.advance(LEASE_S)
        lab.put("held", "settled", "cancelled")
        held, settled, cancelled = (lab.take(id) for id in ("held", "settled", "cancelled"))
        assert lab.engine.ack(settled)
        lab.engine.cancel("cancelled")
        lab.advance(10)
        assert lab.engine.renew_many([stale, held, settled, cancelled, held]) == [
            LeaseState.LOST,
            LeaseState.HELD,
            LeaseState.LOST,
            LeaseState.CANCEL_REQUESTED,
            LeaseState.HELD,
        ]
        lab.advance(LEASE_S - lab.grain_s)
        assert lab.engine.settle([Ack(lease=held), Ack(lease=cancelled)]) == [True, True]

    def test_renewing_nothing_changes_nothing(self, lab: Lab) -> None:
        lab.put("a")
        with lab.unchanged():
            assert lab.engine.renew_many([]) == []


class CrashLaws:
    """The engine counts deliveries without a verdict, claims such a job alone, and dead-letters it at the limit."""

    def test_the_reaper_does_not_touch_unexpired_leases(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.advance(LEASE_S - lab.grain_s)
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0
            assert lab.open().reap_expired(DEFAULT_QUEUE) == 0
        assert lab.engine.ack(lease)

    def test_the_reaper_changes_nothing_if_nothing_is_leased(self, lab: Lab) -> None:
        lab.put("waiting")
        lab.put("failed", priority=9)
        assert lab.engine.nack(lab.take("failed"))
        lab.advance(10 * LEASE_S)
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0

    def test_a_reaped_job_is_pending_with_one_crash_and_no_attempt(self, lab: Lab) -> None:
        lab.put("a")
        lab.take("a")
        lab.advance(LEASE_S)
        assert lab.open().reap_expired() == 1
        view = lab.view("a")
        assert (view.state, view.attempts, view.crashes, view.deliveries) == (JobState.PENDING, 0, 1, 1)
        assert view.lease_until is None
        assert view.due_at <= lab.now()
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0

    def test_a_failed_job_that_crashes_is_pending_with_its_attempts(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"))
        lab.let_crash("a")
        view = lab.view("a")
        assert (view.state, view.attempts, view.crashes, view.deliveries) == (JobState.PENDING, 1, 1, 2)

    def test_a_delivery_without_a_verdict_is_in_the_history(self, lab: Lab) -> None:
        lab.put("a")
        lab.let_crash("a")
        assert lab.engine.nack(lab.take("a"), record=lab.record(Outcome.FAILED))
        assert [(past.delivery, past.record.outcome) for past in lab.history("a").attempts] == [
            (1, Outcome.CRASHED),
            (2, Outcome.FAILED),
        ]

    def test_a_delivery_without_a_verdict_lasted_from_its_claim_until_it_was_reaped(self, lab: Lab) -> None:
        lab.put("a")
        claimed_at = lab.take("a").claimed_at
        lab.advance(LEASE_S + 5)
        assert lab.engine.reap_expired() == 1
        [past] = lab.history("a").attempts
        assert from_us(past.record.started_us) == claimed_at
        assert abs(from_us(past.record.ended_us) - lab.now()) <= timedelta(seconds=lab.grain_s)

    def test_the_reaper_reaps_one_queue_or_all(self, lab: Lab) -> None:
        for queue in ("mail", "slow", "third"):
            lab.put(f"in-{queue}", queue=queue)
            lab.take(f"in-{queue}", queue=queue)
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired("mail") == 1
        assert (lab.view("in-mail").crashes, lab.view("in-slow").crashes) == (1, 0)
        assert lab.engine.reap_expired() == 2

    def test_the_lease_has_the_number_of_crashes(self, lab: Lab) -> None:
        lab.put("a")
        lab.let_crash("a")
        lease = lab.take("a")
        assert (lease.crashes, lease.delivery, lease.attempts) == (1, 2, 0)

    def test_a_job_is_dead_at_the_crash_limit_and_never_delivered_again(self, lab: Lab) -> None:
        lab.put("a")
        for crashes in range(CRASH_LIMIT):
            assert lab.view("a").crashes == crashes
            lab.let_crash("a")
        view = lab.view("a")
        assert (view.state, view.dead_reason) == (JobState.DEAD, DeadReason.CRASH_LOOP)
        assert (view.attempts, view.crashes, view.deliveries) == (0, CRASH_LIMIT, CRASH_LIMIT)
        assert view.finished_at is not None
        assert view.last_error
        assert lab.outcomes("a") == [Outcome.CRASHED] * CRASH_LIMIT
        lab.advance(10 * LEASE_S)
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0
            assert lab.claim() == []

    def test_the_crash_limit_is_that_of_the_handle(self, lab: Lab) -> None:
        lab.put("a")
        lab.take("a")
        lab.advance(LEASE_S)
        assert lab.open(LeasePolicy(crash_limit=1)).reap_expired() == 1
        assert lab.view("a").dead_reason is DeadReason.CRASH_LOOP

    def test_only_consecutive_crashes_count(self, lab: Lab) -> None:
        lab.put("a")
        for _ in range(3):
            for _ in range(CRASH_LIMIT - 1):
                lab.let_crash("a")
            assert lab.engine.release(lab.take("a"))
            assert (lab.view("a").state, lab.view("a").crashes) == (JobState.PENDING, 0)

    def test_releasing_an_unstarted_job_does_not_change_its_crashes(self, lab: Lab) -> None:
        lab.put("a")
        lab.let_crash("a")
        assert lab.engine.settle([Release(lease=lab.take("a"), unstarted=True)]) == [True]
        assert (lab.view("a").state, lab.view("a").crashes) == (JobState.PENDING, 1)
        lab.let_crash("a")
        assert lab.view("a").crashes == 2
        assert lab.engine.settle([Release(lease=lab.take("a"))]) == [True]
        assert lab.view("a").crashes == 0

    def test_releases_marked_crashed_count_like_any_crash(self, lab: Lab) -> None:
        lab.put("a")
        lab.let_crash("a")
        second = Release(lease=lab.take("a"), crashed=True, record=lab.record(Outcome.CRASHED))
        assert lab.engine.settle([second]) == [True]
        assert (lab.view("a").state, lab.view("a").crashes) == (JobState.PENDING, 2)
        third = Release(lease=lab.take("a"), crashed=True, record=lab.record(Outcome.CRASHED))
        assert lab.engine.settle([third]) == [True]
        view = lab.view("a")
        assert (view.state, view.dead_reason) == (JobState.DEAD, DeadReason.CRASH_LOOP)
        assert (view.attempts, view.crashes) == (0, CRASH_LIMIT)
        assert view.finished_at is not None
        assert lab.claim() == []
        with lab.unchanged():
            assert lab.engine.settle([second, third]) == [True, True]

    def test_a_suspect_at_the_head_of_the_queue_comes_alone(self, lab: Lab) -> None:
        lab.put("suspect")
        lab.let_crash("suspect")
        lab.advance(1)
        lab.put("b", "c")
        assert [lease.id for lease in lab.claim()] == ["suspect"]
        assert [lease.id for lease in lab.claim()] == ["b", "c"]

    def test_a_suspect_never_shares_a_batch(self, lab: Lab) -> None:
        lab.put("suspect", priority=4)
        lab.let_crash("suspect")
        lab.put("b", "c", priority=6)
        lab.put("d", priority=2)
        batches: list[set[str]] = []
        while leases := lab.claim():
            batches.append({lease.id for lease in leases})
        assert {"suspect"} in batches
        assert batches[0] == {"b", "c"} or batches[0] == {"b", "c", "d"}
        assert sorted(id for batch in batches for id in batch) == ["b", "c", "d", "suspect"]

    def test_two_suspects_are_claimed_one_at_a_time(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.claim(2)
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 2
        assert [len(lab.claim()), len(lab.claim()), len(lab.claim())] == [1, 1, 0]

    def test_an_exchange_returns_a_suspect_alone(self, lab: Lab) -> None:
        lab.put("suspect")
        lab.let_crash("suspect")
        lab.advance(1)
        lab.put("b")
        _, leases = lab.engine.exchange([], DEFAULT_QUEUE, 10, owner_token=new_owner_token())
        assert [lease.id for lease in leases] == ["suspect"]

    def test_a_job_with_a_verdict_is_not_a_suspect(self, lab: Lab) -> None:
        lab.put("a")
        lab.let_crash("a")
        assert lab.engine.nack(lab.take("a"))
        lab.put("b")
        assert sorted(lease.id for lease in lab.claim()) == ["a", "b"]

    def test_every_job_of_a_lost_claim_is_requeued(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        assert len(lab.claim()) == 3
        lab.advance(LEASE_S)
        assert lab.open().reap_expired() == 3
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.PENDING: 3}}


class ClockLaws:
    """The engine's clock decides, even if it is set back."""

    def test_a_lease_far_ahead_of_a_clock_set_back_is_shortened_and_not_reaped(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.set_back(3600)
        assert lab.engine.reap_expired() == 0
        view = lab.view("a")
        assert (view.state, view.crashes) == (JobState.PROCESSING, 0)
        assert view.lease_until is not None
        assert view.lease_until <= lab.now() + timedelta(seconds=LEASE_S)
        lab.advance(LEASE_S - lab.grain_s)
        assert lab.engine.reap_expired() == 0
        lab.advance(lab.grain_s)
        assert not lab.engine.ack(lease)
        assert lab.engine.reap_expired() == 1
        assert lab.view("a").crashes == 1

    def test_a_lease_that_was_shortened_is_still_a_lease(self, lab: Lab) -> None:
        lab.put("a", "b")
        renewed, acked = lab.claim()
        lab.set_back(3600)
        assert lab.engine.reap_expired() == 0
        assert lab.engine.renew_many([renewed]) == [LeaseState.HELD]
        assert lab.engine.ack(acked)

    def test_a_clock_set_back_a_little_changes_nothing(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.set_back(LEASE_S / 2)
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0
        lab.advance(LEASE_S / 2)
        assert lab.engine.ack(lease)

    def test_a_clock_set_back_delivers_nothing_early(self, lab: Lab) -> None:
        lab.put("a", delay=30)
        lab.set_back(3600)
        lab.advance(30)
        assert lab.claim() == []

    def test_a_claim_repeated_after_the_clock_was_set_back_fences_within_one_lease(self, lab: Lab) -> None:
        lab.put("a")
        token = new_owner_token()
        lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)
        lab.set_back(3600)
        leases = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)
        assert [lease.id for lease in leases] == ["a"]
        assert leases[0].fence_at <= lab.clock.monotonic() + LEASE_S

    def test_a_purge_without_an_age_does_not_depend_on_the_clock(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"))
        lab.set_back(3600)
        assert lab.engine.purge([JobState.COMPLETED]) == 1

    def test_the_clock_of_a_worker_decides_nothing(self, lab: Lab) -> None:
        """It may be a day off. What is due, what has expired and all recorded times do not depend on it."""
        if not lab.keeps_time:
            pytest.skip("the clock of a handle is the engine's")
        fast, slow = ManualClock(), ManualClock()
        fast.advance(86_400)
        slow.set_back(86_400)
        for name, clock in (("fast", fast), ("slow", slow)):
            worker = lab.open(clock=clock)
            worker.accept([lab.envelope(name), lab.envelope(f"{name}-later", delay=30)])
            leases = worker.claim(DEFAULT_QUEUE, 10, owner_token=new_owner_token())
            assert [lease.id for lease in leases] == [name]
            lab.advance(LEASE_S / 4)
            assert worker.reap_expired() == 0
            assert worker.renew_many(leases) == [LeaseState.HELD]
            assert worker.settle([Ack(lease=leases[0])]) == [True]
            assert worker.prune() == 0
            view = lab.view(name)
            assert view.finished_at is not None
            for instant, ago_s in (
                (view.accepted_at, LEASE_S / 4),
                (leases[0].claimed_at, LEASE_S / 4),
                (view.finished_at, 0),
            ):
                assert abs(lab.now() - instant - timedelta(seconds=ago_s)) <= timedelta(seconds=lab.grain_s)
