"""Text that is safe to print: stored data and what jobs say are not trusted, and a terminal obeys what it is sent."""

import re
from typing import Final

# No id of a job is longer.
LONGEST: Final = 128
_BEGINNING: Final = 60
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """Text without control characters, escape sequences, direction overrides and what is no character at all."""
    return _UNPRINTABLE.sub("\ufffd", str(text))


def abridged(text: str) -> str:
    """The text; of one that is longer than any id, the beginning and how long it is."""
    return text if len(text) <= LONGEST else f"{text[:_BEGINNING]}... ({len(text):,} characters)"
