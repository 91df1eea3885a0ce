"""What can be said of jobs by options, whatever the JSON says; and looking ahead: dry runs, remarks, waiting."""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from holdfast import Backoff, Holdfast
from holdfast.cli import documents
from holdfast.cli.enqueue.instants import parse_instant
from holdfast.definition.backoff import parse_backoff
from holdfast.state.workers import WorkerRegistry
from holdfast.values import BackoffStrategy, Outcome

from .registry import attempt, claim, lose, report
from .terminal import Terminal


def planned(terminal: Terminal, *words: str) -> dict[str, Any]:
    """The job as it would be kept."""
    answer = terminal("enqueue", "--dry-run", "--json", *words)
    assert answer.code == 0, answer.err
    document: dict[str, Any] = answer.json
    return document


# Options


def test_every_option_of_a_job_arrives_and_wins_over_the_json(terminal: Terminal) -> None:
    spec = {
        "id": "json",
        "job": "x",
        "name": "json",
        "queue": "json",
        "priority": 1,
        "maxRetries": 1,
        "backoff": "none",
        "timeout": 1,
        "delay": 1,
        "expires": 1,
        "tags": ["json"],
        "meta": {"json": 1, "k": 1},
        "traceId": "json",
    }
    options = ["--id", "a", "--name", "Ada's", "-q", "mail", "-p", "8", "-r", "9", "-t", "2m", "--trace-id", "t-1"]
    options += ["--backoff", "fixed:10s", "--at", "2199-01-01T00:00Z", "--expires", "2199-02-01T00:00Z"]
    options += ["--tag", "b,c", "--tags", "d", "--meta", "k=v", "--meta", "n:=2", "--fence"]
    assert terminal("enqueue", json.dumps(spec), *options).code == 0
    job = terminal.job("a")
    expected = {
        "name": "Ada's",
        "queue": "mail",
        "priority": 8,
        "max_retries": 9,
        "timeout": 120.0,
        "due_at": "2199-01-01T00:00:00Z",
        "expires_at": "2199-02-01T00:00:00Z",
        "tags": ["json", "b", "c", "d"],
        "meta": {"json": 1, "k": "v", "n": 2},
        "trace_id": "t-1",
        "fence": True,
    }
    assert {member: job[member] for member in expected} == expected
    instants = {"job": "x", "run_at": "2199-01-01T00:00:00Z", "expires_at": "2199-02-01T00:00:00Z"}
    soon = planned(terminal, json.dumps(instants), "--delay", "5", "--expires", "1h")
    assert (soon["delay"], soon["run_at"]) == (5.0, None)
    assert datetime.fromisoformat(soon["expires_at"]) < datetime.now(UTC) + timedelta(hours=1)
    backoff = planned(terminal, json.dumps(spec), "--backoff", "fixed:10s")["backoff"]
    assert msgspec.convert(backoff, Backoff) == Backoff(strategy=BackoffStrategy.FIXED, base=10)


def test_a_command_may_be_one_text_and_have_a_directory(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "echo")
    said = planned(terminal, "-c", "echo 'two words'", "--cwd", "/srv")
    assert said["payload"] == {"argv": ["echo", "two words"], "cwd": "/srv"}
    assert said["name"] == "echo 'two words'"
    assert planned(terminal, "--cwd", "/srv", "--name", "greet", "--", "echo", "hi")["name"] == "greet"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("none", Backoff(strategy=BackoffStrategy.NONE)),
        ("linear", Backoff(strategy=BackoffStrategy.LINEAR)),
        ("fixed:1m", Backoff(strategy=BackoffStrategy.FIXED, base=60)),
        ("fixed:base=5", Backoff(strategy=BackoffStrategy.FIXED, base=5)),
        ("exponential:2s,multiplier=3,max=10m,jitter=10%", Backoff(base=2, multiplier=3, max=600, jitter=0.1)),
        ("exponential:max=1h, jitter=0", Backoff(max=3600, jitter=0)),
        ("1s,5s,1m", Backoff(delays=(1, 5, 60))),
        ("30", Backoff(strategy=BackoffStrategy.FIXED, base=30)),
    ],
)
def test_a_backoff_is_one_word(text: str, meant: Backoff) -> None:
    assert parse_backoff(text) == meant


