"""Circuit breakers on the command line: `holdfast breaker`, and what `show` says of a job that waits for one."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.queues.contract import Engine
from holdfast.state.breakers import Breakers, Rule
from holdfast.state.ownership import slots_of
from holdfast.values import Entry, EntryOutcome

from .registry import claim
from .terminal import Terminal

RULE = Rule(failures=3, cooldown=600.0)


@pytest.fixture
def engine(terminal: Terminal) -> Iterator[Engine]:
    with Holdfast(directory=terminal.project) as hf:
        yield hf.backend()


@pytest.fixture
def open_circuit(terminal: Terminal, engine: Engine) -> Terminal:
    """A project in which job1 waits for the open circuit 'stripe'."""
    breakers = Breakers(engine.state)
    for _ in range(3):
        breakers.failed(breakers.begin("stripe", RULE), RULE)
    terminal("enqueue", "--job", "x", "--id", "job1", "--breaker", "stripe")
    lease = claim(engine)
    history = engine.get("job1")
    assert history is not None
    [answer] = engine.enter([Entry(lease=lease, slots=slots_of(history.job))])
    assert answer.outcome is EntryOutcome.BLOCKED
    return terminal


def test_circuits_are_listed_with_the_jobs_that_wait(open_circuit: Terminal) -> None:
    heading, row = open_circuit("breaker", "list").out.splitlines()
    assert heading.split() == ["CIRCUIT", "STATE", "FAILURES", "OPEN", "FOR", "RETRY", "IN", "WAITING"]
    assert row.split()[:3] == ["stripe", "open", "3"]
    assert row.endswith(" 1")
    assert open_circuit("breaker", "list", "--quiet").out == "stripe\n"
    [document] = open_circuit("breaker", "list", "--json").json
    assert (document["circuit"], document["state"], document["threshold"], document["cooldown"]) == (
        "stripe",
        "open",
        3,
        600,
    )
    assert 590 < document["retry_in"] <= 600
    assert [one["id"] for one in document["waiters"]] == ["job1"]


def test_a_circuit_shows_why_it_is_open_and_who_waits(open_circuit: Terminal) -> None:
    answer = open_circuit("breaker", "show", "stripe")
    lines = answer.out.splitlines()
    assert lines[0] == "circuit    stripe"
    assert lines[1].startswith("state      open (since ")
    assert lines[2] == "failures   3 in a row; it opens at 3"
    assert lines[3] == "cooldown   10 m"
    assert lines[4].startswith("retry in   ")
    assert lines[5].startswith("waiting    job1 on default (since ")
    assert "to close the circuit now:  holdfast breaker reset stripe" in answer.err


def test_a_job_that_waits_names_its_circuit_and_when_it_is_tried_again(open_circuit: Terminal) -> None:
    shown = open_circuit("show", "job1").out
    assert "for the circuit 'stripe', which is open; a call will be tried in 10 m\n" in shown
    assert "why          to close the circuit now:  holdfast breaker reset stripe\n" in shown
    assert "keys         circuit breaker stripe\n" in shown
    job = open_circuit("show", "job1", "--json").json
    assert (job["breaker"], job["blocked_on"]) == ("stripe", "breaker:stripe")


def test_a_reset_lets_the_jobs_run(open_circuit: Terminal) -> None:
    assert open_circuit("breaker", "reset", "stripe", "--dry-run").out == "would reset stripe\n"
    assert open_circuit("show", "job1", "--json").json["state"] == "blocked"
    answer = open_circuit("breaker", "reset", "stripe")
    assert answer.out == "✓ stripe reset\n"
    assert answer.err == "  blocked jobs can run now; jobs that were snoozed by CircuitOpen keep their due times\n"
    assert open_circuit("show", "job1", "--json").json["state"] == "pending"
    [document] = open_circuit("breaker", "list", "--json").json
    assert (document["state"], document["failures"], document["retry_in"]) == ("closed", 0, None)
    assert "did you mean 'stripe'?" in open_circuit("breaker", "reset", "strpie").err


def test_a_circuit_can_be_opened_by_hand(terminal: Terminal) -> None:
    assert terminal("breaker", "trip", "stripe", "--dry-run").out == "would trip stripe for 60 s\n"
    assert terminal("breaker", "list", "--json").json == []
    answer = terminal("breaker", "trip", "stripe", "--for", "10m")
    assert answer.out == "✓ stripe tripped for 10 m\n"
    assert "no call through the circuit breaker 'stripe' has failed yet" in answer.err
    assert "reset:  holdfast breaker reset stripe" in answer.err
    [document] = terminal("breaker", "list", "--json").json
    assert (document["state"], document["cooldown"]) == ("open", 600)


def test_the_circuit_of_a_queue_can_be_reset_but_not_tripped(terminal: Terminal, engine: Engine) -> None:
    Breakers(engine.state).trip("queue_mail", RULE)
    answer = terminal("breaker", "trip", "queue_mail")
    assert answer.code == 2
    assert "the circuit of a queue can only be reset; to stop claims, run  holdfast queue pause mail" in answer.err
    assert terminal("breaker", "show", "queue_mail").out.startswith("circuit    queue_mail\nstate      open ")
    answer = terminal("breaker", "reset", "queue_mail")
    assert (answer.code, answer.err) == (0, ""), "no job waits for the circuit of a queue"


def test_a_circuit_without_failures_is_not_found(terminal: Terminal) -> None:
    terminal("enqueue", "--job", "x")
    answer = terminal("breaker", "show", "stripe")
    assert answer.code == 3
    assert "no call through the circuit breaker 'stripe' has failed; see  holdfast breaker list" in answer.err
    assert terminal("breaker", "list").err.endswith("no call through a circuit breaker has failed\n")


def test_the_name_of_a_jobs_circuit_is_checked(terminal: Terminal) -> None:
    answer = terminal("enqueue", "--job", "x", "--breaker", "queue_mail")
    assert answer.code == 2
    assert "starts with 'queue_', which is reserved for the circuits of queues" in answer.err
