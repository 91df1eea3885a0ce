"""`CommandHandler`: a program as a job. No shell, only programs the operator allowed, and nothing it started is left.

The payload is `{"argv": ["sleep", "2"]}`, with `"cwd"` if it matters. The exit code decides.
"""

import codecs
import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from holdfast.errors import CommandForbidden, ConfigError, DefinitionError, HoldfastError
from holdfast.handlers.contract import Cancel, Handler, JobContext

COMMAND_KEY: Final = "command"
# Shorter than the second between two interrupts, so that the next one finds the command already killed.
_TERM_GRACE_S: Final = 0.7
_DRAIN_S: Final = 0.7
_LOOK_UP_S: Final = 0.1
_CHUNK: Final = 64 * 1024
_SECRETS: Final = "HOLDFAST_SIGNING_KEY"


class CommandFailed(HoldfastError):
    """The command did not succeed. `exit_code` is its own, minus the number of the signal that killed it, or what a
    shell says of one that could not be started: 127 not found, 126 not runnable.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Command(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload of a command job."""

    argv: tuple[str, ...]
    cwd: str | None = None


def parse_command(command: str | Sequence[str]) -> list[str]:
    """The argv of a command as people write it: a list, or text split as a shell would, with nothing expanded."""
    if isinstance(command, str):
        try:
            argv = shlex.split(command)
        except ValueError as problem:
            raise DefinitionError(
                f"the command {command!r} cannot be split into words: {str(problem).lower()}; mend the quoting, "
                "or pass a list of arguments"
            ) from None
    else:
        argv = list(command)
    _check_argv(argv)
    return argv


def check_command(argv: Sequence[str], allowed: Collection[str]) -> None:
    """Refuse a program that nobody has allowed; a path is allowed only as that very path."""
    _check_argv(argv)
    program = argv[0]
    if program in allowed:
        return
    setting = shlex.quote(",".join([*sorted(allowed), program]))
    raise CommandForbidden(
        f"command {program!r} is not allowed here; allow it with  holdfast config set allowed-commands {setting}  "
        f"or start the worker with  --allow {shlex.quote(program)}"
    )


def _check_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise DefinitionError("the command is empty: name a program and its arguments, such as  sleep 2")
    for word in argv:
        if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance] - JSON may hold anything
            raise DefinitionError(f"the command holds {word!r}, which is not text: write every argument as a string")
        if "\0" in word:
            raise DefinitionError(f"the command holds a NUL character in {word!r}, which no program can be given")


class CommandHandler(Handler):
    """Runs allowed programs, denying by default. A bare name is looked up on this worker's PATH.

    The command runs in its own session with an empty stdin; stdout and stderr are kept together, as they come. When
    it ends, or is interrupted, every process of its group is killed: first asked, if it was still running.
    """

    payload_type = Command

    def __init__(self, allowed: Collection[str]) -> None:
        if isinstance(allowed, str):
            raise ConfigError(f"the allowed commands must be a list, like ['{allowed}']")
        self.allowed = frozenset(allowed)

    def check(self, payload: Command) -> None:
        check_command(payload.argv, self.allowed)

    def handle(self, context: JobContext) -> object:
        command: Command = context.payload
        check_command(command.argv, self.allowed)
        exit_code = _run(command, context)
        if exit_code < 0:
            raise CommandFailed(f"killed by {_signal_name(-exit_code)}", exit_code=exit_code)
        if exit_code > 0:
            raise CommandFailed(f"exit code {exit_code}", exit_code=exit_code)
        return {"exit_code": 0}


def _run(command: Command, context: JobContext) -> int:
    process: subprocess.Popen[bytes] | None = None
    try:
        # An interrupt between the fork and the return of Popen would leave a process nobody knows.
        with context.uninterrupted():
            process = _start(command, context)
        _follow(process, context)
        return _wait(process, context)
    except BaseException:
        if process is not None:
            _ask_to_stop(process)
        raise
    finally:
        if process is not None:
            with context.uninterrupted():
                _end_group(process)


def _start(command: Command, context: JobContext) -> "subprocess.Popen[bytes]":
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise CommandFailed(f"the directory {command.cwd!r} does not exist on this worker", exit_code=126)
    try:
        return subprocess.Popen(  # noqa: S603 - no shell, and the operator has allowed the program
            command.argv,
            executable=_find(command.argv[0]),
            cwd=command.cwd,
            env=_environment(context),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CommandFailed(f"command {command.argv[0]!r} does not exist on this worker", exit_code=127) from None
    except OSError as problem:
        why = problem.strerror or problem
        raise CommandFailed(f"command {command.argv[0]!r} cannot be run: {why}", exit_code=126) from None


def _find(program: str) -> str:
    """The file to run, made absolute here: the job chooses its directory, and must not choose the program with it."""
    if os.sep in program:
        return os.path.abspath(program)
    found = shutil.which(program)
    if found is None:
        path = os.environ.get("PATH", os.defpath)
        raise CommandFailed(f"command {program!r} was not found on this worker's PATH ({path})", exit_code=127)
    return os.path.abspath(found)


def _environment(context: JobContext) -> dict[str, str]:
    """This worker's environment without its secrets, and which job it is."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SECRETS)}
    return inherited | {
        "HOLDFAST_JOB_ID": context.id,
        "HOLDFAST_ATTEMPT": str(context.attempt),
        "HOLDFAST_QUEUE": context.queue,
    }


def _follow(process: "subprocess.Popen[bytes]", context: JobContext) -> None:
    """Pass the output on as it comes, until there is no more, or the command is gone and others keep the pipe."""
    assert process.stdout is not None  # noqa: S101 - for the type checkers: it was asked for
    pipe = process.stdout.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    leave_at: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while leave_at is None or time.monotonic() < leave_at:
            if selector.select(_LOOK_UP_S):
                chunk = os.read(pipe, _CHUNK)
                context.write(decoder.decode(chunk, final=not chunk))
                if not chunk:
                    return
            _stop_if_asked(context)
            if leave_at is None and process.poll() is not None:
                leave_at = time.monotonic() + _DRAIN_S


def _wait(process: "subprocess.Popen[bytes]", context: JobContext) -> int:
    """The exit code, also of a command that closed its output long before it ended."""
    while True:
        try:
            return process.wait(_LOOK_UP_S)
        except subprocess.TimeoutExpired:
            _stop_if_asked(context)


def _stop_if_asked(context: JobContext) -> None:
    # Off the main thread nothing interrupts us: there the flag is all there is.
    if context.is_cancelled():
        raise Cancel("the command was stopped")


def _ask_to_stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_GRACE_S)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the group. Its number cannot have been given away yet: numbers are used in turn."""
    _signal_group(process, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERM_GRACE_S)  # bounded: a process stuck in the kernel does not even hear SIGKILL


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    # The command leads its session, so its own number is the group's. macOS refuses to signal a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
