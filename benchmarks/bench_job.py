"""The job that every contender runs: it records when it started, in a file in memory, and does nothing else.

Every process maps the same file, in which each job has its own slot. This costs less than a microsecond, the same for
every contender.
"""

import functools
import mmap
import os
import random
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict

LEDGER_VARIABLE: Final = "BENCH_LEDGER"
_instant = struct.Struct("=q")


class Payload(TypedDict):
    """About 100 bytes as JSON."""

    number: int
    address: str
    text: str


def payload(number: int) -> Payload:
    return {"number": number, "address": "someone@example.org", "text": "x" * 40}


def note_start(number: int) -> None:
    """All that a job does."""
    ledger, place = _ledger(), number * _instant.size
    if ledger[place] != 0:
        _instant.pack_into(ledger, len(ledger) - _instant.size, number + 1)
        raise AssertionError(f"job {number} has started before")
    _instant.pack_into(ledger, place, time.time_ns() | 1)  # never a first byte of 0


@functools.cache
def _ledger() -> mmap.mmap:
    with open(os.environ[LEDGER_VARIABLE], "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def make_ledger(ledger: Path, jobs: int) -> None:
    """A new one, with a place for each job, and one for a job that was started twice."""
    ledger.write_bytes(bytes((jobs + 1) * _instant.size))


def has_begun(ledger: Path) -> bool:
    with ledger.open("rb") as file:
        return any(file.read(_instant.size))


def starts(ledger: Path) -> dict[int, int]:
    """When each job started, in nanoseconds since the epoch."""
    with _opened(ledger) as instants:
        places = _instant.iter_unpack(instants[: -_instant.size])
        return {number: instant for number, (instant,) in enumerate(places) if instant}


def count_starts(ledger: Path) -> int:
    """How many jobs have started; cheap enough to be asked all the time."""
    with _opened(ledger) as instants:
        return len(instants) // _instant.size - instants[:: _instant.size].count(0)


@contextmanager
def _opened(ledger: Path) -> Generator[mmap.mmap]:
    with ledger.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as instants:
        (twice,) = _instant.unpack_from(instants, len(instants) - _instant.size)
        if twice:
            raise SystemExit(f"job {twice - 1} was started twice")
        yield instants


@contextmanager
def probed(number: int, times: dict[int, tuple[int, int]]) -> Generator[None]:
    """The start and the return of the call that enqueues this job, after a while without work.

    The first job must have started before the second is enqueued: until then the worker is not ready.
    """
    ledger = Path(os.environ[LEDGER_VARIABLE])
    while number > 0 and not has_begun(ledger):
        time.sleep(0.05)
    time.sleep(random.uniform(0.02, 0.2))
    called = time.time_ns()
    yield
    times[number] = called, time.time_ns()
