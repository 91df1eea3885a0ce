"""Keys on the command line: `holdfast lock`, what `show` says of a blocked job, and enqueueing unique jobs."""

import json
from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.queues.contract import Engine
from holdfast.state.ownership import slots_of
from holdfast.values import CancelJob, Entry, EntryOutcome, JobLease

from .registry import claim
from .terminal import Terminal


@pytest.fixture
def engine(terminal: Terminal) -> Iterator[Engine]:
    with Holdfast(directory=terminal.project) as hf:
        yield hf.backend()


def enter(engine: Engine, job_id: str) -> tuple[JobLease, EntryOutcome]:
    """Claim the next job, which must be this one, and let it ask for its key."""
    lease = claim(engine)
    assert lease.id == job_id
    history = engine.get(job_id)
    assert history is not None
    [answer] = engine.enter([Entry(lease=lease, slots=slots_of(history.job))])
    return lease, answer.outcome


@pytest.fixture
def held(terminal: Terminal, engine: Engine) -> JobLease:
    """The lease of job1, which holds the key that job2 waits for."""
    for job_id in ("job1", "job2"):
        terminal("enqueue", "--job", "x", "--id", job_id, "--concurrency-key", "customer-7")
    lease, outcome = enter(engine, "job1")
    assert outcome is EntryOutcome.ENTERED
    assert enter(engine, "job2")[1] is EntryOutcome.BLOCKED
    return lease


@pytest.fixture
def busy(terminal: Terminal, held: JobLease) -> Terminal:
    """A project in which job1 holds a key and job2 waits for it."""
    assert held.id == "job1"
    return terminal


def test_a_key_is_listed_with_its_holder_and_how_many_wait(busy: Terminal) -> None:
    heading, row = busy("lock", "list").out.splitlines()
    assert heading.split() == ["KEY", "HELD", "BY", "SINCE", "WAITING"]
    assert row.startswith("key:customer-7  job1 ")
    assert row.endswith(" 1")
    assert busy("lock", "list", "--quiet").out == "key:customer-7\n"


def test_a_key_shows_who_holds_it_who_waits_and_how_to_free_it(busy: Terminal) -> None:
    answer = busy("lock", "show", "key:customer-7")
    key, held, waiting = answer.out.splitlines()
    assert key == "key        key:customer-7"
    assert held.startswith("held by    job1 on default (since ")
    assert waiting.startswith("waiting    job2 on default (since ")
    assert "to free the key, cancel the job:  holdfast cancel job1" in answer.err
    document = busy("lock", "show", "key:customer-7", "--json").json
    assert [one["id"] for one in document["holders"]] == ["job1"]
    assert document["holders"][0]["fence"] > 0
    assert [one["id"] for one in document["waiters"]] == ["job2"]


def test_a_key_that_no_job_has_is_not_found(terminal: Terminal) -> None:
    terminal("enqueue", "--job", "x")
    answer = terminal("lock", "show", "key:nobody")
    assert answer.code == 3
    assert "no job holds the key 'key:nobody' or waits for it; see  holdfast lock list" in answer.err
    assert terminal("lock", "list").err.endswith("no job holds a key or waits for one\n")


def test_a_key_without_its_kind_is_answered_with_the_whole_key(busy: Terminal) -> None:
    answer = busy("lock", "show", "customer-7")
    assert answer.code == 3
    assert answer.err.endswith("see  holdfast lock show key:customer-7\n")


def test_more_keys_than_asked_for_are_announced(terminal: Terminal, engine: Engine) -> None:
    for number in range(3):
        terminal("enqueue", "--job", "x", "--id", f"job{number}", "--concurrency-key", f"k{number}")
        enter(engine, f"job{number}")
    answer = terminal("lock", "list", "--limit", "2")
    assert len(answer.out.splitlines()) == 3
    assert "more keys exist; to show them:  holdfast lock list --limit 20" in answer.err


