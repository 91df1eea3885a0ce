"""`holdfast cancel`: waiting jobs at once, running ones through their workers, and what was too late."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.queues.contract import Engine
from holdfast.values import CancelJob, DeadReason

from .registry import attempt, claim, until
from .terminal import Terminal, ended


@pytest.fixture
def engine(terminal: Terminal) -> Iterator[Engine]:
    with Holdfast(directory=terminal.project) as hf:
        yield hf.backend()


def put(terminal: Terminal, *job_ids: str) -> None:
    for job_id in job_ids:
        assert terminal("enqueue", f'{{"id": "{job_id}", "job": "x"}}').code == 0


def test_a_waiting_job_is_cancelled_at_once_with_its_reason(terminal: Terminal) -> None:
    put(terminal, "job1")
    answer = terminal("cancel", "job1", "--reason", "ordered twice")
    assert (answer.code, answer.out, answer.err) == (0, "✓ job1 cancelled\n", "")
    job = terminal.job("job1")
    assert (job["state"], job["cancel_reason"]) == ("cancelled", "ordered twice")


def test_a_running_job_is_asked_and_how_long_that_may_take_is_said(terminal: Terminal, engine: Engine) -> None:
    terminal("config", "set", "lease", "90s")
    put(terminal, "job1")
    claim(engine)
    answer = terminal("cancel", "job1")
    assert (answer.code, answer.out) == (0, "✓ job1 cancellation requested; its worker will stop it within seconds\n")
    job = terminal.job("job1")
    assert (job["state"], job["cancel_requested"]) == ("processing", True)


def test_cancelling_twice_is_no_error(terminal: Terminal) -> None:
    put(terminal, "job1")
    terminal("cancel", "job1", "--reason", "first")
    answer = terminal("cancel", "job1", "--reason", "second")
    assert (answer.code, answer.out) == (0, "✓ job1 already cancelled; nothing was changed\n")
    assert terminal.job("job1")["cancel_reason"] == "first"


@pytest.mark.parametrize("state", ["completed", "dead"])
def test_what_has_ended_cannot_be_cancelled(terminal: Terminal, engine: Engine, state: str) -> None:
    put(terminal, "job1")
    lease = claim(engine)
    assert engine.ack(lease) if state == "completed" else engine.abandon(lease, DeadReason.NO_RETRY)
    answer = terminal("cancel", "job1")
    assert (answer.code, answer.out, answer.err) == (4, "", f"✗ job1 is {state}; nothing was changed\n")


def test_an_unknown_job_is_not_found(terminal: Terminal) -> None:
    answer = terminal("cancel", "nothing")
    assert (answer.code, answer.out, answer.err) == (3, "", "✗ nothing is unknown; see  holdfast list\n")


def test_each_of_several_has_its_line_and_the_worst_its_exit_code(terminal: Terminal, engine: Engine) -> None:
    put(terminal, "done", "waiting")
    engine.ack(claim(engine))
    assert terminal("cancel", "waiting", "unknown", "done", "waiting").code == 4
    answer = terminal("cancel", "unknown", "waiting")
    assert (answer.code, answer.out) == (3, "✓ waiting already cancelled; nothing was changed\n")
    documents = terminal("cancel", "done", "unknown", "waiting", "--json").json
    assert documents == [
        {"schema": "holdfast.job.cancel/1", "id": "done", "answer": "too-late", "state": "completed"},
        {"schema": "holdfast.job.cancel/1", "id": "unknown", "answer": "unknown", "state": None},
        {"schema": "holdfast.job.cancel/1", "id": "waiting", "answer": "too-late", "state": "cancelled"},
    ]


def test_waiting_ends_when_the_worker_has_stopped_the_job(terminal: Terminal, engine: Engine) -> None:
    put(terminal, "job1")
    lease = claim(engine)
    process = terminal.start("cancel", "job1", "--wait")
    until(lambda: terminal.job("job1")["cancel_requested"])
    assert engine.settle([CancelJob(lease=lease)]) == [True]
    answer = ended(process)
    assert (answer.code, answer.out) == (0, "✓ job1 cancelled; its worker has stopped it\n")


def test_a_job_that_completes_meanwhile_was_not_cancelled(terminal: Terminal, engine: Engine) -> None:
    put(terminal, "job1")
    lease = claim(engine)
    process = terminal.start("cancel", "--wait", "job1")
    until(lambda: terminal.job("job1")["cancel_requested"])
    assert engine.ack(lease, attempt())
    answer = ended(process)
    assert (answer.code, answer.out) == (4, "")
    assert answer.err == "✗ job1 is completed; it finished before its worker received the request\n"


def test_waiting_ends_when_the_time_is_up(terminal: Terminal, engine: Engine) -> None:
    put(terminal, "job1")
    claim(engine)
    answer = terminal("cancel", "job1", "--wait", "10ms")
    assert (answer.code, answer.out) == (6, "")
    assert answer.err == "✗ job1 is still running; its worker has been asked to stop it\n"


def test_without_an_id_nothing_is_cancelled(terminal: Terminal) -> None:
    put(terminal, "job1")
    assert terminal("cancel").code == 2
    assert terminal.job("job1")["state"] == "pending"
