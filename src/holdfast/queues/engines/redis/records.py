"""Reading and operating the records that `jobs.py` writes on a Redis server."""

import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from holdfast.clock import duration_us, to_us
from holdfast.codec import content_digest, describe
from holdfast.queues.contract import (
    IDLE_SLOT_S,
    PRUNE_BATCH,
    SHOWN_RELATIVES,
    SHOWN_WAITERS,
    TOMBSTONE_S,
    LeasePolicy,
    Outdated,
    Records,
    check_purge,
)
from holdfast.queues.engines.redis.connections import RedisConnections, Script
from holdfast.queues.engines.redis.edges import read_relatives
from holdfast.queues.engines.redis.slots import DELETE_UNUSED, LIST_SLOTS
from holdfast.queues.engines.tables.rows import Row, history, is_by_finish, oldest_waits, slot_views, text, view
from holdfast.queues.engines.tables.states import CODES
from holdfast.values import (
    CancelAnswer,
    JobFilter,
    JobHistory,
    JobState,
    JobView,
    Outcome,
    Page,
    QueueWait,
    Relatives,
    ReplayAnswer,
    SlotView,
)

COUNTS: Final = Script("counts")
OLDEST_DUE: Final = Script("oldest_due")
FIND: Final = Script("view", "find")
GET: Final = Script("view", "get")
MESSAGE: Final = Script("message")
CANCEL: Final = Script("room", "ending", "edges", "slots", "cancel")
REPLAY: Final = Script("room", "ending", "edges", "replay")
SIFT: Final = Script("ending", "edges", "forgetting", "sift")
BURY: Final = Script("ending", "edges", "forgetting", "bury")
DROP_TOMBSTONES: Final = Script("drop_tombstones")

COUNTED: Final = (
    JobState.PENDING,
    JobState.SCHEDULED,
    JobState.FAILED,
    JobState.PROCESSING,
    JobState.BLOCKED,
    JobState.COMPLETED,
    JobState.DEAD,
    JobState.CANCELLED,
)
# How many jobs one call of a search checks, and how many bytes of messages one call returns: no call takes long.
LOOK_AT: Final = 2000
SLOTS_AT_ONCE: Final = 500
SIFT_BYTES: Final = 8 * 1024 * 1024
# The size of the claim and the verdict before the result of an attempt; start and end of one that succeeded.
END_HEAD: Final = 17
TIMES: Final = struct.Struct(">qq")
DAMAGE: Final = object()

