"""Moving jobs on a Redis or Valkey server. Every verb is one Lua script over a whole batch, so nothing can change
between what it reads and what it writes, and the server's clock is the only one used. `lua/common.lua` describes the
keys.

An accepted job is as durable as the server's settings make it, and no key of a job ever expires.
"""

import logging
import struct
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.clock import Clock, duration_us, to_us
from holdfast.codec import content_digest
from holdfast.errors import IdConflict, NotSupported, StateConflict, UniqueConflict, UnknownParent
from holdfast.queues.contract import (
    PRUNE_BATCH,
    Crashes,
    Jobs,
    LeasePolicy,
    abandoned_run,
    effect_of,
    extras_of,
    keeps_turn,
    kept_output,
    kept_progress,
    take_once,
    until_done,
)
from holdfast.queues.engines.redis.connections import ESCAPED, RedisConnections, Script
from holdfast.queues.engines.redis.edges import parent_rows, resolve_notes
from holdfast.queues.engines.redis.slots import ENTER, PROMOTE, entered, entry_rows, log_dead_letters, unique_row
from holdfast.queues.engines.redis.state import packed, write_rows
from holdfast.queues.engines.tables.rows import Row, attempt_columns, lease_state, leased, pauses, text
from holdfast.queues.engines.tables.states import CODES
from holdfast.values import (
    Accepted,
    Ack,
    AttemptRecord,
    CellWrite,
    Entered,
    Entry,
    JobEnvelope,
    JobLease,
    LeaseState,
    LiveOutput,
    Outcome,
    Progress,
    QueuePause,
    Settlement,
)

ACCEPT: Final = Script("ending", "edges", "accepting", "cells", "accept")
ACCEPT_UNIQUE: Final = Script("ending", "edges", "accepting", "uniques", "cells", "accept_unique")
RESCHEDULE: Final = Script("ending", "edges", "accepting", "slots", "reschedule")
CLAIM: Final = Script("room", "ending", "claim", "claim_only")
LOOK: Final = Script("look")
SETTLE: Final = Script("room", "ending", "edges", "settle", "settle_only")
CARRYING: Final = ("room", "ending", "edges", "settle", "accepting", "uniques", "cells", "slots", "carrying")
CARRY_AND_SETTLE: Final = Script(*CARRYING, "carry_and_settle")
EXCHANGE: Final = Script("room", "ending", "edges", "settle", "claim", "exchange")
CARRY_AND_EXCHANGE: Final = Script(*CARRYING, "claim", "carry_and_exchange")
RENEW: Final = Script("room", "ending", "renew")
LEASES: Final = Script("ending", "leases")
REPORT: Final = Script("room", "ending", "report")
EXPIRE: Final = Script("room", "ending", "claims", "expire")
REAP: Final = Script("room", "ending", "edges", "claims", "reap")
PAUSE: Final = Script("pause")
RESUME: Final = Script("resume")

# Limits of one call. All or none means one script, which blocks an otherwise idle server for half a second with this
# many jobs or edges. (A command has at most a million arguments, or a gigabyte.)
MOST_JOBS: Final = 20_000
MOST_EDGES: Final = 100_000
MOST_BYTES: Final = 128 * 1024 * 1024

# How many slots one call of `repair` checks, and in how many of them it promotes jobs.
CHECKED_SLOTS: Final = 1000
REPAIRED_SLOTS: Final = 100

# Maximum time between two polls while waiting, in case a hint was lost.
LOOK_EVERY_S: Final = 1.0

# One letter for each verdict, stored after the claim that gave it: both together identify a repetition.
VERDICTS: Final = {"ack": b"a", "nack": b"n", "release": b"r", "abandon": b"d", "cancel": b"c"}
# Start and end of an acknowledgement without a record.
NO_TIMES: Final = (0, 0)
REFUSED_WRITES: Final = "a condition on shared state did not hold; nothing was enqueued"
CRASHES: Final = {Crashes.RESET: "reset", Crashes.KEEP: "keep", Crashes.ADD: "add"}
REFUSED: Final = ord("0")

_Words: TypeAlias = list[bytes | str | int]

log = logging.getLogger("holdfast.redis")


