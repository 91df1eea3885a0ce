"""What can be done to an SQLite file. Its tables are strict; a file that was damaged, or restored from a dump, may not
have been, so what they refuse is written while they are not.
"""

import re
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .cases import BAD, FACTS, LARGEST, NOT_UTF8, OTHER_QUEUE, QUEUE, Case, Fate, Stage, beside, case, do
from .sql_cases import COUNTERS, SqlStore, attempt, job, output, pause, progress, sql_cases, worker

NUMBERS = (*COUNTERS, "due_at", "accepted_at", "priority", "state", "ignore_expiry", "expired")
TEXTS = ("id", "queue", "job")
LEASE = ("lease_until", "lease_us", "claimed_at")
TOLD = ("outcome", "error_type", "error_message", "traceback", "output", "note")
# What SQLite takes for a text that is not UTF-8 is a text all the same.
_AS_TEXT = "CAST(? AS TEXT)"
_NOT_NULL = re.compile("(?<!IS )NOT NULL")


class SqliteStore(SqlStore):
    """A file of its own for each case, made from a template."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA ignore_check_constraints = ON")

    def table(self, name: str) -> str:
        return f"holdfast_{name}"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.IntegrityError:
            with self._loosened():
                return self._connection.execute(statement, values).fetchall()

    def as_text(self, table: str, column: str, value: bytes) -> None:
        """Write bytes as a text of the bad job's row."""
        self.execute(f"UPDATE {self.table(table)} SET {column} = {_AS_TEXT} WHERE seq = ?", value, self.bad)

    def message(self, wire: object) -> None:
        self.update("messages", wire=wire)

    def as_texts(self, table: str, **columns: bytes) -> None:
        """Insert a row of texts that are bytes."""
        names, marks = ", ".join(columns), ", ".join(_AS_TEXT for _ in columns)
        self.execute(f"INSERT INTO {self.table(table)} ({names}) VALUES ({marks})", *columns.values())

    def renumber(self, seq: int) -> None:
        self.update("messages", seq=seq)
        self.update("jobs", seq=seq)
        self.bad = seq

    def clear(self) -> None:
        raise NotImplementedError("each case has a file of its own")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _loosened(self) -> Generator[None]:
        """Tables that take any value while the block runs."""
        schema = self._connection.execute("SELECT sql, name FROM sqlite_schema WHERE type = 'table'").fetchall()
        self._rewrite(
            [
                (_NOT_NULL.sub("", sql).replace(") STRICT, WITHOUT", ") WITHOUT").replace(") STRICT", ")"), name)
                for sql, name in schema
                if sql
            ]
        )
        try:
            yield
        finally:
            self._rewrite(schema)

    def _rewrite(self, schema: list[tuple[str, str]]) -> None:
        ((version,),) = self._connection.execute("PRAGMA schema_version").fetchall()
        self._connection.execute("PRAGMA writable_schema = ON")
        self._connection.executemany("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", schema)
        self._connection.execute(f"PRAGMA schema_version = {version + 1}")
        self._connection.execute("PRAGMA writable_schema = OFF")


def _not_utf8(column: str, stage: Stage = Stage.WAITING, fate: Fate = Fate.ENDS) -> Case:
    damage = do("as_text", "jobs", column, NOT_UTF8)
    return case(f"{column} is not UTF-8", stage, fate, damage, with_worker=column == "id")


def _texts() -> Iterable[Case]:
    yield _not_utf8("id")
    yield _not_utf8("queue", fate=Fate.STAYS)
    yield _not_utf8("job")
    yield _not_utf8("trace_id")
    yield _not_utf8("last_error", Stage.DEAD, Fate.STAYS)
    yield _not_utf8("dead_reason", Stage.DEAD, Fate.STAYS)
    yield _not_utf8("cancel_request", Stage.LEASED, Fate.STAYS)
    for column in TOLD:
        damage = do("as_text", "attempts", column, NOT_UTF8)
        yield case(f"attempt {column} is not UTF-8", Stage.DEAD, Fate.STAYS, damage)
    yield beside("pause queue is not UTF-8", do("as_texts", "pauses", queue=NOT_UTF8, reason=NOT_UTF8, since=b"1"))
    for kind in FACTS:
        damage = do("as_texts", "cells", kind=kind.encode(), key=NOT_UTF8, value=b"", version=b"1")
        yield beside(f"cell of {kind}: key is not UTF-8", damage)


