"""The MySQL engine on a real MariaDB: connections, locks, and failures that it survives."""

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pymysql
import pytest
from pymysql.cursors import Cursor

from holdfast.clock import ManualClock, SystemClock
from holdfast.errors import BackendError, BackendUnavailable, ConfigError, IdConflict, SchemaTooNew
from holdfast.queues.contract import new_owner_token
from holdfast.queues.engines.mysql import (
    claims as mysql_claims,
    connections as mysql_connections,
    jobs as mysql,
    state as mysql_state,
)
from holdfast.queues.engines.mysql.address import MysqlAddress
from holdfast.queues.engines.mysql.connections import Session
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.mysql.lanes import mark_of
from holdfast.queues.engines.mysql.migrations import migrations
from holdfast.values import (
    Ack,
    AttemptRecord,
    Entry,
    EntryOutcome,
    JobFilter,
    JobLease,
    JobState,
    LeaseState,
    LiveOutput,
    Nack,
    Outcome,
    Progress,
    Put,
    Settlement,
    Slot,
    Spend,
)

from ..faults.processes import Programs, stopped, until
from ..servers.mysql import MariadbServer
from ..servers.running import free_port, started
from .mysql_actors import connection_id, opened
from .sqlite_site import job

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


@contextmanager
def stranger(server: MariadbServer) -> Generator[Cursor]:
    """Another client of the same database."""
    with server.connect("holdfast") as connection, connection.cursor() as cursor:
        yield cursor


def claim(backend: MysqlEngine, limit: int = 10) -> list[JobLease]:
    return backend.claim("default", limit, owner_token=new_owner_token())