NOW = datetime(2026, 11, 16, 13, 0, tzinfo=UTC)
ZONE = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-16T13:00:00"),
        ("14:30", "2026-11-16T13:30:00"),
        ("9:05", "2026-11-16T08:05:00"),
        ("09:05:30", "2026-11-16T08:05:30"),
        ("tomorrow", "2026-11-16T23:00:00"),
        ("tomorrow 9:00", "2026-11-17T08:00:00"),
        ("Today 17:00", "2026-11-16T16:00:00"),
        ("2026-12-01", "2026-11-30T23:00:00"),
        ("2026-12-01 8:00", "2026-12-01T07:00:00"),
        ("2026-12-01T08:00:00.5+02:00", "2026-12-01T06:00:00.500000"),
        ("2026-12-01T08:00Z", "2026-12-01T08:00:00"),
        ("+2h", "2026-11-16T15:00:00"),
        ("in 90 s", "2026-11-16T13:01:30"),
    ],
)
def test_an_instant_is_understood_as_people_write_it(text: str, meant: str) -> None:
    assert parse_instant(text, now=NOW, zone=ZONE) == datetime.fromisoformat(f"{meant}+00:00")


def test_the_instant_that_was_understood_is_said_in_local_time(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        answer = terminal("enqueue", "--job", "x", "--at", "2199-01-01 9:00", "--expires", "2199-01-02")
        assert answer.err.splitlines()[1].startswith("  due 2199-01-01 09:00:00+09:00, in ")
        assert answer.err.splitlines()[2].startswith("  expires 2199-01-02 00:00:00+09:00, in ")
        assert (
            "due 2199-01-01 00:00:00+00:00" in terminal("enqueue", "--job", "x", "--at", "2199-01-01 9:00", "--utc").err
        )
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert terminal.jobs()[0]["due_at"] == "2199-01-01T00:00:00Z"


def test_a_time_that_is_over_is_said(terminal: Terminal) -> None:
    answer = terminal("enqueue", "--job", "x", "--at", "2020-01-01", "--expires", "2021-01-01")
    assert answer.code == 0
    assert " ago; this time has already passed, so the job is due now\n" in answer.err
    assert " ago; this time has already passed, so the job will not be started\n" in answer.err
    assert terminal.jobs()[0]["state"] == "pending"


WRONG: dict[str, tuple[list[str], str]] = {
    "a delay and an instant": (["--delay", "1", "--at", "14:00"], "--delay and --run-at cannot both be given"),
    "a bare span as an instant": (["--at", "2h"], "'2h' is a duration, not a time; write \\+2h, or --delay 2h"),
    "no instant": (["--at", "soon"], "'soon' is not a time; write 14:30, tomorrow 9:00"),
    "an hour that is none": (["--at", "25:00"], "'25:00' is not a time"),
    "a day that is none": (["--at", "2026-13-01 9:00"], "'2026-13-01 9:00' is not a time"),
    "no end": (["--expires", "soon"], "'soon' is not a time; .* or a duration like 90s"),
    "beyond the calendar": (["--at", "2300-01-01"], "--at .* is too far in the future; the limit is the year 2200"),
    "no strategy": (["--backoff", "expo"], "'expo' is not a backoff strategy; use none, fixed"),
    "nearly a strategy": (["--backoff", "exponentiel"], "did you mean 'exponential'"),
    "no base": (["--backoff", "fixed:often"], "base 'often': must be a number of seconds"),
    "no setting": (
        ["--backoff", "fixed:1s,maxx=3"],
        "'maxx=3' is not valid here; after the strategy you can set its base",
    ),
    "a setting twice": (["--backoff", "fixed:1s,base=2s"], "'base=2s' is not valid here; after the strategy"),
    "no number": (["--backoff", "linear:1s,jitter=lots"], "jitter 'lots' is not a number"),
    "too much jitter": (["--backoff", "linear:1s,jitter=200%"], "backoff jitter must be between 0 and 1"),
    "jitter of a fixed delay": (
        ["--backoff", "fixed:10s,jitter=10%"],
        "jitter has no effect with fixed; use it with linear or exponential",
    ),
    "a base above the cap": (["--backoff", "exponential:10m"], "the backoff base, 600 s, is longer than the max"),
    "a note without a name": (["--meta", "v"], "'v' is not a valid --meta; write NAME=TEXT or NAME:=JSON"),
    "a tag without a name": (["--tag", "a,,b"], "contains an empty tag"),
    "a directory for a job": (["--cwd", "/"], "--cwd and --job cannot both be given"),
    "a command and a job": (["--command", "true"], "--command and --job cannot both be given"),
    "two shapes": (["--json", "--jsonl"], "--json and --jsonl cannot both be given"),
    "ids and documents": (["--json", "--quiet"], "--quiet and --json cannot both be given"),
    "waiting for nothing": (["--dry-run", "--wait", "1s"], "--dry-run and --wait cannot both be given"),
    "following into one document": (["--follow", "--json"], "pass --jsonl with --follow"),
    "an odd queue": (["--queue", "Größe!"], "'Größe!' is not a valid queue name; use up to 63 lower-case letters"),
    "an odd id": (["--id", "a b"], "'a b' is not a valid job id"),
    "an odd name": (["--name", "a\nb"], "must be 1 to 200 printable characters"),
}


@pytest.mark.parametrize(("options", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_option_is_refused_and_nothing_is_kept(terminal: Terminal, options: list[str], why: str) -> None:
    answer = terminal("enqueue", "--job", "x", *options)
    assert (answer.code, answer.out) == (2, "")
    said = " ".join(answer.err.split()) if answer.err.startswith("Usage") else answer.err
    assert re.search(why, said), answer.err
    assert not terminal.database.exists()


def test_one_id_is_for_one_job(terminal: Terminal) -> None:
    answer = terminal("enqueue", "--id", "a", "-", stdin='{"job": "x"}\n{"job": "y"}\n')
    assert (answer.code, "--id names one job, but there are 2" in answer.err) == (2, True)
    answer = terminal("enqueue", "--follow", "-", stdin='{"job": "x"}\n{"job": "y"}\n')
    assert (answer.code, "--follow works for one job only" in answer.err) == (2, True)
    assert terminal.jobs() == []


# The spellings of others, and what shells do to quotes


def test_a_job_as_the_reference_writes_it_is_accepted(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "sleep")
    spec = {
        "id": "job1",
        "command": "sleep 2",
        "state": "pending",
        "attempts": 0,
        "max_retries": 3,
        "timeout_seconds": 0,
        "created_at": "2025-11-04T10:30:00Z",
        "updated_at": "2025-11-04T10:30:00Z",
    }
    assert terminal("enqueue", json.dumps(spec)).out == "✓ job1 queued on default\n"
    [job] = terminal.jobs()
    assert (job["max_retries"], job["timeout"], job["state"]) == (3, 0.0, "pending")
    for field, value in (("state", "completed"), ("attempts", 1), ("attempts", False)):
        answer = terminal("enqueue", json.dumps({"job": "x", field: value}))
        assert (answer.code, f"field '{field}': must be" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["{id:job1,command:sleep", "2}"], "it was split into 2 arguments; the shell has removed the quotes"),
        (["{id:job1}"], "the shell has removed the quotes; put single quotes around the whole argument"),
        (["'{id:job1,command:sleep", "2}'"], "it starts with a quote; put double quotes around names and text"),
        (["{'job': 'x'}"], "put double quotes around names and text"),
    ],
)
def test_quotes_that_a_shell_took_away_are_recognised(terminal: Terminal, words: list[str], why: str) -> None:
    answer = terminal("enqueue", *words)
    assert (answer.code, answer.out) == (2, "")
    assert "is not valid JSON" in answer.err
    assert why in answer.err
    assert terminal.jobs() == []


def test_a_byte_order_mark_is_named(terminal: Terminal) -> None:
    terminal.write("jobs.jsonl", b'\xef\xbb\xbf{"job": "x"}\n')
    assert "jobs.jsonl: 1 starts with a byte order mark" in terminal("enqueue", "@jobs.jsonl").err


def test_a_keyboard_is_told_what_to_type_unless_nobody_is_there(terminal: Terminal) -> None:
    answer = terminal("enqueue", "-", typed='{"id": "a", "job": "x"}\n')
    assert (answer.code, answer.out) == (0, "✓ 1 job queued\n")
    assert answer.err.startswith("type one JSON object per line, then press Ctrl-D\n")
    answer = terminal("enqueue", "-", "--no-input", typed="")
    assert (answer.code, "stdin is a terminal" in answer.err) == (2, True)


# What is printed


def test_quiet_prints_ids_and_nothing_else(terminal: Terminal) -> None:
    assert terminal("enqueue", "--quiet", "--id", "a", "--job", "x")[1:] == ("a\n", "")
    assert terminal("enqueue", "--quiet", "-", stdin='{"id":"b","job":"x"}\n{"id":"c","job":"x"}\n')[1:] == (
        "b\nc\n",
        "",
    )
    assert terminal("enqueue", "--quiet", "--dry-run", "--id", "d", "--job", "x")[1:] == ("d\n", "")


def test_a_dry_run_shows_everything_and_keeps_nothing(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = 9\ntimeout = 7\n")
    before = sorted(terminal.project.rglob("*"))
    answer = terminal("enqueue", "--job", "mail", "to=ada", "--dry-run", "--tag", "a", "--at", "2199-01-01T00:00Z")
    assert (answer.code, answer.out.splitlines()) == (
        0,
        [
            "would queue a job on default",
            "  job          mail",
            '  payload      {"to":"ada"}',
            "  priority     5",
            "  max retries  9",
            "  timeout      7 s",
            "  tags         a",
        ],
    )
    assert answer.err.startswith(f"  dry run: nothing was stored in {terminal.database}\n  due 2199-01-01")
    document = planned(terminal, "--job", "mail", "--id", "a", "to=ada", "--delay", "5")
    decoded = msgspec.convert(document, documents.PlannedDocument, strict=False)
    assert (decoded.id, decoded.dry_run, decoded.created, decoded.delay) == ("a", True, False, 5.0)
    bulk = terminal("enqueue", "-", "--dry-run", stdin='{"id": "a", "job": "x"}\n{"job": "y", "queue": "q"}\n')
    assert bulk.out == "would queue a on default: x null\nwould queue a job on q: y null\n"
    assert sorted(terminal.project.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["--", "rm", "-rf", "/"], 4, "command 'rm' is not allowed here"),
        (["--job", "x", "--id", "taken", "n=2"], 4, "job 'taken' already exists with different content"),
        (
            ["--job", "x", "--id", "taken", "n=1", "--meta", "a=2"],
            4,
            "job 'taken' already exists with different content",
        ),
        (["--job", "x", "text=@big"], 2, "bytes on the wire; the limit is 1,048,576"),
        (["--url", "memory://", "--job", "x"], 2, "jobs in memory:// would be lost when this command exits"),
    ],
)
def test_a_dry_run_refuses_what_would_be_refused(terminal: Terminal, words: list[str], code: int, why: str) -> None:
    terminal.write("big", b"x" * (1024 * 1024 - 100))
    terminal("enqueue", "--job", "x", "--id", "taken", "n=1")
    answer = terminal("enqueue", "--dry-run", *words)
    assert (answer.code, answer.out) == (code, "")
    assert why in answer.err
    for traced in ([], ["--meta", "traceparent=00-1"]):
        same = terminal("enqueue", "--dry-run", "--job", "x", "--id", "taken", "n=1", *traced)
        assert "taken already exists (pending), apparently with the same content; nothing would be added" in same.err
    assert len(terminal.jobs()) == 1


