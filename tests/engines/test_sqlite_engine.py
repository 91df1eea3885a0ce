"""The SQLite engine under load: rows that a verb reads, locks, and no job lost or done twice."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.clock import ManualClock, SystemClock
from holdfast.errors import IdConflict
from holdfast.queues.contract import PRUNE_BATCH, TOMBSTONE_S, new_owner_token
from holdfast.queues.engines.sqlite import connections as sqlite_file, jobs as sqlite, records as inspector
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.values import (
    FINAL_STATES,
    Ack,
    Entry,
    EntryOutcome,
    JobFilter,
    JobLease,
    JobState,
    LiveOutput,
    Progress,
    Slot,
)

from ..faults.processes import Programs, until
from .sqlite_site import ids_in, job, opened, plan_of, steps_of, stranger

DAY_US = 86_400_000_000


# Rows that a verb reads.


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        pytest.param(sqlite.CANDIDATES, "ready (queue=? AND priority=? AND due_at<?)", id="CANDIDATES"),
        pytest.param(sqlite.NEXT_DUE, "ready (queue=? AND priority=? AND due_at<?)", id="NEXT_DUE"),
        pytest.param(sqlite.STAMPED, "leased (owner_token=? AND queue=? AND lease_until>?)", id="STAMPED"),
        pytest.param(sqlite.LEASES, "leased (owner_token=? AND queue=?)", id="LEASES"),
        pytest.param(sqlite.LEASED_BEFORE, "leased (owner_token=? AND queue=? AND lease_until>?)", id="LEASED_BEFORE"),
        pytest.param(sqlite.HAS_EXPIRED, "leased", id="HAS_EXPIRED"),
        pytest.param(sqlite.CLAMP, "leased", id="CLAMP"),
        pytest.param(sqlite.REAP, "leased", id="REAP"),
        pytest.param(sqlite.RENEW, "leased (owner_token=?)", id="RENEW"),
        pytest.param(sqlite.ACK, "leased (owner_token=?)", id="ACK"),
        pytest.param(sqlite.KNOWN, "id (id=?)", id="KNOWN"),
        pytest.param(inspector.FINISHED_BEFORE, "finished (state=? AND finished_at<?)", id="FINISHED_BEFORE"),
        pytest.param(inspector.OLD_TOMBSTONES, "finished (state=? AND finished_at<?)", id="OLD_TOMBSTONES"),
    ],
)
def test_a_statement_finds_its_rows_through_its_index(path: Path, statement: str, index: str) -> None:
    plan = plan_of(path, statement)
    on_jobs = [step for step in plan if re.match(r"(SEARCH|SCAN) (holdfast_jobs|j)\b", step)]
    assert on_jobs
    assert all(step.endswith(f"INDEX holdfast_jobs_{index}") for step in on_jobs), plan


@pytest.mark.parametrize(
    "statement", [sqlite.CANDIDATES, sqlite.NEXT_DUE, inspector.FINISHED_BEFORE, inspector.OLD_TOMBSTONES]
)
def test_rows_come_from_the_index_in_order_and_are_never_sorted(path: Path, statement: str) -> None:
    assert not [step for step in plan_of(path, statement) if "TEMP B-TREE" in step]


@pytest.mark.parametrize("statement", [sqlite.CLAIM, sqlite.END, sqlite.GIVE_BACK, sqlite.REPORT_PROGRESS])
def test_a_job_is_changed_by_its_number(path: Path, statement: str) -> None:
    on_tables = [step for step in plan_of(path, statement) if re.match(r"(SEARCH|SCAN) (holdfast_|j |m )", step)]
    assert on_tables
    assert all("USING INTEGER PRIMARY KEY (rowid=?)" in step for step in on_tables)


def test_no_verb_does_more_because_more_jobs_wait_are_scheduled_or_have_finished(quick_path: Path) -> None:
    few = steps_of_each_verb(quick_path.with_name("few.db"), 1_000)
    many = steps_of_each_verb(quick_path.with_name("many.db"), 50_000)
    assert many == pytest.approx(few, rel=0.05)


@pytest.mark.parametrize("queues", [1, 30])
def test_finished_jobs_are_counted_by_queue_whether_these_are_few_or_many(quick_path: Path, queues: int) -> None:
    with opened(quick_path) as engine:
        for number in range(queues):
            queue = f"q{number}"
            engine.accept([job(queue=queue) for _ in range(number + 1)])
            for lease in engine.claim(queue, 100, owner_token=new_owner_token()):
                assert engine.ack(lease)
        assert engine.counts() == {f"q{number}": {JobState.COMPLETED: number + 1} for number in range(queues)}


def test_a_queue_that_only_old_jobs_were_in_is_counted(quick_path: Path) -> None:
    with opened(quick_path) as engine:
        for queue, number in (("old", 1), ("new", 1001)):
            engine.accept([job(queue=queue) for _ in range(number)])
            leases = engine.claim(queue, 2000, owner_token=new_owner_token())
            assert all(engine.settle([Ack(lease=lease) for lease in leases]))
        assert engine.counts() == {"old": {JobState.COMPLETED: 1}, "new": {JobState.COMPLETED: 1001}}


def test_waiting_jobs_are_counted_in_the_order_of_their_index(path: Path) -> None:
    assert not [step for step in plan_of(path, inspector.COUNT_WAITING) if "TEMP B-TREE" in step]


# Many jobs at once.


def test_more_records_than_one_batch_are_forgotten_and_later_their_tombstones(path: Path) -> None:
    clock, many = ManualClock(), 2 * PRUNE_BATCH + 1
    with opened(path, clock=clock, lease_s=600) as engine:
        engine.accept([job() for _ in range(many)])
        leases = engine.claim("default", many, owner_token=new_owner_token())
        assert engine.settle([Ack(lease=lease) for lease in leases]) == [True] * many
        assert engine.purge([JobState.COMPLETED]) == many
        assert len(ids_in(path)) == many, "an hour long they are known"
        clock.advance(TOMBSTONE_S)
        engine.prune()
        assert ids_in(path) == set()


def test_a_statement_inserts_many_jobs_of_one_kind_and_another_the_rest(path: Path) -> None:
    assert sqlite.ROWS_AT_ONCE == 100
    many = [job(queue="busy") for _ in range(250)]
    few = [job(queue="idle", size=number, delay=60.0 if number % 2 else None) for number in range(130)]
    mixed = [one for pair in zip(many, few, strict=False) for one in pair] + many[len(few) :]
    with opened(path) as backend:
        began = backend.clock.now_us()
        assert [(answer.id, answer.created) for answer in backend.accept(mixed)] == [(one.id, True) for one in mixed]
        ended = backend.clock.now_us()
    rows = kept_in(path)
    assert [(id, queue, wire) for id, queue, _, wire in rows] == [(one.id, one.queue, one.wire) for one in mixed]
    at_once = [due for (_, _, due, _), one in zip(rows, mixed, strict=True) if not one.delay]
    delayed = {due for (_, _, due, _), one in zip(rows, mixed, strict=True) if one.delay}
    assert at_once == sorted(set(at_once))
    assert began - len(mixed) < at_once[0]
    assert at_once[-1] <= ended
    assert len(delayed) == 1
    assert began + 60_000_000 <= delayed.pop() <= ended + 60_000_000


def test_many_large_messages_are_stored(path: Path) -> None:
    many = [job(size=sqlite.SMALL_WIRE_BYTES if number == 50 else 10) for number in range(120)]
    with opened(path) as backend:
        backend.accept(many)
    assert [(id, wire) for id, _, _, wire in kept_in(path)] == [(one.id, one.wire) for one in many]


@pytest.mark.parametrize("known_at", [0, 120, 249])
def test_of_many_jobs_only_those_are_added_that_are_new(path: Path, known_at: int) -> None:
    many = [job(f"job-{number}") for number in range(250)]
    with opened(path) as backend:
        backend.accept([many[known_at]])
        created = [answer.created for answer in backend.accept(many)]
    assert created == [place != known_at for place in range(250)]
    assert {id: wire for id, _, _, wire in kept_in(path)} == {one.id: one.wire for one in many}
    with stranger(path) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_messages").fetchone() == (250,)


def test_of_many_jobs_none_is_added_if_one_has_the_id_of_another(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("job-120", size=1)])
        with pytest.raises(IdConflict, match="job-120"):
            backend.accept([job(f"job-{number}") for number in range(250)])
    assert [id for id, _, _, _ in kept_in(path)] == ["job-120"]


def kept_in(path: Path) -> list[tuple[str, str, int, bytes]]:
    """Id, queue, due time and message of each job, in the order of acceptance."""
    with stranger(path) as connection:
        return connection.execute(
            "SELECT id, queue, due_at, wire FROM holdfast_jobs LEFT JOIN holdfast_messages USING (seq) ORDER BY seq"
        ).fetchall()


def steps_of_each_verb(path: Path, number: int) -> dict[str, int]:
    """The number of steps of SQLite's virtual machine for each verb, in a file with this many jobs of every kind."""
    leases: list[JobLease] = []
    with opened(path) as backend:
        fill(backend, path, number)

        def claim(queue: str) -> Callable[[], object]:
            return lambda: leases.extend(backend.claim(queue, 10, owner_token=new_owner_token()))

        steps = {
            "claim": steps_of(backend, claim("busy")),
            "claim nothing": steps_of(backend, claim("idle")),
            "claim what is scheduled": steps_of(backend, claim("later")),
            "report": steps_of(backend, lambda: backend.report_progress([(one, Progress(done=1)) for one in leases])),
            "print": steps_of(backend, lambda: backend.report_output([(one, LiveOutput(text="a")) for one in leases])),
            "look at leases": steps_of(backend, lambda: backend.lease_states(leases)),
            "renew": steps_of(backend, lambda: backend.renew_many(leases)),
            "settle": steps_of(backend, lambda: backend.settle([Ack(lease=lease) for lease in leases])),
            "accept": steps_of(backend, lambda: backend.accept([job("new", queue="busy")])),
            "accept again": steps_of(backend, lambda: backend.accept([job("new", queue="busy")])),
            "reap": steps_of(backend, backend.reap_expired),
            "prune": steps_of(backend, backend.prune),
            "get": steps_of(backend, lambda: backend.get("new")),
            "list what has ended": steps_of(backend, lambda: backend.find(JobFilter(states=tuple(FINAL_STATES)))),
            "wait": steps_of(backend, lambda: backend.claim("later", 10, owner_token=new_owner_token(), wait=1e-6)),
        }
    assert len(leases) == 10
    return steps


