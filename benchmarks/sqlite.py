"""What the embedded engine costs per job, beside the very statements it uses, and how that changes with the backlog.

    .venv/bin/python benchmarks/sqlite.py [--jobs 4000] [--rounds 5] [--backlogs 1000,100000,1000000] [--directory DIR]

Ours and raw take turns on the same file in one run, so that the ratio survives a noisy machine; absolute numbers do
not compare between hours. "Raw" is the engine's own SQL in the same transactions, on plain tuples: no leases, values,
records or checks.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.clock import from_us
from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.backends import sqlite as engine
from holdfast.queues.backends.sqlite import SqliteBackend
from holdfast.queues.contract import new_owner_token
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Ack, AttemptRecord, Outcome, Settlement

PAYLOAD = encode_payload({"user": 12345, "address": "someone@example.org", "text": "x" * 40})
BATCHES = (1, 10, 100)
FILL_BATCH = 10_000


def fill(backend: SqliteBackend, jobs: int) -> None:
    """Accept that many waiting jobs."""
    definition = JobDefinition(handler="noop", payload=PAYLOAD)
    for start in range(0, jobs, FILL_BATCH):
        many = range(min(FILL_BATCH, jobs - start))
        backend.accept([backend.envelopes.make(definition) for _ in many])


def drain(backend: SqliteBackend, batch: int, jobs: int) -> float:
    """Seconds per job through the engine: settle one batch and claim the next in one transaction."""
    settlements: list[Settlement] = []
    done = 0
    started = time.perf_counter()
    while done < jobs:
        now = from_us(time.time_ns() // 1000)
        answers, leases = backend.exchange(settlements, "default", batch, owner_token=new_owner_token())
        assert all(answers)
        assert leases, "the backlog is too small for this run"
        record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_at=now, ended_at=now)
        settlements = [Ack(lease=lease, record=record) for lease in leases]
        done += len(leases)
    assert all(backend.settle(settlements))
    return (time.perf_counter() - started) / done


def drain_raw(connection: sqlite3.Connection, batch: int, jobs: int) -> float:
    """Seconds per job of the same statements alone."""
    held: list[int] = []
    token = b""
    deliveries: dict[int, int] = {}
    done = 0
    started = time.perf_counter()
    while done < jobs or held:
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        if held:
            query = {"seqs": json.dumps(held), "token": token, "now": now}
            settled = connection.execute(engine.ACK, query).fetchall()
            assert len(settled) == len(held)
            rows = [(seq, deliveries[seq], token, "ack", "succeeded", now, now) for seq in held]
            connection.executemany(engine.INSERT_PLAIN_ATTEMPT, rows)
        held = []
        if done < jobs:
            token = bytes.fromhex(new_owner_token())
            connection.execute(engine.STAMPED, (token, "default", now)).fetchall()
            connection.execute(engine.IS_PAUSED, ("default",)).fetchone()
            query = {"queue": "default", "now": now, "limit": batch}
            held = [seq for seq, _ in connection.execute(engine.CANDIDATES, query)]
            stamp = {"token": token, "now": now, "lease": 60_000_000, "seqs": json.dumps(held)}
            connection.execute(engine.CLAIM, stamp)
            leased = connection.execute(engine.LEASES, {"seqs": json.dumps(held), "now": now}).fetchall()
            deliveries = {row[0]: row[5] for row in leased}
            done += len(held)
        connection.execute("COMMIT")
    return (time.perf_counter() - started) / done


def in_turns(rounds: int, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """The medians of two measurements that take turns."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return statistics.median(one for one, _ in pairs), statistics.median(other for _, other in pairs)


def measure(path: Path, backlog: int, *, finished: int, jobs: int, rounds: int) -> dict[int, tuple[float, float]]:
    """Microseconds per job, ours and raw, for each batch size, on a file with that many jobs waiting (and finished)."""
    backend = SqliteBackend(path, EnvelopeFactory(Keyring([SigningKey.generate()])))
    with backend:
        if finished:
            fill(backend, finished)
            drain(backend, 1000, finished)
        fill(backend, backlog)
        backend.file.checkpoint()
        connection = backend.file.connection()
        costs: dict[int, tuple[float, float]] = {}
        for batch in BATCHES:
            number = max(batch, min(jobs, batch * 200))

            def ours(batch: int = batch, number: int = number) -> float:
                fill(backend, number)
                backend.file.checkpoint()
                return drain(backend, batch, number)

            def raw(batch: int = batch, number: int = number) -> float:
                fill(backend, number)
                backend.file.checkpoint()
                return drain_raw(connection, batch, number)

            costs[batch] = in_turns(rounds, ours, raw)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backlogs", default="1000,100000,1000000")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="a local disk, not a memory file system")
    options = parser.parse_args()
    table: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    for backlog in (int(part) for part in options.backlogs.split(",")):
        for finished in (0, backlog):
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                path = Path(directory) / "jobs.db"
                costs = measure(path, backlog, finished=finished, jobs=options.jobs, rounds=options.rounds)
            table[backlog, finished] = costs
            for batch, (ours, raw) in costs.items():
                print(
                    f"{backlog:>9,} waiting {finished:>9,} finished  batch {batch:>3}: "
                    f"{ours * 1e6:8.1f} µs a job, raw {raw * 1e6:8.1f} µs, ratio {ours / raw:.2f}",
                    flush=True,
                )
    smallest, largest = min(table), max(table)
    for batch in BATCHES:
        growth = table[largest][batch][0] / table[smallest][batch][0]
        print(f"batch {batch:>3}: a backlog of {largest[0]:,} costs {growth:.2f} × of one of {smallest[0]:,}")


if __name__ == "__main__":
    main()
