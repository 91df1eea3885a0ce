"""`holdfast run`: one command as a durable job, its output as it comes, its exit code as ours."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast

from .registry import until
from .terminal import Terminal, ended

COUNT_JOBS = """
import sqlite3
print(sqlite3.connect(".holdfast/jobs.db").execute("SELECT count(*) FROM holdfast_jobs WHERE state = 2").fetchone()[0])
"""


def wait_for_death(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 10)[0], f"process {pid} is still alive"
    finally:
        os.close(process)


def test_what_the_command_prints_is_all_of_stdout_and_the_rest_is_remarks(terminal: Terminal) -> None:
    answer = terminal("run", "--", "sh", "-c", "echo hello; echo oops >&2")
    assert (answer.code, answer.out) == (0, "hello\noops\n")
    kept, done = answer.err.splitlines()
    [job] = terminal.jobs()
    assert kept == f"✓ stored as {job['id']} in {terminal.database}"
    assert done.startswith("✓ sh -c 'echo hello; echo oops >&2': completed in ")
    assert job["state"] == "completed"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 128 + 9),
        ("kill -TERM $$", 128 + 15),
        ("kill -35 $$", 128 + 35),
    ],
)
def test_the_exit_code_is_the_commands(terminal: Terminal, script: str, code: int) -> None:
    answer = terminal("run", "--", "sh", "-c", script)
    assert (answer.code, answer.out) == (code, "")
    [job] = terminal.jobs()
    assert (job["state"], job["attempts"]) == ("dead", 1)
    assert f"see  holdfast show {job['id']}" in answer.err


@pytest.mark.parametrize("command", ["no-such-program-here", "./no-such-file"])
def test_a_command_that_is_not_there_ends_as_a_shell_would_have_it(terminal: Terminal, command: str) -> None:
    answer = terminal("run", "--", command)
    assert answer.code == 127
    assert command in answer.err
    assert "Traceback" not in answer.err


def test_a_file_that_is_no_program_ends_as_a_shell_would_have_it(terminal: Terminal) -> None:
    terminal.write("data.txt", "hello")
    assert terminal("run", "./data.txt").code == 126


def test_a_command_that_runs_too_long_ends_as_timeout_would_have_it(terminal: Terminal) -> None:
    answer = terminal("run", "--timeout", "200ms", "--", "sleep", "60")
    assert answer.code == 124
    assert "ran longer than its timeout of 0.2 s" in answer.err
    assert terminal.jobs()[0]["dead_reason"] == "timeout"


def test_the_job_is_on_disk_before_it_starts(terminal: Terminal) -> None:
    assert terminal("run", sys.executable, "-c", COUNT_JOBS).out == "1\n"


def test_options_behind_the_command_are_the_commands(terminal: Terminal) -> None:
    answer = terminal("run", "echo", "--json", "--timeout", "-n", "--", "--help")
    assert (answer.code, answer.out) == (0, "--json --timeout -n -- --help\n")


def test_a_mistyped_option_is_not_taken_for_the_command(terminal: Terminal) -> None:
    answer = terminal("run", "--timout", "5", "--", "echo", "hi")
    assert answer.code == 2
    assert "--timeout" in answer.err
    assert terminal.jobs() == []


@pytest.mark.parametrize("words", [[], ["--"], ["--", ""], ["--", "a\0b"], ["--timeout", "soon", "--", "true"]])
def test_what_is_no_command_is_refused_and_nothing_is_kept(terminal: Terminal, words: list[str]) -> None:
    answer = terminal("run", *words)
    assert (answer.code, answer.out) == (2, "")
    assert terminal.jobs() == []


def test_the_program_is_allowed_for_this_one_job_only(terminal: Terminal) -> None:
    assert terminal("run", "--", "true").code == 0
    assert terminal("enqueue", "--", "true").code == 4
    assert terminal("config", "get", "allowed-commands").out == "\n"


def test_no_other_worker_takes_the_job_and_they_share_a_line_of_the_status(terminal: Terminal) -> None:
    for _ in range(2):
        terminal("run", "--", "true")
    assert len({job["queue"] for job in terminal.jobs()}) == 2
    shown = terminal("status").out
    assert "run-…" in shown
    assert shown.count("run-") == 1


def test_as_json_it_is_one_document_and_the_exit_code_stays(terminal: Terminal) -> None:
    answer = terminal("run", "--json", "--", "sh", "-c", "echo hi; exit 3")
    assert answer.code == 3
    document = answer.json
    assert (document["state"], document["attempts"], document["name"]) == ("dead", 1, "sh -c 'echo hi; exit 3'")
    [attempt] = document["history"]
    assert (attempt["outcome"], attempt["output"]) == ("failed", "hi\n")
    assert attempt["error"]["message"] == "exit code 3"


def test_an_error_of_a_command_that_has_an_option_json_is_still_a_sentence(terminal: Terminal) -> None:
    answer = terminal("run", "--url", "nothing://", "--", "tool", "--json")
    assert answer.code == 2
    assert answer.err.startswith("holdfast: 'nothing://' does not name an engine")


def test_output_that_is_not_text_is_replaced_not_fatal(terminal: Terminal) -> None:
    answer = terminal("run", "--", "printf", r"caf\351 \000 \303\251")
    assert (answer.code, answer.out) == (0, "caf\ufffd \0 é")
    assert terminal.job(terminal.jobs()[0]["id"])["history"][0]["output"] == "caf\ufffd \ufffd é"


def test_output_is_not_lost_where_stdout_speaks_only_ascii(terminal: Terminal) -> None:
    answer = terminal.program("run", "--", "printf", "caf\u00e9\n", PYTHONIOENCODING="ascii:strict")
    assert answer.code == 0
    assert answer.out.startswith("caf")
    assert answer.out.endswith("\n")
    assert "Traceback" not in answer.err


def test_output_is_passed_on_while_the_command_runs(terminal: Terminal) -> None:
    os.mkfifo(terminal.project / "gate")
    process = terminal.start("run", "--", "sh", "-c", "echo one; read word < gate; echo $word")
    assert process.stdout is not None
    assert process.stderr is not None
    assert str(terminal.database) in process.stderr.readline()
    assert process.stdout.readline() == "one\n"
    (terminal.project / "gate").write_text("two\n")
    answer = ended(process)
    assert (answer.code, answer.out) == (0, "two\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_command_and_cancels_the_job(
    terminal: Terminal, number: signal.Signals, code: int
) -> None:
    process = terminal.start("run", "--", "sh", "-c", "sleep 300 & echo $! $$; wait")
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.send_signal(number)
    answer = ended(process)
    assert answer.code == code
    assert "Traceback" not in answer.err
    [job] = terminal.jobs()
    assert (job["state"], job["cancel_reason"]) == ("cancelled", "interrupted at the terminal")
    for pid in pids:
        wait_for_death(pid)


def test_a_command_somebody_cancels_meanwhile_is_not_reported_as_done(terminal: Terminal) -> None:
    process = terminal.start("run", "--", "sh", "-c", "echo $$; exec sleep 300")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    with Holdfast(directory=terminal.project) as hf:
        hf.handle(terminal.jobs()[0]["id"]).cancel("ordered twice")
    answer = ended(process)
    assert answer.code == 124
    assert "completed" not in answer.err
    assert "cancelled" in answer.err
    assert "ordered twice" in answer.err
    wait_for_death(pid)
    assert terminal.jobs()[0]["cancel_reason"] == "ordered twice"


# Progress

REPORTING = """
echo one
echo "30 100 resizing" > /dev/fd/$HOLDFAST_PROGRESS_FD
read word < first
echo "75 100 packing" > /dev/fd/$HOLDFAST_PROGRESS_FD
read word < second
echo two
"""


@pytest.fixture
def gates(terminal: Terminal) -> list[Path]:
    """What the script waits at: two, for a reader that comes early would find the same one still open."""
    terminal.write("work.sh", REPORTING)
    paths = [terminal.project / name for name in ("first", "second")]
    for path in paths:
        os.mkfifo(path)
    return paths


def test_a_bar_shows_how_far_the_command_says_it_is_and_leaves_no_trace(terminal: Terminal, gates: list[Path]) -> None:
    screen = terminal.on_screen("run", "--", "sh", "work.sh")
    screen.wait_for(f"{'█' * 7}{'░' * 17} 30/100 (30 %) resizing")
    gates[0].write_text("go\n")
    screen.wait_for(f"{'█' * 18}{'░' * 6} 75/100 (75 %) packing")
    gates[1].write_text("go\n")
    assert screen.ended() == 0
    kept, *printed, done, end = screen.rows
    assert kept.startswith("✓ stored as ")
    assert (printed, end) == (["one", "two"], "")
    assert done.startswith("✓ sh work.sh: completed in ")


def test_others_see_how_far_the_command_is_while_it_runs(terminal: Terminal, gates: list[Path]) -> None:
    process = terminal.start("run", "--", "sh", "work.sh")
    seen = until(lambda: [job["progress"] for job in terminal.jobs() if job["progress"]])
    assert (seen[0]["done"], seen[0]["total"], seen[0]["message"]) == (30, 100, "resizing")
    gates[0].write_text("go\n")
    until(lambda: [job for job in terminal.jobs() if job["progress"]["done"] == 75])
    gates[1].write_text("go\n")
    answer = ended(process)
    assert (answer.code, answer.out) == (0, "one\ntwo\n")
    assert "\r" not in answer.err
    assert "resizing" not in answer.err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_others_see_what_the_command_prints_while_it_runs(
    terminal: Terminal, gates: list[Path], options: tuple[str, ...]
) -> None:
    process = terminal.start("run", *options, "--", "sh", "work.sh")
    [job] = until(terminal.jobs)
    until(lambda: terminal("logs", job["id"]).out == "one\n")
    for gate in gates:
        gate.write_text("go\n")
    assert ended(process).code == 0
    assert terminal("logs", job["id"]).out == "one\ntwo\n"


def test_others_see_it_though_nobody_reads_it_here_any_more(terminal: Terminal, gates: list[Path]) -> None:
    script = "echo one; read word < first; echo two; read word < second; echo three; read word < third\n"
    terminal.write("work.sh", script)
    gates.append(terminal.project / "third")
    os.mkfifo(gates[-1])
    process = terminal.start("run", "--", "sh", "work.sh")
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    process.stdout.close()
    [job] = terminal.jobs()
    gates[0].write_text("go\n")
    until(lambda: terminal("logs", job["id"]).out == "one\ntwo\n")
    gates[1].write_text("go\n")
    until(lambda: terminal("logs", job["id"]).out == "one\ntwo\nthree\n")
    gates[2].write_text("go\n")
    until(lambda: terminal.job(job["id"])["state"] == "completed")


def test_with_json_the_bar_leaves_the_document_alone(terminal: Terminal, gates: list[Path]) -> None:
    screen = terminal.on_screen("run", "--json", "--", "sh", "work.sh", stdout=subprocess.PIPE)
    for gate, said in zip(gates, ("30/100 (30 %) resizing", "75/100 (75 %) packing"), strict=True):
        screen.wait_for(said)
        gate.write_text("go\n")
    assert screen.ended() == 0
    assert screen.process.stdout is not None
    assert json.loads(screen.process.stdout.read())["state"] == "completed"
