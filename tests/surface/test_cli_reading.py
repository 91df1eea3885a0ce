"""`list`, `show` and `status`: what is there, for people and for programs, and nothing a terminal would obey."""

import json
import sqlite3
from datetime import datetime

import pytest

from holdfast import Holdfast
from holdfast.queues.engines.sqlite.records import SqliteRecords
from holdfast.values import DeadReason, JobFilter

from .registry import claim
from .terminal import Terminal

CONTROLS = {chr(code) for code in (*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
EVIL = "\x1b]0;owned\x07 \x1b[2J \r \x9b31m \u202eback \x00"

SHOP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.job
def add(a: int, b: int = 2) -> int:
    print("adding", a)
    return a + b

@hf.job
def fail(text: str) -> None:
    print(text)
    raise ValueError(text)
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """Four jobs: one completed, one dead, one waiting, one scheduled."""
    terminal.write("shop.py", SHOP)
    specs = [
        {"id": "good", "job": "add", "payload": {"a": 1}},
        {"id": "bad", "job": "fail", "payload": {"text": "disk gone"}, "max_retries": 1, "backoff": "none"},
    ]
    terminal("enqueue", json.dumps(specs))
    terminal("worker", "start", "shop", "--burst")
    specs = [
        {"id": "next", "job": "add", "payload": {"a": 2}, "queue": "mail", "name": "the next one"},
        {"id": "later", "job": "add", "payload": {"a": 3}, "delay": "1h"},
    ]
    terminal("enqueue", json.dumps(specs))
    return terminal


def ids(text: str) -> list[str]:
    """The first column of a table, without its heading."""
    return [line.split()[0] for line in text.splitlines()[1:]]


# list


def test_jobs_are_listed_newest_first(shop: Terminal) -> None:
    answer = shop("list")
    assert answer.code == 0
    assert answer.err == ""
    heading, *rows = answer.out.splitlines()
    assert heading.split() == ["ID", "STATE", "JOB", "QUEUE", "TRY", "AGE", "ERROR"]
    assert [row.split()[:2] for row in rows] == [
        ["later", "scheduled"],
        ["next", "pending"],
        ["bad", "dead"],
        ["good", "completed"],
    ]
    assert "the next one" in rows[1]
    assert "2/2" in rows[2]
    assert rows[2].endswith("ValueError: disk gone")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--state", "pending"], ["next"]),
        (["--state", "pending,scheduled"], ["later", "next"]),
        (["--state", "dead", "--state", "COMPLETED"], ["bad", "good"]),
        (["--queue", "mail"], ["next"]),
        (["--queue", "nowhere"], []),
        (["--job", "fail"], ["bad"]),
        (["--job", "add", "--state", "completed"], ["good"]),
        (["--limit", "1"], ["later"]),
    ],
)
def test_a_list_can_be_narrowed(shop: Terminal, options: list[str], found: list[str]) -> None:
    assert [job["id"] for job in shop("list", *options, "--json").json] == found
    answer = shop("list", *options)
    assert ids(answer.out) == found
    assert ("no jobs" in answer.err) == (not found)


def test_a_long_list_is_read_page_by_page(terminal: Terminal) -> None:
    lines = "".join(f'{{"id": "job{number:02}", "job": "x"}}\n' for number in range(10))
    terminal("enqueue", "-", stdin=lines)
    for options in (["--json"], []):
        found: list[str] = []
        cursor: list[str] = []
        while True:
            answer = terminal("list", "--limit", "4", *options, *cursor)
            found += [job["id"] for job in answer.json] if options else ids(answer.out)
            if not answer.err:
                break
            assert answer.err.startswith("more:  --after ")
            cursor = ["--after", answer.err.split()[-1]]
        assert found == [f"job{number:02}" for number in range(9, -1, -1)]


@pytest.mark.parametrize("cursor", ["x", "", "1", "1.2.3", "1.x", "-", "1." + "9" * 40])
def test_what_is_no_cursor_is_refused(shop: Terminal, cursor: str) -> None:
    answer = shop("list", "--after", cursor)
    assert (answer.code, answer.out) == (2, "")
    assert "is not a valid cursor; copy the value of --after" in answer.err


def test_a_mistake_of_ours_is_not_blamed_on_the_cursor(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(self: SqliteRecords, where: JobFilter, *, limit: int, after: str | None) -> object:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(SqliteRecords, "find", buggy)
    with pytest.raises(ValueError, match="a mistake of ours"):
        shop("list")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ["--state", "broken"],
            "'broken' is not a state; did you mean 'blocked'? known states: blocked, scheduled, pending",
        ),
        (["--limit", "0"], "--limit"),
        (["--limit", "10001"], "--limit"),
        (["--limit", "many"], "--limit"),
    ],
)
def test_a_wrong_filter_is_refused(shop: Terminal, options: list[str], why: str) -> None:
    answer = shop("list", *options)
    assert answer.code == 2
    assert why in answer.err


