"""How long commands take: help, completion, and reading a file with a million jobs.

    .venv/bin/python benchmarks/surface.py [--jobs 1000000] [--rounds 5] [--directory DIR] [--keep] [--only WORD]

Every command is a whole process, from start to exit, as a shell would start it, with its output in a pipe. Commands
take turns, round after round; the best round counts, because other load on the machine only makes commands slower. For
comparison: Python that does nothing, and Python that imports Click, which is the lower bound for a command line that
uses it. With --keep the file is not deleted, and the next run with the same --directory reuses it.

The file has 70 % completed, 5 % dead and 5 % cancelled jobs, the rest waiting, scheduled or failed, and a hundred
running; in twelve queues, of seven names, each with its message and its history.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from holdfast import Holdfast
from holdfast.codec import encode_payload
from holdfast.config import Settings
from holdfast.definition import JobDefinition
from measuring import Figure, machine, report, say, take_turns

CHUNK: Final = 10_000
QUICK_MS: Final = 120
SOON_MS: Final = 300
PROGRAM: Final = str(Path(sys.executable).with_name("holdfast"))
# An installed program has its bytecode; if none may be written, everything would be compiled again each time.
COMPILING: Final = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
QUEUES: Final = ("mail", "reports", "images", "billing", *(f"tenant-{number}" for number in range(8)))
NAMES: Final = ("send", "render", "resize", "charge", "import", "export", "index")

# Of twenty jobs one is dead and one cancelled, fourteen have completed; the rest wait, now or later, or have failed.
MIX: Final = """
    UPDATE holdfast_jobs SET
        state = CASE seq % 20 WHEN 0 THEN 5 WHEN 1 THEN 6 WHEN 2 THEN 1 ELSE iif(seq % 20 IN (3, 4, 5), 0, 4) END,
        accepted_at = accepted_at - (:jobs - seq) * 80000,
        due_at = CASE WHEN seq % 20 = 3 THEN due_at + 3600000000 ELSE due_at - (:jobs - seq) * 80000 END,
        attempts = CASE seq % 20 WHEN 0 THEN 4 WHEN 2 THEN 1 ELSE 0 END,
        deliveries = CASE WHEN seq % 20 IN (1, 3, 4, 5) THEN 0 ELSE 1 END,
        dead_reason = CASE WHEN seq % 20 = 0 THEN iif(seq % 3, 'failed', 'timeout') END,
        last_error = CASE WHEN seq % 20 IN (0, 2) THEN 'TimeoutError: no answer within 30 s' END,
        cancel_reason = CASE WHEN seq % 20 = 1 THEN 'not wanted any more' END,
        finished_at = iif(seq % 20 IN (2, 3, 4, 5), NULL, accepted_at - (:jobs - seq) * 80000 + 500000)"""
HISTORY: Final = """
    INSERT INTO holdfast_attempts (seq, delivery, owner_token, verdict, outcome, started_at, ended_at, error_type,
        error_message)
    SELECT seq, 1, randomblob(16), iif(state = 4, 'ack', 'nack'), iif(state = 4, 'succeeded', 'failed'), accepted_at,
        accepted_at + 500000, iif(state = 4, NULL, 'TimeoutError'), iif(state = 4, NULL, 'no answer within 30 s')
    FROM holdfast_jobs WHERE deliveries > 0"""
RUNNING: Final = """
    UPDATE holdfast_jobs SET state = 2, owner_token = randomblob(16), claimed_at = due_at, lease_us = 60000000,
        lease_until = due_at + 1000000000000
    WHERE seq IN (SELECT seq FROM holdfast_jobs WHERE state = 0 AND seq % 20 = 4 ORDER BY seq DESC LIMIT 100)"""


@dataclass(frozen=True)
class Case:
    """One command, the shell's line before it if it is to be completed, and its time limit."""

    what: str
    arguments: Sequence[str]
    within_ms: float | None
    completing: bool = False


