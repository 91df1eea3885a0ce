"""Shared state: small values that all processes of an installation see, written on conditions, by the engine's clock.

Four verbs, each over a batch. An engine implements them once; what coordinates workers, such as facts and the registry
of workers, is plain Python on top, in `holdfast/state/`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from holdfast.clock import MICROSECONDS, duration_us
from holdfast.values import Cell, CellWrite, Drop, Put, Resize, Spend, Spent, Write

PAGE: Final = 1000
# A damaged database may hold larger values; the next version must still fit into 64 bits.
_LAST_VERSION: Final = 2**63 - 2
_NEVER_FULL: Final = 2**62


class SharedState(ABC):
    """Cells and token buckets. The engine's clock decides what has expired and how full a bucket is."""

    @abstractmethod
    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        """Live cells of a kind, ordered by the bytes of their keys: those under `keys`, or all whose key is greater
        than `after`. An expired cell is absent even before it is swept.
        """

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> list[int] | None:
        """Apply all writes, in order, and return their new versions; if a condition fails, apply none and return None.

        A version is one more than the last one of its key or the engine's clock in microseconds, whichever is
        greater. The version of a `Drop` is the one that the cell then has, 0 if there was nothing to drop; the version
        of a `Resize` is 0. Slots are locked before cells.
        """

    @abstractmethod
    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        """Take tokens from buckets, as many as each can grant. Spends from the same bucket are applied in order."""

    @abstractmethod
    def sweep(self, limit: int = PAGE) -> int:
        """Delete up to `limit` expired cells and as many full buckets. Returns how many were deleted."""

    def read_all(self, kind: str) -> Iterator[Cell]:
        """Every live cell of a kind, a page at a time."""
        after = ""
        while page := self.read(kind, after=after):
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].key


class StoredCell(NamedTuple):
    """A cell as engines store it. A dropped one stays until it is swept, so that versions keep growing."""

    value: bytes
    version: int
    expires_us: int | None

    def is_live(self, now_us: int) -> bool:
        return self.expires_us is None or self.expires_us > now_us


CellName: TypeAlias = tuple[str, str]
"""The kind and the key of a cell."""


class Applied(NamedTuple):
    """The outcome of a batch of writes: the new version of each, and the cells to store."""

    versions: list[int]
    cells: dict[CellName, StoredCell]


def parted(writes: Iterable[Write]) -> tuple[list[CellWrite], list[Resize]]:
    """The writes to cells, and those to slots."""
    listed = list(writes)
    return (
        [one for one in listed if not isinstance(one, Resize)],
        [one for one in listed if isinstance(one, Resize)],
    )


def versions_of(writes: Iterable[Write], of_cells: Iterable[int]) -> list[int]:
    """The new version of each write, given those of the writes to cells."""
    left = iter(of_cells)
    return [0 if isinstance(one, Resize) else next(left) for one in writes]


def apply_writes(writes: Sequence[CellWrite], stored: Mapping[CellName, StoredCell], now_us: int) -> Applied | None:
    """The outcome of writes to locked cells, given what is stored; None if a condition fails."""
    versions: list[int] = []
    cells: dict[CellName, StoredCell] = {}
    for write in writes:
        name = write.kind, write.key
        known = cells.get(name) or stored.get(name)
        current = known.version if known is not None and known.is_live(now_us) else 0
        if write.if_version is not None and write.if_version != current:
            return None
        if known is None and isinstance(write, Drop):
            versions.append(0)
            continue
        version = max(min(known.version, _LAST_VERSION) + 1, now_us) if known is not None else now_us
        cells[name] = _stored(write, version, now_us)
        versions.append(version)
    return Applied(versions, cells)


def _stored(write: CellWrite, version: int, now_us: int) -> StoredCell:
    match write:
        case Put(value=value, ttl=ttl):
            return StoredCell(value, version, None if ttl is None else now_us + duration_us(ttl))
        case Drop():
            return StoredCell(b"", version, now_us)


def cell_of(name: CellName, stored: StoredCell, now_us: int) -> Cell:
    """A live cell as callers see it."""
    left = None if stored.expires_us is None else (stored.expires_us - now_us) / MICROSECONDS
    return Cell(kind=name[0], key=name[1], value=stored.value, version=stored.version, expires_in=left)


def spend_all(spends: Sequence[Spend], full_at_us: dict[str, int], now_us: int) -> list[Spent]:
    """The answers of locked buckets, in order. `full_at_us`, when each will be full, is updated."""
    answers: list[Spent] = []
    for one in spends:
        spent, full_at_us[one.bucket] = spend_from(one, full_at_us.get(one.bucket, 0), now_us)
        answers.append(spent)
    return answers


def spend_from(spend: Spend, full_at_us: int, now_us: int) -> tuple[Spent, int]:
    """The answer of a bucket that will be full at `full_at_us`, and when it will be full after the spend (GCRA).

    An instant in the past means full now. A token costs whole microseconds, rounded up: so no rate is exceeded, and
    tokens that are taken one at a time or returned cost exactly as much as those taken together.
    """
    each_us = math.ceil(MICROSECONDS / spend.per_s)
    depth_us = spend.burst * each_us
    full_at_us = min(max(full_at_us, now_us), _NEVER_FULL)
    if spend.reserve or spend.tokens < 0:
        granted = spend.tokens
    else:
        free = (depth_us - (full_at_us - now_us)) // each_us
        granted = max(0, min(spend.tokens, free))
    after_us = max(now_us, full_at_us + granted * each_us)
    waits_for = 0 if spend.reserve else each_us
    wait_us = max(0, after_us - now_us + waits_for - depth_us)
    return Spent(tokens=granted, wait_s=wait_us / MICROSECONDS), after_us