def test_nothing_is_an_empty_array_or_a_remark(terminal: Terminal) -> None:
    assert terminal("list", "--json").json == []
    answer = terminal("list")
    assert (answer.code, answer.out, answer.err) == (0, "", "no jobs\n")


def test_as_json_every_job_has_every_member(shop: Terminal) -> None:
    documents = shop("list", "--json").json
    assert type(documents) is list
    documents = shop.jobs()[::-1]
    assert len({tuple(document) for document in documents}) == 1
    next_one = documents[1]
    assert (next_one["name"], next_one["payload"], next_one["finished_at"]) == ("the next one", {"a": 2}, None)
    assert next_one["accepted_at"].endswith("Z")
    assert datetime.fromisoformat(next_one["accepted_at"])


# show


def test_a_run_that_completed_is_a_run(terminal: Terminal) -> None:
    with Holdfast(directory=terminal.project) as hf:
        for job_id in ("done", "running", "new"):
            hf.define("add").id(job_id).dispatch()
        engine = hf.backend()
        assert engine.ack(claim(engine))
        claim(engine)
        tries = {each["id"]: each["try"] for each in terminal("list", "--json", "--fields", "id,try").json}
    assert tries == {"done": "1/4", "running": "1/4", "new": "0/4"}
    assert "attempts     1 of 4\n" in terminal("show", "done").out
    assert "attempts     0 of 4\n" in terminal("show", "new").out


def test_a_job_cancelled_without_a_reason_has_no_empty_line(terminal: Terminal) -> None:
    with Holdfast(directory=terminal.project) as hf:
        hf.define("add").id("a").dispatch()
        hf.backend().cancel("a", "")
    assert "\ncancelled" not in terminal("show", "a").out


def test_one_job_is_shown_with_its_history(shop: Terminal) -> None:
    answer = shop("show", "bad")
    assert (answer.code, answer.err) == (0, "")
    for line in (
        "id           bad",
        "state        dead (failed)",
        "attempts     2 of 2, 2 failed",
        'payload      {"text":"disk gone"}',
        "last error   ValueError: disk gone",
        "  | ValueError: disk gone",
        "  | disk gone",
    ):
        assert line in answer.out.splitlines()
    assert "#1 failed at " in answer.out
    assert "#2 failed at " in answer.out
    assert answer.out.count("Traceback (most recent call last):") == 2
    assert "in fail" in answer.out


def test_a_result_and_an_output_are_shown(shop: Terminal) -> None:
    shown = shop("show", "good").out
    assert "  result  3\n" in shown
    assert "  output:\n  | adding 1\n" in shown


def test_as_json_one_job_is_what_the_list_says_and_its_history(shop: Terminal) -> None:
    for listed in shop("list", "--json").json:
        shown = shop("show", listed["id"], "--json").json
        history, why, output = shown.pop("history"), shown.pop("why"), shown.pop("live_output")
        assert (shown.pop("locks"), shown.pop("dead_letter_copy")) == ([], None)
        assert (shown.pop("parents"), shown.pop("children")) == ([], [])
        assert (shown.pop("open_parents"), shown.pop("child_count")) == (0, 0)
        assert shown == {**listed, "schema": "holdfast.job.shown/1"}
        assert (why == []) == (listed["state"] == "completed")
        assert (len(history), output) == (listed["deliveries"], None)
    attempts = shop.job("bad")["history"]
    assert [(one["delivery"], one["outcome"], one["output"]) for one in attempts] == [
        (1, "failed", "disk gone\n"),
        (2, "failed", "disk gone\n"),
    ]
    assert attempts[0]["error"]["type"] == "ValueError"
    assert "Traceback" in attempts[0]["error"]["traceback"]
    assert shop.job("good")["history"][0]["result"] == 3


@pytest.mark.parametrize("command", [["show"], ["dlq", "show"]])
def test_a_job_nobody_knows_is_not_found(shop: Terminal, command: list[str]) -> None:
    answer = shop(*command, "nobody")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("holdfast: there is no job 'nobody'")
    assert shop(*command, "nobody", "--json").error["code"] == "UnknownJob"


@pytest.mark.parametrize("command", ["show", "dlq show", "logs", "wait", "retry", "cancel", "delete", "dlq discard"])
def test_an_id_that_is_too_long_to_be_one_is_not_repeated_whole(shop: Terminal, command: str) -> None:
    answer = shop(*command.split(), "j" * 5000)
    assert (answer.code, answer.out) == (3, "")
    assert f"{'j' * 60}... (5,000 characters)" in answer.err
    assert "j" * 61 not in answer.err


# Nothing stored reaches the terminal raw


