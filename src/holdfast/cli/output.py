"""The one way out of the command line: every line that `holdfast` prints is written here.

What jobs and databases contain is not trusted, and a terminal obeys what it is sent. So nothing here passes a control
character on, except the colours of `style.paint`, and no value can start a line of its own. A lint rule keeps
`click.echo` and `print` out of every other module.
"""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import click
import msgspec

from holdfast.cli.documents import ErrorDocument, ErrorText
from holdfast.cli.words import in_ascii, shows_unicode
from holdfast.plaintext import plain

# The sequences of `style.paint`: reset, bold, and the colours it knows.
_PAINT: Final = r"\x1b\[(?:0|1|31|32|33|36|90)m"
_painted: Final = re.compile(f"({_PAINT})")
# Valid in JSON, but a terminal would obey them, or show the text in another order.
_unsafe_in_json: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def write(line: object = "") -> None:
    """Write one line to stdout. A line feed inside it is shown, not obeyed."""
    click.echo(safe_line(str(line)))


def write_lines(lines: Iterable[str]) -> None:
    """Write several lines to stdout in one piece."""
    if text := "\n".join(map(safe_line, lines)):
        click.echo(text)


def write_block(text: str, indent: str = "  ") -> None:
    """Write a text of several lines to stdout, indented, so that none of them can be taken for one of ours."""
    write_lines(f"{indent}{line}" for line in text.splitlines())


def write_output(text: str, *, is_trusted: bool = False) -> None:
    """Pass on what a job has printed, at once and without a line feed of our own.

    Only the output of a command that the user has just typed is trusted, as a shell would trust it.
    """
    click.echo(text if is_trusted else plain(text), nl=False)
    sys.stdout.flush()


def redraw(lines: Iterable[str], *, over: int) -> None:
    """Write these lines over the last `over` lines of the terminal."""
    click.echo(f"\x1b[{over}F\x1b[J" if over else "", nl=False, color=True)
    write_lines(lines)


def note(line: str) -> None:
    """Write a line for people to stderr: it is not the command's data. A closed stderr is not an error."""
    with suppress(OSError):
        click.echo(safe_line(line), err=True)


def note_location(location: str) -> None:
    """Tell a person which database this is: using the wrong one is the classic mistake."""
    if sys.stderr.isatty():
        note(f"in {location}")


def write_json(document: object, *, is_indented: bool = False) -> None:
    """Write one JSON document to stdout; on a terminal it is indented."""
    click.echo(_json(document, indent=2 if is_indented or sys.stdout.isatty() else None))


def write_jsonl(documents: Iterable[object]) -> None:
    """Write each document to stdout, as JSON on one line, all in one piece."""
    if text := "\n".join(msgspec.json.encode(document).decode() for document in documents):
        click.echo(_escaped(text))


def write_error(code: str, message: str, hint: str | None = None, *, as_json: bool = True) -> None:
    """Write an error to stderr: a document, or a sentence and, below it, what to do next."""
    if as_json:
        document = ErrorDocument(error=ErrorText(code=code, message=message, hint=hint))
        click.echo(_json(document), err=True)
        return
    note(f"holdfast: {message}")
    if hint is not None:
        note(f"  {hint}")


def write_status(text: str, encoding: str) -> None:
    """Write part of a status line straight to the descriptor: while a job runs here, `sys.stderr` is the job's."""
    with suppress(OSError):
        os.write(2, text.encode(encoding, "replace"))


def safe_line(line: str) -> str:
    """The line with our colours and nothing else that a terminal obeys; a line feed inside it is shown."""
    text = "".join(
        part if number % 2 else plain(part).replace("\n", "↵") for number, part in enumerate(_painted.split(line))
    )
    return text if shows_unicode() else in_ascii(text)


def _json(document: object, indent: int | None = None) -> str:
    import json

    text = json.dumps(msgspec.to_builtins(document), ensure_ascii=False, indent=indent)
    return _escaped(text)


def _escaped(json_text: str) -> str:
    return _unsafe_in_json.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)
