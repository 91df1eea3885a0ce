"""Text that is safe to print: stored data and what jobs say are not trusted, and a terminal obeys what it is sent."""

import logging
import re
from typing import Final

_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """Text without control characters, escape sequences, direction overrides and what is no character at all."""
    return _UNPRINTABLE.sub("\ufffd", str(text))


class PlainFormatter(logging.Formatter):
    """Log lines quote what jobs say: nothing in them may move the cursor or look like another line's beginning."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n    ")
