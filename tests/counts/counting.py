"""Counting what each operation costs on one engine."""

import gc
import sys
from collections import Counter
from collections.abc import Generator
from hashlib import sha256
from inspect import CO_GENERATOR
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

from .operations import ONCE, OPERATIONS, Act, Operation
from .sites import Site
from .table import Row, Work, slope

PACKAGE = str(Path(holdfast.__file__).parent)
# Python versions differ in which of these are calls. How often a generator resumes can depend on the network.
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


def work_of(site: Site) -> Work:
    """The work of every operation on this engine."""
    return {operation.name: row for operation in OPERATIONS if (row := _row_of(site, operation))}


def _row_of(site: Site, operation: Operation) -> Row:
    counts: list[Counter[str]] = []
    for size in operation.sizes:
        queues = _queues(operation, size)
        with site.engine() as engine:
            operation.prepare(engine, next(queues), size)()  # so that statements and connections are prepared
            site.clock.advance_to_a_whole_second()
            counts.append(_counted(site, operation.prepare(engine, next(queues), size)))
        if operation.sizes == ONCE:
            continue
        with site.engine_alone() as engine:
            operation.prepare(engine, next(queues), size)()
            counts[-1]["blocks"] = _blocks_retained(operation.prepare(engine, next(queues), size))
    kinds = [*site.counted, *(["waits"] if operation.name == "wait" else [])]
    row: Row = {kind: [one[kind] for one in counts] for kind in kinds}
    if operation.sizes == ONCE:
        return row
    calls, blocks = (slope(operation.sizes, [one[kind] for one in counts]) for kind in ("calls", "blocks"))
    return {"sizes": list(operation.sizes), **row, "calls_per_job": calls, "blocks_per_job": round(blocks)}


def _queues(operation: Operation, size: int) -> Generator[str]:
    """Queue names of equal length, the same in every run, whatever other operations there are."""
    for turn in count(1):
        yield sha256(f"{operation.name} {size} {turn}".encode()).hexdigest()[:12]


def _counted(site: Site, act: Act) -> Counter[str]:
    calls, waits = 0, site.clock.waits

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls += not code.co_flags & CO_GENERATOR and code.co_name not in INLINED

    gc.collect()
    with site.counting() as counts:
        sys.setprofile(note)
        try:
            act()
        finally:
            sys.setprofile(None)
    counts["calls"], counts["waits"] = calls, site.clock.waits - waits
    return counts


def _blocks_retained(act: Act) -> int:
    """The blocks of memory that are still in use when an operation has returned."""
    gc.collect()  # also frees the blocks that Python keeps for reuse
    before = sys.getallocatedblocks()
    answer = act()
    gc.collect()
    retained = sys.getallocatedblocks() - before
    del answer
    return retained
