"""Dependencies on a real PostgreSQL server: races stepped over two connections, locks and open transactions."""

import itertools
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.definition import JobDefinition
from holdfast.errors import UnknownParent
from holdfast.queues.contract import edges as contract, new_owner_token
from holdfast.queues.engines.postgres import edges, jobs, records
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import (
    PARENT_FAILED,
    Accepted,
    Ack,
    AttemptRecord,
    CancelAnswer,
    DeadReason,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    OnParentFailure,
    Outcome,
    Unique,
    UniqueScope,
)

from ..servers.postgres import PostgresServer
from ..servers.running import started
from .postgres_stepping import TO_THE_END, WAITS, Stepping, execute, in_time, open_transaction, steps_through

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
RECORD = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
PENDING, BLOCKED, CANCELLED = JobState.PENDING, JobState.BLOCKED, JobState.CANCELLED
WAIT = OnParentFailure.WAIT
CHILDREN = "children"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    server = started(PostgresServer)
    yield server
    server.close()


@pytest.fixture
def engine(server: PostgresServer) -> Generator[PostgresEngine]:
    with PostgresEngine(server.url, EnvelopeFactory(KEYS), prefix=f"edges{next(_numbers)}_") as engine:
        engine.create_schema()
        yield engine


@pytest.fixture
def stepping(engine: PostgresEngine) -> Generator[Stepping]:
    with steps_through(engine) as stepping:
        yield stepping


def job(engine: PostgresEngine, id: str, queue: str = "default") -> JobEnvelope:
    return engine.envelopes.make(JobDefinition(handler="send", queue=queue), id=id)


def child_of(engine: PostgresEngine, id: str, *parents: str, policy: OnParentFailure = WAIT) -> JobEnvelope:
    return replace(job(engine, id, CHILDREN), after=parents, on_parent_failure=policy)


def take(engine: PostgresEngine, *ids: str) -> list[JobLease]:
    """Store jobs and claim them."""
    engine.accept([job(engine, id) for id in ids])
    leases = engine.claim("default", len(ids), owner_token=new_owner_token())
    assert [lease.id for lease in leases] == list(ids)
    return leases


def finish(engine: PostgresEngine, lease: JobLease) -> bool:
    return engine.settle([Ack(lease=lease, record=RECORD)])[0]


def state(engine: PostgresEngine, id: str) -> JobState:
    history = engine.get(id)
    assert history is not None
    return history.job.state


def claimed(engine: PostgresEngine) -> list[str]:
    return [lease.id for lease in engine.claim(CHILDREN, 10, owner_token=new_owner_token())]


def stages(first: range, second: range) -> Iterator[tuple[int, tuple[int, int]]]:
    """All numbers of statements that two calls may execute before both continue, with a number for each pair."""
    return enumerate(itertools.product(first, second))


def interleaved(
    stepping: Stepping, first: Callable[[], Any], second: Callable[[], Any], steps: tuple[int, int]
) -> tuple[Any, Any]:
    """The answers of two calls: the first executes this many statements, then the second, and then both continue."""
    calls = [stepping(first), stepping(second)]
    for call, number in zip(calls, steps, strict=True):
        call.step(number)
    for call in calls:
        call.step(TO_THE_END)
    return calls[0].answer(), calls[1].answer()


def _acknowledged(engine: PostgresEngine, id: str) -> Callable[[], object]:
    [lease] = take(engine, id)
    # It also claims, so that there are statements between the note and the commit.
    return partial(engine.exchange, [Ack(lease=lease, record=RECORD)], "none", 1, owner_token=new_owner_token())


def _cancelled(engine: PostgresEngine, id: str) -> Callable[[], object]:
    engine.accept([job(engine, id)])
    return partial(engine.cancel, id)


def _discarded(engine: PostgresEngine, id: str) -> Callable[[], object]:
    [lease] = take(engine, id)
    engine.abandon(lease, DeadReason.FAILED)
    return partial(engine.discard, id)


def _replayed(engine: PostgresEngine, id: str) -> Callable[[], object]:
    [lease] = take(engine, id)
    engine.abandon(lease, DeadReason.FAILED)
    return partial(engine.replay, id)


End = Callable[[PostgresEngine, str], Callable[[], object]]


@pytest.mark.parametrize(
    ("end", "policy", "expected"),
    [
        (_acknowledged, WAIT, PENDING),
        (_cancelled, OnParentFailure.CANCEL, CANCELLED),
        (_discarded, WAIT, CANCELLED),
        (_replayed, OnParentFailure.CANCEL, BLOCKED),
    ],
)
@pytest.mark.parametrize("accepting_first", [True, False])
def test_a_child_that_is_accepted_while_its_parent_ends_is_never_forgotten(
    engine: PostgresEngine,
    stepping: Stepping,
    end: End,
    policy: OnParentFailure,
    expected: JobState,
    accepting_first: bool,
) -> None:
    for at, steps in stages(range(0, 14, 2), range(12)):
        parent, child = f"parent{at}", f"child{at}"
        ending = end(engine, parent)
        accepting = partial(engine.accept, [child_of(engine, child, parent, policy=policy)])
        try:
            if accepting_first:
                interleaved(stepping, accepting, ending, steps)
            else:
                interleaved(stepping, ending, accepting, (steps[1], steps[0]))
        except UnknownParent:
            assert end is _discarded
            continue
        engine.repair()
        assert state(engine, child) is expected, steps
        engine.repair()
        assert execute(engine, "SELECT count(*) FROM holdfast.notes") == [(0,)]
        if end is _replayed:
            assert engine.cancel(parent) is CancelAnswer.CANCELLED


