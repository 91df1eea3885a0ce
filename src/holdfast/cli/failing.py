"""How the command line fails: every error in one sentence on stderr, and an exit code that scripts can tell apart."""

import os
import sys
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


def report(problem: Exception, *, as_json: bool) -> int:
    """Say what went wrong and return the exit code for it."""
    import logging

    match problem:
        case click.Abort():
            # Click makes one of Ctrl-C and of the end of its input alike.
            interrupted = isinstance(problem.__cause__, KeyboardInterrupt)
            note("interrupted" if interrupted else "aborted")
            return INTERRUPTED if interrupted else FAILED
        case click.exceptions.Exit():
            return problem.exit_code
        case click.ClickException():
            if as_json or not isinstance(problem, click.UsageError):
                write_error(_name(problem), problem.format_message(), hint(problem), as_json=as_json)
            else:
                write_usage_error(problem)
            return problem.exit_code
        case BrokenPipeError():
            # Whoever read our output has left; so that Python does not complain at exit, give it somewhere to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case UnicodeEncodeError():
            write_error(_name(problem), "an argument holds bytes that are no text in UTF-8", UTF8, as_json=as_json)
            return USAGE
        case HoldfastError():
            write_error(_name(problem), str(problem), hint(problem), as_json=as_json)
            return exit_code(problem)
        case OSError():
            what = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem)
            write_error(_name(problem), what, hint(problem), as_json=as_json)
            return UNREACHABLE
        case _:
            logging.getLogger("holdfast.cli").debug("unexpected", exc_info=problem)
            raise problem


def hint(problem: Exception) -> str | None:
    """What to do next, where the message itself does not say it."""
    match problem:
        case click.UsageError():
            # To people, Click says the same above the error.
            return None if problem.ctx is None else f"see  {problem.ctx.command_path} --help"
        case UnknownJob():
            return "see which there are:  holdfast list"
        case NotSupported():
            return "see what this engine can do:  holdfast backend info"
        case BackendUnavailable() | OSError():
            return "look for what is wrong:  holdfast doctor"
        case _:
            return None


def exit_code(problem: HoldfastError) -> int:
    """The exit code of an error."""
    match problem:
        case CommandForbidden() | HandlerForbidden() | IdConflict() | ForeignDatabase() | SchemaTooNew():
            return REFUSED
        case ConfigError() | DefinitionError():
            return USAGE
        case UnknownJob():
            return NOT_FOUND
        case BackendUnavailable():
            return UNREACHABLE
        case _:
            return FAILED


def _name(problem: Exception) -> str:
    return type(problem).__name__
