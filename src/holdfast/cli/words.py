"""Values in words: times, command lines to copy, and the signs that a terminal may not be able to show."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from holdfast.units import format_duration
from holdfast.values import AttemptRecord, JobState, JobView, Outcome

F = TypeVar("F", bound=Callable[..., Any])

UTC_KEY: Final = "holdfast.utc"
# The name of the option `after` in JSON.
DEPENDS_ON: Final = "depends_on"
# Shown in an empty cell.
NOTHING: Final = "–"
# Our signs, each with its replacement where only ASCII can be shown. Signs in tables take one cell in both forms.
SIGNS: Final = {
    "✓": "*",
    "✗": "x",
    "→": ">",
    "⚠": "!",
    "•": "-",
    "·": "-",
    "…": "~",
    NOTHING: "-",
    "↵": " ",
    "└": "`",
    "├": "|",
    "│": "|",
    "─": "-",
    "█": "#",
    "░": ".",
    "±": "+-",
    "µ": "u",
}
_TO_ASCII: Final = str.maketrans(SIGNS)
_SET_BY_PYTHON: Final = ("C.UTF-8", "C.utf8", "UTF-8")
_WELL_FORMED: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:@/+=-]{0,199}"


def is_well_formed(name: str) -> bool:
    """Whether this can be the id or name of a job, queue, handler or worker. A shell does not need quotes for it."""
    return re.fullmatch(_WELL_FORMED, name) is not None


def command(*words: object) -> str:
    """A command line to copy, quoted for the shell where necessary."""
    import shlex

    return shlex.join(map(str, words))


def shows_unicode() -> bool:
    """Whether stdout can show our signs, judging by its encoding and the locale."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "".join(SIGNS).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return not is_ascii_locale(os.environ)


def in_ascii(text: str) -> str:
    """The text with our signs spelled in ASCII."""
    return text.translate(_TO_ASCII)


def is_ascii_locale(environment: Mapping[str, str]) -> bool:
    """Whether the user has chosen an ASCII locale.

    In such a locale Python writes UTF-8 (PEP 538 and 540) and sets LC_CTYPE to match; that is not the user's choice.
    """
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8") == "1":
        return False
    kind = environment.get("LC_CTYPE", "")
    chosen = environment.get("LC_ALL") or ("" if kind in _SET_BY_PYTHON else kind) or environment.get("LANG")
    return chosen in ("C", "POSIX")


def utc_option(command: F) -> F:
    """Add `--utc` to a command."""
    return click.option(
        "--utc", is_flag=True, expose_value=False, callback=_note_utc, help="Show times in UTC instead of local time."
    )(command)


def _note_utc(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    ctx.meta[UTC_KEY] = given or ctx.meta.get(UTC_KEY, False)


def instant(moment: datetime | None) -> str:
    """The time in the local zone with its offset, or in UTC with `--utc`."""
    if moment is None:
        return NOTHING
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(UTC_KEY):
        return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
    # Near the limits of the calendar the local time may not exist.
    with suppress(OverflowError, ValueError):
        moment = moment.astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")


def age(moment: datetime) -> str:
    """The duration since then."""
    return format_duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def attempt_summary(record: AttemptRecord) -> str:
    """The outcome of an attempt, its end and its duration."""
    how = "timed out" if record.outcome is Outcome.TIMEOUT else record.outcome
    return f"{how} at {instant(record.ended_at)}, took {format_duration(record.duration_s)}"


def runs(job: JobView) -> int:
    """The number of runs a job has started in this life: the failed ones, and the one that succeeded or is running."""
    return job.attempts + (job.state in (JobState.COMPLETED, JobState.PROCESSING))


def possible_runs(job: JobView) -> str:
    """The number of runs after which a job is dead; `?` if unknown."""
    return "?" if job.max_retries is None else str(job.max_retries + 1)


def beginning(text: str | None) -> str:
    """The beginning of a long text, and all of a short one."""
    return f"{text[:77]}…" if text and len(text) > 78 else text or ""