def test_what_a_job_says_cannot_move_the_cursor(shop: Terminal) -> None:
    spec = {"id": "evil", "job": "fail", "payload": {"text": EVIL}, "max_retries": 0, "meta": {"note": EVIL}}
    shop("enqueue", json.dumps(spec))
    shop("worker", "start", "shop", "--burst")
    for command in (["list"], ["show", "evil"], ["dlq", "list"], ["dlq", "show", "evil"], ["status"]):
        answer = shop(*command)
        assert answer.code == 0
        assert not (CONTROLS - {"\n"}) & set(answer.out + answer.err), command
    assert "\ufffd]0;owned\ufffd" in shop("show", "evil").out


def test_what_an_operator_said_cannot_either(shop: Terminal) -> None:
    with Holdfast(directory=shop.project) as hf:
        hf.handle("next").cancel(EVIL)
    for command in (["list"], ["show", "next"]):
        assert not (CONTROLS - {"\n"}) & set(shop(*command).out), command


MESSAGE = (
    b'{"v":1,"job":"x","payload":"text","queue":"mail","maxRetries":1,"identifier":"next","timeout":1,'
    b'"createdAt":"2026-01-01T00:00:00Z"}'
)
HOSTILE_WIRES = {
    "junk": b"\x00\xff junk",
    "nothing": b"",
    "not UTF-8": MESSAGE.replace(b'"x"', b'"\xff"'),
    "not UTF-8 in the payload": MESSAGE.replace(b"text", b"\xff"),
    "a number too large": MESSAGE.replace(b'"text"', b"1e999"),
    "an end beyond the calendar": MESSAGE[:-1] + b',"expiresAt":"9999-12-31T23:59:59-14:00"}',
    "a name a terminal would obey": MESSAGE[:-1] + b',"name":"\\u001b]0;owned\\u0007"}',
    "a newer version": b'{"v":2,"new":true}',
}


@pytest.mark.parametrize("wire", HOSTILE_WIRES.values(), ids=HOSTILE_WIRES.keys())
def test_a_message_somebody_has_tampered_with_is_still_shown(shop: Terminal, wire: bytes) -> None:
    database = sqlite3.connect(shop.database)
    with database:
        where = "WHERE seq = (SELECT seq FROM holdfast_jobs WHERE id = 'next')"
        database.execute(f"UPDATE holdfast_messages SET wire = ? {where}", (wire,))
    database.close()
    for command in (["list"], ["show", "next"], ["status"]):
        answer = shop(*command)
        assert answer.code == 0
        assert not (CONTROLS - {"\n"}) & set(answer.out)
        assert shop(*command, "--json").json
    assert "next" in ids(shop("list").out)


# status


def test_the_status_counts_the_jobs_of_each_queue(shop: Terminal) -> None:
    answer = shop("status")
    assert answer.code == 0
    place, heading, *rows = answer.out.splitlines()
    assert place == str(shop.database)
    assert heading.split() == [
        "QUEUE",
        "BLOCKED",
        "SCHEDULED",
        "PENDING",
        "PROCESSING",
        "FAILED",
        "COMPLETED",
        "DEAD",
        "CANCELLED",
    ]
    assert [row.split() for row in rows] == [
        ["default", "–", "1", "–", "–", "–", "1", "1", "–"],
        ["mail", "–", "–", "1", "–", "–", "–", "–", "–"],
    ]
    only = shop("status", "--queue", "mail").out.splitlines()
    assert [row.split()[0] for row in only[2:]] == ["mail"]


def test_as_json_every_state_is_there_with_its_number(shop: Terminal) -> None:
    document = shop("status", "--json").json
    none = dict.fromkeys(
        ["blocked", "scheduled", "pending", "processing", "failed", "completed", "dead", "cancelled"], 0
    )
    assert document["location"] == str(shop.database)
    assert document["totals"] == {**none, "scheduled": 1, "pending": 1, "completed": 1, "dead": 1}
    assert document["queues"] == {
        "default": {**none, "scheduled": 1, "completed": 1, "dead": 1, "paused": False},
        "mail": {**none, "pending": 1, "paused": False},
    }


def test_a_paused_queue_is_marked(shop: Terminal) -> None:
    with Holdfast(directory=shop.project) as hf:
        hf.backend().pause("mail", "the server is down")
    assert "mail (paused)" in shop("status").out
    assert shop("status", "--json").json["queues"]["mail"]["paused"] is True


def test_an_empty_place_says_how_to_fill_it(terminal: Terminal) -> None:
    answer = terminal("status")
    assert (answer.code, answer.out) == (0, f"{terminal.database}\n")
    assert answer.err == "no jobs yet; enqueue one:  holdfast enqueue -- COMMAND\n"
    assert terminal("status", "--json").json["queues"] == {}


def test_a_running_job_is_shown_with_its_lease(shop: Terminal) -> None:
    with Holdfast(directory=shop.project) as hf:
        lease = hf.backend().fetch("mail")
        assert lease is not None
        shown = shop("show", "next").out
        assert "state        processing\n" in shown
        assert "leased until " in shown
        hf.backend().abandon(lease, DeadReason.FAILED)
