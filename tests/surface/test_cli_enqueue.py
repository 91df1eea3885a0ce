"""`holdfast enqueue`: all jobs of one call or none, and every refusal says what was wrong with which of them."""

import json
import re
import shlex
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from holdfast.cli import documents
from holdfast.codec import MAX_WIRE_BYTES

from .terminal import Terminal


def ids(terminal: Terminal) -> list[str]:
    return [job["id"] for job in terminal.jobs()]


# Where jobs come from


def test_a_json_object_is_one_job(terminal: Terminal) -> None:
    answer = terminal("enqueue", '{"id": "job1", "job": "send_mail", "payload": {"to": "ada"}, "priority": 8}')
    assert (answer.code, answer.out) == (0, "✓ job1 queued on default\n")
    assert answer.err == f"  stored in {terminal.database}\n"
    [job] = terminal.jobs()
    assert (job["job"], job["payload"], job["priority"], job["state"]) == ("send_mail", {"to": "ada"}, 8, "pending")


def test_without_an_id_one_is_made(terminal: Terminal) -> None:
    made = [terminal("enqueue", '{"job": "a"}', "--json").json["id"] for _ in range(2)]
    assert ids(terminal) == made == sorted(made)
    assert made[0] != made[1]


def test_a_file_of_lines_is_many_jobs(terminal: Terminal) -> None:
    terminal.write("jobs.jsonl", '{"id": "a", "job": "x"}\r\n\n  {"id": "b", "job": "x"}\n{"id": "c", "job": "x"}')
    answer = terminal("enqueue", "@jobs.jsonl")
    assert (answer.code, answer.out) == (0, "✓ 3 jobs queued\n")
    assert ids(terminal) == ["a", "b", "c"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_may_be_one_array(terminal: Terminal, indent: int | None) -> None:
    terminal.write("jobs.json", json.dumps([{"id": name, "job": "x"} for name in "abc"], indent=indent))
    assert terminal("enqueue", "@jobs.json").out == "✓ 3 jobs queued\n"
    assert ids(terminal) == ["a", "b", "c"]


def test_a_file_may_be_one_object_over_several_lines(terminal: Terminal) -> None:
    terminal.write("job.json", json.dumps({"id": "a", "job": "x", "payload": {"deep": [1]}}, indent=2))
    assert terminal("enqueue", "@job.json").out == "✓ 1 job queued\n"
    assert terminal.jobs()[0]["payload"] == {"deep": [1]}


def test_lines_on_stdin_are_many_jobs(terminal: Terminal) -> None:
    lines = "".join(f'{{"id": "job{number}", "job": "x", "payload": {number}}}\n' for number in range(1500))
    answer = terminal("enqueue", "-", stdin=lines)
    assert (answer.code, answer.out) == (0, "✓ 1,500 jobs queued\n")
    assert answer.err == f"  stored in {terminal.database}\n"
    assert len(terminal.jobs()) == 1500


def test_an_array_as_argument_is_many_jobs(terminal: Terminal) -> None:
    answer = terminal("enqueue", '[{"id": "a", "job": "x"}, {"id": "b", "job": "x"}]')
    assert (answer.code, answer.out) == (0, "✓ 2 jobs queued\n")
    answer = terminal("enqueue", '[{"id": "a", "job": "x"}, {"id": "c", "job": "x"}]', "--json")
    assert [(one["id"], one["created"]) for one in answer.json] == [("a", False), ("c", True)]
    assert ids(terminal) == ["a", "b", "c"]


def test_what_follows_two_dashes_is_a_command(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "pg_dump")
    answer = terminal("enqueue", "--queue", "nightly", "--", "pg_dump", "--queue", "-Fc", "my shop")
    assert answer.code == 0
    [job] = terminal.jobs()
    assert (job["job"], job["queue"]) == ("command", "nightly")
    assert job["payload"] == {"argv": ["pg_dump", "--queue", "-Fc", "my shop"]}
    assert shlex.split(job["name"]) == ["pg_dump", "--queue", "-Fc", "my shop"]


def test_a_command_in_json_is_split_like_a_shell_and_never_given_to_one(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "echo")
    terminal("enqueue", """{"id": "a", "command": "echo 'two words' $HOME; rm -rf /", "cwd": "/tmp"}""")
    assert terminal.jobs()[0]["payload"] == {
        "argv": ["echo", "two words", "$HOME;", "rm", "-rf", "/"],
        "cwd": "/tmp",
    }


def test_a_name_made_of_a_command_is_printable_and_short(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "echo")
    terminal("enqueue", "--", "echo", "\x1b[31m\n" + "x" * 500)
    name = terminal.jobs()[0]["name"]
    assert name.isprintable()
    assert len(name) == 200


# What can be said of a job


def test_every_member_arrives_however_it_is_spelled(terminal: Terminal) -> None:
    said = {
        "id": "job1",
        "job": "mail",
        "payload": [1, 2.5, None, "é"],
        "name": "welcome",
        "queue": "mail",
        "priority": 0,
        "maxRetries": 7,
        "backoff": "fixed",
        "timeout": "2m",
        "run-at": "2199-01-01T00:00:00Z",
        "expiresAt": "2199-01-02T00:00:00+02:00",
        "tags": ["a", "b", "a"],
        "meta": {"k": 1},
        "trace_id": "t-1",
        "fence": True,
    }
    assert terminal("enqueue", json.dumps(said)).code == 0
    job = terminal.job("job1")
    assert job["state"] == "scheduled"
    assert job["due_at"] == "2199-01-01T00:00:00Z"
    assert datetime.fromisoformat(job["expires_at"]) == datetime(2199, 1, 1, 22, tzinfo=UTC)
    shown = {
        key: job[key] for key in ("payload", "name", "queue", "priority", "max_retries", "timeout", "tags", "meta")
    }
    assert shown == {
        "payload": [1, 2.5, None, "é"],
        "name": "welcome",
        "queue": "mail",
        "priority": 0,
        "max_retries": 7,
        "timeout": 120.0,
        "tags": ["a", "b"],
        "meta": {"k": 1},
    }
    assert (job["trace_id"], job["fence"]) == ("t-1", True)


@pytest.mark.parametrize("backoff", ['"none"', "10", '[1, "5s", 30]', '{"strategy": "linear", "base": 3}'])
def test_a_backoff_may_be_a_word_a_number_a_list_or_an_object(terminal: Terminal, backoff: str) -> None:
    assert terminal("enqueue", f'{{"job": "x", "backoff": {backoff}}}').code == 0


def test_options_win_over_the_json_however_it_spells_them(terminal: Terminal) -> None:
    spec = '{"id": "a", "job": "x", "queue": "q1", "priority": 1, "max-retries": 1, "timeout": 1, "delay": 1}'
    options = ["--id", "b", "-q", "q2", "--priority", "2", "--max-retries", "2", "--timeout", "2m", "--delay", "1h"]
    options.append("--fence")
    before = datetime.now(UTC)
    assert terminal("enqueue", spec, *options).code == 0
    [job] = terminal.jobs()
    assert (job["id"], job["queue"], job["priority"], job["max_retries"], job["timeout"]) == ("b", "q2", 2, 2, 120.0)
    assert job["fence"]
    waits = datetime.fromisoformat(job["due_at"]) - before
    assert timedelta(hours=1) <= waits < timedelta(hours=1, minutes=1)


def test_settings_fill_in_what_is_left_out(terminal: Terminal) -> None:
    terminal.config.write_text("max-retries = 9\ntimeout = 7\n")
    terminal("enqueue", '{"job": "x"}')
    [job] = terminal.jobs()
    assert (job["max_retries"], job["timeout"]) == (9, 7.0)


# The same job again


def test_the_same_id_with_the_same_content_adds_nothing(terminal: Terminal) -> None:
    spec = '{"id": "job1", "job": "x", "payload": {"a": 1, "b": 2}}'
    terminal("enqueue", spec)
    again = terminal("enqueue", '{"job": "x", "payload": {"b": 2, "a": 1}, "id": "job1"}')
    assert (again.code, again.out) == (0, "• job1 already exists with the same content; nothing was added\n")
    assert terminal("enqueue", spec, "--json").json["created"] is False
    assert ids(terminal) == ["job1"]
    answer = terminal("enqueue", "-", stdin=f'{spec}\n{{"id": "job2", "job": "x"}}\n')
    assert answer.out == "✓ 1 job queued, 1 already existed\n"


def test_the_same_id_with_other_content_is_refused_and_with_it_the_whole_call(terminal: Terminal) -> None:
    terminal("enqueue", '{"id": "job1", "job": "x"}')
    answer = terminal("enqueue", "-", stdin='{"id": "job0", "job": "x"}\n{"id": "job1", "job": "y"}\n')
    assert answer.code == 4
    assert "job 'job1' already exists with different content, so nothing was enqueued" in answer.err
    assert [(job["id"], job["job"]) for job in terminal.jobs()] == [("job1", "x")]


# Refusals: the exit code, the reason, and that nothing has changed

WRONG: dict[str, tuple[str, int, str]] = {
    "half an object": ('{"job": "x"', 2, "the job is not valid JSON"),
    "a key twice": ('{"job": "x", "job": "y"}', 2, "the key 'job' appears twice"),
    "NaN": ('{"job": "x", "payload": NaN}', 2, "not valid JSON"),
    "a number past 64 bits": ('{"job": "x", "payload": 9223372036854775808}', 2, "does not fit in 64 bits"),
    "too deep": ('{"job": "x", "payload": ' + "[" * 40 + "]" * 40 + "}", 2, "nested deeper than 32 levels"),
    "far too deep": ("[" * 100_000, 2, "the job is not valid JSON"),
    "an empty array": ("[]", 2, "the list of jobs is empty"),
    "an array of something else": (
        '[{"job": "x"}, 5]',
        2,
        "holdfast: item 2: a job must be a JSON object, not a number",
    ),
    "nothing to run": ("{}", 2, 'nothing to run: add "command": "sleep 2", or "job": "name"'),
    "two things to run": ('{"job": "x", "command": "y"}', 2, "either a command, or a job with its payload, not both"),
    "a directory without a command": ('{"job": "x", "cwd": "/"}', 2, "cwd is only valid for commands"),
    "a field with a typing error": (
        '{"job": "x", "pirority": 1}',
        2,
        "unknown field 'pirority'; did you mean 'priority'?",
    ),
    "a field nobody knows": ('{"job": "x", "colour": 1}', 2, "unknown field 'colour'; known fields: command, cwd"),
    "a field of another type": ('{"job": "x", "priority": "high"}', 2, "field 'priority': Expected `int`"),
    "a field of another type, inside": ('{"job": "x", "tags": ["a", 5]}', 2, r"field 'tags\[1\]': Expected `str`"),
    "an id with a space": ('{"job": "x", "id": "a b"}', 2, "'a b' is not a valid job id"),
    "an id like an option": ('{"job": "x", "id": "--all"}', 2, "'--all' is not a valid job id"),
    "a queue with capitals": ('{"job": "x", "queue": "Mail"}', 2, "'Mail' is not a valid queue name"),
    "a handler with a slash": ('{"job": "../x"}', 2, "'../x' is not a valid handler key"),
    "a negative priority": ('{"job": "x", "priority": -1}', 2, "priority must be between 0 and 9, not -1"),
    "too high a priority": ('{"job": "x", "priority": 10}', 2, "priority must be between 0 and 9, not 10"),
    "negative retries": ('{"job": "x", "max_retries": -1}', 2, "max_retries must be between 0 and 1000"),
    "absurd retries": ('{"job": "x", "max_retries": 1000000}', 2, "max_retries must be between 0 and 1000"),
    "a negative timeout": ('{"job": "x", "timeout": -1}', 2, "timeout must be between 0 and"),
    "an absurd timeout": ('{"job": "x", "timeout": 1e300}', 2, "timeout must be between 0 and"),
    "a span in no unit": (
        '{"job": "x", "timeout": "5 parsecs"}',
        2,
        "timeout '5 parsecs': must be a number of seconds",
    ),
    "a negative delay": ('{"job": "x", "delay": -1}', 2, "delay must be between 0 and"),
    "an instant without a zone": ('{"job": "x", "run_at": "2026-01-01T00:00:00"}', 2, "field 'run_at': .* timezone"),
    "an instant at the end of the calendar": (
        '{"job": "x", "run_at": "9999-12-31T23:59:59.999999Z"}',
        2,
        "run_at 9999-12-31T23:59:59.999999.* is too far in the future; the limit is the year 2200",
    ),
    "an end beyond the calendar": (
        '{"job": "x", "expires_at": "9999-12-31T23:59:59-14:00"}',
        2,
        "expires 9999-12-31T23:59:59-14:00 is too far in the future; the limit is the year 2200",
    ),
    "two times": ('{"job": "x", "delay": 1, "run_at": "2026-01-01T00:00:00Z"}', 2, "a delay or a run_at"),
    "two ends": ('{"job": "x", "expires": 1, "expires_at": "2026-01-01T00:00:00Z"}', 2, "either expires or expires_at"),
    "an unknown strategy": (
        '{"job": "x", "backoff": "expnential"}',
        2,
        "'expnential' is not a backoff strategy; did you mean 'exponential'. use none",
    ),
    "no delays": ('{"job": "x", "backoff": []}', 2, "the list of backoff delays is empty"),
    "a negative delay among others": ('{"job": "x", "backoff": [1, -1]}', 2, "backoff delay must be between"),
    "a control character in a name": ('{"job": "x", "name": "a\\u001b[31m"}', 2, "name .* must be 1 to 200 printable"),
    "a command without an end": ('{"command": "sleep \\"2"}', 2, "no closing quotation; fix the quoting"),
    "an empty command": ('{"command": ""}', 2, "the command is empty"),
    "a command of numbers": ('{"command": ["sleep", 2]}', 2, r"field 'command\[1\]': Expected `str`"),
    "a command nobody allowed": ('{"command": "sleep 2"}', 4, "command 'sleep' is not allowed here"),
    "a field in two spellings": (
        '{"job": "x", "max-retries": 1, "maxRetries": 2}',
        2,
        "field 'max_retries' is given twice, once as 'maxRetries'",
    ),
    "a file that is not there": ("@nowhere.json", 2, "cannot read nowhere.json: No such file"),
    "a directory": ("@.", 2, r"cannot read \.: Is a directory"),
}


@pytest.mark.parametrize(("spec", "code", "why"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_job_is_refused_with_the_reason_and_nothing_is_kept(
    terminal: Terminal, spec: str, code: int, why: str
) -> None:
    answer = terminal("enqueue", spec)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("holdfast: ")
    assert len(answer.err.splitlines()) == 1
    assert re.search(why, answer.err)
    assert terminal.jobs() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--priority", "-1"], "--priority"),
        (["--priority", "10"], "--priority"),
        (["--max-retries", "-1"], "--max-retries"),
        (["--max-retries", "many"], "--max-retries"),
        (["--timeout", "-5"], "'-5': must be a number of seconds"),
        (["--timeout", "99999999999d"], "timeout must be between 0 and"),
        (["--delay", "soon"], "'soon': must be a number of seconds"),
        (["--queue", "No Good"], "'No Good' is not a valid queue name"),
        (["--id", "a b"], "'a b' is not a valid job id"),
        (["--prioritty", "3"], "No such option '--prioritty'"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_kept(terminal: Terminal, options: list[str], why: str) -> None:
    answer = terminal("enqueue", '{"job": "x"}', *options)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
    assert terminal.jobs() == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('{"id": "a", "job": "x"}\n{"job": "x", "payload": }\n', "line 2 is not valid JSON"),
        ('{"id": "a", "job": "x"}\n\n\n{"job": "x", "prio": 1}\n', "line 4: unknown field 'prio'"),
        ('{"id": "a", "job": "x"}\n"just text"\n', "line 2: a job must be a JSON object, not a string"),
        ('{"id": "a", "job": "x"}\n{"command": "rm -rf /"}\n', "line 2: command 'rm' is not allowed here"),
        ('[{"id": "a", "job": "x"}, {"job": "X Y"}]', "item 2: 'X Y' is not a valid handler key"),
        ("", "the input is empty"),
        (" \n\n", "the input is empty"),
        ("[]", "the list of jobs is empty"),
    ],
)
def test_one_wrong_line_is_named_and_refuses_all(terminal: Terminal, lines: str, why: str) -> None:
    answer = terminal("enqueue", "-", stdin=lines)
    assert answer.code in (2, 4)
    assert why in answer.err
    assert terminal.jobs() == []


@pytest.mark.parametrize("size", [MAX_WIRE_BYTES - 100, MAX_WIRE_BYTES, 3 * MAX_WIRE_BYTES])
def test_a_job_that_is_too_large_is_refused_with_the_limit(terminal: Terminal, size: int) -> None:
    terminal.write("big.json", json.dumps({"job": "x", "payload": "x" * size}))
    answer = terminal("enqueue", "@big.json")
    assert answer.code == 2
    assert "the limit is 1,048,576: store the data elsewhere and send a reference to it" in answer.err
    assert len(answer.err) < 1000
    assert terminal.jobs() == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["sleep 2"],
            "with each argument as a separate word:  holdfast enqueue -- sleep 2",
        ),
        (['{"job": "x"}', '{"job": "y"}'], "pass a single JSON document; put several jobs into a JSON list"),
        (["--url", "memory://", '{"job": "x"}'], "jobs in memory:// would be lost when this command exits"),
    ],
)
def test_what_was_surely_meant_otherwise_is_explained(terminal: Terminal, words: list[str], why: str) -> None:
    answer = terminal("enqueue", *words)
    assert (answer.code, answer.out) == (2, "")
    assert why in answer.err
    assert terminal.jobs() == []


