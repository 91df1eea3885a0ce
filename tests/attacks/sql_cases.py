"""The damage that every engine with tables can suffer, and `SqlStore`, which does it past the engine."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.state.workers import ORDERS, WORKERS

from .cases import (
    BAD,
    FACTS,
    FUTURE,
    LARGEST,
    MESSAGES,
    NOT_UTF8,
    OTHER_QUEUE,
    PAST,
    REPORTS,
    RESULTS,
    TIMES,
    Case,
    Fate,
    Stage,
    beside,
    case,
    do,
    report,
)

COUNTERS = ("deliveries", "attempts", "crashes")


class SqlStore(ABC):
    """The tables, written by hand."""

    bad: int
    """The number of the bad job."""

    def find_bad(self) -> None:
        ((self.bad,),) = self.execute(f"SELECT seq FROM {self.table('jobs')} WHERE id = ?", BAD)

    @abstractmethod
    def table(self, name: str) -> str:
        """The full name of a table."""

    @abstractmethod
    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for values; what it answers."""

    @abstractmethod
    def clear(self) -> None:
        """Empty every table."""

    @abstractmethod
    def close(self) -> None: ...

    def job(self, **columns: Any) -> None:
        """Change columns of the bad job's record, wherever they are."""
        self.update("jobs", **columns)

    def update(self, table: str, **columns: Any) -> None:
        """Change columns of the bad job's row in a table."""
        words = ", ".join(f"{name} = ?" for name in columns)
        self.execute(f"UPDATE {self.table(table)} SET {words} WHERE seq = ?", *columns.values(), self.bad)

    def insert(self, table: str, **columns: Any) -> None:
        names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
        self.execute(f"INSERT INTO {self.table(table)} ({names}) VALUES ({marks})", *columns.values())

    def add(self, table: str, **columns: Any) -> None:
        """Insert a row that belongs to the bad job."""
        self.insert(table, seq=self.bad, **columns)

    def delete(self, table: str) -> None:
        """Delete the bad job's row in a table."""
        self.execute(f"DELETE FROM {self.table(table)} WHERE seq = ?", self.bad)

    @abstractmethod
    def message(self, wire: bytes) -> None:
        """Give the bad job this message."""

    def still_has_it(self) -> bool:
        """Whether the bad job was not deleted."""
        return bool(self.execute(f"SELECT 1 FROM {self.table('jobs')} WHERE seq = ?", self.bad))


def job(name: str, stage: Stage, fate: Fate, /, **columns: Any) -> Case:
    """Columns of the record are changed."""
    return case(name, stage, fate, do("job", **columns))


def attempt(name: str, **columns: Any) -> Case:
    """Columns of the first attempt of a dead letter are changed."""
    return case(f"attempt {name}", Stage.DEAD, Fate.STAYS, do("update", "attempts", **columns))


def progress(name: str, **columns: Any) -> Case:
    """A job that failed has reported this progress."""
    row = {"delivery": 1, "done": 1, "message": "", "at": 1, **columns}
    return case(f"progress {name}", Stage.FAILED, Fate.ENDS, do("add", "progress", **row))


def output(name: str, **columns: Any) -> Case:
    """A running job has printed this."""
    row = {"delivery": 1, "start": 0, "text": "x", **columns}
    return case(f"live output {name}", Stage.LEASED, Fate.STAYS, do("add", "live_output", **row))


def pause(name: str, **columns: Any) -> Case:
    """Another queue is paused."""
    row = {"queue": OTHER_QUEUE, "reason": "", "since": 1, **columns}
    return beside(f"pause {name}", do("insert", "pauses", **row))


def cell(name: str, kind: str, **columns: Any) -> Case:
    """Processes share a value that none of them wrote."""
    row = {"kind": kind, "key": "w-bad", "value": b"", "version": 1, "expires_at": LARGEST, **columns}
    return beside(f"cell of {kind}: {name}", do("insert", "cells", **row))


def worker(name: str, **columns: Any) -> Case:
    """A worker is registered next to a healthy one."""
    return cell(name, WORKERS, **{"value": report(), **columns})


def counters(largest: int) -> Iterable[Case]:
    for counter in COUNTERS:
        for name, value in {"largest": largest, "negative": -1}.items():
            count = {counter: value}
            yield job(f"{counter} {name}", Stage.FAILED, Fate.ENDS, **count)
            yield job(f"{counter} {name} in an expired lease", Stage.LEASED, Fate.ENDS, lease_until=1, **count)
            yield job(f"{counter} {name} of a dead letter", Stage.DEAD, Fate.STAYS, **count)
    failing = job("attempts largest of a job that fails", Stage.FAILED, Fate.ENDS, attempts=largest)
    yield failing._replace(handler="fail")


