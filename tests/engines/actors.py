"""Other processes that use an SQLite file during a test:  python -m tests.engines.actors ROLE ARGUMENTS"""

import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.errors import BackendUnavailable
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.sqlite import connections as sqlite_file, jobs as sqlite
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.values import Ack, JobFilter, JobLease, Nack, Release, Settlement

from ..faults.processes import DEADLINE_S
from .sqlite_site import CountingClock, count_inotify, job, opened


def say(text: str) -> None:
    print(text, flush=True)


def wait_for_go() -> None:
    say("ready")
    sys.stdin.readline()


def accept_one(path: str, id: str) -> None:
    """Open the file at the same time as the others, and enqueue one job."""
    wait_for_go()
    with opened(Path(path)) as backend:
        backend.accept([job(id)])


def hold(path: str) -> None:
    """Hold the write lock until a line arrives on stdin."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    wait_for_go()
    connection.execute("COMMIT")
    connection.close()


def hammer(path: str, name: str, rounds: str) -> None:
    """Accept, claim, settle in every way, settle too late and reap; print which jobs were accepted and acknowledged."""
    dice = random.Random(name)
    accepted: list[str] = []
    acked: list[str] = []
    late: list[JobLease] = []
    with (
        opened(Path(path), crash_limit=1000) as backend,
        opened(Path(path), crash_limit=1000, lease_s=0.02) as careless,
    ):
        backend.reap_expired()
        wait_for_go()
        for number in range(int(rounds)):
            batch = [job(f"{name}-{number}-{place}") for place in range(dice.randint(1, 3))]
            accepted += [answer.id for answer in backend.accept(batch) if answer.created]
            acked += settle(backend, [Ack(lease=lease) for lease in late])
            late = []
            if dice.random() < 0.1:
                late = careless.claim("default", 2, owner_token=new_owner_token())
            leases = backend.claim("default", 4, owner_token=new_owner_token())
            acked += settle(backend, [verdict(dice, lease) for lease in leases])
            if number % 10 == 0:
                backend.reap_expired()
    say(json.dumps({"accepted": accepted, "acked": acked}))


def verdict(dice: random.Random, lease: JobLease) -> Settlement:
    luck = dice.random()
    if luck < 0.1:
        return Nack(lease=lease)
    return Release(lease=lease) if luck < 0.2 else Ack(lease=lease)


def settle(backend: SqliteEngine, settlements: list[Settlement]) -> list[str]:
    """The ids of the jobs whose acknowledgement was applied."""
    answers = backend.settle(settlements)
    return [one.lease.id for one, held in zip(settlements, answers, strict=True) if held and isinstance(one, Ack)]


def fork(path: str) -> None:
    """Use one handle on both sides of a fork, at the same time."""
    with opened(Path(path)) as backend:
        backend.accept([job("before")])
        mine = backend.file.connection()

        def in_the_child() -> None:
            assert backend.file.connection() is not mine
            for number in range(50):
                backend.accept([job(f"child-{number}")])

        child = forked(in_the_child)
        for number in range(50):
            backend.accept([job(f"parent-{number}")])
        wait_for(child)
        backend.accept([job("after")])


def fork_and_close(path: str) -> None:
    """Fork with the file open; the parent closes it, and the child continues."""
    has_opened, may_go_on = os.pipe(), os.pipe()
    with opened(Path(path)) as backend:
        backend.accept([job("before")])

        def in_the_child() -> None:
            backend.accept([job("while-the-parent-has-it-open")])
            os.write(has_opened[1], b"!")
            os.read(may_go_on[0], 1)
            backend.accept([job("after-the-parent-closed-it")])

        child = forked(in_the_child)
        os.read(has_opened[0], 1)
    os.write(may_go_on[1], b"!")
    wait_for(child)


def fork_while_writing(path: str) -> None:
    """Fork while another thread is inside a transaction: the fork waits for the commit, and the child can write."""
    sqlite_file.__dict__.update(BUSY_TIMEOUT_S=0.1, BUSY_LIMIT_S=0.5)
    may_go_on = os.pipe()
    writes, may_commit = threading.Event(), threading.Event()
    with opened(Path(path)) as backend:
        backend.accept([job("before")])

        def write(connection: sqlite3.Connection, now: int) -> None:
            writes.set()
            may_commit.wait()

        def in_the_child() -> None:
            os.read(may_go_on[0], 1)
            backend.accept([job("child")])

        writer = threading.Thread(target=lambda: backend.file.transact(write))
        writer.start()
        writes.wait()
        # Hooks run in the reverse order: this one comes before the engine's, which waits for the commit.
        os.register_at_fork(before=may_commit.set)
        child = forked(in_the_child)
        writer.join()
        os.write(may_go_on[1], b"!")
        wait_for(child)


def fork_among_threads(path: str) -> None:
    """Fork repeatedly while other threads write; all of them continue."""
    is_enough = threading.Event()
    with opened(Path(path)) as backend:
        backend.accept([job("before")])

        def write(name: str) -> None:
            number = 0
            while not is_enough.is_set():
                backend.accept([job(f"{name}-{number}")])
                number += 1
            backend.accept([job(f"{name}-last")])

        threads = [threading.Thread(target=write, args=(f"thread-{number}",), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for number in range(60):
            wait_for(forked(partial(backend.accept, [job(f"child-{number}")])))
        is_enough.set()
        for thread in threads:
            thread.join(DEADLINE_S)
            if thread.is_alive():
                print("a thread is stuck since a fork", file=sys.stderr, flush=True)
                os._exit(1)


def fork_while_waiting(path: str) -> None:
    """Fork while only waiting threads have the file open; a job of the child wakes all of them."""
    sqlite_file.__dict__["FORK_PATIENCE_S"] = 3600.0
    sqlite.__dict__["LOOK_EVERY_S"] = 3600.0
    clock = CountingClock()
    with opened(Path(path), clock=clock) as backend:
        backend.create_schema()
        threads = [
            threading.Thread(target=backend.wait_for_work, args=(["default"], 3600), daemon=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        while clock.waits < len(threads):
            time.sleep(0.001)

        def in_the_child() -> None:
            assert count_inotify() == 0, "the child has descriptors of threads it does not have"
            backend.accept([job("child")])

        wait_for(forked(in_the_child))
        for thread in threads:
            thread.join(DEADLINE_S)
            if thread.is_alive():
                print("a thread still waits", file=sys.stderr, flush=True)
                os._exit(1)


def close_among_threads(path: str) -> None:
    """Close the file repeatedly while other threads query it; they open it again and continue."""
    is_enough = threading.Event()
    problems: list[str] = []
    with opened(Path(path)) as backend:
        backend.accept([job("before")])

        def query() -> None:
            while not is_enough.is_set():
                try:
                    backend.accept([job()])
                    backend.counts()
                except Exception as problem:
                    problems.append(repr(problem))

        threads = [threading.Thread(target=query) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            backend.close()
            backend.counts()
        is_enough.set()
        for thread in threads:
            thread.join()
    say(json.dumps(problems))


def forked(body: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(15)  # kills a child that is stuck
    try:
        body()
    except BaseException as problem:
        print(f"in the child: {problem!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def wait_for(child: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        print(f"the child ended with {code}", file=sys.stderr, flush=True)
        os._exit(1)


def fill(directory: str) -> None:
    """Fill the disk with jobs, free some space and continue; print the accepted jobs and the errors."""
    ballast = Path(directory) / "ballast"
    ballast.write_bytes(bytes(256 * 1024))
    accepted: list[str] = []
    problem = ""
    with opened(Path(directory) / "jobs.db") as backend:
        backend.accept([job("leased")])
        accepted.append("leased")
        (lease,) = backend.claim("default", 1, owner_token=new_owner_token())
        while not problem:
            id = f"job-{len(accepted)}"
            try:
                backend.accept([job(id, size=3000)])
                accepted.append(id)
            except BackendUnavailable as full:
                problem = str(full)
        kept_when_full = sorted(view.id for view in backend.find(JobFilter(), limit=100_000).jobs)
        ballast.unlink()
        acked = backend.ack(lease)
        backend.accept([job("after")])
        kept = sorted(view.id for view in backend.find(JobFilter(), limit=100_000).jobs)
    say(
        json.dumps(
            {
                "accepted": sorted(accepted),
                "problem": problem,
                "kept_when_full": kept_when_full,
                "acked": acked,
                "kept": kept,
            }
        )
    )


ROLES: dict[str, Callable[..., None]] = {
    "accept-one": accept_one,
    "hold": hold,
    "hammer": hammer,
    "fork": fork,
    "fork-and-close": fork_and_close,
    "fork-while-writing": fork_while_writing,
    "fork-among-threads": fork_among_threads,
    "fork-while-waiting": fork_while_waiting,
    "close-among-threads": close_among_threads,
    "fill": fill,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
