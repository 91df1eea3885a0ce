"""`--where` and the other ways of saying which jobs are meant, in `list` and in what changes many jobs at once."""

import csv
import io
import json
import os

import pytest
from msgspec.structs import replace

from holdfast import Holdfast
from holdfast.cli import jobs
from holdfast.queues.contract import Engine, new_owner_token, new_session
from holdfast.state.workers import WorkerRegistry
from holdfast.values import CancelAnswer, DeadReason, ErrorInfo, JobLease, Outcome

from .registry import attempt, claim, report
from .terminal import Answer, Terminal, ended

SHOP = """
from holdfast import Holdfast

hf = Holdfast()

@hf.job
def greet(user: int, vip: bool = False) -> str:
    print("hello", user)
    return "hi"

@hf.job
def fail(user: int) -> None:
    print("trying", user)
    raise TimeoutError(f"no answer for {user}")
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """Two completed, two dead, two waiting, one of them later."""
    terminal.write("shop.py", SHOP)
    done = [{"id": f"g{user}", "job": "greet", "payload": {"user": user}, "tags": ["eu"]} for user in (1, 2)]
    dead = [{"id": f"f{user}", "job": "fail", "payload": {"user": user}, "max_retries": 0} for user in (1, 42)]
    terminal("enqueue", json.dumps([*done, *dead]))
    with Holdfast(directory=terminal.project) as hf:
        for lease in hf.backend().claim("default", 10, owner_token=new_owner_token(new_session())):
            settle(hf.backend(), lease)
    waiting = [
        {"id": "w1", "job": "greet", "payload": {"user": 7, "vip": True}, "queue": "mail", "meta": {"tenant": "acme"}},
        {"id": "w2", "job": "greet", "payload": {"user": 8}, "delay": "1h", "priority": 9},
    ]
    terminal("enqueue", json.dumps(waiting))
    return terminal


def settle(engine: Engine, lease: JobLease) -> None:
    """What a worker would have made of the job."""
    user = lease.id[1:]
    if lease.id.startswith("g"):
        assert engine.ack(lease, replace(attempt(result="hi"), output=f"hello {user}\n"))
    else:
        failed = replace(attempt(Outcome.FAILED), error=ErrorInfo(type="TimeoutError", message=f"no answer for {user}"))
        assert engine.abandon(lease, DeadReason.FAILED, replace(failed, output=f"trying {user}\n", result=None))


def ids(answer: Answer) -> list[str]:
    assert answer.code == 0, answer.err
    return sorted(answer.out.split())


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--where", "state:dead error:timeout"], ["f1", "f42"]),
        (["--where", "args.user:42"], ["f42"]),
        (["--where", "args.user:>1 -state:dead"], ["g2", "w1", "w2"]),
        (["--where", 'args.user:"42"'], []),
        (["--where", "args.vip:true"], ["w1"]),
        (["--where", "meta.tenant:ac*"], ["w1"]),
        (["--where", "job:gr*", "--where", "-queue:mail"], ["g1", "g2", "w2"]),
        (["--where", "priority:>5"], ["w2"]),
        (["--where", "due:>now"], ["w2"]),
        (["--where", "answer"], ["f1", "f42"]),
        (["--tag", "eu"], ["g1", "g2"]),
        (["--queue", "m*"], ["w1"]),
        (["--since", "1h"], ["f1", "f42", "g1", "g2", "w1", "w2"]),
        (["--until", "1h"], []),
        (["--where", "age:<1h", "--state", "dead", "--job", "fail"], ["f1", "f42"]),
    ],
)
def test_a_list_can_be_searched(shop: Terminal, options: list[str], found: list[str]) -> None:
    assert ids(shop("list", "-q", *options)) == found
    assert shop("list", "--count", *options).out == f"{len(found)}\n"


def test_a_search_that_cannot_be_understood_is_pointed_at(shop: Terminal) -> None:
    answer = shop("list", "--where", "state:ded")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[0].startswith("holdfast: 'ded' is not a state; did you mean 'dead'?")
    assert answer.err.splitlines()[1:] == ["  state:ded", "        ^ column 7"]
    assert shop("list", "--where", "x:1", "--json").error["code"] == "SearchRejected"
    assert shop("list", "--where", "x:1", "--jsonl").error["code"] == "SearchRejected"
    assert "is not a valid time; write a time as" in shop("list", "--since", "soon").err


def test_a_search_says_when_it_gave_up_and_goes_on(shop: Terminal) -> None:
    first = shop("list", "-q", "--where", "error:timeout", "--look-at", "2")
    assert (first.code, first.out) == (0, "")
    assert first.err.startswith("searched 2 jobs; to continue with older ones, add  --after ")
    cursor = first.err.split("--after ")[1].split()[0]
    second = shop("list", "-q", "--where", "error:timeout", "--after", cursor)
    assert ids(second) == ["f1", "f42"]
    counted = shop("list", "--count", "--where", "error:timeout", "--look-at", "3", "--json")
    assert counted.json == {"schema": "holdfast.job.count/1", "count": 1, "is_exact": False}
    assert "this is a lower bound: only the newest 3 jobs were counted" in counted.err


def test_a_list_comes_in_the_shape_that_is_asked_for(shop: Terminal) -> None:
    lines = shop("list", "--jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == shop("list", "--json").json
    rows = list(csv.DictReader(io.StringIO(shop("list", "--csv", "--columns", "id,state,payload,age,error").out)))
    assert [row["id"] for row in rows][:2] == ["w2", "w1"]
    assert json.loads(rows[1]["payload"]) == {"user": 7, "vip": True}
    assert rows[-1]["error"] == ""
    assert float(rows[0]["age"]) >= 0
    table = shop("list", "--columns", "queue,id,accepted-at", "--utc", "--limit", "1").out.splitlines()
    assert table[0].split() == ["QUEUE", "ID", "ACCEPTED", "AT"]
    assert table[1].split()[:2] == ["default", "w2"]
    assert table[1].endswith("+00:00")
    assert shop("list", "--json", "--fields", "id,try", "--limit", "1").json == [{"id": "w2", "try": "0/4"}]


def test_cells_that_a_spreadsheet_would_run_are_text(terminal: Terminal) -> None:
    terminal("enqueue", '{"job": "x", "name": "=1+1"}')
    assert terminal("list", "--csv", "--columns", "name").out == "name\n'=1+1\n"


def test_shapes_exclude_each_other_and_columns_are_known(shop: Terminal) -> None:
    answer = shop("list", "--csv", "--quiet")
    assert (answer.code, "--csv and --quiet cannot be used together" in answer.err) == (2, True)
    answer = shop("list", "--columns", "stat")
    assert answer.code == 2
    assert "'stat' is not a column; did you mean 'state'? known columns: id, state" in answer.err
    assert len(jobs.COLUMNS) == len(set(jobs.COLUMNS))


# What changes many jobs


@pytest.mark.parametrize("command", ["cancel", "retry", "delete"])
@pytest.mark.parametrize("words", [[], ["g1", "--where", "state:dead"]])
def test_jobs_are_named_in_one_way(shop: Terminal, command: str, words: list[str]) -> None:
    answer = shop(command, *words)
    assert answer.code == 2
    assert "pass either job ids or --where SEARCH; - reads ids from stdin" in answer.err


def test_what_a_search_means_is_cancelled_once_that_is_confirmed(shop: Terminal) -> None:
    for words in (["--where", "job:greet"], ["--where", "job:greet", "--no-input"]):
        answer = shop("cancel", *words)
        assert answer.code == 2
        assert "this would cancel 2 jobs; pass --yes, or check first with --dry-run" in answer.err
    assert shop("cancel", "--where", "job:greet", "--no-input", typed="y\n").code == 2
    assert shop("cancel", "--where", "job:greet", typed="n\n").code == 1
    answer = shop("cancel", "--where", "job:greet", "--dry-run")
    assert answer.out == "would cancel w2 (scheduled on default)\nwould cancel w1 (pending on mail)\n"
    assert ids(shop("list", "-q", "--state", "cancelled")) == []
    answer = shop("cancel", "--where", "job:greet", typed="y\n")
    assert (answer.code, "Cancel 2 jobs?" in answer.err) == (0, True)
    assert ids(shop("list", "-q", "--state", "cancelled")) == ["w1", "w2"]
    answer = shop("cancel", "--where", "job:greet", "--yes")
    assert (answer.code, answer.out, answer.err) == (0, "", "no matching job can be cancelled\n")


def test_ids_come_from_stdin(shop: Terminal) -> None:
    listed = shop("list", "-q", "--where", "error:timeout").out
    assert ids(shop("list", "-q", "--state", "dead")) == ["f1", "f42"]
    answer = shop("retry", "-", stdin=f"\n{listed}\n")
    assert (answer.code, len(answer.out.splitlines())) == (0, 2)
    assert ids(shop("list", "-q", "--state", "dead")) == []
    documents = shop("list", "--jsonl", "--state", "completed").out
    answer = shop("delete", "-", stdin=documents)
    assert (answer.code, "this would delete 2 jobs for good" in answer.err) == (2, True)
    assert shop("delete", "-", "--yes", stdin=documents).code == 0
    assert ids(shop("list", "-q", "--state", "completed")) == []
    answer = shop("retry", "-", stdin='{"no": "id"}')
    assert (answer.code, "line 1 of stdin is not a JSON document with an id" in answer.err) == (2, True)


def test_jobs_are_retried_by_a_search_and_history_is_kept(shop: Terminal) -> None:
    rehearsed = shop("retry", "--where", "args.user:42", "--dry-run", "--json").json
    schema = "holdfast.job.rehearsal/1"
    assert rehearsed == [{"schema": schema, "id": "f42", "state": "dead", "would": "retry", "refused": False}]
    assert shop("retry", "--where", "args.user:42", "--json").json == [
        {"schema": "holdfast.job.retry/1", "id": "f42", "answer": "replayed"}
    ]
    assert len(shop.job("f42")["history"]) == 1
    assert shop("retry", "--where", "state:completed").err == "no matching job can be retried\n"


def test_many_jobs_are_summed_up(terminal: Terminal) -> None:
    jobs = "\n".join(json.dumps({"id": f"j{number:02}", "job": "x"}) for number in range(25))
    terminal("enqueue", "-", stdin=jobs)
    rehearsed = terminal("cancel", "--where", "job:x", "--dry-run")
    assert rehearsed.out.splitlines()[0] == "would cancel j24 (pending on default)"
    assert rehearsed.out.splitlines()[20:] == ["would cancel 5 more"]
    assert terminal("cancel", "--where", "job:x", "--yes").out == "✓ 25 jobs: cancelled\n"
    assert terminal("cancel", "-", "--yes", stdin=terminal("list", "-q").out).out == "✓ 25 jobs: already cancelled\n"
    refused = terminal("cancel", *(f"no{number}" for number in range(25)))
    assert (refused.code, refused.out, refused.err.splitlines()[20:]) == (3, "", ["  and 5 more"])
    assert terminal("delete", "--where", "job:x", "--yes").out == "✓ 25 jobs: deleted\n"


def test_only_what_has_ended_is_deleted(shop: Terminal) -> None:
    answer = shop("delete", "g1", "w1", "nobody")
    assert (answer.code, answer.out) == (3, "✓ g1 deleted\n")
    assert "✗ w1 is pending; cancel it first:  holdfast cancel w1" in answer.err
    assert "✗ nobody is unknown" in answer.err
    assert shop("delete", "w1").code == 4
    deleted = shop("delete", "--where", "state:dead", "--yes", "--json").json
    assert sorted(one["id"] for one in deleted if one["deleted"]) == ["f1", "f42"]
    assert ids(shop("list", "-q", "--state", "dead")) == []
    assert shop("delete", "nobody", "--dry-run").code == 3


@pytest.mark.parametrize(
    ("command", "refused", "done"),
    [
        (["delete"], "w1", "g1"),
        (["retry"], "w1", "f1"),
        (["retry"], "g1", "f1"),
        (["cancel"], "g1", "w1"),
        (["dlq", "retry"], "w1", "f1"),
        (["dlq", "discard"], "g1", "f1"),
    ],
)
def test_what_would_be_refused_is_not_promised(shop: Terminal, command: list[str], refused: str, done: str) -> None:
    state = shop.job(refused)["state"]
    answer = shop(*command, refused, done, "--dry-run")
    assert (answer.code, answer.out.startswith(f"would {command[-1]} {done} (")) == (4, True)
    assert f"✗ {refused} is {state} and would be refused\n" in answer.err
    document = shop(*command, refused, done, "--dry-run", "--json").json
    assert [one["refused"] for one in document] == [True, False]
    for ids in ([refused], [refused, "nobody"], ["nobody"]):
        assert shop(*command, *ids, "--dry-run").code == shop(*command, *ids).code != 0


def test_an_expired_job_is_not_promised_a_new_life(shop: Terminal) -> None:
    shop("enqueue", '{"id": "late", "job": "greet"}', "--expires", "100ms", "--delay", "1h")
    shop("cancel", "late")
    while shop("retry", "late", "--dry-run").code == 0:
        pass
    answer = shop("retry", "late", "--dry-run")
    assert (answer.code, "✗ late has expired and would be refused" in answer.err) == (4, True)
    assert shop("retry", "late").code == 4
    assert shop("retry", "late", "--dry-run", "--ignore-expiry").code == 0


def test_dead_letters_are_searched_retried_and_discarded(shop: Terminal) -> None:
    assert ids(shop("dlq", "list", "-q", "--where", "args.user:42")) == ["f42"]
    assert ids(shop("dlq", "list", "-q", "--where", "state:completed")) == []
    assert shop("dlq", "retry", "--where", "args.user:42", "--dry-run").out == "would retry f42 (dead on default)\n"
    assert shop("dlq", "retry", "--where", "args.user:42").code == 0
    answer = shop("dlq", "discard", "--where", "error:timeout", "--no-input")
    assert (answer.code, "this would discard 1 dead letter for good" in answer.err) == (2, True)
    assert shop("dlq", "discard", "-", "--yes", stdin="f1\n").out == "✓ f1 discarded\n"
    assert "--queue needs --all" in shop("dlq", "retry", "f1", "--queue", "mail").err


# logs and wait


def test_what_a_job_printed_goes_to_stdout(shop: Terminal) -> None:
    answer = shop("logs", "f1")
    assert (answer.code, answer.out) == (0, "trying 1\n")
    assert answer.err.startswith("#1 failed at ")
    shop("retry", "f1")
    with Holdfast(directory=shop.project) as hf:
        settle(hf.backend(), claim(hf.backend()))
    assert shop("logs", "f1", "-f").out == "trying 1\ntrying 1\n"
    assert shop("logs", "f1", "--attempt", "2").out == "trying 1\n"
    assert [one["attempt"] for one in shop("logs", "f1", "--json").json] == [1, 2]
    assert len(shop("logs", "f1", "--jsonl", "-f").out.splitlines()) == 2
    answer = shop("logs", "f1", "--attempt", "3")
    assert (answer.code, "has no attempt 3, only 2 attempts" in answer.err) == (3, True)
    assert "has no attempt yet" in shop("logs", "w1").err
    assert shop("logs", "nobody").code == 3


def test_logs_are_followed_until_the_job_has_ended(shop: Terminal) -> None:
    follower = shop.start("logs", "g1", "-f", "--attempt", "2")
    with Holdfast(directory=shop.project) as hf:
        assert hf.backend().cancel("w1") is CancelAnswer.CANCELLED
        assert ended(shop.start("logs", "w1", "-f")).code == 0
    assert ended(follower).code == 3
    screen = shop.on_screen("logs", "w2", "-f")
    screen.wait_for("scheduled…")
    assert shop("cancel", "w2").code == 0
    assert screen.ended() == 0


def test_waiting_ends_with_how_jobs_ended(shop: Terminal) -> None:
    answer = shop("wait", "g1")
    assert (answer.code, answer.out) == (0, '"hi"\n')
    assert shop("wait", "f1").code == 7
    assert shop("wait", "w1", "--timeout", "10ms").code == 6
    answer = shop("wait", "w1", "w2", "g1", "--any")
    assert (answer.code, answer.out) == (0, "g1\n")
    assert shop("wait", "w1", "w2", "--any", "--timeout", "10ms").code == 6
    assert shop("wait", "-", stdin="g1\ng2\n").out == "2 completed\n"
    assert shop("wait", "w1", "nobody").code == 3
    assert shop("wait", "f1", "w1", "--any", "--json").json["id"] == "f1"


# queue


def test_queues_are_paused_with_a_reason_and_resumed(shop: Terminal) -> None:
    answer = shop("queue", "pause", "mail", "--reason", "vendor is down")
    assert (answer.code, answer.out) == (0, "✓ mail paused\n")
    assert "the queue has been paused since" in shop("show", "w1").out
    assert "vendor is down" in shop("queue", "list").out
    assert "vendor is down" in shop("queue", "show", "mail").out
    [default, mail] = shop("queue", "list", "--json").json
    assert (default["queue"], default["paused"], default["states"]["dead"]) == ("default", None, 2)
    assert mail["paused"]["reason"] == "vendor is down"
    assert shop("queue", "list", "-q").out == "default\nmail\n"
    assert shop("queue", "resume", "mail", "--dry-run").out == "would resume mail\n"
    assert shop("queue", "resume", "mail").out == "✓ mail resumed\n"
    assert shop("queue", "resume", "mail", "--json").json[0]["resumed"] is False
    answer = shop("queue", "show", "nothing")
    assert (answer.code, "known queues: default, mail" in answer.err) == (3, True)
    assert shop("queue", "pause", "Bad Name").code == 2


def test_queues_show_how_long_jobs_have_waited_and_which_queues_have_no_worker(shop: Terminal) -> None:
    answer = shop("queue", "list")
    assert answer.err.endswith("no live worker for mail; start one:  holdfast worker start APP --queue mail\n")
    default, mail = shop("queue", "list", "--json").json
    assert (default["queue"], default["oldest_due_at"]) == ("default", None)
    assert (mail["queue"], mail["oldest_due_at"], mail["workers"]) == ("mail", shop.job("w1")["due_at"], [])
    assert "\noldest       due for " in shop("queue", "show", "mail").out
    assert "oldest" not in shop("queue", "show", "default").out
    with Holdfast(directory=shop.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("a" * 32, queues=("mail:3",)))
    assert "no live worker" not in shop("queue", "list").err
    assert shop("queue", "show", "mail", "--json").json["workers"] == ["a" * 32]
    with Holdfast(directory=shop.project) as hf:
        WorkerRegistry(hf.backend().state).leave("a" * 32)
        hf.backend().pause("mail")
    assert "no live worker" not in shop("queue", "list").err, "a paused queue needs no worker"


def test_a_queue_is_worked(shop: Terminal) -> None:
    assert shop("queue", "work", "mail", "--app", "shop", "--once").code == 0
    assert shop.job("w1")["state"] == "completed"


def test_a_purge_asks_with_the_exact_count(shop: Terminal) -> None:
    assert "name one queue, or pass --all" in shop("queue", "purge").err
    assert shop("queue", "purge", "default", "--dry-run").out == "would purge 2 completed jobs from queue default\n"
    answer = shop("queue", "purge", "--all", "--state", "all")
    assert (
        answer.code,
        "this would permanently delete 4 completed,dead,cancelled jobs from all queues" in answer.err,
    ) == (2, True)
    assert "pass --confirm=all" in answer.err
    assert shop("queue", "purge", "--all", "--state", "all", "--yes").code == 2
    assert shop("queue", "purge", "--all", "--confirm=mail").code == 2
    assert shop("queue", "purge", "default", "--confirm=all").code == 2
    assert shop("queue", "purge", "--all", typed="y\n").code == 1
    answer = shop("queue", "purge", "--all", "--state", "cancelled", "--confirm=all")
    assert (answer.code, answer.err) == (0, "no cancelled jobs in all queues\n")
    assert shop("queue", "purge", "default", "--before", "1h", "--yes").err.startswith("no completed jobs that")
    assert (
        shop("queue", "purge", "default", "--status", "completed", "--force").out
        == "✓ 2 jobs purged from queue default\n"
    )
    assert "not pending jobs; cancel them first" in shop("queue", "purge", "default", "--state", "pending").err
    assert ids(shop("list", "-q")) == ["f1", "f42", "w1", "w2"]


def test_reaping_takes_back_what_was_left(shop: Terminal) -> None:
    assert shop("queue", "reap", "--dry-run").out == "would reap 0 jobs\n"
    assert shop("queue", "reap", "mail").out == "✓ 0 jobs reaped\n"
    for words in ([], ["--dry-run"]):
        assert shop("queue", "reap", "Bad Name", *words).code == 2


# Asking


def test_a_person_is_asked_on_the_terminal(shop: Terminal) -> None:
    screen = shop.on_screen("delete", "--where", "state:completed")
    screen.wait_for("Delete 2 jobs for good? [y/N]:")
    os.write(screen.descriptor, b"y\n")
    assert screen.ended() == 0
    assert "✓ g1 deleted" in screen.rows
    refused = shop.on_screen("queue", "purge", "default", "--state", "dead", "--no-input")
    assert refused.ended() == 2
    assert "this would permanently delete 2 dead jobs from queue default; pass --yes" in " ".join(refused.rows)
    assert ids(shop("list", "-q")) == ["f1", "f42", "w1", "w2"]