_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class RedisRecords(Records):
    """The records on a Redis server."""

    def __init__(self, connections: RedisConnections, policy: LeasePolicy) -> None:
        super().__init__(policy)
        self._connections = connections

    def counts(self, queue: str | None = None) -> dict[str, dict[JobState, int]]:
        rows = self._connections.run(COUNTS) if queue is None else self._connections.run(COUNTS, queue)
        numbers = {
            text(name): {state: number for state, number in zip(COUNTED, counted, strict=True) if number}
            for name, *counted in rows
        }
        return {name: states for name, states in numbers.items() if states}

    def oldest_waits(self) -> dict[str, QueueWait]:
        now, rows = self._connections.run(OLDEST_DUE)
        return oldest_waits([(queue, _number(due_at)) for queue, due_at in rows], now)

    def find(self, where: JobFilter, *, limit: int = 50, after: str | None = None) -> Page:
        conditions = (
            int(is_by_finish(where)),
            "\n".join(str(_state_word(state)) for state in where.states),
            where.queue or "",
            where.job or "",
            where.dead_reason or "",
            _word(where.finished_before),
            "\n".join(where.ids),
            _word(where.accepted_from),
            _word(where.accepted_before),
            _word(where.finished_from),
        )
        score, _, id = (after or ".").partition(".")
        rows: list[Sequence[Any]] = []
        is_end = 0
        now = 0
        # One more than requested shows whether there is a next page.
        while len(rows) <= limit and not is_end:
            now, found, score, id, is_end = self._connections.run(
                FIND, limit + 1 - len(rows), LOOK_AT, score, id, *conditions
            )
            rows += found
        page = rows[:limit]
        cursors = tuple(f"{row[-1].decode()}.{text(row[0])}" for row in page)
        following = cursors[-1] if len(rows) > limit and cursors else None
        return Page(jobs=tuple(_view(row[:-1], now) for row in page), next=following, cursors=cursors)

    def get(self, job_id: str) -> JobHistory | None:
        found = self._connections.run(GET, job_id)
        if found is None:
            return None
        now, row, fields, others, success = found
        details, job = _pairs(others), _view(row, now)
        ends = [(delivery, _end(ended)) for delivery, ended in _by_delivery(_pairs(fields), b"end:")]
        if job.state is JobState.COMPLETED and success:
            ends.append((job.deliveries, _success(success)))
        attempts = [(delivery, *end, *_unpacked(details.get(b"%d" % delivery), 6)) for delivery, end in ends if end]
        outputs = [(delivery, *_unpacked(stored, 2)) for delivery, stored in _by_delivery(details, b"output:")]
        return history(job, sorted(attempts, key=lambda row: row[0]), outputs, row[1])

    def slots(self, names: Sequence[str] | None = None, *, after: str = "", limit: int = 100) -> list[SlotView]:
        # Python compares by code points, which is the order of UTF-8 bytes.
        chosen = () if names is None else sorted(set(names))
        found: list[SlotView] = []
        if limit <= 0 or (names is not None and not chosen):
            return found
        last: bytes | None = after.encode()
        while last is not None and len(found) < limit:
            *rows, last = self._connections.run(
                LIST_SLOTS, limit - len(found), SHOWN_WAITERS, SLOTS_AT_ONCE, last, *chosen
            )
            found += slot_views(*rows)
        return found

    def relatives(self, job_id: str, *, limit: int = SHOWN_RELATIVES) -> Relatives:
        return read_relatives(self._connections, job_id, limit)

    def cancel(self, job_id: str, reason: str = "") -> CancelAnswer:
        return CancelAnswer(self._connections.run(CANCEL, job_id, reason).decode())

    def replay(self, job_id: str, *, ignore_expiry: bool = False) -> ReplayAnswer:
        number, wire = self._connections.run(MESSAGE, job_id)
        message = describe(wire)
        expires_at = _word(message.expires_at if message else None)
        answer = self._connections.run(REPLAY, job_id, number, expires_at, int(ignore_expiry))
        return ReplayAnswer(answer.decode())

    def discard(self, job_id: str, *, states: Iterable[JobState] = (JobState.DEAD,)) -> bool:
        named = [(job_id, *self._connections.run(MESSAGE, job_id))]
        return any(self._bury(CODES[state], named, None) for state in sorted(check_purge(states)))

    def delete_tombstones(self) -> int:
        dropped: int = self._connections.run(DROP_TOMBSTONES, PRUNE_BATCH)
        return dropped

    def delete_unused(self) -> int:
        return sum(self._delete_unused(what) for what in ("uniques", "places", "slots"))

    def _delete_unused(self, what: str) -> int:
        """Delete all unused rows of this kind, in batches, so that no other call waits long for the server."""
        total, position = 0, b""
        while position is not None:
            deleted, position = self._connections.run(
                DELETE_UNUSED, what, position, PRUNE_BATCH, duration_us(IDLE_SLOT_S)
            )
            total += deleted
        return total

    def delete(self, outdated: Outdated) -> int:
        """Delete all of these records, in batches, so that no other call waits long for the server."""
        total, state, spared = 0, CODES[outdated.state], 0
        age, known = _word(outdated.age_us), _word(outdated.known_us)
        limits = (state, outdated.queue or "", age, known, PRUNE_BATCH, SIFT_BYTES, int(outdated.spares_parents))
        removed: int
        while True:
            before = spared
            removed, left, named, spared = self._connections.run(SIFT, *limits, before)
            buried = self._bury(state, named, outdated.known_us)
            total += removed + buried
            if not left and not buried and spared == before:
                return total

    def _bury(self, state: int, named: Sequence[Sequence[Any]], known_us: int | None) -> int:
        """Replace these jobs (id, number, message) by tombstones if they are still in this state. Returns how many."""
        if not named:
            return 0
        words = [word for id, number, wire in named for word in (id, number, content_digest(wire))]
        buried: int = self._connections.run(BURY, state, _word(known_us), duration_us(TOMBSTONE_S), *words)
        return buried


