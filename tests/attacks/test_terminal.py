"""A terminal obeys the bytes it receives, so no command may pass on a control character from the database.

Every command of the table in `tests/surface/test_every_command.py` runs here over a database in which another program
has written hostile text wherever it can: a new command is attacked as soon as it is in that table.
"""

import json
import re
import shlex
import sqlite3
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.codec import unseal

from ..surface.terminal import Terminal
from ..surface.test_every_command import CASES, CHANGES, NO_JSON, SEVERE, Desk, create_project

FORGED = "✓ all jobs were retried"
# Sets the title, clears the screen, colours (also with C1 controls), reorders, breaks lines, hides; then a shell.
HOSTILE = (
    "\x1b]0;PWNED\x07\x1b[2J\x1b[31mred\x1b[0m\x9b35m\x9d0;PWNED\x9c\x85\x7f\r\x08\x0b\x0c"
    "\u202e\u2066\u200e\u200f\u061c\u2028\u2029\ufeff\U000e0041"
    f"\n{FORGED}\nholdfast: {FORGED}\n;touch$IFS$PWD/PWNED;#"
)
# The colours of `holdfast.cli.output.paint`, as a terminal receives them.
PAINT = re.compile(r"\x1b\[(?:0|31|32|33|36|90)m")
# A status line is erased with blanks.
ERASED = re.compile(r"\r *\r")
SHOWN_RAW = ("logs",)  # a job's output is printed with its line feeds
QUIET = ("list", "dlq list", "queue list", "worker list", "cronjob list")
WELL_FORMED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]*")
WAITING, FAILED, RUNNING, COMPLETED, DEAD, CANCELLED = 0, 1, 2, 4, 5, 6


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the table, after another program has written to its database."""
    place = create_project(tmp_path_factory.mktemp("hostile"))
    connection = sqlite3.connect(place / ".holdfast" / "jobs.db", isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    _poison_known_jobs(connection)
    for state in (WAITING, FAILED, RUNNING, COMPLETED, DEAD, CANCELLED):
        for queue in ("default", f"q{HOSTILE}"):
            _insert_job(connection, f"id{state}{len(queue)}{HOSTILE}", queue, state)
    _poison_edges(connection)
    _poison_workers(connection)
    _poison_schedules(connection)
    connection.execute("UPDATE holdfast_pauses SET reason = ?", [HOSTILE])
    connection.execute("INSERT INTO holdfast_pauses VALUES (?, ?, 1)", [f"q{HOSTILE}", HOSTILE])
    connection.close()
    return place


def _poison_known_jobs(connection: sqlite3.Connection) -> None:
    """Leave the ids that the table names, and poison everything else about these jobs."""
    connection.execute("UPDATE holdfast_jobs SET last_error = ?, trace_id = ?", [HOSTILE, HOSTILE])
    connection.execute(
        "UPDATE holdfast_attempts SET error_type = ?1, error_message = ?1, traceback = ?1, output = ?1, note = ?1, "
        "result = ?2",
        [HOSTILE, json.dumps(HOSTILE, ensure_ascii=False).encode()],
    )


def _insert_job(connection: sqlite3.Connection, job_id: str, queue: str, state: int) -> None:
    now = time.time_ns() // 1000
    [wire] = connection.execute("SELECT wire FROM holdfast_messages LIMIT 1").fetchone()
    message: dict[str, Any] = json.loads(unseal(wire)[0])
    message |= {"id": job_id, "queue": queue, "job": HOSTILE, "name": HOSTILE, "tags": [HOSTILE], "traceId": HOSTILE}
    message |= {"payload": {HOSTILE: HOSTILE}, "meta": {HOSTILE: HOSTILE}}
    row = {
        "id": job_id,
        "queue": queue,
        "job": HOSTILE,
        "priority": 5,
        "state": state,
        "due_at": 1,
        "accepted_at": now,
        "deliveries": 1,
        "trace_id": HOSTILE,
        "cancel_request": HOSTILE if state == RUNNING else None,
        "cancel_reason": HOSTILE,
        "dead_reason": "failed" if state == DEAD else None,
        "last_error": HOSTILE,
        "finished_at": now if state >= COMPLETED else None,
        "owner_token": b"x" * 16 if state == RUNNING else None,
        "claimed_at": now if state == RUNNING else None,
        "lease_us": 10**10 if state == RUNNING else None,
        "lease_until": now + 10**10 if state == RUNNING else None,
    }
    seq = connection.execute(
        f"INSERT INTO holdfast_jobs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
    ).lastrowid
    connection.execute(
        "INSERT INTO holdfast_messages VALUES (?, ?)", [seq, json.dumps(message, ensure_ascii=False).encode()]
    )
    if state == RUNNING:
        connection.execute("INSERT INTO holdfast_progress VALUES (?, 1, 1, 2, ?, ?)", [seq, HOSTILE, now])
        connection.execute("INSERT INTO holdfast_live_output VALUES (?, 1, 0, ?)", [seq, HOSTILE])
    else:
        outcome = "succeeded" if state == COMPLETED else "failed"
        result = json.dumps(HOSTILE, ensure_ascii=False).encode()
        connection.execute(
            "INSERT INTO holdfast_attempts VALUES (?, 1, NULL, NULL, ?, 1, 2, ?, ?, ?, ?, ?, ?)",
            [seq, outcome, HOSTILE, HOSTILE, HOSTILE, HOSTILE, result, HOSTILE],
        )


def _poison_edges(connection: sqlite3.Connection) -> None:
    """Let a known job have hostile parents and children, some of them both, with values that no edge has."""
    connection.execute(
        "INSERT INTO holdfast_edges SELECT h.seq, k.seq, 7, 9 FROM holdfast_jobs AS h, holdfast_jobs AS k "
        "WHERE h.id LIKE 'id%' AND k.id = 'dead1'"
    )
    connection.execute(
        "INSERT INTO holdfast_edges SELECT k.seq, h.seq, 0, 0 FROM holdfast_jobs AS h, holdfast_jobs AS k "
        "WHERE h.id LIKE 'id%' AND k.id = 'dead1'"
    )


def _poison_workers(connection: sqlite3.Connection) -> None:
    """Poison the reports of the known workers, and add a worker whose id is hostile too."""
    rows = connection.execute("SELECT key, value, version, expires_at FROM holdfast_cells WHERE kind = 'workers'")
    for key, value, version, expires_at in rows.fetchall():
        report: dict[str, Any] = json.loads(value)
        report |= {"host": HOSTILE, "version": HOSTILE, "handlers": [HOSTILE], "queues": ["mail:3", HOSTILE]}
        for job in report["jobs"]:
            job |= {"id": HOSTILE, "job": HOSTILE, "queue": HOSTILE}
        for worker_id in (key, f"{key}{HOSTILE}"):
            report["id"] = worker_id
            connection.execute(
                "INSERT OR REPLACE INTO holdfast_cells VALUES ('workers', ?, ?, ?, ?)",
                [worker_id, json.dumps(report, ensure_ascii=False).encode(), version, expires_at],
            )


def _poison_schedules(connection: sqlite3.Connection) -> None:
    """Corrupt everything about the known schedules, and add one with a hostile name, one that is not a schedule, and
    ledger entries for both.
    """
    cells = "SELECT key, value FROM holdfast_cells WHERE kind = ?"
    insert = "INSERT OR REPLACE INTO holdfast_cells VALUES (?, ?, ?, 1, NULL)"
    templates = [(key, json.loads(value)) for key, value in connection.execute(cells, ["schedules"])]
    for key, cell in templates:
        template: dict[str, Any] = json.loads(unseal(cell["template"].encode())[0])
        template |= {"note": HOSTILE, "owner": "x", "environments": []}
        template["job"] |= {"payload": {HOSTILE: HOSTILE}}
        cell |= {"origin": HOSTILE, "build": HOSTILE, "source": "code", "vanished_us": 1}
        for name in (key, f"n{HOSTILE}"):
            cell["template"] = json.dumps(template | {"name": name}, ensure_ascii=False)
            _insert_cell(connection, insert, "schedules", name, cell)
    for name in ("nightly", "poll", f"n{HOSTILE}"):
        switch = {"enabled": False, "reason": HOSTILE, "by": HOSTILE, "at_us": 1}
        _insert_cell(connection, insert, "schedule-switches", name, switch)
        problem = {"kind": "missed", "message": HOSTILE, "at_us": 2**62, "count": 2}
        _insert_cell(connection, insert, "schedule-problems", name, problem)
        for at_us in (1, 2**62, 2**63 - 1):
            key = f"{name}@{2**63 - 1 - at_us:019d}"
            tick = {
                "outcome": "late",
                "late_s": 9.0,
                "reason": HOSTILE,
                "job_id": HOSTILE,
                "first_us": 2**62,
                "count": 3,
            }
            _insert_cell(connection, insert, "schedule-ticks", key, tick)
            result = {"state": "dead", "finished_us": 2**62, "reason": HOSTILE}
            _insert_cell(connection, insert, "schedule-results", key, result)
    _insert_cell(connection, insert, "schedules", f"z{HOSTILE}", {"template": HOSTILE, "source": "code"})
    _insert_cell(connection, insert, "schedules", "zz", {"template": 5})
    _insert_cell(connection, insert, "schedule-cursors", "poll", {"through_us": 2**62})


def _insert_cell(connection: sqlite3.Connection, insert: str, kind: str, key: str, value: object) -> None:
    connection.execute(insert, [kind, key, json.dumps(value, ensure_ascii=False).encode()])


@pytest.fixture
def desk(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    yield Desk(terminal, hostile)
    terminal.close()


def _ways(leaf: str) -> list[list[str]]:
    """How a command of the table is tried: as text, as JSON, quietly, wide, and without doing anything."""
    case = CASES[leaf]
    words = shlex.split(case.words)
    at = words.index("--") if "--" in words else len(words)
    options = [""] if case.is_slow else ["", "--color=always"]
    if case.prints != NO_JSON:
        options.append("--json")
    if leaf in (*QUIET, "logs", "enqueue"):
        options.append("--jsonl")
    if leaf in QUIET or leaf == "enqueue":
        options.append("--quiet")
    if leaf in ("list", "dlq list"):
        options += ["-o wide", "-o csv", "--columns id,tags,payload,progress,cancel_reason,meta,trace_id", "--count"]
    if case.words in CHANGES:
        options.append("--dry-run")
    return [[*words[:at], *option.split(), *words[at:]] for option in options]


EVERY = [words for leaf in CASES if leaf != "top" for words in _ways(leaf)]
# What the table does not name: jobs that only a search finds, and hostile words on the command line itself.
BAD_ID = f"id{DEAD}{len('default')}{HOSTILE}"
OTHERS = [
    *([*shlex.split(words), "--no-input"] for words in SEVERE),
    *([*shlex.split(words), "--yes"] for words in SEVERE if "purge --all" not in words),
    ["cancel", "--where", "state:pending,failed,processing", "--yes"],
    ["cancel", "--where", "state:pending,failed,processing", "--dry-run"],
    ["retry", "--where", "state:dead,cancelled"],
    ["retry", "--where", "state:dead,cancelled", "--dry-run", "--json"],
    ["delete", "--where", "state:completed,dead", "--yes"],
    ["dlq", "retry", "--all"],
    ["dlq", "retry", "--all", "--dry-run"],
    ["dlq", "discard", "--all", "--dry-run"],
    ["queue", "purge", "--all", "--state", "all", "--dry-run"],
    ["worker", "stop", "--all"],
    ["worker", "stop", "--all", "--dry-run"],
    ["worker", "show", "a"],
    ["logs", f"id{RUNNING}{len('default')}{HOSTILE}"],
    ["wait", f"id{COMPLETED}{len('default')}{HOSTILE}"],
    ["wait", "--timeout", "0.01", f"id{RUNNING}{len('default')}{HOSTILE}", BAD_ID],
    ["show", f"id{RUNNING}{len('default')}{HOSTILE}"],
    *([*verb.split(), BAD_ID] for verb in ("show", "logs", "wait", "cancel", "retry", "delete", "dlq show")),
    *([*verb.split(), f"no{HOSTILE}"] for verb in ("show", "logs", "wait", "cancel", "retry", "delete", "dlq discard")),
    *([*verb.split(), f"q{HOSTILE}"] for verb in ("queue show", "queue pause", "queue resume", "queue reap")),
    *(["list", option, HOSTILE] for option in ("--queue", "--where", "--state", "--columns", "--after", "--since")),
    *(["cronjob", verb, f"n{HOSTILE}"] for verb in ("show", "history", "next", "enable", "disable", "remove", "run")),
    *(["cronjob", verb, f"x{HOSTILE}"] for verb in ("show", "history", "next", "enable", "disable", "remove", "run")),
    *(["cronjob", verb, name] for verb in ("show", "history", "next", "run") for name in ("zz", f"z{HOSTILE}")),
    ["cronjob", "run", "--due"],
    ["cronjob", "run", "--due", "--dry-run"],
    ["cronjob", "run", "--test-time", "2027-01-01 01:00"],
    ["cronjob", "run", "--test-time", HOSTILE],
    ["config", "get", HOSTILE],
    [HOSTILE],
]


@pytest.mark.parametrize("words", [*EVERY, *OTHERS], ids=lambda words: " ".join(words)[:60].encode("ascii", "replace"))
def test_no_stored_text_reaches_the_terminal_as_a_command(desk: Desk, words: list[str]) -> None:
    is_raw = words[0] in SHOWN_RAW
    piped = desk.piped(*words)
    assert "Traceback" not in piped.err
    _check(piped.out, is_raw=is_raw)
    _check(piped.err)
    code, drawn = desk.drawn(*words, columns=100)
    assert code == piped.code
    _check(ERASED.sub("", drawn.decode().replace("\r\n", "\n")), is_raw=is_raw)
    if words == ["list", "--json"]:
        assert any(job["id"] == BAD_ID for job in json.loads(piped.out)), "JSON has to have the true values"
    if "--quiet" in words or "-q" in words:
        assert [line for line in piped.out.splitlines() if not WELL_FORMED.fullmatch(line)] == []


def _check(printed: str, *, is_raw: bool = False) -> None:
    assert "\x1b[31mred" not in printed, "a colour of the stored text"
    text = PAINT.sub("", printed)
    unsafe = [
        sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") and sign not in "\n\t"
    ]
    assert unsafe == []
    if not is_raw:
        lines = [line for line in text.split("\n") if line.startswith((FORGED, "holdfast: ✓", ";touch"))]
        assert lines == []


@pytest.mark.parametrize("leaf", QUIET)
def test_a_pipe_of_ids_has_only_ids(desk: Desk, leaf: str) -> None:
    answer = desk.piped(*leaf.split(), "-q")
    assert answer.out.splitlines() != []
    assert all(WELL_FORMED.fullmatch(line) for line in answer.out.splitlines())
    assert "left out" in answer.err


def test_a_table_has_one_line_for_each_job(desk: Desk) -> None:
    number = int(desk.piped("list", "--count").out)
    assert number > 7
    for option in ("-o wide", "-o csv"):
        assert len(desk.piped("list", *option.split()).out.splitlines()) == number + 1


def test_what_is_to_be_copied_is_quoted(desk: Desk) -> None:
    advice = desk.piped("retry", f"id{WAITING}{len('default')}{HOSTILE}").err
    copied = advice.partition("holdfast show ")[2]
    assert copied.startswith("'id0")
    assert shlex.split(copied)[0].endswith(";touch$IFS$PWD/PWNED;#")


@pytest.mark.parametrize("words", ["status", "config list", "config check", "migrate --dry-run", "doctor", "list"])
def test_a_backend_cannot_have_a_hostile_name(desk: Desk, words: str) -> None:
    desk.piped("version")
    name = HOSTILE.encode("unicode_escape").decode()
    desk.terminal.config.write_text(f"[backends]\n{json.dumps(HOSTILE)} = 'sqlite:///x.db'\n# {name}\n")
    answer = desk.terminal(*words.split())
    assert "Traceback" not in answer.err
    _check(answer.out)
    _check(answer.err)


def test_top_draws_only_what_it_means_to_draw(desk: Desk) -> None:
    desk.piped("version")
    screen = desk.terminal.on_screen("top", columns=160)
    screen.wait_for("mail")
    screen.wait_for("]0;PWNED")
    assert "PWNED\x07" not in screen.text
    assert (
        re.findall("\x1b\\]0|[\x80-\x9f\u202e\u2066\u200e\u200f\u061c\u2028\u2029\ufeff\U000e0041]", screen.text) == []
    )