class Aside(threading.Thread):
    """A call in another thread, and its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._answers: list[object] = []
        self.start()

    def run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as problem:
            self._answers.append(problem)

    def answer(self) -> object:
        self.join(60)
        [answer] = self._answers
        return answer


def waiting_for_locks(cursor: Cursor) -> int:
    """The number of transactions that wait for a locked row."""
    return status(cursor, "Innodb_row_lock_current_waits")


def status(cursor: Cursor, name: str) -> int:
    """A status variable of the server."""
    cursor.execute("SHOW GLOBAL STATUS LIKE %s", (name,))
    [(_, number)] = cursor.fetchall()
    return int(number)


# Connections.


def test_a_connection_reads_what_is_committed_in_utc_and_counts_what_it_finds(backend: MysqlEngine) -> None:
    asked = "SELECT @@time_zone, @@autocommit, @@character_set_connection, @@wait_timeout"
    assert backend.connections.run(lambda session: session.one(asked)) == ("+00:00", 1, "utf8mb4", 60)
    # MariaDB and MySQL have different names for it.
    isolation = "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
    assert {value for _, value in backend.connections.run(lambda session: session.rows(isolation))} == {
        "READ-COMMITTED"
    }
    backend.pause("mail", "why")
    unchanged = backend.connections.sql("UPDATE holdfast_pauses SET reason = 'why'")
    assert backend.connections.run(lambda session: session.run(unchanged)) == 1


class BlindClock(SystemClock):
    """A clock with a wrong wall time; only its durations are right."""

    def now_us(self) -> int:
        raise AssertionError("somebody asked this process what time it is")


def test_only_the_servers_clock_is_asked(server: MariadbServer, prefix: str) -> None:
    with opened(server.url, prefix, clock=BlindClock()) as backend:
        backend.accept([job("a"), job("b"), job("c", delay=60)])
        first, second = claim(backend)
        assert backend.renew(first) is not None
        assert backend.report_progress([(first, Progress(done=1))]) == [True]
        assert backend.report_output([(first, LiveOutput(text="a"))]) == [True]
        assert backend.lease_states([first]) == [LeaseState.HELD]
        entered, blocked = backend.enter([Entry(lease=one, slots=(Slot(name="key"),)) for one in (first, second)])
        assert (entered.outcome, blocked.outcome) == (EntryOutcome.ENTERED, EntryOutcome.BLOCKED)
        assert (backend.repair(), backend.slots()[0].waiting) == (0, 1)
        assert backend.reschedule([job("b")]) == [True]
        [second] = claim(backend)
        done = Ack(lease=first, writes=(Put(kind="lock", key="c", ttl=60),))
        assert backend.settle([done, Nack(lease=second, delay=60)]) == [True, True]
        backend.wait_for_work(["default"], 0)
        backend.cancel("c")
        backend.replay("c")
        backend.pause("mail")
        lock = Put(kind="lock", key="a", ttl=60, if_version=0)
        assert [backend.state.write([lock]) is None for _ in range(2)] == [False, True]
        backend.accept([], writes=[Put(kind="lock", key="b", ttl=60)])
        assert backend.state.spend([Spend(bucket="a", tokens=1, per_s=1, burst=1)])[0].tokens == 1
        assert [cell.key for cell in backend.state.read("lock")] == ["a", "b", "c"]
        assert len(backend.find(JobFilter()).jobs) == 3
        assert (backend.get("a") is None, backend.reap_expired(), backend.prune()) == (False, 0, 0)
        assert backend.counts() == {"default": {JobState.COMPLETED: 1, JobState.FAILED: 1, JobState.PENDING: 1}}


# Rows that a verb reads.


def test_no_verb_walks_through_what_it_does_not_want(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    for start in range(0, 3000, 1000):
        backend.accept([job(f"job-{number}", delay=number % 2 * 60) for number in range(start, start + 1000)])
    backend.settle([Ack(lease=lease) for lease in claim(backend, 500)])
    seqs = list(range(1, 101))
    token = bytes(16)
    queries: list[tuple[str, tuple[object, ...] | dict[str, object], str]] = [
        (mysql_claims.LOOK, {"mark": mark_of("default"), "queue": "default", "token": token}, "by_turn"),
        (
            mysql_claims.NEXT_DUE,
            {"marks": [mark_of("default"), mark_of("mail")], "queues": ["default", "mail"]},
            "by_turn",
        ),
        (mysql_claims.LOCK_DUE, (4, mark_of("default"), 0, 2**62, 100), "by_turn"),
        (mysql_claims.CLAIM, {"token": token, "now": 1, "lease": 1, "seqs": seqs}, "PRIMARY"),
        (mysql.ACK, {"token": token, "now": 1, "seqs": seqs}, "PRIMARY"),
        (mysql.RENEW, {"seqs": seqs, "pairs": [(seq, token) for seq in seqs]}, "PRIMARY"),
    ]
    with stranger(server) as cursor:
        cursor.execute(f"ANALYZE TABLE {prefix}jobs")
        for statement, values, index in queries:
            cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + backend.connections.sql(statement), values)
            columns = [column[0] for column in cursor.description]
            rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            plan = [row for row in rows if row["table"] == f"{prefix}jobs"]
            assert {row["key"] for row in plan} == {index}, plan
            extra = [row["Extra"] or "" for row in plan]
            assert not any("filesort" in one or "temporary" in one for one in extra), plan
            if statement is mysql_claims.LOOK:
                assert "Using index for group-by" in extra[0], plan


def test_no_verb_of_shared_state_walks_through_it(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    keys = [f"key{number:04}" for number in range(3000)]
    backend.state.write([Put(kind="thing", key=key, ttl=60) for key in keys])
    backend.state.spend([Spend(bucket=key, tokens=1, per_s=0.01, burst=9) for key in keys])
    some: dict[str, object] = {
        "kind": "thing",
        "keys": keys[:50],
        "names": keys[:50],
        "now": 2**62,
        "after": "key1",
        "limit": 50,
    }
    queries: list[tuple[str, tuple[object, ...] | dict[str, object], str | None]] = [
        (mysql_state.READ, some, "PRIMARY"),
        (mysql_state.READ_THESE, some, "PRIMARY"),
        (mysql_state.LOCKED_CELLS, ("thing", keys[:50]), "PRIMARY"),
        (mysql_state.LOCKED_BUCKETS, (keys[:50],), "PRIMARY"),
        (mysql_state.EXPIRED_CELLS, some, "by_expiry"),
        (mysql_state.DELETE_CELLS, some, "PRIMARY"),
        (mysql_state.FULL_BUCKETS, some, "by_time"),
        (mysql_state.DELETE_BUCKETS, some, "PRIMARY"),
    ]
    with stranger(server) as cursor:
        cursor.execute(f"ANALYZE TABLE {prefix}cells, {prefix}buckets")
        for statement, values, index in queries:
            cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + backend.connections.sql(statement), values)
            columns = [column[0] for column in cursor.description]
            [plan] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            assert plan["key"] == index, plan
            assert "filesort" not in (plan["Extra"] or ""), plan
        cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + backend.connections.sql(mysql_state.OLDEST))
        assert sum("Select tables optimized away" in str(row) for row in cursor.fetchall()) == 2


# Statements that a verb sends.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are sent from here on."""
    statements: list[str] = []
    execute = Cursor.execute

    def note(self: Cursor, query: str, args: tuple[object, ...] | None = None) -> int:
        statements.append(query)
        return execute(self, query, args)

    monkeypatch.setattr(Cursor, "execute", note)
    return statements


