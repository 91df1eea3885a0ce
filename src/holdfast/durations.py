"""Time spans as people write them: `90s`, `15m`, `2h`, `3d`."""

import re
from typing import Final

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION_PATTERN: Final = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|)"
_span = re.compile(DURATION_PATTERN, re.ASCII)


def parse_duration(text: str) -> float:
    """The span in seconds; ValueError says how one is written."""
    match = _span.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("write a duration in seconds or like 90s, 15m, 2h, 3d")
    return float(match[1]) * _UNITS[match[2]]
