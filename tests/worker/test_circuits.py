"""The circuits of queues: when claims stop, when they are tried again, what is noted in the store, and what goes on."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SYSTEM_CLOCK, ManualClock
from holdfast.errors import BackendError, BackendUnavailable
from holdfast.rates import parse_rate
from holdfast.state.breakers import Breakers, Rule
from holdfast.testing import Lab, memory_lab
from holdfast.values import CircuitState, JobLease, JobState, Release, Spend, Spent, WorkerResult, WorkerStatus
from holdfast.worker.circuits import QueueCircuits
from holdfast.worker.exchanger import EngineRequest

from ..faults.processes import until
from .floor import Floor
from .test_exchanger import Line

AWAY, REFUSED = BackendUnavailable("the server is away"), BackendError("the table is not there any more")
RULE = Rule(failures=3, cooldown=60.0)
EVER_LONGER = Rule(failures=2, cooldown=3600.0)


class Site:
    """The circuits of a worker, and what they reported."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.breakers = Breakers(lab.engine.state)
        self.opened: list[str] = []
        self.readied = 0
        self.circuits = self.another()

    def another(self) -> QueueCircuits:
        """The circuits of another worker, or of this one after a restart."""
        circuits = QueueCircuits(self.breakers, self.lab.clock, RULE, on_open=self.opened.append)
        circuits.on_ready = self._ready
        return circuits

    def _ready(self) -> None:
        self.readied += 1

    def fail(self, times: int = 3, problem: BackendError = REFUSED) -> None:
        for _ in range(times):
            assert self.circuits.admits("mail")
            self.circuits.failed("mail", problem)

    def noted(self) -> CircuitState:
        return self.breakers.get("queue_mail").state


@pytest.fixture
def site() -> Iterator[Site]:
    with memory_lab() as lab:
        yield Site(lab)