def test_nothing_to_enqueue_says_what_could_be(terminal: Terminal) -> None:
    answer = terminal("enqueue")
    assert answer.code == 2
    assert "--job KEY with its arguments, a JSON object, @FILE, - for stdin, or a command after --" in answer.err


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["{"], 2, "PayloadRejected"),
        (['{"job": "x", "colour": 1}'], 2, "DefinitionError"),
        (['{"command": "rm"}'], 4, "CommandForbidden"),
        (["--priority", "99", '{"job": "x"}'], 2, "BadParameter"),
        (["@nowhere"], 2, "ConfigError"),
    ],
)
def test_as_json_an_error_is_one_document_on_stderr(terminal: Terminal, words: list[str], code: int, kind: str) -> None:
    answer = terminal("enqueue", "--json", *words)
    assert answer.code == code
    assert answer.error["code"] == kind
    assert answer.error["message"]


def test_as_json_the_answer_says_which_job_went_where(terminal: Terminal) -> None:
    answer = terminal("enqueue", '{"id": "a", "job": "x", "queue": "mail", "delay": "2m"}', "--json")
    expected = {
        "id": "a",
        "queue": "mail",
        "job": "x",
        "created": True,
        "delay": 120.0,
        "run_at": None,
        "expires_at": None,
        "dry_run": False,
    }
    assert {member: answer.json[member] for member in expected} == expected
    answer = terminal("enqueue", "-", "--json", stdin='{"id": "b", "job": "x"}\n')
    assert [(one["id"], one["queue"], one["created"]) for one in answer.json] == [("b", "default", True)]
    answer = terminal("enqueue", "-", "--jsonl", stdin='{"id": "b", "job": "x"}\n{"id": "c", "job": "x"}\n')
    assert [(one["id"], one["created"]) for one in map(json.loads, answer.out.splitlines())] == [
        ("b", False),
        ("c", True),
    ]
    for words in (["--json", "d"], ["--json", "--dry-run", "e"], ["--jsonl", "--dry-run", "f"]):
        answer = terminal("enqueue", *words[:-1], "--id", words[-1], "--job", "x", "n:=1")
        is_planned = "--dry-run" in words
        kind = documents.PlannedDocument if is_planned else documents.EnqueuedDocument
        assert isinstance(msgspec.json.decode(answer.out, type=kind), kind)
        assert answer.json["dry_run"] is is_planned


