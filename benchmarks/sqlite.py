"""The cost of a job in the embedded engine, compared with its bare statements, by the number of waiting jobs.

    .venv/bin/python benchmarks/sqlite.py [--jobs 20000] [--rounds 7] [--backlogs 1000,100000,1000000] [--directory DIR]

The engine, the bare statements ("raw") and the backlogs take turns in one run, so that the ratio is valid even on a
noisy machine; absolute numbers of different runs cannot be compared. Raw means the engine's own
SQL in the same transactions, on plain tuples: without leases, values, records or checks.
"""

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from itertools import chain
from pathlib import Path

from holdfast.codec import encode_payload
from holdfast.definition import JobDefinition
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.sqlite import jobs as engine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import Ack, AttemptRecord, Outcome, Settlement

PAYLOAD = encode_payload({"user": 12345, "address": "someone@example.org", "text": "x" * 40})
BATCHES = (1, 10, 100)
FILL_BATCH = 10_000


def fill(backend: SqliteEngine, jobs: int) -> None:
    """Accept that many waiting jobs."""
    definition = JobDefinition(handler="noop", payload=PAYLOAD)
    for start in range(0, jobs, FILL_BATCH):
        many = range(min(FILL_BATCH, jobs - start))
        backend.accept([backend.envelopes.make(definition) for _ in many])


def drain(backend: SqliteEngine, batch: int, jobs: int) -> float:
    """Seconds per job through the engine: settle one batch and claim the next in one transaction."""
    settlements: list[Settlement] = []
    done = 0
    started = time.perf_counter()
    while done < jobs:
        now = time.time_ns() // 1000
        answers, leases = backend.exchange(settlements, "default", batch, owner_token=new_owner_token())
        assert all(answers)
        assert leases, "the backlog is too small for this run"
        record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=now, ended_us=now)
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
            common = (token, "ack", "succeeded")
            assert connection.execute(engine.ACK, query).rowcount == len(held)
            rows = [(seq, deliveries[seq], now, now) for seq in held]
            many = len(rows) - len(rows) % engine.ROWS_AT_ONCE
            for start in range(0, many, engine.ROWS_AT_ONCE):
                values = chain(common, *rows[start : start + engine.ROWS_AT_ONCE])
                connection.execute(engine.INSERT_SUCCESSES, list(values))
            connection.executemany(engine.INSERT_SUCCESS, [(*common, *row) for row in rows[many:]])
        held = []
        if done < jobs:
            token = bytes.fromhex(new_owner_token())
            connection.execute(engine.STAMPED, (token, "default", now)).fetchall()
            connection.execute(engine.IS_PAUSED, ("default",)).fetchone()
            query = {"queue": "default", "now": now, "limit": batch}
            seqs, _, _ = connection.execute(engine.CHOSEN, query).fetchone()
            held = json.loads(seqs)
            stamp = {"token": token, "now": now, "lease": 60_000_000, "seqs": seqs}
            connection.execute(engine.CLAIM, stamp)
            leased = connection.execute(engine.LEASES, {"seqs": seqs, "now": now}).fetchall()
            deliveries = {row[0]: row[5] for row in leased}
            done += len(held)
        connection.execute("COMMIT")
    return (time.perf_counter() - started) / done


class Site:
    """One database file with a backlog, filled up again before each measurement."""

    def __init__(self, directory: Path, waiting: int, finished: int) -> None:
        self.waiting, self.finished = waiting, finished
        path = directory / f"{waiting}-{finished}.db"
        self.backend = SqliteEngine(path, EnvelopeFactory(Keyring([SigningKey.generate()])))
        if finished:
            fill(self.backend, finished)
            drain(self.backend, 1000, finished)
        fill(self.backend, waiting)

    def ours(self, batch: int, jobs: int) -> float:
        self._prepare(jobs)
        return drain(self.backend, batch, jobs)

    def raw(self, batch: int, jobs: int) -> float:
        self._prepare(jobs)
        return drain_raw(self.backend.file.connection(), batch, jobs)

    def _prepare(self, jobs: int) -> None:
        fill(self.backend, jobs)
        self.backend.file.checkpoint()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="at batch 100; a tenth of it at 10, a hundredth at 1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backlogs", default="1000,100000,1000000")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="a local disk, not a memory file system")
    options = parser.parse_args()
    backlogs = [int(part) for part in options.backlogs.split(",")]
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        sites = [Site(Path(directory), waiting, finished) for waiting in backlogs for finished in (0, waiting)]
        for batch in BATCHES:
            report(batch, sites, rounds=options.rounds, jobs=max(batch, options.jobs * batch // 100))
        for site in sites:
            site.backend.close()


def report(batch: int, sites: list[Site], *, rounds: int, jobs: int) -> None:
    """Measure every site in turn, round after round, and print the medians."""
    ours: dict[Site, list[float]] = {site: [] for site in sites}
    raw: dict[Site, list[float]] = {site: [] for site in sites}
    for _ in range(rounds):
        for site in sites:
            ours[site].append(site.ours(batch, jobs))
            raw[site].append(site.raw(batch, jobs))
    for site in sites:
        one, other = statistics.median(ours[site]), statistics.median(raw[site])
        ratio = statistics.median(ours[site][at] / raw[site][at] for at in range(rounds))
        growth = statistics.median(ours[site][at] / ours[sites[0]][at] for at in range(rounds))
        print(
            f"batch {batch:>3}  {site.waiting:>9,} waiting {site.finished:>9,} finished: {one * 1e6:7.1f} µs a job, "
            f"raw {other * 1e6:7.1f} µs, ratio {ratio:.2f}; {growth:.2f} × of the smallest backlog",
            flush=True,
        )


if __name__ == "__main__":
    main()
