"""Concurrent workers, each with its own handle: every verb is atomic."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from holdfast.errors import IdConflict
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.testing.lab import LEASE_S, Lab
from holdfast.values import DEFAULT_QUEUE, Ack, JobLease, JobState, Nack, Settlement

T = TypeVar("T")
PATIENCE_S = 60.0


def at_once(lab: Lab, count: int, act: Callable[[Engine, int], T]) -> list[T]:
    """The answers of `count` threads that start together, each with its own handle; the first error is raised."""
    answers: list[T] = []
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            engine = lab.open()
            start.wait(PATIENCE_S)
            answers.append(act(engine, number))
        except BaseException as error:
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread is stuck"
    if errors:
        raise errors[0]
    return answers


class RacingLaws:
    """The guarantees for concurrent calls."""

    def test_concurrent_claims_never_share_a_job(self, lab: Lab) -> None:
        ids = [f"job{number:02}" for number in range(40)]
        lab.engine.accept([lab.envelope(id) for id in ids])

        def claim_all(engine: Engine, _: int) -> list[str]:
            mine: list[str] = []
            while leases := engine.claim(DEFAULT_QUEUE, 3, owner_token=new_owner_token()):
                mine += [lease.id for lease in leases]
            return mine

        taken = [id for mine in at_once(lab, 4, claim_all) for id in mine]
        assert sorted(taken) == ids
        assert all(lab.view(id).deliveries == 1 for id in ids)

    def test_concurrent_exchanges_complete_every_job_once(self, lab: Lab) -> None:
        ids = [f"job{number:02}" for number in range(40)]
        lab.engine.accept([lab.envelope(id) for id in ids])

        def work(engine: Engine, _: int) -> list[bool]:
            answers: list[bool] = []
            leases: list[JobLease] = []
            while True:
                done = [Ack(lease=lease, record=lab.record()) for lease in leases]
                settled, leases = engine.exchange(done, DEFAULT_QUEUE, 3, owner_token=new_owner_token())
                answers += settled
                if not leases:
                    return answers

        answers = [answer for mine in at_once(lab, 4, work) for answer in mine]
        assert answers == [True] * len(ids)
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.COMPLETED: len(ids)}}
        assert all(len(lab.history(id).attempts) == 1 for id in ids)

    def test_concurrent_reapers_count_a_crash_once(self, lab: Lab) -> None:
        lab.put("a", "b", "c")
        lab.claim()
        lab.advance(LEASE_S)
        assert sum(at_once(lab, 4, lambda engine, _: engine.reap_expired())) == 3
        for id in ("a", "b", "c"):
            assert (lab.view(id).state, lab.view(id).crashes) == (JobState.PENDING, 1)
            assert len(lab.history(id).attempts) == 1

    def test_of_two_concurrent_verdicts_one_applies(self, lab: Lab) -> None:
        for number in range(5):
            id = f"job{number}"
            lab.put(id, priority=9)
            lease = lab.take(id)
            rivals = (Ack(lease=lease, record=lab.record()), Nack(lease=lease, delay=999, record=lab.record()))
            answers = at_once(lab, 2, partial(self._settle_one_of, rivals))
            assert sorted(answers) == [False, True]
            assert (lab.view(id).state, lab.view(id).attempts) in ((JobState.COMPLETED, 0), (JobState.FAILED, 1))
            assert len(lab.history(id).attempts) == 1

    def _settle_one_of(self, rivals: Sequence[Settlement], engine: Engine, which: int) -> bool:
        return engine.settle([rivals[which]])[0]

    def test_the_same_settlement_sent_concurrently_is_applied_once(self, lab: Lab) -> None:
        lab.put("a")
        failed = Nack(lease=lab.take("a"), delay=999, record=lab.record())
        assert at_once(lab, 4, lambda engine, _: engine.settle([failed])[0]) == [True] * 4
        assert lab.view("a").attempts == 1
        assert len(lab.history("a").attempts) == 1

    def test_the_same_claim_sent_concurrently_stamps_one_batch(self, lab: Lab) -> None:
        lab.put("a", "b", "c", "d")
        token = new_owner_token()
        answers = at_once(lab, 4, lambda engine, _: engine.claim(DEFAULT_QUEUE, 2, owner_token=token))
        assert [sorted(lease.id for lease in leases) for leases in answers] == [["a", "b"]] * 4
        assert lab.engine.counts() == {DEFAULT_QUEUE: {JobState.PROCESSING: 2, JobState.PENDING: 2}}

    def test_the_same_job_enqueued_concurrently_is_one_job(self, lab: Lab) -> None:
        batch = [lab.envelope("a"), lab.envelope("b")]
        answers = at_once(lab, 4, lambda engine, _: [answer.created for answer in engine.accept(batch)])
        assert Counter(map(tuple, answers)) == {(True, True): 1, (False, False): 3}
        assert sorted(lab.ids()) == ["a", "b"]

    def test_of_two_concurrent_contents_one_gets_the_id(self, lab: Lab) -> None:
        envelopes = [lab.envelope("a", payload=1), lab.envelope("a", payload=2)]

        def accept(engine: Engine, which: int) -> bool:
            try:
                return engine.accept([envelopes[which]])[0].created
            except IdConflict:
                return False

        assert sorted(at_once(lab, 2, accept)) == [False, True]
        assert lab.take("a").wire in {envelope.wire for envelope in envelopes}

    def test_concurrent_replays_start_one_new_life(self, lab: Lab) -> None:
        lab.put("a")
        lab.engine.cancel("a")
        answers = at_once(lab, 4, lambda engine, _: engine.replay("a"))
        assert Counter(answers) == {"replayed": 1, "not-final": 3}
        assert [lease.id for lease in lab.claim()] == ["a"]

    def test_creating_the_schema_concurrently_is_safe(self, lab: Lab) -> None:
        at_once(lab, 4, lambda engine, _: engine.create_schema())
        lab.put("a")
        assert lab.ids() == ["a"]
