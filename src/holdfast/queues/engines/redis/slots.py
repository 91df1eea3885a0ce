"""Slots and unique keys on a Redis server: the arguments and replies of the scripts.

A script cannot call this process, so the decisions of `contract/slots.py` and `contract/uniques.py` are repeated in
`lua/slots.lua`, `lua/enter.lua` and `lua/uniques.lua`, with the same names and in the same order.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from holdfast.clock import duration_us
from holdfast.queues.contract.state import StoredCell, cell_of
from holdfast.queues.engines.redis.connections import ESCAPED, Script
from holdfast.queues.engines.redis.state import packed
from holdfast.queues.engines.tables.rows import Row, text
from holdfast.values import Entered, Entry, EntryOutcome, Unique

log = logging.getLogger("holdfast.redis")

ENTER: Final = Script("room", "ending", "cells", "slots", "enter")
PROMOTE: Final = Script("room", "ending", "slots", "promote")
LIST_SLOTS: Final = Script("ending", "slots", "list_slots")
DELETE_UNUSED: Final = Script("ending", "slots", "delete_unused")


def entry_rows(entries: Sequence[Entry]) -> list[Row]:
    """Entries as `enter.lua` takes them."""
    return [
        (
            packed(str(entry.lease.token).encode(errors=ESCAPED)),
            packed(bytes.fromhex(entry.lease.owner_token)),
            entry.lease.queue,
            [(slot.name, slot.size, *(slot.unless or ())) for slot in entry.slots],
        )
        for entry in entries
    ]


def entered(answer: Sequence[Any], now_us: int) -> Entered:
    """The answer to an entry, as `enter.lua` returns it."""
    outcome, fence, *cells = answer
    found = [cell_of((text(kind), text(key)), StoredCell(*stored), now_us) for kind, key, *stored in cells]
    return Entered(outcome=EntryOutcome(outcome.decode()), fence=fence, cell=found[0] if found else None)


def log_dead_letters(ids: Sequence[bytes]) -> None:
    """Log the jobs that a script dead-lettered when it met them."""
    for id in ids:
        log.error("job %s was dead-lettered: its record is damaged", text(id))


def unique_row(unique: Unique) -> Row:
    """A unique key as `uniques.lua` takes it: key, scope, period, whether to refuse the call."""
    return (unique.key, unique.scope.value, duration_us(unique.period), unique.reject)