def test_what_no_worker_will_take_is_remarked(terminal: Terminal) -> None:
    with Holdfast(directory=terminal.project) as hf:
        engine = hf.backend()
        assert terminal("enqueue", "--job", "send_mail").err == f"  stored in {terminal.database}\n"
        lose(WorkerRegistry(engine.state), "w0", queues=("slow",), handlers=("old",))
        WorkerRegistry(engine.state).beat(report("w1", queues=("mail:3", "default"), handlers=("send_mail", "command")))
        engine.pause("paused", "deploy")

        def remarks(*words: str) -> list[str]:
            for mode in ([], ["--dry-run"]):
                answer = terminal("enqueue", *mode, *words)
                assert answer.code == 0
            return answer.err.splitlines()[1:]

        assert remarks("--job", "send_mail") == []
        assert remarks("--job", "send_mail", "-q", "mail") == []
        assert remarks("--job", "send_mial") == [
            "  no running worker of queue 'default' knows the handler 'send_mial' (did you mean 'send_mail'?)"
        ]
        assert remarks("--job", "send_mail", "-q", "mial") == [
            "  no worker is running for queue 'mial' (did you mean 'mail'?); "
            "start one:  holdfast worker start APP --queue mial"
        ]
        assert remarks("--job", "old", "-q", "slow") == [
            "  no worker is running for queue 'slow'; start one:  holdfast worker start APP --queue slow"
        ]
        assert remarks("--job", "old", "-q", "paused") == [
            "  queue 'paused' is paused: deploy; resume it:  holdfast queue resume paused",
            "  no worker is running for queue 'paused'; start one:  holdfast worker start APP --queue paused",
        ]
        assert terminal("enqueue", "--quiet", "--job", "send_mial").err == ""


