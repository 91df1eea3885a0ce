"""Slots and unique keys on a real PostgreSQL server: races stepped over two connections, locks, plans and damage."""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable, IdConflict, UniqueConflict
from holdfast.queues.contract import PROMOTION_S, LeasePolicy, LockedSlots, SlotRows, new_owner_token, records
from holdfast.queues.engines.postgres import connections, records as postgres_records, slots
from holdfast.queues.engines.postgres.connections import Connection
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import (
    Accepted,
    Ack,
    AttemptRecord,
    Entered,
    Entry,
    EntryOutcome,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    OnConflict,
    Outcome,
    Put,
    Release,
    Slot,
    Unique,
    UniqueScope,
)

from ..faults.processes import until
from ..servers.postgres import PostgresServer
from ..servers.running import started
from .postgres_stepping import TO_THE_END, WAITS, Stepping, execute, in_time, open_transaction, steps_through

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
KEY = Slot(name="key:a")
LARGEST = 2**63 - 1
GATE = 4711
WAITERS = 10_000
ROUNDS = 25
_numbers = itertools.count(1)
_ids = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    server = started(PostgresServer)
    yield server
    server.close()


def connect(server: PostgresServer, prefix: str | None = None) -> PostgresEngine:
    return PostgresEngine(server.url, EnvelopeFactory(KEYS), prefix=prefix or f"slots{next(_numbers)}_")


@pytest.fixture
def engine(server: PostgresServer) -> Generator[PostgresEngine]:
    with connect(server) as engine:
        engine.create_schema()
        yield engine


def job(
    engine: PostgresEngine,
    id: str | None = None,
    *,
    queue: str = "default",
    key: str | None = None,
    scope: UniqueScope = UniqueScope.OPEN,
    reject: bool = False,
) -> JobEnvelope:
    made = engine.envelopes.make(JobDefinition(handler="send", queue=queue), id=id or f"job{next(_ids)}")
    if key is None:
        return made
    on_conflict = OnConflict.REJECT if reject else OnConflict.IGNORE
    return replace(made, unique=Unique(key=key, scope=scope, on_conflict=on_conflict))


def take(engine: PostgresEngine, id: str | None = None) -> JobLease:
    """Store a job and claim it."""
    [accepted] = engine.accept([job(engine, id)])
    [lease] = engine.claim("default", 1, owner_token=new_owner_token())
    assert lease.id == accepted.id
    return lease


def enter(engine: PostgresEngine, lease: JobLease, *asked: Slot) -> EntryOutcome:
    [answer] = engine.enter([Entry(lease=lease, slots=asked or (KEY,))])
    return answer.outcome


def hold(engine: PostgresEngine, id: str | None = None, *asked: Slot) -> JobLease:
    lease = take(engine, id)
    assert enter(engine, lease, *asked) is EntryOutcome.ENTERED
    return lease


def block(engine: PostgresEngine, id: str | None = None, *asked: Slot) -> JobLease:
    lease = take(engine, id)
    assert enter(engine, lease, *asked) is EntryOutcome.BLOCKED
    return lease


def leaving(lease: JobLease, *left: Slot) -> Ack:
    return Ack(lease=lease, leaves=tuple(slot.name for slot in left or (KEY,)))


def claimed(engine: PostgresEngine, limit: int = 10) -> list[str]:
    return [lease.id for lease in engine.claim("default", limit, owner_token=new_owner_token())]


@pytest.fixture
def stepping(engine: PostgresEngine) -> Generator[Stepping]:
    with steps_through(engine) as stepping:
        yield stepping


@pytest.mark.parametrize("entering_first", [True, False])
def test_a_job_that_finds_its_slot_full_while_the_holder_leaves_is_never_forgotten(
    engine: PostgresEngine, stepping: Stepping, entering_first: bool
) -> None:
    """In every interleaving of two calls that changes between them twice."""
    outcomes: set[EntryOutcome] = set()
    for steps in itertools.product(range(10), range(14)):
        slot = Slot(name=f"key:{steps}")
        holder, waiter = hold(engine, None, slot), take(engine)
        entering = stepping(partial(engine.enter, [Entry(lease=waiter, slots=(slot,))]))
        left = stepping(partial(engine.settle, [leaving(holder, slot)]))
        calls = [(entering, steps[0]), (left, steps[1])]
        for call, number in calls if entering_first else calls[::-1]:
            call.step(number)
        for call, _ in calls if entering_first else calls[::-1]:
            call.step(TO_THE_END)
        [answer] = entering.answer()
        assert left.answer() == [True]
        if answer.outcome is EntryOutcome.BLOCKED:
            [waiter] = engine.claim("default", 10, owner_token=new_owner_token())
            assert enter(engine, waiter, slot) is EntryOutcome.ENTERED, steps
        outcomes.add(answer.outcome)
        assert engine.settle([leaving(waiter, slot)]) == [True]
        assert engine.repair() == 0
    assert outcomes == {EntryOutcome.ENTERED, EntryOutcome.BLOCKED}


