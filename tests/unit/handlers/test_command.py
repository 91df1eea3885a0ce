"""Programs as jobs: only allowed ones, without a shell, and without processes left behind."""

import fcntl
import os
import select
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import CommandForbidden, ConfigError, DefinitionError
from holdfast.handlers import (
    Cancel,
    CommandFailed,
    CommandHandler,
    CommandPayload,
    Host,
    JobContext,
    check_command,
    parse_command,
)
from holdfast.values import Progress


class Interrupted(BaseException):
    """What a timeout or a cancellation throws into a handler."""


class Run:
    """One run of a command without a runtime: what it wrote, and what happens while it runs."""

    def __init__(self, *, cwd: str | None = None) -> None:
        self.cwd = cwd
        self.written: list[str] = []
        self.stop = threading.Event()
        self.on_output: Callable[[str], None] = self.written.append
        self.reports: list[Progress] = []
        self.on_report: Callable[[Progress], None] = self.reports.append

    @property
    def text(self) -> str:
        return "".join(self.written)

    def __call__(self, *argv: str, allowed: Sequence[str] = ("sh",)) -> object:
        context = JobContext(
            id="job1",
            job="command",
            queue="slow",
            attempt=2,
            payload=CommandPayload(argv=argv, cwd=self.cwd),
            host=_Told(self),
        )
        return CommandHandler(allowed).handle(context)


class _Told(Host):
    """Records what the command reports."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def stop_asked(self) -> bool:
        return self._run.stop.is_set()

    def write(self, text: str) -> None:
        self._run.on_output(text)

    def report(self, progress: Progress) -> None:
        self._run.on_report(progress)


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
    monkeypatch.setenv("HOLDFAST_URL", "postgresql://shop:hush-hush@db/shop")
    monkeypatch.setenv("HOLDFAST_BACKEND_CACHE", "redis://db/0?password=hush-hush")
    monkeypatch.setenv("HOLDFAST_BACKEND_REPORTS", "sqlite:///reports.db")
    monkeypatch.setenv("HOLDFAST_URL_FILE", "/run/secrets/url")
    monkeypatch.setenv("TEAM", "blue")
    run("env", allowed=["env"])
    lines = run.text.splitlines()
    assert {"HOLDFAST_JOB_ID=job1", "HOLDFAST_ATTEMPT=2", "HOLDFAST_QUEUE=slow", "TEAM=blue"} <= set(lines)
    # A URL without a password is passed on to the command.
    assert {"HOLDFAST_BACKEND_REPORTS=sqlite:///reports.db", "HOLDFAST_URL_FILE=/run/secrets/url"} <= set(lines)
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


def test_a_program_that_was_found_before_is_looked_for_again_once_it_is_gone_or_the_path_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [tmp_path / name / "tool" for name in ("first", "second", "third")]
    for tool in tools:
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho {tool.parent.name}\n")
        tool.chmod(0o755)

    def answer(*path: Path) -> str:
        monkeypatch.setenv("PATH", os.pathsep.join(str(tool.parent) for tool in path))
        run = Run()
        run("tool", allowed=["tool"])
        return run.text

    first, second, third = tools
    assert answer(first, second) == "first\n"
    assert answer(third, first) == "third\n"
    first.unlink()
    assert answer(first, second) == "second\n"
    second.chmod(0o600)
    with pytest.raises(CommandFailed, match="command 'tool' was not found"):
        answer(first, second)
    second.chmod(0o700)
    assert answer(first, second) == "second\n"


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


@pytest.mark.parametrize(
    ("script", "ends_with", "said"),
    [
        ("echo one; exit 4", 4, "one\n"),
        ("exec >&- 2>&-; sleep 0.3; exit 5", 5, ""),
        ("sleep 60 & echo one; exit 6", 6, "one\n"),
        ("echo one; kill -9 $$", -9, "one\n"),
    ],
)
def test_it_ends_likewise_where_no_descriptor_tells_of_the_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, script: str, ends_with: int, said: str
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    started = time.monotonic()
    with pytest.raises(CommandFailed) as raised:
        run("sh", "-c", script)
    assert (raised.value.exit_code, run.text) == (ends_with, said)
    assert time.monotonic() - started < 10


def test_it_runs_also_where_such_a_descriptor_is_forbidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError(f"no descriptor for {pid}")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    assert run("sh", "-c", "echo fine") == {"exit_code": 0}
    assert run.text == "fine\n"


@pytest.mark.parametrize("script", ["echo begun; sleep 60", "echo begun; exec >&- 2>&-; sleep 60"])
def test_where_nothing_can_interrupt_it_the_flag_stops_it(run: Run, script: str) -> None:
    run.on_output = lambda text: run.stop.set()
    started = time.monotonic()
    with pytest.raises(Cancel):
        run("sh", "-c", script)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("is_told_of_the_end", [True, False])
def test_the_flag_also_stops_one_that_has_long_been_silent(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_told_of_the_end: bool
) -> None:
    if not is_told_of_the_end:
        monkeypatch.delattr(os, "pidfd_open")

    class AtTheSixthLook(threading.Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 5

    run.stop = AtTheSixthLook()
    started = time.monotonic()
    with pytest.raises(Cancel):
        run("sh", "-c", "exec >&- 2>&-; sleep 60")
    assert time.monotonic() - started < 10


def test_it_is_started_where_no_interrupt_can_lose_it(run: Run) -> None:
    """The context holds interrupts back, and one that arrives in the meantime still ends the command."""

    class Hold:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise Interrupted

    class Holding(Host):
        def held_back(self) -> AbstractContextManager[None]:
            return Hold()

    context = JobContext(
        id="job1", job="command", queue="q", attempt=1, payload=CommandPayload(argv=("sleep", "60")), host=Holding()
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
        "or start the worker with  --allow sleep  "
        "(then restart running workers and retry the jobs that they refused)"
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
        (["echo", 5], "contains 5, which is not text"),
    ],
)
def test_a_command_nobody_could_run_is_refused(written: str | list[str], complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        parse_command(written)


SAY = 'say() { printf "%s\\n" "$1" > /dev/fd/$HOLDFAST_PROGRESS_FD; }; '


def test_a_command_says_how_far_it_is(run: Run) -> None:
    run("sh", "-c", SAY + "say 1; say '2.5 10'; say '3 10 reading the  second file '; echo done")
    assert run.reports == [
        Progress(done=1),
        Progress(done=2.5, total=10),
        Progress(done=3, total=10, message="reading the  second file"),
    ]
    assert run.text == "done\n"


def test_a_report_is_passed_on_while_the_command_runs(run: Run, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    run.on_report = lambda progress: seen.touch()
    script = SAY + f"exec >&- 2>&-; say 1; for i in $(seq 300); do test -e {seen} && exit 0; sleep 0.1; done; exit 9"
    assert run("sh", "-c", script) == {"exit_code": 0}


@pytest.mark.parametrize("line", ["", "half", "-1", "nan", "1 inf", "1 of 10", "1 -2", "\\377", "0x10", "1,5"])
def test_a_report_that_cannot_be_read_is_ignored(run: Run, line: str) -> None:
    run("sh", "-c", SAY + 'printf "$1\\n" > /dev/fd/$HOLDFAST_PROGRESS_FD; say "7 8"', "sh", line)
    assert run.reports == [Progress(done=7, total=8)]


def test_a_line_too_long_to_be_a_report_is_dropped_whole(run: Run) -> None:
    script = """
