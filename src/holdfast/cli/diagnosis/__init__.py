"""The checks of `holdfast doctor`, one file for each part of an installation."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct


class Level(StrEnum):
    """Severity. An `error` stops or loses jobs, a `warning` may do so later, a `note` is for information."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check, and what to do about it."""

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