def test_of_two_jobs_that_enter_at_the_same_time_one_is_blocked(engine: PostgresEngine, stepping: Stepping) -> None:
    for steps in itertools.product(range(8), repeat=2):
        slot = Slot(name=f"key:{steps}")
        engine.settle([leaving(hold(engine, None, slot), slot)])  # the row of the slot exists
        leases = [take(engine), take(engine)]
        calls = [stepping(partial(engine.enter, [Entry(lease=one, slots=(slot,))])) for one in leases]
        for call, number in zip(calls, steps, strict=True):
            call.step(number)
        for call in calls:
            call.step(TO_THE_END)
        answers: list[Entered] = [answer for call in calls for answer in call.answer()]
        assert sorted(one.outcome for one in answers) == [EntryOutcome.BLOCKED, EntryOutcome.ENTERED], steps
        entered = leases[[one.outcome for one in answers].index(EntryOutcome.ENTERED)]
        engine.settle([leaving(entered, slot)])
        [other] = engine.claim("default", 10, owner_token=new_owner_token())
        engine.settle([leaving(other, slot)])


def test_a_slot_that_is_deleted_while_it_is_being_locked_is_created_again(
    engine: PostgresEngine, stepping: Stepping
) -> None:
    for statements in range(6):
        execute(engine, "INSERT INTO holdfast.slots (name, fence) VALUES ('key:a', 0) ON CONFLICT DO NOTHING")
        lease = take(engine)
        entering = stepping(partial(enter, engine, lease))
        entering.step(statements)
        deleting = stepping(engine.records.delete_unused)
        deleting.step(TO_THE_END)
        entering.step(TO_THE_END)
        assert entering.answer() is EntryOutcome.ENTERED
        deleting.answer()
        assert execute(engine, "SELECT count(*) FROM holdfast.slots") == [(1,)]
        engine.settle([leaving(lease)])
        execute(engine, "UPDATE holdfast.slots SET fence = 0")