import os
with open(int(os.environ["HOLDFAST_PROGRESS_FD"]), "w") as reports:
    print(1, 2, "x" * 3000, file=reports)
    print("3 4 " + "x" * 200_000 + "\\n5 6", file=reports)
    print("7 8 unfinished", end="", file=reports)
"""
    run(sys.executable, "-c", script, allowed=[sys.executable])
    assert run.reports == [Progress(done=5, total=6)]


def test_a_line_without_end_takes_no_memory(run: Run) -> None:
    tracemalloc.start()
    try:
        run("sh", "-c", "head -c 20000000 /dev/zero > /dev/fd/$HOLDFAST_PROGRESS_FD")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_what_a_command_said_last_is_heard(run: Run, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def outlive_the_command(text: str) -> None:
        run.written.append(text)
        if not text:  # the end of its output was read, but not its next report
            go_on.touch()
            wait_for_death(int(run.text))

    run.on_output = outlive_the_command
    run("sh", "-c", SAY + f"echo $$; exec >&- 2>&-; while ! test -e '{go_on}'; do sleep 0.01; done; say 9")
    assert run.reports == [Progress(done=9)]


def test_only_the_command_can_write_to_its_pipes(run: Run) -> None:
    def open_for_writing() -> set[int]:
        found = {int(name) for name in os.listdir("/dev/fd")}
        return {fd for fd in found if _access(fd) == os.O_WRONLY}

    before = open_for_writing()
    during: list[set[int]] = []
    run.on_output = lambda text: during.append(open_for_writing())
    run("sh", "-c", "echo hello")
    assert during[0] == before


def _access(fd: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:  # what listed them is closed by now
        return None


def test_a_background_process_that_keeps_the_progress_pipe_does_not_hold_up_the_job(run: Run) -> None:
    started = time.monotonic()
    run("sh", "-c", SAY + "say 1; (trap '' HUP; exec sleep 60 > /dev/null 2>&1) &")
    assert time.monotonic() - started < 10
    assert run.reports == [Progress(done=1)]


@pytest.mark.parametrize("argv", [("sh", "-c", SAY + "say 1; exit 3"), ("sh", "-c", "sleep 60 &"), ("nowhere",)])
def test_no_descriptor_is_left_open(run: Run, argv: tuple[str, ...]) -> None:
    before = os.listdir("/dev/fd")
    with suppress(CommandFailed):
        run(*argv, allowed=[argv[0]])
    assert os.listdir("/dev/fd") == before


def test_the_command_inherits_nothing_else(run: Run) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        run("sh", "-c", f"test ! -e /dev/fd/{writing}; echo $?")
    finally:
        os.close(reading)
        os.close(writing)
    assert run.text == "0\n"
