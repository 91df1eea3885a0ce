"""The same job for Huey, in a `RedisHuey` without results."""

import json
import os
import time
from importlib import import_module
from typing import Any

from bench_job import note_start, payload, probed

# Huey has no types, and need not be installed where this is checked.
_package: Any = import_module("huey")
huey: Any = _package.RedisHuey(url=os.environ["BENCH_SERVER"], results=False)


def noop(number: int, address: str, text: str) -> None:
    note_start(number)


task: Any = huey.task()(noop)


def fill(jobs: int) -> None:
    """Enqueue that many jobs, one by one as it has no call for many, and print how long it took."""
    began = time.perf_counter()
    for number in range(jobs):
        task(**payload(number))
    print(json.dumps({"seconds": time.perf_counter() - began}))


def probe(jobs: int) -> None:
    times: dict[int, tuple[int, int]] = {}
    for number in range(jobs):
        with probed(number, times):
            task(**payload(number))
    print(json.dumps(times))
