"""What the command line prints: tables and sentences for people, JSON for programs, nothing a terminal would obey."""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click
import msgspec

from holdfast.plaintext import plain as plain
from holdfast.values import AttemptView, JobHistory, JobView

F = TypeVar("F", bound=Callable[..., Any])

_UTC: Final = "holdfast.utc"


def glyph(good: str, ascii_only: str) -> str:
    """A sign the terminal's encoding can show."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        good.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ascii_only
    return good


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
    ctx.meta[_UTC] = given


def print_error(code: str, message: str, *, as_json: bool = True) -> None:
    """An error on stderr: a sentence, or a document."""
    import json

    if as_json:
        click.echo(json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False), err=True)
    else:
        click.echo(f"holdfast: {plain(message)}", err=True)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their content."""
    for line in table_lines(headings, rows):
        click.echo(line)


def table_lines(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The heading and a line for each row."""
    lines = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(heading), *(len(line[at]) for line in lines), 0) for at, heading in enumerate(headings)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [list(headings), *lines]
    ]


def job_document(job: JobView) -> dict[str, Any]:
    """A job as JSON shows it: every member always there, payload and meta as values."""
    document: dict[str, Any] = {name: getattr(job, name) for name in job.__struct_fields__}
    document["payload"] = _value(job.payload)
    document["meta"] = _value(job.meta)
    document["progress"] = None if job.progress is None else msgspec.structs.asdict(job.progress)
    return document


def history_document(history: JobHistory) -> dict[str, Any]:
    """A job as JSON shows it, with its `history`: one document for each attempt, oldest first."""
    return {**job_document(history.job), "history": [_attempt_document(past) for past in history.attempts]}


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
        "result": None if record.result is None else msgspec.json.decode(record.result),
        "note": record.note,
    }


def _value(json_text: msgspec.Raw) -> Any:
    """The value of a stored JSON text, or the text itself: nobody has verified it yet, so it may be anything."""
    try:
        return msgspec.json.decode(json_text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return bytes(json_text).decode(errors="replace")


def instant(moment: datetime | None) -> str:
    """A moment in local time with its offset, or in UTC if that was asked for."""
    if moment is None:
        return "–"
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_UTC):
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


def age(moment: datetime) -> str:
    """How long ago that was."""
    return span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))
