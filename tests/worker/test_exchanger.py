"""Talking to the engine for a worker: each claim and each verdict once, whatever happens to the answers."""

import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.config import Settings
from holdfast.errors import BackendError, BackendUnavailable
from holdfast.handlers import HandlerRegistry
from holdfast.queues.contract import new_session
from holdfast.rates import Rate
from holdfast.state.breakers import Breakers, Rule
from holdfast.values import Ack, AttemptRecord, JobLease, JobState, Outcome, Settlement, Spend
from holdfast.worker.admission import Admission, Admitted
from holdfast.worker.backoff import EngineBackoff
from holdfast.worker.circuits import DEFAULT_RULE, QueueCircuits
from holdfast.worker.exchanger import EngineAnswer, EngineRequest, Exchanger
from holdfast.worker.round_robin import RoundRobin
from holdfast.worker.throttle import Throttle

from ..faults.processes import until
from . import app
from .floor import Floor


class Line:
    """An exchanger and the answers it has given."""

    def __init__(
        self,
        floor: Floor,
        rule: Rule = DEFAULT_RULE,
        limits: Mapping[str, Rate] | None = None,
        *,
        poll_interval_s: float = 0.0,
    ) -> None:
        self.floor = floor
        self.engine = floor.engine
        self.fence_at: Callable[[JobLease], float] = lambda lease: lease.fence_at
        self.answers: list[EngineAnswer] = []
        self.session = new_session()
        self.claimed: list[JobLease] = []
        self.backoff = EngineBackoff(SYSTEM_CLOCK)
        self.circuits = QueueCircuits(Breakers(floor.engine.state), SYSTEM_CLOCK, rule)
        self.backoff.subscribe(lambda problem: self.circuits.answered() if problem is None else None)
        registry = HandlerRegistry()
        app.register(registry)
        self.admission = Admission(floor.engine.ring, registry, SYSTEM_CLOCK)
        self.exchanger = Exchanger(
            floor.engine,
            RoundRobin({"default": 1, "b": 1}),
            session=self.session,
            admission=self.admission,
            backoff=self.backoff,
            throttle=Throttle(floor.engine.state, limits or {}, floor.engine.clock, poll_interval_s=poll_interval_s),
            circuits=self.circuits,
            on_claimed=self.claimed.extend,
            on_answer=self.answers.append,
            fence_at=lambda lease: self.fence_at(lease),
        )

    def ask(self, request: EngineRequest) -> EngineAnswer:
        self.exchanger.ask(request)
        return self.answer()

    def answer(self) -> EngineAnswer:
        until(lambda: self.answers, "an answer")
        return self.answers.pop()

    def close(self) -> None:
        self.exchanger.close(10.0)

    def lease(self) -> JobLease:
        self.floor.put("quick")
        lease = self.engine.fetch("default")
        assert lease is not None
        return lease

    def verdict(self, lease: JobLease) -> Ack:
        now = self.engine.clock.now_us()
        return Ack(lease=lease, record=AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now, ended_us=now))


@pytest.fixture
def line(floor: Floor) -> Iterator[Line]:
    line = Line(floor)
    yield line
    line.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-exchanger"]


def test_it_settles_and_claims_in_one_exchange(line: Line, floor: Floor) -> None:
    lease = line.lease()
    waiting = floor.put("quick")
    answer = line.ask(EngineRequest(settlements=[line.verdict(lease)], limits={"default": 5, "b": 5}))
    assert answer.held == [True]
    assert [one.id for one in answer.admitted.leases] == [waiting]
    assert line.engine.calls["exchange"] == 1
    assert line.engine.calls["settle"] == 0


def test_it_claims_from_the_first_queue_that_has_work_and_no_more_than_asked(line: Line, floor: Floor) -> None:
    ids = {floor.put("quick", queue="b") for _ in range(5)}
    answer = line.ask(EngineRequest(limits={"default": 3, "b": 3}))
    assert len(answer.admitted) == 3
    assert {lease.id for lease in answer.admitted.leases} < ids


def test_it_claims_from_no_queue_that_was_not_asked_for(line: Line, floor: Floor) -> None:
    floor.put("quick", queue="b")
    assert line.ask(EngineRequest(limits={"default": 3})).admitted.leases == ()


def limited_burst(floor: Floor, rate: str) -> tuple[Line, EngineRequest]:
    """An exchanger of a burst whose only queue has this rate limit, and a request that waits for a job."""
    line = Line(floor, limits=Settings(limits={"default": rate}).rates, poll_interval_s=60.0)
    return line, EngineRequest(limits={"default": 1}, wait_s=3600.0, is_burst=True)


