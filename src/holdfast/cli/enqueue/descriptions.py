"""Reading job descriptions from an argument, a file or stdin, with hints for JSON that a shell has mangled."""

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
_EXAMPLE: Final = '\'{"job": "x"}\''
# JSON that was quoted twice.
_QUOTED_JSON: Final = ("'{", "'[", '"{', '"[')


class Description(NamedTuple):
    """A JSON object, and where it came from, for messages."""

    where: str
    fields: Mapping[str, Any]


def is_bulk(words: tuple[str, ...]) -> bool:
    """Whether the words are a list of jobs, even if it has only one."""
    return len(words) == 1 and (words[0] == STDIN or words[0].lstrip().startswith(("@", "[")))


def is_json(words: tuple[str, ...]) -> bool:
    """Whether the words are JSON, a file or stdin, rather than a command or arguments."""
    return is_bulk(words) or (bool(words) and words[0].lstrip().startswith((*_JSON_BEGINS, *_QUOTED_JSON)))


def read_json(words: tuple[str, ...], *, may_ask: bool) -> list[Description]:
    """The JSON objects that the words contain or refer to."""
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
        return _described(_value(words), "")
    except DefinitionError as problem:
        hint = _quoting_hint(words)
        raise type(problem)(f"{problem}; {hint}") if hint else problem from None


def _value(words: tuple[str, ...]) -> Any:
    """The JSON value in one argument. Several arguments are one that the shell has split, or too many."""
    first = words[0]
    if first.startswith(_QUOTED_JSON):
        raise DefinitionError("the job is not valid JSON: it starts with a quote")
    if len(words) > 1 and any('"' in word for word in words):
        raise click.UsageError(
            "pass a single JSON document; put several jobs into a JSON list, a file (@FILE) or stdin (-)"
        )
    if len(words) > 1:
        raise DefinitionError(f"the job is not valid JSON: it was split into {len(words)} arguments")
    return strict_json(first.encode(errors="surrogateescape"), what="the job")


def _quoting_hint(words: tuple[str, ...]) -> str | None:
    """How to quote the JSON, if its quotes are wrong or the shell has removed them."""
    text = " ".join(words)
    if text.startswith("'") or ("'" in text and '"' not in text):
        return f"put double quotes around names and text, and single quotes around the whole argument: {_EXAMPLE}"
    if '"' not in text and any(sign.isalpha() for sign in text):
        return f"the shell has removed the quotes; put single quotes around the whole argument: {_EXAMPLE}"
    return None


def _stdin(*, may_ask: bool) -> bytes:
    if sys.stdin.isatty():
        if not may_ask:
            raise click.UsageError("stdin is a terminal; pipe JSON lines into this command")
        note("type one JSON object per line, then press Ctrl-D")
    return sys.stdin.buffer.read()


def _split(text: bytes, what: str) -> list[Description]:
    """JSON lines, or one JSON array or object over several lines."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not lines:
        raise DefinitionError("nothing to enqueue: the input is empty; pass one JSON object per line, or an array")
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
                f"{where} starts with a byte order mark; save the file as UTF-8 without one"
            ) from None
        raise problem from None


def _described(value: object, where: str) -> list[Description]:
    if isinstance(value, dict):
        return [Description(where, cast("dict[str, Any]", value))]
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [
            one for place, item in enumerate(items, 1) for one in _described(item, f"{where} item {place}".lstrip())
        ]
    raise DefinitionError(f"{where}{': ' if where else ''}a job must be a JSON object, not {_json_type(value)}")


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    return "a boolean" if isinstance(value, bool) else "a string" if isinstance(value, str) else "a number"