def test_entering_leaving_and_renewing_at_once_never_deadlock(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict between transactions would be an error here: none is retried."""
    monkeypatch.setattr(connections, "RETRIES", 0)
    prefix = f"slots{next(_numbers)}_"
    wide = [Slot(name=f"key:{name}", size=2) for name in "abc"]

    def work(number: int) -> None:
        asked = tuple(wide[number % 3 :] + wide[: number % 3])
        with connect(server, prefix) as engine:
            engine.accept([job(engine) for _ in range(ROUNDS)])
            leases: list[JobLease] = []
            for _ in range(ROUNDS * 4):
                ends = [leaving(lease, *asked) for lease in leases]
                _, claims = engine.exchange(ends, "default", 4, owner_token=new_owner_token())
                answers = engine.enter([Entry(lease=lease, slots=asked) for lease in claims])
                engine.renew_many(claims[::-1])
                engine.repair()
                pairs = zip(claims, answers, strict=True)
                leases = [lease for lease, answer in pairs if answer.outcome is EntryOutcome.ENTERED]
            engine.settle([leaving(lease, *asked) for lease in leases])

    with connect(server, prefix) as engine:
        engine.create_schema()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    with connect(server, prefix) as engine:

        def drain() -> bool:
            engine.repair()
            for lease in engine.claim("default", 4, owner_token=new_owner_token()):
                if enter(engine, lease, *wide) is EntryOutcome.ENTERED:
                    engine.settle([leaving(lease, *wide)])
            return engine.counts() == {"default": {JobState.COMPLETED: 4 * ROUNDS}}

        until(drain, "every job to be completed")


@pytest.mark.parametrize("is_sorted", [True, False])
def test_slots_are_locked_in_the_order_of_their_names(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    """Two jobs name their slots in opposite orders; each waits a little before each lock. Unsorted, they deadlock."""
    monkeypatch.setattr(connections, "RETRIES", 0)
    slow = slots.LOCK_SLOTS.replace(
        "SELECT name, fence,", "SELECT name, fence + length(pg_sleep(0.2)::text) AS fence,", 1
    )
    assert slow != slots.LOCK_SLOTS
    if not is_sorted:
        slow = slow.replace("ORDER BY name FOR", "ORDER BY array_position(:names::text[], name) FOR")
        monkeypatch.setattr(LockedSlots, "__init__", _lock_unsorted)
    pairs = (KEY, Slot(name="key:b")), (Slot(name="key:b"), KEY)
    engine.settle([leaving(hold(engine, None, *pairs[0]), *pairs[0])])  # from now on, the slots exist
    monkeypatch.setattr(slots, "LOCK_SLOTS", slow)
    leases = [take(engine), take(engine)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(enter, engine, lease, *asked) for lease, asked in zip(leases, pairs, strict=True)]
        if is_sorted:
            assert {call.result(30) for call in calls} == {EntryOutcome.ENTERED, EntryOutcome.BLOCKED}
        else:
            assert [call for call in calls if isinstance(call.exception(30), BackendUnavailable)]


def _lock_unsorted(locked: LockedSlots, rows: SlotRows, names: Iterable[str]) -> None:
    """Lock the slots in the order in which the last job was stored: the second one begins at the end."""
    chosen = sorted(set(names), reverse=next(_turns) % 2 == 1)
    locked.__dict__.update(_rows=rows, _names=chosen, _slots=dict(rows.lock(chosen)), _taken={})


_turns = itertools.count()


def _entering(engine: PostgresEngine, lease: JobLease) -> Callable[[], object]:
    return partial(engine.enter, [Entry(lease=lease, slots=(KEY,))])


def _leaving(engine: PostgresEngine, lease: JobLease) -> Callable[[], object]:
    enter(engine, lease)
    return partial(engine.exchange, [leaving(lease)], "default", 1, owner_token=new_owner_token())


def _committing(engine: PostgresEngine, lease: JobLease) -> Callable[[], object]:
    enter(engine, lease)
    transaction = engine.transaction(lease.id, lease.delivery)
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
    return partial(transaction.complete, record, leaves=(KEY.name,))


def _deleting(engine: PostgresEngine, _: JobLease) -> Callable[[], object]:
    execute(engine, "INSERT INTO holdfast.slots (name, fence) VALUES ('key:a', 0) ON CONFLICT DO NOTHING")
    return engine.records.delete_unused


@pytest.mark.parametrize("call", [_entering, _leaving, _committing, _deleting])
def test_a_client_that_stops_in_a_transaction_does_not_lock_a_slot_for_long(
    engine: PostgresEngine,
    stepping: Stepping,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[PostgresEngine, JobLease], Callable[[], object]],
) -> None:
    """Wherever it stops: before each of its statements, it executes none until another job has entered."""
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 1)
    steps = 0
    is_over = False
    while not is_over:
        lease, other = take(engine), take(engine)
        stopping = stepping(call(engine, lease))
        stopping.step(steps)
        is_over = stopping.is_over
        try:
            assert in_time(lambda: enter(engine, other)) in (EntryOutcome.ENTERED, EntryOutcome.BLOCKED)  # noqa: B023
            assert execute(engine, WAITS.decode()) == []
        finally:
            stopping.step(TO_THE_END)
        with suppress(BackendUnavailable):
            stopping.answer()
        execute(engine, "DELETE FROM holdfast.open_jobs")
        execute(engine, "DELETE FROM holdfast.places")
        execute(engine, "DELETE FROM holdfast.blocked")
        execute(engine, "UPDATE holdfast.slots SET fence = 0")
        steps += 1
    assert steps > 5


def test_a_job_ends_though_its_slot_is_locked_and_the_next_one_is_promoted_later(engine: PostgresEngine) -> None:
    holder = hold(engine)
    block(engine, "second")
    with open_transaction(engine) as tx:
        tx.execute(engine.connections.sql("SELECT 1 FROM holdfast.slots FOR UPDATE"))
        assert in_time(lambda: engine.settle([leaving(holder)])) == [True]
        assert in_time(engine.repair) == 0
        assert claimed(engine) == []
    assert engine.repair() == 1
    assert claimed(engine) == ["second"]


def test_calls_that_wait_for_a_locked_slot_end_in_time_and_leave_no_session_behind(engine: PostgresEngine) -> None:
    hold(engine)
    other = take(engine)
    with open_transaction(engine) as tx, psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
        tx.execute(engine.connections.sql("SELECT 1 FROM holdfast.slots FOR UPDATE"))
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="too busy"):
                in_time(lambda: enter(engine, other))
            assert watch.execute(WAITS).fetchone() is None
    assert enter(engine, other) is EntryOutcome.BLOCKED


def test_a_claim_does_not_get_a_message_that_was_replaced_while_it_waited(engine: PostgresEngine) -> None:
    """The claim begins before the replacement is committed and reaches the job after it. A view makes it wait there."""
    engine.accept([job(engine, "a")])
    execute(engine, "ALTER TABLE holdfast.pauses RENAME TO pauses_behind")
    gate = f"SELECT pg_advisory_xact_lock_shared({GATE})"
    behind = "LEFT JOIN holdfast.pauses_behind AS p ON true WHERE p.queue IS NOT NULL"
    execute(engine, f"CREATE VIEW holdfast.pauses AS SELECT p.* FROM ({gate}) AS gate {behind}")
    new = engine.envelopes.make(JobDefinition(handler="other"), id="a")
    with open_transaction(engine) as closed, ThreadPoolExecutor(1) as pool:
        closed.execute(f"SELECT pg_advisory_xact_lock({GATE})".encode())
        claiming = pool.submit(lambda: engine.claim("default", 1, owner_token=new_owner_token()))
        until(lambda: execute(engine, WAITS.decode()), "the claim to wait")
        assert engine.reschedule([new]) == [True]
        closed.commit()
        assert claiming.result(60) == []
        assert [lease.wire for lease in engine.claim("default", 1, owner_token=new_owner_token())] == [new.wire]


def test_a_renewal_that_is_not_committed_yet_still_holds_the_slot(server: PostgresServer) -> None:
    with (
        brief(server) as hasty,
        PostgresEngine(server.url, EnvelopeFactory(KEYS), prefix=hasty.connections.namespace + "_") as engine,
    ):
        holder = hold(hasty)
        other = take(engine)
        with open_transaction(engine) as renewing:
            renew = f"UPDATE holdfast.open_jobs SET lease_until = lease_until + 60000000 WHERE seq = {holder.token}"
            renewing.execute(engine.connections.sql(renew))
            until(lambda: hasty.lease_states([holder]) == [LeaseState.LOST], "the lease to look expired")
            assert in_time(lambda: enter(engine, other)) is EntryOutcome.BLOCKED
            assert in_time(engine.repair) == 0
            assert in_time(engine.records.delete_unused) == 0
        assert engine.renew_many([holder]) == [LeaseState.HELD]
        assert engine.repair() == 0
        assert engine.settle([leaving(holder)]) == [True]
        assert claimed(engine) == [other.id]


def test_a_renewal_does_not_revive_a_lease_that_expired_while_it_waited(server: PostgresServer) -> None:
    with brief(server) as engine, ThreadPoolExecutor(1) as pool:
        lease = hold(engine)
        with open_transaction(engine) as tx, psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
            tx.execute(engine.connections.sql("SELECT 1 FROM holdfast.open_jobs FOR UPDATE"))
            renewing = pool.submit(engine.renew_many, [lease])
            until(lambda: watch.execute(WAITS).fetchone(), "the renewal to wait")
            until(lambda: engine.lease_states([lease]) == [LeaseState.LOST], "the lease to expire")
        assert renewing.result(30) == [LeaseState.LOST]


def brief(server: PostgresServer) -> PostgresEngine:
    """An engine whose leases expire soon."""
    policy = LeasePolicy(lease_s=0.5)
    return PostgresEngine(server.url, EnvelopeFactory(KEYS), policy=policy, prefix=f"slots{next(_numbers)}_")


@pytest.mark.parametrize("starts", [True, False])
def test_a_locked_job_is_waiting_until_it_has_started(engine: PostgresEngine, starts: bool) -> None:
    scope = UniqueScope.WAITING
    engine.accept([job(engine, "first", key="k", scope=scope)])
    with ThreadPoolExecutor(1) as pool, psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
        with open_transaction(engine) as tx:
            tx.execute(engine.connections.sql("SELECT 1 FROM holdfast.open_jobs FOR UPDATE"))
            again = pool.submit(engine.accept, [job(engine, "second", key="k", scope=scope)])
            until(lambda: watch.execute(WAITS).fetchone(), "the second caller to wait")
            if starts:
                start = "UPDATE holdfast.open_jobs SET state = 2, lease_until = 9000000000000000, owner_token = '\\x00'"
                tx.execute(engine.connections.sql(start))
        assert again.result(30) == [Accepted(id="second" if starts else "first", created=starts)]


def test_workers_go_on_while_a_caller_enqueues_a_unique_job_in_an_open_transaction(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "first", key="k", scope=UniqueScope.WAITING), job(engine, "plain")])
    again = job(engine, "again", key="k", scope=UniqueScope.WAITING)
    with ThreadPoolExecutor(1) as pool:
        with open_transaction(engine) as tx:
            assert engine.accept([job(engine, "second", key="k", scope=UniqueScope.WAITING)], tx) == [
                Accepted(id="first", created=False)
            ]
            leases = in_time(lambda: engine.claim("default", 10, owner_token=new_owner_token()))
            assert [lease.id for lease in leases] == ["plain"]
            assert in_time(lambda: engine.renew_many(leases)) == [LeaseState.HELD]
            other = pool.submit(engine.accept, [again])
            with psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
                until(lambda: watch.execute(WAITS).fetchone(), "the other caller to wait")
            assert in_time(lambda: engine.settle([Ack(lease=leases[0])])) == [True]
            assert in_time(engine.repair) == 0
            assert in_time(engine.records.delete_unused) == 0
        assert other.result(30) == [Accepted(id="first", created=False)]
    assert claimed(engine) == ["first"]
    assert engine.accept([again]) == [Accepted(id="again", created=True)]


def test_a_running_job_is_not_locked_by_a_caller_that_finds_it(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "first", key="k")])
    [lease] = engine.claim("default", 1, owner_token=new_owner_token())
    with open_transaction(engine) as tx:
        assert engine.accept([job(engine, key="k")], tx) == [Accepted(id="first", created=False)]
        assert in_time(lambda: engine.renew_many([lease])) == [LeaseState.HELD]
        assert in_time(lambda: engine.settle([Ack(lease=lease)])) == [True]


def test_a_blocked_job_that_a_caller_has_locked_is_passed_over(engine: PostgresEngine) -> None:
    """Otherwise a holder could not leave, and would lose its lease."""
    holder = hold(engine)
    engine.accept([job(engine, "first", key="k")])
    [first] = engine.claim("default", 1, owner_token=new_owner_token())
    assert enter(engine, first) is EntryOutcome.BLOCKED
    block(engine, "second")
    with open_transaction(engine) as tx:
        assert engine.accept([job(engine, key="k")], tx) == [Accepted(id="first", created=False)]
        assert in_time(lambda: engine.settle([leaving(holder)])) == [True]
        [second] = in_time(lambda: engine.claim("default", 10, owner_token=new_owner_token()))
        assert second.id == "second"
        assert enter(engine, second) is EntryOutcome.ENTERED
        assert in_time(lambda: engine.settle([leaving(second)])) == [True]
        assert in_time(engine.repair) == 0
    assert engine.repair() == 1
    assert claimed(engine) == ["first"]


def test_a_caller_that_enqueues_a_key_waits_for_the_commit_of_another(engine: PostgresEngine) -> None:
    with ThreadPoolExecutor(1) as pool, psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
        with open_transaction(engine) as tx:
            assert engine.accept([job(engine, "first", key="k")], tx) == [Accepted(id="first", created=True)]
            other = pool.submit(engine.accept, [job(engine, "second", key="k")])
            until(lambda: watch.execute(WAITS).fetchone(), "the other caller to wait")
        assert other.result(30) == [Accepted(id="first", created=False)]


def test_a_refused_call_in_an_open_transaction_takes_no_key(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "first", key="k"), job(engine, "taken")])
    with open_transaction(engine) as tx:
        with pytest.raises(UniqueConflict):
            engine.accept([job(engine, "free", key="z"), job(engine, "second", key="k", reject=True)], tx)
        with pytest.raises(IdConflict):
            engine.accept([job(engine, "free", key="z"), job(engine, "taken", queue="other", key="y")], tx)
    assert execute(engine, "SELECT key FROM holdfast.uniques") == [("k",)]
    assert engine.accept([job(engine, "free", key="z")]) == [Accepted(id="free", created=True)]


def test_another_driver_enqueues_unique_jobs_and_reschedules(engine: PostgresEngine) -> None:
    psycopg2: Any = import_module("psycopg2")
    engine.accept([job(engine, "first", key="k")])
    with closing(psycopg2.connect(engine.connections.conninfo)) as tx:
        answers = engine.accept([job(engine, "second", key="k"), job(engine, "third", key="z")], tx)
        assert answers == [Accepted(id="first", created=False), Accepted(id="third", created=True)]
        assert engine.reschedule([job(engine, "first", queue="other")], tx) == [True]
        tx.commit()
    assert engine.counts() == {"default": {JobState.PENDING: 1}, "other": {JobState.PENDING: 1}}


def test_a_rescheduled_job_changes_with_the_commit_of_its_caller(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "first")])
    with open_transaction(engine) as tx:
        assert engine.reschedule([job(engine, "first", queue="other"), job(engine, "unknown")], tx) == [True, False]
        assert in_time(lambda: claimed(engine)) == []
    assert claimed(engine) == []
    assert engine.counts() == {"other": {JobState.PENDING: 1}}


def test_a_settlement_enqueues_unique_jobs(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "first", key="k", queue="other")])
    lease = take(engine)
    enqueues = (job(engine, "second", key="k", queue="other"), job(engine, "third", key="z", queue="other"))
    assert engine.settle([Ack(lease=lease, enqueues=enqueues, writes=(Put(kind="thing", key="a"),))]) == [True]
    assert engine.counts()["other"] == {JobState.PENDING: 2}
    assert engine.get("second") is None
    lease = take(engine)
    with pytest.raises(UniqueConflict):
        engine.settle([Ack(lease=lease, enqueues=(job(engine, key="z", queue="other", reject=True),))])
    assert engine.renew_many([lease]) == [LeaseState.HELD]


def test_a_promotion_is_announced_even_if_its_queue_was_just_announced(engine: PostgresEngine) -> None:
    holder = hold(engine)
    block(engine)
    with psycopg.connect(engine.connections.conninfo, autocommit=True) as listening:
        listening.execute(f"LISTEN {engine.connections.namespace}_work".encode())
        announcements: Any = engine.jobs
        announcements._announcements.news(["default"])
        assert engine.settle([leaving(holder)]) == [True]
        assert [notify.payload for notify in listening.notifies(timeout=30, stop_after=1)] == ["default"]


def test_only_batches_that_leave_or_carry_cost_more_statements(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, leaver = take(engine), hold(engine)
    executed: list[object] = []
    execute = Connection.execute

    def noted(connection: Connection, query: Any, *given: Any, **options: Any) -> Any:
        executed.append(query)
        return execute(connection, query, *given, **options)

    def cost(act: Callable[[], object]) -> int:
        executed.clear()
        act()
        return len(executed)

    monkeypatch.setattr(Connection, "execute", noted)
    # Plan, settle, look for edges.
    assert cost(lambda: engine.settle([Ack(lease=plain)])) == 3
    # Begin, plan, create and lock the slot, settle, look for edges, set the timeout, free, read places and queues,
    # commit.
    assert cost(lambda: engine.settle([leaving(leaver)])) == 11
    assert cost(engine.repair) == 1


def test_many_waiting_jobs_are_not_read_to_find_the_next(engine: PostgresEngine) -> None:
    hold(engine)
    execute(
        engine,
        f"""INSERT INTO holdfast.blocked (seq, due_at, since, size, lane, slot, queue, id)
            SELECT -number, number, 1, 1, 4, 'key:a', 'default', 'job' || number
            FROM generate_series(1, {WAITERS}) AS number""",
    )
    execute(engine, "ANALYZE holdfast.blocked")
    queries: dict[str, dict[str, Any]] = {
        slots.FREE_PLACES: {"limit": 100},
        slots.WAITING_QUEUES: {"names": ["key:a"]},
        slots.BEST: {"slots": ["key:a"], "queues": ["default"], "aheads": "{0}", "passed": "{}", "limit": 16},
    }
    for statement, query in queries.items():
        explained = b"EXPLAIN (ANALYZE, TIMING off, FORMAT json) " + engine.connections.sql(statement)
        with psycopg.connect(engine.connections.conninfo) as connection:
            [[[plan]]] = connection.execute(explained, query).fetchall()
        assert sum(_rows_read(plan["Plan"])) < 200, statement


def _rows_read(node: dict[str, Any]) -> Iterator[float]:
    """How many rows each scan of the table has read."""
    if node.get("Relation Name") == "blocked":
        yield (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from _rows_read(child)


def test_stale_rows_in_front_do_not_keep_a_job_waiting(engine: PostgresEngine) -> None:
    holder = hold(engine)
    for number in range(40):
        block(engine, f"stale{number:02}")
    block(engine, "waiting")
    for number in range(40):
        engine.cancel(f"stale{number:02}")
    assert engine.slots()[0].waiting == 1
    assert engine.settle([leaving(holder)]) == [True]
    assert claimed(engine) == ["waiting"]
    assert execute(engine, "SELECT count(*) FROM holdfast.blocked") == [(0,)]


def test_a_job_that_is_blocked_elsewhere_is_not_promoted_by_its_old_wait(engine: PostgresEngine) -> None:
    other = Slot(name="key:b")
    first, second = hold(engine, None, KEY), hold(engine, None, other)
    block(engine, "job", KEY)
    engine.cancel("job")
    engine.replay("job")
    [lease] = engine.claim("default", 10, owner_token=new_owner_token())
    assert enter(engine, lease, other) is EntryOutcome.BLOCKED
    engine.settle([leaving(first, KEY)])
    assert claimed(engine) == []
    engine.settle([leaving(second, other)])
    assert claimed(engine) == ["job"]


def test_a_message_that_names_a_slot_twice_enters_it_once(engine: PostgresEngine) -> None:
    lease = hold(engine, None, KEY, KEY)
    blocked = take(engine)
    entries = [Entry(lease=blocked, slots=(KEY, KEY))] * 2
    assert {one.outcome for one in engine.enter(entries)} == {EntryOutcome.BLOCKED}
    engine.settle([leaving(lease, KEY, KEY)])
    assert claimed(engine) == [blocked.id]


def test_unused_rows_are_deleted_a_batch_at_a_time(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (records, postgres_records):
        monkeypatch.setattr(module, "PRUNE_BATCH", 4)
    execute(engine, "INSERT INTO holdfast.slots (name, fence) SELECT 'key:' || n, 0 FROM generate_series(1, 6) AS n")
    execute(engine, "INSERT INTO holdfast.uniques SELECT 0, 'key:' || n, '' FROM generate_series(1, 3) AS n")
    execute(engine, "INSERT INTO holdfast.places SELECT n, 0, 1, 1, 'key:1', 'q' FROM generate_series(1, 2) AS n")
    assert [engine.records.delete_unused() for _ in range(4)] == [4, 4, 3, 0]
    execute(engine, "INSERT INTO holdfast.slots (name, fence, size) VALUES ('key:paused', 0, 0)")
    assert engine.records.delete_unused() == 0


def test_a_key_that_is_taken_while_it_is_being_deleted_stays(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that finds it does not see the job: its snapshot is older."""
    execute(engine, "INSERT INTO holdfast.uniques (key, id, until) VALUES ('k', '', 0)")
    find = postgres_records.LOCK_KEYS_OVER.replace("LIMIT", "AND pg_advisory_xact_lock(7)::text IS NOT NULL LIMIT")
    monkeypatch.setattr(postgres_records, "LOCK_KEYS_OVER", find)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(engine.connections.conninfo, autocommit=True) as watch:
        with open_transaction(engine) as tx:
            tx.execute("SELECT pg_advisory_xact_lock(7)")
            deleting = pool.submit(engine.records.delete_unused)
            until(lambda: watch.execute(WAITS).fetchone(), "the deletion to wait")
            assert engine.accept([job(engine, "first", key="k")]) == [Accepted(id="first", created=True)]
        deleting.result(30)
    assert engine.accept([job(engine, "second", key="k")]) == [Accepted(id="first", created=False)]


PLACE = "INSERT INTO holdfast.places (seq, fence, since, until, slot, queue, owner_token) VALUES"
WAITER = "INSERT INTO holdfast.blocked (seq, due_at, since, size, lane, slot, queue, id) VALUES"
DAMAGE = {
    "place of an unknown job": f"{PLACE} (-1, 1, 1, NULL, 'key:a', 'default', '\\x00')",
    "place with absurd numbers": f"{PLACE} (-1, {-LARGEST}, {LARGEST}, {-LARGEST}, 'key:a', '', '\\x00')",
    "promotion of an unknown job": f"{PLACE} (-1, 1, 1, 1, 'key:a', 'default', NULL)",
    "promotion without an end": f"{PLACE} (-1, 1, 1, NULL, 'key:a', 'default', NULL)",
    "promotion for ever": f"{PLACE} (-1, 1, {-LARGEST}, {LARGEST}, 'key:a', 'default', NULL)",
    "unknown job waits": f"{WAITER} (-1, 1, 1, 1, 0, 'key:a', 'default', 'unknown')",
    "unknown job waits for ever": f"{WAITER} (-1, {-LARGEST}, {LARGEST}, 0, -1, 'key:a', 'default', '')",
    "unknown job of an unknown queue waits": f"{WAITER} (-1, 1, 1, {2**31 - 1}, 0, 'key:a', 'nowhere', '')",
    "fence largest": f"INSERT INTO holdfast.slots (name, fence) VALUES ('key:a', {LARGEST})",
    "fence smallest": f"INSERT INTO holdfast.slots (name, fence) VALUES ('key:a', {-LARGEST - 1})",
    "key of an unknown job": "INSERT INTO holdfast.uniques (key, id, until) VALUES ('k', 'unknown', 0)",
    "key until the largest time": f"INSERT INTO holdfast.uniques (key, id, until) VALUES ('k', '', {LARGEST})",
    "key until the smallest time": f"INSERT INTO holdfast.uniques (key, id, until) VALUES ('k', '', {-LARGEST})",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_rows_stop_no_worker(engine: PostgresEngine, damage: str) -> None:
    def go_on() -> Sequence[str]:
        execute(engine, DAMAGE[damage])
        assert len(engine.slots()) <= 1
        engine.repair()
        engine.records.delete_unused()
        return [one.name for one in engine.slots([KEY.name])]

    go_on()
    holder = hold(engine)
    block(engine, "second")
    execute(engine, "DELETE FROM holdfast.places WHERE seq < 0")
    execute(engine, "DELETE FROM holdfast.slots")
    execute(engine, "DELETE FROM holdfast.blocked WHERE seq < 0")
    execute(engine, "DELETE FROM holdfast.uniques")
    assert go_on() == [KEY.name]
    assert engine.settle([leaving(holder)]) == [True]
    engine.repair()
    [second] = engine.claim("default", 10, owner_token=new_owner_token())
    assert enter(engine, second) is EntryOutcome.ENTERED
    assert engine.settle([leaving(second)]) == [True]
    assert engine.accept([job(engine, key="k")])[0].created


def test_a_promotion_by_a_clock_that_was_set_back_does_not_keep_new_jobs_out(engine: PostgresEngine) -> None:
    holder = hold(engine)
    block(engine, "second")
    assert engine.settle([leaving(holder)]) == [True]
    later = int(PROMOTION_S * 2_000_000)
    execute(engine, f"UPDATE holdfast.places SET until = until + {later}")
    [promoted] = engine.claim("default", 10, owner_token=new_owner_token())
    hold(engine, "newcomer")
    assert enter(engine, promoted) is EntryOutcome.BLOCKED


def test_a_job_that_is_returned_unstarted_keeps_its_turn_although_time_passes_in_the_transaction(
    engine: PostgresEngine,
) -> None:
    holder = hold(engine, "first")
    block(engine, "second")
    assert engine.settle([Release(lease=holder, unstarted=True, leaves=(KEY.name,))]) == [True]
    assert claimed(engine) == ["first"]


def test_a_place_ends_with_its_lease_and_repair_promotes(server: PostgresServer) -> None:
    policy = LeasePolicy(lease_s=0.2)
    with PostgresEngine(server.url, EnvelopeFactory(KEYS), policy=policy, prefix=f"slots{next(_numbers)}_") as engine:
        hold(engine)
        block(engine, "second")
        assert until(engine.repair, "the lease to expire") == 1
        assert claimed(engine) == ["second"]
