"""The only module that writes: every line, document, prompt and error of `holdfast` goes through here.

Jobs and databases are untrusted, and a terminal obeys the bytes it receives. So no control character passes except
the colours of `paint`, and no value can start a line. A lint rule keeps `click.echo` and `print` out of every other
module.
"""

import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import click
import msgspec

from holdfast.cli.words import in_ascii, is_well_formed, shows_unicode
from holdfast.plaintext import one_line, plain, safe_json
from holdfast.units import counted

COLOUR_CODES: Final = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bright_black": 90}
# Precedes every colour until it is written. It is random, so no stored text can contain a colour of its own.
_MARK: Final = f"\x1b{os.urandom(8).hex()}"
RESET: Final = f"{_MARK}[0m"
_PAINTED: Final = f"{_MARK}(\\[[0-9]+m)"


def write(line: object = "") -> None:
    """Write one line to stdout. A line feed inside it is shown as a sign."""
    click.echo(safe_line(str(line)))


def write_lines(lines: Iterable[str]) -> None:
    """Write several lines to stdout in one piece."""
    if text := "\n".join(map(safe_line, lines)):
        click.echo(text)


def write_block(text: str, indent: str = "  ") -> None:
    """Write a text of several lines to stdout, each indented, so that none can be mistaken for one of our own."""
    write_lines(f"{indent}{line}" for line in text.splitlines())


def write_names(names: Iterable[str]) -> None:
    """Write ids or names to stdout, one per line, for other commands to read. Malformed ones are left out."""
    everything = list(names)
    well_formed = list(filter(is_well_formed, everything))
    write_lines(well_formed)
    if malformed := len(everything) - len(well_formed):
        note(f"left out {counted(malformed, 'malformed name')}; --json shows everything")


def write_output(text: str, *, is_trusted: bool = False) -> None:
    """Write job output to stdout as it is, immediately and without adding a line feed.

    Only the output of a command that the user has just typed is trusted, as a shell would trust it.
    """
    click.echo(text if is_trusted else plain(text), nl=False)
    sys.stdout.flush()


def write_csv(rows: Iterable[Sequence[str]]) -> None:
    """Write rows to stdout as CSV, one line each."""
    import csv

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([safe_line(cell) for cell in row] for row in rows)
    click.echo(text.getvalue(), nl=False, color=True)


def redraw(lines: Iterable[str], *, over: int) -> None:
    """Write these lines over the last `over` lines of the terminal."""
    click.echo(f"\x1b[{over}F\x1b[J" if over else "", nl=False, color=True)
    write_lines(lines)


def note(line: str) -> None:
    """Write a line for people to stderr: it is not part of the command's data. A closed stderr is not an error."""
    with suppress(OSError):
        click.echo(safe_line(line), err=True)


def note_location(location: str) -> None:
    """On a terminal, print which database this is: using the wrong one is a classic mistake."""
    if sys.stderr.isatty():
        note(f"in {location}")


def write_json(document: object, *, is_indented: bool = False) -> None:
    """Write one JSON document to stdout; on a terminal it is indented."""
    click.echo(_json(document, indent=2 if is_indented or sys.stdout.isatty() else None))


def write_jsonl(documents: Iterable[object]) -> None:
    """Write each document to stdout as one line of JSON, all in one piece."""
    if text := "\n".join(map(json_text, documents)):
        click.echo(text)


def json_text(value: object) -> str:
    """The value as one line of JSON that is safe to print."""
    return safe_json(msgspec.json.encode(value).decode())


def write_error(code: str, message: str, hint: str | None = None, *, as_json: bool = True) -> None:
    """Write an error to stderr: as a document, or as a message with a hint below it."""
    if as_json:
        from holdfast.cli.documents import ErrorDocument, ErrorText

        document = ErrorDocument(error=ErrorText(code=code, message=message, hint=hint))
        click.echo(_json(document), err=True)
        return
    _note_message(f"holdfast: {message}")
    if hint is not None:
        note(f"  {hint}")


def write_usage_error(problem: click.UsageError) -> None:
    """Write a usage error to stderr in the layout that Click uses."""
    if problem.ctx is not None:
        for line in problem.ctx.get_usage().splitlines():
            note(line)
        note(f"Try '{problem.ctx.command_path} {problem.ctx.help_option_names[0]}' for help.")
        note("")
    _note_message(f"Error: {problem.format_message()}")


def _note_message(message: str) -> None:
    """Write an error of one or more lines. All but the first are indented, so that none can pass for another error."""
    first, *rest = message.split("\n")
    note(first)
    for line in rest:
        note(line if line.startswith("  ") else f"  {line}")


def ask_yes_or_no(question: str) -> None:
    """Ask on the terminal, and abort the command unless the answer is yes."""
    click.confirm(safe_line(question), abort=True, err=True)


def ask_for_word(question: str) -> str:
    """Ask on the terminal, and return what was typed."""
    return str(click.prompt(safe_line(question), default="", show_default=False, err=True)).strip()


def draw_status(text: str, *, over: int, encoding: str) -> None:
    """Draw a status line in place of one that is `over` cells wide.

    It goes straight to the descriptor: while a job runs in this process, `sys.stderr` is the job's.
    """
    erasure = f"\r{' ' * over}\r" if over else ""
    with suppress(OSError):
        os.write(2, f"{erasure}{plain(text)}".replace("\n", " ").encode(encoding, "replace"))


def paint(text: str, colour: str | None) -> str:
    """The text, made safe, in a colour. `click.echo` removes the colour again where it is not wanted."""
    return f"{_MARK}[{COLOUR_CODES[colour]}m{plain(text)}{RESET}" if colour else plain(text)


def safe_line(line: str) -> str:
    """The line with the colours of `paint` and nothing else that a terminal obeys; a line feed is shown as a sign."""
    text = "".join(
        f"\x1b{part}" if number % 2 else one_line(part) for number, part in enumerate(re.split(_PAINTED, line))
    )
    return text if shows_unicode() else in_ascii(text)


def _json(document: object, indent: int | None = None) -> str:
    import json

    text = json.dumps(msgspec.to_builtins(document), ensure_ascii=False, indent=indent)
    return safe_json(text)
