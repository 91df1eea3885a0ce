"""Completion, `schema` and `help`: what a shell offers, what documents look like, what is explained."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from holdfast import Holdfast
from holdfast.cli import COMMANDS, failing
from holdfast.cli.completing import BY_ENGINE
from holdfast.cli.schemas import DOCUMENTS
from holdfast.cli.topics import EXIT_CODES, STATES, TERMS, TOPICS
from holdfast.cli.worker.command import start
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.queues.engines.sqlite.glance import NAMES, glance
from holdfast.search import parse
from holdfast.search.parsing import ALIASES, FIELDS
from holdfast.state.workers import WorkerRegistry
from holdfast.values import DeadReason, JobState

from .registry import report
from .terminal import Terminal

BIN = Path(sys.executable).parent
QUEUES = ("a-first", "cancelled", "completed", "dead", "m-second", "processing", "z-last")


def offered(terminal: Terminal, *words: str, **environment: str) -> list[str]:
    """What bash is offered for the last of these words; it takes `=` and `:` for words of their own."""
    asked = {
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("holdfast", *words)),
        "COMP_CWORD": str(len(words)),
        "HOLDFAST_COMPLETION_WAIT": "30",
    }
    answer = terminal.program(stdin="", program=(), **{**asked, **environment})
    assert (answer.code, answer.err) == (0, "")
    return [line.partition(",")[2] for line in answer.out.splitlines()]


def offered_as_one_word(terminal: Terminal, *words: str) -> list[str]:
    """What zsh is offered for the last of these words, and fish as well; both keep an `=` within its word."""
    line = " ".join(("holdfast", *words))
    patience = {"HOLDFAST_COMPLETION_WAIT": "30"}
    zsh = {"_HOLDFAST_COMPLETE": "zsh_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    fish = {"_HOLDFAST_COMPLETE": "fish_complete", "COMP_WORDS": line, "COMP_CWORD": words[-1]}
    first, second = (terminal.program(stdin="", program=(), **asked, **patience) for asked in (zsh, fish))
    assert (first.code, first.err, second.code, second.err) == (0, "", 0, "")
    said = first.out.splitlines()[1::3]
    assert [line.partition(",")[2].partition("\t")[0] for line in second.out.splitlines()] == said
    return said


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    terminal("enqueue", '[{"id": "job1", "job": "add"}, {"id": "job2", "job": "send", "queue": "mail"}]')
    with Holdfast(directory=terminal.project) as hf:
        WorkerRegistry(hf.backend().state).beat(report("a" * 32))
    return terminal


def test_commands_and_options_are_offered(terminal: Terminal) -> None:
    assert offered(terminal, "sta") == ["status"]
    assert offered(terminal, "") == list(COMMANDS)
    assert offered(terminal, "worker", "st") == ["start", "stop"]
    assert "--max-wait" in offered(terminal, "health", "--m")
    assert offered(terminal, "completion", "show", "z") == ["zsh"]


def test_names_out_of_the_store_are_offered(shop: Terminal) -> None:
    assert offered(shop, "list", "--queue", "") == ["default", "mail"]
    assert offered(shop, "worker", "start", "--queue", "mail,d") == ["mail,default"]
    assert offered(shop, "list", "--job", "s") == ["send"]
    assert sorted(offered(shop, "show", "job")) == ["job1", "job2"]
    assert offered(shop, "worker", "show", "") == ["a" * 32]
    assert offered(shop, "dlq", "show", "") == []


def test_states_are_offered_where_states_are_wanted(terminal: Terminal) -> None:
    assert offered(terminal, "list", "--state", "") == list(JobState)
    assert offered(terminal, "list", "--state", "dead,c") == ["dead,completed", "dead,cancelled"]
    assert offered(terminal, "queue", "purge", "--state", "") == ["completed", "dead", "cancelled"]
    assert offered(terminal, "list", "--where", "state:de") == ["state:dead"]
    assert offered(terminal, "cancel", "--where", "'tag:a -state:dead,pe") == ["tag:a -state:dead,pending"]
    # As bash says it, to whom a colon is a word.
    assert offered(terminal, "list", "--where", "state", ":") == list(JobState)
    assert offered(terminal, "list", "--where", "state", ":", "de") == ["dead"]


def test_a_value_that_is_glued_to_its_option_is_completed(shop: Terminal) -> None:
    assert offered(shop, "list", "--state", "=") == list(JobState)
    assert offered(shop, "list", "--state", "=", "dead,c") == ["dead,completed", "dead,cancelled"]
    assert offered(shop, "list", "--where", "=", "state", ":", "de") == ["dead"]
    assert offered(shop, "list", "--queue", "=", "m") == ["mail"]
    assert offered(shop, "list", "--color", "=", "al") == ["always"]
    assert offered(shop, "list", "--state", "=", "dead", "--queue", "=", "m") == ["mail"]
    assert offered_as_one_word(shop, "list", "--state=") == [f"--state={state}" for state in JobState]
    assert offered_as_one_word(shop, "list", "--status=dead,c") == [
        "--status=dead,completed",
        "--status=dead,cancelled",
    ]
    assert offered_as_one_word(shop, "list", "--where=state:de") == ["--where=state:dead"]
    assert offered_as_one_word(shop, "worker", "start", "--queue=mail,d") == ["--queue=mail,default"]
    assert offered_as_one_word(shop, "list", "--color=al") == ["--color=always"]
    # Of an argument it is a part.
    assert offered(shop, "enqueue", "--job", "add", "to", "=", "") == []


def test_behind_a_flag_no_value_is_offered(shop: Terminal) -> None:
    assert offered(shop, "enqueue", "-q", "m") == ["mail"]
    assert offered(shop, "list", "-q", "m") == []
    assert offered(shop, "queue", "list", "-q", "m") == []


def test_every_queue_is_offered_whatever_its_jobs_have_come_to(tmp_path: Path) -> None:
    with Holdfast(f"sqlite:///{tmp_path}/jobs.db", directory=tmp_path) as hf:
        engine = hf.backend()
        ids = {
            name: hf.enqueue(JobDefinition(handler="a", payload=encode_payload(None), queue=name)) for name in QUEUES
        }
        for name in ("completed", "dead", "processing"):
            [lease] = engine.claim(name, 1, owner_token=new_owner_token(new_session()))
            if name == "completed":
                engine.ack(lease)
            elif name == "dead":
                engine.abandon(lease, DeadReason.FAILED)
        engine.cancel(ids["cancelled"])
        engine.pause("paused")
        assert glance(tmp_path / "jobs.db", "holdfast_", "queues") == sorted([*QUEUES, "paused"])
        assert glance(tmp_path / "jobs.db", "holdfast_", "dead") == [ids["dead"]]
        for kind in NAMES.keys() - {"queues"}:
            assert sorted(glance(tmp_path / "jobs.db", "holdfast_", kind)) == sorted(BY_ENGINE[kind](engine))


def test_what_goes_wrong_is_silent_and_makes_nothing(terminal: Terminal) -> None:
    assert offered(terminal, "show", "") == []
    assert not terminal.database.exists()
    terminal.config.write_text("this is no TOML")
    assert offered(terminal, "show", "") == []
    assert offered(terminal, "list", "--queue", "", HOLDFAST_URL="redis://127.0.0.1:1") == []
    assert offered(terminal, "run", "--", "ec") == []


def test_a_store_that_takes_too_long_is_not_waited_for(terminal: Terminal) -> None:
    silent = terminal.project / "silent.db"
    os.mkfifo(silent)  # who opens it waits for somebody who writes into it
    assert offered(terminal, "show", "", HOLDFAST_URL=f"sqlite:///{silent}", HOLDFAST_COMPLETION_WAIT="0.1") == []


def test_an_unknown_instruction_is_refused(terminal: Terminal) -> None:
    assert terminal.program(_HOLDFAST_COMPLETE="tcsh_complete").code == 1


def test_a_real_bash_completes(shop: Terminal) -> None:
    script = """
    source <(holdfast completion show bash)
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
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOLDFAST_COMPLETION_WAIT": "30"},
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
    asking = f"_HOLDFAST_COMPLETE={shell}_complete"
    lines = [line for line in terminal("completion", "show", shell).out.splitlines() if asking in line]
    assert len(lines) == 2
    assert all(" 2>/dev/null)" in line for line in lines)
    [line] = [
        line for line in terminal.program(_HOLDFAST_COMPLETE=f"{shell}_source").out.splitlines() if asking in line
    ]
    assert " 2>/dev/null)" in line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installing_twice_is_installing_once(terminal: Terminal, shell: str) -> None:
    files = [Path(name) for name in terminal("completion", "install", shell, "--json").json["files"]]
    assert all(file.is_relative_to(terminal.home) for file in files)
    texts = [file.read_text() for file in files]
    assert "_HOLDFAST_COMPLETE" in texts[0]
    assert terminal("completion", "install", shell).code == 0
    assert [file.read_text() for file in files] == texts


