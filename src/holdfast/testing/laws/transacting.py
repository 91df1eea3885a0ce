"""Transactions of callers and handlers: their jobs and writes are committed together, or not at all."""

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
    """The guarantees for enqueueing and completing in such a transaction."""

    def test_an_engine_without_transactions_raises_not_supported(self, lab: Lab) -> None:
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

    def test_a_transaction_completes_its_job_and_stores_the_record(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        lab.engine.transaction("a", lease.delivery).complete(_record(b"42"))
        assert lab.view("a").state is JobState.COMPLETED
        [attempt] = lab.history("a").attempts
        assert attempt.record == _record(b"42")
        assert attempt.delivery == lease.delivery

    def test_the_workers_verdict_after_a_transaction_is_a_repetition(self, lab: Lab) -> None:
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

    def test_a_rollback_leaves_the_job_leased(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged():
            lab.engine.transaction("a", lease.delivery).roll_back()
        assert lab.engine.ack(lease)

    def test_jobs_enqueued_in_a_transaction_are_visible_when_it_commits(self, lab: Lab) -> None:
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

    def test_jobs_enqueued_in_a_transaction_do_not_exist_after_a_rollback(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        lab.put("a")
        lease = lab.take("a")
        with lab.unchanged():
            transaction = lab.engine.transaction("a", lease.delivery)
            lab.engine.accept([lab.envelope("b")], tx=transaction.connection)
            transaction.roll_back()
        assert lab.engine.accept([lab.envelope("b")]) == [Accepted(id="b", created=True)]

    def test_a_conflict_in_a_transaction_leaves_the_transaction_usable(self, lab: Lab) -> None:
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

    def test_a_run_that_lost_its_lease_cannot_complete_the_job(self, lab: Lab) -> None:
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

    def test_a_transaction_whose_lease_has_expired_is_rolled_back(self, lab: Lab) -> None:
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

    def test_an_object_that_is_not_a_connection_is_refused(self, lab: Lab) -> None:
        _skip_without_transactions(lab)
        with lab.unchanged(), pytest.raises(TransactionRefused):
            lab.engine.accept([lab.envelope("a")], tx=object())
