"""Programs as jobs: only allowed ones, without a shell, and nothing of them is left behind."""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import CommandForbidden, ConfigError, DefinitionError
from holdfast.handlers import Cancel, Command, CommandFailed, CommandHandler, JobContext, check_command, parse_command


class Interrupted(BaseException):
    """What a timeout or a cancellation throws into a handler."""


class Run:
    """One run of a command, without a runtime: what it wrote, and what shall happen while it runs."""

    def __init__(self, *, cwd: str | None = None) -> None:
        self.cwd = cwd
        self.written: list[str] = []
        self.stop = threading.Event()
        self.on_output: Callable[[str], None] = self.written.append

    @property
    def text(self) -> str:
        return "".join(self.written)

    def __call__(self, *argv: str, allowed: Sequence[str] = ("sh",)) -> object:
        context = JobContext(
            id="job1",
            job="command",
            queue="slow",
            attempt=2,
            payload=Command(argv=argv, cwd=self.cwd),
            stop_asked=self.stop.is_set,
            output=lambda text: self.on_output(text),
        )
        return CommandHandler(allowed).handle(context)


@pytest.fixture
def run() -> Run:
    return Run()


def wait_for_death(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([process], [], [], 10)[0], f"process {pid} is still alive"
    finally:
        os.close(process)


def test_the_exit_code_decides(run: Run) -> None:
    assert run("sh", "-c", "exit 0") == {"exit_code": 0}
    with pytest.raises(CommandFailed, match=r"^exit code 3$") as raised:
        run("sh", "-c", "exit 3")
    assert raised.value.exit_code == 3
    with pytest.raises(CommandFailed, match=r"^killed by SIGKILL$") as raised:
        run("sh", "-c", "kill -9 $$")
    assert raised.value.exit_code == -9


def test_both_outputs_are_kept_together_as_they_come(run: Run) -> None:
    run("sh", "-c", "echo one; echo two >&2; printf 'caf\\303\\251 \\377'")
    assert run.text == "one\ntwo\ncafé \ufffd"


def test_output_is_passed_on_while_the_command_runs(run: Run, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    seen: list[str] = []

    def reply(text: str) -> None:
        seen.append(text)
        if text == "ready\n":
            answer.write_text("go\n")

    run.on_output = reply
    run("sh", "-c", 'echo ready; read line < "$0"; echo "$line"', str(answer))
    assert "".join(seen) == "ready\ngo\n"


def test_nothing_is_expanded_by_a_shell(run: Run) -> None:
    run("echo", "$HOME", "*", ";", "id", "`id`", "$(id)", allowed=["echo"])
    assert run.text == "$HOME * ; id `id` $(id)\n"


def test_stdin_is_empty_whatever_the_workers_is(run: Run) -> None:
    ours = os.dup(0)
    reader, writer = os.pipe()
    try:
        os.write(writer, b"for the worker only")
        os.close(writer)
        os.dup2(reader, 0)
        run("cat", allowed=["cat"])
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(reader)
    assert run.text == ""


def test_the_command_is_told_its_job_and_not_our_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY", "hush-hush")
    monkeypatch.setenv("HOLDFAST_SIGNING_KEY_FILE", "/hush-hush")
    monkeypatch.setenv("TEAM", "blue")
    run("env", allowed=["env"])
    lines = run.text.splitlines()
    assert {"HOLDFAST_JOB_ID=job1", "HOLDFAST_ATTEMPT=2", "HOLDFAST_QUEUE=slow", "TEAM=blue"} <= set(lines)
    assert "hush-hush" not in run.text


def test_it_runs_in_the_directory_asked_for(tmp_path: Path) -> None:
    run = Run(cwd=str(tmp_path))
    run("pwd", allowed=["pwd"])
    assert run.text == f"{tmp_path}\n"


def test_a_missing_directory_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"the directory '.*nowhere' does not exist on this worker"):
        Run(cwd=str(tmp_path / "nowhere"))("pwd", allowed=["pwd"])


def test_a_command_that_is_not_found_is_a_failed_run_that_names_the_path(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CommandFailed, match=r"command 'sh' was not found on this worker's PATH \(/nowhere\)") as raised:
        run("sh")
    assert raised.value.exit_code == 127


def test_a_file_that_cannot_be_run_is_a_failed_run(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("no shebang")
    with pytest.raises(CommandFailed, match="cannot be run: Permission denied"):
        run(str(script), allowed=[str(script)])
    script.chmod(0o755)
    with pytest.raises(CommandFailed, match="cannot be run: Exec format error"):
        run(str(script), allowed=[str(script)])
    with pytest.raises(CommandFailed, match="does not exist on this worker"):
        run(f"{script}2", allowed=[f"{script}2"])


def test_the_jobs_directory_does_not_choose_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place in (ours, theirs):
        place.mkdir()
        (place / "tool").write_text(f"#!/bin/sh\necho {place.name}\n")
        (place / "tool").chmod(0o755)
    monkeypatch.chdir(ours)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.environ['PATH']}")
    for program in ("./tool", "tool"):
        run = Run(cwd=str(theirs))
        run(program, allowed=[program])
        assert run.text == "ours\n"


def test_an_interrupt_ends_the_whole_group_and_goes_on(run: Run) -> None:
    pids: list[int] = []

    def interrupt(text: str) -> None:
        pids.extend(int(pid) for pid in text.split())
        raise Interrupted

    run.on_output = interrupt
    started = time.monotonic()
    with pytest.raises(Interrupted):
        run("sh", "-c", "sleep 30 & echo $$ $!; wait")
    assert time.monotonic() - started < 10
    assert len(pids) == 2
    for pid in pids:
        wait_for_death(pid)


def test_a_command_deaf_to_sigterm_is_killed(run: Run) -> None:
    pids: list[int] = []

    def interrupt(text: str) -> None:
        pids.append(int(text))
        raise Interrupted

    run.on_output = interrupt
    with pytest.raises(Interrupted):
        run("sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1; done")
    wait_for_death(pids[0])


def test_a_command_is_asked_before_it_is_killed(run: Run, tmp_path: Path) -> None:
    last_words = tmp_path / "last words"

    def interrupt(text: str) -> None:
        raise Interrupted

    run.on_output = interrupt
    script = "import signal,sys,time;signal.signal(15,lambda *_:(open(sys.argv[1],'w').write('bye'),sys.exit()));"
    with pytest.raises(Interrupted):
        run(
            sys.executable,
            "-c",
            script + "print(1,flush=True);time.sleep(30)",
            str(last_words),
            allowed=[sys.executable],
        )
    assert last_words.read_text() == "bye"


def test_a_background_process_that_keeps_the_pipe_open_does_not_hold_up_the_job(run: Run) -> None:
    started = time.monotonic()
    assert run("sh", "-c", "sleep 60 & echo $!") == {"exit_code": 0}
    assert time.monotonic() - started < 10
    wait_for_death(int(run.text))


def test_a_background_process_that_keeps_printing_does_not_hold_up_the_job(run: Run) -> None:
    run.on_output = lambda text: None
    started = time.monotonic()
    assert run("sh", "-c", "yes &") == {"exit_code": 0}
    assert time.monotonic() - started < 10


def test_a_background_process_that_let_go_of_the_pipe_is_killed_too(run: Run) -> None:
    run("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    wait_for_death(int(run.text))


def test_a_command_that_closes_its_output_is_waited_for(run: Run) -> None:
    with pytest.raises(CommandFailed, match="exit code 4"):
        run("sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4")


@pytest.mark.parametrize("script", ["echo begun; sleep 60", "echo begun; exec >&- 2>&-; sleep 60"])
def test_where_nothing_can_interrupt_it_the_flag_stops_it(run: Run, script: str) -> None:
    run.on_output = lambda text: run.stop.set()
    started = time.monotonic()
    with pytest.raises(Cancel):
        run("sh", "-c", script)
    assert time.monotonic() - started < 10


def test_it_is_started_where_no_interrupt_can_lose_it(run: Run) -> None:
    """The context is asked to hold interrupts back, and one that comes meanwhile still ends the command."""

    class Hold:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise Interrupted

    context = JobContext(
        id="job1", job="command", queue="q", attempt=1, payload=Command(argv=("sleep", "60")), hold=Hold
    )
    started = time.monotonic()
    with pytest.raises(Interrupted):
        CommandHandler(["sleep"]).handle(context)
    assert time.monotonic() - started < 10


def test_nothing_is_allowed_unless_somebody_allowed_it() -> None:
    with pytest.raises(CommandForbidden) as raised:
        check_command(["sleep", "2"], [])
    assert str(raised.value) == (
        "command 'sleep' is not allowed here; allow it with  holdfast config set allowed-commands sleep  "
        "or start the worker with  --allow sleep"
    )


def test_the_advice_keeps_what_is_already_allowed() -> None:
    with pytest.raises(CommandForbidden, match="allowed-commands echo,sleep  or start the worker with  --allow sleep"):
        check_command(["sleep"], ["echo"])


@pytest.mark.parametrize(
    "program", ["/bin/sleep", "./sleep", "../bin/sleep", "sleep ", "SLEEP", "sleep\n", "slеep", "$(sleep)", "-sleep"]
)
def test_a_program_is_allowed_only_exactly_as_listed(program: str, run: Run) -> None:
    with pytest.raises(CommandForbidden):
        check_command([program, "1"], ["sleep"])
    with pytest.raises(CommandForbidden):
        run(program, "1", allowed=["sleep"])


def test_the_handler_refuses_before_anything_runs() -> None:
    handler = CommandHandler(["echo"])
    handler.check(handler.decode(b'{"argv": ["echo", "hi"]}'))
    with pytest.raises(CommandForbidden):
        handler.check(handler.decode(b'{"argv": ["sh"]}'))
    for wrong in (b'{"argv": []}', b'{"argv": [""]}', b'{"argv": ["echo", "\\u0000"]}'):
        with pytest.raises(DefinitionError):
            handler.check(handler.decode(wrong))
    for wrong in (b'{"argv": "echo"}', b'{"argv": ["echo"], "env": {"A": "B"}}', b'{"argv": ["echo", 1]}'):
        with pytest.raises(msgspec.ValidationError):
            handler.decode(wrong)


def test_allowed_commands_written_as_text_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a list, like \['sleep'\]"):
        CommandHandler("sleep")


@pytest.mark.parametrize(
    ("written", "argv"),
    [
        ("sleep 2", ["sleep", "2"]),
        ("echo 'a b' \"c d\" e\\ f", ["echo", "a b", "c d", "e f"]),
        (["echo", "", "a b"], ["echo", "", "a b"]),
    ],
)
def test_a_command_is_written_as_text_or_as_a_list(written: str | list[str], argv: list[str]) -> None:
    assert parse_command(written) == argv


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "the command is empty"),
        ("   ", "the command is empty"),
        ([], "the command is empty"),
        (["", "x"], "the command is empty"),
        ("echo 'a", "cannot be split into words: no closing quotation"),
        ("echo a\0b", "NUL character"),
        (["echo", 5], "holds 5, which is not text"),
    ],
)
def test_a_command_nobody_could_run_is_refused(written: str | list[str], complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        parse_command(written)
