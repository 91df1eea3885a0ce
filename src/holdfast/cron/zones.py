"""Time zones, and local times around clock changes. `zoneinfo` is imported only for a zone other than UTC."""

import re
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final

from holdfast.errors import DefinitionError
from holdfast.plaintext import abridged
from holdfast.spelling import closest

_NAME: Final = r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}"
_LONGEST: Final = 100
_EXAMPLE: Final = "such as Europe/Berlin or UTC"
# These are in the directory of time zones, but depend on this host, or count leap seconds.
_NO_ZONES: Final = ("localtime", "posixrules", "Factory", "posix/", "right/")


def zone_named(name: str) -> tzinfo:
    """The time zone with this name in the IANA database."""
    if name == "UTC":
        return UTC
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
        raise DefinitionError(f"timezone must be the name of a time zone, {_EXAMPLE}, not {abridged(repr(name))}")
    zone = _loaded(name) if len(name) < _LONGEST and re.fullmatch(_NAME, name, re.ASCII) else None
    if zone is None:
        raise DefinitionError(_unknown(name))
    return zone


def shown_at(instant: datetime, zone: tzinfo) -> datetime:
    """The local time, without its zone, that a clock in this zone shows at this instant."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def occurrences(local: datetime, zone: tzinfo) -> tuple[datetime, ...]:
    """The instants at which a clock in this zone shows this local time: one; none in a gap; two in an overlap."""
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if shown_at(first, zone) != local:
        return ()
    second = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return (first,) if first == second else (first, second)


def end_of_gap(local: datetime, zone: tzinfo) -> datetime:
    """The first instant after the gap in which this local time is missing."""
    return change_between(
        local.replace(tzinfo=zone, fold=1).astimezone(UTC), local.replace(tzinfo=zone, fold=0).astimezone(UTC), zone
    )


def change_between(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant between these two at which the clocks of this zone are changed."""
    offset = before.astimezone(zone).utcoffset()
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, UTC).astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)


@lru_cache(maxsize=1024)
def _loaded(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo  # imported here: most commands need no time zone

    # A part of a name, such as Europe, is a directory.
    with suppress(KeyError, ValueError, OSError):
        return None if name.startswith(_NO_ZONES) else ZoneInfo(name)
    return None


def _unknown(name: str) -> str:
    from zoneinfo import available_timezones

    known = available_timezones() - {*_NO_ZONES}
    problem = f"timezone {abridged(name)!r} is not known"
    if not known:
        return (
            f"{problem}: this host has no time zone data; install the package tzdata with your system's package "
            "manager or with pip"
        )
    by_city = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    by_name = {zone.lower(): zone for zone in sorted(known)}
    spelled = name[:_LONGEST].lower().replace(" ", "_")
    guess = by_name.get(spelled) or by_city.get(spelled)
    if guess is None and (near := closest(spelled, [*by_name, *by_city], cutoff=0.7)) is not None:
        guess = by_name.get(near) or by_city[near]
    return f"{problem}; " + (f"did you mean '{guess}'?" if guess else f"use a name of the IANA database, {_EXAMPLE}")
