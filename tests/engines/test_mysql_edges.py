"""Dependencies on a real MariaDB server: races stepped over two connections, locks and open transactions."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import count, product
from typing import Any

import pytest
from msgspec.structs import replace
from pymysql.cursors import Cursor

from holdfast.errors import UnknownParent
from holdfast.queues.contract import edges as contract, new_owner_token
from holdfast.queues.engines.mysql import claims, connections as mysql_connections, edges, jobs, records
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.mysql.statements import MysqlStatements
from holdfast.queues.engines.tables.rows import Row
from holdfast.values import (
    PARENT_FAILED,
    Accepted,
    Ack,
    AttemptRecord,
    CancelAnswer,
    DeadReason,
    Entry,
    EntryOutcome,
    JobEnvelope,
    JobLease,
    JobState,
    LeaseState,
    OnParentFailure,
    Outcome,
    Slot,
    Unique,
    UniqueScope,
)

from ..servers.mysql import MariadbServer
from ..servers.running import started
from .mysql_actors import opened
from .mysql_stepping import TO_THE_END, interleaved, steps_through
from .sqlite_site import job
from .test_mysql import claim, status, stranger

RECORD = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
PENDING, BLOCKED, CANCELLED = JobState.PENDING, JobState.BLOCKED, JobState.CANCELLED
WAIT = OnParentFailure.WAIT
CHILDREN = "children"
_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    server = started(MariadbServer)
    assert isinstance(server, MariadbServer)
    yield server
    server.close()


@pytest.fixture
def prefix() -> str:
    return f"edges{next(_numbers)}_"


@pytest.fixture
def backend(server: MariadbServer, prefix: str) -> Iterator[MysqlEngine]:
    with opened(server.url, prefix) as backend:
        backend.create_schema()
        yield backend


@pytest.fixture
def watch(server: MariadbServer) -> Generator[Cursor]:
    """Another client, while calls of the engine can be stepped through."""
    with stranger(server) as cursor, steps_through():
        yield cursor


def child_of(id: str, *parents: str, policy: OnParentFailure = WAIT) -> JobEnvelope:
    return replace(job(id, queue=CHILDREN), after=parents, on_parent_failure=policy)


def take(backend: MysqlEngine, *ids: str) -> list[JobLease]:
    """Store jobs and claim them."""
    backend.accept([job(id) for id in ids])
    leases = claim(backend)
    assert [lease.id for lease in leases] == list(ids)
    return leases


def finish(backend: MysqlEngine, lease: JobLease) -> bool:
    return backend.settle([Ack(lease=lease, record=RECORD)])[0]


def state(backend: MysqlEngine, id: str) -> JobState:
    history = backend.get(id)
    assert history is not None
    return history.job.state


def claimed(backend: MysqlEngine) -> list[str]:
    return [lease.id for lease in backend.claim(CHILDREN, 10, owner_token=new_owner_token())]


def notes(backend: MysqlEngine) -> int:
    statement = backend.connections.sql("SELECT COUNT(*) FROM holdfast_notes")
    number: int = backend.connections.run(lambda session: session.one(statement))[0]
    return number


def stages(first: range, second: range) -> Iterator[tuple[int, tuple[int, int]]]:
    """All numbers of statements that two calls may execute before both continue, with a number for each pair."""
    return enumerate(product(first, second))


def _acknowledged(backend: MysqlEngine, id: str) -> Callable[[], object]:
    [lease] = take(backend, id)
    # It also claims, so that there are statements between the acknowledgement and the note.
    return partial(backend.exchange, [Ack(lease=lease, record=RECORD)], "none", 1, owner_token=new_owner_token())


def _settled(backend: MysqlEngine, id: str) -> Callable[[], object]:
    [lease] = take(backend, id)
    return partial(backend.abandon, lease, DeadReason.FAILED)


def _cancelled(backend: MysqlEngine, id: str) -> Callable[[], object]:
    backend.accept([job(id)])
    return partial(backend.cancel, id)


def _discarded(backend: MysqlEngine, id: str) -> Callable[[], object]:
    [lease] = take(backend, id)
    backend.abandon(lease, DeadReason.FAILED)
    return partial(backend.discard, id)


def _replayed(backend: MysqlEngine, id: str) -> Callable[[], object]:
    [lease] = take(backend, id)
    backend.abandon(lease, DeadReason.FAILED)
    return partial(backend.replay, id)


End = Callable[[MysqlEngine, str], Callable[[], object]]


@pytest.mark.parametrize(
    ("end", "policy", "expected"),
    [
        (_acknowledged, WAIT, PENDING),
        (_settled, OnParentFailure.RUN, PENDING),
        (_cancelled, OnParentFailure.CANCEL, CANCELLED),
        (_discarded, WAIT, CANCELLED),
        (_replayed, OnParentFailure.CANCEL, BLOCKED),
    ],
)
@pytest.mark.parametrize("accepting_first", [True, False])
def test_a_child_that_is_accepted_while_its_parent_ends_is_never_forgotten(
    backend: MysqlEngine,
    watch: Cursor,
    end: End,
    policy: OnParentFailure,
    expected: JobState,
    accepting_first: bool,
) -> None:
    for at, steps in stages(range(0, 20, 2), range(12)):
        parent, child = f"parent{at}", f"child{at}"
        ending = end(backend, parent)
        accepting = partial(backend.accept, [child_of(child, parent, policy=policy)])
        if accepting_first:
            answer, ended = interleaved(watch, accepting, ending, steps)
        else:
            ended, answer = interleaved(watch, ending, accepting, (steps[1], steps[0]))
        assert not isinstance(ended, Exception)
        if isinstance(answer, UnknownParent):
            assert end is _discarded
            continue
        assert answer == [Accepted(id=child, created=True)]
        backend.repair()
        assert state(backend, child) is expected, steps
        backend.repair()
        assert notes(backend) == 0, steps
        if end is _replayed:
            assert backend.cancel(parent) is CancelAnswer.CANCELLED


def test_two_parents_that_end_at_the_same_time_release_their_child_once(backend: MysqlEngine, watch: Cursor) -> None:
    for at, steps in stages(range(3, 28, 2), range(3, 28, 2)):
        parents, child = (f"a{at}", f"b{at}"), f"child{at}"
        first, second = take(backend, *parents)
        backend.accept([child_of(child, *parents)])
        calls = partial(finish, backend, first), partial(finish, backend, second)
        assert interleaved(watch, *calls, steps) == (True, True)
        assert claimed(backend) == [child], steps
        assert backend.repair() == 0
        assert claimed(backend) == []


def test_a_child_that_is_replayed_while_its_parent_ends_is_never_forgotten(backend: MysqlEngine, watch: Cursor) -> None:
    for at, steps in stages(range(10), range(28)):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(backend, parent)
        backend.accept([child_of(child, parent)])
        backend.cancel(child)
        interleaved(watch, partial(backend.replay, child), partial(finish, backend, lease), steps)
        backend.repair()
        assert claimed(backend) == [child], steps


def test_a_child_is_blocked_again_by_one_parent_while_another_ends(backend: MysqlEngine, watch: Cursor) -> None:
    for at, steps in stages(range(0, 36, 3), range(2, 28, 3)):
        failing, ending, child = f"a{at}", f"b{at}", f"child{at}"
        first, second = take(backend, failing, ending)
        backend.accept([child_of(child, failing, ending, policy=OnParentFailure.CANCEL)])
        backend.abandon(first, DeadReason.FAILED)
        assert state(backend, child) is CANCELLED
        interleaved(watch, partial(backend.replay, failing), partial(finish, backend, second), steps)
        backend.repair()
        assert state(backend, child) is BLOCKED, steps
        [again] = claim(backend)
        finish(backend, again)
        assert claimed(backend) == [child], steps


def test_a_parent_that_is_replayed_while_its_children_are_being_cancelled_revives_them(
    backend: MysqlEngine, watch: Cursor
) -> None:
    for at, steps in stages(range(7, 30), range(12)):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(backend, parent)
        backend.accept([child_of(child, parent, policy=OnParentFailure.CANCEL)])
        dying = partial(backend.abandon, lease, DeadReason.FAILED)
        interleaved(watch, dying, partial(backend.replay, parent), steps)
        if state(backend, parent) is JobState.DEAD:  # the replay was too early
            backend.replay(parent)
        backend.repair()
        assert state(backend, child) is BLOCKED, steps
        [again] = claim(backend)
        finish(backend, again)
        assert claimed(backend) == [child], steps


def test_a_reschedule_that_waits_for_the_release_of_a_child_does_not_block_it_again(
    backend: MysqlEngine, watch: Cursor
) -> None:
    for at in range(3, 28):
        parent, child = f"parent{at}", f"child{at}"
        [lease] = take(backend, parent)
        backend.accept([child_of(child, parent)])
        rescheduling = partial(backend.reschedule, [job(child, queue=CHILDREN)])
        interleaved(watch, partial(finish, backend, lease), rescheduling, (at, TO_THE_END))
        assert claimed(backend) == [child], at


def test_workers_go_on_while_a_caller_enqueues_a_child_in_an_open_transaction(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    [lease] = take(backend, "parent")
    backend.accept([child_of("other", "parent")])
    with server.connect("holdfast") as connection, stranger(server) as cursor:
        connection.begin()
        waits = status(cursor, "Innodb_row_lock_waits")
        assert backend.accept([child_of("child", "parent")], connection) == [Accepted(id="child", created=True)]
        assert backend.renew_many([lease]) == [LeaseState.HELD]
        assert finish(backend, lease)
        assert backend.repair() == 0
        assert claimed(backend) == ["other"]
        assert backend.discard("parent", states=[JobState.COMPLETED])
        backend.prune()
        assert status(cursor, "Innodb_row_lock_waits") == waits
        connection.rollback()
    assert (backend.repair(), notes(backend)) == (0, 0)


def test_a_child_of_an_open_transaction_is_released_after_its_commit(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    [lease] = take(backend, "parent")
    with server.connect("holdfast") as connection:
        connection.begin()
        backend.accept([child_of("child", "parent")], connection)
        assert finish(backend, lease)
        connection.commit()
    assert backend.repair() == 1
    assert claimed(backend) == ["child"]


def test_no_call_waits_for_a_parent_that_is_locked(backend: MysqlEngine, server: MariadbServer) -> None:
    backend.accept([job("parent")])
    with server.connect("holdfast") as connection, stranger(server) as cursor:
        connection.begin()
        assert backend.reschedule([job("parent")], connection) == [True]
        waits = status(cursor, "Innodb_row_lock_waits")
        assert backend.accept([child_of("child", "parent")])[0].created
        assert backend.repair() == 0
        assert status(cursor, "Innodb_row_lock_waits") == waits
        assert notes(backend) == 1
        connection.commit()
    assert backend.repair() == 0
    assert notes(backend) == 0


def test_a_transaction_of_a_handler_releases_the_children_with_its_commit(backend: MysqlEngine) -> None:
    [lease] = take(backend, "parent")
    backend.accept([child_of("child", "parent")])
    transaction = backend.transaction(lease.id, lease.delivery)
    assert claimed(backend) == []
    transaction.complete(RECORD, enqueues=(child_of("late", "parent"),))
    assert sorted(claimed(backend)) == ["child", "late"]


def test_a_caller_whose_snapshot_is_older_than_the_parent_enqueues_its_child(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    with server.connect("holdfast") as connection:
        _begin_with_a_snapshot(backend, connection)
        [lease] = take(backend, "parent")
        backend.accept([child_of("child", "parent")], connection)
        assert finish(backend, lease)
        connection.commit()
    assert backend.repair() == 1
    assert claimed(backend) == ["child"]


def test_a_caller_whose_snapshot_has_an_old_edge_reschedules_the_child(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    """The child no longer waits for its parent, but for a slot. Blocked without a reason, it would wait forever."""
    [lease] = take(backend, "parent")
    backend.accept([child_of("child", "parent")])
    [holder] = take(backend, "holder")
    slot = Slot(name="key:a")
    assert backend.enter([Entry(lease=holder, slots=(slot,))])[0].outcome is EntryOutcome.ENTERED
    with server.connect("holdfast") as connection:
        _begin_with_a_snapshot(backend, connection)
        finish(backend, lease)
        [child] = backend.claim(CHILDREN, 10, owner_token=new_owner_token())
        assert backend.enter([Entry(lease=child, slots=(slot,))])[0].outcome is EntryOutcome.BLOCKED
        assert backend.reschedule([job("child", queue=CHILDREN)], connection) == [True]
        connection.commit()
    assert claimed(backend) == ["child"]


def _begin_with_a_snapshot(backend: MysqlEngine, connection: Any) -> None:
    """Begin a transaction with REPEATABLE READ, the default of callers."""
    connection.begin()
    with connection.cursor() as cursor:
        cursor.execute(backend.connections.sql("SELECT COUNT(*) FROM holdfast_jobs"))


def test_a_caller_reschedules_a_child_that_it_has_just_stored(backend: MysqlEngine, server: MariadbServer) -> None:
    [lease] = take(backend, "parent")
    with server.connect("holdfast") as connection:
        connection.begin()
        backend.accept([child_of("child", "parent")], connection)
        assert backend.reschedule([job("child", queue=CHILDREN)], connection) == [True]
        connection.commit()
    assert state(backend, "child") is BLOCKED
    finish(backend, lease)
    assert claimed(backend) == ["child"]


def test_a_child_that_a_caller_has_locked_does_not_hold_up_the_others(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    leases = take(backend, "a", "b")
    unique = Unique(key="k", scope=UniqueScope.WAITING)
    backend.accept([replace(child_of("locked", "a"), unique=unique), child_of("free", "a", "b")])
    with server.connect("holdfast") as connection:
        connection.begin()
        again = replace(job("again"), unique=unique)
        assert backend.accept([again], connection) == [Accepted(id="locked", created=False)]
        for lease in leases:
            assert finish(backend, lease)
        assert claimed(backend) == ["free"]
        backend.repair()
        assert state(backend, "locked") is BLOCKED
        connection.commit()
    assert backend.repair() == 1
    assert claimed(backend) == ["locked"]


def test_notes_that_were_not_read_to_the_end_stay_if_a_child_is_passed_over(
    backend: MysqlEngine, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "MAX_CHILDREN", 2)
    leases = take(backend, "a", "b")
    backend.accept([child_of("locked", "a"), child_of("first", "a"), child_of("last", "b")])
    with server.connect("holdfast") as connection:
        connection.begin()
        assert backend.reschedule([job("locked", queue=CHILDREN)], connection) == [True]
        backend.settle([Ack(lease=lease, record=RECORD) for lease in leases])
        backend.repair()
        assert sorted(claimed(backend)) == ["first", "last"]
        connection.commit()
    backend.repair()
    assert claimed(backend) == ["locked"]


def test_notes_that_another_process_has_locked_do_not_hold_up_the_next(
    backend: MysqlEngine, server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "PARENTS_AT_ONCE", 1)
    leases = take(backend, "a", "b")
    backend.accept([child_of("of-a", "a"), child_of("of-b", "b")])
    _leave_what_is_noted(monkeypatch, lambda: [finish(backend, lease) for lease in leases])
    with server.connect("holdfast") as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute(backend.connections.sql("SELECT id FROM holdfast_notes ORDER BY id LIMIT 1 FOR UPDATE"))
        assert backend.repair() == 1
        assert claimed(backend) == ["of-b"]
        connection.commit()
    assert backend.repair() == 1
    assert claimed(backend) == ["of-a"]


def _leave_what_is_noted(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something without resolving notes, like a process that was killed after its commit."""

    def leave(*_: object) -> None:
        pass

    with monkeypatch.context() as patch:
        for module in (jobs, records):
            patch.setattr(module, "resolve_soon", leave)
        act()


