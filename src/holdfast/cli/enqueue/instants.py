"""Future times as people type them: `14:30`, `tomorrow 9:00`, `2026-11-20 08:00`, `+2h`."""

import re
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import click

from holdfast.cli.options import is_duration
from holdfast.cli.words import instant
from holdfast.units import format_duration

HOW: Final = "write 14:30, tomorrow 9:00, 2026-11-20, 2026-11-20 14:30, 2026-11-20T14:30:00+01:00, or +2h from now"
_SHORT_HOUR: Final = r"(?<![\d:+-])(\d:\d\d)"
_WORDS: Final = r"(today|tomorrow|yesterday|\d{4}-\d\d-\d\d)[ T]+(\d.*)"
_OFFSET: Final = r"(?:in\s+|\+\s*)(.+)"


class When(click.ParamType[datetime]):
    """A time; without an offset, in the local zone."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(str(value), now=datetime.now(UTC))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


class SpanOrWhen(click.ParamType[float | datetime]):
    """A duration from now, or a time."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | datetime:
        if isinstance(value, float | datetime):
            return value
        from holdfast.config import as_seconds

        try:
            return as_seconds(str(value))
        except ValueError:
            pass
        try:
            return parse_instant(str(value), now=datetime.now(UTC))
        except ValueError as problem:
            self.fail(f"{problem}; or a duration like 90s, 15m, 2h, 3d", param, ctx)


def parse_instant(text: str, *, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The time that a text means; without an offset, in `zone` or the local zone. A ValueError explains the format."""
    from holdfast.config import as_seconds
    from holdfast.search.parsing import moment
    from holdfast.search.terms import moment_of

    typed = text.strip()
    if is_duration(typed):
        raise ValueError(f"{text!r} is a duration, not a time; write +{typed}, or --delay {typed}")
    if (ahead := re.fullmatch(_OFFSET, typed, re.IGNORECASE)) and is_duration(ahead[1]):
        typed = f"+{as_seconds(ahead[1]):.6f}s"
    typed = re.sub(_SHORT_HOUR, r"0\1", typed)
    try:
        if parts := re.fullmatch(_WORDS, typed, re.IGNORECASE):
            day, _ = moment(parts[1].lower(), now=now, zone=zone)
            typed = f"{moment_of(day).astimezone(zone).date().isoformat()}T{parts[2]}"
        first, _ = moment(typed.lower() if typed.isalpha() else typed, now=now, zone=zone)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; {HOW}") from None
    return moment_of(first)


def ahead(moment: datetime, now: datetime) -> str:
    """A time, and how far away it is."""
    seconds = (moment - now).total_seconds()
    return (
        f"{instant(moment)}, in {format_duration(seconds)}"
        if seconds > 0
        else f"{instant(moment)}, {format_duration(-seconds)} ago"
    )
