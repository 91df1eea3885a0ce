"""`holdfast worker start`: it runs what it is allowed to, says what it did, and leaves when it is told."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .terminal import Terminal, ended

SHOP = """
from holdfast import Holdfast, JobContext

hf = Holdfast()

@hf.job
def add(a: int, b: int = 2) -> int:
    print("adding")
    return a + b

@hf.job
def fail(text: str) -> None:
    raise ValueError(text)

@hf.job
def wait(context: JobContext, gate: str) -> str:
    with open(gate) as words:
        return words.read()
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal.write("shop.py", SHOP)
    return terminal


def lines_of(text: str) -> list[str]:
    """The lines without what changes from run to run."""
    return [re.sub(r" in [\d.]+ [mµ]?s$|[:(].*", "", line).rstrip() for line in text.splitlines()]


# Applications


def test_a_function_job_is_run_and_its_result_kept(shop: Terminal) -> None:
    shop("enqueue", '{"id": "job1", "job": "add", "payload": {"a": 40}}')
    answer = shop("worker", "start", "shop:hf", "--burst")
    assert answer.code == 0
    assert lines_of(answer.out) == ["✓ add job1 done"]
    greeting, *rest = answer.err.splitlines()
    assert re.fullmatch(rf"holdfast 0\.1\.0 · {re.escape(str(shop.database))} · worker [0-9a-f]{{16}}", greeting)
    assert rest == ["queues default · handlers add, fail, wait · 1 process", "stopped · 1 done · nothing lost"]
    [attempt] = shop.job("job1")["history"]
    assert (attempt["result"], attempt["output"]) == (42, "adding\n")


def test_the_only_application_of_a_module_needs_no_name(shop: Terminal) -> None:
    shop("enqueue", '{"id": "job1", "job": "add", "payload": {"a": 1}}')
    assert lines_of(shop("worker", "start", "shop", "--burst").out) == ["✓ add job1 done"]


def test_the_application_is_imported_from_where_one_stands_as_the_program_too(shop: Terminal) -> None:
    shop("enqueue", '{"id": "job1", "job": "add", "payload": {"a": 1}}')
    answer = shop.program("worker", "start", "shop:hf", "--burst", "--json")
    assert answer.code == 0
    assert answer.json["job_id"] == "job1"
    assert answer.json["status"] == "acked"


BAD_APPS = {
    "a module that is not there": (
        "nowhere",
        "there is no module 'nowhere'; run this command in the directory that contains it",
    ),
    "a module inside one that is not there": ("nowhere.inside:hf", "there is no module 'nowhere.inside'"),
    "a file": ("shop.py", "there is no module 'shop.py'; write  shop:NAME"),
    "a path": ("./shop", "'./shop' is not an application; write MODULE:NAME, such as shop:hf for hf in shop.py"),
    "a relative name": (".shop", "'.shop' is not an application"),
    "no module": (":hf", "':hf' is not an application"),
    "a name that is not there": ("shop:app", "'shop:app': the module has no 'app'"),
    "something else": ("shop:add", "'shop:add' is a Job, not a Holdfast application"),
    "a module without one": ("empty", "module 'empty' has no Holdfast application; name one as empty:NAME"),
    "a module with two": ("two", "module 'two' has several applications (a, b); name one as two:NAME"),
}


@pytest.mark.parametrize(("reference", "why"), BAD_APPS.values(), ids=BAD_APPS.keys())
def test_what_is_no_application_is_told_in_one_sentence(shop: Terminal, reference: str, why: str) -> None:
    shop.write("empty.py", "")
    shop.write("two.py", "from holdfast import Holdfast\na = Holdfast()\nb = Holdfast()\n")
    answer = shop("worker", "start", reference, "--burst")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"holdfast: {why}")
    assert len(answer.err.splitlines()) == 1


def test_an_import_that_fails_inside_the_application_names_its_line(shop: Terminal) -> None:
    shop.write("broken.py", "import no_such_dependency\n")
    answer = shop("worker", "start", "broken")
    assert answer.code == 2
    assert answer.err.startswith("holdfast: cannot import 'broken': ModuleNotFoundError: ")
    assert answer.err.endswith(f"(at {shop.project / 'broken.py'}:1)\n")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ("@hf.job(backoff='often')\ndef add(): ...\n", "DefinitionError: backoff 'often'"),
        ("hf.job(lambda: None)\n", "DefinitionError: "),
        ("import json; json.loads('nothing')\n", "JSONDecodeError: "),
    ],
)
def test_an_application_that_cannot_be_imported_names_its_own_line(shop: Terminal, lines: str, error: str) -> None:
    shop.write("broken.py", f"from holdfast import Holdfast\nhf = Holdfast()\n\n{lines}")
    answer = shop("worker", "start", "broken")
    assert answer.code == 2
    assert answer.err.startswith(f"holdfast: cannot import 'broken': {error}")
    assert answer.err.endswith(f"(at {shop.project / 'broken.py'}:4)\n")


