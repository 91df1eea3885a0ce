"""A worker whose jobs have keys: entering, being blocked, being skipped, and an engine that fails meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.testing.lab import LEASE_S
from holdfast.values import Ack, DeadReason, Entered, Entry, JobState, Outcome, Slot, WorkerStatus
from holdfast.worker import backoff

from ..faults.processes import until
from ..servers.places import every_engine
from .bench import Bench, wire_of
from .floor import Floor


@every_engine
def test_every_holder_gets_a_greater_fence(floor: Floor) -> None:
    ids = floor.put_many(6, "fenced", single_instance=True)
    worker = floor.work(processes=2)
    fences = [int(entry.words[0]) for entry in floor.ledger("end")]
    assert fences == sorted(set(fences))
    assert sorted(entry.id for entry in floor.ledger("end")) == sorted(ids)
    assert worker.tally[WorkerStatus.ACKED] == 6
    assert floor.put("fenced", id="plain") == "plain"
    floor.work()
    assert [entry.words for entry in floor.ledger("end") if entry.id == "plain"] == [("0",)]


@every_engine
def test_a_duplicate_of_a_running_job_waits_for_it_and_is_skipped(floor: Floor) -> None:
    first, second = (floor.put("gated", {"gate": "open"}, idempotency_key="k") for _ in range(2))
    other = floor.put("gated", {"gate": "open"}, idempotency_key="other")
    worker = floor.start(processes=3)
    floor.noted("start", first)
    floor.noted("start", other)
    view = floor.reached(second, JobState.BLOCKED)
    assert (view.blocked_on, view.attempts) == ("idempotency:gated/k", 0)
    floor.open_gate("open")
    floor.reached(second, JobState.COMPLETED)
    assert floor.outcomes(second) == [Outcome.SKIPPED]
    [one], [two] = floor.records(first), floor.records(second)
    assert one.result == two.result
    assert two.note == f"idempotency key 'k' was completed by job '{first}'"
    floor.reached(other, JobState.COMPLETED)
    worker.stop()
    worker.ended()
    # A busy machine may add jobs that were released before they started.
    assert (worker.tally[WorkerStatus.ACKED], worker.tally[WorkerStatus.SKIPPED_IDEMPOTENT]) == (2, 1)
    assert worker.tally[WorkerStatus.BLOCKED] >= 1
    assert floor.starts() == {first: 1, other: 1}


@every_engine
def test_a_timeout_frees_the_key_only_when_the_process_is_gone(floor: Floor) -> None:
    """The first job hears nothing of its timeout, so its process is killed."""
    first = floor.put("stuck", timeout=0.2, max_retries=0, concurrency_key="k")
    second = floor.put("witness", concurrency_key="k")
    worker = floor.start(processes=2)
    floor.noted("start", first)
    floor.reached(second, JobState.COMPLETED)
    worker.stop()
    worker.ended()
    assert floor.outcomes(first) == [Outcome.TIMEOUT]
    assert [entry.words for entry in floor.ledger("end") if entry.id == second] == [("0",)]


@every_engine
def test_a_failed_run_lets_the_next_one_with_its_key_run(floor: Floor) -> None:
    ids = [floor.put("fails", idempotency_key="k", max_retries=0) for _ in range(2)]
    floor.work()
    assert [floor.outcomes(id) for id in ids] == [[Outcome.FAILED]] * 2


@every_engine
def test_an_entry_is_repeated_until_the_engine_answers(floor: Floor) -> None:
    floor.engine.down.add("enter")
    id = floor.put("fenced", concurrency_key="a")
    worker = floor.start()
    until(lambda: floor.engine.calls["enter"] >= 2, "the entry to be repeated")
    floor.engine.down.clear()
    floor.reached(id, JobState.COMPLETED)
    worker.stop()
    worker.ended()
    assert worker.tally[WorkerStatus.ACKED] == 1
    assert floor.ends() == {id: 1}


def test_a_job_that_cannot_enter_is_released_and_does_not_hold_up_others(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "INSIST_LIMIT_S", 0.0)
    floor.engine.down.add("enter")
    keyed, plain = floor.put("fenced", concurrency_key="a"), floor.put("quick")
    worker = floor.start()
    floor.reached(plain, JobState.COMPLETED)
    until(lambda: Outcome.INTERRUPTED in floor.outcomes(keyed), "the other one to be released")
    floor.engine.down.clear()
    floor.reached(keyed, JobState.COMPLETED)
    worker.stop()
    worker.ended()
    assert floor.ends() == {plain: 1, keyed: 1}
    view = floor.engine.get(keyed)
    assert view is not None
    assert (view.job.attempts, view.job.crashes) == (0, 0)


@every_engine
def test_an_entry_whose_answer_was_lost_is_not_counted_twice(floor: Floor) -> None:
    floor.engine.lost_answers["enter"] = 1
    ids = floor.put_many(3, "fenced", concurrency_key="a")
    floor.work()
    assert [floor.outcomes(id) for id in ids] == [[Outcome.SUCCEEDED]] * 3
    assert floor.engine.slots() == []


def test_an_entry_that_fails_loses_only_its_own_job(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    bad, *good = (floor.put("fenced", concurrency_key=f"key-{number}") for number in range(4))
    plain = floor.put("quick")
    real = floor.engine.jobs.enter

    def enter(entries: Sequence[Entry]) -> list[Entered]:
        if any(entry.lease.id == bad for entry in entries):
            raise ZeroDivisionError("a bug in the engine")
        return real(entries)

    floor.engine.jobs.enter = enter  # type: ignore[method-assign]
    worker = floor.start(processes=4)
    for id in (*good, plain):
        floor.reached(id, JobState.COMPLETED)
    assert floor.state(bad) is JobState.PROCESSING
    worker.stop()
    worker.ended()
    assert worker.tally[WorkerStatus.ACKED] == 4
    assert worker.tally[WorkerStatus.LOST_LEASE] >= 1
    assert f"job {bad}: could not enter its slots" in caplog.text


def test_a_worker_in_this_process_reports_blocked_skipped_and_lost_jobs(bench: Bench) -> None:
    bench.handler(lambda: "first")
    held = bench.put(concurrency_key="a")
    lease = bench.engine.fetch("default")
    assert lease is not None
    bench.engine.enter([Entry(lease=lease, slots=(Slot(name="key:a"),))])
    waiting = bench.put(concurrency_key="a")
    assert (bench.turn().status, bench.view(waiting).state) == (WorkerStatus.BLOCKED, JobState.BLOCKED)
    assert bench.turn().status is WorkerStatus.EMPTY
    bench.engine.settle([Ack(lease=lease, leaves=("key:a",))])
    result = bench.turn()
    assert (result.status, result.job_id) == (WorkerStatus.ACKED, waiting)
    for status in (WorkerStatus.ACKED, WorkerStatus.SKIPPED_IDEMPOTENT):
        bench.put(idempotency_key="k")
        assert bench.turn().status is status
    assert bench.counts.seen["jobs_blocked default"] == bench.counts.seen["jobs_skipped_idempotent default"] == 1
    assert bench.view(held).state is JobState.COMPLETED

    def too_late(entries: Sequence[Entry]) -> list[Entered]:
        bench.clock.advance(LEASE_S)
        return enter(entries)

    enter, bench.engine.jobs.enter = bench.engine.jobs.enter, too_late  # type: ignore[method-assign]
    bench.put(concurrency_key="a")
    assert bench.turn().status is WorkerStatus.LOST_LEASE
    assert bench.counts.seen["jobs_lost_lease default"] == 1


@pytest.mark.parametrize(
    "members",
    [
        {"concurrency_key": "x" * 2000},
        {"concurrency_key": "a", "concurrency": 0},
        {"idempotency_key": "a", "idempotency_ttl": -1.0},
    ],
)
def test_a_signed_message_with_an_impossible_key_is_dead_lettered_alone(bench: Bench, members: dict[str, Any]) -> None:
    """Our definitions refuse them, but another program with the key may have signed one."""
    bench.handler(lambda: None)
    bad = bench.put_wire(wire_of(**members))
    assert bench.turn().status is WorkerStatus.REJECTED
    good = bench.put(concurrency_key="a")
    assert (bench.view(bad).state, bench.view(bad).dead_reason) == (JobState.DEAD, DeadReason.UNDECODABLE)
    assert (bench.turn().status, bench.view(good).state) == (WorkerStatus.ACKED, JobState.COMPLETED)
