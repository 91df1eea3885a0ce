"""What can be done to the tables of a MySQL or MariaDB database."""

from collections.abc import Iterable
from typing import Any

import pymysql

from .cases import FACTS, LARGEST, NOT_UTF8, OTHER_QUEUE, TIMES, Case, Fate, Stage, beside, case, do
from .sql_cases import SqlStore, cell, job, pause, sql_cases

TABLES = (
    *("jobs", "attempts", "progress", "live_output", "pauses", "cells", "buckets"),
    *("slots", "places", "blocked", "uniques", "edges", "notes"),
)
# What the index is sorted by follows from these, by the stage a job is in.
SINCE = ("due_at", "finished_at")


class MysqlStore(SqlStore):
    """One set of tables for all cases, emptied before each."""

    def __init__(self, connection: "pymysql.Connection[pymysql.cursors.Cursor]", prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    def table(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), values)
            return list(cursor.fetchall())

    def job(self, **columns: Any) -> None:
        since = [value for name, value in columns.items() if name in SINCE]
        self.update("jobs", **columns, **({"since": since[0]} if since else {}))

    def insert(self, table: str, **columns: Any) -> None:
        # In SQL, `key` is a word of its own.
        super().insert(table, **{"name" if name == "key" else name: value for name, value in columns.items()})

    def edge(self, parent: int | None = None, child: int | None = None, **columns: Any) -> None:
        """Insert an edge and a note on its parent; the bad job is at each end that is not given."""
        ends = {"parent": self.bad if parent is None else parent, "child": self.bad if child is None else child}
        self.insert("edges", **ends, **{"policy": 0, **columns})
        self.insert("notes", parent=ends["parent"])

    def message(self, wire: bytes) -> None:
        self.update("jobs", wire=wire)

    def clear(self) -> None:
        for name in TABLES:
            self.execute(f"DELETE FROM {self.table(name)}")

    def close(self) -> None:
        self._connection.close()


LARGEST_COUNT = 2**31 - 1


def _own_cases() -> Iterable[Case]:
    yield case("id is not UTF-8", Stage.WAITING, Fate.ENDS, do("job", id=NOT_UTF8), with_worker=True)
    yield job("id is not UTF-8 of a dead letter", Stage.DEAD, Fate.STAYS, id=NOT_UTF8)
    yield job("queue is not UTF-8", Stage.WAITING, Fate.STAYS, queue=NOT_UTF8)
    yield job("queue is not UTF-8 of a dead letter", Stage.DEAD, Fate.STAYS, queue=NOT_UTF8)
    yield pause("queue is not UTF-8", queue=NOT_UTF8)
    for kind in FACTS:
        yield cell("key is not UTF-8", kind, key=NOT_UTF8)
    yield job("owner_token of zeros", Stage.LEASED, Fate.STAYS, owner_token=b"")
    yield job("lane unknown", Stage.WAITING, Fate.STAYS, lane=120)
    yield job("mark of another queue", Stage.WAITING, Fate.STAYS, mark=OTHER_QUEUE.encode())
    yield from _slots()
    most = do("job", deliveries=LARGEST_COUNT)
    yield case("deliveries largest at first", Stage.WAITING, Fate.ENDS, most, with_worker=True)


def _slots() -> Iterable[Case]:
    """Rows of slots and keys that no program wrote, and a blocked job without its row."""
    place = {"slot": "key:a", "seq": 1, "queue": "default", "fence": 1, "since": 1, "until": 1}
    wait = {"slot": "key:a", "seq": 1, "queue": "default", "lane": 4, "due_at": 1, "id": "x", "size": 1, "since": 1}
    for name, value in TIMES.items():
        yield beside(f"place since {name}", do("insert", "places", **{**place, "since": value}))
        yield beside(f"place until {name}", do("insert", "places", **{**place, "until": value}))
        yield beside(f"place fence {name}", do("insert", "places", **{**place, "fence": value}))
        yield beside(f"slot fence {name}", do("insert", "slots", name="key:a", fence=value))
        yield beside(f"blocked since {name}", do("insert", "blocked", **{**wait, "since": value}))
        yield beside(f"blocked due_at {name}", do("insert", "blocked", **{**wait, "due_at": value}))
        yield beside(f"unique until {name}", do("insert", "uniques", key="k", id="x", until=value))
    for column in ("slot", "queue", "id"):
        yield beside(f"blocked {column} is not UTF-8", do("insert", "blocked", **{**wait, column: NOT_UTF8}))
    for column in ("slot", "queue"):
        yield beside(f"place {column} is not UTF-8", do("insert", "places", **{**place, column: NOT_UTF8}))
    yield beside("place of an unknown job", do("insert", "places", **{**place, "owner_token": bytes(16)}))
    yield beside("blocked lane unknown", do("insert", "blocked", **{**wait, "lane": -128}))
    yield beside("slot name is not UTF-8", do("insert", "slots", name=NOT_UTF8, fence=1))
    yield beside("unique key is not UTF-8", do("insert", "uniques", key=NOT_UTF8, id=NOT_UTF8, until=1))
    yield job("blocked on nothing", Stage.WAITING, Fate.STAYS, state=3, lane=11, mark=b"")


def _edges() -> Iterable[Case]:
    """Rows of edges that no process wrote."""
    blocked = do("job", state=3, lane=11, mark=b"")
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
    yield beside("note on no job", do("insert", "notes", id=-1, parent=LARGEST))


CASES = [*sql_cases(LARGEST_COUNT, {"negative": -1.0, "huge": 1.7e308}), *_own_cases(), *_edges()]
REFUSED = frozenset(
    (
        *("state -1", "state -1 of a dead letter", "state 9", "state 9 of a dead letter", "lane unknown"),
        *("edge outcome 9", "edge policy 9"),
    )
)
IMPOSSIBLE = {
    "number largest": "it exhausts the counter of the table, which only ALTER TABLE sets back",
    "message missing": "the message is a column of the record, and NOT NULL",
    "deliveries is a text": "MySQL refuses a text in a column of numbers",
    "deliveries missing": "the column is NOT NULL",
    "progress done not a number": "MySQL has no NaN",
}