def fill(backend: SqliteEngine, path: Path, number: int) -> None:
    """Insert this many due, scheduled, completed and deleted jobs, without the engine."""
    now = backend.clock.now_us()
    backend.create_schema()
    kinds = [
        ("busy", 0, now - DAY_US, None),
        ("busy", 0, now + DAY_US, None),
        ("later", 1, now + DAY_US, None),
        ("busy", 4, now, now),
        ("busy", 7, now, now + DAY_US),
    ]
    with stranger(path) as connection:
        connection.execute("BEGIN")
        for place, (queue, state, due_at, finished_at) in enumerate(kinds):
            connection.execute(
                """
                INSERT INTO holdfast_jobs (seq, id, queue, job, priority, state, due_at, accepted_at, finished_at)
                WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)
                SELECT :first + n, 'id-' || (:first + n), :queue, 'note', n % 10, :state, :due_at + n, 0,
                       :finished_at + n
                FROM numbers""",
                {
                    "number": number,
                    "first": place * number,
                    "queue": queue,
                    "state": state,
                    "due_at": due_at,
                    "finished_at": finished_at,
                },
            )
        connection.execute("INSERT INTO holdfast_messages (seq, wire) SELECT seq, x'7b7d' FROM holdfast_jobs")
        connection.execute("COMMIT")