def test_a_parent_that_was_replayed_and_completed_before_anything_was_resolved_releases_its_children(
    backend: MysqlEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    [lease] = take(backend, "parent")
    backend.accept([child_of("child", "parent", policy=OnParentFailure.CANCEL)])
    backend.abandon(lease, DeadReason.FAILED)
    history = backend.get("child")
    assert history is not None
    assert history.job.cancel_reason == PARENT_FAILED

    def replay_and_complete() -> None:
        backend.replay("parent")
        [again] = claim(backend)
        finish(backend, again)

    _leave_what_is_noted(monkeypatch, replay_and_complete)
    assert backend.repair() == 1
    assert claimed(backend) == ["child"]


def test_notes_on_unfinished_parents_are_dismissed(backend: MysqlEngine, server: MariadbServer) -> None:
    take(backend, "parent")
    for id in ("a", "b"):
        with server.connect("holdfast") as connection:
            connection.begin()
            backend.accept([child_of(id, "parent")], connection)
            connection.commit()
    assert notes(backend) == 2
    assert backend.repair() == 0
    assert notes(backend) == 0


def test_a_settlement_that_enqueues_children_with_an_id_that_was_just_taken_stores_their_edges(
    backend: MysqlEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first statement has inserted a child when the second finds that its id is taken."""
    monkeypatch.setattr(mysql_connections, "STATEMENT_BYTES", 1)
    taken = job("taken")
    [parent] = take(backend, "parent")
    backend.accept([taken])
    known = jobs.MysqlJobs._known  # pyright: ignore[reportPrivateUsage]
    calls = count()

    def known_too_late(self: jobs.MysqlJobs, session: MysqlStatements, ids: Sequence[str]) -> Sequence[Row]:
        return known(self, session, ids) if next(calls) else []

    monkeypatch.setattr(jobs.MysqlJobs, "_known", known_too_late)
    backend.connections.close()  # sessions that do not know the limit yet
    assert backend.settle([Ack(lease=parent, record=RECORD, enqueues=(child_of("child", "parent"), taken))]) == [True]
    assert next(calls) > 1
    assert claimed(backend) == ["child"]


def test_no_statement_walks_through_all_edges(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    with stranger(server) as cursor:
        rows = [(parent, child, child % 3) for parent in range(1, 11) for child in range(1000, 1500)]
        rows += [(parent, child, parent % 3) for parent in range(2000, 4000) for child in (1, 2)]
        cursor.executemany(f"INSERT INTO {prefix}edges VALUES (%s, %s, 0, %s)", rows)
        cursor.executemany(f"INSERT INTO {prefix}notes (parent) VALUES (%s)", [(one % 40,) for one in range(4000)])
        cursor.execute(f"ANALYZE TABLE {prefix}edges, {prefix}notes")
        cursor.fetchall()
        parents, pairs = list(range(1, 11)), [(parent, 1000 + parent) for parent in range(1, 11)]
        look = {"mark": bytes(16), "token": bytes(16), "queue": "q", "settled": parents}
        queries: list[tuple[str, Any, int]] = [
            (edges.UNMET, (parents,), 60),
            (claims.LOOK_AND_FIND_PARENTS, look, 80),
            (edges.CHILD_OUTCOMES, ([1, 2],), 30),
            (edges.TURN, (1, pairs, 0), 30),
            (edges.EDGES, (parents, 0, 0, 100), 120),
            (edges.UNMET_PARENTS, (1000,), 90),
            (edges.LOCK_NOTES, (parents,), 20),
            (edges.DELETE_NOTES, (parents,), 40),
            (records.DELETE_EDGES, ([1000],), 90),
        ]
        for statement, values, most in queries:
            cursor.execute("FLUSH STATUS")
            cursor.execute(backend.connections.sql(statement), values)
            cursor.fetchall()
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            assert 0 < sum(int(number) for _, number in cursor.fetchall()) <= most, statement
