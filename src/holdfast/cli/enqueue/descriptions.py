"""Where descriptions of jobs come from: an argument, a file, lines on stdin; and what was meant by the unreadable."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import click

from holdfast.cli.output import note
from holdfast.codec import strict_json
from holdfast.errors import ConfigError, DefinitionError, PayloadRejected

STDIN: Final = "-"
MAX_INPUT_BYTES: Final = 4 * 1024**3
_JSON_BEGINS: Final = ("{", "[")
# A shell that does not know single quotes hands them on.
_QUOTED_JSON: Final = ("'{", "'[", '"{', '"[')
_OTHER_WAYS: Final = "or let no shell read it:  holdfast enqueue --file job.json,  holdfast enqueue --command 'sleep 2'"


class Description(NamedTuple):
    """A JSON object, and where it stands, for messages."""

    where: str
    fields: Mapping[str, Any]


def is_bulk(words: tuple[str, ...]) -> bool:
    """Whether the words stand for a list of jobs, however many there are in it."""
    return len(words) == 1 and (words[0] == STDIN or words[0].lstrip().startswith(("@", "[")))


def is_json(words: tuple[str, ...]) -> bool:
    """Whether the words are JSON or say where it is, and are neither a command nor arguments."""
    return is_bulk(words) or (bool(words) and words[0].lstrip().startswith((*_JSON_BEGINS, *_QUOTED_JSON)))


def read_json(words: tuple[str, ...], *, may_ask: bool) -> list[Description]:
    """The objects that the words stand for."""
    first = words[0]
    if first == STDIN:
        return _split(_stdin(may_ask=may_ask), "line")
    if first.startswith("@"):
        path = Path(first[1:])
        try:
            return _split(path.read_bytes(), f"{path}:")
        except OSError as problem:
            raise ConfigError(f"cannot read {path}: {problem.strerror}") from problem
    try:
        return _described(_value(words), "the job")
    except DefinitionError as problem:
        hint = _quoting_hint(words)
        raise type(problem)(f"{problem}; {hint}") if hint else problem from None


def _value(words: tuple[str, ...]) -> Any:
    """The JSON of one argument; several are one that a shell has broken, or too many."""
    first = words[0]
    if first.startswith(_QUOTED_JSON):
        raise DefinitionError("the job is not valid JSON: it begins with a quote")
    if len(words) > 1 and any('"' in word for word in words):
        raise click.UsageError("one JSON text at a time: several jobs go into a list, a file (@FILE), or stdin (-)")
    if len(words) > 1:
        raise DefinitionError(f"the job is not valid JSON: it came as {len(words)} words")
    return strict_json(first.encode(errors="surrogateescape"), what="the job")


def _quoting_hint(words: tuple[str, ...]) -> str | None:
    """What to do about quotes that a shell has taken away, or has not."""
    text = " ".join(words)
    if text.startswith("'"):
        return rf'this shell knows no single quotes: write  "{{\"job\": \"x\"}}",  {_OTHER_WAYS}'
    if len(words) == 1 and "'" in text and '"' not in text:
        return 'JSON has double quotes around names and texts, and the shell single ones around all: \'{"job": "x"}\''
    if '"' not in text and any(sign.isalpha() for sign in text):
        return (
            'the shell has taken its quotes away: put all of it in single quotes, \'{"job": "x"}\', in older '
            rf"PowerShell with '{{\"job\": \"x\"}}',  {_OTHER_WAYS}"
        )
    return None


def _stdin(*, may_ask: bool) -> bytes:
    if sys.stdin.isatty():
        if not may_ask:
            raise click.UsageError("there is nothing on stdin but the keyboard: pipe JSON lines into this command")
        note("type one JSON object on each line, and Ctrl-D at the end")
    return sys.stdin.buffer.read()


def _split(text: bytes, what: str) -> list[Description]:
    """JSON lines, or one JSON array or object over several lines."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise DefinitionError(
            "there is nothing to enqueue: the input is empty; it is one JSON object on each line, or an array"
        )
    one_document = text.lstrip().startswith(b"[") or (len(lines) > 1 and not lines[0][1].rstrip().endswith(b"}"))
    if one_document:
        return _described(strict_json(text, what="the input", limit=MAX_INPUT_BYTES), what)
    return [one for number, line in lines for one in _described(_line(line, f"{what} {number}"), f"{what} {number}")]


def _line(line: bytes, where: str) -> Any:
    try:
        return strict_json(line, what=where)
    except PayloadRejected as problem:
        if line.startswith(b"\xef\xbb\xbf"):
            raise PayloadRejected(
                f"{where} begins with a byte order mark: save the file as UTF-8 without one"
            ) from None
        raise problem from None


def _described(value: object, where: str) -> list[Description]:
    if isinstance(value, dict):
        return [Description(where, cast("dict[str, Any]", value))]
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [one for place, item in enumerate(items, 1) for one in _described(item, f"{where} item {place}")]
    raise DefinitionError(f"{where}: a job is a JSON object, not {type(value).__name__}")
