"""Slots and unique keys in an SQLite file: rows that a verb reads, callers' transactions, and damaged rows."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UniqueConflict
from holdfast.queues.contract import PROMOTION_S, TOMBSTONE_S, new_owner_token
from holdfast.queues.engines.sqlite import connections as sqlite_file, records, slots
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.testing.lab import LEASE_S, Lab, sqlite_lab
from holdfast.testing.laws.slots import KEY, block, enter, hold, leave
from holdfast.testing.laws.unique import accept, unique
from holdfast.values import CancelAnswer, EntryOutcome, JobFilter, JobState, OnConflict, Slot, UniqueScope

from ..attacks.damage_sqlite import SqliteStore
from .sqlite_site import opened, plan_of, steps_of, stranger

LARGEST = 2**63 - 1
PLACE = "INSERT INTO holdfast_places (slot, seq, queue, owner_token, fence, since, until) VALUES"


@pytest.fixture
def lab(quick_path: Path) -> Iterator[Lab]:
    with sqlite_lab(quick_path) as lab:
        yield lab


# Rows that a verb reads.


@pytest.mark.parametrize(
    ("statement", "steps"),
    [
        pytest.param(slots.BEST, {"blocked_by_turn (slot=? AND queue=?)"}, id="BEST"),
        pytest.param(slots.QUEUES, {"blocked_by_turn (slot=? AND queue>? AND queue<?)"}, id="QUEUES"),
        pytest.param(
            slots.TO_REPAIR,
            {
                "blocked_by_turn (slot>? AND slot<?)",
                "PRIMARY KEY (slot=?)",
                "PRIMARY KEY (rowid=?)",
                "PRIMARY KEY (name=?)",
            },
            id="TO_REPAIR",
        ),
        pytest.param(slots.PLACES, {"PRIMARY KEY (slot=?)", "PRIMARY KEY (rowid=?)"}, id="PLACES"),
        pytest.param(slots.PROMOTE, {"PRIMARY KEY (rowid=?)"}, id="PROMOTE"),
        pytest.param(slots.BLOCK, {"PRIMARY KEY (rowid=?)"}, id="BLOCK"),
        pytest.param(slots.STATES_OF, {"jobs_id (id=?)"}, id="STATES_OF"),
        pytest.param(records.DELETE_PLACES, {"places_by_job (seq=?)"}, id="DELETE_PLACES"),
        pytest.param(
            records.USED_SLOTS,
            {
                "blocked_by_turn (slot>? AND slot<?)",
                "blocked_by_turn (slot=?)",
                "PRIMARY KEY (slot>? AND slot<?)",
                "PRIMARY KEY (slot=?)",
                "PRIMARY KEY (rowid=?)",
            },
            id="USED_SLOTS",
        ),
    ],
)
def test_a_statement_finds_its_rows_through_an_index(path: Path, statement: str, steps: set[str]) -> None:
    plan = plan_of(path, statement)
    found = {step.partition(" USING ")[2] for step in plan if step.startswith(("SEARCH", "SCAN")) and " USING " in step}
    assert {one.partition("holdfast_")[2] or one.removeprefix("INTEGER ") for one in found} == steps, plan
    assert not [step for step in plan if "TEMP B-TREE" in step]


def test_no_verb_does_more_because_more_jobs_wait_for_a_slot(quick_path: Path) -> None:
    few = steps_beside_waiters(quick_path.with_name("few.db"), 100)
    many = steps_beside_waiters(quick_path.with_name("many.db"), 10_000)
    assert many == pytest.approx(few, rel=0.05)


def steps_beside_waiters(path: Path, number: int) -> dict[str, int]:
    """The steps of each verb while this many jobs wait for one slot."""
    with sqlite_lab(path) as lab:
        engine = lab.engine
        assert isinstance(engine, SqliteEngine)
        first = hold(lab, "first")
        block(lab, "waiting")
        with stranger(path) as connection:
            connection.execute(
                """
                INSERT INTO holdfast_jobs (seq, id, queue, job, priority, state, due_at, accepted_at)
                WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :number)
                SELECT 1000 + n, 'id-' || n, 'default', 'note', 5, 3, n, n FROM numbers""",
                {"number": number},
            )
            connection.execute(
                """
                INSERT INTO holdfast_blocked (seq, slot, queue, lane, due_at, id, size, since)
                SELECT seq, 'key:a', queue, 4, due_at, id, 1, 0 FROM holdfast_jobs WHERE seq > 1000"""
            )
        lab.put("new")
        new = lab.take("new")
        return {
            "repair": steps_of(engine, engine.repair),
            "enter": steps_of(engine, lambda: enter(lab, new)),
            "leave": steps_of(engine, lambda: leave(lab, first)),
            "claim": steps_of(engine, lab.claim),
        }


def test_waiting_jobs_and_used_keys_are_checked_without_the_write_lock(
    lab: Lab, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(sqlite_file, "BUSY_LIMIT_S", 0.1)
    hold(lab, "first")
    block(lab, "second")
    accept(lab, unique(lab, "unique"))
    with stranger(quick_path) as other:
        other.execute("BEGIN IMMEDIATE")
        assert lab.engine.repair() == 0
        assert lab.engine.records.delete_unused() == 0
        assert lab.engine.slots()[0].waiting == 1


# Places and their jobs.


def test_a_place_that_one_of_two_holders_left_behind_is_repaired(lab: Lab) -> None:
    wide = Slot(name="key:wide", size=2)
    first = hold(lab, "first", wide)
    hold(lab, "second", wide)
    block(lab, "third", slot=wide)
    lab.advance(LEASE_S / 2)
    assert lab.engine.renew(first)
    lab.advance(LEASE_S / 2)
    assert lab.engine.jobs.reap_expired() == 1
    assert lab.engine.records.delete_unused() == 0, "repair finds the slot by the place of the dead holder"
    assert lab.engine.repair() == 1
    assert lab.view("third").state is JobState.PENDING


def test_a_place_left_behind_is_deleted_even_if_no_job_can_be_promoted(lab: Lab, quick_path: Path) -> None:
    hold(lab, "first")
    block(lab, "second")
    with stranger(quick_path) as connection:
        connection.execute(f"{PLACE} ('{KEY.name}', 999, 'default', NULL, 0, 0, 0)")
        assert lab.engine.repair() == 0
        assert connection.execute("SELECT count(*) FROM holdfast_places WHERE seq = 999").fetchone() == (0,)
    assert lab.view("second").state is JobState.BLOCKED


def test_a_promotion_does_not_last_longer_because_the_clock_was_set_back(lab: Lab) -> None:
    first = hold(lab, "first")
    block(lab, "second")
    leave(lab, first)
    lab.set_back(3600)
    lab.put("third")
    assert enter(lab, lab.take("third")).outcome is EntryOutcome.ENTERED


def test_a_job_with_the_number_of_a_deleted_one_inherits_no_slot(lab: Lab, quick_path: Path) -> None:
    hold(lab, "first")
    block(lab, "second")
    assert lab.engine.cancel("second") is CancelAnswer.CANCELLED
    lab.engine.purge([JobState.CANCELLED])
    lab.advance(TOMBSTONE_S)
    lab.engine.prune()
    lab.put("third")
    with stranger(quick_path) as connection:
        assert connection.execute("SELECT seq FROM holdfast_jobs WHERE id = 'third'").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM holdfast_blocked").fetchone() == (0,)


def test_a_job_that_is_cancelled_or_rescheduled_leaves_no_row_for_promotions_to_skip(
    lab: Lab, quick_path: Path
) -> None:
    hold(lab, "first")
    block(lab, "second", "third")
    lab.engine.cancel("second")
    lab.engine.reschedule([lab.envelope("third")])
    with stranger(quick_path) as connection:
        assert connection.execute("SELECT count(*) FROM holdfast_blocked").fetchone() == (0,)


def test_rows_of_jobs_that_another_program_cancelled_are_skipped_and_deleted(lab: Lab, quick_path: Path) -> None:
    first = hold(lab, "first")
    block(lab, *(f"job{number:02}" for number in range(40)))
    with stranger(quick_path) as connection:
        connection.execute("UPDATE holdfast_jobs SET state = 6, finished_at = 1 WHERE id BETWEEN 'job00' AND 'job38'")
        leave(lab, first)
        assert connection.execute("SELECT count(*) FROM holdfast_blocked").fetchone() == (0,)
    assert [lease.id for lease in lab.claim()] == ["job39"]
    assert lab.view("job00").state is JobState.CANCELLED


def test_a_job_blocked_on_another_slot_after_a_replay_waits_for_that_one(lab: Lab) -> None:
    other = Slot(name="key:b")
    first = hold(lab, "first")
    second = hold(lab, "second", other)
    block(lab, "third")
    lab.engine.cancel("third")
    lab.engine.replay("third")
    assert enter(lab, lab.take("third"), other).outcome is EntryOutcome.BLOCKED
    assert lab.view("third").blocked_on == other.name
    leave(lab, first)
    assert lab.claim() == []
    leave(lab, second, other)
    assert [lease.id for lease in lab.claim()] == ["third"]


# Callers' and handlers' transactions.


def as_it_is(_: sqlite3.Connection) -> None:
    """Read rows and texts as the driver does."""


def with_bytes(connection: sqlite3.Connection) -> None:
    """Read rows and texts as neither the engine nor the driver does by default."""
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes


@pytest.mark.parametrize("prepare", [as_it_is, with_bytes])
def test_a_key_belongs_to_the_job_of_a_transaction_that_commits(
    lab: Lab, quick_path: Path, prepare: Callable[[sqlite3.Connection], None]
) -> None:
    lab.engine.create_schema()
    answers: list[tuple[str, bool]] = []
    other = threading.Thread(target=lambda: answers.extend(accept(lab, unique(lab, "theirs"))), daemon=True)
    with closing(sqlite3.connect(quick_path, isolation_level=None)) as connection:
        prepare(connection)
        connection.execute("BEGIN IMMEDIATE")
        [ours] = lab.engine.accept([unique(lab, "ours")], tx=connection)
        [again] = lab.engine.accept([unique(lab, "again")], tx=connection)
        assert [(ours.id, ours.created), (again.id, again.created)] == [("ours", True), ("ours", False)]
        other.start()
        assert lab.engine.claim("idle", 1, owner_token=new_owner_token()) == []
        connection.execute("COMMIT")
    other.join(30)
    assert answers == [("ours", False)]


def test_a_key_is_free_if_the_transaction_is_rolled_back(lab: Lab, quick_path: Path) -> None:
    lab.engine.create_schema()
    with closing(sqlite3.connect(quick_path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert lab.engine.accept([unique(lab, "ours")], tx=connection)[0].created
        connection.execute("ROLLBACK")
    assert accept(lab, unique(lab, "theirs")) == [("theirs", True)]


def test_a_conflict_of_keys_leaves_the_rest_of_the_transaction_alone(lab: Lab, quick_path: Path) -> None:
    accept(lab, unique(lab, "there"))
    with closing(sqlite3.connect(quick_path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        lab.engine.accept([lab.envelope("before")], tx=connection)
        with pytest.raises(UniqueConflict):
            lab.engine.accept(
                [unique(lab, "free", key="z"), unique(lab, "b", on_conflict=OnConflict.REJECT)], tx=connection
            )
        connection.execute("COMMIT")
    assert sorted(lab.ids()) == ["before", "there"]
    assert accept(lab, unique(lab, "c", key="z")) == [("c", True)]


@pytest.mark.parametrize(("end", "queue"), [("COMMIT", "mail"), ("ROLLBACK", "default")])
def test_a_job_is_rescheduled_when_the_callers_transaction_commits(
    lab: Lab, quick_path: Path, end: str, queue: str
) -> None:
    lab.put("a")
    with closing(sqlite3.connect(quick_path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        new = [lab.envelope(id, queue="mail") for id in ("a", "unknown")]
        assert lab.engine.reschedule(new, tx=connection) == [True, False]
        connection.execute(end)
    assert lab.view("a").queue == queue


def test_a_handler_may_read_rows_and_texts_as_it_likes(lab: Lab) -> None:
    lease = hold(lab, "first")
    block(lab, "second")
    transaction = lab.engine.transaction("first", lease.delivery)
    with_bytes(transaction.connection)
    transaction.complete(lab.record(), leaves=(KEY.name,), enqueues=(unique(lab, "third"), unique(lab, "fourth")))
    assert enter(lab, lab.take("second")).outcome is EntryOutcome.ENTERED
    assert [lease.id for lease in lab.claim()] == ["third"]


# Damaged rows.


def test_a_blocked_job_with_a_damaged_record_is_dead_lettered_and_the_next_one_promoted(
    lab: Lab, quick_path: Path
) -> None:
    first = hold(lab, "first")
    block(lab, "second", "third")
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_jobs SET attempts = 'many' WHERE id = 'second'")
    leave(lab, first)
    assert [lease.id for lease in lab.claim()] == ["third"]
    assert lab.view("second").state is JobState.DEAD


def test_a_job_whose_record_was_damaged_while_it_ran_does_not_stop_the_entry_of_others(
    lab: Lab, quick_path: Path
) -> None:
    hold(lab, "first")
    lab.put("second", "third")
    second, third = lab.claim()
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_jobs SET attempts = 'many' WHERE id = 'second'")
    assert enter(lab, second).outcome is EntryOutcome.BLOCKED
    assert enter(lab, third).outcome is EntryOutcome.BLOCKED
    assert (lab.view("second").state, lab.view("third").state) == (JobState.DEAD, JobState.BLOCKED)


def test_a_damaged_record_can_be_rescheduled(lab: Lab, quick_path: Path) -> None:
    lab.put("a")
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_jobs SET attempts = 'many' WHERE id = 'a'")
    assert lab.engine.reschedule([lab.envelope("a", queue="mail")]) == [True]
    assert enter(lab, lab.take("a", queue="mail")).outcome is EntryOutcome.ENTERED


def _values() -> Iterator[tuple[str, str, Any]]:
    """Tables, columns and values that no engine writes there."""
    wrong: dict[str, tuple[object, ...]] = {
        "TEXT": (None, 5, b"\xff\xfe"),
        "INTEGER": (None, "x", 0.5, b"\xff", LARGEST, -LARGEST),
    }
    columns = {
        "places": {"queue": "TEXT", "fence": "INTEGER", "since": "INTEGER", "until": "INTEGER"},
        "slots": {"fence": "INTEGER", "size": "INTEGER", "closed_until": "INTEGER"},
        "blocked": {
            **dict.fromkeys(("slot", "queue", "id"), "TEXT"),
            **dict.fromkeys(("lane", "due_at", "size", "since"), "INTEGER"),
        },
        "uniques": {"id": "TEXT", "until": "INTEGER"},
    }
    for table, kinds in columns.items():
        for column, kind in kinds.items():
            # A size is an operator's decision: nothing enters a slot without places, or one that is closed.
            closing = {("size", -LARGEST), ("closed_until", LARGEST)}
            values = [one for one in wrong[kind] if (column, one) not in closing]
            yield from ((table, column, value) for value in values)
    yield "places", "owner_token", "x"
    yield "places", "owner_token", None


@pytest.mark.parametrize(("table", "column", "value"), list(_values()))
def test_a_damaged_row_does_not_stop_the_others(
    lab: Lab, quick_path: Path, table: str, column: str, value: object
) -> None:
    first = hold(lab, "first")
    block(lab, "second")
    accept(lab, unique(lab, "unique", delay=3600))
    with closing(SqliteStore(quick_path)) as store:
        store.execute(f"UPDATE holdfast_{table} SET {column} = ?", value)
    block_or_enter(lab, "third")
    everything_goes_on(lab)
    leave(lab, first)
    everything_goes_on(lab)
    while leases := lab.claim(1):
        if enter(lab, leases[0]).outcome is EntryOutcome.ENTERED:
            leave(lab, leases[0])
        lab.advance(PROMOTION_S)
        lab.engine.repair()
    assert lab.view("third").state is JobState.COMPLETED


def block_or_enter(lab: Lab, id: str) -> None:
    """Store a job and let it ask for the slot."""
    lab.put(id)
    lease = lab.take(id)
    if enter(lab, lease).outcome is EntryOutcome.ENTERED:
        leave(lab, lease)


def everything_goes_on(lab: Lab) -> None:
    """Every verb that reads the damaged rows returns."""
    for scope in UniqueScope:
        accept(lab, unique(lab, "another", scope=scope, period=60, delay=3600))
    lab.everything()
    lab.engine.counts()
    lab.ids(JobFilter(states=(JobState.BLOCKED,)))
    lab.engine.repair()
    lab.engine.prune()


@pytest.mark.parametrize("until", [LARGEST, -LARGEST, "x", None])
def test_a_place_of_a_job_that_does_not_exist_is_free(lab: Lab, quick_path: Path, until: object) -> None:
    lab.engine.create_schema()
    with closing(SqliteStore(quick_path)) as store:
        for number, token in enumerate([None, b"\xff", "x"]):
            store.execute(f"{PLACE} (?, ?, 'default', ?, 0, 0, ?)", KEY.name, 999 + number, token, until)
    assert lab.engine.slots() == []
    hold(lab, "first")
    assert lab.engine.records.delete_unused() == 3


def test_a_text_that_is_not_utf8_does_not_stop_the_others(lab: Lab, quick_path: Path) -> None:
    first = hold(lab, "first")
    block(lab, "second")
    with closing(SqliteStore(quick_path)) as store:
        store.execute("UPDATE holdfast_blocked SET queue = CAST(? AS TEXT), id = CAST(? AS TEXT)", b"\xff", b"\xff")
        store.execute("UPDATE holdfast_places SET queue = CAST(? AS TEXT)", b"\xff")
    block(lab, "third")
    everything_goes_on(lab)
    leave(lab, first)
    assert [lease.id for lease in lab.claim()] == ["third"]


def test_a_slot_that_an_operator_has_closed_lets_no_job_enter(lab: Lab, quick_path: Path) -> None:
    leave(lab, hold(lab, "first"))
    with stranger(quick_path) as connection:
        connection.execute("UPDATE holdfast_slots SET size = 0")
        block(lab, "second")
        assert lab.engine.repair() == 0
        connection.execute("UPDATE holdfast_slots SET size = NULL")
    assert lab.engine.repair() == 1


def test_slots_and_keys_have_the_prefix_of_their_tables(quick_path: Path) -> None:
    with opened(quick_path, prefix="shop_") as engine:
        assert (engine.repair(), engine.slots(), engine.records.delete_unused()) == (0, [], 0)