def test_a_burst_that_has_waited_for_a_token_does_not_wait_for_a_job(floor: Floor) -> None:
    line, request = limited_burst(floor, "10/s,burst=1")
    with closing(line):
        line.engine.state.spend([Spend(bucket="queue:default", tokens=1, per_s=10.0, burst=1)])
        answer = line.ask(request)
    assert (len(answer.admitted), answer.is_limited) == (0, False)


def test_settlements_do_not_wait_until_a_burst_knows_whether_its_limited_queue_is_empty(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, request = limited_burst(floor, "1/h")
    woken: list[bool] = []

    def wait_for_work(queues: Sequence[str], timeout: float, *, wake: int) -> None:
        woken.append(bool(select.select([wake], [], [], 0.0)[0]))

    monkeypatch.setattr(line.engine.jobs, "wait_for_work", wait_for_work)
    with closing(line):
        line.engine.state.spend([Spend(bucket="queue:default", tokens=1, per_s=1 / 3600, burst=1)])
        before = line.engine.calls["spend"]
        line.exchanger.ask(request)
        until(lambda: line.engine.calls["spend"] > before, "the exchanger to wait for a token")
        line.exchanger.nudge()
        assert line.answer().is_limited
    assert all(woken)


def test_waiting_ends_with_the_first_job(line: Line, floor: Floor) -> None:
    line.exchanger.ask(EngineRequest(limits={"default": 1}, wait_s=60.0))
    until(lambda: line.engine.calls["claim"], "a look in vain")
    id = floor.put("quick")
    assert [lease.id for lease in line.answer().admitted.leases] == [id]


def test_waiting_ends_with_a_nudge(line: Line) -> None:
    line.exchanger.ask(EngineRequest(limits={"default": 1}, wait_s=60.0))
    until(lambda: line.engine.calls["claim"], "a look in vain")
    line.exchanger.nudge()
    assert line.answer().admitted.leases == ()


def test_a_nudge_that_comes_too_late_does_not_spoil_the_next_wait(line: Line, floor: Floor) -> None:
    assert line.ask(EngineRequest(limits={"default": 1})).admitted.leases == ()
    line.exchanger.nudge()
    line.exchanger.ask(EngineRequest(settlements=[line.verdict(line.lease())]))
    line.answer()
    line.exchanger.ask(EngineRequest(limits={"default": 1}, wait_s=60.0))
    until(lambda: line.engine.calls["claim"] > 2, "a look in vain")
    id = floor.put("quick")
    assert [lease.id for lease in line.answer().admitted.leases] == [id]


def test_the_answer_that_was_lost_is_asked_for_again_with_the_same_token(line: Line, floor: Floor) -> None:
    line.engine.lost_answers["claim"] = 2
    ids = {floor.put("quick") for _ in range(3)}
    answer = line.ask(EngineRequest(limits={"default": 10}))
    assert {lease.id for lease in answer.admitted.leases} == ids
    assert {lease.delivery for lease in answer.admitted.leases} == {1}
    assert len({lease.owner_token for lease in answer.admitted.leases}) == 1


def test_a_verdict_whose_answer_was_lost_is_repeated_and_holds(line: Line, floor: Floor) -> None:
    line.engine.lost_answers["exchange"] = 2
    lease, waiting = line.lease(), floor.put("quick")
    answer = line.ask(EngineRequest(settlements=[line.verdict(lease)], limits={"default": 1}))
    assert answer.held == [True]
    assert [(one.id, one.delivery) for one in answer.admitted.leases] == [(waiting, 1)]
    assert floor.outcomes(lease.id) == [Outcome.SUCCEEDED]


def test_a_verdict_is_repeated_only_as_long_as_its_lease_can_hold(line: Line) -> None:
    ended, held = line.lease(), line.lease()
    line.fence_at = lambda lease: -1.0 if lease is ended else time.monotonic() + 60.0
    line.engine.lost_answers["settle"] = 1
    answer = line.ask(EngineRequest(settlements=[line.verdict(ended), line.verdict(held)]))
    assert answer.held == [None, True]


def test_one_verdict_that_cannot_be_written_does_not_hold_the_others_up(line: Line, floor: Floor) -> None:
    bad, good = line.lease(), line.lease()
    now = line.engine.clock.now_us()
    impossible = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now, ended_us=now, output="\ud800")
    answer = line.ask(EngineRequest(settlements=[Ack(lease=bad, record=impossible), line.verdict(good)]))
    assert answer.held == [None, True]
    assert floor.state(good.id) is JobState.COMPLETED
    assert floor.state(bad.id) is JobState.PROCESSING


