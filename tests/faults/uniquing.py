"""One of several processes that enqueue jobs with unique keys, all at once, and run them.

`python -m tests.faults.uniquing URL LEDGER SECONDS` prints that it is ready, waits for a line on stdin, and at the end
drains the jobs. Each key has its own queue, and is free again when its job starts. `test_unique_crowd.py` reads the
ledger.
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import sqlalchemy

from holdfast import Holdfast
from holdfast.codec import describe
from holdfast.definition import JobBuilder, JobDefinition
from holdfast.queues.contract import new_owner_token, new_session
from holdfast.values import Ack, AttemptRecord, JobState, Outcome

from .ledgers import append_line

KEY = "ours:the-signing-key-of-the-tests-of-unique-jobs"
KEYS = ("a", "b", "c")
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
DRAIN_WAIT_S = 1.0


class Site:
    """Performs random operations of producers and workers."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._hf = Holdfast(url, signing_key=KEY)
        self._hf.create_schema()
        self._ledger = ledger
        self._database = _database(url)
        self._session = new_session()
        self._dice = random.Random(os.getpid())
        self._number = 0

    def run(self, seconds: float) -> None:
        over_at = time.monotonic() + seconds
        ways = [self._enqueue, self._enqueue_many, self._work, self._check]
        if self._database is not None:
            ways += [self._enqueue_with_an_order]
        while time.monotonic() < over_at:
            self._dice.choice(ways)()

    def drain(self) -> None:
        while any(set(states) - {JobState.COMPLETED} for states in self._hf.backend().counts().values()):
            self._work(wait_s=DRAIN_WAIT_S)

    def _enqueue(self) -> None:
        self._note(self._asked(self._dice.choice(KEYS)))

    def _enqueue_many(self) -> None:
        asked = [self._asked(key) for key in self._dice.sample(KEYS, 2)]
        for (number, _), handle in zip(asked, self._hf.dispatch_many(one for _, one in asked), strict=True):
            append_line(self._ledger, "answer", number, handle.id, handle.outcome)

    def _enqueue_with_an_order(self) -> None:
        """Enqueue in a transaction, which is rolled back now and then."""
        assert self._database is not None
        asked = self._asked(self._dice.choice(KEYS))
        with self._database.connect() as connection:
            self._note(asked, connection)

    def _note(self, asked: tuple[str, JobDefinition], connection: Any = None) -> None:
        number, definition = asked
        handle = self._hf.dispatch(definition, tx=connection)
        if connection is not None:
            if self._dice.random() < 0.2:
                connection.rollback()
                return
            append_line(self._ledger, "commit", number)
            connection.commit()
        append_line(self._ledger, "answer", number, handle.id, handle.outcome)

    def _asked(self, key: str) -> tuple[str, JobDefinition]:
        self._number += 1
        number = f"{os.getpid()}-{self._number}"
        replaces = self._dice.random() < 0.5
        builder = JobBuilder("job", number).queue(key)
        builder.unique(key, unique_for="waiting", on_conflict="replace" if replaces else "ignore")
        append_line(self._ledger, "ask", number)
        return number, builder.definition()

    def _work(self, wait_s: float = 0.0) -> None:
        engine, token = self._hf.backend(), new_owner_token(self._session)
        for lease in engine.claim(self._dice.choice(KEYS), 1, owner_token=token, wait=wait_s):
            message = describe(lease.wire)
            assert message is not None
            append_line(self._ledger, "start", lease.id, bytes(message.payload).decode().strip('"'))
            done = AttemptRecord(outcome=Outcome.SUCCEEDED, started_us=0, ended_us=0)
            assert engine.settle([Ack(lease=lease, record=done)]) == [True]

    def _check(self) -> None:
        for key, states in self._hf.backend().counts().items():
            assert states.get(JobState.PENDING, 0) <= 1, f"two jobs wait with the key {key}"


def _database(url: str) -> sqlalchemy.Engine | None:
    """The database in which a program has its own tables next to the jobs; Redis has none."""
    parts = sqlalchemy.make_url(url.partition("?")[0])
    if parts.drivername not in DRIVERS:
        return None
    # A writer waits for its turn; the driver's own patience is too short for sixteen of them.
    patience = {"timeout": 60.0} if parts.drivername == "sqlite" else {}
    return sqlalchemy.create_engine(parts.set(drivername=DRIVERS[parts.drivername]), connect_args=patience)


def main(url: str, ledger: str, seconds: str) -> None:
    site = Site(url, Path(ledger))
    print("ready", flush=True)
    sys.stdin.readline()
    site.run(float(seconds))
    site.drain()


if __name__ == "__main__":
    main(*sys.argv[1:])
