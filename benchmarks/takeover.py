"""How soon a job runs again after its worker was killed, and whether a living worker is ever robbed. Linux only.

    .venv/bin/python benchmarks/takeover.py [sqlite|postgres|mysql|redis|all ...]
                                             [--kills 100] [--stops 100] [--cuts 100]

kills     A worker in the middle of a job is killed with SIGKILL, while another worker on the same host is idle: the
          time from the kill until the job starts again. Each death is followed by a new worker.
lease     The same without a common directory, so that only the lease decides: with a lease of `--lease` seconds.
stops     A worker in the middle of a job stands still (SIGSTOP) for half a second, while the other one probes it: how
          many of these jobs were started again. Wanted: none.
cuts      The server closes all connections of a worker in the middle of a job, while the other one probes it for half a
          second: how many of these jobs were started again. Wanted: none. SQLite has no connections, so it is skipped.
"""

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.cutting import cut
from tests.faults.processes import Program, until
from tests.faults.yard import Entry, Yard
from tests.servers.places import SERVERS, place_on
from tests.servers.running import Server, started

from measuring import machine, say

ENGINES: Final = ("sqlite", *SERVERS)
STOP_S: Final = 0.5
LONG_S: Final = 3600
_numbers = count(1)


class Couple:
    """Two workers: one has a job, the other is idle."""

    def __init__(self, yard: Yard, lease_s: int, *, share: bool) -> None:
        self._yard = yard
        self._lease_s = lease_s
        self._shares = share
        self.workers = [self._worker(), self._worker()]

    def _worker(self) -> Program:
        directory = "sessions" if self._shares else f"sessions-{next(_numbers)}"
        return self._yard.worker(lease_s=self._lease_s, HOLDFAST_SESSION_DIR=str(self._yard.directory / directory))

    def busy(self) -> tuple[Program, Entry]:
        """A worker in the middle of a new job, and the start of that job."""
        [id] = self._yard.put("gated")
        [start] = until(lambda: self._yard.entries("start", id), "the job to start")
        [worker] = [one for one in self.workers if one.pid == start.worker]
        return worker, start

    def kill_one(self) -> float:
        """Kill a worker with a job; the seconds until the job starts again."""
        victim, start = self.busy()
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        while len(self._yard.entries("start", start.id)) < 2:
            time.sleep(0.001)
        took_s = time.monotonic() - killed_at
        self.workers.remove(victim)
        self.finish(self._yard.entries("start", start.id)[1])
        self.workers.append(self._worker())
        return took_s

    def stop_one(self) -> bool:
        """Let a worker with a job stand still; whether the job was started again."""
        sleeper, start = self.busy()
        os.kill(sleeper.pid, signal.SIGSTOP)
        time.sleep(STOP_S)
        os.kill(sleeper.pid, signal.SIGCONT)
        self.finish(start)
        return len(self._yard.entries("start", start.id)) > 1

    def cut_one(self, server: Server) -> bool:
        """Cut the connections of a worker with a job; whether the job was started again."""
        victim, start = self.busy()
        cut(victim.pid, server)
        time.sleep(STOP_S)
        self.finish(start)
        return len(self._yard.entries("start", start.id)) > 1

    def finish(self, start: Entry) -> None:
        self._yard.open_gate(start)
        until(lambda: self._yard.state(start.id).is_final, "the job to finish")


def measure(engine: str, kills: int, leases: int, stops: int, cuts: int, lease_s: int) -> None:
    with ExitStack() as stack:
        server = None
        if engine != "sqlite":
            server = started(SERVERS[engine])
            stack.callback(server.close)
        yard = Yard(stack.enter_context(place_on(server)))
        stack.callback(yard.close)
        couple = Couple(yard, LONG_S, share=True)
        report(engine, "kills", [couple.kill_one() for _ in range(kills)])
        robbed = sum(couple.stop_one() for _ in range(stops))
        print(f"{engine:<9} stops  {robbed} of {stops} jobs were started again", flush=True)
        if server is not None:
            robbed = sum(couple.cut_one(server) for _ in range(cuts))
            print(f"{engine:<9} cuts   {robbed} of {cuts} jobs were started again", flush=True)
        for worker in couple.workers:
            worker.kill()
        if leases:
            couple = Couple(yard, lease_s, share=False)
            report(engine, "lease", [couple.kill_one() for _ in range(leases)])


def report(engine: str, what: str, seconds: list[float]) -> None:
    p99 = quantiles(seconds, n=100)[98] if len(seconds) > 1 else seconds[0]
    print(
        f"{engine:<9} {what:<6} {len(seconds)}: p50 {median(seconds):.2f} s, p99 {p99:.2f} s, "
        f"{min(seconds):.2f} - {max(seconds):.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, "all"], default="all", metavar="ENGINE")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--leases", type=int, default=3, help="deaths without a common directory")
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=100, help="lost connections; not on sqlite")
    parser.add_argument("--lease", type=int, default=60, help="seconds, without a common directory")
    options = parser.parse_args()
    say(machine(Path.cwd()))
    for engine in ENGINES if "all" in options.engines else options.engines:
        measure(engine, options.kills, options.leases, options.stops, options.cuts, options.lease)


if __name__ == "__main__":
    main()