def times() -> Iterable[Case]:
    for name, value in TIMES.items():
        yield job(f"accepted_at {name}", Stage.WAITING, Fate.ENDS, accepted_at=value)
        yield job(f"claimed_at {name}", Stage.LEASED, Fate.STAYS, claimed_at=value)
        yield job(f"claimed_at {name} in an expired lease", Stage.LEASED, Fate.ENDS, claimed_at=value, lease_until=1)
        yield job(f"lease_us {name}", Stage.LEASED, Fate.STAYS, lease_us=value)
        yield job(f"finished_at {name}", Stage.DEAD, Fate.STAYS, finished_at=value)
        yield attempt(f"started_at {name}", started_at=value)
        yield attempt(f"ended_at {name}", ended_at=value)
        yield pause(f"since {name}", since=value)
        yield worker(f"version {name}", version=value)
        yield worker(f"expires_at {name}", expires_at=value)
        yield beside(f"bucket full_at {name}", do("insert", "buckets", name="rate", full_at=value))
        yield progress(f"at {name}", at=value)
    for name, value in PAST.items():
        yield job(f"due_at {name}", Stage.WAITING, Fate.ENDS, due_at=value)
        yield job(f"lease_until {name}", Stage.LEASED, Fate.ENDS, lease_until=value)
    for name, value in FUTURE.items():
        yield job(f"due_at {name}", Stage.WAITING, Fate.STAYS, due_at=value)
        yield job(f"lease_until {name}", Stage.LEASED, Fate.STAYS, lease_until=value)
        yield job(f"finished_at {name} of a completed job", Stage.DONE, Fate.STAYS, finished_at=value)


def codes() -> Iterable[Case]:
    for state in (9, -1):
        yield job(f"state {state}", Stage.WAITING, Fate.STAYS, state=state)
        yield job(f"state {state} of a dead letter", Stage.DEAD, Fate.STAYS, state=state)
    yield job("dead reason unknown", Stage.DEAD, Fate.STAYS, dead_reason="gone-fishing")
    yield attempt("outcome unknown", outcome="exploded")
    yield attempt("outcome empty", outcome="")
    yield attempt("verdict unknown", verdict="perhaps")
    for column in ("error_message", "traceback", "started_at", "ended_at"):
        yield attempt(f"{column} missing", **{column: None})


def contents() -> Iterable[Case]:
    for name, wire in MESSAGES.items():
        yield case(f"message {name}", Stage.WAITING, Fate.DIES, do("message", wire))
    for name in ("empty", "signed, nested deep"):
        yield case(f"message {name} of a dead letter", Stage.DEAD, Fate.STAYS, do("message", MESSAGES[name]))
    for name, result in RESULTS.items():
        yield case(f"result {name}", Stage.DONE, Fate.STAYS, do("update", "attempts", result=result))


def rows(largest: int, fractions: Mapping[str, float]) -> Iterable[Case]:
    """Rows beside the record."""
    ended = {"verdict": "ack", "outcome": "succeeded", "started_at": 1, "ended_at": 2}
    for name, delivery in {"the next delivery": 1, "delivery -1": -1, "the largest delivery": largest}.items():
        there = do("add", "attempts", delivery=delivery, **ended)
        yield case(f"attempt of {name}", Stage.WAITING, Fate.ENDS, there)
    there = do("add", "attempts", delivery=1, **ended)
    yield case("attempt of a delivery under way", Stage.LEASED, Fate.ENDS, there, do("job", lease_until=1))
    for name, value in fractions.items():
        yield progress(f"done {name}", done=value)
        yield progress(f"total {name}", total=value)
    yield output("start negative", start=-1)
    yield output("start largest", start=LARGEST)
    for name, said in REPORTS.items():
        yield worker(name, value=said)
    yield cell("unknown", ORDERS, value=b"dance")
    yield cell("not UTF-8", ORDERS, value=NOT_UTF8)
    for kind in FACTS:
        yield cell("empty", kind, key="")
        yield cell("long", kind, key="x" * 200)


def sql_cases(largest: int, fractions: Mapping[str, float]) -> list[Case]:
    """All of them, for an engine whose counters and fractions go that far."""
    return [*counters(largest), *times(), *codes(), *contents(), *rows(largest, fractions)]