def _types() -> Iterable[Case]:
    """Values of a type that does not belong there."""
    for column in TEXTS:
        yield job(f"{column} is a blob", Stage.WAITING, Fate.STAYS, **{column: NOT_UTF8})
    for column in NUMBERS:
        yield job(f"{column} is a text", Stage.FAILED, Fate.STAYS, **{column: "many"})
        yield job(f"{column} is a fraction", Stage.FAILED, Fate.STAYS, **{column: 0.5})
    for column in COUNTERS:
        yield job(f"{column} is a blob", Stage.FAILED, Fate.STAYS, **{column: b"many"})
    for column in (*NUMBERS, *TEXTS):
        yield job(f"{column} missing", Stage.FAILED, Fate.STAYS, **{column: None})
    for column in LEASE:
        yield job(f"{column} is a text", Stage.LEASED, Fate.STAYS, **{column: "soon"})
        yield job(f"{column} missing", Stage.LEASED, Fate.STAYS, **{column: None})
    yield job("finished_at is a text", Stage.DEAD, Fate.STAYS, finished_at="late")
    yield job("finished_at missing", Stage.DEAD, Fate.STAYS, finished_at=None)
    yield job("last_error is a blob", Stage.DEAD, Fate.STAYS, last_error=NOT_UTF8)
    yield attempt("started_at is a text", started_at="early")
    yield attempt("delivery is a text", delivery="first")
    yield attempt("output is a blob", output=NOT_UTF8)
    yield case("result is a text", Stage.DONE, Fate.STAYS, do("update", "attempts", result="5"))
    yield progress("done is a text", done="half")
    yield progress("message missing", message=None)
    yield progress("at is a text", at="now")
    yield output("start is a text", start="a")
    yield output("missing", text=None)
    yield pause("since is a text", since="long")
    yield pause("queue is a blob", queue=NOT_UTF8)
    for name, value in {"missing": None, "a text": "x", "a number": 5}.items():
        yield worker(f"value {name}", value=value)
    for column in ("key", "version", "expires_at"):
        yield worker(f"{column} is a blob", **{column: NOT_UTF8})
        yield worker(f"{column} is a text", **{column: "x"})
        yield worker(f"{column} missing", **{column: None})


def _contents() -> Iterable[Case]:
    yield case("message missing", Stage.WAITING, Fate.DIES, do("delete", "messages"), with_worker=True)
    yield case("message missing of a dead letter", Stage.DEAD, Fate.STAYS, do("delete", "messages"))
    for name, wire in {"null": None, "a text": "text", "a number": 5}.items():
        yield case(f"message is {name}", Stage.WAITING, Fate.DIES, do("message", wire))
    yield case("number largest", Stage.WAITING, Fate.ENDS, do("renumber", LARGEST))
    yield case("number negative", Stage.WAITING, Fate.ENDS, do("renumber", -1))


def _slots() -> Iterable[Case]:
    """Rows of slots and unique keys that belong to no job, or to one that has not entered."""
    place = {"slot": "key:bad", "queue": OTHER_QUEUE, "fence": 0, "since": 1, "until": LARGEST}
    yield beside("place of no job", do("insert", "places", seq=LARGEST, **place))
    yield beside("place of another claim", do("add", "places", owner_token=NOT_UTF8, **place))
    for column in ("queue", "fence", "since", "until"):
        yield beside(f"place {column} is a blob", do("add", "places", **{**place, column: NOT_UTF8}))
        yield beside(f"place {column} missing", do("add", "places", **{**place, column: None}))
    waiter = {"slot": "key:bad", "queue": QUEUE, "lane": 4, "due_at": 1, "id": BAD, "size": 1, "since": 1}
    yield beside("blocked row of a job that is not blocked", do("add", "blocked", **waiter))
    yield beside("blocked row of no job", do("insert", "blocked", seq=LARGEST, **waiter))
    for column in waiter:
        yield beside(f"blocked {column} is a blob", do("add", "blocked", **{**waiter, column: NOT_UTF8}))
        yield beside(f"blocked {column} missing", do("add", "blocked", **{**waiter, column: None}))
    blocked = job("blocked without a slot", Stage.WAITING, Fate.STAYS, state=3)
    yield blocked
    yield blocked._replace(name="blocked on no slot", damage=(*blocked.damage, do("add", "blocked", **waiter)))
    for name, fence in {"largest": LARGEST, "a text": "x", "missing": None}.items():
        yield beside(f"slot fence {name}", do("insert", "slots", name="key:bad", fence=fence))
    for name, until in {"largest": LARGEST, "a text": "x", "missing": None}.items():
        yield beside(f"unique key until {name}", do("insert", "uniques", key="k", id=BAD, until=until))
    yield beside("unique key of a blob", do("insert", "uniques", key="k", id=NOT_UTF8, until=0))


def _edges() -> Iterable[Case]:
    """Rows of edges and notes that do not belong to a job, or belong to a job that does not wait."""
    edge = {"parent": 1, "child": 1, "policy": 0, "outcome": 0}
    yield beside("note on no job", do("insert", "notes", parent=LARGEST))
    for column, values in {"parent": (LARGEST, NOT_UTF8), "child": (LARGEST, NOT_UTF8), "outcome": (2, 9)}.items():
        for value in values:
            damage = do("insert", "edges", **{**edge, column: value}), do("insert", "notes", parent=1)
            yield beside(f"edge {column} is {value!r}", *damage)
    for column in ("policy", "outcome"):
        for name, value in {"a text": "x", "missing": None, "a blob": NOT_UTF8}.items():
            damage = do("insert", "edges", **{**edge, column: value}), do("insert", "notes", parent=1)
            yield beside(f"edge {column} is {name}", *damage)


FRACTIONS = {"negative": -1.0, "infinite": float("inf"), "huge": 1e308}
CASES = [*sql_cases(LARGEST, FRACTIONS), *_texts(), *_types(), *_contents(), *_slots(), *_edges()]
IMPOSSIBLE = {"progress done not a number": "SQLite stores NaN as NULL"}
