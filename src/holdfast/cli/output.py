"""What the command line prints: tables and sentences for people, JSON for programs, nothing a terminal would obey."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click
import msgspec

from holdfast.cli.documents import ErrorDocument, ErrorText, HistoryDocument, JobDocument
from holdfast.plaintext import plain as plain
from holdfast.values import AttemptRecord, AttemptView, JobHistory, JobView, Outcome

F = TypeVar("F", bound=Callable[..., Any])

UTC_KEY: Final = "holdfast.utc"
_IN_ASCII: Final = {"…": "...", "–": "-", "±": "+-", "µ": "u"}
_SET_BY_PYTHON: Final = ("C.UTF-8", "C.utf8", "UTF-8")


def glyph(good: str, ascii_only: str) -> str:
    """A sign the terminal can show, as far as its encoding and the locale tell."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        good.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ascii_only
    return ascii_only if is_plain_locale(os.environ) else good


def is_plain_locale(environment: Mapping[str, str]) -> bool:
    """Whether somebody has asked for a locale without signs beyond ASCII.

    Python itself writes UTF-8 there (PEP 538 and 540), and sets LC_CTYPE to say so: that is not what was asked for.
    """
    if environment.get("PYTHONIOENCODING") or environment.get("PYTHONUTF8") == "1":
        return False
    kind = environment.get("LC_CTYPE", "")
    chosen = environment.get("LC_ALL") or ("" if kind in _SET_BY_PYTHON else kind) or environment.get("LANG")
    return chosen in ("C", "POSIX")


def spelled(text: str) -> str:
    """Words of ours in signs the terminal can show."""
    return "".join(sign if sign not in _IN_ASCII else glyph(sign, _IN_ASCII[sign]) for sign in text)


def nothing() -> str:
    """What a cell with nothing in it shows."""
    return glyph("–", "-")


def say(sentence: str) -> None:
    """Tell a person something that is not the command's data; that nobody hears it is no reason to fail."""
    with suppress(OSError):
        click.echo(plain(sentence), err=True)


def say_where(location: str) -> None:
    """Tell a person which jobs these are: looking into the wrong database is the classic mistake."""
    if sys.stderr.isatty():
        say(f"in {location}")


def print_json(document: object, *, is_for_files: bool = False) -> None:
    """One JSON document on stdout: on a terminal, or in a file that people keep, on several lines."""
    import json

    indent = 2 if is_for_files or sys.stdout.isatty() else None
    click.echo(json.dumps(msgspec.to_builtins(document), ensure_ascii=False, indent=indent))


def print_jsonl(documents: Iterable[object]) -> None:
    """A JSON document on each line of stdout."""
    import json

    for document in documents:
        click.echo(json.dumps(msgspec.to_builtins(document), ensure_ascii=False))


def utc_option(command: F) -> F:
    """`--utc`: moments are shown in UTC by this command."""
    return click.option(
        "--utc", is_flag=True, expose_value=False, callback=_note_utc, help="Show times in UTC, not in local time."
    )(command)


def _note_utc(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    ctx.meta[UTC_KEY] = given or ctx.meta.get(UTC_KEY, False)


def print_error(code: str, message: str, hint: str | None = None, *, as_json: bool = True) -> None:
    """An error on stderr: a document, or a sentence and, below it, what to do next."""
    import json

    if as_json:
        document = ErrorDocument(error=ErrorText(code=code, message=message, hint=hint))
        click.echo(json.dumps(msgspec.to_builtins(document), ensure_ascii=False), err=True)
        return
    click.echo(f"holdfast: {plain(message)}", err=True)
    if hint is not None:
        print_hint(hint)


def print_hint(hint: str) -> None:
    """What to do next, below an error."""
    click.echo(f"  {plain(hint)}", err=True)


def job_document(job: JobView) -> dict[str, Any]:
    """A job as JSON shows it: every member always there, payload and meta as values."""
    document: dict[str, Any] = {"schema": JobDocument.__struct_config__.tag}
    document |= {name: getattr(job, name) for name in job.__struct_fields__}
    document["payload"] = _value(job.payload)
    document["meta"] = _value(job.meta)
    document["progress"] = None if job.progress is None else msgspec.structs.asdict(job.progress)
    return document


def history_document(history: JobHistory) -> dict[str, Any]:
    """A job as JSON shows it, with its `history`: one document for each attempt, oldest first; and what it prints."""
    live = history.live_output
    return {
        **job_document(history.job),
        "schema": HistoryDocument.__struct_config__.tag,
        "history": [_attempt_document(past) for past in history.attempts],
        "live_output": None if live is None else msgspec.structs.asdict(live),
    }


def _attempt_document(attempt: AttemptView) -> dict[str, Any]:
    """An attempt as JSON shows it."""
    record = attempt.record
    return {
        "delivery": attempt.delivery,
        "outcome": record.outcome,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "duration_s": record.duration_s,
        "error": record.error,
        "output": record.output,
        "result": None if record.result is None else _value(record.result),
        "note": record.note,
    }


def _value(json_text: msgspec.Raw | bytes) -> Any:
    """The value of a stored JSON text, or the text itself: nobody has verified it yet, so it may be anything."""
    try:
        return msgspec.json.decode(json_text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return bytes(json_text).decode(errors="replace")


def instant(moment: datetime | None) -> str:
    """A moment in local time with its offset, or in UTC if that was asked for."""
    if moment is None:
        return nothing()
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(UTC_KEY):
        return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
    # At the ends of the calendar there may be no such local time.
    with suppress(OverflowError, ValueError):
        moment = moment.astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")


def span(seconds: float) -> str:
    """A span in the unit people would use."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} m"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def verdict(record: AttemptRecord) -> str:
    """How an attempt ended, when, and after what time."""
    how = "timed out" if record.outcome is Outcome.TIMEOUT else record.outcome
    return f"{how} at {instant(record.ended_at)}, took {span(record.duration_s)}"


def age(moment: datetime) -> str:
    """How long ago that was."""
    return span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))
