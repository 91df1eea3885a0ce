"""Slots and unique jobs on a real MariaDB: transactions that meet, and transactions that callers leave open."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BackendUnavailable, IdConflict
from holdfast.queues.contract import SlotRow, new_owner_token
from holdfast.queues.engines.mysql import (
    connections as mysql_connections,
    jobs as mysql_jobs,
    records as mysql_records,
    slots as mysql,
    transactions as mysql_transactions,
)
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.values import (
    Accepted,
    Ack,
    AttemptRecord,
    Entry,
    EntryOutcome,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    Outcome,
    Slot,
    Unique,
    UniqueScope,
)

from ..faults.processes import until
from ..servers.mysql import MariadbServer
from ..servers.running import started
from .mysql_actors import opened
from .mysql_stepping import Stepping, steps_through
from .sqlite_site import job
from .test_mysql import Aside, claim, status, stranger, waiting_for_locks

ENTERED, BLOCKED = EntryOutcome.ENTERED, EntryOutcome.BLOCKED
KEY = Slot(name="key:a")
CROWD = 6
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    server = started(MariadbServer)
    assert isinstance(server, MariadbServer)
    yield server
    server.close()


@pytest.fixture
def prefix() -> str:
    return f"test{next(_numbers)}_"


@pytest.fixture
def backend(server: MariadbServer, prefix: str) -> Iterator[MysqlEngine]:
    with opened(server.url, prefix) as backend:
        yield backend


def enter(backend: MysqlEngine, lease: JobLease, *slots: Slot) -> EntryOutcome:
    [answer] = backend.enter([Entry(lease=lease, slots=slots or (KEY,))])
    return answer.outcome


def leave(backend: MysqlEngine, lease: JobLease, *slots: Slot) -> bool:
    [answer] = backend.settle([Ack(lease=lease, leaves=tuple(slot.name for slot in slots or (KEY,)))])
    return answer


def take(backend: MysqlEngine, id: str) -> JobLease:
    [lease] = claim(backend)
    assert lease.id == id
    return lease


def hold(backend: MysqlEngine, id: str, *slots: Slot) -> JobLease:
    backend.accept([job(id)])
    lease = take(backend, id)
    assert enter(backend, lease, *slots) is ENTERED
    return lease


def block(backend: MysqlEngine, *ids: str, slot: Slot = KEY) -> None:
    backend.accept([job(id) for id in ids])
    answers = backend.enter([Entry(lease=lease, slots=(slot,)) for lease in claim(backend)])
    assert [answer.outcome for answer in answers] == [BLOCKED] * len(ids)


def unique(id: str, *, key: str = "k", scope: UniqueScope = UniqueScope.OPEN) -> JobEnvelope:
    return replace(job(id), unique=Unique(key=key, scope=scope))


def state(backend: MysqlEngine, id: str) -> JobState | None:
    history = backend.get(id)
    return None if history is None else history.job.state


# Transactions that meet.


@pytest.fixture
def _steps() -> Iterator[None]:
    with steps_through():
        yield


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("first", ["the job that enters", "the holder that leaves"])
def test_a_job_that_finds_its_slot_full_while_the_holder_leaves_can_be_claimed(
    backend: MysqlEngine, server: MariadbServer, first: str
) -> None:
    """Before each of its statements, one of the two is overtaken by the other, until that waits for a lock."""
    with stranger(server) as cursor:
        step = 0
        for step in count():
            slot = Slot(name=f"key:{step}")
            holder = hold(backend, f"holder{step}", slot)
            backend.accept([job(f"waiter{step}")])
            waiter = take(backend, f"waiter{step}")
            calls: list[Callable[[], object]] = [
                partial(enter, backend, waiter, slot),
                partial(leave, backend, holder, slot),
            ]
            if first == "the holder that leaves":
                calls.reverse()
            stepping = Stepping(calls[0], pause_before=step)
            until(stepping.has_stopped, "the first to pause")
            is_over = not stepping.is_paused.is_set()
            overtaking = Aside(calls[1])
            until(lambda: not overtaking.is_alive() or waiting_for_locks(cursor), "the second to end or to wait")  # noqa: B023 - called at once
            stepping.go_on()
            answers = {stepping.answer(), overtaking.answer()}
            assert answers in ({True, ENTERED}, {True, BLOCKED})
            if BLOCKED in answers:
                waiter = take(backend, f"waiter{step}")
                assert enter(backend, waiter, slot) is ENTERED
            assert leave(backend, waiter, slot)
            if is_over:
                break
        assert step > 5


def test_workers_that_enter_leave_and_renew_do_not_deadlock(backend: MysqlEngine, server: MariadbServer) -> None:
    backend.accept([job(f"job{number:03}") for number in range(150)])
    slots = [Slot(name=f"key:{letter}", size=2) for letter in "abc"]

    def work(number: int) -> int:
        dice = random.Random(number)
        leases = claim(backend, 3)
        done = 0
        while backend.counts()["default"] != {JobState.COMPLETED: 150}:
            backend.repair()
            first = {lease: int(lease.id[3:]) % 3 for lease in leases}
            mine = {one: tuple(dice.sample([slots[at], slots[at - 1]], 2)) for one, at in first.items()}
            answers = backend.enter([Entry(lease=lease, slots=some) for lease, some in mine.items()])
            entered = [lease for lease, answer in zip(mine, answers, strict=True) if answer.outcome is ENTERED]
            assert backend.renew_many(entered) == [LeaseState.HELD] * len(entered)
            ends = [Ack(lease=one, leaves=tuple(slot.name for slot in mine[one])) for one in entered]
            settled, leases = backend.exchange(ends, "default", 3, owner_token=new_owner_token())
            done += sum(settled)
        return done

    with stranger(server) as cursor:
        before = status(cursor, "Innodb_deadlocks")
        workers = [Aside(partial(work, number)) for number in range(CROWD)]
        assert sum(answer for one in workers if isinstance(answer := one.answer(), int)) == 150
        assert status(cursor, "Innodb_deadlocks") == before


def test_a_renewal_that_is_not_committed_yet_still_holds_the_slot(server: MariadbServer, prefix: str) -> None:
    with opened(server.url, prefix, lease_s=0.5) as hasty, opened(server.url, prefix) as backend:
        hasty.accept([job("holder")])
        assert enter(hasty, take(hasty, "holder")) is ENTERED
        backend.accept([job("other")])
        other = take(backend, "other")
        with stranger(server) as cursor, stranger(server) as watcher:
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE {prefix}jobs SET lease_until = lease_until + 60000000 WHERE id = 'holder'")
            watcher.execute("SET time_zone = '+00:00'")
            held = f"SELECT 1 FROM {prefix}jobs WHERE id = 'holder' AND lease_until > {mysql_connections.CLOCK}"
            until(lambda: watcher.execute(held) == 0, "the lease to look expired")
            entering = Aside(lambda: enter(backend, other))
            until(lambda: waiting_for_locks(watcher), "the entry to wait for the renewal")
            cursor.execute("COMMIT")
            assert entering.answer() is BLOCKED


@pytest.mark.parametrize("is_sorted", [True, False])
def test_slots_are_locked_in_the_order_of_their_names(
    backend: MysqlEngine, server: MariadbServer, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    """Two jobs name their slots in opposite orders; each waits a little before each lock. Unsorted, they deadlock."""
    slow = mysql.LOCK_SLOTS.replace("VALUES (%s, 0)", "VALUES (%s, SLEEP(0.2))")
    assert slow != mysql.LOCK_SLOTS
    monkeypatch.setattr(mysql, "LOCK_SLOTS", slow)
    lock, turns = mysql.MysqlSlots.lock, count()

    def lock_unsorted(slots: mysql.MysqlSlots, names: Sequence[str]) -> Mapping[str, SlotRow]:
        return lock(slots, names[::-1] if next(turns) % 2 else names)

    if not is_sorted:
        monkeypatch.setattr(mysql.MysqlSlots, "lock", lock_unsorted)
    pairs = (KEY, Slot(name="key:b")), (Slot(name="key:b"), KEY)
    backend.accept([job("a"), job("b")])
    leases = claim(backend)
    with stranger(server) as cursor:
        before = status(cursor, "Innodb_deadlocks")
        calls = [Aside(partial(enter, backend, lease, *asked)) for lease, asked in zip(leases, pairs, strict=True)]
        assert {call.answer() for call in calls} == {ENTERED, BLOCKED}
        assert (status(cursor, "Innodb_deadlocks") == before) is is_sorted


def entering(backend: MysqlEngine, lease: JobLease, slot: Slot) -> Callable[[], object]:
    return partial(enter, backend, lease, slot)


def leaving(backend: MysqlEngine, lease: JobLease, slot: Slot) -> Callable[[], object]:
    enter(backend, lease, slot)
    return partial(leave, backend, lease, slot)


def committing(backend: MysqlEngine, lease: JobLease, slot: Slot) -> Callable[[], object]:
    enter(backend, lease, slot)
    transaction = backend.transaction(lease.id, lease.delivery)
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
    return partial(transaction.complete, record, leaves=(slot.name,))


@pytest.mark.usefixtures("_steps")
@pytest.mark.parametrize("call", [entering, leaving, committing])
def test_a_client_that_stops_in_a_transaction_does_not_lock_a_slot_for_long(
    backend: MysqlEngine,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[MysqlEngine, JobLease, Slot], Callable[[], object]],
) -> None:
    """Before each of its statements, it executes none until another job has entered."""
    for name in ("HAND_BACK", "PREPARE"):
        statements: Any = getattr(mysql_connections, name)
        whole = "\n".join(statements) if name == "PREPARE" else statements
        soon = whole.replace("idle_transaction_timeout = 3", "idle_transaction_timeout = 1")
        assert soon != whole
        changed: Any = tuple(soon.split("\n")) if name == "PREPARE" else soon
        monkeypatch.setattr(mysql_connections, name, changed)
    monkeypatch.setattr(mysql_transactions, "HAND_BACK", mysql_connections.HAND_BACK)
    step = 0
    for step in count():
        slot = Slot(name=f"key:{step}")
        backend.accept([job(f"stopping{step}"), job(f"other{step}")])
        leases = {lease.id: lease for lease in claim(backend)}
        stopping = Stepping(call(backend, leases[f"stopping{step}"], slot), pause_before=step)
        until(stopping.has_stopped, "it to stop")
        is_over = not stopping.is_paused.is_set()
        assert enter(backend, leases[f"other{step}"], slot) in (ENTERED, BLOCKED)
        stopping.go_on()
        stopping.answer()
        if is_over:
            break
    assert step > 5


def test_a_job_ends_though_its_slot_is_locked_and_the_next_one_is_promoted_later(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    holder = hold(backend, "holder")
    block(backend, "second")
    with stranger(server) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}slots FOR UPDATE")
        assert leave(backend, holder)
        assert backend.repair() == 0
        assert claim(backend) == []
        cursor.execute("COMMIT")
    assert backend.repair() == 1
    assert enter(backend, take(backend, "second")) is ENTERED


def test_an_entry_that_waits_for_a_locked_slot_is_given_up(
    backend: MysqlEngine, server: MariadbServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_jobs, "ENTER_BUSY_LIMIT_S", 1.0)
    hold(backend, "holder")
    backend.accept([job("other")])
    other = take(backend, "other")
    with stranger(server) as cursor, stranger(server) as watcher:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}slots FOR UPDATE")
        with pytest.raises(BackendUnavailable, match="stayed busy"):
            enter(backend, other)
        assert not waiting_for_locks(watcher)
        cursor.execute("COMMIT")
    assert enter(backend, other) is BLOCKED


# Transactions that callers leave open.


def test_a_caller_waits_for_the_key_of_an_open_transaction(backend: MysqlEngine, server: MariadbServer) -> None:
    backend.create_schema()
    with server.connect("holdfast") as connection, stranger(server) as cursor:
        connection.begin()
        assert backend.accept([unique("a")], connection) == [Accepted(id="a", created=True)]
        waiting = Aside(lambda: backend.accept([unique("b")]))
        until(lambda: waiting_for_locks(cursor), "the second caller to wait")
        connection.commit()
        assert waiting.answer() == [Accepted(id="a", created=False)]
        connection.begin()
        assert backend.accept([unique("c", key="other")], connection)[0].created
        waiting = Aside(lambda: backend.accept([unique("d", key="other")]))
        until(lambda: waiting_for_locks(cursor), "the second caller to wait")
        connection.rollback()
        assert waiting.answer() == [Accepted(id="d", created=True)]


def test_a_waiting_job_could_start_if_it_were_not_locked(
    backend: MysqlEngine, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bug that the next test would catch."""
    monkeypatch.setattr(mysql, "LOCK_JOBS", mysql.LOCK_JOBS.replace(" FOR UPDATE", ""))
    scope = UniqueScope.WAITING
    backend.accept([unique("a", scope=scope)])
    with server.connect("holdfast") as connection:
        connection.begin()
        assert backend.accept([unique("b", scope=scope)], connection) == [Accepted(id="a", created=False)]
        assert [lease.id for lease in claim(backend)] == ["a"]
        connection.commit()


