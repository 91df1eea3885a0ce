"""The application that the fault tests run: its jobs write into a ledger what they do, and wait where a test wants.

`python -m tests.faults.app JOB NUMBER` is its producer: it enqueues so many, says each id, and stays.
"""

import os
import sys
import time
from pathlib import Path

from holdfast import Holdfast
from holdfast.handlers import JobContext

hf = Holdfast()
_here = Path.cwd()
_ledger = os.open(_here / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _note(what: str, context: JobContext) -> None:
    # One write to a file opened for appending is whole, whoever else writes and whoever is killed.
    os.write(_ledger, f"{what} {context.id} {os.getpid()}\n".encode())


def quick(context: JobContext) -> None:
    _note("end", context)


def brief(context: JobContext) -> None:
    _note("start", context)
    time.sleep(0.01)
    _note("end", context)


def gated(context: JobContext) -> int:
    """Wait at a gate of this process's own; opening it is up to the test."""
    gate = _here / f"gate-{os.getpid()}"
    os.mkfifo(gate)
    _note("start", context)
    gate.read_bytes()
    _note("end", context)
    return os.getpid()


for job in (quick, brief, gated):
    hf.registry.register(job.__name__, job)


def produce(job: str, number: int) -> None:
    definition = hf.define(job).definition()
    for _ in range(number):
        os.write(1, f"{hf.enqueue(definition)}\n".encode())
    sys.stdin.read()


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]))
