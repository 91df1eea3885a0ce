"""The application that the fault tests run: its jobs write into a ledger what they do, and wait where a test wants.

`python -m tests.faults.app JOB NUMBER` is its producer: it enqueues so many, says each id, and stays.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from holdfast import Holdfast
from holdfast.handlers import JobContext

from .processes import parent_of

hf = Holdfast()
_here = Path.cwd()
_ledger = os.open(_here / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
# Between an executor child and its worker stands its guardian.
_worker = parent_of(os.getppid())


def _note(what: str, context: JobContext, pid: int | None = None) -> None:
    # One write to a file opened for appending is whole, whoever else writes and whoever is killed.
    os.write(_ledger, f"{what} {context.id} {pid or os.getpid()} {_worker}\n".encode())


def quick(context: JobContext) -> None:
    _note("end", context)


def brief(context: JobContext) -> None:
    _note("start", context)
    time.sleep(0.01)
    _note("end", context)


def slow(context: JobContext) -> None:
    _note("start", context)
    time.sleep(0.5)
    _note("end", context)


def gated(context: JobContext) -> int:
    """Wait at a gate of this very run; opening it is up to the test."""
    gate = _here / f"gate-{context.id}-{os.getpid()}"
    os.mkfifo(gate)
    _note("start", context)
    gate.read_bytes()
    _note("end", context)
    return os.getpid()


def familial(context: JobContext) -> int:
    """Have a child, a grandchild, and one that has left the session and both parents; then wait at the gate."""
    _note("relative", context, subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"]).pid)
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            _note("relative", context, os.getpid())
            time.sleep(1000)
        os._exit(0)
    os.waitpid(between, 0)
    return gated(context)


for job in (quick, brief, slow, gated, familial):
    hf.registry.register(job.__name__, job)


def produce(job: str, number: int) -> None:
    definition = hf.define(job).definition()
    for _ in range(number):
        os.write(1, f"{hf.enqueue(definition)}\n".encode())
    sys.stdin.read()


if __name__ == "__main__":
    produce(sys.argv[1], int(sys.argv[2]))
