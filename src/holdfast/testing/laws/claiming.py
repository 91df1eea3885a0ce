"""Claiming jobs: in order, never early, never twice, and safe to repeat if a reply was lost."""

from datetime import timedelta

from holdfast.queues.contract import LeasePolicy, new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import DEFAULT_QUEUE, Ack, DeadReason, JobLease, JobState, Nack


class ClaimingLaws:
    """The guarantees of `claim`, `fetch` and the claim in an `exchange`."""

    def test_a_claimed_job_is_processing_under_a_lease(self, lab: Lab) -> None:
        lab.put("a")
        before = lab.clock.monotonic()
        token = new_owner_token()
        [lease] = lab.engine.claim(DEFAULT_QUEUE, 5, owner_token=token)
        assert (lease.id, lease.queue, lease.owner_token) == ("a", DEFAULT_QUEUE, token)
        assert (lease.delivery, lease.attempts, lease.crashes, lease.ignore_expiry) == (1, 0, 0, False)
        assert lease.ttl_s == LEASE_S
        assert abs(lease.claimed_at - lab.now()) <= timedelta(seconds=lab.grain_s)
        assert before + LEASE_S <= lease.fence_at <= lab.clock.monotonic() + LEASE_S
        view = lab.view("a")
        assert (view.state, view.deliveries) == (JobState.PROCESSING, 1)
        assert view.lease_until is not None
        assert abs(view.lease_until - lease.claimed_at - timedelta(seconds=LEASE_S)) <= timedelta(seconds=lab.grain_s)

    def test_the_lease_is_as_long_as_the_handles_policy_says(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.open(LeasePolicy(lease_s=7)).fetch(DEFAULT_QUEUE)
        assert lease is not None
        assert lease.ttl_s == 7
        lab.advance(7 - lab.grain_s)
        assert lab.engine.reap_expired() == 0
        lab.advance(lab.grain_s)
        assert lab.engine.reap_expired() == 1

    def test_a_claimed_job_is_not_claimed_by_another_worker(self, lab: Lab) -> None:
        lab.put("a")
        lab.take("a")
        with lab.unchanged():
            assert lab.claim() == []
            assert lab.open().fetch(DEFAULT_QUEUE) is None

    def test_an_empty_queue_returns_nothing(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        with lab.unchanged():
            assert lab.claim(queue="slow") == []
            assert lab.engine.fetch("slow") is None

    def test_a_claim_returns_only_jobs_of_its_queue(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        lab.put("b", queue="slow", priority=9)
        assert [lease.id for lease in lab.claim(queue="mail")] == ["a"]

    def test_a_claim_returns_at_most_its_limit(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        assert [lease.id for lease in lab.claim(3)] == ["a", "b", "c"]
        assert [lease.id for lease in lab.claim(3)] == ["d"]

    def test_a_claim_with_limit_zero_returns_nothing(self, lab: Lab) -> None:
        lab.put("a")
        with lab.unchanged():
            assert lab.claim(0) == []
            assert lab.engine.exchange([], DEFAULT_QUEUE, 0, owner_token=new_owner_token()) == ([], [])

    def test_higher_priorities_come_first(self, lab: Lab) -> None:
        for priority in (3, 9, 0, 5):
            lab.put(f"p{priority}", priority=priority)
        assert [lease.id for lease in lab.claim()] == ["p9", "p5", "p3", "p0"]

    def test_a_higher_priority_comes_before_an_earlier_due_time(self, lab: Lab) -> None:
        lab.put("early", priority=4)
        lab.advance(10)
        lab.put("urgent", priority=6)
        assert [lease.id for lease in lab.claim()] == ["urgent", "early"]

    def test_equal_priorities_are_ordered_by_due_time(self, lab: Lab) -> None:
        lab.put("a", delay=30)
        lab.put("b", delay=10)
        lab.put("c", delay=20)
        lab.advance(60)
        assert [lease.id for lease in lab.claim()] == ["b", "c", "a"]

    def test_equal_due_times_are_ordered_by_id(self, lab: Lab) -> None:
        at = lab.now() + timedelta(seconds=10)
        lab.put("b", "c", "a", run_at=at)
        lab.advance(20)
        assert [lease.id for lease in lab.claim()] == ["a", "b", "c"]

    def test_a_batch_is_claimed_in_the_order_it_was_accepted(self, lab: Lab) -> None:
        batch = [lab.envelope() for _ in range(25)]
        lab.engine.accept(batch)
        assert [lease.id for lease in lab.claim(25)] == [envelope.id for envelope in batch]
        lab.engine.accept([lab.envelope(id) for id in ("c", "a", "b")])
        assert [lease.id for lease in lab.claim()] == ["c", "a", "b"]

    def test_a_small_claim_returns_the_first_in_order(self, lab: Lab) -> None:
        lab.put("b", "a", priority=5)
        lab.put("urgent", priority=6)
        lab.put("idle", "late", priority=2)
        assert [lease.id for lease in lab.claim(2)] == ["urgent", "b"]
        assert [lease.id for lease in lab.claim(2)] == ["a", "idle"]
        assert [lease.id for lease in lab.claim(2)] == ["late"]

    def test_a_due_retry_is_ordered_by_its_due_time(self, lab: Lab) -> None:
        lab.put("retried")
        assert lab.engine.nack(lab.take("retried"), delay=20)
        lab.advance(10)
        lab.put("before")
        lab.advance(20)
        lab.put("after")
        assert [lease.id for lease in lab.claim()] == ["before", "retried", "after"]

    def test_a_job_is_never_delivered_early(self, lab: Lab) -> None:
        lab.put("a", delay=30)
        lab.advance(30 - lab.grain_s)
        with lab.unchanged():
            assert lab.claim() == []
        lab.advance(lab.grain_s + self._lateness(lab))
        assert lab.take("a").delivery == 1

    def test_a_claim_of_due_jobs_includes_no_scheduled_one(self, lab: Lab) -> None:
        lab.put("later", delay=30)
        lab.put("now")
        assert [lease.id for lease in lab.claim()] == ["now"]

    def test_a_retry_is_never_delivered_early(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"), delay=30)
        lab.advance(30 - lab.grain_s)
        with lab.unchanged():
            assert lab.claim() == []
        lab.advance(lab.grain_s + self._lateness(lab))
        assert lab.take("a").attempts == 1

    def test_a_released_job_is_never_delivered_early(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.release(lab.take("a"), delay=30)
        lab.advance(30 - lab.grain_s)
        with lab.unchanged():
            assert lab.claim() == []
        lab.advance(lab.grain_s + self._lateness(lab))
        assert lab.take("a").attempts == 0

    def test_fractions_of_a_delay_are_never_rounded_down(self, lab: Lab) -> None:
        lab.put("a", delay=1.015625)
        lab.advance(1.015)
        if lab.grain_s < 0.02:  # a clock that runs by itself is already past the instant
            assert lab.claim() == []
        lab.advance(0.001 + self._lateness(lab))
        assert lab.take("a").delivery == 1

    def _lateness(self, lab: Lab) -> float:
        """How late the engine may deliver: one with a coarse resolution rounds up."""
        resolution_s = lab.engine.capabilities.delay_resolution_s
        return resolution_s if resolution_s > lab.grain_s else 0.0

    def test_a_due_time_in_the_past_means_now(self, lab: Lab) -> None:
        lab.put("today")
        lab.advance(1)
        lab.put("yesterday", run_at=lab.now() - timedelta(days=1))
        assert lab.view("yesterday").state is JobState.PENDING
        assert [lease.id for lease in lab.claim()] == ["today", "yesterday"]

    def test_a_delivery_is_counted_once_per_claim(self, lab: Lab) -> None:
        lab.put("a")
        for delivery in (1, 2, 3):
            lease = lab.take("a")
            assert lease.delivery == lab.view("a").deliveries == delivery
            assert lab.engine.release(lease)

    def test_a_repeated_claim_returns_what_it_stamped(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        token = new_owner_token()
        first = lab.engine.claim(DEFAULT_QUEUE, 2, owner_token=token)
        lab.advance(1)
        with lab.unchanged():
            again = lab.open().claim(DEFAULT_QUEUE, 2, owner_token=token)
        self._are_the_same(again, first)
        assert lab.engine.settle([Ack(lease=lease) for lease in again]) == [True, True]
        assert [lease.id for lease in lab.claim()] == ["c", "d"]

    def test_a_repeated_exchange_returns_what_it_stamped(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        done, token = Ack(lease=lab.take("a"), record=lab.record()), new_owner_token()
        answers, first = lab.engine.exchange([done], DEFAULT_QUEUE, 2, owner_token=token)
        assert answers == [True]
        assert [lease.id for lease in first] == ["b", "c"]
        with lab.unchanged():
            answers, again = lab.engine.exchange([done], DEFAULT_QUEUE, 2, owner_token=token)
            assert answers == [True]
            self._are_the_same(again, first)

    def test_a_repeated_claim_returns_only_what_is_still_held(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        token = new_owner_token()
        first, second = lab.engine.claim(DEFAULT_QUEUE, 2, owner_token=token)
        assert lab.engine.ack(first)
        with lab.unchanged():
            self._are_the_same(lab.engine.claim(DEFAULT_QUEUE, 2, owner_token=token), [second])

    def test_a_repeated_claim_does_not_return_an_expired_lease(self, lab: Lab) -> None:
        lab.put("a")
        token = new_owner_token()
        assert len(lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)) == 1
        lab.advance(LEASE_S)
        with lab.unchanged():
            assert lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token) == []

    def test_the_same_token_on_another_queue_is_another_claim(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        lab.put("b", queue="slow")
        token = new_owner_token()
        for id, queue in (("a", "mail"), ("b", "slow"), ("a", "mail")):
            leases = lab.engine.claim(queue, 5, owner_token=token)
            assert [(lease.id, lease.queue) for lease in leases] == [(id, queue)]

    def test_a_repeated_claim_of_a_paused_queue_still_returns_what_it_stamped(self, lab: Lab) -> None:
        lab.put("a", "b")
        token = new_owner_token()
        first = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)
        lab.engine.pause(DEFAULT_QUEUE)
        with lab.unchanged():
            self._are_the_same(lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token), first)

    def test_a_repeated_claim_does_not_fence_after_its_lease_expires(self, lab: Lab) -> None:
        lab.put("a")
        token = new_owner_token()
        lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)
        lab.advance(LEASE_S - 10)
        [again] = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=token)
        lease_until = lab.view("a").lease_until
        assert lease_until is not None
        lease_left_s = (lease_until - lab.now()).total_seconds()
        assert again.fence_at - lab.clock.monotonic() <= lease_left_s + lab.grain_s

    def _are_the_same(self, again: list[JobLease], first: list[JobLease]) -> None:
        def identity(lease: JobLease) -> tuple[object, ...]:
            return lease.id, lease.token, lease.owner_token, lease.delivery, lease.claimed_at, lease.wire

        assert sorted(map(identity, again), key=str) == sorted(map(identity, first), key=str)

    def test_another_token_claims_other_jobs(self, lab: Lab) -> None:
        lab.put("a", "b")
        assert [lease.id for lease in lab.claim(1)] == ["a"]
        assert [lease.id for lease in lab.claim(1)] == ["b"]

    def test_a_claim_that_waits_for_an_empty_queue_times_out(self, lab: Lab) -> None:
        lab.put("later", delay=60)
        before = lab.clock.monotonic()
        assert lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=new_owner_token(), wait=1.0) == []
        assert lab.clock.monotonic() >= before + 1.0

    def test_a_claim_that_waits_returns_a_job_that_becomes_due(self, lab: Lab) -> None:
        lab.put("a", delay=0.5)
        [lease] = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=new_owner_token(), wait=30.0)
        assert lease.id == "a"
        assert lease.claimed_at >= lab.view("a").due_at

    def test_a_claim_that_waits_returns_due_jobs_immediately(self, lab: Lab) -> None:
        lab.put("a")
        before = lab.clock.monotonic()
        assert len(lab.engine.claim(DEFAULT_QUEUE, 5, owner_token=new_owner_token(), wait=30.0)) == 1
        assert lab.clock.monotonic() - before < 30

    def test_a_lease_of_a_job_that_waited_is_counted_from_its_claim(self, lab: Lab) -> None:
        lab.put("a", delay=5)
        [lease] = lab.engine.claim(DEFAULT_QUEUE, 1, owner_token=new_owner_token(), wait=30.0)
        lab.advance(LEASE_S - 1)
        assert lab.engine.ack(lease)

    def test_an_exchange_settles_and_claims(self, lab: Lab) -> None:
        lab.put("a", "b")
        answers, leases = lab.engine.exchange(
            [Ack(lease=lab.take("a"))], DEFAULT_QUEUE, 5, owner_token=new_owner_token()
        )
        assert answers == [True]
        assert [lease.id for lease in leases] == ["b"]
        assert lab.view("a").state is JobState.COMPLETED
        assert lab.view("b").state is JobState.PROCESSING

    def test_an_exchange_of_nothing_is_a_claim(self, lab: Lab) -> None:
        lab.put("a")
        answers, leases = lab.engine.exchange([], DEFAULT_QUEUE, 5, owner_token=new_owner_token())
        assert answers == []
        assert [lease.id for lease in leases] == ["a"]

    def test_an_exchange_can_claim_from_another_queue(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        lab.put("b", queue="slow")
        done = Ack(lease=lab.take("a", queue="mail"))
        answers, leases = lab.engine.exchange([done], "slow", 5, owner_token=new_owner_token())
        assert answers == [True]
        assert [lease.id for lease in leases] == ["b"]

    def test_a_refused_settlement_does_not_affect_the_rest_of_an_exchange(self, lab: Lab) -> None:
        lab.put("stale")
        stale = lab.take("stale")
        lab.advance(LEASE_S)
        lab.put("good", priority=9)
        lab.put("next", priority=8)
        good = lab.take("good")
        answers, leases = lab.engine.exchange(
            [Nack(lease=stale), Ack(lease=good)], DEFAULT_QUEUE, 1, owner_token=new_owner_token()
        )
        assert answers == [False, True]
        assert [lease.id for lease in leases] == ["next"]
        assert lab.view("good").state is JobState.COMPLETED
        assert lab.view("stale").attempts == 0

    def test_finished_jobs_are_never_claimed_again(self, lab: Lab) -> None:
        lab.put("completed", "dead", "cancelled")
        assert lab.engine.ack(lab.take("completed"))
        assert lab.engine.abandon(lab.take("dead"), DeadReason.FAILED)
        lab.engine.cancel("cancelled")
        lab.advance(10 * LEASE_S)
        with lab.unchanged():
            assert lab.engine.reap_expired() == 0
            assert lab.claim() == []

    def test_a_paused_queue_returns_nothing_and_others_are_not_affected(self, lab: Lab) -> None:
        lab.put("a", queue="mail")
        lab.put("b", queue="slow")
        lab.engine.pause("mail", "the provider is down")
        with lab.unchanged():
            assert lab.claim(queue="mail") == []
            assert lab.open().fetch("mail") is None
            assert lab.engine.claim("mail", 1, owner_token=new_owner_token(), wait=0.5) == []
        assert [lease.id for lease in lab.claim(queue="slow")] == ["b"]
        assert lab.engine.resume("mail")
        assert [lease.id for lease in lab.claim(queue="mail")] == ["a"]

    def test_running_jobs_continue_while_their_queue_is_paused(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        acked, nacked, renewed = lab.claim(3)
        lab.engine.pause(DEFAULT_QUEUE)
        assert lab.engine.renew(renewed) is not None
        answers, leases = lab.engine.exchange(
            [Ack(lease=acked), Nack(lease=nacked)], DEFAULT_QUEUE, 5, owner_token=new_owner_token()
        )
        assert answers == [True, True]
        assert leases == []
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        assert lab.view("c").crashes == 1
