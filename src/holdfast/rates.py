"""Rates as people write them: `60/min`, `10/s`, `100/h`, `5/d,burst=2`. A number alone is per minute."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from msgspec import Struct

from holdfast.values import MAX_TOKENS

RateLike: TypeAlias = str | float | Mapping[str, Any]
"""Text, a number per minute, or a table with `rate` and `burst`."""

RATE_PATTERN: Final = r"(\d+(?:\.\d+)?)\s*(?:/\s*([a-z]+)\s*)?(?:,\s*burst\s*=\s*(\d{1,18})\s*)?"
_NAMES: Final = {
    "s": ("s", "sec", "second"),
    "min": ("m", "min", "minute"),
    "h": ("h", "hour"),
    "d": ("d", "day"),
}
_UNITS: Final = {name: unit for unit, names in _NAMES.items() for name in names}
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_FORMAT: Final = "write a number and a unit, such as 10/s, 60/min, 100/h or 5/d; a number alone is per minute"
_LOWEST_PER_S: Final = 1e-6
_HIGHEST_PER_S: Final = 1e6


class Rate(Struct, frozen=True, kw_only=True, gc=False):
    """A rate: on average `number` per `unit`, and at most `burst` at once. Its text can be parsed again."""

    number: float
    unit: str
    burst: int

    @property
    def per_s(self) -> float:
        return self.number / _SECONDS[self.unit]

    @property
    def each_s(self) -> float:
        """The seconds in which one token is refilled."""
        return _SECONDS[self.unit] / self.number

    def __str__(self) -> str:
        rate = f"{self.number:.15g}/{self.unit}"
        return rate if self.burst == _usual_burst(self.per_s) else f"{rate},burst={self.burst}"


def parse_rate(value: object, *, burst: int | None = None) -> Rate | None:
    """The rate that a user's value stands for; None for 0, which means no limit. The ValueError explains the format.

    The default burst is the number for one second, at least 1.
    """
    if isinstance(value, str):
        rate = _parsed(value.strip().lower())
    elif isinstance(value, Mapping):
        rate = _from_table(cast("Mapping[str, object]", value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        rate = _rate(float(value), "min", None)
    else:
        raise ValueError(_FORMAT)
    return rate if rate is None or burst is None else _rate(rate.number, rate.unit, burst)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Rate | None:
    match = re.fullmatch(RATE_PATTERN, text, re.ASCII)
    if match is None or (match[2] is not None and match[2] not in _UNITS):
        raise ValueError(_FORMAT)
    return _rate(float(match[1]), _UNITS[match[2] or "min"], None if match[3] is None else int(match[3]))


def _from_table(table: Mapping[str, object]) -> Rate | None:
    burst = table.get("burst")
    if not {"rate"} <= set(table) <= {"rate", "burst"} or isinstance(table["rate"], Mapping):
        raise ValueError('a table has a rate and may have a burst, as in {rate = "10/s", burst = 20}')
    if burst is not None and (isinstance(burst, bool) or not isinstance(burst, int)):
        raise ValueError(f"the burst must be an integer, not {burst!r}")
    return parse_rate(table["rate"], burst=burst)


def _rate(number: float, unit: str, burst: int | None) -> Rate | None:
    if number == 0:
        return None
    per_s = number / _SECONDS[unit]
    if not math.isfinite(number) or not _LOWEST_PER_S <= per_s <= _HIGHEST_PER_S:
        raise ValueError("use a rate from 0.0864/d to 1000000/s; 0 = no limit")
    if burst is not None and not 1 <= burst <= MAX_TOKENS:
        raise ValueError(f"the burst must be between 1 and {MAX_TOKENS:,}, not {burst:,}")
    return Rate(number=number, unit=unit, burst=_usual_burst(per_s) if burst is None else burst)


def _usual_burst(per_s: float) -> int:
    """The number for one second, at least 1."""
    return max(1, int(per_s))
