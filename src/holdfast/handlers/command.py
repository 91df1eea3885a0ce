"""`CommandHandler`: runs a program as a job: without a shell, only if it is allowed, and leaving no process behind.

The payload is `{"argv": ["sleep", "2"]}`, with an optional `"cwd"`. The exit code decides whether the run succeeded.
The command can report its progress on the pipe whose number is in `HOLDFAST_PROGRESS_FD`.
"""

import codecs
import contextlib
import math
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from holdfast.errors import CommandForbidden, ConfigError, DefinitionError, HoldfastError
from holdfast.handlers.contract import Cancel, Handler, JobContext

COMMAND_KEY: Final = "command"
# Shorter than the second between two interrupts, so that the next one finds the command already killed.
_TERM_GRACE_S: Final = 0.7
_DRAIN_S: Final = 0.7
_CHECK_EVERY_S: Final = 0.1
_CHUNK: Final = 64 * 1024
_LONGEST_REPORT: Final = 2048
_KEYS: Final = b"HOLDFAST_SIGNING_KEY"
_URLS: Final = (b"HOLDFAST_URL", b"HOLDFAST_BACKEND_")
_password: Final = re.compile(rb"://[^/@]*:.*@|password=", re.IGNORECASE)
_Decoder: Final = codecs.getincrementaldecoder("utf-8")


