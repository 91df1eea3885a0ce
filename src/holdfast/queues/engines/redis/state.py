"""Shared state on a Redis server. Each verb is one script, so nothing can change between what it reads and what it
writes. A script that fails is not rolled back: every condition is checked before the first write.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.clock import MICROSECONDS, duration_us
from holdfast.queues.contract.state import PAGE, SharedState, StoredCell, cell_of, parted, versions_of
from holdfast.queues.engines.redis.connections import RedisConnections, Script
from holdfast.queues.engines.tables.rows import Row, text
from holdfast.values import Cell, CellWrite, Put, Resize, Spend, Spent, Write

READ: Final = Script("cells", "read")
WRITE: Final = Script("cells", "write")
RESIZE: Final = Script("room", "ending", "cells", "slots", "resize")
SPEND: Final = Script("room", "spend")
SWEEP: Final = Script("sweep")


class RedisState(SharedState):
    """Cells and buckets on a Redis server."""

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections

    def read(self, kind: str, keys: Sequence[str] | None = None, *, after: str = "", limit: int = PAGE) -> list[Cell]:
        if keys is not None:
            # Python compares by code points, which is the order of UTF-8 bytes.
            names = sorted(set(keys))
            if not names:
                return []
            now, rows, _ = self._connections.run(READ, kind, "", 0, *names, kinds=(kind,))
            return _cells(kind, now, rows)[:limit]
        found: list[Cell] = []
        last: bytes | None = after.encode()
        # Expired cells are skipped, so one call may return fewer cells than it reads.
        while last is not None and len(found) < limit:
            now, rows, last = self._connections.run(READ, kind, last, min(limit - len(found), PAGE), kinds=(kind,))
            found += _cells(kind, now, rows)
        return found

    def write(self, writes: Sequence[Write]) -> list[int] | None:
        if not writes:
            return []
        cells, resizes = parted(writes)
        # Not repeated if its reply is lost: the first run would make the condition of the second fail.
        repeats = all(one.if_version is None for one in cells)
        kinds = [one.kind for one in cells]
        arguments = [msgspec.msgpack.encode(write_rows(cells))]
        if resizes:
            arguments.append(msgspec.msgpack.encode(_size_rows(resizes)))
        script = RESIZE if resizes else WRITE
        versions: list[int] | None = self._connections.run(script, *arguments, repeats=repeats, kinds=kinds)
        return None if versions is None else versions_of(writes, versions)

    def spend(self, spends: Sequence[Spend]) -> list[Spent]:
        if not spends:
            return []
        asked = [(one.bucket, one.tokens, one.per_s, one.burst, one.reserve) for one in spends]
        answers = self._connections.run(SPEND, msgspec.msgpack.encode(asked), repeats=False)
        return [Spent(tokens=tokens, wait_s=float(wait_us) / MICROSECONDS) for tokens, wait_us in answers]

    def sweep(self, limit: int = PAGE) -> int:
        deleted: int = self._connections.run(SWEEP, limit)
        return deleted


def write_rows(writes: Sequence[CellWrite]) -> list[Row]:
    """Writes as `cells.lua` takes them: kind, key, value (None to drop the cell), ttl, expected version."""
    rows: list[Row] = []
    for one in writes:
        value, ttl = (packed(one.value), one.ttl) if isinstance(one, Put) else (None, None)
        rows.append((one.kind, one.key, value, None if ttl is None else duration_us(ttl), one.if_version))
    return rows


def _size_rows(resizes: Sequence[Resize]) -> list[Row]:
    """Changed sizes as `resize.lua` takes them."""
    return [(one.slot, False if one.size is None else one.size, duration_us(one.closed_for)) for one in resizes]


def packed(value: bytes) -> msgspec.Raw:
    """Bytes, packed as a string: the server cannot unpack msgpack's type for bytes."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


def _cells(kind: str, now: int, rows: Sequence[Any]) -> list[Cell]:
    return [cell_of((kind, text(key)), StoredCell(*stored), now) for key, *stored in rows]
