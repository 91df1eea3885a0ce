"""The same job for PgQueuer, on asyncpg and uvloop as its own command runs it; that command fails to start here."""

import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

from bench_job import note_start, payload, probed

# Not installed where this is checked.
_asyncpg: Any = import_module("asyncpg")
_pgqueuer: Any = import_module("pgqueuer")
_drivers: Any = import_module("pgqueuer.db")
_queries: Any = import_module("pgqueuer.queries")
_uvloop: Any = import_module("uvloop")

CHUNK = 1000
ENTRYPOINT = "noop"


async def noop(job: Any) -> None:
    note_start(json.loads(job.payload)["number"])


async def _work() -> None:
    pool = await _asyncpg.create_pool(os.environ["BENCH_SERVER"], min_size=2, max_size=4)
    worker = _pgqueuer.PgQueuer(_drivers.AsyncpgPoolDriver(pool))
    worker.entrypoint(ENTRYPOINT)(noop)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.shutdown.set)
    await worker.run(batch_size=int(os.environ["BENCH_BATCH"]), dequeue_timeout=timedelta(seconds=30))
    await pool.close()


def work() -> None:
    _uvloop.run(_work())


def fill(jobs: int) -> None:
    """Install it, enqueue that many jobs, a thousand a call, and print how long these took."""
    print(json.dumps({"seconds": _uvloop.run(_fill(jobs))}))


async def _fill(jobs: int) -> float:
    connection = await _asyncpg.connect(os.environ["BENCH_SERVER"])
    queries = _queries.Queries(_drivers.AsyncpgDriver(connection))
    await queries.install()
    began = time.perf_counter()
    for start in range(0, jobs, CHUNK):
        numbers = range(start, min(start + CHUNK, jobs))
        payloads = [json.dumps(payload(number)).encode() for number in numbers]
        await queries.enqueue([ENTRYPOINT] * len(numbers), payloads, [0] * len(numbers))
    seconds = time.perf_counter() - began
    await connection.close()
    return seconds


def probe(jobs: int) -> None:
    print(json.dumps(_uvloop.run(_probe(jobs))))


async def _probe(jobs: int) -> dict[int, tuple[int, int]]:
    connection = await _asyncpg.connect(os.environ["BENCH_SERVER"])
    queries = _queries.Queries(_drivers.AsyncpgDriver(connection))
    times: dict[int, tuple[int, int]] = {}
    for number in range(jobs):
        with probed(number, times):
            await queries.enqueue(ENTRYPOINT, json.dumps(payload(number)).encode(), 0)
    await connection.close()
    return times


if __name__ == "__main__":
    work()
