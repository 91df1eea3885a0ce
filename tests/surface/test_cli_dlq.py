"""`holdfast dlq`: dead letters are looked at, run again or forgotten, and nothing else is."""

import json

import pytest

from holdfast import DeadReason, Holdfast
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.values import Abandon

from .terminal import Terminal

SHOP = """
import os
from holdfast import Holdfast

hf = Holdfast()

@hf.job
def flaky() -> str:
    if not os.path.exists("mended"):
        raise OSError("broken")
    return "fine"
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """Three dead letters, `a` and `b` and `c` of another queue; one waits, one is cancelled because it has expired."""
    terminal.write("shop.py", SHOP)
    dead = [{"id": name, "job": "flaky", "max_retries": 0} for name in "ab"]
    dead.append({"id": "c", "job": "flaky", "max_retries": 0, "queue": "mail"})
    terminal("enqueue", json.dumps([*dead, {"id": "late", "job": "flaky", "expires": 0}]))
    terminal("worker", "start", "shop", "--burst", "--queue", "default,mail")
    terminal("enqueue", '{"id": "waiting", "job": "flaky"}')
    return terminal


def states(terminal: Terminal) -> dict[str, str]:
    return {job["id"]: job["state"] for job in terminal.jobs()}


AS_IT_WAS = {"a": "dead", "b": "dead", "c": "dead", "late": "cancelled", "waiting": "pending"}


def test_only_dead_letters_are_listed_the_last_first(shop: Terminal) -> None:
    assert states(shop) == AS_IT_WAS
    assert [job["id"] for job in shop("dlq", "list", "--json").json] == ["b", "c", "a"]
    assert [line.split()[0] for line in shop("dlq", "list").out.splitlines()[1:]] == ["b", "c", "a"]
    assert [job["id"] for job in shop("dlq", "list", "--queue", "mail", "--json").json] == ["c"]


def test_the_list_is_read_page_by_page(shop: Terminal) -> None:
    first = shop("dlq", "list", "--limit", "2", "--json")
    assert [job["id"] for job in first.json] == ["b", "c"]
    assert first.err.startswith("more:  --after ")
    rest = shop("dlq", "list", "--after", first.err.split()[-1], "--json")
    assert ([job["id"] for job in rest.json], rest.err) == (["a"], "")
    assert shop("dlq", "list", "--after", "nonsense").code == 2


def test_one_dead_letter_is_shown_like_any_job(shop: Terminal) -> None:
    assert shop("dlq", "show", "a").out == shop("show", "a").out
    assert shop("dlq", "show", "a", "--json").json == shop("show", "a", "--json").json


def test_a_job_that_is_not_dead_is_not_shown_as_if_it_were(shop: Terminal) -> None:
    answer = shop("dlq", "show", "waiting")
    assert (answer.code, answer.out) == (3, "")
    assert "job 'waiting' is pending, not dead; see  holdfast show waiting" in answer.err
    assert shop("dlq", "show", "waiting", "--json").error["code"] == "NotDead"


def test_a_dead_letter_is_given_a_new_life_with_its_history(shop: Terminal) -> None:
    answer = shop("dlq", "retry", "a")
    assert (answer.code, answer.out) == (0, "✓ a requeued (attempts reset, history retained)\n")
    assert shop.job("a")["attempts"] == 0
    shop.write("mended", "")
    shop("worker", "start", "shop", "--burst")
    job = shop.job("a")
    assert job["state"] == "completed"
    assert [attempt["outcome"] for attempt in job["history"]] == ["failed", "succeeded"]


def test_attempts_are_numbered_over_all_lives_and_counted_in_one(shop: Terminal) -> None:
    shop("dlq", "retry", "a")
    runs = [json.loads(line) for line in shop("worker", "start", "shop", "--burst", "--json").out.splitlines()]
    assert [run["attempt"] for run in runs if run["job_id"] == "a"] == [1]
    assert shop.job("a")["attempts"] == 1
    assert [one["attempt"] for one in shop("logs", "a", "--json").json] == [1, 2]
    assert [line.split()[0] for line in shop("show", "a").out.splitlines() if line.startswith("#")] == ["#1", "#2"]


def test_all_dead_letters_or_those_of_a_queue_are_retried(shop: Terminal) -> None:
    assert shop("dlq", "retry", "--all", "--queue", "mail").code == 0
    assert states(shop) == {**AS_IT_WAS, "c": "pending"}
    answer = shop("dlq", "retry", "--all", "--json")
    assert [(one["id"], one["answer"]) for one in answer.json] == [("b", "replayed"), ("a", "replayed")]
    assert states(shop) == {**AS_IT_WAS, "a": "pending", "b": "pending", "c": "pending"}


def test_an_expired_job_is_retried_only_on_purpose(shop: Terminal) -> None:
    answer = shop("dlq", "retry", "late")
    assert (answer.code, answer.out) == (4, "")
    assert "late has expired; to retry it anyway, add  --ignore-expiry" in answer.err
    assert shop("dlq", "retry", "late", "--ignore-expiry").code == 0
    shop.write("mended", "")
    shop("worker", "start", "shop", "--burst")
    assert shop.job("late")["state"] == "completed"


@pytest.mark.parametrize(
    ("words", "code", "remark"),
    [
        (["waiting"], 4, "waiting is pending, neither dead nor cancelled; nothing was changed"),
        (["nobody"], 3, "nobody is unknown"),
        (["waiting", "nobody"], 3, "nobody is unknown"),
    ],
)
def test_what_cannot_be_retried_is_told_and_left_alone(
    shop: Terminal, words: list[str], code: int, remark: str
) -> None:
    answer = shop("dlq", "retry", *words)
    assert (answer.code, answer.out) == (code, "")
    assert remark in answer.err
    assert states(shop) == AS_IT_WAS


def test_a_job_of_a_run_that_is_over_is_not_retried_because_nobody_would_come_for_it(shop: Terminal) -> None:
    shop("run", "--", "false")
    [over] = [job["id"] for job in shop.jobs() if job["job"] == "command"]
    answer = shop("dlq", "retry", "a", over)
    assert (answer.code, answer.out) == (4, "")
    assert f"job '{over}' belongs to a 'holdfast run' that has exited" in answer.err
    assert states(shop) == {**AS_IT_WAS, over: "dead"}
    assert [one["id"] for one in shop("dlq", "retry", "--all", "--json").json] == ["b", "c", "a"]
    assert states(shop)[over] == "dead"
    assert shop("dlq", "discard", over).code == 0


def test_what_can_be_retried_is_also_if_something_else_cannot(shop: Terminal) -> None:
    answer = shop("dlq", "retry", "nobody", "a", "--json")
    assert answer.code == 3
    assert [(one["id"], one["answer"]) for one in answer.json] == [("nobody", "unknown"), ("a", "replayed")]
    assert states(shop) == {**AS_IT_WAS, "a": "pending"}


@pytest.mark.parametrize("command", ["retry", "discard"])
@pytest.mark.parametrize("words", [[], ["a", "--all"], ["--all", "--where", "queue:a"]])
def test_one_names_the_jobs_or_says_all(shop: Terminal, command: str, words: list[str]) -> None:
    answer = shop("dlq", command, *words)
    assert answer.code == 2
    assert "pass one of job ids, --where SEARCH and --all; - reads ids from stdin" in answer.err
    assert states(shop) == AS_IT_WAS


def test_a_dead_letter_is_forgotten_for_good(shop: Terminal) -> None:
    answer = shop("dlq", "discard", "a")
    assert (answer.code, answer.out) == (0, "✓ a discarded\n")
    assert "a" not in states(shop)
    answer = shop("show", "a")
    assert (answer.code, "never accepted, or its record has been pruned or deleted" in answer.err) == (3, True)
    assert shop("dlq", "discard", "a").code == 3


@pytest.mark.parametrize("name", ["waiting", "late"])
def test_only_dead_letters_can_be_discarded(shop: Terminal, name: str) -> None:
    answer = shop("dlq", "discard", name)
    assert (answer.code, answer.out) == (4, "")
    assert f"{name} is not a dead letter; nothing was discarded" in answer.err
    answer = shop("dlq", "discard", name, "nobody")
    assert (answer.code, "nobody is unknown" in answer.err) == (3, True)
    assert states(shop) == AS_IT_WAS


def test_discarding_all_wants_a_yes_where_nobody_can_be_asked(shop: Terminal) -> None:
    answer = shop("dlq", "discard", "--all")
    assert (answer.code, answer.out) == (2, "")
    assert "this would discard 3 dead letters for good; pass --yes" in answer.err
    assert states(shop) == AS_IT_WAS
    answer = shop("dlq", "discard", "--all", "--queue", "mail", "--yes")
    assert answer.out == "✓ c discarded\n"
    assert shop("dlq", "discard", "--all", "--yes", "--json").json == [
        {"schema": "holdfast.job.discard/1", "id": "b", "discarded": True},
        {"schema": "holdfast.job.discard/1", "id": "a", "discarded": True},
    ]
    assert states(shop) == {"late": "cancelled", "waiting": "pending"}


@pytest.mark.parametrize(("typed", "code", "left"), [("n\n", 1, 3), ("\n", 1, 3), ("", 1, 3), ("y\n", 0, 0)])
def test_at_a_terminal_it_asks_with_the_number(shop: Terminal, typed: str, code: int, left: int) -> None:
    answer = shop("dlq", "discard", "--all", typed=typed)
    assert "Discard 3 dead letters for good?" in answer.err
    assert answer.code == code
    assert len(shop("dlq", "list", "--json").json) == left


@pytest.mark.parametrize("command", [["retry", "--all"], ["discard", "--all"], ["discard", "--all", "--yes"]])
def test_without_dead_letters_there_is_nothing_to_do(terminal: Terminal, command: list[str]) -> None:
    answer = terminal("dlq", *command)
    assert (answer.code, answer.out, answer.err) == (0, "", "there are no dead letters\n")
    assert terminal("dlq", *command, "--json").json == []


def test_more_than_a_page_of_dead_letters_is_retried(terminal: Terminal) -> None:
    with Holdfast(directory=terminal.project) as hf:
        hf.enqueue_many([hf.define("flaky").definition()] * 1100)
        leases = hf.backend().claim("default", 1100, owner_token=new_owner_token(new_session()))
        hf.backend().settle([Abandon(lease=lease, reason=DeadReason.FAILED) for lease in leases])
    assert len(terminal("dlq", "retry", "--all", "--json").json) == 1100
    assert terminal("dlq", "list", "--json").json == []


def test_a_dead_letter_names_its_copy_and_the_copy_names_it(terminal: Terminal) -> None:
    terminal.write("shop.py", SHOP)
    terminal("config", "set", "dead-letter-to", "failed_jobs")
    terminal("enqueue", "--job", "flaky", "--id", "a", "--max-retries", "0")
    terminal("enqueue", "--job", "flaky", "--id", "b", "--max-retries", "0", "--dead-letter-to", "own")
    assert terminal("show", "a", "--json").json["dead_letter_copy"] is None
    terminal("worker", "start", "shop", "--burst")
    for show in (("dlq", "show"), ("show",)):
        assert "copy         a:dead:1 in queue failed_jobs (pending)" in terminal(*show, "a").out.splitlines()
        assert terminal(*show, "a", "--json").json["dead_letter_copy"] == "a:dead:1"
    b = terminal("show", "b")
    assert "copy         b:dead:1 in queue own (pending)" in b.out.splitlines()
    assert "dead letter to own" in b.out.splitlines()
    copy = terminal("show", "b:dead:1", "--json").json
    assert (copy["job"], copy["payload"]["letter"]["id"], copy["dead_letter_copy"]) == ("dead-letter", "b", None)
    assert terminal("dlq", "discard", "a", "--yes").code == 0
    assert terminal("show", "a:dead:1", "--json").json["state"] == "pending"
