"""Text that is safe to print. Stored data and job output are untrusted, and a terminal obeys the bytes it receives."""

import re
from typing import Final

# No job id is longer.
LONGEST: Final = 128
_BEGINNING: Final = 60
# Characters that a terminal does not show as they are, as part of a regular expression: control characters except tab
# and line feed, and format characters that reorder text, hide in it or break its line. `re` compiles the patterns when
# they are first used: that takes longer than everything else that `--help` does with this module.
CONTROLS: Final = "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"
FORMATTING: Final = "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff\\U000e0000-\\U000e007f"
_UNPRINTABLE: Final = f"[{CONTROLS}{FORMATTING}\\ud800-\\udfff]"
# JSON itself escapes control characters below U+0020.
_UNSAFE_IN_JSON: Final = f"(?![\\x00-\\x1f])[{CONTROLS}{FORMATTING}\\ud800-\\udfff]"


def plain(text: object) -> str:
    """The text with each control or format character, and each lone surrogate, replaced by U+FFFD."""
    return re.sub(_UNPRINTABLE, "\ufffd", str(text))


def one_line(text: object) -> str:
    """The text as `plain` returns it, with a sign for each line feed."""
    return plain(text).replace("\n", "↵")


def safe_json(text: str) -> str:
    """The JSON text with the characters escaped that a terminal would obey. Its value stays the same."""
    return re.sub(_UNSAFE_IN_JSON, _escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def abridged(text: str) -> str:
    """The text; if it is longer than any id, its beginning and its length."""
    return text if len(text) <= LONGEST else f"{text[:_BEGINNING]}... ({len(text):,} characters)"