# Waiting


def test_who_waits_for_nobody_is_told_how_to_start_the_application(terminal: Terminal) -> None:
    terminal.write("shop.py", "from holdfast import Holdfast\n\nhf = Holdfast()\n\n@hf.job\ndef add() -> None: ...\n")
    answer = terminal("enqueue", "--app", "shop:hf", "--job", "add", "-q", "mail", "--wait", "10ms")
    assert "no worker is running; start one:  holdfast worker start shop:hf --queue mail\n" in answer.err


def test_following_prints_the_output_and_not_the_result(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "sh")
    words = ["--id", "a", "--", "sh", "-c", "echo one; echo two"]
    terminal("enqueue", *words)
    assert terminal("worker", "start", "--burst", "--quiet").code == 0
    answer = terminal("enqueue", "--follow", *words)
    assert (answer.code, answer.out) == (0, "one\ntwo\n")
    assert "#1 succeeded at " in answer.err
    answer = terminal("enqueue", "--follow", "--jsonl", *words)
    assert msgspec.json.decode(answer.out, type=documents.LogDocument).output == "one\ntwo\n"
    assert terminal("enqueue", "--wait", "1s", *words).out == '{"exit_code": 0}\n'
    answer = terminal("enqueue", "--wait", "1s", "--jsonl", *words)
    assert msgspec.json.decode(answer.out, type=documents.HistoryDocument).id == "a"
    assert terminal("enqueue", "--wait", "1s", "--quiet", *words).out == "a\n"
    bulk = terminal(
        "enqueue", "--wait", "1s", "--jsonl", "-", stdin='{"id": "a", "command": ["sh", "-c", "echo one; echo two"]}'
    )
    assert [json.loads(line)["id"] for line in bulk.out.splitlines()] == ["a"]