def _word(value: datetime | int | None) -> int | str:
    if value is None:
        return ""
    return to_us(value) if isinstance(value, datetime) else value


def _state_word(state: JobState) -> str | int:
    """The code of a stored state. Pending and scheduled are the same stored state, which the due time distinguishes."""
    return state.value if state in (JobState.PENDING, JobState.SCHEDULED) else CODES[state]


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    each = iter(flat)
    return dict(zip(each, each, strict=True))


def _view(row: Sequence[Any], now: int) -> JobView:
    """The view of a job, from a row of `view.lua`."""
    id, wire, number, queue, state, job, attempts, crashes, accepted_at, due_at, dead_reason, cancel_reason = row[:12]
    cancel_request, last_error, deliveries, finished_at, lease_until, progress, progress_at, *blocked = row[12:]
    counts = (_number(attempts or b"0"), _number(crashes or b"0"), deliveries)
    times = (_number(accepted_at), _number(due_at), finished_at, lease_until)
    texts = (_text(dead_reason), _text(cancel_reason), _text(cancel_request), _text(last_error))
    reported: Row = (*_unpacked(progress, 3), None if progress_at is None else _number(progress_at))
    blocked_on, blocked_since = blocked
    head = (_number(number), _text(id), _text(queue), _number(state), _text(job), wire or b"")
    return view((*head, *counts, *times, *texts, *reported, _text(blocked_on), blocked_since), now)


def _end(stored: bytes) -> Row:
    """Outcome, start and end of a delivery, which follow the claim and the verdict; nothing if it left no record."""
    if len(stored) <= END_HEAD:
        return ()
    outcome, started_us, ended_us, *_ = (*stored[END_HEAD:].split(b" "), b"", b"")
    return (_text(outcome), _number(started_us), _number(ended_us))


def _success(stored: bytes) -> Row:
    """The same of an acknowledged delivery, of which only start and end are stored."""
    times = TIMES.unpack(stored[END_HEAD:]) if len(stored) == END_HEAD + TIMES.size else ()
    return (Outcome.SUCCEEDED.value, *times) if any(times) else ()


def _by_delivery(fields: dict[bytes, bytes], prefix: bytes) -> list[tuple[int, bytes]]:
    """The fields whose name is this prefix and the number of a delivery."""
    named = [(name.removeprefix(prefix), value) for name, value in fields.items() if name.startswith(prefix)]
    return [(int(name), value) for name, value in named if name.isdigit()]


def _unpacked(stored: bytes | None, size: int) -> Row:
    """The values of a packed list of this size; for anything else, values that are shown as damage."""
    if stored is None:
        return (None,) * size
    try:
        values = _unpack(stored)
    except (msgspec.MsgspecError, RecursionError):
        values = []
    return tuple(values) if len(values) == size else (DAMAGE,) * size


def _number(stored: bytes | None) -> int | bytes | None:
    """The number, or the stored bytes if it is not one, which are shown as damage."""
    try:
        return None if stored is None else int(stored)
    except ValueError:
        return stored


def _text(stored: bytes | None) -> str | bytes | None:
    """The text, or the bytes if they are not UTF-8, which are shown as damage."""
    try:
        return None if stored is None else stored.decode()
    except UnicodeDecodeError:
        return stored
