"""Completion, `schema` and `help`: what a shell offers, what documents look like, what is explained."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from holdfast import Holdfast
from holdfast.cli import COMMANDS, failing
from holdfast.cli.schemas import DOCUMENTS
from holdfast.cli.topics import EXIT_CODES, STATES, TERMS, TOPICS
from holdfast.cli.worker.command import start
from holdfast.search import parse
from holdfast.search.parsing import ALIASES, FIELDS
from holdfast.state.workers import WorkerRegistry
from holdfast.values import DeadReason, JobState, Outcome

from .registry import attempt, claim, report
from .terminal import Terminal

BIN = Path(sys.executable).parent


def offered(terminal: Terminal, *words: str, shell: str = "bash", **environment: str) -> list[str]:
    """What the shell is offered for the last of these words; bash takes `=` for a word of its own."""
    asked = {
        "_HOLDFAST_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(("holdfast", *words)),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }
    answer = terminal.program(stdin="", program=(), **{**asked, **environment})
    assert (answer.code, answer.err) == (0, "")
    lines = [line for line in answer.out.splitlines() if line]  # Click prints an empty line for nothing
    return lines[1::3] if shell == "zsh" else [line.partition(",")[2] for line in lines]


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal("enqueue", '[{"id": "job1", "job": "add"}, {"id": "job2", "job": "send", "queue": "mail"}]')
    with Holdfast(directory=terminal.project) as hf:
        engine = hf.backend()
        hf.define("add").id("dead1").queue("slow").dispatch()
        assert engine.abandon(claim(engine, "slow"), DeadReason.FAILED, attempt(Outcome.FAILED, error="no"))
        engine.pause("paused")
        WorkerRegistry(engine.state).beat(report("a" * 32, queues=("served:3",), handlers=("send", "add")))
    return terminal


def test_commands_and_options_are_offered(terminal: Terminal) -> None:
    assert offered(terminal, "sta") == ["status"]
    assert offered(terminal, "") == list(COMMANDS)
    assert offered(terminal, "worker", "st") == ["start", "stop"]
    assert "--max-wait" in offered(terminal, "health", "--m")
    assert offered(terminal, "completion", "show", "z") == ["zsh"]


def test_names_in_the_database_are_offered(shop: Terminal) -> None:
    assert offered(shop, "list", "--queue", "") == ["default", "mail", "paused", "served", "slow"]
    assert offered(shop, "worker", "start", "--queue", "mail,d") == ["mail,default"]
    assert offered(shop, "queue", "pause", "m") == ["mail"]
    assert offered(shop, "list", "--job", "") == ["add", "send"]
    assert sorted(offered(shop, "show", "")) == ["dead1", "job1", "job2"]
    assert sorted(offered(shop, "cancel", "job")) == ["job1", "job2"]
    assert sorted(offered(shop, "graph", "job")) == ["job1", "job2"]
    assert offered(shop, "enqueue", "--depends-on", "dead") == ["dead1"]
    assert offered(shop, "dlq", "show", "") == ["dead1"]
    assert offered(shop, "dlq", "retry", "") == ["dead1"]
    assert offered(shop, "worker", "show", "") == ["a" * 32]
    for shell in ("zsh", "fish"):
        assert offered(shop, "list", "--queue", "m", shell=shell) == ["mail"]


def test_states_are_offered_where_states_are_wanted(terminal: Terminal) -> None:
    assert offered(terminal, "list", "--state", "") == list(JobState)
    assert offered(terminal, "list", "--state", "dead,c") == ["dead,completed", "dead,cancelled"]
    assert offered(terminal, "queue", "purge", "--state", "") == ["completed", "dead", "cancelled"]


def test_the_application_of_the_settings_is_offered(terminal: Terminal) -> None:
    terminal.config.write_text('app = "shop:hf"\n')
    assert offered(terminal, "worker", "start", "s") == ["shop:hf"]
    assert offered(terminal, "doctor", "--app", "") == ["shop:hf"]
    assert offered(terminal, "generate", "systemd", "--app", "x") == []


def test_behind_a_flag_no_value_is_offered(shop: Terminal) -> None:
    assert offered(shop, "list", "-q", "m") == []
    assert offered(shop, "queue", "list", "-q", "m") == []


def test_what_goes_wrong_is_silent_and_makes_nothing(terminal: Terminal) -> None:
    assert offered(terminal, "show", "") == []
    assert not terminal.database.exists()
    terminal.config.write_text("this is no TOML")
    assert offered(terminal, "show", "") == []
    assert offered(terminal, "list", "--queue", "", HOLDFAST_URL="redis://127.0.0.1:1") == []
    assert offered(terminal, "run", "--", "ec") == []


def test_a_database_of_another_version_is_left_alone(shop: Terminal) -> None:
    with closing(sqlite3.connect(shop.database)) as connection, connection:
        connection.execute("DELETE FROM holdfast_schema WHERE version > 1")
    before = shop.database.read_bytes()
    assert offered(shop, "show", "") == []
    assert shop.database.read_bytes() == before


def test_a_locked_database_is_not_waited_for(shop: Terminal) -> None:
    with closing(sqlite3.connect(shop.database)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast show j", "COMP_CWORD": "2"}
        answer = shop.program(program=(), **asked)
    assert (answer.code, answer.out, answer.err) == (-signal.SIGALRM, "", "")


def test_a_real_bash_completes(shop: Terminal) -> None:
    script = """
    eval "$(holdfast completion show bash)"
    COMP_WORDS=(holdfast show jo) COMP_CWORD=2
    _holdfast_completion holdfast
    echo "${COMPREPLY[@]}"
    COMP_WORDS=(queuectl vers) COMP_CWORD=1
    _queuectl_completion holdfast
    echo "${COMPREPLY[-1]}"
    """
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", script],
        cwd=shop.project,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    first, second = done.stdout.splitlines()
    assert sorted(first.split()) == ["job1", "job2"]
    assert second == "version"


def test_a_program_that_is_not_there_is_no_noise_at_the_prompt(terminal: Terminal) -> None:
    script, bash = terminal("completion", "show", "bash").out, shutil.which("bash")
    assert bash is not None
    for program in ("holdfast", "queuectl"):
        ask = f"{script}\nCOMP_WORDS=(./{program} sh) COMP_CWORD=1\n_{program}_completion ./{program}"
        done = subprocess.run([bash, "-c", ask], cwd=terminal.project, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_silences_the_program_it_asks(terminal: Terminal, shell: str) -> None:
    first, *script = terminal("completion", "show", shell).out.splitlines()
    assert first.startswith("# Add this line to ~/")
    assert f"holdfast completion show {shell}" in first
    lines = [line for line in script if f"_HOLDFAST_COMPLETE={shell}_complete" in line]
    assert len(lines) == 2
    assert all(" 2>/dev/null)" in line for line in lines)


def test_the_shell_is_the_users_own_by_default(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "fish_complete" in terminal("completion", "show").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    answer = terminal("completion", "show")
    assert answer.code == 2
    assert "$SHELL is 'tcsh'; name one of bash, zsh, fish" in answer.err


# schema


def test_a_schema_is_found_without_its_version(terminal: Terminal) -> None:
    assert terminal("schema", "health").json == terminal("schema", "holdfast.health/1").json
    assert [line.split()[0] for line in terminal("schema").out.splitlines()[1:]] == list(DOCUMENTS)


def test_a_schema_says_which_attempts_are_counted(terminal: Terminal) -> None:
    job, log = (terminal("schema", name).json["$defs"] for name in ("job", "job.log"))
    assert "in the current life" in job["JobDocument"]["properties"]["attempts"]["description"]
    assert "over all lives" in log["LogDocument"]["properties"]["attempt"]["description"]


def test_a_schema_that_is_not_there_is_not_found(terminal: Terminal) -> None:
    answer = terminal("schema", "holdfast.helth/1")
    assert (answer.code, answer.out) == (3, "")
    assert "did you mean 'holdfast.health/1'?" in answer.err


# help


def test_every_topic_explains_itself(terminal: Terminal) -> None:
    overview = terminal("help").out
    for topic in TOPICS:
        assert topic in overview
        answer = terminal("help", topic)
        assert (answer.code, answer.err) == (0, "")
        assert len(answer.out.splitlines()) > 3
    assert set(TOPICS) == {"states", "search", "exit-codes"}


def test_the_topics_leave_nothing_out() -> None:
    assert list(STATES) == list(JobState)
    assert list(TERMS) == list(FIELDS)
    codes = {value for name, value in vars(failing).items() if name.isupper() and type(value) is int}
    assert {int(code) for code in EXIT_CODES} == {0, *codes}


def test_the_search_that_help_explains_is_the_one_that_is_understood(terminal: Terminal) -> None:
    text = terminal("help", "search").out
    for field, (example, meaning) in TERMS.items():
        assert f"{example} " in text
        assert meaning in text
        [term] = parse(example, now=datetime.now(UTC)).terms
        assert str(term).split(":")[0].split(".")[0] == field
    for alias in ALIASES:
        assert f"{alias} = " in " ".join(text.split())


def test_the_help_of_a_command_is_its_own(terminal: Terminal) -> None:
    # Looked at by itself before, a command keeps a help option without -h.
    start.get_help(click.Context(start))
    assert terminal("help", "worker", "start").out == terminal("worker", "start", "--help").out


@pytest.mark.parametrize(
    ("words", "hint"), [(["stattes"], "did you mean 'states'?"), (["worker", "frob"], "topics: states, search")]
)
def test_help_on_nothing_is_not_found(terminal: Terminal, words: list[str], hint: str) -> None:
    answer = terminal("help", *words)
    assert (answer.code, answer.out) == (3, "")
    assert hint in answer.err
