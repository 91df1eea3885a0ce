"""Values in words: times, and the signs that a terminal may not be able to show."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from holdfast.units import format_duration
from holdfast.values import AttemptRecord, Outcome

F = TypeVar("F", bound=Callable[..., Any])

UTC_KEY: Final = "holdfast.utc"
# What an empty cell shows.
NOTHING: Final = "–"
# The signs we use, each with its spelling where only ASCII can be shown. Signs in tables take one cell in both.
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
    "█": "#",
    "░": ".",
    "±": "+-",
    "µ": "u",
}
_TO_ASCII: Final = str.maketrans(SIGNS)
_SET_BY_PYTHON: Final = ("C.UTF-8", "C.utf8", "UTF-8")


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
    """Whether the user has chosen a locale without characters beyond ASCII.

    Python itself writes UTF-8 there (PEP 538 and 540) and sets LC_CTYPE accordingly; that is not the user's choice.
    """
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8") == "1":
        return False
    kind = environment.get("LC_CTYPE", "")
    chosen = environment.get("LC_ALL") or ("" if kind in _SET_BY_PYTHON else kind) or environment.get("LANG")
    return chosen in ("C", "POSIX")


def utc_option(command: F) -> F:
    """`--utc`: show times in UTC."""
    return click.option(
        "--utc", is_flag=True, expose_value=False, callback=_note_utc, help="Show times in UTC, not in local time."
    )(command)


def _note_utc(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    ctx.meta[UTC_KEY] = given or ctx.meta.get(UTC_KEY, False)


def instant(moment: datetime | None) -> str:
    """A moment in local time with its offset, or in UTC with `--utc`."""
    if moment is None:
        return NOTHING
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(UTC_KEY):
        return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
    # At the ends of the calendar there may be no such local time.
    with suppress(OverflowError, ValueError):
        moment = moment.astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")


def age(moment: datetime) -> str:
    """The time since then."""
    return format_duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))


def attempt_summary(record: AttemptRecord) -> str:
    """How an attempt ended, when, and how long it took."""
    how = "timed out" if record.outcome is Outcome.TIMEOUT else record.outcome
    return f"{how} at {instant(record.ended_at)}, took {format_duration(record.duration_s)}"