def test_an_engine_that_answers_a_single_verdict_counts_as_available_again(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = line.lease(), line.lease()
    settle, calls = line.engine.settle, list[int]()

    def settle_alone(settlements: Sequence[Settlement]) -> list[bool]:
        calls.append(len(settlements))
        if len(settlements) > 1:
            raise RuntimeError("one of them cannot be written")
        if len(calls) == 2:
            raise BackendUnavailable("not now")
        return settle(settlements)

    monkeypatch.setattr(line.engine, "settle", settle_alone)
    answer = line.ask(EngineRequest(settlements=[line.verdict(first), line.verdict(second)]))
    assert answer.held == [True, True]
    assert calls == [2, 1, 1, 1]
    assert line.backoff.failing_since is None


def test_a_worker_that_leaves_claims_no_more_from_an_engine_that_is_away_but_still_delivers(line: Line) -> None:
    lease = line.lease()
    line.engine.down = {"claim", "settle"}
    line.exchanger.ask(EngineRequest(limits={"default": 1}))
    until(lambda: line.engine.calls["claim"] > 1, "a claim in vain")
    line.exchanger.leave()
    assert line.answer().admitted.leases == ()
    line.exchanger.ask(EngineRequest(settlements=[line.verdict(lease)]))
    until(lambda: line.engine.calls["settle"] > 1, "verdicts that are repeated")
    assert line.backoff.failing_since is not None
    line.engine.down.clear()
    assert line.answer().held == [True]
    assert line.backoff.failing_since is None


def test_a_worker_that_hurries_stops_repeating_verdicts(line: Line) -> None:
    lease = line.lease()
    line.engine.down = {"settle"}
    line.exchanger.ask(EngineRequest(settlements=[line.verdict(lease)]))
    until(lambda: line.engine.calls["settle"], "a verdict in vain")
    line.exchanger.hurry()
    assert line.answer().held == [None]
    assert line.backoff.failing_since is not None, "it has not answered yet"


def test_the_claims_of_a_worker_share_its_session_and_nothing_else(line: Line, floor: Floor) -> None:
    tokens: list[bytes] = []
    for verdicts in ([], [line.verdict(line.lease())]):
        floor.put("quick")
        answer = line.ask(EngineRequest(settlements=verdicts, limits={"default": 1}))
        [lease] = answer.admitted.leases
        tokens.append(bytes.fromhex(lease.owner_token))
    claimed, exchanged = tokens
    assert claimed[:8] == exchanged[:8] == line.session
    assert claimed[8:] != exchanged[8:]


def test_every_claimed_lease_is_passed_on_whether_or_not_its_job_may_run(line: Line, floor: Floor) -> None:
    """A refused one has to be held as well, until it is settled."""
    good, unknown = floor.put("quick"), floor.put("unheard-of")
    answer = line.ask(EngineRequest(limits={"default": 2}))
    assert {lease.id for lease in line.claimed} == {good, unknown}
    assert [lease.id for lease in answer.admitted.leases] == [good]
    assert [refusal.settlement.lease.id for refusal in answer.admitted.refusals] == [unknown]


def test_failed_claims_and_settlements_are_counted_together(line: Line) -> None:
    lease = line.lease()
    line.engine.down = {"claim", "settle"}
    line.exchanger.ask(EngineRequest(limits={"default": 1}))
    until(lambda: line.backoff.failures == 2, "two failed claims")
    since = line.backoff.failing_since
    line.exchanger.leave()
    line.answer()
    line.exchanger.ask(EngineRequest(settlements=[line.verdict(lease)]))
    until(lambda: line.engine.calls["settle"], "a verdict in vain")
    until(lambda: line.backoff.failures > 2, "its failure to be counted with the others")
    assert line.backoff.failing_since == since


def test_a_claim_that_fails_does_not_take_back_what_the_engine_answered_before(
    line: Line, floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = line.lease()

    def refuse(*_: object, **__: object) -> list[JobLease]:
        raise BackendError("the table is not there any more")

    monkeypatch.setattr(line.engine, "claim", refuse)
    answer = line.ask(EngineRequest(settlements=[line.verdict(lease)], limits={"default": 1, "b": 1}))
    assert isinstance(answer.problem, BackendError)
    assert answer.held == [True]
    assert floor.state(lease.id) is JobState.COMPLETED


def test_jobs_that_cannot_be_admitted_are_handed_back(
    line: Line, floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = floor.put("quick")

    def fail(*_: object) -> Admitted:
        raise RuntimeError("no more threads")

    monkeypatch.setattr(line.admission, "admit", fail)
    answer = line.ask(EngineRequest(limits={"default": 1}))
    assert isinstance(answer.problem, RuntimeError)
    assert [lease.id for lease in line.claimed] == [id]
    [refusal] = answer.admitted.refusals
    assert line.ask(EngineRequest(settlements=[refusal.settlement])).held == [True]
    assert floor.state(id) is JobState.PENDING