def test_zsh_is_told_behind_what_is_there(terminal: Terminal) -> None:
    startup = terminal.home / ".zshrc"
    startup.write_text("alias ll='ls -l'")
    terminal("completion", "install", "zsh")
    with startup.open("a") as file:
        file.write("export A=1\n")
    terminal("completion", "install", "zsh")
    text = startup.read_text()
    assert text.startswith("alias ll='ls -l'\n# >>> holdfast")
    assert text.endswith("# <<< holdfast completion <<<\nexport A=1\n")
    assert text.count("holdfast completion >>>") == 1


def test_a_block_without_its_end_is_refused(terminal: Terminal) -> None:
    startup = terminal.home / ".zshrc"
    text = "alias a=b\n# >>> holdfast completion >>>\nexport A=1\n"
    startup.write_text(text)
    answer = terminal("completion", "install", "zsh")
    assert (answer.code, startup.read_text()) == (2, text)
    assert "remove what is left of them, then run this again" in answer.err


def test_a_linked_startup_file_stays_a_link(terminal: Terminal) -> None:
    kept = terminal.home / "dotfiles.zshrc"
    kept.write_text("alias a=b\n")
    kept.chmod(0o640)
    (terminal.home / ".zshrc").symlink_to(kept)
    assert terminal("completion", "install", "zsh").code == 0
    assert (terminal.home / ".zshrc").is_symlink()
    assert kept.read_text().startswith("alias a=b\n# >>> holdfast")
    assert kept.stat().st_mode & 0o777 == 0o640


