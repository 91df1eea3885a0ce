"""Durations, sizes and counts as people write and read them: `90s`, `15 m`, `1 day`, `1.5 MiB`, `3 jobs`."""

import re
from typing import Final

UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
DURATION_PATTERN: Final = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w|(?:second|minute|hour|day|week)s?|)"


def parse_duration(text: str) -> float:
    """The duration in seconds; the ValueError explains the format."""
    match = re.fullmatch(DURATION_PATTERN, text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError("must be a number of seconds, or a value such as 90s, 15m, 2h or 3d")
    unit = match[2] if match[2] in UNITS else match[2][0]
    return float(match[1]) * UNITS[unit]


def format_duration(seconds: float) -> str:
    """The duration in the unit that reads best, rounded."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs" if seconds else "0 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} m"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def format_size(size: int) -> str:
    """The size in bytes, KiB, MiB or GiB, rounded."""
    for unit, bytes_each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.3g} {unit}"
    return f"{size} bytes"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 job`, `2,000 jobs`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
