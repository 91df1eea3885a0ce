"""Measures how soon jobs start that wait for other jobs, compared with how soon an idle worker starts any job.

    .venv/bin/python benchmarks/dependencies.py [sqlite|postgres|mysql|redis|all ...] [--links 1000] [--children 10000]

pick-up    Jobs without parents, enqueued one by one while a worker is idle: from the moment a job is accepted until it
           starts.
chain      Jobs that each wait for the one before: from the end of a job until the next one starts.
children   Jobs that wait for one parent: from the end of the parent until all of them can be claimed. No worker
           processes their queue. Wanted: under two seconds.

All times of jobs are those of the records; servers run on the same host, so their clocks are the same.
"""

import argparse
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.processes import until
from tests.faults.yard import Yard
from tests.servers.places import SERVERS, place_on
from tests.servers.running import started

from handover import pick_up, report
from holdfast.definition import JobDefinition, definition_of
from holdfast.values import JobState
from measuring import machine, say

ENGINES: Final = ("sqlite", *SERVERS)
MS: Final = timedelta(milliseconds=1)
PROBES: Final = 100
PATIENCE_S: Final = 600.0


def measure(engine: str, links: int, number: int) -> None:
    with ExitStack() as stack:
        server = None
        if engine != "sqlite":
            server = started(SERVERS[engine])
            stack.callback(server.close)
        yard = Yard(stack.enter_context(place_on(server)))
        stack.callback(yard.close)
        yard.worker("--count", "1")
        picked_up = [pick_up(yard) for _ in range(PROBES)]
        linked = chain(yard, links)
        report(engine, "pick-up", picked_up)
        report(engine, "chain", linked)
        print(f"{engine:<9} link / pick-up {median(linked) / median(picked_up):.2f}")
        print(f"{engine:<9} {number:,} children can be claimed after {children(yard, number):.2f} s", flush=True)


def chain(yard: Yard, links: int) -> list[float]:
    """The milliseconds between the end of each job and the start of the next one."""
    ids = [f"link-{number}" for number in range(links)]
    jobs: list[JobDefinition] = [
        definition_of("quick", None, {"after": [before]} if before else {}) for before in ["", *ids[:-1]]
    ]
    yard.hf.enqueue_many(jobs, ids=ids)
    until(lambda: yard.state(ids[-1]) is JobState.COMPLETED, "the last link", within_s=PATIENCE_S)
    runs = [yard.history(id).attempts[-1].record for id in ids]
    return [(after.started_at - before.ended_at) / MS for before, after in pairwise(runs)]


def children(yard: Yard, number: int) -> float:
    """The seconds from the end of a parent until its last child can be claimed."""
    [parent] = yard.put("gated")
    for _ in range(0, number, 1000):
        yard.put("quick", min(number, 1000), queue="children", after=[parent])
    start = until(lambda: yard.entries("start", parent), "the parent to start")[0]
    yard.open_gate(start)
    until(lambda: yard.state(parent) is JobState.COMPLETED, "the parent to be completed")
    began = time.monotonic()
    engine = yard.hf.backend()
    until(lambda: JobState.BLOCKED not in engine.counts("children")["children"], "the children", within_s=PATIENCE_S)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, "all"], default="all", metavar="ENGINE")
    parser.add_argument("--links", type=int, default=1000)
    parser.add_argument("--children", type=int, default=10_000)
    options = parser.parse_args()
    say(machine(Path.cwd()))
    for engine in ENGINES if "all" in options.engines else options.engines:
        measure(engine, options.links, options.children)


if __name__ == "__main__":
    main()
