"""Transactions that are not the engine's own: jobs and effects that exist together, or not at all."""

import pytest

from holdfast.errors import IdConflict, LeaseLost, NotSupported, TransactionRefused
from holdfast.testing.lab import Lab
from holdfast.values import Accepted, AttemptRecord, DeadReason, JobState, Outcome


def _record(result: bytes | None = None) -> AttemptRecord:
    return AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2, output="said", result=result)


def _skip_without_transactions(lab: Lab) -> None:
    if not lab.engine.capabilities.transactional_enqueue:
        pytest.skip("the engine declares that it has no transactions")


class TransactingLaws:
    """What enqueueing and completing in a transaction of somebody else's means."""

    def test_an_engine_without_transactions_says_so(self, lab: Lab) -> None:
        if lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine declares that it has transactions")
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged(), pytest.raises(NotSupported):
            lab.engine.transaction("a", lease.delivery)

    def test_a_transaction_is_refused_where_none_is_declared(self, lab: Lab) -> None:
        if lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine declares that it can enqueue in a transaction")
        with lab.unchanged(), pytest.raises(NotSupported):
            lab.engine.accept([lab.envelope("a")], tx=object())

    def test_a_transaction_completes_its_job_and_keeps_the_record(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        lab.engine.transaction("a", lease.delivery).complete(_record(b"42"))
        assert lab.view("a").state is JobState.COMPLETED
        [attempt] = lab.history("a").attempts
        assert attempt.record == _record(b"42")
        assert attempt.delivery == lease.delivery

    def test_the_verdict_of_the_worker_behind_it_is_a_repetition(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a", "b")
        for job_id in ("a", "b"):
            lab.engine.transaction(job_id, lab.take(job_id).delivery).roll_back()
        lab.advance(100)
        assert lab.engine.reap_expired() == 2
        a, b = lab.take("a"), lab.take("b")
        lab.engine.transaction("a", a.delivery).complete(_record())
        with lab.unchanged():
            assert lab.engine.ack(a, _record())
            assert lab.engine.ack(a)
            assert not lab.engine.nack(a)
            assert not lab.engine.abandon(a, DeadReason.FAILED)
        lab.engine.transaction("b", b.delivery).complete(_record(b"1"))
        assert lab.engine.ack(b)

    def test_a_transaction_rolled_back_leaves_the_job_with_its_run(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged():
            lab.engine.transaction("a", lease.delivery).roll_back()
        assert lab.engine.ack(lease)

    def test_jobs_enqueued_in_a_transaction_are_seen_when_it_is_completed(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease, other = lab.take("a"), lab.open()
        transaction = lab.engine.transaction("a", lease.delivery)
        jobs = [lab.envelope("b"), lab.envelope("c")]
        accepted = lab.engine.accept(jobs, tx=transaction.connection)
        assert accepted == [Accepted(id="b", created=True), Accepted(id="c", created=True)]
        assert (other.get("b"), other.get("c")) == (None, None)
        transaction.complete(_record())
        assert [lab.view(job_id).state for job_id in ("a", "b", "c")] == [
            JobState.COMPLETED,
            JobState.PENDING,
            JobState.PENDING,
        ]
        assert lab.take("b").wire == jobs[0].wire

    def test_jobs_enqueued_in_a_transaction_are_gone_when_it_is_rolled_back(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged():
            transaction = lab.engine.transaction("a", lease.delivery)
            lab.engine.accept([lab.envelope("b")], tx=transaction.connection)
            transaction.roll_back()
        assert lab.engine.accept([lab.envelope("b")]) == [Accepted(id="b", created=True)]

    def test_an_id_is_known_in_a_transaction_too_and_a_conflict_spoils_nothing(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a", "known")
        lease = lab.take("a")
        transaction = lab.engine.transaction("a", lease.delivery)
        tx = transaction.connection
        assert lab.engine.accept([lab.envelope("known")], tx=tx) == [Accepted(id="known", created=False)]
        with pytest.raises(IdConflict):
            lab.engine.accept([lab.envelope("new"), lab.envelope("known", payload="other")], tx=tx)
        assert lab.engine.accept([lab.envelope("b")], tx=tx) == [Accepted(id="b", created=True)]
        transaction.complete(_record())
        assert lab.engine.get("new") is None
        assert lab.view("b").state is JobState.PENDING

    def test_a_run_that_lost_its_job_cannot_complete_it(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        lab.advance(lease.ttl_s + 1)
        with lab.unchanged(), pytest.raises(LeaseLost):
            lab.engine.transaction("a", lease.delivery)
        lab.engine.reap_expired()
        with lab.unchanged(), pytest.raises(LeaseLost):
            lab.engine.transaction("a", lease.delivery)
        lab.take("a")
        with lab.unchanged(), pytest.raises(LeaseLost):
            lab.engine.transaction("a", lease.delivery)

    def test_a_lease_that_ends_while_the_transaction_is_open_takes_all_of_it_along(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged():
            transaction = lab.engine.transaction("a", lease.delivery)
            lab.engine.accept([lab.envelope("b")], tx=transaction.connection)
            lab.advance(lease.ttl_s + 1)
            with pytest.raises(LeaseLost):
                transaction.complete(_record())
        assert lab.engine.get("b") is None

    def test_what_is_no_connection_is_refused(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        with lab.unchanged(), pytest.raises(TransactionRefused):
            lab.engine.accept([lab.envelope("a")], tx=object())
