"""Claims in MySQL, in two steps: read which jobs are due, then lock and stamp them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from holdfast.clock import MICROSECONDS, duration_us
from holdfast.errors import BackendError
from holdfast.queues.contract import LeasePolicy
from holdfast.queues.engines.mysql.connections import CLOCK, MysqlConnections, Session, chunks
from holdfast.queues.engines.mysql.edges import IS_UNMET
from holdfast.queues.engines.mysql.lanes import LAST_WAITING, LEASED, mark_of
from holdfast.queues.engines.tables.rows import MANY, Row, alone_if_suspect
from holdfast.queues.engines.tables.states import FAILED, PROCESSING

PAUSED, STAMPED, NOW, PARENT = -1, -2, -3, -4

PASS_GATE: Final = f"SELECT {CLOCK} FROM holdfast_gates WHERE gate = %s FOR UPDATE"

# The first job of each lane. Each is one lookup in the index, so the cost does not grow with the waiting jobs.
# Whatever else a claim needs comes in the same result, under negative numbers instead of lanes.
LOOK: Final = f"""
    SELECT lane, MIN(since) FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane <= {LAST_WAITING} AND mark = %(mark)s GROUP BY lane
    UNION ALL SELECT {PAUSED}, 1 FROM holdfast_pauses WHERE queue = %(queue)s
    UNION ALL SELECT {STAMPED}, COUNT(*) FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane = {LEASED} AND mark = %(token)s AND queue = %(queue)s AND lease_until > {CLOCK}
    UNION ALL SELECT {NOW}, {CLOCK}"""

# With the jobs that were just settled, in the same transaction: those that have edges to turn. A new statement, when
# these jobs are locked, finds the edges that were committed until then.
LOOK_AND_FIND_PARENTS: Final = f"""{LOOK}
    UNION ALL SELECT {PARENT}, parent FROM holdfast_edges FORCE INDEX (by_parent)
    WHERE parent IN %(settled)s {IS_UNMET}"""

# The same for several queues, for a waiting worker; a pause has the queue's name, the time an empty one.
NEXT_DUE: Final = f"""
    SELECT mark, MIN(since) FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane <= {LAST_WAITING} AND mark IN %(marks)s GROUP BY lane, mark
    UNION ALL SELECT queue, NULL FROM holdfast_pauses WHERE queue IN %(queues)s
    UNION ALL SELECT '', {CLOCK}"""

# Starts at the first job that LOOK found. Before it may be index entries of claimed jobs, deleted but not yet
# purged, which a locking query walks through ten times slower than LOOK does.
_TURN: Final = """
    FROM holdfast_jobs FORCE INDEX (by_turn) WHERE lane = %s AND mark = %s AND since >= %s AND since <= %s
    ORDER BY since, id LIMIT %s"""
# Packed into one value, a row costs this process half as much to read. The length of the id marks where it ends.
_PACKED: Final = """
    CONCAT(seq, ' ', deliveries, ' ', attempts, ' ', crashes, ' ', ignore_expiry, ' ', LENGTH(id), ' ', id, wire)"""
LOCK_DUE: Final = f"SELECT {_PACKED} {_TURN} FOR UPDATE SKIP LOCKED"

# Without SKIP LOCKED: read which jobs are next, wait for the locks of others, and take those that are still due.
DUE: Final = f"SELECT seq {_TURN}"
LOCK_THESE: Final = f"""
    SELECT {_PACKED} FROM holdfast_jobs FORCE INDEX (PRIMARY)
    WHERE seq IN %s AND state <= {FAILED} AND due_at <= %s FOR UPDATE"""

CLAIM: Final = f"""
    UPDATE holdfast_jobs FORCE INDEX (PRIMARY)
    SET state = {PROCESSING}, owner_token = %(token)s, deliveries = LEAST(deliveries, {MANY}) + 1,
        claimed_at = %(now)s, lease_us = %(lease)s, lease_until = %(now)s + %(lease)s,
        lane = {LEASED}, mark = %(token)s, since = %(now)s
    WHERE seq IN %(seqs)s"""

LEASES: Final = f"""
    SELECT seq, id, wire, lease_us, claimed_at, deliveries, attempts, crashes, ignore_expiry,
           LEAST(lease_until - {CLOCK}, lease_us)
    FROM holdfast_jobs FORCE INDEX (by_turn)
    WHERE lane = {LEASED} AND mark = %(token)s AND queue = %(queue)s AND lease_until > {CLOCK} ORDER BY seq"""

HOLDS: Final = f"seq IN %(seqs)s AND (seq, owner_token) IN %(pairs)s AND state = {PROCESSING} AND lease_until > {CLOCK}"
HELD: Final = f"""
    SELECT seq, owner_token, deliveries FROM holdfast_jobs FORCE INDEX (PRIMARY) WHERE {HOLDS} FOR UPDATE"""


class Stamped(NamedTuple):
    """The jobs that were claimed, and those of the settled jobs that have edges to turn."""

    rows: list[Row]
    parents: list[int]


class MysqlClaims:
    """Claims jobs for `MysqlJobs`."""

    def __init__(self, connections: MysqlConnections, policy: LeasePolicy) -> None:
        self._connections = connections
        self._policy = policy

    def is_worthwhile(self, session: Session, queue: str, token: bytes) -> bool:
        """Whether a claim would find a job; a cheap read."""
        return self._look(session, queue, token).is_worthwhile

    def claim(self, session: Session, queue: str, limit: int, token: bytes) -> list[Row]:
        """Stamp the jobs that are due, best first, in the open transaction."""
        self.pass_gate(session, token)
        return self.stamp(session, queue, limit, token).rows

    def pass_gate(self, session: Session, token: bytes) -> int:
        """Lock the gate of this token, and return the server's time."""
        row = session.row(self._sql(PASS_GATE), (gate_of(token),))
        if row is None:
            raise BackendError(
                f"{self._connections.address}: the table {self._connections.prefix}gates has lost rows, so jobs "
                "cannot be claimed; run the INSERT IGNORE statement for it again:  holdfast migrate --sql  prints it"
            )
        now: int = row[0]
        return now

    def stamp(self, session: Session, queue: str, limit: int, token: bytes, settled: Sequence[int] = ()) -> Stamped:
        """Stamp with the gate locked, so that no other transaction uses this token."""
        while True:
            seen = self._look(session, queue, token, settled)
            if seen.is_stamped:
                rows = session.rows(self._sql(LEASES), {"queue": queue, "token": token})
                return Stamped([(row[0], row[1].decode(errors="replace"), *row[2:]) for row in rows], seen.parents)
            if limit <= 0 or not seen.is_worthwhile:
                return Stamped([], seen.parents)
            candidates = self._lock(session, queue, limit, seen)
            # Without SKIP LOCKED, others may have taken all of them while this transaction waited.
            if candidates or self._connections.skips_locked:
                break
        chosen = candidates[: len(alone_if_suspect([(row[0], row[3]) for row in candidates]))]
        lease_us, now = duration_us(self._policy.lease_s), seen.now
        for seqs in chunks(row[0] for row in chosen):
            session.run(self._sql(CLAIM), {"token": token, "now": now, "lease": lease_us, "seqs": seqs})
        claimed = [
            (seq, id, wire, lease_us, now, min(deliveries, MANY) + 1, attempts, crashes, ignore_expiry, lease_us)
            for seq, deliveries, attempts, crashes, ignore_expiry, id, wire in chosen
        ]
        return Stamped(claimed, seen.parents)

    def _look(self, session: Session, queue: str, token: bytes, settled: Sequence[int] = ()) -> "_Seen":
        query: dict[str, Any] = {"queue": queue, "mark": mark_of(queue), "token": token}
        if not settled:
            return _Seen(session.rows(self._sql(LOOK), query))
        return _Seen(session.rows(self._sql(LOOK_AND_FIND_PARENTS), query | {"settled": list(settled)}))

    def _lock(self, session: Session, queue: str, limit: int, seen: "_Seen") -> list[Row]:
        """The jobs that are due, best first, locked."""
        candidates: list[Row] = []
        for lane, first in seen.due_lanes:
            query = (lane, mark_of(queue), first, seen.now, limit - len(candidates))
            if self._connections.skips_locked:
                candidates += _unpacked(session.rows(self._sql(LOCK_DUE), query))
            else:
                candidates += self._lock_patiently(session, query, seen.now)
            if len(candidates) >= limit:
                break
        return candidates

    def _lock_patiently(self, session: Session, query: Row, now: int) -> list[Row]:
        turns = [seq for (seq,) in session.rows(self._sql(DUE), query)]
        lists = [session.rows(self._sql(LOCK_THESE), (seqs, now)) for seqs in chunks(turns)]
        locked = {row[0]: row for rows in lists for row in _unpacked(rows)}
        return [locked[seq] for seq in turns if seq in locked]

    def until_due(self, session: Session, queues: Sequence[str]) -> float:
        """The seconds until the next job of these queues is due; negative if one is overdue."""
        if not queues:
            return float("inf")
        marks = {mark_of(queue): queue.encode() for queue in queues}
        found = session.rows(self._sql(NEXT_DUE), {"marks": list(marks), "queues": list(queues)})
        paused = {queue for queue, due in found if due is None}
        [now] = (due for mark, due in found if not mark)
        dues = [due for mark, due in found if mark in marks and marks[mark] not in paused]
        return min(((due - now) / MICROSECONDS for due in dues), default=float("inf"))

    def _sql(self, statement: str) -> str:
        return self._connections.sql(statement)


