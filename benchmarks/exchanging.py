"""The exchange of an engine (settle a batch, claim the next) in a tight loop in one process, without a worker: by the
engine, and by the bare driver with the same statements and prepared parameters, without converting rows to values.
"""

import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec
import pymysql
import redis

from holdfast import Holdfast
from holdfast.clock import duration_us
from holdfast.queues.contract import DEFAULT_CRASH_LIMIT, DEFAULT_LEASE_S, new_owner_token
from holdfast.queues.engines.mysql import claims as mysql_claims, connections as mysql_connections, jobs as mysql
from holdfast.queues.engines.mysql.lanes import mark_of
from holdfast.queues.engines.postgres import jobs as postgres
from holdfast.queues.engines.postgres.connections import PostgresConnections
from holdfast.queues.engines.postgres.statements import numbers
from holdfast.queues.engines.redis import jobs as redis_engine
from holdfast.values import DEFAULT_QUEUE, Ack, AttemptRecord, JobLease, Outcome
from servers import MariadbPlace, Place, PostgresPlace, RedisPlace

LEASE_US: Final = duration_us(DEFAULT_LEASE_S)
TOOK_US: Final = 100
# The driver's types are incomplete.
_redis: Any = redis


def by_engine(hf: Holdfast, jobs: int, batch: int) -> float:
    """Jobs a second by the engine's own `exchange`."""
    engine = hf.backend()
    began, done = time.perf_counter(), 0
    leases = engine.claim(DEFAULT_QUEUE, batch, owner_token=new_owner_token())
    while leases:
        acks = _acks(leases)
        answers, leases = engine.exchange(acks, DEFAULT_QUEUE, batch, owner_token=new_owner_token())
        assert all(answers)
        done += len(answers)
    rate = done / (time.perf_counter() - began)
    assert done == jobs
    return rate


def _acks(leases: Sequence[JobLease]) -> list[Ack]:
    now = time.time_ns() // 1000
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now - TOOK_US, ended_us=now)
    return [Ack(lease=lease, record=record) for lease in leases]


def by_driver(place: Place, jobs: int, batch: int) -> float:
    """Jobs per second with the bare driver. The next jobs are known: they are due in the order of their numbers."""
    match place:
        case PostgresPlace():
            return _by_psycopg(place, jobs, batch)
        case MariadbPlace():
            return _by_pymysql(place, jobs, batch)
        case RedisPlace():
            return _by_redis(place, jobs, batch)
        case _:
            raise AssertionError(place)


@dataclass(frozen=True)
class _Step:
    """One exchange: the jobs of the batch before and their claim, which are acknowledged, and the next claim."""

    ended: Sequence[Any]
    ended_by: bytes
    claim: bytes
    claims: int


def _steps(jobs: Sequence[Any], batch: int) -> Iterator[_Step]:
    batches = [jobs[start : start + batch] for start in range(0, len(jobs), batch)]
    tokens = [secrets.token_bytes(16) for _ in range(len(batches) + 1)]
    before: Sequence[Any] = ()
    for place, these in enumerate([*batches, ()]):
        yield _Step(before, tokens[place - 1], tokens[place], len(these))
        before = these


def _by_psycopg(place: PostgresPlace, jobs: int, batch: int) -> float:
    connections = PostgresConnections(place.url, prefix="holdfast_")
    sql, now = connections.sql, time.time_ns() // 1000
    seqs = [seq for (seq,) in place.connection.execute("SELECT seq FROM holdfast.jobs ORDER BY seq")]
    assert len(seqs) == jobs
    steps = [
        (
            {
                "seqs": numbers(step.ended),
                "starts": numbers([now - TOOK_US] * len(step.ended)),
                "ends": numbers([now] * len(step.ended)),
                "token": step.ended_by,
            }
            if step.ended
            else None,
            {
                "queue": DEFAULT_QUEUE,
                "limit": batch,
                "token": step.claim,
                "lease": LEASE_US,
                "gate": int.from_bytes(step.claim[8:], "big", signed=True),
            },
            step,
        )
        for step in _steps(seqs, batch)
    ]
    with connections.open() as connection:
        began = time.perf_counter()
        for ack, claim, step in steps:
            with connection.pipeline():
                acked = None if ack is None else connection.execute(sql(postgres.ACK), ack, binary=True)
                connection.execute(sql(postgres.GATE), claim)
                claimed = connection.execute(sql(postgres.CLAIM), claim, binary=True)
            assert claimed.rowcount == step.claims
            assert acked is None or acked.rowcount == len(step.ended)
        return jobs / (time.perf_counter() - began)


