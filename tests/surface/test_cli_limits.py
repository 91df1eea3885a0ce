"""Rate limits on the command line: `queue limit`, `queue show`, and what `show` says of a job that was put off."""

from collections.abc import Iterator

import pytest

from holdfast import Holdfast
from holdfast.state.workers import WorkerRegistry

from .registry import report
from .terminal import Terminal


@pytest.fixture
def limited(terminal: Terminal) -> Terminal:
    """A project with a limited queue."""
    (terminal.project / "holdfast.toml").write_text('[limits]\nmail = "60/min"\napi = {rate = "10/h", burst = 20}\n')
    terminal("enqueue", "--job", "x", "--queue", "mail", "--id", "job1")
    return terminal


@pytest.fixture
def hf(limited: Terminal) -> Iterator[Holdfast]:
    with Holdfast(directory=limited.project) as hf:
        yield hf


def test_the_limit_of_a_queue_is_shown_and_reset(limited: Terminal, hf: Holdfast) -> None:
    assert limited("queue", "limit", "mail").out == "mail: 60/min; 1 of 1 job can start now\n"
    api = hf.limiter(queue="api")
    assert api.allow(20)
    document = limited("queue", "limit", "api", "--json").json
    assert (document["schema"], document["queue"], document["rate"]) == (
        "holdfast.queue.limit/1",
        "api",
        "10/h,burst=20",
    )
    assert (document["burst"], document["reset"]) == (20, False)
    assert document["available"] == 0
    rehearsed = limited("queue", "limit", "api", "--reset", "--dry-run")
    assert rehearsed.out.startswith("would reset api: 10/h,burst=20; ")
    assert api.usage().available == 0
    document = limited("queue", "limit", "api", "--reset", "--json").json
    assert (document["available"], document["wait_s"], document["reset"]) == (20, 0.0, True)
    answer = limited("queue", "limit", "api", "--reset")
    assert answer.out == "✓ api: 10/h,burst=20; 20 of 20 jobs can start now\n"
    assert answer.err == "  jobs that were snoozed by RateLimited keep their due times\n"


def test_a_queue_without_a_limit_is_an_error_that_says_what_to_write(limited: Terminal) -> None:
    answer = limited("queue", "limit", "other")
    assert answer.code == 2
    assert "queue 'other' has no rate limit; set one in holdfast.toml:  limits = {other = \"60/min\"}" in answer.err


def test_a_queue_shows_its_limit(limited: Terminal) -> None:
    assert "rate limit   60/min; 1 of 1 job can start now\n" in limited("queue", "show", "mail").out
    limit = limited("queue", "show", "mail", "--json").json["limit"]
    assert limit == {"rate": "60/min", "burst": 1, "available": 1, "wait_s": 0.0}
    limited("enqueue", "--job", "x", "--queue", "other")
    assert "rate limit" not in limited("queue", "show", "other").out
    assert limited("queue", "show", "other", "--json").json["limit"] is None


def test_showing_a_limit_before_there_is_a_database_creates_none(terminal: Terminal) -> None:
    (terminal.project / "holdfast.toml").write_text('limits = {mail = "60/min"}\n')
    assert terminal("queue", "limit", "mail").out == "mail: 60/min; 1 of 1 job can start now\n"
    assert not (terminal.project / ".holdfast" / "jobs.db").exists()


def test_a_due_job_names_the_limit_of_its_queue_while_it_is_reached(limited: Terminal, hf: Holdfast) -> None:
    limited("enqueue", "--job", "x", "--queue", "api", "--id", "due")
    limited("enqueue", "--job", "x", "--queue", "api", "--id", "later", "--delay", "1h")
    assert "rate limit" not in limited("show", "due").out
    assert hf.limiter(queue="api").allow(20)
    [reason] = [line for line in limited("show", "due", "--json").json["why"] if "rate limit" in line]
    assert reason.startswith("the queue has reached its rate limit of 10/h,burst=20; the next job can start in ")
    assert "rate limit" not in limited("show", "later").out


def test_waiting_for_a_rate_limit_is_not_unhealthy(limited: Terminal, hf: Holdfast) -> None:
    limited("enqueue", "--job", "x", "--queue", "api")
    WorkerRegistry(hf.backend().state).beat(report("a" * 32, queues=("mail", "api")))
    health = "health", "--full", "--max-wait", "0"
    assert limited(*health).out.splitlines()[-1] == "unhealthy: 2 of 5 checks failed"
    assert hf.limiter(queue="api").allow(20)
    assert limited(*health).out.splitlines()[-1] == "unhealthy: 1 of 5 checks failed"
    hf.backend().cancel("job1")
    answer = limited(*health)
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "healthy")
    assert "; the queue has reached its rate limit of 10/h,burst=20; the next job can start in " in answer.out
    assert "✓ waiting    no other due job has waited longer than " in answer.out


def test_a_job_that_was_put_off_says_until_when(limited: Terminal, hf: Holdfast) -> None:
    hf.registry.register("limited", lambda: None)
    for number in (1, 2):
        limited(
            *(
                "enqueue",
                "--job",
                "limited",
                "--id",
                f"limited{number}",
                "--rate-limit",
                "1/h",
                "--rate-key",
                "tenant-3",
            )
        )
    with hf.worker() as worker:
        hf.loop(worker, burst=True).run()
    shown = limited("show", "limited2").out
    assert "why          put off by its rate limit until 2" in shown
    assert "rate limit   1/h for the key 'tenant-3'\n" in shown
    assert "#1 rate-limited at " in shown
    assert "note    put off for 60 m by the rate limit of 1/h\n" in shown
    document = limited("show", "limited2", "--json").json
    assert (document["rate_limit"], document["rate_key"], document["state"]) == ("1/h", "tenant-3", "scheduled")
    assert [past["outcome"] for past in document["history"]] == ["rate-limited"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--rate-limit", "often"), "'often': write a number and a unit, such as 10/s, 60/min, 100/h or 5/d"),
        (("--rate-key", "tenant-3"), "--rate-key has no effect without --rate-limit; set --rate-limit as well"),
    ],
)
def test_a_limit_that_cannot_be_used_is_refused(terminal: Terminal, arguments: tuple[str, str], problem: str) -> None:
    answer = terminal("enqueue", "--job", "x", *arguments)
    assert answer.code == 2
    assert problem in answer.err


def test_limits_are_read_and_checked_like_other_settings(limited: Terminal) -> None:
    assert limited("config", "get", "limits").out == "mail=60/min; api=10/h,burst=20\n"
    answer = limited("config", "set", "limits", "mail=60/min")
    assert answer.code == 2
    assert "limits is a table and can only be edited by hand: in" in answer.err
    assert 'add a line like  mail = "60/min"' in answer.err
    assert limited("config", "check").code == 0
    (limited.project / "holdfast.toml").write_text('[limits]\nmail = "often"\n')
    answer = limited("config", "check")
    assert answer.code == 2
    assert "the rate limit of queue 'mail' is 'often': write a number and a unit" in answer.out
