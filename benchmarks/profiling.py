"""The CPU time of a job by part: a worker and one of its children, sampled by py-spy during a drain. Linux only.

    .venv/bin/pip install 'py-spy>=0.4,<1'      # the group 'bench' of pyproject.toml
    .venv/bin/python benchmarks/profiling.py [--jobs 400000] [--seconds 6]

The cost of a job is the CPU time of a process, as the kernel counts it, divided by the jobs that were settled in that
time; the samples only distribute it. Sampling slows both processes down, so the sum is higher than in `drain.py`.
"""

import argparse
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from footprint import kind_of
from holdfast.worker.executors.guardian import descendants, processes
from measuring import LEDGERS, Site, machine, say

RATE: Final = 250
TICKS: Final = 100
WAITING: Final = ("Selector.select", "Exchanger._run")

# Which part of the work a stack belongs to: the innermost of its functions that is named here decides.
PARENT: Final = {
    "Keyring.open": "verify the signature, decode the message",
    "Supervisor._admit": "admit: allowed handler, a flight for each job",
    "ExecutorProcess.give": "hand the jobs to a child",
    "Dispatcher._share_out": "hand the jobs to a child",
    "ExecutorProcess.read": "read verdicts: receive and decode",
    "ExecutorProcess.pull": "read verdicts: receive and decode",
    "ProcessPool._listen": "take verdicts in: whose is it, what is next",
    "PendingSettlements.add_successes": "make a settlement and a record of each",
    "PendingSettlements.report": "count and report",
    "Keeper.hold": "leases to be renewed",
    "Keeper.drop": "leases to be renewed",
    "PendingSettlements.leases": "leases to be renewed",
    "SqliteJobs._ack_all": "SQLite: settle the jobs",
    "SqliteJobs._insert_ends": "SQLite: record the attempts",
    "SqliteJobs._stamp": "SQLite: choose and stamp the next jobs",
    "_leased": "make leases of the rows",
    "SqliteFile._checkpoint": "SQLite: checkpoint",
    "SqliteFile._transact": "SQLite: begin, commit, sync",
    "Supervisor._turn": "the loop",
    # The engines on servers, for `engines.py --profile`.
    "_acks": "make the parameters of the exchange",
    "_settlements": "make the parameters of the exchange",
    "MysqlJobs._insert_ends": "make the parameters of the exchange",
    "_rows": "make leases of the rows",
    "leased": "make leases of the rows",
    "PostgresJobs._exchange": "PostgreSQL: send, wait, read rows",
    "PostgresJobs.claim_now": "PostgreSQL: send, wait, read rows",
    "MysqlClaims.stamp": "MySQL: choose, lock, stamp, read rows",
    "MysqlJobs._settle": "MySQL: settle",
    "RedisConnections.run": "Redis: pack, send, wait, parse",
}
CHILD: Final = {
    "WorkerLink.listen": "read work: receive and decode",
    "SlotRunner.begin": "decode the message",
    "note_start": "the job itself",
    "FunctionHandler.handle": "call the function with its arguments",
    "FunctionHandler.decode": "decode the payload",
    "Output.catch": "catch what it prints and logs",
    "Output.let_go": "catch what it prints and logs",
    "Output.__init__": "catch what it prints and logs",
    "listen": "catch what it prints and logs",
    "Timeout.run": "guard the call: timeout, interrupts",
    "Timeout.__init__": "guard the call: timeout, interrupts",
    "_Attempt._context": "make the context",
    "_Attempt._returned": "judge",
    "_Attempt.result": "judge",
    "JobRuntime.run": "the attempt around it",
    "WorkerLink.say": "write the verdict",
    "OneSlot._run_from": "from one job to the next",
}


@dataclass(frozen=True)
class Profile:
    """A process over some time: its CPU time per job, distributed by the samples."""

    us_per_job: float
    samples: Counter[str]

    def lines(self) -> list[str]:
        total = self.samples.total() or 1
        return [
            f"  {self.us_per_job * number / total:5.1f} µs  {number / total:5.1%}  {part}"
            for part, number in self.samples.most_common()
        ]


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.directory) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as ram:
        (Path(disk) / LEDGERS).symlink_to(ram)
        site = Site(Path(disk) / "profile")
        say(f"enqueueing {options.jobs:,} jobs")
        site.fill(options.jobs)
        with site.running(site.worker("bench_app:hf", "--burst")) as process:
            site.until(process, site.has_begun)
            time.sleep(0.5)
            say(f"sampling for {options.seconds:g} s")
            parent, child, jobs = sampled(site, process.pid, options.seconds, lambda: _completed(site))
    print(machine(options.directory.resolve()))
    print(*told(parent, child, jobs, options.seconds), sep="\n")


def told(parent: Profile, child: Profile, jobs: int, seconds: float) -> list[str]:
    return [
        f"{jobs:,} jobs in {seconds:g} s, sampled; processor time for each job:",
        *("", f"parent: {parent.us_per_job:.1f} µs", *parent.lines()),
        *("", f"one child, for each of its own jobs: {child.us_per_job:.1f} µs", *child.lines()),
    ]


def sampled(site: Site, parent: int, seconds: float, completed: Callable[[], int]) -> tuple[Profile, Profile, int]:
    """A worker and one of its children over some seconds, and the number of jobs done in that time."""
    child = next(pid for pid in descendants(parent, processes()) if kind_of(pid) == "children")
    files = {pid: site.directory / f"{pid}.txt" for pid in (parent, child)}
    before = {pid: processor_s(pid) for pid in files}
    done_before = completed()
    recorders = [_recorder(pid, file, seconds) for pid, file in files.items()]
    for recorder in recorders:
        if recorder.wait() != 0:
            raise SystemExit(f"py-spy failed: {site.log()}")
    jobs = completed() - done_before
    spent = {pid: (processor_s(pid) - before[pid]) * 1e6 for pid in files}
    # The two children share the jobs almost evenly.
    return (
        Profile(spent[parent] / jobs, _parts(files[parent], PARENT)),
        Profile(spent[child] / (jobs / 2), _parts(files[child], CHILD)),
        jobs,
    )


def _recorder(pid: int, file: Path, seconds: float) -> "subprocess.Popen[bytes]":
    tool = Path(sys.executable).with_name("py-spy")
    spy = str(tool) if tool.exists() else shutil.which("py-spy")
    if spy is None:
        raise SystemExit(f"py-spy is not installed: {sys.executable} -m pip install 'py-spy>=0.4,<1'")
    options = ["--rate", str(RATE), "--duration", str(int(seconds)), "--format", "raw", "--nonblocking"]
    return subprocess.Popen([spy, "record", "--pid", str(pid), "--output", str(file), *options])


def _parts(file: Path, known: dict[str, str]) -> Counter[str]:
    samples: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        stack, _, number = line.rpartition(" ")
        names = [frame.partition(" (")[0] for frame in reversed(stack.split(";"))]
        if names[0].endswith(WAITING):
            continue
        parts = [known[name] for name in names if name in known]
        samples[parts[0] if parts else "everything else"] += int(number)
    return samples


def processor_s(pid: int) -> float:
    """The CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _completed(site: Site) -> int:
    connection = sqlite3.connect(site.database, timeout=30)
    try:
        number: int = connection.execute("SELECT count(*) FROM holdfast_jobs WHERE state = 4").fetchone()[0]
    finally:
        connection.close()
    return number


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400_000, help="enough to be busy all the time")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long to sample")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on a local disk, not a memory file system")
    return parser.parse_args()


if __name__ == "__main__":
    main()
