"""Dependencies: a job waits for its parents, however they finish, and no child waits forever."""

from collections.abc import Callable

import pytest

from holdfast.errors import DefinitionError, NotSupported, UnknownParent
from holdfast.queues.contract import MAX_CHILDREN, Engine, LeasePolicy, new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.testing.laws.racing import at_once
from holdfast.testing.laws.slots import KEY, enter, hold
from holdfast.values import (
    DEFAULT_QUEUE,
    PARENT_FAILED,
    Abandon,
    Ack,
    CancelJob,
    DeadReason,
    EdgeOutcome,
    EntryOutcome,
    JobFilter,
    JobState,
    Nack,
    OnParentFailure,
    Release,
    Settlement,
)

BLOCKED, PENDING, CANCELLED, COMPLETED = (
    JobState.BLOCKED,
    JobState.PENDING,
    JobState.CANCELLED,
    JobState.COMPLETED,
)
RUN, WAIT = OnParentFailure.RUN, OnParentFailure.WAIT
CROWD = 4
SESSION = bytes.fromhex("5e55104e5e55104e")


def states(lab: Lab, *ids: str) -> list[JobState]:
    """The states of these jobs."""
    return [lab.view(id).state for id in ids]


def complete(lab: Lab, *ids: str) -> None:
    """Claim these jobs, which must be all that are due, and complete them in one call."""
    leases = lab.claim(len(ids) + 1)
    assert sorted(lease.id for lease in leases) == sorted(ids)
    assert lab.engine.settle([Ack(lease=lease, record=lab.record()) for lease in leases]) == [True] * len(ids)


def kill(lab: Lab, id: str) -> None:
    """Claim the job, which must be the next one, and dead-letter it."""
    assert lab.engine.abandon(lab.take(id), DeadReason.FAILED)


def family(lab: Lab, **options: OnParentFailure) -> None:
    """A parent and a child."""
    lab.put("parent")
    lab.put("child", after=("parent",), **options)  # type: ignore[arg-type]


