"""Writes and jobs that settlements, `accept` and transactions carry: in the same commit, or not at all."""

import pytest
from msgspec.structs import replace

from holdfast.errors import IdConflict, StateConflict
from holdfast.queues.contract import new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import (
    DEFAULT_QUEUE,
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    DeadReason,
    Drop,
    JobLease,
    JobState,
    Nack,
    Outcome,
    Put,
    Release,
    Settlement,
)

KIND = "mark"


def put(key: str, value: bytes = b"done") -> Put:
    """A write without a condition."""
    return Put(kind=KIND, key=key, value=value)


def marks(lab: Lab) -> dict[str, bytes]:
    """All cells of our kind."""
    return {cell.key: cell.value for cell in lab.engine.state.read(KIND)}


class CarryingLaws:
    """The guarantees for writes and jobs that are carried along."""

    def test_each_settlement_applies_its_own_writes_and_enqueues(self, lab: Lab) -> None:
        ids = ["ack", "nack", "release", "abandon", "cancel"]
        lab.put(*ids)
        by_id = {lease.id: lease for lease in lab.claim()}
        ends: dict[str, Settlement] = {
            "ack": Ack(lease=by_id["ack"], record=lab.record()),
            "nack": Nack(lease=by_id["nack"], delay=60),
            "release": Release(lease=by_id["release"], delay=60),
            "abandon": Abandon(lease=by_id["abandon"], reason=DeadReason.FAILED),
            "cancel": CancelJob(lease=by_id["cancel"]),
        }
        carrying = [
            replace(end, writes=(put(id),), enqueues=(lab.envelope(f"after-{id}", queue="next"),))
            for id, end in ends.items()
        ]
        assert lab.engine.settle(carrying) == [True] * 5
        assert sorted(marks(lab)) == sorted(ids)
        assert sorted(lease.id for lease in lab.claim(queue="next")) == sorted(f"after-{id}" for id in ids)

    def test_an_exchange_applies_writes_and_enqueues_before_it_claims(self, lab: Lab) -> None:
        lab.put("a", "b")
        first, second = lab.claim()
        chained = Ack(lease=first, record=lab.record(), writes=(put("a"),), enqueues=(lab.envelope("next"),))
        plain = Ack(lease=second, record=lab.record())
        answers, leases = lab.engine.exchange([plain, chained], DEFAULT_QUEUE, 5, owner_token=new_owner_token())
        assert answers == [True, True]
        assert [lease.id for lease in leases] == ["next"]
        assert marks(lab) == {"a": b"done"}

    def test_a_refused_settlement_carries_nothing(self, lab: Lab) -> None:
        lab.put("stale", "fine")
        stale, fine = lab.claim()
        forged = replace(stale, owner_token=new_owner_token())
        answers = lab.engine.settle([self._carrying(lab, forged), self._carrying(lab, fine)])
        assert answers == [False, True]
        assert marks(lab) == {"fine": b"done"}
        lab.advance(LEASE_S)
        assert lab.engine.settle([self._carrying(lab, stale)]) == [False]
        assert marks(lab) == {"fine": b"done"}
        assert sorted(lab.ids()) == ["after-fine", "fine", "stale"]

    def test_a_repeated_settlement_carries_nothing_twice(self, lab: Lab) -> None:
        lab.put("a")
        settlement = self._carrying(lab, lab.take("a"))
        assert lab.engine.settle([settlement, settlement]) == [True, True]
        [cell] = lab.engine.state.read(KIND)
        lab.engine.state.write([Drop(kind=KIND, key="a")])
        assert lab.engine.settle([settlement]) == [True]
        assert marks(lab) == {}
        [after] = lab.claim(queue=DEFAULT_QUEUE)
        assert after.id == "after-a"
        assert cell.value == b"done"

    def test_a_settlement_that_cannot_be_written_changes_nothing_and_others_can_be_settled(self, lab: Lab) -> None:
        lab.put("taken", queue="elsewhere")
        lab.put("a", "bad", "c")
        a, bad, c = lab.claim()
        clash = Ack(lease=bad, writes=(put("bad"),), enqueues=(lab.envelope("taken", payload="other", queue="x"),))
        batch = [self._carrying(lab, a), clash, self._carrying(lab, c)]
        with lab.unchanged(), pytest.raises(IdConflict):
            lab.engine.settle(batch)
        assert marks(lab) == {}
        assert lab.engine.settle([batch[0], batch[2]]) == [True, True]
        assert marks(lab) == {"a": b"done", "c": b"done"}
        with lab.unchanged(), pytest.raises(IdConflict):
            lab.engine.settle([clash])
        assert lab.engine.ack(bad)

    def test_the_writes_of_a_settlement_cannot_have_conditions(self, lab: Lab) -> None:
        lab.put("a")
        lease = lab.take("a")
        conditional = Put(kind=KIND, key="a", if_version=0)
        with lab.unchanged(), pytest.raises(ValueError, match="if_version"):
            lab.engine.settle([Ack(lease=lease, writes=(conditional,))])
        assert lab.engine.ack(lease)

    def test_a_settlement_enqueues_a_known_job_once(self, lab: Lab) -> None:
        lab.put("a", "b")
        known = lab.envelope("known", queue="next")
        lab.engine.accept([known])
        first, second = lab.claim()
        settlements = [Ack(lease=lease, enqueues=(known,)) for lease in (first, second)]
        assert lab.engine.settle(settlements) == [True, True]
        assert [lease.id for lease in lab.claim(queue="next")] == ["known"]

    def test_jobs_are_accepted_with_writes_or_not_at_all(self, lab: Lab) -> None:
        first = Put(kind=KIND, key="schedule", value=b"1", if_version=0)
        [accepted] = lab.engine.accept([lab.envelope("a")], writes=[first])
        assert accepted.created
        assert marks(lab) == {"schedule": b"1"}
        with lab.unchanged(), pytest.raises(StateConflict):
            lab.engine.accept([lab.envelope("b")], writes=[put("x"), first])
        with lab.unchanged(), pytest.raises(IdConflict):
            lab.engine.accept([lab.envelope("a", payload="other")], writes=[put("x")])
        assert marks(lab) == {"schedule": b"1"}
        [cell] = lab.engine.state.read(KIND)
        after = Put(kind=KIND, key="schedule", value=b"2", if_version=cell.version)
        assert [one.created for one in lab.engine.accept([lab.envelope("a")], writes=[after])] == [False]
        assert marks(lab) == {"schedule": b"2"}

    def test_writes_are_refused_in_a_callers_transaction(self, lab: Lab) -> None:
        with lab.unchanged(), pytest.raises(ValueError, match="transaction"):
            lab.engine.accept([lab.envelope("a")], tx=object(), writes=[put("a")])
        assert marks(lab) == {}

    def test_a_transaction_applies_writes_and_enqueues(self, lab: Lab) -> None:
        if not lab.engine.capabilities.transactional_enqueue:
            pytest.skip("the engine declares that it has no transactions")
        lab.put("a", "b")
        a, b = lab.claim()
        record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
        next_job = lab.envelope("next", queue="next")
        lab.engine.transaction("a", a.delivery).complete(record, writes=[put("a")], enqueues=[next_job])
        assert lab.view("a").state is JobState.COMPLETED
        assert marks(lab) == {"a": b"done"}
        assert [lease.id for lease in lab.claim(queue="next")] == ["next"]
        transaction = lab.engine.transaction("b", b.delivery)
        clash = lab.envelope("next", payload="other", queue="next")
        with pytest.raises(IdConflict):
            transaction.complete(record, writes=[put("b")], enqueues=[clash])
        assert marks(lab) == {"a": b"done"}
        assert lab.view("b").state is JobState.PROCESSING

    def _carrying(self, lab: Lab, lease: JobLease) -> Ack:
        return Ack(lease=lease, writes=(put(lease.id),), enqueues=(lab.envelope(f"after-{lease.id}"),))