class CommandFailed(HoldfastError):
    """The command failed. `exit_code` is its exit code, or the negative number of the signal that killed it; or, as in
    a shell, 127 if it was not found and 126 if it could not be run.
    """

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CommandPayload(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload of a command job."""

    argv: tuple[str, ...]
    cwd: str | None = None


def parse_command(command: str | Sequence[str]) -> list[str]:
    """The argv of a command, given as a list, or as text that is split as a shell would, without any expansion."""
    if isinstance(command, str):
        try:
            argv = shlex.split(command)
        except ValueError as problem:
            raise DefinitionError(
                f"the command {command!r} cannot be split into words: {str(problem).lower()}; fix the quoting, "
                "or pass a list of arguments"
            ) from None
    else:
        argv = list(command)
    _check_argv(argv)
    return argv


def check_command(argv: Sequence[str], allowed: Collection[str]) -> None:
    """Refuse a program that is not allowed. A path must be allowed as exactly that path."""
    _check_argv(argv)
    program = argv[0]
    if program in allowed:
        return
    setting = shlex.quote(",".join([*sorted(allowed), program]))
    raise CommandForbidden(
        f"command {program!r} is not allowed here; allow it with  holdfast config set allowed-commands {setting}  "
        f"or start the worker with  --allow {shlex.quote(program)}  "
        "(then restart running workers and retry the jobs that they refused)"
    )


def _check_argv(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise DefinitionError("the command is empty; pass a program and its arguments, such as  sleep 2")
    for word in argv:
        if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance] - JSON may hold anything
            raise DefinitionError(f"the command contains {word!r}, which is not text; pass every argument as a string")
        if "\0" in word:
            raise DefinitionError(f"the command contains a NUL character in {word!r}; no argument may contain one")


class CommandHandler(Handler):
    """Runs allowed programs; by default, none is allowed. A bare name is looked up on this worker's PATH.

    The command runs in its own session with an empty stdin; stdout and stderr are stored together, in order. When it
    exits, every process of its group is killed. When it is interrupted, it first gets SIGTERM.
    """

    payload_type = CommandPayload

    def __init__(self, allowed: Collection[str]) -> None:
        if isinstance(allowed, str):
            raise ConfigError(f"the allowed commands must be a list, like ['{allowed}']")
        self.allowed = frozenset(allowed)

    def check(self, payload: CommandPayload) -> None:
        check_command(payload.argv, self.allowed)

    def handle(self, context: JobContext) -> object:
        command: CommandPayload = context.payload
        check_command(command.argv, self.allowed)
        exit_code = _run(command, context)
        if exit_code < 0:
            raise CommandFailed(f"killed by {signal_name(-exit_code)}", exit_code=exit_code)
        if exit_code > 0:
            raise CommandFailed(f"exit code {exit_code}", exit_code=exit_code)
        return {"exit_code": 0}


class _Reports:
    """The pipe on which a command reports its progress, one line each time: `DONE [TOTAL [MESSAGE]]`.

    Invalid and overlong lines are ignored.
    """

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._line = b""

    def pass_on(self, context: JobContext) -> bool:
        """Report what was received. Returns False at the end of the pipe."""
        try:
            chunk = os.read(self.reading, _CHUNK)
        except BlockingIOError:
            return True
        *ended, rest = (self._line + chunk).split(b"\n")
        for line in ended:
            if len(line) <= _LONGEST_REPORT:
                _report(line, context)
        self._line = rest[: _LONGEST_REPORT + 1]  # enough to know that it is too long
        return bool(chunk)

    def close_writing(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        self.close_writing()
        os.close(self.reading)


def _report(line: bytes, context: JobContext) -> None:
    done, *rest = line.decode(errors="replace").split(None, 2) or [""]
    with contextlib.suppress(ValueError):
        context.progress(float(done), float(rest[0]) if rest else None, rest[1].strip() if len(rest) > 1 else "")


def _run(command: CommandPayload, context: JobContext) -> int:
    process: subprocess.Popen[bytes] | None = None
    reports: _Reports | None = None
    ending: int | None = None
    try:
        # An interrupt between the fork and the return of Popen would leave a process running.
        with context.uninterrupted():
            reports = _Reports()
            process = _start(command, context, reports)
            reports.close_writing()
            ending = _ending(process)
        exit_code = _follow(process, ending, reports, context)
        reports.pass_on(context)  # the last report, without waiting for other processes that have the pipe open
    except BaseException:
        if process is not None:
            _ask_to_stop(process)
        raise
    finally:
        with context.uninterrupted():
            if process is not None:
                _end_group(process)
            if reports is not None:
                reports.close()
            if ending is not None:
                os.close(ending)
    return exit_code


def _start(command: CommandPayload, context: JobContext, reports: _Reports) -> "subprocess.Popen[bytes]":
    if command.cwd is not None and not os.path.isdir(command.cwd):
        raise CommandFailed(f"the directory {command.cwd!r} does not exist on this worker", exit_code=126)
    try:
        return subprocess.Popen(  # noqa: S603 - no shell, and the operator has allowed the program
            command.argv,
            executable=_find(command.argv[0]),
            cwd=command.cwd,
            env=_environment(context, reports),
            pass_fds=[reports.writing],
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
    """The absolute path of the program: the job's own directory must not decide which program is run."""
    if os.sep in program:
        return os.path.abspath(program)
    path = os.environ.get("PATH", os.defpath)
    found = _located(program, path, int(time.monotonic()))
    return os.path.abspath(found if os.access(found, os.X_OK) else _look_up(program, path))


def _look_up(program: str, path: str) -> str:
    found = shutil.which(program, path=path)
    if found is None:
        raise CommandFailed(f"command {program!r} was not found on this worker's PATH ({path})", exit_code=127)
    return found


@lru_cache(maxsize=256)
def _located(program: str, path: str, second: int) -> str:
    """The path of the program, looked up once a second: a lookup is a tenth of the cost of a short command."""
    return _look_up(program, path)


def _environment(context: JobContext, reports: _Reports) -> dict[bytes, bytes]:
    """This worker's environment without its secrets, with variables that identify the job."""
    return _inherited() | {
        b"HOLDFAST_JOB_ID": context.id.encode(),
        b"HOLDFAST_ATTEMPT": b"%d" % context.attempt,
        b"HOLDFAST_QUEUE": context.queue.encode(),
        b"HOLDFAST_PROGRESS_FD": b"%d" % reports.writing,
    }


def _inherited() -> dict[bytes, bytes]:
    # The public mapping checks and converts each name and value on every access; its internal one has the bytes.
    known: Mapping[bytes, bytes] = getattr(os.environb, "_data", os.environb)
    return {name: value for name, value in known.items() if not _is_secret(name, value)}


def _is_secret(name: bytes, value: bytes) -> bool:
    return name.startswith(_KEYS) or (name.startswith(_URLS) and _password.search(value) is not None)


def _ending(process: "subprocess.Popen[bytes]") -> int | None:
    """A descriptor that becomes readable when the command exits; None where the system has none, or forbids it."""
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


def _follow(process: "subprocess.Popen[bytes]", ending: int | None, reports: _Reports, context: JobContext) -> int:
    """Pass on output and reports until the command exits. Returns its exit code.

    Other processes may still have the pipes open then: wait a moment for their output, and not for their reports.
    """
    assert process.stdout is not None  # noqa: S101 - for the type checkers: it was asked for
    pipe = process.stdout.fileno()
    decoder = _Decoder("replace")
    poller = select.poll()
    for descriptor in (pipe, reports.reading, ending):
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    is_open, has_ended, leave_at = True, False, math.inf
    while time.monotonic() < leave_at:
        for descriptor, _ in poller.poll(_CHECK_EVERY_S * 1000):
            if descriptor == pipe:
                chunk = os.read(pipe, _CHUNK)
                context.write(decoder.decode(chunk, final=not chunk))
                is_open = has_more = bool(chunk)
            elif descriptor == reports.reading:
                has_more = reports.pass_on(context)
            else:
                has_ended, has_more = True, False
            if not has_more:
                poller.unregister(descriptor)
        _stop_if_asked(context)
        if ending is None:
            has_ended = _has_ended(process, patience_s=0.0 if is_open else _CHECK_EVERY_S)
        if has_ended and not is_open:
            break
        if has_ended and leave_at == math.inf:
            leave_at = time.monotonic() + _DRAIN_S
    return process.wait()


def _has_ended(process: "subprocess.Popen[bytes]", *, patience_s: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    return process.returncode is not None


def _stop_if_asked(context: JobContext) -> None:
    # Off the main thread nothing is raised, so the flag has to be checked.
    if context.is_cancelled():
        raise Cancel("the command was stopped")


def _ask_to_stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_GRACE_S)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the rest of the group. Its number is not reused yet, because the kernel assigns numbers in turn."""
    _signal_group(process, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TERM_GRACE_S)  # bounded: a process stuck in the kernel does not react even to SIGKILL


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    # The command leads its session, so its pid is also its group's. macOS refuses to signal a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def signal_name(number: int) -> str:
    """The name of a signal, or its number if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