def test_shared_state_takes_as_few_statements_as_possible(backend: MysqlEngine, asked: list[str]) -> None:
    backend.create_schema()
    put = Put(kind="thing", key="a", ttl=60)
    spend = Spend(bucket="a", tokens=1, per_s=0.01, burst=9)
    verbs: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: backend.state.write([put])),
        (1, lambda: backend.state.read("thing")),
        (1, lambda: backend.state.read("thing", ["a"])),
        (5, lambda: backend.state.write([put, Put(kind="thing", key="b", if_version=0)])),
        (5, lambda: backend.state.spend([spend, spend])),
        (1, lambda: backend.state.sweep()),
    ]
    for number, verb in verbs:
        asked.clear()
        verb()
        assert len(asked) == number, asked


def test_what_a_settlement_carries_costs_one_statement_for_all_writes_and_one_for_all_jobs(
    backend: MysqlEngine, asked: list[str]
) -> None:
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)

    def settle(*, with_writes: bool = False, with_jobs: bool = False) -> int:
        backend.accept([job() for _ in range(3)], None)
        settlements = [
            Ack(
                lease=lease,
                record=record,
                writes=tuple(Put(kind="thing", key=f"{lease.id}{n}") for n in range(2)) if with_writes else (),
                enqueues=(job(queue="next"),) if with_jobs else (),
            )
            for lease in claim(backend)
        ]
        asked.clear()
        assert backend.settle(settlements) == [True, True, True]
        return len(asked)

    plain = settle()
    assert plain == 6
    assert settle(with_writes=True) == plain + 1
    assert settle(with_jobs=True) == plain + 1


# Locks.


def test_claims_of_one_worker_pass_different_gates(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    """Their tokens share a prefix, the worker's session."""
    backend.accept([job("a")])
    with stranger(server) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}gates WHERE gate = 1 FOR UPDATE")
        [lease] = backend.claim("default", 1, owner_token="01" * 15 + "02")
        waiting = Aside(lambda: backend.exchange([Ack(lease=lease)], "default", 1, owner_token="02" * 15 + "01"))
        until(lambda: waiting_for_locks(cursor), "the claim to wait for its gate")
        cursor.execute("COMMIT")
        assert waiting.answer() == ([True], [])


def test_a_claim_passes_over_what_another_has_locked(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.accept([job("a"), job("b")])
    with stranger(server) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}jobs WHERE id = 'a' FOR UPDATE")
        assert [lease.id for lease in claim(backend)] == ["b"]
        cursor.execute("ROLLBACK")
    assert [lease.id for lease in claim(backend)] == ["a"]


def test_without_skip_locked_a_claim_waits_and_takes_the_rest(server: MariadbServer, prefix: str) -> None:
    with opened(f"{server.url}?skip_locked=off", prefix) as backend, stranger(server) as cursor:
        backend.accept([job("a"), job("b"), job("c")])
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE {prefix}jobs SET state = 6, lane = 14, mark = '' WHERE id IN ('a', 'b')")
        waiting = Aside(lambda: [lease.id for lease in claim(backend, 2)])
        until(lambda: waiting_for_locks(cursor), "the claim to wait")
        cursor.execute("COMMIT")
        assert waiting.answer() == ["c"]
        assert not backend.connections.skips_locked


def test_a_server_that_does_not_know_skip_locked_is_found_out(backend: MysqlEngine) -> None:
    sql = backend.connections.sql
    backend.connections.sql = lambda statement: sql(statement).replace("SKIP LOCKED", "SKIP WHAT")
    backend.create_schema()
    assert not backend.connections.skips_locked
    backend.accept([job("a")])
    assert [lease.id for lease in claim(backend)] == ["a"]


