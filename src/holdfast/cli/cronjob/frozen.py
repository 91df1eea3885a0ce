"""Previews what schedules would do at a given time: `cronjob run --test-time`."""

from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

from holdfast.cli.enqueue.instants import parse_instant
from holdfast.cron.schedule import Schedule
from holdfast.cron.zones import end_of_gap, occurrences, shown_at, zone_named

_A_MINUTE = timedelta(minutes=1)
_AN_INSTANT = timedelta(microseconds=1)


class Frozen(NamedTuple):
    """A time that the user specified, and a remark if clocks in the zone skip or repeat it."""

    moment: datetime
    remark: str = ""

    def due(self, schedule: Schedule) -> datetime | None:
        """The instant at which the schedule is due in this minute."""
        start = self.moment.replace(second=0, microsecond=0)
        following = schedule.next_after(start - _AN_INSTANT)
        return following if following is not None and following < start + _A_MINUTE else None


def frozen_at(text: str, zone_name: str, now: datetime) -> Frozen:
    """Parse a time; without an offset, it is in this zone. A ValueError explains the format."""
    zone = zone_named(zone_name)
    at = parse_instant(text, now=now, zone=_fixed(timedelta()))
    if at == parse_instant(text, now=now, zone=_fixed(timedelta(hours=1))):
        return Frozen(at)
    # With a fixed offset, each local time exists exactly once, so this is the time as typed.
    offset = _fixed(now.astimezone(zone).utcoffset() or timedelta())
    typed = parse_instant(text, now=now, zone=offset).astimezone(offset).replace(tzinfo=None)
    found = occurrences(typed, zone)
    if not found:
        change = end_of_gap(typed, zone)
        before = shown_at(change - _AN_INSTANT, zone) + _AN_INSTANT
        clocks = f"clocks go {before:%H:%M} → {shown_at(change, zone):%H:%M}"
        return Frozen(change, f"{typed:%Y-%m-%d %H:%M} does not exist in {zone_name} ({clocks})")
    twice = f"{typed:%Y-%m-%d %H:%M} occurs twice in {zone_name}; using the first occurrence"
    return Frozen(found[0], twice if len(found) > 1 else "")


def _fixed(offset: timedelta) -> tzinfo:
    return timezone(offset)