class DependencyLaws:
    """The guarantees of `after`."""

    @pytest.fixture(autouse=True)
    def _has_dependencies(self, request: pytest.FixtureRequest) -> None:
        lab: Lab = request.getfixturevalue("lab")
        if lab.engine.capabilities.dependencies:
            return
        lab.put("parent")
        with pytest.raises(NotSupported):
            lab.engine.accept([lab.envelope("child", after=("parent",))])
        pytest.skip("this engine has no dependencies between jobs")

    def test_a_child_is_blocked_until_its_parent_has_completed(self, lab: Lab) -> None:
        family(lab)
        view = lab.view("child")
        assert (view.state, view.after, view.blocked_on, view.blocked_since) == (BLOCKED, ("parent",), None, lab.now())
        lease = lab.take("parent")
        assert lab.claim() == []
        assert lab.engine.ack(lease)
        complete(lab, "child")
        assert states(lab, "parent", "child") == [COMPLETED, COMPLETED]

    def test_a_child_waits_for_all_of_its_parents(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        lab.put("child", after=("a", "b", "c"))
        complete(lab, "a", "b", "c")
        complete(lab, "child")

    def test_parents_that_complete_one_after_the_other_release_the_child_once(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a", "b"))
        first, second = lab.claim(2)
        assert lab.engine.ack(first)
        assert states(lab, "child") == [BLOCKED]
        assert lab.claim() == []
        assert lab.engine.ack(second)
        lease = lab.take("child")
        assert lab.engine.repair() == 0
        assert lab.claim() == []
        assert lab.engine.ack(lease)

    def test_a_settlement_releases_the_children_in_the_same_call(self, lab: Lab) -> None:
        lab.put("parent")
        lab.put("x", "y", after=("parent",), queue="other")
        end = Ack(lease=lab.take("parent"), record=lab.record())
        answers, _ = lab.engine.exchange([end], DEFAULT_QUEUE, 10, owner_token=new_owner_token())
        assert answers == [True]
        assert sorted(lease.id for lease in lab.claim(queue="other")) == ["x", "y"]

    def test_a_job_that_is_not_final_releases_nothing(self, lab: Lab) -> None:
        family(lab)
        assert lab.engine.settle([Nack(lease=lab.take("parent"), delay=0)]) == [True]
        assert states(lab, "child") == [BLOCKED]
        assert lab.engine.settle([Release(lease=lab.take("parent"))]) == [True]
        lab.engine.repair()
        assert states(lab, "child") == [BLOCKED]
        complete(lab, "parent")
        complete(lab, "child")

    def test_an_end_told_twice_counts_once(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a", "b"))
        first, second = lab.claim(2)
        end = Ack(lease=first, record=lab.record())
        assert lab.engine.settle([end, end]) == [True, True]
        assert lab.engine.settle([end]) == [True]
        lab.engine.repair()
        assert states(lab, "child") == [BLOCKED]
        assert lab.engine.ack(second)
        assert states(lab, "child") == [PENDING]

    def test_a_refused_settlement_releases_nothing(self, lab: Lab) -> None:
        family(lab)
        stale = lab.take("parent")
        lab.advance(LEASE_S)
        lab.engine.reap_expired()
        lab.take("parent")
        assert not lab.engine.ack(stale)
        lab.engine.repair()
        assert states(lab, "child") == [BLOCKED]

    @pytest.mark.parametrize(
        ("policy", "expected"), [(OnParentFailure.CANCEL, CANCELLED), (RUN, PENDING), (WAIT, BLOCKED)]
    )
    def test_the_policy_decides_what_follows_a_failure(
        self, lab: Lab, policy: OnParentFailure, expected: JobState
    ) -> None:
        family(lab, on_parent_failure=policy)
        kill(lab, "parent")
        view = lab.view("child")
        assert view.state is expected
        assert view.cancel_reason == (PARENT_FAILED if expected is CANCELLED else None)
        assert (view.attempts, view.crashes, view.deliveries) == (0, 0, 0)

    def test_every_end_of_a_parent_is_noticed(self, lab: Lab) -> None:
        ends: dict[str, Callable[[str], object]] = {
            "abandoned": lambda id: lab.engine.abandon(lab.take(id), DeadReason.NO_RETRY),
            "cancelled": lambda id: lab.engine.settle([CancelJob(lease=lab.take(id), reason="why")]),
            "expired": lambda id: lab.engine.settle([CancelJob(lease=lab.take(id), expired=True)]),
            "by-operator": lambda id: lab.engine.cancel(id, "no longer needed"),
            "on-request": lambda id: self._cancel_while_running(lab, id),
            "on-entry": lambda id: self._cancel_before_entry(lab, id),
            "reaped": lambda id: self._crash_to_death(lab, id),
            "crash-limit": lambda id: self._release_to_death(lab, id),
            "taken-over": lambda id: self._take_over_to_death(lab, id),
        }
        for name, end in ends.items():
            lab.put(name)
            lab.put(f"child-of-{name}", after=(name,), queue="children")
            end(name)
            lab.engine.repair()
            assert lab.view(name).state in (CANCELLED, JobState.DEAD), name
            view = lab.view(f"child-of-{name}")
            assert (view.state, view.cancel_reason) == (CANCELLED, PARENT_FAILED), name

    def _cancel_while_running(self, lab: Lab, id: str) -> None:
        lease = lab.take(id)
        lab.engine.cancel(id)
        assert lab.engine.settle([Nack(lease=lease, delay=60)]) == [True]

    def _cancel_before_entry(self, lab: Lab, id: str) -> None:
        lease = lab.take(id)
        holder = hold(lab, f"holder-of-{id}")
        lab.engine.cancel(id)
        assert enter(lab, lease, KEY).outcome is EntryOutcome.BLOCKED
        assert lab.engine.ack(holder)

    def _crash_to_death(self, lab: Lab, id: str) -> None:
        for _ in range(lab.engine.policy.crash_limit):
            lab.let_crash(id)

    def _release_to_death(self, lab: Lab, id: str) -> None:
        engine = lab.open(LeasePolicy(crash_limit=1))
        assert engine.settle([Release(lease=lab.take(id), crashed=True)]) == [True]

    def _take_over_to_death(self, lab: Lab, id: str) -> None:
        engine = lab.open(LeasePolicy(crash_limit=1))
        engine.claim(DEFAULT_QUEUE, 1, owner_token=new_owner_token(SESSION))
        assert engine.expire_leases([SESSION]) == 1
        engine.reap_expired()

    def test_a_deleted_parent_counts_as_failed(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a",), on_parent_failure=WAIT)
        lab.put("other", after=("b",), on_parent_failure=WAIT)
        for id in ("a", "b"):
            kill(lab, id)
        assert states(lab, "child", "other") == [BLOCKED, BLOCKED]
        assert lab.engine.discard("a")
        assert states(lab, "child", "other") == [CANCELLED, BLOCKED]
        assert lab.engine.purge([JobState.DEAD]) == 1
        assert states(lab, "child", "other") == [CANCELLED, CANCELLED]

    def test_a_parent_that_has_ended_counts_at_once(self, lab: Lab) -> None:
        lab.put("done", "dead")
        for id, child, policy in (("done", "a", OnParentFailure.CANCEL), ("dead", "b", RUN), ("dead", "c", WAIT)):
            if lab.view(id).state is PENDING:
                complete(lab, "done", "dead") if id == "done" else None
            lab.put(child, after=(id,), on_parent_failure=policy)
        assert states(lab, "a", "b", "c") == [PENDING, PENDING, PENDING]
        lab.put("failed", queue="f")
        assert lab.engine.abandon(lab.take("failed", queue="f"), DeadReason.FAILED)
        lab.put("d", after=("failed",))
        lab.put("e", after=("failed",), on_parent_failure=RUN)
        lab.put("f", after=("failed", "done"), on_parent_failure=WAIT)
        assert states(lab, "d", "e", "f") == [CANCELLED, PENDING, BLOCKED]

    def test_an_unknown_parent_refuses_the_whole_call(self, lab: Lab) -> None:
        lab.put("parent")
        with lab.unchanged(), pytest.raises(UnknownParent) as caught:
            lab.engine.accept([lab.envelope("plain"), lab.envelope("child", after=("parent", "nobody"))])
        assert (caught.value.job_id, caught.value.parent) == ("child", "nobody")
        assert lab.engine.get("plain") is None
        kill(lab, "parent")
        assert lab.engine.discard("parent")
        with pytest.raises(UnknownParent):
            lab.engine.accept([lab.envelope("child", after=("parent",))])

    def test_parents_and_children_can_be_accepted_together(self, lab: Lab) -> None:
        jobs = [lab.envelope("c", after=("b",)), lab.envelope("b", after=("a",)), lab.envelope("a")]
        assert [answer.created for answer in lab.engine.accept(jobs)] == [True] * 3
        for id in ("a", "b", "c"):
            complete(lab, id)

    def test_jobs_that_wait_for_each_other_are_refused(self, lab: Lab) -> None:
        for jobs in (
            [lab.envelope("a", after=("a",))],
            [lab.envelope("a", after=("c",)), lab.envelope("b", after=("a",)), lab.envelope("c", after=("b",))],
        ):
            with lab.unchanged(), pytest.raises(DefinitionError, match="wait for each other"):
                lab.engine.accept(jobs)

    def test_accepting_a_child_again_changes_nothing(self, lab: Lab) -> None:
        lab.put("parent")
        child = lab.envelope("child", after=("parent",))
        lab.engine.accept([child])
        with lab.unchanged():
            assert [answer.created for answer in lab.engine.accept([child, child])] == [False, False]
        complete(lab, "parent")
        lease = lab.take("child")
        assert [answer.created for answer in lab.engine.accept([child])] == [False]
        assert lab.engine.ack(lease)

    def test_a_released_child_keeps_its_due_time_and_priority(self, lab: Lab) -> None:
        lab.put("parent")
        lab.put("later", after=("parent",), delay=60)
        lab.put("minor", after=("parent",), priority=1)
        lab.put("urgent", after=("parent",), priority=9)
        complete(lab, "parent")
        assert [lease.id for lease in lab.claim()] == ["urgent", "minor"]
        assert states(lab, "later") == [JobState.SCHEDULED]
        lab.advance(60)
        lab.take("later")

    def test_a_cascade_reaches_every_descendant(self, lab: Lab) -> None:
        lab.put("0")
        for depth in range(1, 6):
            lab.put(str(depth), after=(str(depth - 1),))
        lab.put("kept", after=("3",), on_parent_failure=RUN)
        kill(lab, "0")
        lab.engine.repair()
        assert states(lab, *map(str, range(1, 6))) == [CANCELLED] * 5
        assert states(lab, "kept") == [PENDING]

    def test_a_replayed_parent_revives_what_it_cancelled_and_nothing_else(self, lab: Lab) -> None:
        lab.put("parent")
        lab.put("child", "mine", after=("parent",))
        lab.put("grandchild", after=("child",))
        lab.engine.cancel("mine", "by hand")
        kill(lab, "parent")
        lab.engine.repair()
        assert states(lab, "child", "grandchild") == [CANCELLED, CANCELLED]
        lab.engine.replay("parent")
        lab.engine.repair()
        assert states(lab, "child", "grandchild", "mine") == [BLOCKED, BLOCKED, CANCELLED]
        view = lab.view("child")
        assert (view.cancel_reason, view.finished_at) == (None, None)
        for id in ("parent", "child", "grandchild"):
            complete(lab, id)

    def test_a_parent_that_is_replayed_at_once_revives_the_children_of_its_children(self, lab: Lab) -> None:
        """The notes on the child, which was just cancelled and is blocked again, are resolved in one commit."""
        lab.put("parent")
        lab.put("child", after=("parent",))
        lab.put("grandchild", after=("child",))
        kill(lab, "parent")
        lab.engine.replay("parent")
        lab.engine.repair()
        assert states(lab, "child", "grandchild") == [BLOCKED, BLOCKED]
        for id in ("parent", "child", "grandchild"):
            complete(lab, id)

    def test_a_parent_that_is_replayed_releases_the_children_that_wait(self, lab: Lab) -> None:
        family(lab, on_parent_failure=WAIT)
        kill(lab, "parent")
        lab.engine.replay("parent")
        lab.engine.repair()
        assert states(lab, "child") == [BLOCKED]
        complete(lab, "parent")
        complete(lab, "child")

    def test_a_replayed_parent_that_completes_at_once_releases_all_that_it_cancelled(self, lab: Lab) -> None:
        number = MAX_CHILDREN + MAX_CHILDREN // 2
        lab.put("parent")
        lab.engine.accept([lab.envelope(f"c{at}", after=("parent",), queue="many") for at in range(number)])
        kill(lab, "parent")
        lab.engine.repair()
        assert lab.engine.counts("many") == {"many": {CANCELLED: number}}
        lab.engine.replay("parent")
        complete(lab, "parent")
        lab.engine.repair()
        assert lab.engine.counts("many") == {"many": {PENDING: number}}

    def test_a_replayed_child_runs_although_its_parent_failed(self, lab: Lab) -> None:
        lab.put("parent", "other")
        lab.put("child", after=("parent",))
        lab.put("waiting", after=("parent", "other"))
        kill(lab, "parent")
        lab.engine.replay("child")
        lab.engine.replay("waiting")
        assert states(lab, "child", "waiting") == [PENDING, BLOCKED]
        lab.engine.replay("parent")
        lab.engine.repair()
        assert states(lab, "child", "waiting") == [PENDING, BLOCKED]

    def test_a_replayed_child_no_longer_waits_for_the_parent_that_failed(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a", "b"))
        kill(lab, "a")
        assert states(lab, "child") == [CANCELLED]
        lab.engine.replay("child")
        complete(lab, "b")
        complete(lab, "child")

    def test_a_child_of_two_failed_parents_is_revived_when_both_are_replayed(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a", "b"))
        for id in ("a", "b"):
            kill(lab, id)
        for id, expected in (("a", CANCELLED), ("b", BLOCKED)):
            lab.engine.replay(id)
            lab.engine.repair()
            assert states(lab, "child") == [expected]
        complete(lab, "a", "b")
        complete(lab, "child")

    def test_a_cancelled_child_stays_cancelled(self, lab: Lab) -> None:
        family(lab)
        lab.engine.cancel("child", "by hand")
        complete(lab, "parent")
        view = lab.view("child")
        assert (view.state, view.cancel_reason) == (CANCELLED, "by hand")
        lab.engine.replay("child")
        complete(lab, "child")

    def test_a_rescheduled_child_still_waits(self, lab: Lab) -> None:
        family(lab)
        assert lab.engine.reschedule([lab.envelope("child", payload={"new": 1}, delay=60)]) == [True]
        lab.advance(60)
        lease = lab.take("parent")
        assert lab.claim() == []
        assert lab.engine.ack(lease)
        lab.take("child")

    def test_a_parent_is_retained_for_its_unfinished_children(self, lab: Lab) -> None:
        engine = lab.open(LeasePolicy(retain_completed_s=60))
        family(lab)
        lab.put("plain", queue="other")
        assert engine.ack(lab.take("plain", queue="other"))
        complete(lab, "parent")
        lab.advance(61)
        engine.prune()
        assert lab.engine.get("plain") is None
        complete(lab, "child")
        assert lab.history("parent").job.state is COMPLETED
        lab.advance(61)
        engine.prune()
        engine.prune()
        assert lab.ids() == []

    def test_no_call_changes_more_than_a_thousand_children(self, lab: Lab) -> None:
        number = MAX_CHILDREN + MAX_CHILDREN // 2
        lab.put("parent")
        lab.engine.accept([lab.envelope(f"c{at}", after=("parent",), queue="many") for at in range(number)])
        assert lab.engine.ack(lab.take("parent"))
        left = lab.engine.counts("many")["many"].get(BLOCKED, 0)
        assert left in (number - MAX_CHILDREN, 0)
        lab.engine.repair()
        assert lab.engine.counts("many") == {"many": {PENDING: number}}

    def test_parents_that_complete_at_once_release_the_child_once(self, lab: Lab) -> None:
        parents = [f"p{at}" for at in range(CROWD)]
        lab.put(*parents)
        lab.put("child", after=tuple(parents), queue="children")
        leases = lab.claim(CROWD)

        def finish(engine: Engine, at: int) -> bool:
            return engine.settle([Ack(lease=leases[at], record=lab.record())])[0]

        assert at_once(lab, CROWD, finish) == [True] * CROWD
        lab.engine.repair()
        assert [lease.id for lease in lab.claim(queue="children")] == ["child"]

    def test_a_child_accepted_while_its_parent_ends_runs(self, lab: Lab) -> None:
        lab.put("parent")
        lease = lab.take("parent")

        def act(engine: Engine, at: int) -> bool:
            if at == 0:
                return engine.settle([Ack(lease=lease, record=lab.record())])[0]
            child = lab.envelope(f"child-{at}", after=("parent",), queue="children")
            return engine.accept([child])[0].created

        assert at_once(lab, CROWD, act) == [True] * CROWD
        lab.engine.repair()
        found = sorted(one.id for one in lab.claim(queue="children"))
        assert found == [f"child-{at}" for at in range(1, CROWD)]

    def test_relatives_are_listed(self, lab: Lab) -> None:
        lab.put("a", "b")
        lab.put("child", after=("a", "b"), on_parent_failure=RUN)
        lab.put("late", after=("child",), delay=60)
        kill(lab, "a")
        found = lab.engine.relatives("child")
        assert [(one.job_id, one.state, one.on_failure, one.outcome) for one in found.parents] == [
            ("a", JobState.DEAD, RUN, EdgeOutcome.MET),
            ("b", PENDING, RUN, EdgeOutcome.OPEN),
        ]
        assert [(one.job_id, one.state, one.outcome) for one in found.children] == [("late", BLOCKED, EdgeOutcome.OPEN)]
        assert (found.open_parents, found.child_count) == (1, 1)
        assert [one.job_id for one in lab.engine.relatives("child", limit=1).parents] == ["a"]
        assert lab.engine.relatives("unknown").child_count == 0

    def test_blocked_children_are_counted_and_found(self, lab: Lab) -> None:
        family(lab)
        assert lab.engine.counts()[DEFAULT_QUEUE] == {PENDING: 1, BLOCKED: 1}
        assert lab.ids(JobFilter(states=(BLOCKED,))) == ["child"]
        assert lab.engine.slots() == []
        assert lab.engine.repair() == 0

    def test_a_child_can_have_keys(self, lab: Lab) -> None:
        lab.put("parent")
        lab.put("child", after=("parent",))
        complete(lab, "parent")
        lease = lab.take("child")
        holder = hold(lab, "holder")
        assert enter(lab, lease, KEY).outcome is EntryOutcome.BLOCKED
        lab.engine.repair()
        assert states(lab, "child") == [BLOCKED]
        ends: list[Settlement] = [Ack(lease=holder, record=lab.record(), leaves=(KEY.name,))]
        assert lab.engine.settle(ends) == [True]
        lab.take("child")

    def test_a_settlement_can_enqueue_a_child_of_its_job(self, lab: Lab) -> None:
        lab.put("parent")
        lease = lab.take("parent")
        child = lab.envelope("child", after=("parent",))
        assert lab.engine.settle([Ack(lease=lease, record=lab.record(), enqueues=(child,))]) == [True]
        complete(lab, "child")
        lab.put("failing")
        follower = lab.envelope("follower", after=("failing",))
        dead: Settlement = Abandon(lease=lab.take("failing"), reason=DeadReason.FAILED, enqueues=(follower,))
        assert lab.engine.settle([dead]) == [True]
        lab.engine.repair()
        assert states(lab, "follower") == [CANCELLED]

    def test_transactions_release_children_and_accept_them(self, lab: Lab) -> None:
        if not lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine declares that it has no transactions")
        lab.put("parent")
        transaction = lab.engine.transaction("parent", lab.take("parent").delivery)
        tx = transaction.connection
        with pytest.raises(UnknownParent):
            lab.engine.accept([lab.envelope("other", after=("parent", "nobody"))], tx=tx)
        lab.engine.accept([lab.envelope("child", after=("parent",))], tx=tx)
        transaction.complete(lab.record())
        lab.engine.repair()
        transaction = lab.engine.transaction("child", lab.take("child").delivery)
        lab.engine.accept([lab.envelope("late", after=("parent", "child"))], tx=transaction.connection)
        transaction.complete(lab.record())
        lab.engine.repair()
        complete(lab, "late")

    def test_a_child_whose_transaction_was_rolled_back_holds_nothing_up(self, lab: Lab) -> None:
        if not lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine declares that it has no transactions")
        lab.put("parent", "job")
        parent, job = lab.claim(2)
        transaction = lab.engine.transaction("job", job.delivery)
        with lab.unchanged():
            lab.engine.accept([lab.envelope("child", after=("parent",))], tx=transaction.connection)
            transaction.roll_back()
        assert lab.engine.relatives("parent").child_count == 0
        assert lab.engine.settle([Ack(lease=parent, record=lab.record())]) == [True]