def test_the_url_option_moves_the_application(shop: Terminal) -> None:
    url = f"sqlite:///{shop.home}/elsewhere.db"
    shop("enqueue", "--url", url, '{"id": "job1", "job": "add", "payload": {"a": 1}}')
    answer = shop("worker", "start", "shop", "--burst", "--url", url)
    assert lines_of(answer.out) == ["✓ add job1 done"]
    assert not shop.database.exists()


# How long it works, and on what


def test_a_burst_ends_when_nothing_is_due(shop: Terminal) -> None:
    assert shop("worker", "start", "--burst").code == 0
    shop("enqueue", '{"id": "later", "job": "add", "payload": {"a": 1}, "delay": "1h"}')
    shop("enqueue", '{"id": "now", "job": "fail", "payload": {"text": "no"}, "backoff": [3600]}')
    answer = shop("worker", "start", "shop", "--burst")
    assert "stopped · 0 done · nothing lost; 1 job needed a retry" in answer.err
    assert "retrying in 60 m" in answer.out
    assert {job["id"]: job["state"] for job in shop.jobs()} == {"later": "scheduled", "now": "failed"}


@pytest.mark.parametrize("backoff", ["fixed:10m", "10m", "exponential:10m,max=2h,jitter=0"])
def test_a_first_delay_above_the_default_cap_is_not_cut(shop: Terminal, backoff: str) -> None:
    shop("enqueue", "--job", "fail", "text=no", "--backoff", backoff)
    assert "retrying in 10 m" in shop("worker", "start", "shop", "--burst").out


def test_the_reference_s_delays_can_be_set(shop: Terminal) -> None:
    for name, value in (("backoff-base", "5"), ("backoff-multiplier", "2"), ("backoff-jitter", "0")):
        assert shop("config", "set", name, value).code == 0
    shop("enqueue", "--job", "fail", "text=no")
    assert "retrying in 5 s" in shop("worker", "start", "shop", "--burst").out
    assert shop("config", "set", "backoff", "20m,1h").code == 0
    shop("enqueue", "--job", "fail", "text=no")
    assert "retrying in 20 m" in shop("worker", "start", "shop", "--burst").out


def test_it_stops_after_as_many_jobs_as_it_was_given(shop: Terminal) -> None:
    for number in range(4):
        shop("enqueue", f'{{"id": "job{number}", "job": "add", "payload": {{"a": {number}}}}}')
    answer = shop("worker", "start", "shop", "--max-jobs", "3")
    assert answer.code == 0
    assert [job["state"] for job in shop.jobs()] == ["completed", "completed", "completed", "pending"]
    assert shop("worker", "start", "shop", "--max-jobs", "-1").code == 2


