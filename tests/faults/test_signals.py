"""Workers that are asked to leave, and workers that were away too long."""

import signal

import pytest

from holdfast.values import JobState, Outcome

from .processes import Program, until
from .yard import Yard


def at_work(yard: Yard) -> tuple[Program, str, str]:
    """A worker inside its first job, and a second job behind it."""
    first, second = yard.put("gated", 2)
    worker = yard.worker()
    yard.wait_for_entry("start", first, by=worker)
    return worker, first, second


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_job_finish_and_starts_no_other(yard: Yard, number: signal.Signals) -> None:
    worker, first, second = at_work(yard)
    worker.send(number)
    yard.open_gate(worker)
    assert worker.ended() == 0
    assert (yard.state(first), yard.outcomes(first)) == (JobState.COMPLETED, [Outcome.SUCCEEDED])
    assert (yard.state(second), yard.outcomes(second)) == (JobState.PENDING, [])
    assert "1 done" in worker.complained


def test_a_second_signal_gives_the_running_job_back(yard: Yard) -> None:
    worker, first, second = at_work(yard)
    # Two different ones: of two alike, sent quickly, the system may deliver only one.
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGINT)
    assert worker.ended() == 0
    job = yard.history(first).job
    assert (job.state, job.attempts, job.crashes) == (JobState.PENDING, 0, 0)
    assert yard.outcomes(first) == [Outcome.INTERRUPTED]
    assert yard.ends()[first] == 0
    assert yard.state(second) is JobState.PENDING


def test_whoever_asks_a_worker_to_leave_is_told_that_it_drains(yard: Yard) -> None:
    worker, first, _ = at_work(yard)
    worker.send(signal.SIGTERM)
    yard.open_gate(worker)
    assert worker.ended() == 0
    assert yard.history(first).attempts[0].record.output == ""
    assert "draining" in worker.complained


def test_a_worker_that_was_stopped_longer_than_its_lease_cannot_settle_what_another_has_done(yard: Yard) -> None:
    (id,) = yard.put("gated")
    sleeper = yard.worker(lease_s=1)
    yard.wait_for_entry("start", id, by=sleeper)
    sleeper.send(signal.SIGSTOP)
    other = yard.worker()
    yard.wait_for_entry("start", id, by=other)
    yard.open_gate(other)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the other worker to complete the job")
    before = yard.history(id)

    sleeper.send(signal.SIGCONT)
    yard.open_gate(sleeper)
    sleeper.wait_for("[lost-lease]")
    assert yard.history(id) == before
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]
    assert yard.hf.handle(id).result(0) == other.pid
    assert [entry.pid for entry in yard.ledger() if entry.what == "end"] == [other.pid, sleeper.pid]


def test_a_stopped_worker_whose_job_nobody_took_over_cannot_settle_it_too_late(yard: Yard) -> None:
    """Nobody has noticed that the lease has ended; the file itself refuses the verdict."""
    (id,) = yard.put("gated")
    sleeper = yard.worker("--max-jobs", "1", lease_s=1)
    yard.wait_for_entry("start", id, by=sleeper)
    sleeper.send(signal.SIGSTOP)
    until(lambda: _lease_has_ended(yard, id), "the lease to end")
    sleeper.send(signal.SIGCONT)
    yard.open_gate(sleeper)
    assert sleeper.ended() == 0
    assert "[lost-lease]" in sleeper.said
    assert yard.state(id) is JobState.PROCESSING
    assert yard.hf.backend().reap_expired() == 1
    assert yard.outcomes(id) == [Outcome.CRASHED]


def _lease_has_ended(yard: Yard, id: str) -> bool:
    until = yard.history(id).job.lease_until
    return until is not None and until.timestamp() * 1e6 < yard.hf.backend().clock.now_us()