def _by_redis(place: RedisPlace, jobs: int, batch: int) -> float:
    script, base, now = redis_engine.EXCHANGE, "{holdfast_}:", time.time_ns() // 1000
    jobs_by_number = place.client.zrange(f"{base}jobs", 0, -1)
    assert len(jobs_by_number) == jobs
    connection = _redis.Connection(host="127.0.0.1", port=place.server.port, protocol=2)
    place.client.script_load(script.source)
    times = struct.pack(">qq", now - TOOK_US, now)
    steps: list[tuple[list[bytes], _Step]] = []
    for step in _steps(jobs_by_number, batch):
        words: list[Any] = ["EVALSHA", script.digest, 1, base, DEFAULT_QUEUE, batch, step.claim, LEASE_US]
        words.append(DEFAULT_CRASH_LIMIT)
        if step.ended:
            ids = msgspec.msgpack.encode([id.decode() for id in step.ended])
            words += ("acks", step.ended_by, DEFAULT_QUEUE, 1, ids, times * len(step.ended), 0)
        steps.append((connection.pack_command(*words), step))
    connection.connect()
    began = time.perf_counter()
    for packed, step in steps:
        connection.send_packed_command(packed)
        answers, groups = connection.read_response()
        assert answers == b"1" * len(step.ended)
        assert sum(len(group[3]) for group in groups) == step.claims
    rate = jobs / (time.perf_counter() - began)
    connection.disconnect()
    return rate


def _by_pymysql(place: MariadbPlace, jobs: int, batch: int) -> float:
    now, mark = time.time_ns() // 1000, mark_of(DEFAULT_QUEUE)
    with place.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT seq FROM holdfast_jobs ORDER BY seq")
        seqs = [seq for (seq,) in cursor.fetchall()]
        assert len(seqs) == jobs
        steps = [(_mysql_acks(cursor, step, now), step) for step in _steps(seqs, batch)]
        claims: list[list[str]] = [
            [
                cursor.mogrify(mysql_claims.CLAIM, {"token": step.claim, "now": now, "lease": LEASE_US, "seqs": some})
                for some in mysql_connections.chunks(next_step.ended)
            ]
            for (_, step), (_, next_step) in pairwise(steps)
        ]
        began = time.perf_counter()
        for (acks, step), stamps in zip(steps, [*claims, []], strict=True):
            cursor.execute("START TRANSACTION")
            cursor.execute(mysql_claims.PASS_GATE, (step.claim[0],))
            for statement in acks:
                cursor.execute(statement)
            cursor.execute(mysql_claims.LOOK, {"queue": DEFAULT_QUEUE, "mark": mark, "token": step.claim})
            seen = dict(cursor.fetchall())
            if stamps:
                [(lane, first)] = [(lane, due) for lane, due in seen.items() if lane >= 0]
                assert (
                    cursor.execute(mysql_claims.LOCK_DUE, (lane, mark, first, seen[mysql_claims.NOW], batch))
                    == step.claims
                )
                for statement in stamps:
                    cursor.execute(statement)
            cursor.execute("COMMIT")
        return jobs / (time.perf_counter() - began)


def _mysql_acks(cursor: "pymysql.cursors.Cursor", step: _Step, now: int) -> list[str]:
    told = {"token": step.ended_by, "now": now}
    acks = [cursor.mogrify(mysql.ACK, told | {"seqs": some}) for some in mysql_connections.chunks(step.ended)]
    ends = [mysql.SUCCESS % (seq, 1, step.ended_by.hex(), now - TOOK_US, now) for seq in step.ended]
    return acks + [
        mysql.INSERT_SUCCESSES + ", ".join(ends[start : start + mysql.SUCCESSES_AT_ONCE])
        for start in range(0, len(ends), mysql.SUCCESSES_AT_ONCE)
    ]
