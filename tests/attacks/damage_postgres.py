"""What can be done to the tables of a PostgreSQL database."""

from collections.abc import Iterable
from typing import Any

import psycopg

from .cases import BAD, LARGEST, NOT_UTF8, QUEUE, TIMES, Case, Fate, Stage, beside, case, do
from .sql_cases import COUNTERS, SqlStore, job, progress, sql_cases

COLUMNS = {
    "jobs": {"accepted_at", "due_at", "priority", "id", "queue", "job", "trace_id", "wire"},
    "open_jobs": {
        *("due_at", "claimed_at", "lease_us", "lease_until", "priority", "state", "ignore_expiry", "id", "queue"),
        *("owner_token", "cancel_request", "last_error", *COUNTERS),
    },
    "ended_jobs": {
        *("finished_at", "due_at", "started_at", "ended_at", "state", "expired", "ignore_expiry", "queue"),
        *("cancel_reason", "dead_reason", "last_error", *COUNTERS),
    },
}
TABLES = (
    *(*COLUMNS, "attempts", "progress", "live_output", "pauses", "cells", "buckets"),
    *("slots", "places", "blocked", "uniques", "edges", "notes"),
)


class PostgresStore(SqlStore):
    """One namespace for all cases, emptied before each."""

    def __init__(self, url: str, namespace: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._namespace = namespace

    def table(self, name: str) -> str:
        return f"{self._namespace}.{name}"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), values)
        return cursor.fetchall() if cursor.description else []

    def job(self, **columns: Any) -> None:
        for table, known in COLUMNS.items():
            if here := {name: value for name, value in columns.items() if name in known}:
                self.update(table, **here)

    def edge(self, parent: int | None = None, child: int | None = None, **columns: Any) -> None:
        """Insert an edge and a note on its parent; the bad job is at each end that is not given."""
        ends = {"parent": self.bad if parent is None else parent, "child": self.bad if child is None else child}
        self.insert("edges", **ends, **{"policy": 0, **columns})
        self.insert("notes", parent=ends["parent"])

    def message(self, wire: bytes) -> None:
        self.update("jobs", wire=wire)

    def end(self) -> None:
        """Let the bad job be over, without taking it from those that are not."""
        counts = dict.fromkeys(COUNTERS, 1)
        self.add("ended_jobs", finished_at=1, due_at=1, state=5, ignore_expiry=False, queue=QUEUE, **counts)

    def still_has_it(self) -> bool:
        return any(self.execute(f"SELECT 1 FROM {self.table(name)} WHERE seq = ?", self.bad) for name in COLUMNS)

    def clear(self) -> None:
        for name in TABLES:
            self.execute(f"DELETE FROM {self.table(name)}")

    def close(self) -> None:
        self._connection.close()


LARGEST_COUNT = 2**31 - 1
LEASE = ("lease_until", "lease_us", "claimed_at")


def _own_cases() -> Iterable[Case]:
    gone = do("delete", "jobs")
    yield case("message missing", Stage.WAITING, Fate.STAYS, gone, with_worker=True)
    yield case("message missing of a job that failed", Stage.FAILED, Fate.STAYS, gone)
    yield case("message missing in an expired lease", Stage.LEASED, Fate.STAYS, gone, do("job", lease_until=1))
    yield case("message missing of a dead letter", Stage.DEAD, Fate.STAYS, gone)
    yield case("neither open nor ended", Stage.WAITING, Fate.STAYS, do("delete", "open_jobs"))
    yield case("open and ended", Stage.WAITING, Fate.STAYS, do("end"))
    for column in LEASE:
        yield job(f"{column} missing", Stage.LEASED, Fate.STAYS, **{column: None})
    yield job("priority 12", Stage.WAITING, Fate.STAYS, priority=12)
    yield progress("done not a number", done=float("nan"))
    yield progress("total not a number", total=float("nan"))
    yield case("output is not UTF-8", Stage.DEAD, Fate.STAYS, do("update", "attempts", output=NOT_UTF8))
    most = do("job", deliveries=LARGEST_COUNT)
    yield case("deliveries largest at first", Stage.WAITING, Fate.ENDS, most, with_worker=True)


def _slot_cases() -> Iterable[Case]:
    """Rows of slots and unique keys that no process wrote."""
    place = {"slot": "key:a", "queue": QUEUE, "fence": 1}
    waiter = {"slot": "key:a", "queue": QUEUE, "lane": 0, "due_at": 1, "id": BAD, "size": 1}
    for name, value in TIMES.items():
        yield beside(f"slot fence {name}", do("insert", "slots", name="key:a", fence=value))
        yield beside(f"place since {name}", do("insert", "places", **place, seq=-1, since=value, owner_token=b"x"))
        yield beside(f"promotion until {name}", do("insert", "places", **place, seq=-1, since=1, until=value))
        yield beside(f"blocked since {name}", do("insert", "blocked", **waiter, seq=-1, since=value))
        yield beside(f"unique key until {name}", do("insert", "uniques", key="k", id="unknown", until=value))
    yield beside("promotion without an end", do("insert", "places", **place, seq=-1, since=1))
    yield beside("blocked row of a job that is not blocked", do("add", "blocked", **waiter, since=1))
    yield case("blocked without a slot", Stage.WAITING, Fate.STAYS, do("job", state=3))
    yield case("promotion of a running job", Stage.LEASED, Fate.STAYS, do("add", "places", **place, since=1))


def _edge_cases() -> Iterable[Case]:
    """Rows of edges that no process wrote."""
    blocked = do("job", state=3)
    for name, number in {"unknown": -1, "largest": LARGEST}.items():
        yield beside(f"edge between jobs, {name}", do("edge", parent=number, child=number))
        yield beside(f"edge of a job that waits, parent {name}", do("edge", parent=number))
        yield beside(f"edge of a job that waits, child {name}", do("edge", child=number))
        yield case(
            f"edge of a blocked job, parent {name}", Stage.WAITING, Fate.STAYS, blocked, do("edge", parent=number)
        )
    yield beside("edge of a job that waits for itself", do("edge"))
    yield case("edge of a blocked job with itself", Stage.WAITING, Fate.STAYS, blocked, do("edge"))
    yield case("edge of a dead letter with itself", Stage.DEAD, Fate.STAYS, do("edge", policy=1))
    yield case("edge of a running job with itself", Stage.LEASED, Fate.STAYS, do("edge", outcome=2))
    yield case("edge outcome 9", Stage.WAITING, Fate.ENDS, do("edge", parent=-1, outcome=9))
    yield case("edge policy 9", Stage.WAITING, Fate.ENDS, do("edge", parent=-1, policy=9))


FRACTIONS = {"negative": -1.0, "infinite": float("inf"), "huge": 1e308}
CASES = [*sql_cases(LARGEST_COUNT, FRACTIONS), *_own_cases(), *_slot_cases(), *_edge_cases()]
REFUSED = frozenset(
    (
        "state -1",
        "state -1 of a dead letter",
        "state 9",
        "state 9 of a dead letter",
        "lease_until missing",
        "priority 12",
        "edge outcome 9",
        "edge policy 9",
    )
)
IMPOSSIBLE = {
    "id is not UTF-8": "PostgreSQL refuses text that is not UTF-8",
    "deliveries is a text": "PostgreSQL refuses a text in a column of numbers",
    "deliveries missing": "the column is NOT NULL",
    "number largest": "numbers come from a sequence, which no record moves",
}
