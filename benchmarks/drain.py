"""Throughput and resource usage of a worker, compared with Huey and with the bare machine. Linux only.

    .venv/bin/pip install 'huey>=3.5,<4'      # the group 'bench' of pyproject.toml
    .venv/bin/python benchmarks/drain.py [drain|enqueue|commands|flat|memory|idle|all ...] [--json] [--long]

Contenders take turns in one run, on one disk, so that their ratio is valid even on a noisy machine; absolute numbers of
different runs cannot be compared. Every worker is a separate process, started by its command line, with two children.
Rates are measured from the first start of a handler to the moment when the last job is settled; the start of the
processes is not included.

drain     No-op jobs with a payload of 100 bytes, signed and verified, on SQLite with the defaults (WAL,
          synchronous=FULL, records retained), compared with Huey on its SQLite storage, in its best arrangement. Our
          jobs are settled when another connection sees them completed, at most 5 ms late; Huey's when the queue is
          empty and the handlers have been called. Both start with copies of one file, enqueued once.
enqueue   `enqueue_many` with a thousand jobs per call, compared with `executemany` of the same bytes into one table
          with a primary key, a unique index on the id and the index of due jobs: same pragmas, a thousand rows per
          transaction. The raw rows exist beforehand; ours are created, encoded and signed within the measured time.
commands  Jobs that run `true`, compared with two Python processes that run it in a loop: directly, and with the
          session and the pipe of a command job.
flat      The cost of a job by the number of waiting jobs.
memory    RSS and PSS of a worker and its children during a long drain.
idle      The CPU time of a worker without work, and how soon it starts a new job.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from footprint import measure_idle, measure_memory
from holdfast.handlers import COMMAND_KEY
from holdfast.state.facts import Facts
from measuring import (
    CHUNK,
    LEDGERS,
    UNSETTLED,
    Figure,
    Plan,
    Site,
    Span,
    chunks,
    definitions,
    machine,
    ratio,
    report,
    say,
    take_turns,
)

OURS: Final = "Holdfast"

# Huey's defaults, and the processes that it recommends for CPU-bound jobs.
HUEYS: Final = {
    "Huey, a thread": ("-k", "thread", "-w", "1"),
    "Huey, a process": ("-k", "process", "-w", "1"),
    "Huey, two processes": ("-k", "process", "-w", "2"),
}
DURABILITY: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

RAW_TABLE: Final = """
    CREATE TABLE jobs (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, queue TEXT NOT NULL, job TEXT NOT NULL,
        priority INTEGER NOT NULL, due_at INTEGER NOT NULL, wire BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX jobs_id ON jobs (id);
    CREATE INDEX jobs_ready ON jobs (queue, priority, due_at, id);"""
# Our engine also checkpoints at 16 MB, in its own way.
RAW_PRAGMAS: Final = ("journal_mode=WAL", "synchronous=FULL", "mmap_size=0", "wal_autocheckpoint=4096")

SPAWN: Final = """
import subprocess, sys, time
likewise = dict(
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
)
options = likewise if sys.argv[3] == "likewise" else {}
began = time.time_ns()
for _ in range(int(sys.argv[1])):
    subprocess.run([sys.argv[2]], check=True, **options)
print(began, time.time_ns())
"""


def measure_drain(plan: Plan) -> list[Figure]:
    """Drain the same number of jobs, one worker after the other."""
    if find_spec("huey") is None:
        raise SystemExit(
            f"drain compares with Huey, which is not installed: {sys.executable} -m pip install 'huey>=3.5,<4'"
        )
    full = Site(plan.directory / "full")
    say(f"enqueueing {plan.jobs:,} jobs, here and there")
    full.fill(plan.jobs)
    huey = _fill_huey(full, plan.jobs)
    hueys = {name: partial(_drain_huey, full, plan.jobs, options) for name, options in HUEYS.items()}
    rates = take_turns(plan.rounds, {OURS: partial(_drain_ours, full, plan.jobs), **hueys})
    full.remove()
    figures = [Figure(name, values, "jobs/s") for name, values in rates.items()]
    best = max(figures[1:], key=lambda figure: figure.median)
    kept = "WAL, synchronous=FULL, at least once, records retained"
    return [
        Figure(f"{OURS}, one worker of two children", rates[OURS], "jobs/s", kept),
        *(Figure(one.what, one.values, one.unit, huey) for one in figures[1:]),
        ratio(f"{OURS} / {best.what}", rates[OURS], best.values, "wanted: 10 or more"),
    ]


def _fill_huey(full: Site, jobs: int) -> str:
    """Enqueue as many jobs with Huey, and return its storage settings."""
    code = f"import huey_app; huey_app.fill({jobs})"
    with full.running([sys.executable, "-c", code], BENCH_HUEY_DATABASE=str(full.directory / "huey.db")) as process:
        full.ended(process)
    facts = json.loads(full.log())
    synchronous = DURABILITY[facts["synchronous"]]
    return f"{facts['version']}: {facts['journal_mode'].upper()}, synchronous={synchronous}, at most once, rows deleted"


def _drain_ours(full: Site, jobs: int) -> float:
    site = full.copy("ours")
    with site.running(site.worker("bench_app:hf", "--burst")) as process:
        settled_ns = site.until_empty(process, UNSETTLED)
        site.ended(process)
    assert site.completed().jobs == jobs
    return _rate(site, jobs, settled_ns)


def _drain_huey(full: Site, jobs: int, options: tuple[str, ...]) -> float:
    site = full.copy("huey")
    database = site.directory / "huey.db"
    consumer = [sys.executable, "-m", "huey.bin.huey_consumer", "huey_app.huey", "--quiet", *options]
    with site.running(consumer, BENCH_HUEY_DATABASE=str(database)) as process:
        site.until_empty(process, "SELECT 1 FROM task LIMIT 1", database)
        # A job that was taken from the queue may not have been called yet.
        site.until(process, lambda: len(site.starts()) == jobs)
    return _rate(site, jobs, max(site.starts().values()))


def _rate(site: Site, jobs: int, settled_ns: int) -> float:
    started = site.starts()
    assert len(started) == jobs
    site.remove()
    return Span(jobs, min(started.values()), settled_ns).rate


def measure_enqueue(plan: Plan) -> list[Figure]:
    """Enqueue many jobs, each time into a new file."""
    rates = take_turns(
        plan.rounds,
        {
            "enqueue_many": partial(_enqueue_ours, plan, beforehand=True),
            "define and enqueue_many": partial(_enqueue_ours, plan, beforehand=False),
            "executemany": partial(_enqueue_raw, plan),
        },
    )
    return [
        Figure(f"{OURS}, enqueue_many of definitions", rates["enqueue_many"], "jobs/s"),
        Figure(f"{OURS}, from the arguments on", rates["define and enqueue_many"], "jobs/s"),
        Figure("raw sqlite3, executemany of rows", rates["executemany"], "rows/s"),
        ratio(f"{OURS} / raw", rates["enqueue_many"], rates["executemany"], "wanted: 0.5 or more"),
        ratio(f"{OURS}, from the arguments on / raw", rates["define and enqueue_many"], rates["executemany"], ""),
    ]


def _enqueue_ours(plan: Plan, *, beforehand: bool) -> float:
    site = Site(plan.directory / "enqueue")
    with site.application() as hf:
        Facts(hf.backend().state).of("anything")  # opens the file, which is not measured
        made = [definitions(chunk) for chunk in chunks(range(plan.jobs))] if beforehand else None
        began = time.perf_counter()
        for many in made or map(definitions, chunks(range(plan.jobs))):
            hf.enqueue_many(many)
        rate = plan.jobs / (time.perf_counter() - began)
    site.remove()
    return rate


def _enqueue_raw(plan: Plan) -> float:
    site = Site(plan.directory / "enqueue")
    with site.application() as hf:
        make, now = hf.backend().envelopes.make, time.time_ns() // 1000
        rows = [
            (one.id, one.queue, one.job, one.priority, now + place, one.wire)
            for place, one in enumerate(map(make, definitions(range(plan.jobs))))
        ]
    connection = sqlite3.connect(site.directory / "raw.db", isolation_level=None)
    for pragma in RAW_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    connection.executescript(RAW_TABLE)
    began = time.perf_counter()
    for start in range(0, len(rows), CHUNK):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO jobs (id, queue, job, priority, due_at, wire) VALUES (?, ?, ?, ?, ?, ?)",
            rows[start : start + CHUNK],
        )
        connection.execute("COMMIT")
    rate = plan.jobs / (time.perf_counter() - began)
    connection.close()
    site.remove()
    return rate


def measure_commands(plan: Plan) -> list[Figure]:
    """Run `true` many times, as jobs and in loops."""
    rates = take_turns(
        plan.rounds,
        {
            "command jobs": partial(_run_jobs, plan),
            "subprocess.run": partial(_spawn, plan, "bare"),
            "subprocess.run, likewise": partial(_spawn, plan, "likewise"),
        },
    )
    jobs, bare, likewise = rates.values()
    return [
        Figure(f"{OURS}, one worker of two children", jobs, "jobs/s"),
        Figure("two loops of subprocess.run, new session and pipe", likewise, "runs/s"),
        Figure("two loops of subprocess.run, nothing else", bare, "runs/s"),
        ratio(f"{OURS} / new session and pipe", jobs, likewise, "wanted: 0.5 or more"),
        ratio(f"{OURS} / nothing else", jobs, bare, ""),
    ]


def _run_jobs(plan: Plan) -> float:
    site = Site(plan.directory / "commands")
    with site.application() as hf:
        hf.commands.allowed |= {"true"}
        definition = hf.define(COMMAND_KEY, {"argv": ["true"]}).definition()
        hf.enqueue_many([definition] * plan.commands)
    os.sync()
    with site.running(site.worker("--allow", "true", "--burst")) as process:
        settled_ns = site.until_empty(process, UNSETTLED)
        site.ended(process)
    done = site.completed()
    assert done.jobs == plan.commands
    site.remove()
    return Span(done.jobs, done.first_ns, settled_ns).rate


def _spawn(plan: Plan, how: str) -> float:
    true = shutil.which("true")
    assert true is not None
    runs = plan.commands // 2
    command = [sys.executable, "-c", SPAWN, str(runs), true, how]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [loop.communicate()[0].split() for loop in loops]
    began, ended = min(int(answer[0]) for answer in answers), max(int(answer[1]) for answer in answers)
    return Span(2 * runs, began, ended).rate


def measure_flat(plan: Plan) -> list[Figure]:
    """Run the same number of jobs from queues of different lengths, and refill each queue."""
    sites = {waiting: Site(plan.directory / f"flat-{waiting}") for waiting in plan.backlogs}
    for waiting, site in sites.items():
        say(f"enqueueing {waiting:,} jobs")
        site.fill(waiting + plan.take)
    costs = take_turns(
        plan.rounds, {f"{waiting:,} waiting": partial(_take, site, plan.take) for waiting, site in sites.items()}
    )
    for site in sites.values():
        site.remove()
    smallest, *others = costs
    return [
        *(Figure(f"{OURS}, {plan.take:,} jobs with {name}", values, "µs/job") for name, values in costs.items()),
        *(ratio(f"{name} / {smallest}", costs[name], costs[smallest], "wanted: 1.2 or less") for name in others),
    ]


def _take(site: Site, jobs: int) -> float:
    """Microseconds a job; by the records, for the rest of the queue is never empty."""
    since_us = time.time_ns() // 1000
    with site.running(site.worker("bench_app:hf", "--max-jobs", str(jobs))) as process:
        site.ended(process)
    done = site.completed(since_us)
    assert done.jobs >= jobs  # those in hand when there are enough may be done too
    site.fill(done.jobs)
    return 1e6 / done.rate


SECTIONS: Final[Mapping[str, Callable[[Plan], list[Figure]]]] = {
    "drain": measure_drain,
    "enqueue": measure_enqueue,
    "commands": measure_commands,
    "flat": measure_flat,
    "memory": measure_memory,
    "idle": measure_idle,
}


def main() -> None:
    options = _options()
    # The benchmarks measure the defaults, whatever is set up here.
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        del os.environ[name]
    sections: dict[str, list[Figure]] = {}
    directory = options.directory.resolve()
    facts = machine(directory)
    with tempfile.TemporaryDirectory(dir=directory) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as ram:
        plan = Plan(
            directory=Path(disk),
            rounds=options.rounds,
            jobs=options.jobs,
            commands=options.commands,
            backlogs=[int(part) for part in options.backlogs.split(",")],
            take=options.take,
            memory_jobs=options.memory_jobs or (1_000_000 if options.long else 100_000),
            idle_s=options.idle_s,
            probes=options.probes,
        )
        (plan.directory / LEDGERS).symlink_to(ram)
        for name, measure in SECTIONS.items():
            if name in options.sections or "all" in options.sections:
                sections[name] = measure(plan)
    print(report(facts, sections, as_json=options.json))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, "all"], default="all", metavar="SECTION")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20_000, help="drain, enqueue: how many")
    parser.add_argument("--commands", type=int, default=2_000, help="commands: how many")
    parser.add_argument("--backlogs", default="1000,100000,1000000", help="flat: how many wait")
    parser.add_argument("--take", type=int, default=5_000, help="flat: how many are taken from them")
    parser.add_argument("--long", action="store_true", help="memory: a million jobs instead of 100,000")
    parser.add_argument("--memory-jobs", type=int, default=0, help="memory: or that many")
    parser.add_argument("--idle-s", type=float, default=20.0, help="idle: how long to watch")
    parser.add_argument("--probes", type=int, default=200, help="idle: how many jobs to enqueue")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on a local disk, not a memory file system")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
