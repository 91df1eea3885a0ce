"""What `holdfast doctor` looks at: each file examines one side of an installation; findings say what to do."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct


class Level(StrEnum):
    """How bad it is: `error` keeps jobs from being run or loses them, `warning` will, `note` is good to know."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at: what was found, and what to do about it."""

    check: str
    level: Level
    message: str
    advice: str = ""


Findings: TypeAlias = Iterator[Finding]


def fine(check: str, message: str) -> Finding:
    return Finding(check=check, level=Level.OK, message=message)


def note(check: str, message: str, advice: str = "") -> Finding:
    return Finding(check=check, level=Level.NOTE, message=message, advice=advice)


def warning(check: str, message: str, advice: str = "") -> Finding:
    return Finding(check=check, level=Level.WARNING, message=message, advice=advice)


def error(check: str, message: str, advice: str = "") -> Finding:
    return Finding(check=check, level=Level.ERROR, message=message, advice=advice)