def test_a_verdict_that_waited_until_its_lease_had_ended_is_refused(server: MariadbServer, prefix: str) -> None:
    with opened(server.url, prefix, lease_s=0.5) as backend, stranger(server) as cursor:
        backend.accept([job("acked"), job("failed")])
        acked, failed = claim(backend)
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT lease_until FROM {prefix}jobs FOR UPDATE")
        verdicts: list[Settlement] = [Ack(lease=acked), Nack(lease=failed)]
        waiting = [Aside(partial(backend.settle, [one])) for one in verdicts]
        until(lambda: waiting_for_locks(cursor) == 2, "both to wait")
        cursor.execute("SET time_zone = '+00:00'")
        held = f"SELECT 1 FROM {prefix}jobs WHERE lease_until > {mysql_connections.CLOCK}"
        until(lambda: cursor.execute(held) == 0, "the leases to end")
        cursor.execute("ROLLBACK")
        assert [one.answer() for one in waiting] == [[False], [False]]
        assert backend.counts() == {"default": {JobState.PROCESSING: 2}}


def test_a_deadlock_is_not_the_callers_problem(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.accept([job("a"), job("b")])
    a, b = claim(backend)
    with stranger(server) as cursor, stranger(server) as watcher:
        cursor.execute(f"CREATE TABLE {prefix}ballast (n INT PRIMARY KEY) ENGINE = InnoDB")
        cursor.execute("BEGIN")
        # In a deadlock, the transaction that has written less is rolled back.
        numbers = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 1000) SELECT n FROM s"
        cursor.execute(f"INSERT INTO {prefix}ballast {numbers}")
        cursor.execute(f"SELECT 1 FROM {prefix}jobs WHERE id = 'a' FOR UPDATE")
        settling = Aside(lambda: backend.settle([Nack(lease=b), Nack(lease=a)]))
        until(lambda: waiting_for_locks(watcher), "the settlement to wait")
        cursor.execute(f"SELECT 1 FROM {prefix}jobs WHERE id = 'b' FOR UPDATE")
        cursor.execute("COMMIT")
        assert settling.answer() == [True, True]
    assert backend.counts() == {"default": {JobState.FAILED: 2}}


def test_a_lock_that_takes_too_long_is_tried_again(
    backend: MysqlEngine, server: MariadbServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = re.sub(r"innodb_lock_wait_timeout = \d+", "innodb_lock_wait_timeout = 0", mysql_connections.PREPARE[1])
    monkeypatch.setattr(mysql_connections, "PREPARE", (mysql_connections.PREPARE[0], impatient))
    backend.accept([job("a")])
    [lease] = claim(backend)
    with stranger(server) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}jobs FOR UPDATE")
        before = status(cursor, "Com_rollback")
        settling = Aside(lambda: backend.ack(lease))
        until(lambda: status(cursor, "Com_rollback") > before + 3, "some attempts")
        cursor.execute("COMMIT")
        assert settling.answer() is True