@pytest.mark.parametrize("command", [("worker", "start", "shop"), ("queue", "work", "--app", "shop", "--burst")])
def test_the_limit_of_jobs_counts_only_those_that_ran(
    shop: Terminal, monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    shop("enqueue", "--id", "first", "--idempotency-key", "k", "--job", "add", "a:=1")
    shop("worker", "start", "shop", "--burst")
    monkeypatch.setenv("HOLDFAST_ALLOWED_COMMANDS", "true")
    shop("enqueue", "--id", "forbidden", "--priority", "9", "--", "true")
    monkeypatch.delenv("HOLDFAST_ALLOWED_COMMANDS")
    shop("enqueue", "--id", "unknown", "--priority", "9", "--job", "nowhere")
    shop("enqueue", "--id", "expired", "--priority", "9", "--expires", "0", "--job", "add", "a:=1")
    shop("enqueue", "--id", "spared", "--priority", "9", "--idempotency-key", "k", "--job", "add", "a:=1")
    for number in range(3):
        shop("enqueue", "--id", f"job{number}", "--job", "add", "a:=1")
    answer = shop(*command, "--max-jobs", "1", "--json")
    assert answer.code == 0
    ends = {result["job_id"]: result["status"] for result in map(json.loads, answer.out.splitlines())}
    assert ends == {
        "forbidden": "rejected",
        "unknown": "released",
        "expired": "cancelled",
        "spared": "skipped-idempotent",
        "job0": "acked",
    }


@pytest.mark.parametrize("queues", [("--queue", "a, b"), ("-q", "a", "-q", "b")])
def test_it_works_the_queues_it_was_given_in_turn(shop: Terminal, queues: Sequence[str]) -> None:
    for number, queue in enumerate(["a", "a", "b", "c"]):
        shop("enqueue", f'{{"id": "{queue}{number}", "job": "add", "payload": {{"a": 1}}, "queue": "{queue}"}}')
    answer = shop("worker", "start", "shop", *queues, "--burst")
    assert lines_of(answer.out) == ["✓ add a0 done", "✓ add b2 done", "✓ add a1 done"]
    assert "queues a, b ·" in answer.err
    assert shop.job("c3")["state"] == "pending"


@pytest.mark.parametrize("queues", [("--queue", "a,b,a:3"), ("-q", "a", "-q", "b,a")])
def test_a_queue_that_is_named_twice_is_refused(shop: Terminal, queues: Sequence[str]) -> None:
    answer = shop("worker", "start", *queues, "--burst")
    assert answer.code == 2
    assert "'a' " in answer.err
    assert "twice" in answer.err


def test_a_limit_of_memory_below_what_a_process_needs_is_refused(shop: Terminal) -> None:
    answer = shop("worker", "start", "--max-memory", "300", "--burst")
    assert answer.code == 2
    assert "already needs 32M" in answer.err


@pytest.mark.parametrize("queues", ["", "a,,b", "No Good", "a;b"])
def test_a_queue_that_cannot_be_one_is_refused(shop: Terminal, queues: str) -> None:
    answer = shop("worker", "start", "--queue", queues, "--burst")
    assert answer.code == 2
    assert "is not a valid queue name" in answer.err


# What it says


def test_each_end_of_a_job_has_its_line_and_the_sum_is_told_at_the_end(shop: Terminal) -> None:
    for spec in (
        {"id": "good", "job": "add", "payload": {"a": 1}},
        {"id": "again", "job": "fail", "payload": {"text": "not yet"}, "backoff": [60]},
        {"id": "dead", "job": "fail", "payload": {"text": "never"}, "maxRetries": 0},
        {"id": "stranger", "job": "unknown"},
        {"id": "misfit", "job": "add", "payload": {"a": "text"}},
        {"id": "late", "job": "add", "payload": {"a": 1}, "expires": 0},
    ):
        assert shop("enqueue", json.dumps(spec)).code == 0
    answer = shop("worker", "start", "shop", "--burst")
    # One that is refused is told of before those that were claimed with it and are run.
    assert sorted(lines_of(answer.out)) == sorted(
        [
            "✓ add good done",
            "✗ fail again failed",
            "✗ fail dead failed for good",
            "✗ unknown stranger requeued",
            "✗ add misfit failed for good",
            "✗ add late cancelled",
        ]
    )
    assert "failed (attempt 1 of 4): ValueError: not yet; retrying in 60 s" in answer.out
    assert "no handler 'unknown' is registered" in answer.out
    assert answer.err.endswith(
        "stopped · 1 done · 2 failed for good · 1 cancelled · 1 requeued · nothing lost; 1 job needed a retry\n"
    )


def test_the_closing_line_counts_a_job_once_however_often_it_is_retried(shop: Terminal) -> None:
    for id in ("one", "two"):
        spec = {"id": id, "job": "fail", "payload": {"text": "never"}, "backoff": [0, 0], "maxRetries": 2}
        assert shop("enqueue", json.dumps(spec)).code == 0
    answer = shop("worker", "start", "shop", "--max-jobs", "6")
    assert len(lines_of(answer.out)) == 6
    assert answer.err.endswith("stopped · 0 done · 2 failed for good · nothing lost; 2 jobs needed a retry\n")


def test_a_retry_is_counted_by_the_worker_in_which_the_job_failed_first(shop: Terminal) -> None:
    spec = {"id": "job1", "job": "fail", "payload": {"text": "never"}, "backoff": [0, 0], "maxRetries": 2}
    assert shop("enqueue", json.dumps(spec)).code == 0
    endings = [shop("worker", "start", "shop", "--max-jobs", "1").err.splitlines()[-1] for _ in range(3)]
    assert endings == [
        "stopped · 0 done · nothing lost; 1 job needed a retry",
        "stopped · 0 done · nothing lost",
        "stopped · 0 done · 1 failed for good · nothing lost",
    ]


def test_as_json_each_job_is_one_document_on_a_line(shop: Terminal) -> None:
    shop(
        "enqueue",
        '[{"id": "a", "job": "add", "payload": {"a": 1}}, {"id": "b", "job": "fail", "payload": {"text": "x"}}]',
    )
    answer = shop("worker", "start", "shop", "--burst", "--json")
    documents = [json.loads(line) for line in answer.out.splitlines()]
    assert [(one["job_id"], one["queue"], one["status"], one["attempt"]) for one in documents] == [
        ("a", "default", "acked", 1),
        ("b", "default", "requeued", 1),
    ]
    assert documents[1]["error"]["type"] == "ValueError"
    assert 1 <= documents[1]["retry_in"] <= 3


def test_nothing_a_job_says_reaches_the_terminal_raw(shop: Terminal) -> None:
    text = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
    shop("enqueue", json.dumps({"id": "evil", "job": "fail", "payload": {"text": text}, "max_retries": 0}))
    answer = shop.program("worker", "start", "shop", "--burst")
    assert answer.code == 0
    shown = answer.out + answer.err
    assert "ValueError: " in answer.out
    assert "CRITICAL" not in answer.err, "a dead letter is printed once"
    assert not set(text) & set(shown) - set("0;owned[2J31m]")


def test_a_quiet_worker_logs_dead_letters(shop: Terminal) -> None:
    shop("enqueue", json.dumps({"id": "evil", "job": "fail", "payload": {"text": "no"}, "max_retries": 0}))
    answer = shop.program("worker", "start", "shop", "--burst", "--quiet")
    assert answer.out == ""
    assert "CRITICAL job evil (fail) dead-lettered after 1 attempt: ValueError: no" in answer.err


def test_at_debug_the_log_has_a_line_when_a_job_starts(shop: Terminal) -> None:
    shop("enqueue", '{"id": "job1", "job": "add", "payload": {"a": 1}}')
    assert "started" not in shop.program("worker", "start", "shop", "--burst").err
    shop("enqueue", '{"id": "job2", "job": "add", "payload": {"a": 1}}')
    assert (
        "job job2 (add) started, attempt 1"
        in shop.program("worker", "start", "shop", "--burst", "--log-level", "debug").err
    )


# Commands


def test_without_an_application_only_allowed_commands_are_run(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "echo")
    terminal("enqueue", '{"id": "job1", "command": "echo hello"}')
    answer = terminal("worker", "start", "--burst")
    assert lines_of(answer.out) == ["✓ command job1 done"]
    assert "handlers command jobs only" in answer.err
    assert terminal.job("job1")["history"][0]["output"] == "hello\n"


def test_a_worker_without_an_application_says_that_functions_need_one(shop: Terminal) -> None:
    shop("enqueue", """[{"job": "add", "payload": {"a": 1}}, {"job": "add", "payload": {"a": 2}}]""")
    hint = "pass yours:  holdfast worker start APP"
    assert shop("worker", "start", "--burst").err.count(hint) == 1
    assert hint not in shop("worker", "start", "shop:hf", "--burst").err


def test_a_worker_that_allows_nothing_says_so(terminal: Terminal) -> None:
    answer = terminal("worker", "start", "--burst")
    assert (
        "no program is allowed: every command job will be rejected; allow programs with  --allow PROGRAM" in answer.err
    )


def test_a_worker_without_signatures_warns_loudly_at_start(terminal: Terminal) -> None:
    warning = "CRITICAL signatures are not verified (verify = false): anyone who can write to the"
    assert "signatures" not in terminal.program("worker", "start", "--burst").err
    terminal.config.write_text("verify = false\nallow-unsigned = true\n")
    answer = terminal.program("worker", "start", "--burst", "--quiet", "--log-level", "error")
    assert answer.code == 0
    assert warning in answer.err
    logged = terminal.program("worker", "start", "--burst", HOLDFAST_LOG_FORMAT="json")
    [record] = [json.loads(line) for line in logged.err.splitlines() if line.startswith("{")]
    assert (record["level"], record["logger"]) == ("CRITICAL", "holdfast.worker")
    checks = terminal("health", "--json").json["checks"]
    assert [check["warning"] for check in checks if check["name"] == "signatures"] == [True]
    assert "⚠ signatures not verified: anyone who can write to the database" in terminal("health").out
    for words in (("doctor",), ("config", "check")):
        assert "disables signatures" in terminal(*words).out


def test_a_command_this_worker_does_not_allow_is_dead_and_says_how_to_allow_it(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "rm")
    terminal("enqueue", "--id", "job1", "--", "rm", "-rf", "/")
    terminal.config.write_text("")
    answer = terminal("worker", "start", "--allow", "true", "--burst")
    assert lines_of(answer.out) == ["✗ command job1 rejected and dead-lettered"]
    job = terminal.job("job1")
    assert (job["state"], job["dead_reason"], job["attempts"]) == ("dead", "handler-forbidden", 0)
    assert "allow it with  holdfast config set allowed-commands rm,true" in job["last_error"] or (
        "allow it with  holdfast config set allowed-commands true,rm" in job["last_error"]
    )
    assert "--allow rm  (then restart running workers and retry the jobs that they refused)" in job["last_error"]
    assert "its handler or its command is not allowed" in terminal("show", "job1").out
    terminal("config", "set", "allowed-commands", "true")
    assert terminal("dlq", "retry", "job1").code == 0


def test_a_command_that_fails_is_retried_until_it_is_dead(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "sh")
    terminal("enqueue", '{"id": "job1", "command": ["sh", "-c", "echo $HOLDFAST_ATTEMPT; exit 7"], "backoff": "none"}')
    answer = terminal("worker", "start", "--burst")
    assert answer.out.count("exit code 7") == 4
    job = terminal.job("job1")
    assert (job["state"], job["dead_reason"], job["attempts"]) == ("dead", "failed", 4)
    assert [attempt["output"] for attempt in job["history"]] == ["1\n", "2\n", "3\n", "4\n"]


def test_the_signing_key_is_not_handed_to_commands(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "k:" + "s3cr3t-" * 8)
    terminal("config", "set", "allowed-commands", "env")
    terminal("enqueue", "--id", "job1", "--", "env")
    terminal("worker", "start", "--burst")
    output = terminal.job("job1")["history"][0]["output"]
    assert "HOLDFAST_JOB_ID=job1" in output
    assert "s3cr3t" not in output


# Signals


@pytest.fixture
def gates(terminal: Terminal) -> Iterator[tuple[Path, Path]]:
    """One pipe that a job opens when it has begun, one that it waits for."""
    begun, go = terminal.project / "begun", terminal.project / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    return iter([(begun, go)])


def start_waiting_job(terminal: Terminal, begun: Path) -> "subprocess.Popen[str]":
    terminal("config", "set", "allowed-commands", "sh")
    terminal("enqueue", "--id", "job1", "--", "sh", "-c", "echo begun > begun; cat go")
    terminal("enqueue", "--id", "job2", "--", "sh", "-c", "true")
    process = terminal.start("worker", "start")
    assert begun.read_text() == "begun\n"
    return process


def remarks_until(process: "subprocess.Popen[str]", what: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if what in line:
            return
    raise AssertionError(f"it ended without saying: {what}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_running_job_finish_and_begins_no_other(
    terminal: Terminal, gates: Iterator[tuple[Path, Path]], number: signal.Signals
) -> None:
    begun, go = next(gates)
    process = start_waiting_job(terminal, begun)
    process.send_signal(number)
    remarks_until(process, "stopping: finishing 1 running job; press Ctrl-C again to requeue it")
    go.write_text("at last\n")
    answer = ended(process)
    assert answer.code == 0
    assert answer.err.endswith("stopped · 1 done · nothing lost\n")
    assert terminal.job("job1")["history"][0]["output"] == "at last\n"
    assert terminal.job("job2")["state"] == "pending"


def test_a_second_signal_gives_the_running_job_back(terminal: Terminal, gates: Iterator[tuple[Path, Path]]) -> None:
    begun, _ = next(gates)
    process = start_waiting_job(terminal, begun)
    process.send_signal(signal.SIGTERM)
    remarks_until(process, "stopping")
    process.send_signal(signal.SIGTERM)
    answer = ended(process)
    assert answer.code == 0
    assert "stopping the running jobs and requeueing them" in answer.err
    assert "stopped · 0 done · 1 requeued · nothing lost" in answer.err
    job = terminal.job("job1")
    assert (job["state"], job["attempts"], job["crashes"]) == ("pending", 0, 0)
    assert job["history"][0]["outcome"] == "interrupted"