def test_following_prints_each_attempt_as_it_ends(terminal: Terminal) -> None:
    with Holdfast(directory=terminal.project) as hf:
        engine = hf.backend()
        process = terminal.start("enqueue", "--job", "x", "--follow", "--id", "a", "--backoff", "none")
        assert process.stdout is not None
        for outcome in (Outcome.FAILED, Outcome.SUCCEEDED):
            lease = claim(engine)
            record = msgspec.structs.replace(attempt(outcome), output=f"{outcome}\n")
            (engine.ack if outcome is Outcome.SUCCEEDED else engine.nack)(lease, record=record)
            assert process.stdout.readline() == f"{outcome}\n"
        assert process.wait(30) == 0


# run


def test_run_takes_labels_and_a_directory(terminal: Terminal) -> None:
    os.mkdir(terminal.project / "inside")
    labels = ["--id", "r1", "--name", "where", "--tag", "a,b", "--meta", "k=v", "--trace-id", "t-1", "--cwd", "inside"]
    answer = terminal("run", *labels, "--json", "--", "pwd")
    assert answer.code == 0
    document = msgspec.json.decode(answer.out, type=documents.HistoryDocument)
    assert (document.id, document.name, document.tags, document.meta) == ("r1", "where", ("a", "b"), {"k": "v"})
    assert document.trace_id == "t-1"
    assert document.history[0].output == f"{terminal.project}/inside\n"
    again = terminal("run", "--id", "r1", "--", "pwd")
    assert (again.code, "job 'r1' already exists with different content" in again.err) == (4, True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rate-key", "a"], "--rate-key has no effect without --rate-limit; set --rate-limit as well"),
        (["--concurrency=3"], "--concurrency has no effect without --concurrency-key; set --concurrency-key as well"),
        (["--unique-for", "5m"], "--unique-for has no effect without --unique; set --unique as well"),
        (["--idempotency-key", "k", "--idempotency-ttl", "0"], "--idempotency-ttl must be between 1 s and "),
        (["--name", ""], "--name '' must be 1 to 200 printable characters"),
        (["--at", "2999-01-01"], "--at 2999-01-01"),
        (["--concurrency-key", "rate_key\n"], "--concurrency-key 'rate_key\\n' must be non-empty"),
    ],
)
def test_an_error_names_the_flag_that_was_typed(terminal: Terminal, words: list[str], problem: str) -> None:
    answer = terminal("enqueue", "--job", "x", *words)
    assert answer.code == 2
    assert answer.err.startswith(f"holdfast: {problem}")
    assert terminal("enqueue", "--job", "x", *words, "--json").error["message"].startswith(problem)


def test_a_word_that_is_also_an_option_stays_a_word(terminal: Terminal) -> None:
    terminal.config.write_text('queues = ["default", "mail"]\n')
    answer = terminal("enqueue", "--job", "x", "--queue", "mial")
    assert answer.err.startswith("holdfast: queue 'mial' is not declared")


def test_an_error_in_json_names_the_field_that_was_written(terminal: Terminal) -> None:
    answer = terminal("enqueue", '{"job": "x", "rate_key": "a"}', "--tag", "b")
    assert "holdfast: rate_key has no effect without rate_limit; set rate_limit as well" in answer.err
    answer = terminal("run", "--trace-id", "", "--", "true", "--rate-limit")
    assert answer.err.startswith("holdfast: --trace-id '' must be 1 to 200 printable characters")