def test_a_lock_that_is_never_let_go_of_is_an_engine_that_is_not_available(
    backend: MysqlEngine, server: MariadbServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = re.sub(r"innodb_lock_wait_timeout = \d+", "innodb_lock_wait_timeout = 0", mysql_connections.PREPARE[1])
    monkeypatch.setattr(mysql_connections, "PREPARE", (mysql_connections.PREPARE[0], impatient))
    monkeypatch.setattr(mysql_connections, "BUSY_LIMIT_S", 0.05)
    backend.accept([job("a")])
    [lease] = claim(backend)
    with stranger(server) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT 1 FROM {prefix}jobs FOR UPDATE")
        with pytest.raises(BackendUnavailable, match="stayed busy"):
            backend.ack(lease)
    assert backend.ack(lease)


def test_a_job_that_others_are_enqueueing_is_enqueued_once_by_a_settlement(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    backend.accept([job("a"), job("b")])
    same, other = claim(backend)
    known = job("known", queue="next")
    with server.connect("holdfast") as connection, stranger(server) as watcher:
        for lease, enqueued, id in ((same, known, "known"), (other, job("new", queue="next", size=9), "new")):
            connection.begin()
            backend.accept([known if id == "known" else job("new", queue="next", size=8)], connection)
            settling = Aside(partial(backend.settle, [Ack(lease=lease, enqueues=(enqueued,))]))
            until(lambda: waiting_for_locks(watcher), "the settlement to wait")
            connection.commit()
            answer = settling.answer()
            assert isinstance(answer, IdConflict) if id == "new" else answer == [True]
    assert backend.counts() == {
        "default": {JobState.COMPLETED: 1, JobState.PROCESSING: 1},
        "next": {JobState.PENDING: 2},
    }


def test_many_processes_accept_claim_settle_and_reap_and_no_job_is_lost_or_done_twice(
    server: MariadbServer, prefix: str, programs: Programs
) -> None:
    hammers = [
        programs.module("tests.engines.mysql_actors", "hammer", server.url, prefix, f"p{number}", "60")
        for number in range(4)
    ]
    for hammer in hammers:
        hammer.wait_for("ready")
    for hammer in hammers:
        hammer.tell()
    said = [json.loads(hammer.succeeded().partition("\n")[2]) for hammer in hammers]
    accepted = [id for one in said for id in one["accepted"]]
    acked = [id for one in said for id in one["acked"]]
    assert len(accepted) > 4 * 60

    with opened(server.url, prefix) as backend:

        def is_drained() -> bool:
            backend.reap_expired()
            leases = claim(backend, 500)
            acked.extend(lease.id for lease in leases if backend.ack(lease))
            return set(backend.counts()["default"]) == {JobState.COMPLETED}

        until(is_drained, "every job to be completed")
        assert backend.counts() == {"default": {JobState.COMPLETED: len(accepted)}}
    assert Counter(acked) == Counter(set(accepted))


# Limits.


@contextmanager
def packets_of(server: MariadbServer, size: int) -> Generator[None]:
    with stranger(server) as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet")
        [(before,)] = cursor.fetchall()
        cursor.execute("SET GLOBAL max_allowed_packet = %s", (size,))
        try:
            yield
        finally:
            cursor.execute("SET GLOBAL max_allowed_packet = %s", (before,))


def test_a_batch_is_cut_into_what_the_server_takes(backend: MysqlEngine, server: MariadbServer) -> None:
    record = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=1, ended_us=2)
    backend.create_schema()
    backend.close()
    with packets_of(server, 64 * 1024):
        batch = [job(size=900) for _ in range(900)]
        assert all(answer.created for answer in backend.accept(batch))
        leases = claim(backend, 900)
        assert [lease.wire for lease in leases] == [envelope.wire for envelope in batch]
        assert all(backend.settle([Ack(lease=lease, record=record) for lease in leases]))
        with pytest.raises(BackendError, match="max_allowed_packet") as refusal:
            backend.accept([job("small"), job("large", size=100_000)])
        assert not isinstance(refusal.value, BackendUnavailable)
        assert backend.get("small") is None
        backend.close()


def test_many_verdicts_with_much_to_tell_fit(backend: MysqlEngine) -> None:
    numbers = [f"job{number:04}" for number in range(1200)]
    backend.accept([job(id) for id in numbers])
    leases = claim(backend, 1200)
    assert [lease.id for lease in leases] == numbers
    assert backend.renew_many(leases) == ["held"] * 1200
    assert backend.settle([Ack(lease=lease) for lease in leases]) == [True] * 1200


# Failures.


def test_connections_that_were_killed_are_opened_again(backend: MysqlEngine, server: MariadbServer) -> None:
    backend.accept([job("a")])
    for verb in (lambda: claim(backend), lambda: backend.counts()):
        with stranger(server) as cursor:
            cursor.execute("KILL %s", (connection_id(backend),))
        assert verb()


def test_a_connection_the_server_closed_for_being_idle_is_opened_again(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    backend.accept([job("a")])
    idle = connection_id(backend)
    backend.connections.run(lambda session: session.run("SET SESSION wait_timeout = 1"))
    assert connection_id(backend) == idle
    with stranger(server) as cursor:
        lives = "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %s"
        until(lambda: cursor.execute(lives, (idle,)) == 0, "the server to hang up")
    assert [lease.id for lease in claim(backend)] == ["a"]


def test_a_transaction_whose_connection_dies_is_repeated_as_a_whole(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    backend.create_schema()
    runs: list[int] = []

    def work(session: Session) -> None:
        session.run(f"INSERT INTO {prefix}gates VALUES ({1000 + len(runs)})")
        runs.append(session.one("SELECT CONNECTION_ID()")[0])
        if len(runs) == 1:
            with stranger(server) as cursor:
                cursor.execute("KILL %s", (runs[0],))

    backend.connections.transact(work)
    assert len(set(runs)) == 2
    with stranger(server) as cursor:
        cursor.execute(f"SELECT gate FROM {prefix}gates WHERE gate >= 1000")
        assert cursor.fetchall() == ((1001,),)


def test_work_that_must_not_repeat_is_not_retried_after_a_lost_commit(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    backend.create_schema()
    runs: list[int] = []

    def work(session: Session) -> None:
        runs.append(session.one("SELECT CONNECTION_ID()")[0])
        with stranger(server) as cursor:
            cursor.execute("KILL %s", (runs[0],))

    with pytest.raises(BackendUnavailable):
        backend.connections.transact(work, repeats=False)
    assert len(runs) == 1


def test_a_server_that_was_killed_and_started_again_has_every_job(prefix: str) -> None:
    server = started(MariadbServer)
    assert isinstance(server, MariadbServer)
    try:
        with opened(server.url, prefix) as backend:
            backend.accept([job("a"), job("b")])
            [lease] = claim(backend, 1)
            server.kill()
            with pytest.raises(BackendUnavailable):
                backend.accept([job("c")])
            server.start()
            assert backend.ack(lease)
            assert [lease.id for lease in claim(backend)] == ["b"]
    finally:
        server.close()


def test_a_server_that_cannot_be_reached_is_not_available(prefix: str) -> None:
    with opened(f"mysql://root:s3cret@127.0.0.1:{free_port()}/holdfast", prefix) as backend:
        for verb in (backend.check, backend.create_schema, lambda: claim(backend), lambda: backend.accept([job()])):
            with pytest.raises(BackendUnavailable) as refusal:
                verb()
            assert "s3cret" not in f"{refusal.value} {refusal.value.__cause__!r}"


def test_a_server_that_takes_calls_and_never_answers_is_not_available(prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"mysql://root@127.0.0.1:{deaf.getsockname()[1]}/holdfast?timeout=0.05"
        with opened(url, prefix) as backend, pytest.raises(BackendUnavailable):
            backend.check()


def test_a_server_that_stands_still_is_not_available_until_it_goes_on(server: MariadbServer, prefix: str) -> None:
    with opened(f"{server.url}?timeout=2", prefix) as backend:
        backend.accept([job("a")])
        with stopped(server.pid), pytest.raises(BackendUnavailable):
            claim(backend)

        def is_claimed() -> bool:
            return bool(claim(backend)) or backend.counts() == {"default": {JobState.PROCESSING: 1}}

        until(is_claimed, "the server to serve again")


def test_a_server_that_only_reads_is_not_available(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.accept([job("a")])
    with stranger(server) as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS clerk@'%'")
        cursor.execute("GRANT ALL ON holdfast.* TO clerk@'%'")
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            with opened(server.url.replace("root@", "clerk@"), prefix) as clerk:
                with pytest.raises(BackendUnavailable, match="read-only"):
                    clerk.accept([job("b")])
                cursor.execute("SET GLOBAL read_only = 0")
                assert clerk.accept([job("b")])[0].created
        finally:
            cursor.execute("SET GLOBAL read_only = 0")


def test_refused_access_is_reported_without_the_password(server: MariadbServer, prefix: str) -> None:
    with opened(server.url.replace("root@", "nobody:s3cret@"), prefix) as backend:
        with pytest.raises(BackendError, match="'nobody'") as refusal:
            backend.check()
        assert not isinstance(refusal.value, BackendUnavailable)
        assert refusal.value.__context__ is refusal.value.__cause__, "the traceback shows the driver's error alone"
        assert isinstance(refusal.value.__cause__, pymysql.Error)
        assert refusal.value.__cause__.__context__ is None
        assert "s3cret" not in str(refusal.value)
    with opened(server.url.replace("/holdfast", "/nowhere"), prefix) as backend, pytest.raises(BackendError):
        backend.check()


def test_a_password_is_not_sent_unencrypted(
    server: MariadbServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL may require an authentication method that the driver does not support by itself."""

    def connect(**_: object) -> None:
        raise RuntimeError("'cryptography' package is required for sha256_password or caching_sha2_password")

    monkeypatch.setattr(pymysql, "connect", connect)
    with opened(server.url, prefix) as backend, pytest.raises(BackendError, match=r"'root'.*tls=verify"):
        backend.check()


def test_encryption_that_was_asked_for_is_not_left_out(server: MariadbServer, prefix: str) -> None:
    with stranger(server) as cursor:
        cursor.execute("SHOW VARIABLES WHERE Variable_name = 'have_ssl' AND Value <> 'DISABLED'")
        assert cursor.fetchall() == ()
    with opened(f"{server.url}?tls=encrypt", prefix) as backend, pytest.raises(BackendError):
        backend.check()


def test_parent_and_child_of_a_fork_have_connections_of_their_own(
    server: MariadbServer, prefix: str, programs: Programs
) -> None:
    programs.module("tests.engines.mysql_actors", "fork", server.url, prefix).succeeded()
    with opened(server.url, prefix) as backend:
        assert backend.counts() == {"default": {JobState.PENDING: 42}}


class JobTimeout(BaseException):
    """An exception that can be raised at any point."""


def test_an_interrupted_call_leaves_no_open_transaction(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    backend.create_schema()

    def cut_off(session: Session) -> None:
        session.run(f"INSERT INTO {prefix}gates VALUES (2000)")
        raise JobTimeout

    with pytest.raises(JobTimeout):
        backend.connections.transact(cut_off)
    with stranger(server) as cursor:
        assert cursor.execute(f"SELECT 1 FROM {prefix}gates WHERE gate = 2000 FOR UPDATE") == 0
    backend.accept([job("a")])
    assert len(claim(backend)) == 1


def test_threads_share_one_engine(backend: MysqlEngine) -> None:
    backend.accept([job() for _ in range(60)])

    def drain() -> int:
        done = 0
        while leases := claim(backend, 2):
            done += sum(backend.settle([Ack(lease=lease) for lease in leases]))
        return done

    assert sum(int(str(one.answer())) for one in [Aside(drain) for _ in range(6)]) == 60


def test_a_cell_that_a_callers_transaction_is_writing_does_not_hold_the_sweep_up(
    backend: MysqlEngine, server: MariadbServer
) -> None:
    backend.state.write([Put(kind="thing", key=key, ttl=0.000_001) for key in ("held", "idle")])
    with server.connect("holdfast") as caller:
        caller.begin()
        with caller.cursor() as cursor:
            table = f"{backend.connections.prefix}cells"
            cursor.execute(f"SELECT 1 FROM {table} WHERE kind = 'thing' AND name = 'held' FOR UPDATE")
        assert backend.state.sweep() == 1
        caller.rollback()
    assert backend.state.sweep() == 1


# The tables.


def test_many_who_create_the_tables_at_once_create_them_once(server: MariadbServer, prefix: str) -> None:
    backends = [opened(server.url, prefix) for _ in range(6)]
    makers = [Aside(one.create_schema) for one in backends]
    assert [maker.answer() for maker in makers] == [None] * 6
    with stranger(server) as cursor:
        cursor.execute(f"SELECT version FROM {prefix}schema")
        assert cursor.fetchall() == tuple((step.number,) for step in migrations(prefix))
        assert cursor.execute(f"SELECT gate FROM {prefix}gates") == 256
    for one in backends:
        one.close()


def test_a_migration_that_was_cut_off_is_completed(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.accept([job("a")])
    with stranger(server) as cursor:
        cursor.execute(f"DELETE FROM {prefix}schema")
        cursor.execute(f"DROP TABLE {prefix}buckets")
        cursor.execute(f"DELETE FROM {prefix}gates WHERE gate > 7")
    with pytest.raises(BackendError, match="has schema 0"):
        backend.check()
    backend.create_schema()
    backend.check()
    assert [lease.id for lease in claim(backend)] == ["a"]
    assert backend.state.sweep() == 0


def test_facts_become_cells_even_if_the_migration_was_cut_off(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    statements = [one for step in migrations(prefix) for one in step.sql.split(";\n") if one.strip()]
    [dropped] = [place for place, text in enumerate(statements) if text.endswith(f"DROP TABLE IF EXISTS {prefix}facts")]
    facts = ["one", "two"]
    with stranger(server) as cursor:
        for statement in statements[: dropped + 1]:
            if "SELECT kind, fact" in statement:
                cursor.executemany(f"INSERT INTO {prefix}facts VALUES ('signing-key', %s)", [(fact,) for fact in facts])
            cursor.execute(statement)
        backend.create_schema()
        assert [cell.key for cell in backend.state.read("signing-key")] == facts
        cursor.execute("SHOW TABLES LIKE %s", (f"{prefix}%",))
        assert not {f"{prefix}facts", f"{prefix}workers"} & {name for (name,) in cursor.fetchall()}


def test_a_claim_without_its_gate_says_how_to_restore_the_table(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    backend.accept([job("a")])
    with stranger(server) as cursor:
        cursor.execute(f"DELETE FROM {prefix}gates")
        with pytest.raises(BackendError, match=f"{prefix}gates has lost rows.* INSERT IGNORE .* migrate --sql"):
            backend.claim("default", 1, owner_token=new_owner_token())
        [restore] = [one for one in migrations(prefix)[0].statements if f"INSERT IGNORE INTO {prefix}gates" in one]
        cursor.execute(restore)
    assert len(backend.claim("default", 1, owner_token=new_owner_token())) == 1


def test_a_table_of_another_program_is_not_taken_for_ours(
    backend: MysqlEngine, server: MariadbServer, prefix: str
) -> None:
    with stranger(server) as cursor:
        cursor.execute(f"CREATE TABLE {prefix}jobs (id int)")
        with pytest.raises(
            BackendError, match=f"contains a table {prefix}jobs that belongs to another program: .*prefix"
        ):
            backend.accept([job("a")])
        cursor.execute("SHOW TABLES LIKE %s", (f"{prefix}%",))
        assert cursor.fetchall() == ((f"{prefix}jobs",),)
        cursor.execute(f"DROP TABLE {prefix}jobs")
    assert backend.accept([job("a")])[0].created


def test_a_newer_schema_is_refused(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.create_schema()
    with stranger(server) as cursor:
        cursor.execute(f"INSERT INTO {prefix}schema VALUES (999, 0)")
    with opened(server.url, prefix) as newcomer:
        for verb in (newcomer.check, newcomer.create_schema, newcomer.counts):
            with pytest.raises(SchemaTooNew, match="999"):
                verb()


def test_two_installations_share_a_database(server: MariadbServer, prefix: str) -> None:
    with opened(server.url, prefix) as one, opened(server.url, f"{prefix}more_") as other:
        one.accept([job("a", queue="one")])
        other.accept([job("a", queue="other")])
        assert [set(backend.counts()) for backend in (one, other)] == [{"one"}, {"other"}]


@pytest.mark.parametrize("wrong", ["", "1st_", "a b", "a`; DROP TABLE x; --", "x" * 41, "ä_"])
def test_a_prefix_that_is_not_a_name_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        opened("mysql://localhost/jobs", wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "mysql://localhost",
        "mysql://localhost/a/b",
        "mysql://localhost:port/jobs",
        "mysql://localhost/jobs?colour=red",
        "mysql://localhost/jobs?timeout=soon",
        "mysql://localhost/jobs?timeout=0",
        "mysql://localhost/jobs?tls=maybe",
        "mysql://localhost/jobs?skip_locked=perhaps",
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        MysqlAddress.of(wrong)


def test_an_address_shows_everything_except_the_password() -> None:
    address = MysqlAddress.of("mysql://ada:p%40ss@db.example:3307/jobs?timeout=2.5&tls=verify&tls_ca=/ca.pem")
    assert (address.host, address.port, address.user, address.password) == ("db.example", 3307, "ada", "p@ss")
    assert (address.database, address.timeout_s, address.tls, address.tls_ca) == ("jobs", 2.5, "verify", "/ca.pem")
    assert "p@ss" not in f"{address} {address!r}"
    assert MysqlAddress.of("mysql://localhost/jobs?tls_ca=/ca.pem").tls == "verify"


# A caller's transaction.


# Waiting.


class PatientClock(ManualClock):
    """Records the durations of waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, seconds: float, descriptors: object) -> frozenset[int]:
        self.waits.append(seconds)
        self.advance(seconds)
        return frozenset()


def test_who_waits_looks_often_only_where_there_was_work_of_late(server: MariadbServer, prefix: str) -> None:
    clock = PatientClock()
    with opened(server.url, prefix, clock=clock) as backend:
        backend.accept([job("a")])
        backend.wait_for_work(["default"], 60)
        assert clock.waits == []
        [lease] = claim(backend)
        assert backend.ack(lease)
        backend.wait_for_work(["default"], 2.0)
        assert clock.waits[0] == mysql.LOOK_FIRST_S
        assert clock.waits[:-1] == sorted(clock.waits[:-1])
        assert clock.waits[-2] == mysql.LOOK_LAST_S
        assert len(clock.waits) < 80


def test_a_job_of_another_process_ends_the_wait(backend: MysqlEngine, server: MariadbServer, prefix: str) -> None:
    backend.create_schema()
    waiting = Aside(lambda: backend.wait_for_work(["mail", "default"], 60))
    with opened(server.url, prefix) as other:
        other.accept([job("a")])
    assert waiting.answer() is None
    assert len(claim(backend)) == 1