class _Seen:
    """The result of LOOK for one queue, or of LOOK_AND_FIND_PARENTS."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.parents: list[int] = [seq for key, seq in rows if key == PARENT]
        found: dict[int, int] = dict(rows)
        self.now = found[NOW]
        self.is_stamped = found[STAMPED] > 0
        is_paused = PAUSED in found
        self.due_lanes = sorted(
            (lane, due) for lane, due in found.items() if lane >= 0 and due <= self.now and not is_paused
        )
        self.is_worthwhile = self.is_stamped or bool(self.due_lanes)


def _unpacked(rows: Sequence[Row]) -> list[Row]:
    """Candidates: number, deliveries, attempts, crashes, whether expiry is ignored, id, message."""
    candidates: list[Row] = []
    for (packed,) in rows:
        if packed is None:
            raise BackendError("a message exceeds the server's max_allowed_packet, which was lowered: raise it again")
        seq, deliveries, attempts, crashes, ignore_expiry, length, rest = packed.split(b" ", 6)
        numbers = (int(seq), int(deliveries), int(attempts), int(crashes), int(ignore_expiry))
        end = int(length)
        candidates.append((*numbers, rest[:end].decode(errors="replace"), rest[end:]))
    return candidates


def holdings(claims: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    """The parameters of statements about claims (number, owner token): their numbers, and pairs of both."""
    tokens: dict[int, list[bytes]] = {}
    for seq, owner_token in claims:
        tokens.setdefault(seq, []).append(bytes.fromhex(owner_token))
    for seqs in chunks(tokens):
        yield {"seqs": seqs, "pairs": [(seq, token) for seq in seqs for token in tokens[seq]]}


def gate_of(token: bytes) -> int:
    """One of 256 gates, from the claim's half of the token: the other half is the same for all claims of a worker."""
    return token[-1]
