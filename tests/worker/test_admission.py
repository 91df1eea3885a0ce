"""Which claimed jobs may run: judged by the batch, off the worker's loop, with their leases held."""

import threading
from collections.abc import Callable, Sequence

import pytest

from holdfast.codec import JobMessage
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.queues.signing import Keyring
from holdfast.state.limits import Start
from holdfast.values import Abandon, DeadReason, JobState, Outcome, WorkerStatus
from holdfast.worker.admission import Admission

from ..faults.processes import until
from .bench import KEY, Bench
from .floor import Floor

DEADLINE_S = 60.0


class Ring(Keyring):
    """Opens messages as usual, and shows each one to the test."""

    def __init__(self, look: Callable[[JobMessage], None]) -> None:
        super().__init__(Keyring.parse(KEY).keys)
        self._look = look

    def open(self, wire: bytes) -> JobMessage:
        message = super().open(wire)
        self._look(message)
        return message


class Gate:
    """Stops the admission of jobs of one kind until a test opens it."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._is_open = threading.Event()
        self.is_reached = threading.Event()

    def pass_(self, message: JobMessage) -> None:
        if message.job == self._job:
            self.is_reached.set()
            assert self._is_open.wait(DEADLINE_S), "the test did not open the gate"

    def reached(self) -> None:
        assert self.is_reached.wait(DEADLINE_S), "nothing is admitted"

    def open(self) -> None:
        self._is_open.set()


def nothing_to_pay(starts: Sequence[Start]) -> list[float]:
    """Jobs without rate limits have nothing to pay."""
    raise AssertionError(f"nobody asked {len(starts)} jobs to pay")


def spoilt(*ids: str) -> Ring:
    """A key ring with a bug: it fails on the messages of these jobs."""

    def look(message: JobMessage) -> None:
        if message.identifier in ids:
            raise ZeroDivisionError("a bug in the reading of messages")

    return Ring(look)


def test_an_error_that_one_message_causes_rejects_that_job_alone(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.handler(lambda: None)
    for id in ("first", "bad", "last"):
        bench.put(id=id)
    leases = bench.engine.claim("default", 3, owner_token=new_owner_token(new_session()))
    admitted = Admission(spoilt("bad"), bench.app.registry, bench.clock).admit(
        leases, bench.engine.enter, nothing_to_pay
    )
    assert [
        (lease.id, message.identifier) for lease, message in zip(admitted.leases, admitted.messages, strict=True)
    ] == [
        ("first", "first"),
        ("last", "last"),
    ]
    [refusal] = admitted.refusals
    settlement = refusal.settlement
    assert isinstance(settlement, Abandon)
    assert (settlement.lease.id, settlement.reason) == ("bad", DeadReason.UNDECODABLE)
    assert settlement.record is not None
    assert settlement.record.outcome is Outcome.REJECTED
    assert settlement.record.error is not None
    assert settlement.record.error.line == "ZeroDivisionError: a bug in the reading of messages"
    assert len(admitted) == 3
    assert "job bad could not be admitted" in caplog.text


def test_a_batch_is_judged_in_one_order_whatever_is_wrong_with_each_job(bench: Bench) -> None:
    bench.handler(lambda: None)
    bench.put(id="expired", expires=5.0)
    bench.put("unknown", id="expired-and-unknown", expires=5.0)
    bench.put("unknown", id="unknown")
    bench.put(id="good")
    bench.clock.advance(10.0)
    leases = bench.engine.claim("default", 4, owner_token=new_owner_token(new_session()))
    admitted = Admission(Keyring.parse(KEY), bench.app.registry, bench.clock).admit(
        leases, bench.engine.enter, nothing_to_pay
    )
    assert [lease.id for lease in admitted.leases] == ["good"]
    ends = {
        refusal.settlement.lease.id: (
            refusal.message and refusal.message.job,
            refusal.settlement.record and refusal.settlement.record.outcome,
        )
        for refusal in admitted.refusals
    }
    assert ends == {
        "expired": ("job", Outcome.EXPIRED),
        "expired-and-unknown": ("unknown", Outcome.EXPIRED),
        "unknown": ("unknown", Outcome.POSTPONED),
    }


def test_a_worker_survives_a_message_that_cannot_be_admitted(floor: Floor) -> None:
    bad = floor.put("quick", id="bad")
    good = floor.put_many(5, "quick")
    floor.engine.ring = spoilt(bad)
    worker = floor.work()
    assert worker.tally == {WorkerStatus.REJECTED: 1, WorkerStatus.ACKED: 5}
    assert (floor.state(bad), floor.view(bad).dead_reason) == (JobState.DEAD, DeadReason.UNDECODABLE)
    assert {floor.state(id) for id in good} == {JobState.COMPLETED}


def test_verdicts_are_read_while_the_next_batch_is_admitted(floor: Floor) -> None:
    gate = Gate("brief")
    floor.engine.ring = Ring(gate.pass_)
    running = floor.put("gated")
    worker = floor.start(processes=2)
    floor.noted("start", running)
    waiting = floor.put("brief")
    gate.reached()
    floor.open_gate(running)
    try:
        until(lambda: worker.supervisor.undelivered == 1, "the verdict to be read")
        assert worker.supervisor.running == 0
    finally:
        gate.open()
    for id in (running, waiting):
        floor.reached(id, JobState.COMPLETED)


def test_leases_are_held_while_their_jobs_are_admitted(floor: Floor) -> None:
    floor.open(lease_s=0.6)
    gate = Gate("quick")
    floor.engine.ring = Ring(gate.pass_)
    id = floor.put("quick")
    floor.start(reap_interval_s=0.1)
    gate.reached()
    try:
        until(lambda: floor.engine.calls["renew_many"] > 4, "the lease to be renewed for longer than it lasts")
    finally:
        gate.open()
    assert floor.reached(id, JobState.COMPLETED).deliveries == 1
    assert floor.outcomes(id) == [Outcome.SUCCEEDED]


def test_a_job_that_is_cancelled_while_it_is_admitted_does_not_run(floor: Floor) -> None:
    floor.open(lease_s=0.6)
    gate = Gate("quick")
    floor.engine.ring = Ring(gate.pass_)
    id = floor.put("quick")
    floor.start()
    gate.reached()
    try:
        floor.engine.cancel(id, reason="not needed")
        seen = floor.engine.calls["renew_many"]
        until(lambda: floor.engine.calls["renew_many"] > seen + 2, "the keeper to notice the cancellation")
    finally:
        gate.open()
    floor.reached(id, JobState.CANCELLED)
    assert floor.ledger() == []


def test_a_fenced_job_whose_lease_is_lost_while_it_is_admitted_does_not_run(floor: Floor) -> None:
    floor.open(lease_s=2.4)
    gate = Gate("quick")
    floor.engine.ring = Ring(gate.pass_)
    id = floor.put("quick", fence=True)
    worker = floor.start(reap_interval_s=3600.0)
    gate.reached()
    try:
        with floor.stranger() as connection:
            connection.execute("UPDATE holdfast_jobs SET owner_token = x'00'")
        seen = floor.engine.calls["renew_many"]
        until(lambda: floor.engine.calls["renew_many"] > seen + 1, "the keeper to notice the loss")
    finally:
        gate.open()
    until(lambda: worker.supervisor.unsettled == 1, "the job to be let go")
    assert floor.outcomes(id) == []
    assert floor.ledger() == []
