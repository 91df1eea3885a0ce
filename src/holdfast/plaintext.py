"""Makes text safe to print: messages and the output of jobs are untrusted and may contain escape sequences."""

import re
from typing import Final

LONGEST: Final = 128
"""The maximum length of a job id."""
_BEGINNING: Final = 60
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """The text with control characters, escape sequences, direction overrides and surrogates replaced."""
    return _UNPRINTABLE.sub("\ufffd", str(text))


def abridged(text: str) -> str:
    """The text; if it is longer than any id, its beginning and its length."""
    return text if len(text) <= LONGEST else f"{text[:_BEGINNING]}... ({len(text):,} characters)"
