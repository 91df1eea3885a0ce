"""One file of jobs, workers on it that can be killed, and the ledger of what they did."""

import sqlite3
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from holdfast.app import Holdfast
from holdfast.config import Settings
from holdfast.definition import JobDefinition
from holdfast.values import JobHistory, JobState, Outcome

from .processes import Program, Programs, until


class Entry(NamedTuple):
    """One line of the ledger."""

    what: str
    id: str
    pid: int


class Yard:
    """Everything in one directory; the jobs of dead workers are looked for all the time."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "jobs.db"
        url = f"sqlite:///{self.database}"
        self.programs = Programs(
            directory,
            HOLDFAST_URL=url,
            HOLDFAST_REAP_INTERVAL="0.1",
            HOLDFAST_POLL_INTERVAL="0.1",
            HOLDFAST_CRASH_LIMIT="100",
        )
        self.hf = Holdfast(url, settings=Settings(crash_limit=100))
        self._ledger = directory / "ledger"
        self._directory = directory

    def close(self) -> None:
        self.programs.end_all()
        self.hf.close()
        with sqlite3.connect(self.database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()

    def put(self, job: str, number: int = 1) -> list[str]:
        """Enqueue that many of this job."""
        return self.hf.enqueue_many([JobDefinition(handler=job)] * number)

    def producer(self, job: str, number: int) -> Program:
        """Start a process that enqueues that many of this job, one by one, and says each id."""
        return self.programs.module("tests.faults.app", job, str(number))

    def worker(self, *options: str, lease_s: int = 60) -> Program:
        """Start a worker; it is at work when this returns, or has been."""
        arguments = ("worker", "start", "tests.faults.app:hf", *options)
        worker = self.programs.holdfast(*arguments, HOLDFAST_LEASE=str(lease_s))
        worker.wait_for("queues default")
        return worker

    def ledger(self) -> list[Entry]:
        if not self._ledger.exists():
            return []
        lines = [line.split() for line in self._ledger.read_text().splitlines()]
        return [Entry(what, id, int(pid)) for what, id, pid in lines]

    def wait_for_entry(self, what: str, id: str, by: Program) -> None:
        until(lambda: Entry(what, id, by.pid) in self.ledger(), f"'{what}' of job {id} by process {by.pid}")

    def open_gate(self, of: Program) -> None:
        """Let the job that waits at the gate of this process go on."""
        with (self._directory / f"gate-{of.pid}").open("w"):
            pass

    def history(self, id: str) -> JobHistory:
        history = self.hf.backend().get(id)
        assert history is not None, f"job '{id}' is gone"
        return history

    def state(self, id: str) -> JobState:
        return self.history(id).job.state

    def outcomes(self, id: str) -> list[Outcome]:
        return [past.record.outcome for past in self.history(id).attempts]

    def counts(self) -> dict[JobState, int]:
        return self.hf.backend().counts().get("default", {})

    def ends(self) -> Counter[str]:
        """How often each job was run to its end."""
        return Counter(entry.id for entry in self.ledger() if entry.what == "end")
