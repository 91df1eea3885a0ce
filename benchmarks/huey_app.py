"""The same job for Huey, in a `SqliteHuey` with its defaults."""

import json
import os
from importlib import import_module
from typing import Any

from bench_job import note_start, payload

# Huey has no types, and need not be installed where this is checked.
_package: Any = import_module("huey")
huey: Any = _package.SqliteHuey(filename=os.environ["BENCH_HUEY_DATABASE"])


def noop(number: int, address: str, text: str) -> None:
    note_start(number)


task: Any = huey.task()(noop)


def fill(jobs: int) -> None:
    """Enqueue that many jobs, and print Huey's storage settings."""
    for number in range(jobs):
        task(**payload(number))
    connection = huey.storage.conn
    journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    huey.storage.close()
    print(json.dumps({"version": _package.__version__, "journal_mode": journal, "synchronous": synchronous}))
