"""`Yard`: a place for jobs, workers that can be killed, and their ledger."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Unpack

from holdfast.app import Holdfast
from holdfast.config import Settings
from holdfast.definition import JobOptions, definition_of
from holdfast.queues.contract import new_owner_token
from holdfast.state.workers import WorkerRegistry
from holdfast.values import JobHistory, JobState, Outcome, WorkerView

from ..servers.places import Place
from .ledgers import GrowingFile
from .processes import Program, Programs, until

KEY = "ours:the-signing-key-of-the-tests-of-faults"


class Entry(NamedTuple):
    """One line of the ledger."""

    what: str
    id: str
    pid: int
    worker: int


class Yard:
    """Everything in one directory. Workers reap at short intervals."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.programs = Programs(
            place.directory,
            HOLDFAST_URL=place.url,
            HOLDFAST_SIGNING_KEY=KEY,
            HOLDFAST_REAP_INTERVAL="0.1",
            HOLDFAST_POLL_INTERVAL="0.1",
            HOLDFAST_CRASH_LIMIT="100",
            HOLDFAST_BACKOFF="none",
            HOLDFAST_SESSION_DIR=str(place.directory / "sessions"),
        )
        self.hf = Holdfast(place.url, settings=Settings(crash_limit=100), signing_key=KEY)
        self.directory = place.directory
        self._ledger = GrowingFile(place.directory / "ledger")
        self._entries: list[Entry] = []

    def close(self) -> None:
        self.programs.end_all()
        self.hf.close()
        self.place.check()

    @property
    def is_on_file(self) -> bool:
        """Whether long tests are affordable: on a server, fewer repetitions are enough."""
        return self.place.server is None

    def workers(self) -> list[WorkerView]:
        """The registered workers."""
        return WorkerRegistry(self.hf.backend().state).all()

    def put(self, job: str, number: int = 1, *, payload: object = None, **options: Unpack[JobOptions]) -> list[str]:
        """Enqueue this job that many times."""
        return self.hf.enqueue_many([definition_of(job, payload, {"max_retries": 1000, **options})] * number)

    def claim_and_forget(self, queue: str, number: int, *, lease_s: int) -> None:
        """Claim this many jobs, like a worker that dies immediately afterwards."""
        with Holdfast(
            self.hf.deployment.url(), settings=Settings(crash_limit=100, lease=lease_s), signing_key=KEY
        ) as hf:
            assert len(hf.backend().claim(queue, number, owner_token=new_owner_token())) == number

    def producer(self, job: str, number: int) -> Program:
        """Start a process that enqueues this job that many times, one by one, and prints each id."""
        return self.programs.module("tests.faults.app", job, str(number))

    def insistent_producer(self, job: str) -> Program:
        """Start a process that enqueues this job until its stdin is closed, whatever happens to the engine."""
        return self.programs.module("tests.faults.app", job, "endless")

    def worker(self, *options: str, lease_s: int = 60, under: Sequence[str] = (), **settings: str) -> Program:
        """Start a worker; it is at work when this returns, or has been."""
        worker = self.starting(*options, lease_s=lease_s, under=under, **settings)
        worker.wait_for("handlers ")
        return worker

    def starting(self, *options: str, lease_s: int = 60, under: Sequence[str] = (), **settings: str) -> Program:
        """Start a worker, without waiting for it. `under` is the program that runs it, such as `setpriv`."""
        arguments = ("-m", "holdfast", "worker", "start", "tests.faults.app:hf", *options)
        return self.programs.start(*under, sys.executable, *arguments, HOLDFAST_LEASE=str(lease_s), **settings)

    def complete_slow_jobs(self, number: int, by: Program) -> None:
        """Let this worker complete so many jobs one after the other: it probes other workers at the same time."""
        for _ in range(number):
            [id] = self.put("slow")
            self.wait_for_entry("end", id, by=by)

    def ledger(self) -> list[Entry]:
        """The ledger so far, oldest entry first."""
        new = [line.split() for line in self._ledger.lines()[len(self._entries) :]]
        self._entries += [Entry(what, id, int(pid), int(worker)) for what, id, pid, worker in new]
        return self._entries

    def entries(self, what: str, id: str) -> list[Entry]:
        return [entry for entry in self.ledger() if (entry.what, entry.id) == (what, id)]

    def wait_for_entry(self, what: str, id: str, by: Program) -> Entry:
        """The next entry of a child of this worker."""
        (entry,) = until(
            lambda: [entry for entry in self.entries(what, id) if entry.worker == by.pid],
            f"'{what}' of job {id} by a child of {by.pid}",
        )
        return entry

    def open_gate(self, start: Entry) -> None:
        """Open the gate of the run with this entry."""
        with (self.directory / f"gate-{start.id}-{start.pid}").open("w"):
            pass

    def history(self, id: str) -> JobHistory:
        history = self.hf.backend().get(id)
        assert history is not None, f"job '{id}' is gone"
        return history

    def state(self, id: str) -> JobState:
        return self.history(id).job.state

    def outcomes(self, id: str) -> list[Outcome]:
        return [past.record.outcome for past in self.history(id).attempts]

    def has_lease_ended(self, id: str) -> bool:
        """Whether its lease has expired, even if it was not reaped yet."""
        lease_until = self.history(id).job.lease_until
        return lease_until is not None and lease_until.timestamp() * 1e6 < self.hf.backend().clock.now_us()

    def are_done(self, number: int) -> bool:
        """Whether so many jobs are completed and there are no others."""
        return self.counts() == {JobState.COMPLETED: number}

    def counts(self) -> dict[JobState, int]:
        return self.hf.backend().counts().get("default", {})

    def ends(self) -> Counter[str]:
        """How often each job was completed."""
        return Counter(entry.id for entry in self.ledger() if entry.what == "end")

    def unfinished(self, by: Program) -> set[str]:
        """The jobs that children of this worker have started but not finished."""
        entries = [entry for entry in self.ledger() if entry.worker == by.pid]
        return {one.id for one in entries if one.what == "start"} - {one.id for one in entries if one.what == "end"}

    def starts(self) -> dict[str, list[Entry]]:
        """The runs each job began, in order."""
        starts: dict[str, list[Entry]] = {}
        for entry in self.ledger():
            if entry.what == "start":
                starts.setdefault(entry.id, []).append(entry)
        return starts
