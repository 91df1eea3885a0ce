"""Instants as people type them where something lies ahead: `14:30`, `tomorrow 9:00`, `2026-11-20 08:00`, `+2h`."""

import re
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

import click

from holdfast.cli.options import is_duration
from holdfast.cli.words import instant
from holdfast.units import format_duration

HOW: Final = "write 14:30, tomorrow 9:00, 2026-11-20, 2026-11-20 14:30, 2026-11-20T14:30:00+01:00, or +2h from now"
_short_hour: Final = re.compile(r"(?<![\d:+-])(\d:\d\d)")
_words: Final = re.compile(r"(today|tomorrow|yesterday|\d{4}-\d\d-\d\d)[ T]+(\d.*)", re.IGNORECASE)
_offset: Final = re.compile(r"(?:in\s+|\+\s*)(.+)", re.IGNORECASE)


class When(click.ParamType[datetime]):
    """An instant; without an offset, in local time."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(str(value), now=datetime.now(UTC))
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


class SpanOrWhen(click.ParamType[float | datetime]):
    """A span from now, or an instant."""

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
            self.fail(f"{problem}; or a span like 90s, 15m, 2h, 3d", param, ctx)


def parse_instant(text: str, *, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The instant a text means; without an offset, in `zone`, else in local time. ValueError says how to write one."""
    from holdfast.config import as_seconds
    from holdfast.search.parsing import moment
    from holdfast.search.terms import moment_of

    said = text.strip()
    if is_duration(said):
        raise ValueError(f"{text!r} could lie ahead or behind: write +{said}, or --delay {said}")
    if (ahead := _offset.fullmatch(said)) and is_duration(ahead[1]):
        said = f"+{as_seconds(ahead[1]):.6f}s"
    said = _short_hour.sub(r"0\1", said)
    try:
        if parts := _words.fullmatch(said):
            day, _ = moment(parts[1].lower(), now=now, zone=zone)
            said = f"{moment_of(day).astimezone(zone).date().isoformat()}T{parts[2]}"
        first, _ = moment(said.lower() if said.isalpha() else said, now=now, zone=zone)
    except ValueError:
        raise ValueError(f"{text!r} is no time: {HOW}") from None
    return moment_of(first)


def ahead(moment: datetime, now: datetime) -> str:
    """An instant for people, and how far off it is."""
    seconds = (moment - now).total_seconds()
    return (
        f"{instant(moment)}, in {format_duration(seconds)}"
        if seconds > 0
        else f"{instant(moment)}, {format_duration(-seconds)} ago"
    )