# Commands are denied by default


def test_a_refused_command_says_how_to_allow_it_and_that_works(terminal: Terminal) -> None:
    terminal("config", "set", "allowed-commands", "sleep")
    refused = terminal("enqueue", '{"command": "my-tool --now"}')
    assert refused.code == 4
    advice = refused.err.split("allow it with  ")[1].split("  or ")[0]
    assert advice == "holdfast config set allowed-commands sleep,my-tool"
    program, *words = shlex.split(advice)
    assert program == "holdfast"
    assert terminal(*words).code == 0
    assert terminal("enqueue", '{"command": "my-tool --now"}').code == 0
    assert terminal("enqueue", "--", "sleep", "1").code == 0


def test_the_advice_survives_a_strange_name(terminal: Terminal) -> None:
    refused = terminal("enqueue", "--", "/opt/my tools/x", "1")
    advice = shlex.split(refused.err.split("allow it with  ")[1].split("  or ")[0])
    assert terminal(*advice[1:]).code == 0
    assert terminal("enqueue", "--", "/opt/my tools/x", "1").code == 0


def test_what_a_worker_allows_producers_may_enqueue(terminal: Terminal) -> None:
    assert terminal("enqueue", "--", "true").code == 4
    assert terminal("worker", "start", "--allow", "true", "--burst").code == 0
    assert terminal("enqueue", "--id", "job1", "--", "true").code == 0
    assert terminal("enqueue", "--", "false").code == 4
