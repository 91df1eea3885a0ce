"""Measures how soon the next job with a key starts, compared with how soon an idle worker starts any job.

    .venv/bin/python benchmarks/handover.py [sqlite|postgres|mysql|redis|all ...] [--jobs 200]

pick-up    Jobs without a key, enqueued one by one while two workers are idle: from the moment a job is accepted until
           it starts.
hand-over  The same number of jobs behind one key, enqueued together: from the moment a job is settled until the next
           one starts. Wanted: a median of at most twice that of the pick-up.
claims     The largest number of claims that one of these jobs needed. Wanted: 2.

All times are those of the records; servers run on the same host, so their clocks are the same.
"""

import argparse
import sys
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.processes import until
from tests.faults.yard import Yard
from tests.servers.places import SERVERS, place_on
from tests.servers.running import started

from holdfast.values import JobHistory, JobState
from measuring import machine, say

ENGINES: Final = ("sqlite", *SERVERS)
MS: Final = timedelta(milliseconds=1)


def measure(engine: str, jobs: int) -> None:
    with ExitStack() as stack:
        server = None
        if engine != "sqlite":
            server = started(SERVERS[engine])
            stack.callback(server.close)
        yard = Yard(stack.enter_context(place_on(server)))
        stack.callback(yard.close)
        for _ in range(2):
            yard.worker("--count", "1")
        picked_up = [pick_up(yard) for _ in range(jobs)]
        behind = sorted(hand_over(yard, jobs), key=lambda job: job.attempts[-1].record.started_us)
        handed_over = [
            (after.attempts[-1].record.started_at - before.job.finished_at) / MS
            for before, after in pairwise(behind)
            if before.job.finished_at is not None
        ]
        report(engine, "pick-up", picked_up)
        report(engine, "hand-over", handed_over)
        claims = max(one.job.deliveries for one in behind)
        print(f"{engine:<9} hand-over / pick-up {median(handed_over) / median(picked_up):.2f}, {claims} claims at most")


def pick_up(yard: Yard) -> float:
    """The milliseconds that a job waits for an idle worker."""
    [id] = yard.put("quick")
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    history = yard.history(id)
    return (history.attempts[-1].record.started_at - history.job.accepted_at) / MS


def hand_over(yard: Yard, jobs: int) -> list[JobHistory]:
    """Jobs that ran one after the other."""
    ids = yard.put("quick", jobs, concurrency_key="key")
    until(lambda: all(yard.state(id) is JobState.COMPLETED for id in ids[::-1]), "the jobs to be completed")
    return [yard.history(id) for id in ids]


def report(engine: str, what: str, milliseconds: list[float]) -> None:
    p99 = quantiles(milliseconds, n=100)[98]
    print(f"{engine:<9} {what:<9} {len(milliseconds)}: p50 {median(milliseconds):.2f} ms, p99 {p99:.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, "all"], default="all", metavar="ENGINE")
    parser.add_argument("--jobs", type=int, default=200)
    options = parser.parse_args()
    say(machine(Path.cwd()))
    for engine in ENGINES if "all" in options.engines else options.engines:
        measure(engine, options.jobs)


if __name__ == "__main__":
    main()