FLOORS: Final = (
    Case("python, nothing", ("-c", "pass"), None),
    Case("python, import click", ("-c", "import click"), None),
)
CASES: Final = (
    Case("--help", ("--help",), QUICK_MS),
    *(
        Case(f"{command} --help", (*command.split(), "--help"), QUICK_MS)
        for command in ("list", "enqueue", "worker start", "config set", "queue list", "dlq retry", "status", "doctor")
    ),
    Case("complete a command", ("st",), QUICK_MS, completing=True),
    Case("complete an option", ("list", "--st"), QUICK_MS, completing=True),
    Case("complete a queue", ("queue", "show", ""), QUICK_MS, completing=True),
    Case("complete an id", ("show", ""), QUICK_MS, completing=True),
    Case("complete a setting", ("config", "get", "ma"), QUICK_MS, completing=True),
    Case("list", ("list",), SOON_MS),
    Case("list --json", ("list", "--json"), SOON_MS),
    Case("list --state dead", ("list", "--state", "dead"), SOON_MS),
    Case("list --state pending,failed", ("list", "--state", "pending,failed"), SOON_MS),
    Case("list --state processing", ("list", "--state", "processing"), SOON_MS),
    Case("list --queue mail", ("list", "--queue", "mail"), SOON_MS),
    Case("list --queue mail --state failed", ("list", "--queue", "mail", "--state", "failed"), SOON_MS),
    Case("list --where state and queue", ("list", "--where", "state:dead queue:billing"), SOON_MS),
    Case("list --where state and reason", ("list", "--where", "state:dead reason:timeout"), SOON_MS),
    Case("list --where age", ("list", "--where", "state:completed age:>1h"), SOON_MS),
    Case("list --count", ("list", "--count", "--state", "dead"), SOON_MS),
    Case("show ID", ("show", "job-500000"), SOON_MS),
    Case("status", ("status",), SOON_MS),
    Case("status --queue mail", ("status", "--queue", "mail"), SOON_MS),
    Case("queue list", ("queue", "list"), SOON_MS),
    Case("dlq list", ("dlq", "list"), SOON_MS),
)


def fill(directory: Path, jobs: int) -> None:
    """Create the project and its file, unless it exists."""
    (directory / "holdfast.toml").touch()
    database = directory / ".holdfast" / "jobs.db"
    if database.exists():
        return
    say(f"making a file of {jobs:,} jobs")
    with Holdfast(f"sqlite:///{database}", settings=Settings(), directory=directory) as hf:
        for start in range(0, jobs, CHUNK):
            hf.enqueue_many([_definition(number) for number in range(start, min(start + CHUNK, jobs))])
    connection = sqlite3.connect(database, isolation_level=None)
    for statement in (MIX, HISTORY, RUNNING):
        connection.execute(statement, {"jobs": jobs} if ":jobs" in statement else ())
    connection.execute("UPDATE holdfast_jobs SET id = 'job-' || seq")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _definition(number: int) -> JobDefinition:
    payload = encode_payload({"user": number, "address": "someone@example.org", "text": "x" * 40})
    return JobDefinition(
        handler=NAMES[number % len(NAMES)],
        payload=payload,
        queue=QUEUES[number % 13 % len(QUEUES)],
        priority=number % 10,
    )


def waited_ms(case: Case, directory: Path) -> float:
    """The duration of one run of a command."""
    program = [sys.executable] if case in FLOORS else [PROGRAM]
    environment = {name: value for name, value in os.environ.items() if name not in COMPILING}
    arguments = list(case.arguments)
    if case.completing:
        words = ["holdfast", *arguments]
        environment |= {
            "_HOLDFAST_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        arguments = []
    began = time.perf_counter()
    ended = subprocess.run([*program, *arguments], cwd=directory, env=environment, capture_output=True, check=False)
    took = time.perf_counter() - began
    if ended.returncode != 0 or not (ended.stdout or case in FLOORS):
        raise SystemExit(f"{case.what} failed: {ended.stdout!r} {ended.stderr!r}")
    return took * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="a local disk, not a memory file system")
    parser.add_argument("--keep", action="store_true", help="leave the file, and use the one that is there")
    parser.add_argument("--only", default="", metavar="WORD", help="only the commands with this word in them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.keep:
        measure(options.directory.absolute(), options)
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        measure(Path(directory), options)


def measure(directory: Path, options: argparse.Namespace) -> None:
    """Time the commands, and print the table."""
    facts = machine(directory)
    fill(directory, options.jobs)
    chosen = [case for case in CASES if options.only in case.what]
    cases = {case.what: case for case in (*FLOORS, *chosen)}
    for case in chosen:
        waited_ms(case, directory)  # once for the caches of the disk and of Python
    times = take_turns(options.rounds, {what: partial(waited_ms, case, directory) for what, case in cases.items()})
    if options.json:
        print(report(facts, {"surface": [Figure(what, values, "ms") for what, values in times.items()]}, as_json=True))
        return
    print(facts)
    print(f"{options.jobs:,} jobs; the best of {options.rounds} rounds, and the median")
    for what, values in times.items():
        figure, within = Figure(what, values, "ms"), cases[what].within_ms
        verdict = "" if within is None else f"wanted: {within:.0f}{'' if min(values) < within else '   TOO SLOW'}"
        print(f"{what:<36} {min(values):7.0f} ms {figure.median:7.0f} ms   {verdict}".rstrip())


if __name__ == "__main__":
    main()