class RedisJobs(Jobs):
    """Jobs on a Redis or Valkey server."""

    def __init__(self, connections: RedisConnections, policy: LeasePolicy, clock: Clock) -> None:
        super().__init__(policy, clock)
        self._connections = connections

    def accept(
        self, envelopes: Sequence[JobEnvelope], tx: object | None = None, *, writes: Sequence[CellWrite] = ()
    ) -> list[Accepted]:
        _refuse_too_many(envelopes)
        fresh: dict[str, JobEnvelope] = {}
        for one in envelopes:
            if one.id in fresh:
                _refuse_other_content(one, content_digest(fresh[one.id].wire))
            else:
                fresh[one.id] = one
        jobs = list(fresh.values())
        parents = parent_rows(list(enumerate(jobs, 1)))
        tail: _Words = [_pack(write_rows(writes))] if writes or parents else []
        tail += [_pack(parents)] if parents else []
        kinds = [one.kind for one in writes]
        if any(one.unique is not None for one in envelopes):
            return self._accept_unique(envelopes, jobs, tail, kinds, not writes)
        known, [is_applied] = self._compare(ACCEPT, [], jobs, tail, repeats=not writes, kinds=kinds)
        if not is_applied:
            raise StateConflict(REFUSED_WRITES)
        created = {one.id for number, one in enumerate(jobs, 1) if number not in known}
        return [Accepted(id=one.id, created=take_once(created, one.id)) for one in envelopes]

    def _accept_unique(
        self,
        envelopes: Sequence[JobEnvelope],
        jobs: list[JobEnvelope],
        tail: _Words,
        kinds: Sequence[str],
        repeats: bool,
    ) -> list[Accepted]:
        numbers = {one.id: number for number, one in enumerate(jobs, 1)}
        asking = [(numbers[one.id], *unique_row(one.unique)) for one in envelopes if one.unique is not None]
        known, [is_applied, *rest] = self._compare(
            ACCEPT_UNIQUE, [], jobs, [_pack(asking), *tail], repeats=repeats, kinds=kinds
        )
        if len(rest) > 1:
            raise _unique_conflict(rest[1])
        if not is_applied:
            raise StateConflict(REFUSED_WRITES)
        others: list[tuple[int, bytes]] = rest[0]
        duplicates = {jobs[number - 1].id: text(existing) for number, existing in others}
        created = {one.id for number, one in enumerate(jobs, 1) if number not in known and one.id not in duplicates}
        ids = [(one.id, duplicates.get(one.id, one.id)) for one in envelopes]
        return [Accepted(id=id, created=take_once(created, asked)) for asked, id in ids]

    def _compare(
        self,
        script: Script,
        head: _Words,
        jobs: list[JobEnvelope],
        tail: _Words,
        *,
        repeats: bool = True,
        kinds: Sequence[str] = (),
    ) -> tuple[dict[int, bytes], list[Any]]:
        """Run a script that accepts jobs. Returns the known jobs with the numbers of their records, and the rest of the
        script's reply.

        The server cannot compare contents. It returns the known jobs and writes nothing; then the call is repeated with
        the records that were found to be the same.
        """
        words = _job_words(jobs)
        known: dict[int, bytes] = {}
        while True:
            compared: _Words = [len(known), *(word for pair in known.items() for word in pair)]
            arguments = (*head, *words, *compared, *tail)
            found, *answer = self._connections.run(script, *arguments, repeats=repeats, kinds=kinds)
            if not found:
                return known, answer
            number: int
            for number, record, digest, wire, *parent in found:
                if parent:
                    raise UnknownParent(jobs[number - 1].id, text(parent[0]))
                _refuse_other_content(jobs[number - 1], digest or content_digest(wire or b""))
                known[number] = record

    def reschedule(self, envelopes: Sequence[JobEnvelope], tx: object | None = None) -> list[bool]:
        _refuse_too_many(envelopes)
        return [answer == 1 for answer in self._connections.run(RESCHEDULE, *_job_words(envelopes), 0)]

    def claim_now(self, queue: str, limit: int, owner_token: str) -> list[JobLease]:
        asked_at = self.clock.monotonic()
        length = duration_us(self.policy.lease_s)
        groups, dead = self._connections.run(CLAIM, queue, limit, bytes.fromhex(owner_token), length)
        log_dead_letters(dead)
        return leased(_rows(groups), queue, owner_token, asked_at)

    def enter(self, entries: Sequence[Entry]) -> list[Entered]:
        kinds = {slot.unless[0] for entry in entries for slot in entry.slots if slot.unless is not None}
        now, answers, dead = self._connections.run(ENTER, _pack(entry_rows(entries)), kinds=list(kinds))
        log_dead_letters(dead)
        return [entered(answer, now) for answer in answers]

    def repair(self) -> int:
        promoted, last, has_notes = 0, b"", 0
        while last is not None:
            number, last, dead, has_notes = self._connections.run(PROMOTE, last, CHECKED_SLOTS, REPAIRED_SLOTS)
            log_dead_letters(dead)
            promoted += number
        return promoted + (resolve_notes(self._connections) if has_notes else 0)

    def wait_for_work(self, queues: Sequence[str], timeout: float, *, wake: int | None = None) -> None:
        give_up_at = self.clock.monotonic() + timeout
        while True:
            now, due = self._connections.run(LOOK, *queues)
            left = min(give_up_at - self.clock.monotonic(), LOOK_EVERY_S)
            if due >= 0:
                left = min(left, (due - now) / 1e6)
            # A hint that was given after this poll is still there, and ends the wait at once.
            if left <= 0 or self._connections.wait(queues, left, wake):
                return

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        words, places = _settlements(settlements)
        head: _Words = [self.policy.crash_limit]
        if _carry(settlements):
            jobs, extras = _extras(settlements, places)
            tail: _Words = [extras, *words]
            _, [answers, *refusal] = self._compare(CARRY_AND_SETTLE, head, jobs, tail, kinds=_kinds(settlements))
            if refusal:
                raise _unique_conflict(refusal[0])
        else:
            answers = self._connections.run(SETTLE, *head, *words)
        return _answers(answers, places)

    def exchange(
        self, settlements: Sequence[Settlement], queue: str, limit: int, *, owner_token: str
    ) -> tuple[list[bool], list[JobLease]]:
        asked_at = self.clock.monotonic()
        words, places = _settlements(settlements)
        length, token = duration_us(self.policy.lease_s), bytes.fromhex(owner_token)
        head: _Words = [queue, limit, token, length, self.policy.crash_limit]
        if _carry(settlements):
            jobs, extras = _extras(settlements, places)
            tail: _Words = [extras, *words]
            _, [answers, groups, dead] = self._compare(CARRY_AND_EXCHANGE, head, jobs, tail, kinds=_kinds(settlements))
            if answers is None:
                raise _unique_conflict(groups)
        else:
            answers, groups, dead = self._connections.run(EXCHANGE, *head, *words)
        log_dead_letters(dead)
        return _answers(answers, places), leased(_rows(groups), queue, owner_token, asked_at)

    def renew_many(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._states(RENEW, leases)

    def lease_states(self, leases: Sequence[JobLease]) -> list[LeaseState]:
        return self._states(LEASES, leases)

    def _states(self, script: Script, leases: Sequence[JobLease]) -> list[LeaseState]:
        words = [word for lease in leases for word in (lease.token, bytes.fromhex(lease.owner_token))]
        answers: list[int] = self._connections.run(script, *words)
        return [lease_state(None if answer == 0 else answer == 2) for answer in answers]

    def report_progress(self, reports: Sequence[tuple[JobLease, Progress]]) -> list[bool]:
        kept = [(lease, kept_progress(progress, 0)) for lease, progress in reports]
        return self._report("progress", [(lease, (one.done, one.total, one.message)) for lease, one in kept])

    def report_output(self, reports: Sequence[tuple[JobLease, LiveOutput]]) -> list[bool]:
        kept = [(lease, kept_output(output)) for lease, output in reports]
        return self._report("output", [(lease, (one.start, one.text)) for lease, one in kept])

    def _report(self, what: str, reports: Sequence[tuple[JobLease, Row]]) -> list[bool]:
        words: _Words = [what]
        for lease, report in reports:
            words += (lease.token, bytes.fromhex(lease.owner_token), _pack(report))
        return [answer == 1 for answer in self._connections.run(REPORT, *words)]

    def expire_leases(self, sessions: Sequence[bytes]) -> int:
        expired: int
        expired, dead = self._connections.run(EXPIRE, *sessions)
        log_dead_letters(dead)
        return expired

    def reap_expired(self, queue: str | None = None) -> int:
        run = abandoned_run(0, 0)
        line = run.error.line if run.error else ""
        queues = () if queue is None else (queue,)
        words: _Words = [self.policy.crash_limit, _details(run), line, PRUNE_BATCH, *queues]
        return until_done(lambda: self._reap(words))

    def _reap(self, words: _Words) -> int:
        reaped: int
        reaped, dead = self._connections.run(REAP, *words)
        log_dead_letters(dead)
        return reaped

    def pause(self, queue: str, reason: str = "") -> None:
        self._connections.run(PAUSE, queue, reason)

    def resume(self, queue: str) -> bool:
        return bool(self._connections.run(RESUME, queue))

    def pauses(self) -> Sequence[QueuePause]:
        found: dict[bytes, bytes] = self._connections.call("HGETALL", f"{self._connections.base}pauses")
        parted = [(queue, *stored.partition(b" ")) for queue, stored in sorted(found.items())]
        return pauses((queue, reason, int(since) if since.isdigit() else 0) for queue, since, _, reason in parted)


def _refuse_too_many(envelopes: Sequence[JobEnvelope]) -> None:
    edges = sum(len(one.after) for one in envelopes)
    if edges > MOST_EDGES:
        raise NotSupported(
            f"{edges:,} dependencies between jobs are too many for one call to Redis; nothing was enqueued: enqueue "
            f"jobs with at most {MOST_EDGES:,} dependencies at a time"
        )
    size = sum(len(one.wire) for one in envelopes)
    if len(envelopes) > MOST_JOBS or size > MOST_BYTES:
        raise NotSupported(
            f"{len(envelopes):,} jobs of {size / 2**20:,.0f} MiB are too many for one call to Redis; nothing was "
            f"enqueued: enqueue at most {MOST_JOBS:,} jobs or {MOST_BYTES // 2**20} MiB at a time"
        )


def _job_words(envelopes: Sequence[JobEnvelope]) -> _Words:
    """The arguments for jobs, as `accepting.lua` takes them."""
    words: _Words = [len(envelopes)]
    for one in envelopes:
        delay = duration_us(one.delay) if one.delay > 0 else 0
        due = 0 if one.run_at is None else to_us(one.run_at)
        words += (one.id, one.queue, one.job, one.priority, one.wire, delay, due)
    return words


def _unique_conflict(found: Sequence[bytes]) -> UniqueConflict:
    key, job_id = found
    return UniqueConflict(text(key), text(job_id))


def _refuse_other_content(envelope: JobEnvelope, digest: bytes) -> None:
    if content_digest(envelope.wire) != digest:
        raise IdConflict(envelope.id)


def _carry(settlements: Sequence[Settlement]) -> bool:
    """Whether any of them leaves a slot, or carries writes or jobs."""
    return any(one.leaves or one.writes or one.enqueues for one in settlements)


def _extras(settlements: Sequence[Settlement], places: Sequence[int]) -> tuple[list[JobEnvelope], bytes]:
    """The jobs that settlements enqueue, and what each settlement carries, as `carrying.lua` takes it. `places` has the
    settlement of each answer.
    """
    extras_of(settlements)  # refuses conditions
    answers = {place: number for number, place in enumerate(places, 1)}
    # An id with several contents has a number for each.
    jobs: dict[tuple[str, bytes], tuple[int, JobEnvelope]] = {}

    def number_of(envelope: JobEnvelope) -> int:
        content = envelope.id, content_digest(envelope.wire)
        return jobs.setdefault(content, (len(jobs) + 1, envelope))[0]

    carried = [
        (
            answers[place],
            packed(str(one.lease.token).encode(errors=ESCAPED)),
            packed(bytes.fromhex(one.lease.owner_token)),
            one.lease.delivery,
            write_rows(one.writes),
            [number_of(envelope) for envelope in one.enqueues],
            one.leaves,
            [(number_of(job), *unique_row(job.unique)) for job in one.enqueues if job.unique is not None],
            str(CODES[effect_of(one).state]),
            keeps_turn(one),
            parent_rows([(number_of(job), job) for job in one.enqueues if job.after]),
        )
        for place, one in enumerate(settlements)
        if one.leaves or one.writes or one.enqueues
    ]
    enqueues = [envelope for _, envelope in jobs.values()]
    _refuse_too_many(enqueues)
    return enqueues, _pack(carried)


def _kinds(settlements: Sequence[Settlement]) -> list[str]:
    """The kinds of cells that these settlements write."""
    return list({write.kind for one in settlements for write in one.writes})


class _Successes:
    """Acknowledgements of one claim at the same delivery, which are nearly all settlements."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.times: list[int] = []
        self.details: _Words = []
        self.places: list[int] = []

    def words(self, owner_token: str, queue: str, delivery: int) -> _Words:
        times = struct.pack(f">{len(self.times)}q", *self.times)
        head: _Words = ["acks", bytes.fromhex(owner_token), queue, delivery, _pack(self.ids), times]
        return [*head, len(self.details) // 2, *self.details]


def _settlements(settlements: Sequence[Settlement]) -> tuple[_Words, list[int]]:
    """The arguments for settlements, and the place of the settlement that each answer is for.

    Successes are sent together unless another verdict comes between them: of two verdicts on a job the first counts.
    """
    words: _Words = []
    places: list[int] = []
    together: dict[tuple[str, str, int], _Successes] = {}
    for place, one in enumerate(settlements):
        lease, record = one.lease, one.record
        if type(one) is not Ack or (record is not None and record.outcome is not Outcome.SUCCEEDED):
            _flush(together, words, places)
            words += _other(one)
            places.append(place)
            continue
        claim = (lease.owner_token, lease.queue, lease.delivery)
        successes = together.get(claim)
        if successes is None:
            successes = together[claim] = _Successes()
        successes.ids.append(lease.id)
        successes.places.append(place)
        successes.times += NO_TIMES if record is None else (record.started_us, record.ended_us)
        if record is not None and not record.is_plain_success:
            successes.details += (len(successes.ids), _details_with_sign(record))
    _flush(together, words, places)
    return words, places


def _flush(together: dict[tuple[str, str, int], _Successes], words: _Words, places: list[int]) -> None:
    for claim, successes in together.items():
        words += successes.words(*claim)
        places += successes.places
    together.clear()


def _other(settlement: Settlement) -> _Words:
    lease, effect, record = settlement.lease, effect_of(settlement), settlement.record
    token = bytes.fromhex(lease.owner_token)
    return [
        "one",
        lease.token,
        lease.queue,
        lease.delivery,
        token,
        _ended(token + VERDICTS[effect.verdict], record),
        _details_with_sign(record),
        CODES[effect.state],
        int(effect.adds_attempt),
        CRASHES[effect.crashes],
        record.error.line if record and record.error else "",
        effect.dead_reason or effect.cancel_reason or "",
        int(effect.expired),
        duration_us(effect.delay),
    ]


def _ended(head: bytes, record: AttemptRecord | None) -> bytes:
    """The result of a delivery: claim and verdict, outcome, start and end. Short, so that the record stays small."""
    if record is None:
        return head
    return head + f"{record.outcome.value} {record.started_us} {record.ended_us}".encode()


def _details(record: AttemptRecord | None) -> bytes:
    """The other details of an attempt, of which there are usually none."""
    details = () if record is None else attempt_columns(record)[3:]
    return b"" if all(word is None for word in details) else _pack(details)


def _details_with_sign(record: AttemptRecord | None) -> bytes:
    """The same for a settlement, after a sign: `+` if they include the output."""
    details = _details(record)
    return (b"+" if record is not None and record.output else b"-") + details if details else b""


def _pack(values: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode(values)


def _answers(answers: bytes, places: Sequence[int]) -> list[bool]:
    found = [False] * len(places)
    for place, answer in zip(places, answers, strict=True):
        found[place] = answer != REFUSED
    return found


def _rows(groups: Sequence[Any]) -> list[Row]:
    rows: list[Row] = []
    for claimed_us, length, left, names, wires, numbers in groups:
        ids, handles = _ids(names)
        if not numbers:
            rows += [
                (handle, id, wire or b"", length, claimed_us, 1, 0, 0, 0, left)
                for handle, id, wire in zip(handles, ids, wires, strict=True)
            ]
            continue
        each = iter(numbers)
        for handle, id, wire, *counts in zip(handles, ids, wires, each, each, each, each, strict=True):
            rows.append((handle, id, wire or b"", length, claimed_us, *counts, left))
    return rows


def _ids(names: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """The ids of jobs, and the handles by which their leases are settled. They differ only if a name is not UTF-8: no
    message has such an id, so the worker dead-letters the job.
    """
    try:
        ids = [name.decode() for name in names]
    except UnicodeDecodeError:
        return [text(name) for name in names], [name.decode(errors=ESCAPED) for name in names]
    return ids, ids