def test_a_blocked_job_says_what_it_waits_for(busy: Terminal) -> None:
    shown = busy("show", "job2").out
    assert "state        blocked\n" in shown
    assert "for the key 'key:customer-7'\n" in shown
    assert "why          job job1 has held it since " in shown
    assert "keys         concurrency customer-7\n" in shown
    job = busy("show", "job2", "--json").json
    assert (job["state"], job["blocked_on"], job["attempts"]) == ("blocked", "key:customer-7", 0)
    assert job["blocked_since"] is not None
    assert [lock["key"] for lock in job["locks"]] == ["key:customer-7"]
    [listed] = busy("list", "--state", "blocked", "--json").json
    assert (listed["id"], listed["blocked_on"]) == ("job2", "key:customer-7")
    assert "waiting for key:customer-7" in busy("list").out


def test_a_holder_says_which_key_it_holds_and_how_many_jobs_wait(busy: Terminal) -> None:
    assert "has held the key 'key:customer-7' since " in busy("show", "job1").out
    assert "; 1 job waiting for it\n" in busy("show", "job1").out


def test_a_cancelled_job_no_longer_waits(busy: Terminal) -> None:
    assert busy("cancel", "job2").code == 0
    assert busy("lock", "show", "key:customer-7", "--json").json["waiting"] == 0
    assert "waiting for it" not in busy("show", "job1").out


def test_cancelling_the_holder_frees_the_key_once_its_worker_settles(
    busy: Terminal, engine: Engine, held: JobLease
) -> None:
    assert busy("cancel", "job1").code == 0
    [holder] = busy("lock", "show", "key:customer-7", "--json").json["holders"]
    assert holder["id"] == "job1"
    assert engine.settle([CancelJob(lease=held, leaves=("key:customer-7",))]) == [True]
    [promoted] = busy("lock", "show", "key:customer-7", "--json").json["holders"]
    assert (promoted["id"], promoted["fence"]) == ("job2", None)


def test_a_second_job_with_a_unique_key_is_answered_with_the_first(terminal: Terminal) -> None:
    unique = ("enqueue", "--job", "x", "--unique", "index")
    assert terminal(*unique, "--id", "job1").out == "✓ job1 queued on default\n"
    assert terminal(*unique, "--id", "job2").out == "• job1 already has the unique key; nothing was added\n"
    again = terminal(*unique, "--id", "job1")
    assert again.out == "• job1 already exists with the same content; nothing was added\n"
    replaced = terminal(*unique, "--on-conflict", "replace", "--delay", "60")
    assert replaced.out == "✓ job1 already had the unique key; its payload and due time were replaced\n"
    document = terminal(*unique, "--json").json
    assert (document["id"], document["created"], document["outcome"]) == ("job1", False, "existing")
    rejected = terminal(*unique, "--on-conflict", "reject")
    assert rejected.code != 0
    assert "job 'job1' already has the unique key 'x/index', so nothing was enqueued" in rejected.err
    assert [job["id"] for job in terminal.jobs()] == ["job1"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"on_conflict": "explode", "unique": "k"}, "'explode' is not one of ignore, reject, replace"),
        (
            {"unique_for": "10x", "unique": "k"},
            "unique_for must be 'open', 'waiting' or a duration such as '10m', not '10x'",
        ),
        ({"unique_for": "10m"}, "unique_for has no effect without unique"),
        ({"unique": 7}, "field 'unique'"),
        ({"concurrency": 0, "concurrency_key": "k"}, "concurrency must be between 1 and 1000000, not 0"),
        ({"idempotency_key": ""}, "idempotency_key '' must be non-empty, printable text"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(terminal: Terminal, fields: dict[str, object], why: str) -> None:
    answer = terminal("enqueue", json.dumps({"job": "x", **fields}))
    assert answer.code == 2
    assert why in answer.err
    assert terminal.jobs() == []


def test_json_can_ask_for_jobs_with_the_same_arguments_only_once(terminal: Terminal) -> None:
    first, second = (
        terminal("enqueue", json.dumps({"job": "x", "payload": payload, "unique": True, "unique_for": "10m"}), "--json")
        for payload in ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    )
    assert first.json["id"] == second.json["id"]
    assert second.json["outcome"] == "existing"