# Locks.


def leave_empty(backend: SqliteEngine) -> None:
    backend.create_schema()


def schedule(backend: SqliteEngine) -> None:
    backend.accept([job(delay=3600)])


def pause(backend: SqliteEngine) -> None:
    backend.accept([job()])
    backend.pause("default")


@pytest.mark.parametrize("prepare", [leave_empty, schedule, pause])
def test_an_idle_worker_does_not_take_the_write_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[SqliteEngine], None]
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(sqlite_file, "BUSY_LIMIT_S", 0.1)
    with opened(path) as backend:
        prepare(backend)
        with stranger(path) as other:
            other.execute("BEGIN IMMEDIATE")
            assert backend.claim("default", 1, owner_token=new_owner_token(), wait=0.05) == []
            assert backend.exchange([], "default", 1, owner_token=new_owner_token()) == ([], [])
            backend.wait_for_work(["default"], 0.05)
            assert backend.reap_expired() == 0
            assert backend.repair() == 0
            assert backend.records.delete_unused() == 0


class WatchedClock(SystemClock):
    """Reports when a wait begins."""

    def __init__(self) -> None:
        self.somebody_waits = threading.Event()

    def wait(self, seconds: float, descriptors: Sequence[int]) -> frozenset[int]:
        self.somebody_waits.set()
        return super().wait(seconds, descriptors)