def test_a_job_that_an_open_transaction_found_waiting_is_not_started(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    scope = UniqueScope.WAITING
    backend.accept([unique("a", scope=scope), job("other")])
    with server.connect("holdfast") as connection:
        connection.begin()
        assert backend.accept([unique("b", scope=scope)], connection) == [Accepted(id="a", created=False)]
        assert backend.ack(take(backend, "other"))
        connection.commit()
    assert backend.ack(take(backend, "a"))


def test_an_open_transaction_does_not_hold_up_the_worker_of_a_running_job(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    backend.accept([unique("a")])
    with server.connect("holdfast") as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute(backend.connections.sql("SELECT state FROM holdfast_jobs"))  # an old snapshot: it is waiting
        assert cursor.fetchall() == ((0,),)
        waits = status(cursor, "Innodb_row_lock_waits")
        lease = take(backend, "a")
        assert backend.accept([unique("b")], connection) == [Accepted(id="a", created=False)]
        assert backend.reschedule([job("a", queue="mail")], connection) == [False]
        assert backend.renew_many([lease]) == [LeaseState.HELD]
        assert backend.ack(lease)
        assert status(cursor, "Innodb_row_lock_waits") == waits
        assert backend.accept([unique("c")], connection) == [Accepted(id="c", created=True)]
        connection.commit()
    assert state(backend, "c") is JobState.PENDING


@pytest.mark.parametrize("make", [job, unique])
def test_open_transactions_do_not_wait_for_each_other_to_store_jobs(
    backend: MysqlEngine, server: MariadbServer, make: Callable[..., JobEnvelope]
) -> None:
    """With REPEATABLE READ, looking for an id under lock would lock the gap into which the others insert theirs."""
    backend.create_schema()
    with server.connect("holdfast") as one, server.connect("holdfast") as other:
        for connection in (one, other):
            connection.begin()
            with connection.cursor() as cursor:
                cursor.execute("SET innodb_lock_wait_timeout = 1")
        for number in range(2):
            for name, connection in (("one", one), ("other", other)):
                keyed = {"key": f"{name}{number}"} if make is unique else {}
                assert backend.accept([make(f"{name}{number}", **keyed)], connection)[0].created
        one.commit()
        other.commit()
    assert backend.counts() == {"default": {JobState.PENDING: 4}}


def test_a_transaction_sees_the_jobs_it_has_stored_itself(backend: MysqlEngine, server: MariadbServer) -> None:
    backend.create_schema()
    with server.connect("holdfast") as connection:
        connection.begin()
        assert backend.accept([unique("a")], connection)[0].created
        assert backend.accept([unique("b")], connection) == [Accepted(id="a", created=False)]
        assert backend.reschedule([job("a", queue="mail")], connection) == [True]
        with pytest.raises(IdConflict):
            backend.accept([unique("c", key="other"), job("a")], connection)
        assert backend.accept([unique("d", key="other")], connection)[0].created
        connection.commit()
    assert backend.counts() == {"mail": {JobState.PENDING: 1}, "default": {JobState.PENDING: 1}}


def test_a_blocked_job_that_a_transaction_has_locked_is_passed_over_and_promoted_later(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    wide = Slot(name="key:wide", size=2)
    long, short = hold(backend, "long", wide), hold(backend, "short", wide)
    backend.accept([unique("locked")])
    assert enter(backend, take(backend, "locked"), wide) is BLOCKED
    with server.connect("holdfast") as connection, stranger(server) as cursor:
        connection.begin()
        assert backend.accept([unique("b")], connection) == [Accepted(id="locked", created=False)]
        waits = status(cursor, "Innodb_row_lock_waits")
        assert leave(backend, short, wide)
        assert (claim(backend), backend.repair(), state(backend, "locked")) == ([], 0, JobState.BLOCKED)
        [view] = backend.slots()
        assert ([holder.job_id for holder in view.holders], view.waiting) == (["long"], 1)
        assert status(cursor, "Innodb_row_lock_waits") == waits
        connection.commit()
    assert backend.repair() == 1
    assert enter(backend, take(backend, "locked"), wide) is ENTERED
    assert leave(backend, long, wide)


def test_the_next_job_is_promoted_if_a_transaction_has_locked_the_first(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    holder = hold(backend, "holder")
    block(backend, "first", "second")
    with server.connect("holdfast") as connection:
        connection.begin()
        assert backend.reschedule([job("first")], connection) == [True]
        assert leave(backend, holder)
        assert enter(backend, take(backend, "second")) is ENTERED
        connection.commit()
    assert enter(backend, take(backend, "first")) is BLOCKED


def test_a_settlement_that_waits_for_a_key_does_not_stop_renewals(backend: MysqlEngine, server: MariadbServer) -> None:
    holder = hold(backend, "holder")
    with server.connect("holdfast") as connection, stranger(server) as cursor:
        connection.begin()
        backend.accept([unique("a")], connection)
        end = Ack(lease=holder, leaves=(KEY.name,), enqueues=(unique("b"), unique("c", key="other")))
        settling = Aside(lambda: backend.settle([end]))
        until(lambda: waiting_for_locks(cursor), "the settlement to wait")
        assert backend.renew_many([holder]) == [LeaseState.HELD]
        connection.commit()
        assert settling.answer() == [True]
    assert sorted(lease.id for lease in claim(backend)) == ["a", "c"]
    assert state(backend, "b") is None


# Rows that another program has damaged.

NOT_UTF8 = b"\xff\xfe"
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("slots", ("key:a", LARGEST, None, 0)),
        ("slots", ("key:a", SMALLEST, None, 0)),
        ("slots", (NOT_UTF8, 0, None, 0)),
        ("places", ("key:a", 999, "default", None, 0, LARGEST, LARGEST)),
        ("places", ("key:a", 999, "default", bytes(16), LARGEST, SMALLEST, 0)),
        ("places", ("key:a", 999, NOT_UTF8, None, 0, 0, 0)),
        ("places", (NOT_UTF8, 999, "default", None, 0, 0, SMALLEST)),
        ("blocked", (999, "key:a", "default", -128, SMALLEST, "unknown", 1, LARGEST)),
        ("blocked", (999, "key:a", "default", 127, LARGEST, NOT_UTF8, -1, SMALLEST)),
        ("blocked", (999, "key:a", NOT_UTF8, 0, 0, "unknown", 1, 0)),
        ("blocked", (999, NOT_UTF8, "default", 0, 0, "unknown", 1, 0)),
        ("uniques", ("k", NOT_UTF8, SMALLEST)),
        ("uniques", ("k", "unknown", LARGEST)),
        ("uniques", (NOT_UTF8, "unknown", 0)),
    ],
)
def test_a_damaged_row_stops_nothing(
    backend: MysqlEngine, server: MariadbServer, prefix: str, table: str, row: tuple[object, ...]
) -> None:
    backend.create_schema()
    with stranger(server) as cursor:
        marks = ", ".join(["%s"] * len(row))
        cursor.execute(f"INSERT INTO {prefix}{table} VALUES ({marks})", row)
    backend.repair()
    assert backend.accept([unique("other")]) == [Accepted(id="other", created=True)]
    assert backend.ack(take(backend, "other"))
    holder = hold(backend, "holder")
    block(backend, "first", "second")
    assert [one.name for one in backend.slots()] == [KEY.name]
    for id in ("first", "second"):
        assert leave(backend, holder)
        backend.repair()
        backend.prune()
        holder = take(backend, id)
        assert enter(backend, holder) is ENTERED
    assert leave(backend, holder)


# Rows that a verb reads.


def test_no_verb_of_slots_walks_through_all_that_wait(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.create_schema()
    names = [f"key:{number}" for number in range(50)]
    with stranger(server) as cursor:
        blocked = [(n, "key:a" if n <= 3000 else names[n % 50], f"q{n % 2}", n, n) for n in range(1, 4001)]
        cursor.executemany(f"INSERT INTO {prefix}blocked VALUES (%s, %s, %s, 4, %s, %s, 1, 1)", blocked)
        places = [(names[n % 50], n) for n in range(1, 1001)]
        cursor.executemany(f"INSERT INTO {prefix}places VALUES (%s, %s, 'q', NULL, 1, 1, 1)", places)
        cursor.executemany(f"INSERT INTO {prefix}slots VALUES (%s, 1, NULL, 0)", [(name,) for name in names])
        cursor.executemany(f"INSERT INTO {prefix}uniques VALUES (%s, 'a', 0)", [(name,) for name in names])
        cursor.execute(f"ANALYZE TABLE {prefix}blocked, {prefix}places, {prefix}slots, {prefix}uniques")
        cursor.fetchall()
        numbers = list(range(1, 11))
        queries: list[tuple[str, Any, dict[str, str]]] = [
            (mysql.LOCKED_SLOTS, (names[:9],), {"slots": "PRIMARY"}),
            (mysql.PLACES, (names[:9],), {"p": "PRIMARY"}),
            (mysql.FREE, (places[:9],), {"p": "PRIMARY"}),
            (mysql.QUEUES, (names[:9],), {"blocked": "by_turn"}),
            (mysql.BEST, ("key:a", "q1", 0, 16), {"blocked": "by_turn"}),
            (mysql.WAITS, (numbers,), {"b": "PRIMARY"}),
            (mysql.STOP_WAITING, (numbers,), {"b": "PRIMARY"}),
            (mysql.NEGLECTED, (100,), {"blocked": "by_turn", "p": "PRIMARY", "s": "PRIMARY"}),
            (mysql.LOCKED_KEYS, (names[:9],), {"uniques": "PRIMARY"}),
            (mysql_records.FIRST_WAITERS, ("key:a", "q1", 10), {"b": "by_turn"}),
        ]
        for statement, values, indexes in queries:
            cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + backend.connections.sql(statement), values)
            columns = [column[0] for column in cursor.description]
            plan = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            used = {str(row["table"]).removeprefix(prefix): row["key"] for row in plan}
            assert used | indexes == used, plan
            assert "filesort" not in str(plan), plan
            if statement in (mysql.QUEUES, mysql.NEGLECTED):
                assert "Using index for group-by" in str(plan), plan
