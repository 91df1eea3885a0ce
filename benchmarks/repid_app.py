"""The same job for repid, on streams of Redis, with uvloop and without Pydantic."""

import asyncio
import json
import os
import time
from importlib import import_module
from typing import Any

from bench_job import note_start, payload, probed

# Not installed where this is checked.
_repid: Any = import_module("repid")
_uvloop: Any = import_module("uvloop")

CHANNEL = "bench"
# Concurrent calls, because it has no call for many jobs.
AT_ONCE = 100

app: Any = _repid.Repid()
# Each concurrent acknowledgement needs a connection, and those beyond the driver's limit of 100 would be lost.
server: Any = _repid.RedisServer(
    f"{os.environ['BENCH_SERVER']}?max_connections=4000", batch_size=int(os.environ.get("BENCH_BATCH", "10"))
)
app.servers.register_server("default", server, is_default=True)
router: Any = _repid.Router()


async def noop(number: int, address: str, text: str) -> None:
    note_start(number)


router.actor(channel=CHANNEL, converter=_repid.BasicConverter, routing_strategy=_repid.catch_all_routing_strategy)(noop)
app.include_router(router)


async def _work() -> None:
    async with server.connection():
        await app.run_worker(tasks_limit=int(os.environ["BENCH_TASKS"]))


def fill(jobs: int) -> None:
    """Enqueue that many jobs, and print how long it took."""
    print(json.dumps({"seconds": _uvloop.run(_fill(jobs))}))


async def _fill(jobs: int) -> float:
    async with server.connection():
        began = time.perf_counter()
        for start in range(0, jobs, AT_ONCE):
            await asyncio.gather(*(_send(number) for number in range(start, min(start + AT_ONCE, jobs))))
        return time.perf_counter() - began


async def _send(number: int) -> None:
    await app.send_message_json(channel=CHANNEL, payload=payload(number))


def probe(jobs: int) -> None:
    print(json.dumps(_uvloop.run(_probe(jobs))))


async def _probe(jobs: int) -> dict[int, tuple[int, int]]:
    times: dict[int, tuple[int, int]] = {}
    async with server.connection():
        for number in range(jobs):
            with probed(number, times):
                await _send(number)
    return times


if __name__ == "__main__":
    _uvloop.run(_work())
