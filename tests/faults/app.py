"""The application of the fault tests. Its jobs write to a ledger, and wait where a test wants.

`python -m tests.faults.app JOB NUMBER` is a producer: it enqueues this many jobs, prints each id, and keeps running.
With `endless` instead of a number it continues until its stdin is closed, and repeats calls while the engine is
unavailable.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.errors import BackendUnavailable
from holdfast.handlers import JobContext
from holdfast.queues.contract import Engine
from holdfast.values import JobEnvelope, Settlement
from holdfast.worker.executors import guardian

from .ledgers import append_line
from .processes import parent_of

# Fewer than two workers could process: it only matters that a job is always running.
BATCH = 2
PAUSE_S = 0.05

hf = Holdfast()
_here = Path.cwd()
# The guardian is the parent of an executor child, and the worker is the parent of the guardian.
_worker = parent_of(os.getppid())
# A test may replace the program of the guardians.
guardian.__file__ = os.environ.get("GUARDIAN", guardian.__file__)


def _note(what: str, context: JobContext, pid: int | None = None) -> None:
    append_line(_here / "ledger", what, context.id, pid or os.getpid(), _worker)


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


def slow_once(context: JobContext) -> None:
    """Wait in the first run, until its worker interrupts it; finish at once in the next one."""
    begun = _here / f"begun-{context.id}"
    is_first = not begun.exists()
    begun.touch()  # before the note: a test that reads it may have this run interrupted at once
    _note("start", context)
    if is_first:
        time.sleep(1000)
    _note("end", context)


def gated(context: JobContext) -> int:
    """Wait at the gate of this run until the test opens it."""
    gate = _here / f"gate-{context.id}-{os.getpid()}"
    os.mkfifo(gate)
    _note("start", context)
    gate.read_bytes()
    _note("end", context)
    return os.getpid()


def hungry(context: JobContext) -> int:
    """Wait at the gate of this run, and then use 150 MB."""
    pid = gated(context)
    return pid if b"x" * (150 * 1024 * 1024) else 0


def familial(context: JobContext) -> int:
    """Start a child, a grandchild and a detached process in another session; then wait at the gate."""
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


def effects(context: JobContext, table: str) -> None:
    """Write a row and enqueue a job in the transaction that completes this job."""
    transaction = context.transaction()
    _note("start", context)
    transaction.cursor().execute(f"INSERT INTO {table} VALUES ('{context.id}')")
    hf.define("quick").dispatch(tx=transaction)
    _note("end", context)


def pays(context: JobContext, table: str) -> str:
    """Write a row in the transaction that completes this job, and return the number of the fence."""
    transaction = context.transaction()
    _note("start", context)
    transaction.cursor().execute(f"INSERT INTO {table} VALUES ('{context.id}')")
    _note("end", context)
    return f"fence {context.fence}"


def broken(context: JobContext) -> None:
    _note("start", context)
    raise ValueError("it is broken")


def half(context: JobContext, table: str) -> None:
    """Write a row in the transaction that would complete this job, and fail."""
    transaction = context.transaction()
    transaction.cursor().execute(f"INSERT INTO {table} VALUES ('{context.id}')")
    broken(context)


for job in (quick, brief, slow, slow_once, gated, hungry, familial, effects, pays, broken, half):
    hf.registry.register(job.__name__, job)


def _dying(verb: str, real: Callable[..., Any], is_meant: Callable[..., bool]) -> Callable[..., Any]:
    """The verb of an engine, which kills this process before or after it, if the test wants that."""

    def call(*args: Any, **options: Any) -> Any:
        if is_meant(*args) and os.environ["DIE"] == f"before {verb}":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(*args, **options)
        if is_meant(*args) and os.environ["DIE"] == f"after {verb}":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


def _carries(engine: Engine, settlements: Sequence[Settlement], *_: object) -> bool:
    return any(one.leaves or one.enqueues for one in settlements)


if "DIE" in os.environ:
    Engine.enter = _dying("enter", Engine.enter, lambda *_: True)  # type: ignore[method-assign]
    Engine.settle = _dying("settle", Engine.settle, _carries)  # type: ignore[method-assign]
    Engine.exchange = _dying("settle", Engine.exchange, _carries)  # type: ignore[method-assign]
    Engine.accept = _dying("accept", Engine.accept, lambda *_: True)  # type: ignore[method-assign]
    Engine.reap_expired = _dying("reap", Engine.reap_expired, lambda *_: True)  # type: ignore[method-assign]


def produce(job: str, number: int) -> None:
    definition = hf.define(job).definition()
    for _ in range(number):
        os.write(1, f"{hf.enqueue(definition)}\n".encode())
    sys.stdin.read()


def produce_for_ever(job: str) -> None:
    definition, engine = hf.define(job).definition(), hf.backend()
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        envelopes = [engine.envelopes.make(definition) for _ in range(BATCH)]
        while not _is_accepted(envelopes):
            time.sleep(PAUSE_S)
        os.write(1, "".join(f"{one.id}\n" for one in envelopes).encode())


def _is_accepted(envelopes: list[JobEnvelope]) -> bool:
    try:
        hf.backend().accept(envelopes)
    except BackendUnavailable:
        return False
    return True


if __name__ == "__main__":
    if sys.argv[2] == "endless":
        produce_for_ever(sys.argv[1])
    else:
        produce(sys.argv[1], int(sys.argv[2]))
