"""Operators' commands: cancel, replay, discard, purge, prune and pause. No unfinished job is ever deleted."""

from datetime import timedelta

import pytest

from holdfast.queues.contract import DEFAULT_RETAIN_COMPLETED_S, TOMBSTONE_S, LeasePolicy
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.testing.laws.settling import BOOM
from holdfast.values import (
    DEFAULT_QUEUE,
    FINAL_STATES,
    Ack,
    CancelAnswer,
    CancelJob,
    DeadReason,
    JobFilter,
    JobState,
    LeaseState,
    Outcome,
    Release,
    ReplayAnswer,
)


class CancelLaws:
    """Cancelling: a waiting job immediately, a running one by a request that is never lost."""

    def test_a_waiting_job_is_cancelled_at_once(self, lab: Lab) -> None:
        lab.put("failed", "pending")
        lab.put("scheduled", delay=30)
        assert lab.engine.nack(lab.take("failed"), delay=30)
        for id in ("pending", "scheduled", "failed"):
            assert lab.engine.cancel(id, "not today") is CancelAnswer.CANCELLED
            view = lab.view(id)
            assert (view.state, view.cancel_reason, view.cancel_requested) == (JobState.CANCELLED, "not today", False)
            assert view.finished_at is not None
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.CANCELLED: 3}}
        lab.advance(60)
        assert lab.claim() == []

    def test_a_running_job_receives_a_cancellation_request(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        assert lab.open().cancel("a", "not today") is CancelAnswer.REQUESTED
        view = lab.view("a")
        assert (view.state, view.cancel_requested) == (JobState.PROCESSING, True)
        for _ in range(3):
            lab.advance(LEASE_S / 2)
            assert lab.engine.renew_many([lease]) == [LeaseState.CANCEL_REQUESTED]
        assert lab.engine.settle([CancelJob(lease=lease, reason="as asked")]) == [True]
        view = lab.view("a")
        assert (view.state, view.cancel_reason, view.cancel_requested) == (JobState.CANCELLED, "as asked", False)

    def test_the_operators_reason_is_stored_if_the_worker_gives_none(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.engine.cancel("a", "not today")
        assert lab.engine.settle([CancelJob(lease=lease)]) == [True]
        assert lab.view("a").cancel_reason == "not today"

    def test_a_second_request_without_a_reason_leaves_the_first_reason(self, lab: Lab) -> None:
        lab.put("a", "b")
        first, second = lab.claim()
        for reasons in (["not today", ""], ["", ""]):
            id = "a" if reasons[0] else "b"
            assert [lab.engine.cancel(id, reason) for reason in reasons] == [CancelAnswer.REQUESTED] * 2
        assert lab.engine.settle([CancelJob(lease=first), CancelJob(lease=second)]) == [True, True]
        assert (lab.view("a").cancel_reason, lab.view("b").cancel_reason) == ("not today", "")

    def test_a_finished_job_cannot_be_cancelled(self, lab: Lab) -> None:
        lab.put("completed", "dead", "cancelled")
        assert lab.engine.ack(lab.take("completed"))
        assert lab.engine.abandon(lab.take("dead"), DeadReason.FAILED)
        lab.engine.cancel("cancelled", "once")
        with lab.unchanged():
            for id in ("completed", "dead", "cancelled"):
                assert lab.engine.cancel(id, "twice") is CancelAnswer.TOO_LATE

    def test_an_unknown_job_cannot_be_cancelled(self, lab: Lab) -> None:
        with lab.unchanged():
            assert lab.engine.cancel("nobody") is CancelAnswer.UNKNOWN

    def test_a_job_with_a_cancellation_request_can_still_complete(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.engine.cancel("a")
        assert lab.engine.ack(lease)
        view = lab.view("a")
        assert (view.state, view.cancel_requested, view.cancel_reason) == (JobState.COMPLETED, False, None)

    def test_a_job_with_a_cancellation_request_is_not_retried(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.engine.cancel("a", "not today")
        assert lab.engine.nack(lease, delay=1, record=lab.record(Outcome.FAILED, error=BOOM))
        view = lab.view("a")
        assert (view.state, view.attempts, view.cancel_reason) == (JobState.CANCELLED, 1, "not today")
        assert view.finished_at is not None
        assert lab.outcomes("a") == [Outcome.FAILED]
        lab.advance(60)
        assert lab.claim() == []
        with lab.unchanged():
            assert lab.engine.nack(lease, delay=1)

    def test_a_job_with_a_cancellation_request_is_not_released(self, lab: Lab) -> None:
        lab.put("released", "crashed")
        released, crashed = lab.take("released"), lab.take("crashed")
        for id in ("released", "crashed"):
            lab.engine.cancel(id, "not today")
        assert lab.engine.settle([Release(lease=released), Release(lease=crashed, crashed=True)]) == [True, True]
        for id in ("released", "crashed"):
            view = lab.view(id)
            assert (view.state, view.attempts, view.cancel_reason) == (JobState.CANCELLED, 0, "not today")
        assert lab.claim() == []

    def test_a_job_with_a_cancellation_request_is_cancelled_when_it_is_reaped(self, lab: Lab) -> None:
        lab.put("a")
        lab.take("a")
        lab.engine.cancel("a", "not today")
        lab.advance(LEASE_S)
        assert lab.engine.reap_expired() == 1
        view = lab.view("a")
        assert (view.state, view.cancel_reason, view.cancel_requested) == (JobState.CANCELLED, "not today", False)
        assert view.finished_at is not None
        assert lab.claim() == []

    def test_a_job_with_a_cancellation_request_can_still_be_dead_lettered(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.engine.cancel("a")
        assert lab.engine.abandon(lease, DeadReason.FAILED)
        assert (lab.view("a").state, lab.view("a").dead_reason) == (JobState.DEAD, DeadReason.FAILED)

    def test_a_replay_clears_the_cancellation_request(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        lab.engine.cancel("a")
        assert lab.engine.nack(lease)
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        lease = lab.take("a")
        assert lab.engine.renew_many([lease]) == [LeaseState.HELD]
        assert lab.engine.nack(lease)
        assert lab.view("a").state is JobState.FAILED


class ReplayLaws:
    """Replaying: a new life for a dead or cancelled job, with its whole history."""

    def test_a_dead_letter_has_its_whole_history(self, lab: Lab) -> None:
        envelope = lab.envelope("a", payload={"n": 1})
        lab.engine.accept([envelope])
        first = lab.record(Outcome.FAILED, error=BOOM, output="out of the first")
        last = lab.record(Outcome.TIMEOUT, error=BOOM, output="out of the last")
        assert lab.engine.nack(lab.take("a"), record=first)
        lab.let_crash("a")
        assert lab.engine.abandon(lab.take("a"), DeadReason.TIMEOUT, last)
        [view] = lab.engine.dead_letters().jobs
        assert (view.id, view.dead_reason, view.last_error, view.attempts) == ("a", DeadReason.TIMEOUT, BOOM.line, 2)
        attempts = lab.history("a").attempts
        assert [past.record.outcome for past in attempts] == [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMEOUT]
        assert (attempts[0].record, attempts[2].record) == (first, last)
        lab.advance(400 * 86_400)
        assert lab.engine.prune() == 0
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        assert lab.take("a").wire == envelope.wire

    def test_a_replayed_dead_letter_starts_a_new_life_with_its_history(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.nack(lab.take("a"), record=lab.record(Outcome.FAILED))
        lab.let_crash("a")
        rejected = lab.record(Outcome.REJECTED)
        assert lab.engine.abandon(lab.take("a"), DeadReason.BAD_SIGNATURE, rejected)
        before = lab.history("a").attempts
        assert len(before) == 3
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        view = lab.view("a")
        assert (view.state, view.attempts, view.crashes, view.deliveries) == (JobState.PENDING, 0, 0, 3)
        assert [view.dead_reason, view.cancel_reason, view.finished_at] == [None, None, None]
        assert lab.history("a").attempts == before
        lease = lab.take("a")
        assert (lease.attempts, lease.crashes, lease.delivery, lease.ignore_expiry) == (0, 0, 4, False)
        assert lab.engine.ack(lease, lab.record())
        assert [past.delivery for past in lab.history("a").attempts] == [1, 2, 3, 4]

    def test_a_replayed_crash_loop_may_crash_as_often_again(self, lab: Lab) -> None:
        lab.put("a")
        for _ in range(2):
            for _ in range(3):
                lab.let_crash("a")
            assert lab.view("a").dead_reason is DeadReason.CRASH_LOOP
            assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        assert lab.view("a").deliveries == 6

    def test_a_replayed_job_is_not_a_suspect(self, lab: Lab) -> None:
        lab.put("a")
        for _ in range(3):
            lab.let_crash("a")
        lab.engine.replay("a")
        lab.put("b")
        assert sorted(lease.id for lease in lab.claim()) == ["a", "b"]

    def test_a_cancelled_job_can_be_replayed(self, lab: Lab) -> None:
        lab.put("a", delay=3600)
        lab.engine.cancel("a", "not today")
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        view = lab.view("a")
        assert (view.state, view.cancel_reason, view.finished_at) == (JobState.PENDING, None, None)
        assert lab.take("a").delivery == 1

    def test_only_dead_and_cancelled_jobs_are_replayed(self, lab: Lab) -> None:
        lab.put("completed", "failed", "processing")
        lab.put("scheduled", delay=30)
        lab.put("waiting", queue="aside")
        assert lab.engine.ack(lab.take("completed"))
        assert lab.engine.nack(lab.take("failed"), delay=30)
        lab.take("processing")
        with lab.unchanged():
            for id in ("completed", "failed", "processing", "scheduled", "waiting"):
                assert lab.engine.replay(id) is ReplayAnswer.NOT_FINAL, id
            assert lab.engine.replay("nobody") is ReplayAnswer.UNKNOWN

    def test_an_expired_job_is_replayed_only_if_its_expiry_is_ignored(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.settle([CancelJob(lease=lab.take("a"), expired=True)]) == [True]
        with lab.unchanged():
            assert lab.engine.replay("a") is ReplayAnswer.EXPIRED
        assert lab.engine.replay("a", ignore_expiry=True) is ReplayAnswer.REPLAYED
        lease = lab.take("a")
        assert lease.ignore_expiry
        assert lab.engine.nack(lease)
        assert lab.take("a").ignore_expiry, "the expiry is also ignored for retries in the same life"

    def test_a_dead_letter_can_be_replayed_with_its_expiry_ignored(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED)
        assert lab.engine.replay("a", ignore_expiry=True) is ReplayAnswer.REPLAYED
        assert lab.take("a").ignore_expiry

    def test_an_expired_dead_letter_is_replayed_only_if_its_expiry_is_ignored(self, lab: Lab) -> None:
        lab.put("a", expires_in=60.0)
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED)
        lab.advance(60)
        with lab.unchanged():
            assert lab.engine.replay("a") is ReplayAnswer.EXPIRED
        assert lab.engine.replay("a", ignore_expiry=True) is ReplayAnswer.REPLAYED
        assert lab.take("a").ignore_expiry

    def test_a_job_cancelled_after_its_expiry_was_ignored_is_not_expired(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.settle([CancelJob(lease=lab.take("a"), expired=True)]) == [True]
        lab.engine.replay("a", ignore_expiry=True)
        assert lab.engine.cancel("a") is CancelAnswer.CANCELLED
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED


class DeletingLaws:
    """Deleting: by age or on request, and never an unfinished job."""

    def test_a_discarded_dead_letter_is_deleted(self, lab: Lab) -> None:
        lab.put("a", "b")
        for id in ("a", "b"):
            assert lab.engine.abandon(lab.take(id), DeadReason.FAILED, lab.record(Outcome.FAILED))
        assert lab.engine.discard("a") is True
        assert lab.engine.get("a") is None
        assert lab.ids() == ["b"]
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.DEAD: 1}}
        with lab.unchanged():
            assert lab.engine.discard("a") is False

    def test_only_dead_letters_are_discarded(self, lab: Lab) -> None:
        self._one_of_each(lab)
        with lab.unchanged():
            for id in ("completed", "cancelled", "failed", "processing", "scheduled", "pending", "nobody"):
                assert lab.engine.discard(id) is False, id

    def test_completed_and_cancelled_jobs_are_discarded_on_request(self, lab: Lab) -> None:
        self._one_of_each(lab)
        with lab.unchanged():
            for id in ("failed", "processing", "scheduled", "pending", "nobody"):
                assert lab.engine.discard(id, states=FINAL_STATES) is False, id
            assert lab.engine.discard("completed", states=(JobState.CANCELLED, JobState.DEAD)) is False
        for id in ("completed", "cancelled"):
            assert lab.engine.discard(id, states=FINAL_STATES) is True, id
            assert lab.engine.get(id) is None
        assert [job.id for job in lab.engine.find(JobFilter(states=tuple(FINAL_STATES))).jobs] == ["dead"]

    def test_discarding_unfinished_states_is_refused(self, lab: Lab) -> None:
        with pytest.raises(ValueError, match="cancel those jobs first"):
            lab.engine.discard("a", states=(JobState.DEAD, JobState.PENDING))

    def test_a_purge_deletes_only_jobs_in_the_given_states(self, lab: Lab) -> None:
        self._one_of_each(lab)
        assert lab.engine.purge([JobState.COMPLETED]) == 1
        assert lab.engine.get("completed") is None
        assert lab.engine.get("dead") is not None
        assert lab.engine.purge(iter([JobState.DEAD, JobState.CANCELLED])) == 2
        assert sorted(lab.ids()) == ["failed", "pending", "processing", "scheduled"]
        with lab.unchanged():
            assert lab.engine.purge([JobState.COMPLETED, JobState.DEAD, JobState.CANCELLED]) == 0

    def test_a_purge_of_unfinished_jobs_is_refused(self, lab: Lab) -> None:
        self._one_of_each(lab)
        with lab.unchanged():
            for state in (
                JobState.BLOCKED,
                JobState.SCHEDULED,
                JobState.PENDING,
                JobState.PROCESSING,
                JobState.FAILED,
            ):
                with pytest.raises(ValueError, match=state):
                    lab.engine.purge([JobState.COMPLETED, state])
            with pytest.raises(ValueError, match="purge"):
                lab.engine.purge([])

    def test_a_purge_deletes_only_jobs_of_its_queue(self, lab: Lab) -> None:
        for queue in ("mail", "slow"):
            lab.put(f"in-{queue}", queue=queue)
            assert lab.engine.ack(lab.take(f"in-{queue}", queue=queue))
        assert lab.engine.purge([JobState.COMPLETED], queue="mail") == 1
        assert lab.ids() == ["in-slow"]

    def test_a_purge_leaves_jobs_that_finished_recently(self, lab: Lab) -> None:
        lab.put("old", "new")
        assert lab.engine.ack(lab.take("old"))
        lab.advance(3600)
        assert lab.engine.ack(lab.take("new"))
        with lab.unchanged():
            assert lab.engine.purge([JobState.COMPLETED], older_than=timedelta(hours=2)) == 0
        assert lab.engine.purge([JobState.COMPLETED], older_than=timedelta(minutes=30)) == 1
        assert lab.ids() == ["new"]

    def test_a_job_that_completed_in_a_batch_can_be_discarded_alone(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        assert lab.engine.settle([Ack(lease=lease) for lease in lab.claim()]) == [True] * 3
        assert lab.engine.discard("b", states=[JobState.COMPLETED])
        assert sorted(lab.ids(JobFilter(states=(JobState.COMPLETED,)))) == ["a", "c"]
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.COMPLETED: 2}}
        assert lab.engine.purge([JobState.COMPLETED]) == 2
        assert lab.ids() == []
        assert lab.engine.counts() == {}

    def test_a_purged_job_is_not_deleted_again_with_the_next_job_of_its_id(self, lab: Lab) -> None:
        ids = ["cancelled", "completed", "dead"]
        lab.put(*ids)
        assert lab.engine.cancel("cancelled") is CancelAnswer.CANCELLED
        assert lab.engine.ack(lab.take("completed"))
        assert lab.engine.abandon(lab.take("dead"), DeadReason.FAILED)
        assert lab.engine.purge(FINAL_STATES) == 3
        assert lab.engine.purge(FINAL_STATES) == 0
        lab.advance(TOMBSTONE_S + lab.grain_s)
        lab.put(*ids, payload="other")
        lab.advance(DEFAULT_RETAIN_COMPLETED_S)
        with lab.unchanged():
            assert lab.open(LeasePolicy(retain_dead_s=TOMBSTONE_S)).prune() == 0
            assert lab.engine.purge(FINAL_STATES) == 0
        assert sorted(lease.id for lease in lab.claim()) == ids

    def test_completed_jobs_are_retained_as_long_as_the_policy_says(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.ack(lab.take("a"), lab.record(result=b"1"))
        lab.advance(DEFAULT_RETAIN_COMPLETED_S - lab.grain_s)
        with lab.unchanged():
            assert lab.engine.prune() == 0
        lab.advance(2 * lab.grain_s)
        assert lab.engine.prune() == 1
        assert lab.engine.get("a") is None
        assert lab.ids() == []
        assert lab.engine.counts() == {}

    def test_cancelled_jobs_are_retained_as_long_as_completed_ones(self, lab: Lab) -> None:
        lab.put("a")
        lab.engine.cancel("a")
        lab.advance(DEFAULT_RETAIN_COMPLETED_S - lab.grain_s)
        assert lab.engine.prune() == 0
        lab.advance(2 * lab.grain_s)
        assert lab.engine.prune() == 1
        assert lab.engine.get("a") is None

    def test_dead_letters_are_retained_forever_by_default(self, lab: Lab) -> None:
        lab.put("a")
        assert lab.engine.abandon(lab.take("a"), DeadReason.FAILED)
        lab.advance(3650 * 86_400)
        with lab.unchanged():
            assert lab.engine.prune() == 0
        assert lab.open(LeasePolicy(retain_dead_s=3600)).prune() == 1
        assert lab.engine.get("a") is None

    def test_unfinished_jobs_are_never_pruned(self, lab: Lab) -> None:
        self._one_of_each(lab)
        lab.advance(3650 * 86_400)
        lab.open(LeasePolicy(retain_completed_s=0, retain_dead_s=0)).prune()
        assert sorted(lab.ids()) == ["failed", "pending", "processing", "scheduled"]
        assert lab.engine.reap_expired() == 1
        taken: list[str] = []
        while leases := lab.claim():
            taken += [lease.id for lease in leases]
        assert sorted(taken) == ["failed", "pending", "processing", "scheduled"]

    def test_a_job_retained_for_no_time_leaves_only_its_id(self, lab: Lab) -> None:
        engine = lab.open(LeasePolicy(retain_completed_s=0))
        lab.put("a")
        assert engine.ack(lab.take("a"), lab.record())
        engine.prune()
        assert engine.get("a") is None
        assert lab.ids() == []
        [answer] = engine.accept([lab.envelope("a")])
        assert not answer.created
        assert lab.claim() == []

    def _one_of_each(self, lab: Lab) -> None:
        engine = lab.engine
        lab.put("completed", "dead", "failed", "processing", priority=9)
        lab.put("cancelled", "pending")
        lab.put("scheduled", delay=999)
        for id in ("completed", "dead", "failed", "processing"):
            lease = lab.take(id)
            if id == "completed":
                assert engine.ack(lease)
            elif id == "dead":
                assert engine.abandon(lease, DeadReason.FAILED)
            elif id == "failed":
                assert engine.nack(lease, delay=999)
        assert engine.cancel("cancelled") is CancelAnswer.CANCELLED
        for id in lab.ids():
            assert lab.view(id).state == id


class PauseLaws:
    """Pausing and resuming a queue. `ClaimingLaws` has the clauses about claims from a paused queue."""

    def test_every_handle_sees_a_pause_with_its_reason(self, lab: Lab) -> None:
        assert list(lab.engine.pauses()) == []
        lab.engine.pause("mail", "the provider is down")
        [pause] = lab.open().pauses()
        assert (pause.queue, pause.reason) == ("mail", "the provider is down")
        assert abs(pause.since - lab.now()) <= timedelta(seconds=lab.grain_s)

    def test_a_queue_is_paused_only_once(self, lab: Lab) -> None:
        lab.engine.pause("mail")
        lab.engine.pause("mail", "still")
        assert [pause.queue for pause in lab.engine.pauses()] == ["mail"]
        assert lab.engine.resume("mail") is True
        assert list(lab.engine.pauses()) == []

    def test_resuming_a_queue_that_is_not_paused_returns_false(self, lab: Lab) -> None:
        lab.engine.pause("slow")
        with lab.unchanged():
            assert lab.engine.resume("mail") is False

    def test_a_paused_queue_accepts_jobs_and_operators_commands(self, lab: Lab) -> None:
        lab.engine.pause(DEFAULT_QUEUE)
        lab.put("a", "b")
        assert lab.engine.cancel("a") is CancelAnswer.CANCELLED
        assert lab.engine.replay("a") is ReplayAnswer.REPLAYED
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.PENDING: 2}}
        lab.engine.resume(DEFAULT_QUEUE)
        assert sorted(lease.id for lease in lab.claim()) == ["a", "b"]