def test_the_shell_is_the_users_own_unless_said(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert terminal("completion", "show", "--json").json["shell"] == "fish"
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    answer = terminal("completion", "show")
    assert answer.code == 2
    assert "'tcsh'; name one of bash, zsh, fish" in answer.err


# schema


def test_a_schema_is_found_without_its_version(terminal: Terminal) -> None:
    assert terminal("schema", "health").json == terminal("schema", "holdfast.health/1").json
    assert [each["name"] for each in terminal("schema", "--json").json] == list(DOCUMENTS)


def test_a_schema_says_which_attempts_are_counted(terminal: Terminal) -> None:
    job, log = (terminal("schema", name).json["$defs"] for name in ("job", "job.log"))
    assert "failed in this life" in job["JobDocument"]["properties"]["attempts"]["description"]
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
    assert {"states", "search", "exit-codes", "environment", "durations", "output"} <= set(TOPICS)


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
        assert f"{alias} for " in " ".join(text.split())


def test_the_environment_names_every_setting(terminal: Terminal) -> None:
    text = terminal("help", "environment").out
    for name in ("HOLDFAST_URL", "HOLDFAST_MAX_RETRIES", "HOLDFAST_SIGNING_KEY", "NO_COLOR"):
        assert f"\n{name} " in text


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