def test_errors_in_a_row_open_the_circuit_of_one_queue(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(4):
        site.fail(2)
        site.circuits.claimed("mail")
    site.fail()
    assert not site.circuits.admits("mail")
    assert site.circuits.admits("other")
    assert site.opened == ["mail"]
    assert [record.message for record in caplog.records] == [
        "circuit open: not claiming from queue 'mail' after 3 backend errors in a row; trying again in 60 s: "
        "the table is not there any more"
    ]


def test_after_the_cooldown_one_claim_decides(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.fail()
    site.lab.clock.advance(59)
    assert not site.circuits.admits("mail")
    assert site.circuits.wait_s(["mail"]) == pytest.approx(1)
    site.lab.clock.advance(1)
    site.fail(1)
    assert not site.circuits.admits("mail")
    site.lab.clock.advance(60)
    assert site.circuits.admits("mail")
    site.circuits.claimed("mail")
    site.fail(2)
    assert site.circuits.admits("mail")
    assert site.opened == ["mail"], "the circuit was reported more than once"
    assert [record.message.split(":")[0] for record in caplog.records] == ["circuit open", "circuit closed"]


def test_an_outage_ends_with_any_answer(site: Site) -> None:
    site.fail(problem=AWAY)
    assert not site.circuits.admits("mail")
    site.circuits.answered()
    assert site.readied == 1
    site.fail(1, AWAY)
    assert not site.circuits.admits("mail")
    site.circuits.answered()
    site.fail(1, REFUSED)
    site.circuits.answered()
    assert not site.circuits.admits("mail"), "the backend responds, so only the cooldown ends this"
    assert site.readied == 2


def test_an_answer_does_not_shorten_the_cooldown_of_other_errors(site: Site) -> None:
    site.fail()
    site.circuits.answered()
    assert not site.circuits.admits("mail")
    assert site.readied == 0


def test_the_state_is_noted_in_the_store(site: Site) -> None:
    site.fail()
    site.circuits.note()
    view = site.breakers.get("queue_mail")
    assert (view.state, view.failures) == (CircuitState.OPEN, 3)
    assert site.lab.engine.slots() == []
    site.lab.clock.advance(60)
    site.fail(1)
    site.circuits.note()
    assert site.noted() is CircuitState.OPEN
    site.lab.clock.advance(60)
    assert site.circuits.admits("mail")
    site.circuits.note()
    assert site.noted() is CircuitState.HALF_OPEN
    site.circuits.claimed("mail")
    site.circuits.note()
    assert site.noted() is CircuitState.CLOSED


def test_an_outage_is_not_noted(site: Site) -> None:
    site.fail(problem=AWAY)
    site.circuits.note()
    assert site.breakers.all() == []


def test_a_circuit_that_an_operator_resets_closes(site: Site) -> None:
    site.fail()
    site.circuits.note()
    site.circuits.note()
    assert not site.circuits.admits("mail")
    site.breakers.reset("queue_mail")
    site.circuits.note()
    assert site.readied == 1
    site.fail(2)
    assert site.circuits.admits("mail")


def test_a_worker_that_starts_continues_the_cooldown(site: Site) -> None:
    site.fail()
    site.circuits.note()
    site.lab.clock.advance(20)
    restarted = site.another()
    restarted.recall(["mail", "other"])
    assert restarted.wait_s(["mail"]) == pytest.approx(40)
    restarted.answered()
    assert not restarted.admits("mail")
    assert restarted.admits("other")
    site.lab.clock.advance(40)
    assert restarted.admits("mail")
    restarted.claimed("mail")
    restarted.note()
    assert site.noted() is CircuitState.CLOSED
    late = site.another()
    late.recall(["mail"])
    assert late.admits("mail")


def test_closed_circuits_cost_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.fail(1)
    site.circuits.claimed("mail")
    site.circuits.note()
    monkeypatch.setattr(site.lab.engine, "state", None)
    monkeypatch.setattr(site.breakers, "_state", None)
    site.circuits.claimed("mail")
    site.circuits.answered()
    site.circuits.note()
    assert site.circuits.admits("mail")


@pytest.fixture
def line(floor: Floor) -> Iterator[Line]:
    line = Line(floor, EVER_LONGER)
    yield line
    line.exchanger.close(10.0)


@pytest.fixture
def limited(floor: Floor) -> Iterator[Line]:
    """The queue `default` has one token an hour."""
    rate = parse_rate("1/h")
    assert rate is not None
    line = Line(floor, EVER_LONGER, {"default": rate})
    yield line
    line.exchanger.close(10.0)


def refuse_spends(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(spends: Sequence[Spend]) -> list[Spent]:
        raise BackendError("the table of buckets is locked")

    monkeypatch.setattr(line.engine.state, "spend", refuse)


def test_a_claim_that_was_given_up_has_its_token_of_the_rate_limit(limited: Line, floor: Floor) -> None:
    lease, waiting = limited.lease(), floor.put("quick")
    floor.engine.lost_answers["exchange"] = 2
    answer = limited.ask(EngineRequest(settlements=[limited.verdict(lease)], limits={"default": 1}))
    assert (answer.held, list(answer.admitted.leases)) == ([True], [])
    limited.circuits.answered()
    [found] = limited.ask(EngineRequest(limits={"default": 1})).admitted.leases
    assert (found.id, found.delivery) == (waiting, 1)


def test_a_rate_limit_that_cannot_be_checked_does_not_hold_up_other_queues(
    limited: Line, floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor.put("quick")
    other = floor.put("quick", queue="b")
    refuse_spends(limited, monkeypatch)
    answer = limited.ask(EngineRequest(limits={"default": 1, "b": 1}))
    assert ([lease.id for lease in answer.admitted.leases], answer.is_limited) == ([other], True)


def test_a_job_whose_rate_limit_cannot_be_checked_is_released_and_the_others_run(
    line: Line, floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated, plain = floor.put("quick", rate_limit="10/s"), floor.put("quick")
    refuse_spends(line, monkeypatch)
    admitted = line.ask(EngineRequest(limits={"default": 2})).admitted
    assert [lease.id for lease in admitted.leases] == [plain]
    [settlement] = [refusal.settlement for refusal in admitted.refusals]
    assert isinstance(settlement, Release)
    assert (settlement.lease.id, settlement.unstarted) == (rated, True)


def test_a_request_waits_only_for_the_queues_that_it_claims_from(line: Line, floor: Floor) -> None:
    """Jobs of the other queue, for which there is no room, would end the wait at once, again and again."""
    floor.put("quick", queue="b")
    before = floor.engine.calls["claim"]
    assert not line.ask(EngineRequest(limits={"default": 1}, wait_s=0.3)).admitted
    assert floor.engine.calls["claim"] - before <= 2


def test_a_circuit_that_an_earlier_worker_noted_is_closed_in_the_store(floor: Floor) -> None:
    breakers = Breakers(floor.engine.state)
    breakers.trip("queue_default", Rule(failures=2, cooldown=0.05))
    until(lambda: breakers.get("queue_default").state is CircuitState.HALF_OPEN, "the end of the cooldown")
    circuits = QueueCircuits(breakers, SYSTEM_CLOCK, EVER_LONGER)
    circuits.recall(["default"])
    assert circuits.admits("default")
    circuits.claimed("default")
    circuits.note()
    assert breakers.get("queue_default").state is CircuitState.CLOSED


def test_an_open_circuit_stops_claims_and_nothing_else(line: Line, floor: Floor) -> None:
    lease, waiting = line.lease(), floor.put("quick")
    line.engine.down = {"claim", "exchange"}
    calls = line.engine.calls["claim"]
    answer = line.ask(EngineRequest(limits={"default": 1}))
    assert (answer.is_refused, answer.problem, answer.admitted.leases) == (True, None, ())
    assert line.engine.calls["claim"] == calls + 2
    answer = line.ask(EngineRequest(settlements=[line.verdict(lease)], limits={"default": 1}))
    assert answer.held == [True]
    assert [one.id for one in answer.admitted.leases] == []
    assert line.engine.calls["exchange"] == 0
    line.engine.down.clear()
    assert [one.id for one in line.ask(EngineRequest(limits={"default": 1})).admitted.leases] == [waiting]


def test_an_exchange_that_cannot_claim_still_settles(line: Line) -> None:
    lease = line.lease()
    line.engine.down = {"claim", "exchange"}
    answer = line.ask(EngineRequest(settlements=[line.verdict(lease)], limits={"default": 1}))
    assert answer.held == [True]
    assert line.engine.calls["exchange"] == 2


def test_a_claim_that_was_given_up_is_repeated_with_its_token(line: Line, floor: Floor) -> None:
    line.engine.lost_answers["claim"] = 2
    ids = {floor.put("quick") for _ in range(3)}
    assert line.ask(EngineRequest(limits={"default": 10})).is_refused
    line.circuits.answered()
    answer = line.ask(EngineRequest(limits={"default": 10}))
    assert {lease.id for lease in answer.admitted.leases} == ids
    assert {lease.delivery for lease in answer.admitted.leases} == {1}


def test_a_worker_that_waits_for_a_circuit_is_woken_by_an_answer(line: Line, floor: Floor) -> None:
    line.engine.down = {"claim"}
    line.exchanger.ask(EngineRequest(limits={"default": 1}, wait_s=60.0))
    until(lambda: not line.circuits.admits("default"), "the circuit to open")
    calls = line.engine.calls["claim"]
    id = floor.put("quick")
    line.engine.down.clear()
    line.circuits.answered()
    line.answer()
    assert line.engine.calls["claim"] == calls
    assert [lease.id for lease in line.ask(EngineRequest(limits={"default": 1})).admitted.leases] == [id]


def test_a_queue_whose_circuit_is_open_does_not_hold_up_the_others(line: Line, floor: Floor) -> None:
    for _ in range(2):
        line.circuits.failed("default", REFUSED)
    floor.put("quick")
    id = floor.put("quick", queue="b")
    answer = line.ask(EngineRequest(limits={"default": 1, "b": 1}, wait_s=60.0))
    assert [lease.id for lease in answer.admitted.leases] == [id]


def _nothing() -> None: ...


def test_a_worker_in_this_process_reports_the_circuit_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with Holdfast("memory://", clock=clock) as hf, hf.worker() as worker:
        engine, results = hf.backend(), list[WorkerResult]()
        claim, problems = engine.claim, [REFUSED] * 5

        def refuse(*arguments: Any, **options: Any) -> list[JobLease]:
            if problems:
                raise problems.pop()
            return claim(*arguments, **options)

        monkeypatch.setattr(engine, "claim", refuse)
        hf.job(key="nothing", queue="mail")(_nothing).enqueue()
        loop = hf.loop(worker, ["mail"], max_jobs=1, on_result=results.append)
        started = clock.monotonic()
        loop.run()
        assert [one.status for one in results[:6]] == [WorkerStatus.ERROR] * 5 + [WorkerStatus.CIRCUIT_OPEN]
        assert (results[5].queue, results[6].queue, len(results)) == ("mail", "mail", 7)
        assert clock.monotonic() - started >= 60
        assert Breakers(engine.state).get("queue_mail").state is not CircuitState.OPEN


def test_a_burst_in_this_process_does_not_wait_for_a_circuit_that_an_earlier_worker_noted() -> None:
    with Holdfast("memory://", clock=ManualClock()) as hf, hf.worker() as worker:
        Breakers(hf.backend().state).trip("queue_mail", EVER_LONGER)
        job = hf.job(key="nothing", queue="mail")(_nothing).enqueue()
        hf.loop(worker, ["mail"], burst=True).run()
        assert job.status() is JobState.COMPLETED


def test_a_worker_survives_an_outage_and_reports_the_circuit(floor: Floor) -> None:
    id = floor.put("quick")
    floor.engine.down = {"claim", "exchange", "wait_for_work"}
    results: list[WorkerResult] = []
    worker = floor.start(listener=results.extend, breaker=EVER_LONGER)
    until(lambda: results, "the status circuit-open")
    assert [(one.status, one.queue) for one in results] == [(WorkerStatus.CIRCUIT_OPEN, "default")]
    floor.engine.down.clear()
    until(lambda: floor.outcomes(id), "the job to run")
    worker.stop()
    worker.ended()


def test_a_worker_reports_an_error_once_until_it_has_passed(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    is_broken = threading.Event()
    is_broken.set()
    claim, calls = floor.engine.claim, Counter[str]()

    def failing(*arguments: Any, **options: Any) -> list[JobLease]:
        calls["broken" if is_broken.is_set() else "sound"] += 1
        if is_broken.is_set():
            raise ValueError("a bug in the engine")
        return claim(*arguments, **options)

    monkeypatch.setattr(floor.engine, "claim", failing)
    results: list[WorkerResult] = []
    worker = floor.start(listener=results.extend)
    until(lambda: calls["broken"] >= 3, "three errors")
    is_broken.clear()
    id = floor.put("quick")
    floor.reached(id, JobState.COMPLETED)
    worker.stop()
    worker.ended()
    [error] = [one.error for one in results if one.status is WorkerStatus.ERROR]
    assert error is not None
    assert error.line == "ValueError: a bug in the engine"