def test_two_parents_that_end_at_the_same_time_release_their_child_once(
    engine: PostgresEngine, stepping: Stepping
) -> None:
    for at, steps in stages(range(3, 20), range(3, 20, 2)):
        parents, child = (f"a{at}", f"b{at}"), f"child{at}"
        first, second = take(engine, *parents)
        engine.accept([child_of(engine, child, *parents)])
        calls = partial(finish, engine, first), partial(finish, engine, second)
        assert interleaved(stepping, *calls, steps) == (True, True)
        assert claimed(engine) == [child], steps
        assert engine.repair() == 0
        assert claimed(engine) == []


def test_a_child_that_is_replayed_while_its_parent_ends_is_never_forgotten(
    engine: PostgresEngine, stepping: Stepping
) -> None:
    for at, steps in stages(range(9), range(20)):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(engine, parent)
        engine.accept([child_of(engine, child, parent)])
        engine.cancel(child)
        interleaved(stepping, partial(engine.replay, child), partial(finish, engine, lease), steps)
        engine.repair()
        assert claimed(engine) == [child], steps


def test_a_child_is_blocked_again_by_one_parent_while_another_ends(engine: PostgresEngine, stepping: Stepping) -> None:
    for at, steps in stages(range(0, 30, 3), range(2, 20, 3)):
        failing, ending, child = f"a{at}", f"b{at}", f"child{at}"
        first, second = take(engine, failing, ending)
        engine.accept([child_of(engine, child, failing, ending, policy=OnParentFailure.CANCEL)])
        engine.abandon(first, DeadReason.FAILED)
        assert state(engine, child) is CANCELLED
        interleaved(stepping, partial(engine.replay, failing), partial(finish, engine, second), steps)
        engine.repair()
        assert state(engine, child) is BLOCKED, steps
        [again] = engine.claim("default", 10, owner_token=new_owner_token())
        finish(engine, again)
        assert claimed(engine) == [child], steps


def test_a_parent_that_is_replayed_while_its_children_are_being_cancelled_revives_them(
    engine: PostgresEngine, stepping: Stepping
) -> None:
    for at, steps in stages(range(3, 22), range(8)):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(engine, parent)
        engine.accept([child_of(engine, child, parent, policy=OnParentFailure.CANCEL)])
        dying = stepping(partial(engine.abandon, lease, DeadReason.FAILED))
        dying.step(steps[0])
        if state(engine, parent) is JobState.DEAD:
            replaying = stepping(partial(engine.replay, parent))
            replaying.step(steps[1])
            dying.step(TO_THE_END)
            replaying.step(TO_THE_END)
            replaying.answer()
        else:
            dying.step(TO_THE_END)
            dying.answer()
            engine.replay(parent)
        dying.answer()
        engine.repair()
        assert state(engine, child) is BLOCKED, steps
        [again] = engine.claim("default", 10, owner_token=new_owner_token())
        finish(engine, again)
        assert claimed(engine) == [child], steps


def test_workers_go_on_while_a_caller_enqueues_a_child_in_an_open_transaction(engine: PostgresEngine) -> None:
    [lease] = take(engine, "parent")
    engine.accept([child_of(engine, "other", "parent")])
    with open_transaction(engine) as tx:
        assert engine.accept([child_of(engine, "child", "parent")], tx) == [Accepted(id="child", created=True)]
        assert in_time(lambda: engine.renew_many([lease])) == [LeaseState.HELD]
        assert in_time(lambda: finish(engine, lease))
        assert in_time(engine.repair) == 0
        assert claimed(engine) == ["other"]
    assert engine.repair() == 1
    assert claimed(engine) == ["child"]


def test_no_call_waits_for_a_parent_that_is_locked(engine: PostgresEngine) -> None:
    engine.accept([job(engine, "parent")])
    with open_transaction(engine) as tx:
        tx.execute(engine.connections.sql("SELECT 1 FROM holdfast.open_jobs FOR UPDATE"))
        assert in_time(lambda: engine.accept([child_of(engine, "child", "parent")])[0].created)
        assert in_time(engine.repair) == 0
        assert execute(engine, WAITS.decode()) == []
        assert execute(engine, "SELECT count(*) FROM holdfast.notes") == [(1,)]
    assert engine.repair() == 0
    assert execute(engine, "SELECT count(*) FROM holdfast.notes") == [(0,)]


def test_a_transaction_of_a_handler_releases_the_children_with_its_commit(engine: PostgresEngine) -> None:
    [lease] = take(engine, "parent")
    engine.accept([child_of(engine, "child", "parent")])
    transaction = engine.transaction(lease.id, lease.delivery)
    assert claimed(engine) == []
    transaction.complete(RECORD, enqueues=(child_of(engine, "late", "parent"),))
    assert sorted(claimed(engine)) == ["child", "late"]


