"""Errors of the command line: one sentence on stderr, and an exit code for scripts."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from holdfast.cli.output import note, write_error, write_usage_error
from holdfast.errors import (
    BackendUnavailable,
    CommandForbidden,
    ConfigError,
    DefinitionError,
    ForeignDatabase,
    HandlerForbidden,
    HoldfastError,
    IdConflict,
    NotSupported,
    SchemaTooNew,
    UnknownJob,
    UnknownParent,
)

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
TIME_IS_UP: Final = 6
JOB_FAILED: Final = 7
INTERRUPTED: Final = 130
UTF8: Final = "write it in UTF-8"


def report(problem: Exception, words: Sequence[str], *, as_json: bool) -> int:
    """Print the error of a command, which was given these words, and return its exit code."""
    import logging

    match problem:
        case click.Abort():
            # Click raises Abort both for Ctrl-C and for the end of its input.
            interrupted = isinstance(problem.__cause__, KeyboardInterrupt)
            note("interrupted" if interrupted else "aborted")
            return INTERRUPTED if interrupted else FAILED
        case click.exceptions.Exit():
            return problem.exit_code
        case click.exceptions.NoArgsIsHelpError():
            for line in problem.format_message().splitlines():
                note(line)
            return problem.exit_code
        case click.ClickException():
            if as_json or not isinstance(problem, click.UsageError):
                write_error(_name(problem), problem.format_message(), hint(problem), as_json=as_json)
            else:
                write_usage_error(problem)
            return problem.exit_code
        case BrokenPipeError():
            # The reader of our output has exited. Redirect the rest, or Python would report the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case UnicodeEncodeError():
            write_error(_name(problem), "an argument is not valid UTF-8", UTF8, as_json=as_json)
            return USAGE
        case HoldfastError():
            write_error(_name(problem), _message(problem, words), hint(problem), as_json=as_json)
            return exit_code(problem)
        case OSError():
            what = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem)
            write_error(_name(problem), what, hint(problem), as_json=as_json)
            return UNREACHABLE
        case _:
            logging.getLogger("holdfast.cli").debug("unexpected", exc_info=problem)
            raise problem


def hint(problem: Exception) -> str | None:
    """The next step, if the message itself does not name it."""
    match problem:
        case click.UsageError():
            # For people, Click prints the same above the error.
            return None if problem.ctx is None else f"see  {problem.ctx.command_path} --help"
        case UnknownJob() | UnknownParent():
            return "list the jobs:  holdfast list"
        case NotSupported():
            return "show the capabilities of this engine:  holdfast backend info"
        case BackendUnavailable() | OSError():
            return "diagnose it:  holdfast doctor"
        case _:
            return None


def exit_code(problem: HoldfastError) -> int:
    """The exit code of an error."""
    match problem:
        case CommandForbidden() | HandlerForbidden() | IdConflict() | ForeignDatabase() | SchemaTooNew():
            return REFUSED
        case ConfigError() | DefinitionError():
            return USAGE
        case UnknownJob() | UnknownParent():
            return NOT_FOUND
        case BackendUnavailable():
            return UNREACHABLE
        case _:
            return FAILED


def _message(problem: HoldfastError, words: Sequence[str]) -> str:
    if not isinstance(problem, DefinitionError):
        return str(problem)
    from holdfast.cli.job_options import as_typed  # imported here: only these errors need it

    return as_typed(str(problem), words)


def _name(problem: Exception) -> str:
    return type(problem).__name__
