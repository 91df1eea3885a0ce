"""The same job for Dramatiq, on its Redis broker with its default middleware."""

import json
import os
import time
from importlib import import_module
from typing import Any

from bench_job import note_start, payload, probed

# Not installed where this is checked.
_dramatiq: Any = import_module("dramatiq")
_redis: Any = import_module("dramatiq.brokers.redis")

broker: Any = _redis.RedisBroker(url=os.environ["BENCH_SERVER"])
_dramatiq.set_broker(broker)


def noop(number: int, address: str, text: str) -> None:
    note_start(number)


actor: Any = _dramatiq.actor(max_retries=0)(noop)


def fill(jobs: int) -> None:
    """Enqueue that many jobs, one by one as it has no call for many, and print how long it took."""
    began = time.perf_counter()
    for number in range(jobs):
        actor.send(**payload(number))
    print(json.dumps({"seconds": time.perf_counter() - began}))


def probe(jobs: int) -> None:
    times: dict[int, tuple[int, int]] = {}
    for number in range(jobs):
        with probed(number, times):
            actor.send(**payload(number))
    print(json.dumps(times))