class Claimer:
    """A thread that claims one job and waits for it, up to an hour."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = WatchedClock()
        self.leases: list[JobLease] = []
        self._thread = threading.Thread(target=self._claim, daemon=True)
        self._thread.start()
        assert self._clock.somebody_waits.wait(30)

    def _claim(self) -> None:
        with opened(self._path, clock=self._clock) as backend:
            self.leases = backend.claim("default", 1, owner_token=new_owner_token(), wait=3600)

    def claimed(self) -> list[str]:
        self._thread.join(20)
        assert not self._thread.is_alive(), "nobody woke the one who waits"
        return [lease.id for lease in self.leases]


def test_a_waiting_claim_wakes_up_when_another_thread_accepts_a_job(path: Path) -> None:
    with opened(path) as backend:
        backend.create_schema()
        claimer = Claimer(path)
        backend.accept([job("new")])
        assert claimer.claimed() == ["new"]


def test_a_waiting_claim_wakes_up_when_a_job_is_promoted(path: Path) -> None:
    slot = Slot(name="key:a")
    with opened(path) as backend:
        backend.accept([job("first"), job("second")])
        leases = backend.claim("default", 2, owner_token=new_owner_token())
        first, second = backend.enter([Entry(lease=lease, slots=(slot,)) for lease in leases])
        assert (first.outcome, second.outcome) == (EntryOutcome.ENTERED, EntryOutcome.BLOCKED)
        claimer = Claimer(path)
        assert backend.settle([Ack(lease=leases[0], leaves=(slot.name,))]) == [True]
        assert claimer.claimed() == ["second"]


def test_a_waiting_claim_wakes_up_when_another_process_accepts_a_job(path: Path, programs: Programs) -> None:
    producer = programs.module("tests.engines.actors", "accept-one", str(path), "new")
    producer.wait_for("ready")
    claimer = Claimer(path)
    producer.tell()
    assert claimer.claimed() == ["new"]


def test_a_waiting_claim_wakes_up_when_a_job_falls_due_and_not_before(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("scheduled", delay=0.3)])
        claimer = Claimer(path)
        assert claimer.claimed() == ["scheduled"]
        (view,) = backend.find(JobFilter()).jobs
        assert claimer.leases[0].claimed_at >= view.due_at


def test_a_waiting_claim_wakes_up_when_its_queue_is_resumed(path: Path) -> None:
    with opened(path) as backend:
        backend.accept([job("held")])
        backend.pause("default")
        claimer = Claimer(path)
        backend.resume("default")
        assert claimer.claimed() == ["held"]


# Concurrent processes.


def test_eight_processes_accept_claim_settle_and_reap_and_no_job_is_lost_or_done_twice(
    quick_path: Path, programs: Programs
) -> None:
    hammers = [
        programs.module("tests.engines.actors", "hammer", str(quick_path), f"p{number}", "250") for number in range(8)
    ]
    for hammer in hammers:
        hammer.wait_for("ready")
    for hammer in hammers:
        hammer.tell()
    said = [json.loads(hammer.succeeded().partition("\n")[2]) for hammer in hammers]
    accepted = [id for one in said for id in one["accepted"]]
    acked = [id for one in said for id in one["acked"]]
    assert len(accepted) > 8 * 250

    with opened(quick_path, crash_limit=1000) as backend:

        def is_drained() -> bool:
            backend.reap_expired()
            leases = backend.claim("default", 500, owner_token=new_owner_token())
            acked.extend(lease.id for lease in leases if backend.ack(lease))
            return set(backend.counts()["default"]) == {JobState.COMPLETED}

        until(is_drained, "every job to be completed")
        assert backend.counts() == {"default": {JobState.COMPLETED: len(accepted)}}
    assert Counter(acked) == Counter(set(accepted))
    assert ids_in(quick_path) == set(accepted)