def test_a_caller_whose_snapshot_is_older_than_the_parent_enqueues_its_child(engine: PostgresEngine) -> None:
    with open_transaction(engine) as tx:
        tx.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        tx.execute("SELECT 1")
        [lease] = take(engine, "parent")
        engine.accept([child_of(engine, "child", "parent")], tx)
        assert in_time(lambda: finish(engine, lease))
    assert engine.repair() == 1
    assert claimed(engine) == ["child"]


def test_a_child_that_a_caller_has_locked_does_not_hold_up_the_others(engine: PostgresEngine) -> None:
    leases = take(engine, "a", "b")
    unique = Unique(key="k", scope=UniqueScope.WAITING)
    engine.accept([replace(child_of(engine, "locked", "a"), unique=unique), child_of(engine, "free", "a", "b")])
    with open_transaction(engine) as tx:
        again = replace(job(engine, "again"), unique=unique)
        assert engine.accept([again], tx) == [Accepted(id="locked", created=False)]
        for lease in leases:
            assert in_time(partial(finish, engine, lease))
        assert in_time(lambda: claimed(engine)) == ["free"]
        in_time(engine.repair)
        assert state(engine, "locked") is BLOCKED
    assert engine.repair() == 1
    assert claimed(engine) == ["locked"]


def test_notes_that_were_not_read_to_the_end_stay_if_a_child_is_passed_over(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "MAX_CHILDREN", 2)
    leases = take(engine, "a", "b")
    engine.accept([child_of(engine, "locked", "a"), child_of(engine, "first", "a"), child_of(engine, "last", "b")])
    with open_transaction(engine) as tx:
        locking = "SELECT 1 FROM holdfast.open_jobs WHERE id = 'locked' FOR UPDATE"
        tx.execute(engine.connections.sql(locking))
        engine.settle([Ack(lease=lease, record=RECORD) for lease in leases])
        in_time(engine.repair)
        assert sorted(claimed(engine)) == ["first", "last"]
    engine.repair()
    assert claimed(engine) == ["locked"]


def test_a_reschedule_that_waits_for_the_release_of_a_child_does_not_block_it_again(
    engine: PostgresEngine, stepping: Stepping
) -> None:
    for at in range(3, 20):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(engine, parent)
        engine.accept([child_of(engine, child, parent)])
        rescheduling = partial(engine.reschedule, [job(engine, child, CHILDREN)])
        interleaved(stepping, partial(finish, engine, lease), rescheduling, (at, TO_THE_END))
        assert claimed(engine) == [child], at


def _leave_notes(*_: object) -> None:
    """Resolve nothing, like a process that was killed after its commit."""


def test_a_parent_that_was_replayed_and_completed_before_anything_was_resolved_releases_its_children(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    [lease] = take(engine, "parent")
    engine.accept([child_of(engine, "child", "parent", policy=OnParentFailure.CANCEL)])
    engine.abandon(lease, DeadReason.FAILED)
    history = engine.get("child")
    assert history is not None
    assert history.job.cancel_reason == PARENT_FAILED
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "resolve_soon", _leave_notes)
        patch.setattr(records, "resolve_soon", _leave_notes)
        engine.replay("parent")
        [again] = engine.claim("default", 10, owner_token=new_owner_token())
        finish(engine, again)
    assert engine.repair() == 1
    assert claimed(engine) == ["child"]


def test_notes_on_unfinished_parents_are_dismissed(engine: PostgresEngine) -> None:
    take(engine, "parent")
    with open_transaction(engine) as tx:
        engine.accept([child_of(engine, "child", "parent")], tx)
    assert execute(engine, "SELECT count(*) FROM holdfast.notes") == [(1,)]
    assert engine.repair() == 0
    assert execute(engine, "SELECT count(*) FROM holdfast.notes") == [(0,)]


def test_looking_for_edges_reads_one_entry_for_each_job(engine: PostgresEngine) -> None:
    execute(
        engine,
        """INSERT INTO holdfast.edges (parent, child, policy, outcome)
           SELECT -1 - number / 10, number, 0, mod(number, 2) FROM generate_series(1, 20000) AS number""",
    )
    execute(engine, "ANALYZE holdfast.edges")
    explained = b"EXPLAIN (ANALYZE, TIMING off, FORMAT json) " + engine.connections.sql(edges.NOTE_ENDED)
    with psycopg.connect(engine.connections.conninfo) as connection:
        query = {"seqs": f"{{{','.join(str(-number) for number in range(1, 101))}}}"}
        [[[plan]]] = connection.execute(explained, query).fetchall()
        connection.rollback()
    assert sum(_rows_read(plan["Plan"])) <= 100


def _rows_read(node: dict[str, Any]) -> Generator[float]:
    """How many rows each scan of the table has read."""
    if node.get("Relation Name") == "edges":
        yield (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    for child in node.get("Plans", ()):
        yield from _rows_read(child)
