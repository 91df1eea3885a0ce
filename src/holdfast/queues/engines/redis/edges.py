"""Edges between jobs on a Redis server: the arguments and replies of the scripts.

A script cannot call this process, so the decisions of `contract/edges.py` are repeated in `lua/edges.lua`.
"""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.queues.contract import Resolved, resolve_all
from holdfast.queues.engines.redis.connections import RedisConnections, Script
from holdfast.queues.engines.redis.slots import log_dead_letters
from holdfast.queues.engines.tables.rows import Row, relatives, text
from holdfast.queues.engines.tables.states import POLICY_CODES
from holdfast.values import JobEnvelope, Relatives

RESOLVE: Final = Script("room", "ending", "edges", "resolve")
RELATIVES: Final = Script("ending", "edges", "relatives")


def parent_rows(numbered: Sequence[tuple[int, JobEnvelope]]) -> list[Row]:
    """The parents of those of these numbered jobs that have any, as `accepting.lua` takes them."""
    return [(number, POLICY_CODES[one.on_parent_failure], one.after) for number, one in numbered if one.after]


def resolve_notes(connections: RedisConnections) -> int:
    """Resolve all notes, up to 1,000 edges in a call. Returns how many edges were changed."""

    def resolve_once() -> Resolved:
        notes, edges, dead = connections.run(RESOLVE)
        log_dead_letters(dead)
        return Resolved(notes, edges)

    return resolve_all(resolve_once)


def read_relatives(connections: RedisConnections, job_id: str, limit: int) -> Relatives:
    found = connections.run(RELATIVES, job_id, limit)
    if found is None:
        return Relatives()
    parents, children, open_parents, child_count = found
    return relatives(_rows(parents), _rows(children), [(open_parents, child_count)])


def _rows(found: Sequence[Any]) -> list[Row]:
    return [(text(id), *rest) for id, *rest in found]
