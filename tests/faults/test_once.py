"""`context.transaction()`: whichever process is killed, the writes of a job exist exactly once."""

import itertools
import random
import sqlite3
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.values import JobState

from ..servers.mysql import MariadbServer
from .processes import Slayer, until
from .yard import Yard

KILLS = 10
MOST_KILLS = 200
JOBS_PER_KILL = 6

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres", "mysql"], indirect=True)


@contextmanager
def database_of(yard: Yard) -> Generator[Any]:
    """Another program's connection to the database with the jobs."""
    server = yard.place.server
    if server is None:
        connection: Any = sqlite3.connect(yard.place.database, timeout=30)
    elif isinstance(server, MariadbServer):
        connection = server.connect("holdfast")
    else:
        connection = psycopg.connect(server.url)
    with closing(connection):
        yield connection
        connection.commit()


def test_the_writes_and_jobs_of_a_run_exist_once_whichever_process_is_killed(yard: Yard) -> None:
    table = f"{yard.place.prefix}effects"
    yard.hf.create_schema()
    with database_of(yard) as connection:
        connection.cursor().execute(f"CREATE TABLE {table} (id varchar(63))")
    definition = yard.hf.define("effects", {"table": table}).max_retries(1000).definition()
    ids: list[str] = []
    dice, slayer = random.Random(7), Slayer()
    workers = [yard.worker("--count", count, lease_s=2) for count in ("2", "1")]
    for kills in itertools.count(1):
        ids += yard.hf.enqueue_many([definition] * JOBS_PER_KILL)
        moment = len(yard.ledger()) + dice.randint(1, JOBS_PER_KILL)
        until(lambda: len(yard.ledger()) >= moment, "some of them to begin or end")  # noqa: B023
        if dice.random() < 0.5:
            slayer.kill(yard.ledger()[-1].pid)
        else:
            workers.pop(dice.randrange(2)).kill()
            workers.append(yard.worker("--count", "1", lease_s=2))
        # Runs are short, and many kills interrupt none: at least one run must be interrupted and repeated.
        starts = Counter(entry.id for entry in yard.ledger() if entry.what == "start")
        if kills >= KILLS and max(starts.values()) > 1:
            break
        assert kills < MOST_KILLS, "no run was cut off, so nothing was shown"
    until(lambda: yard.are_done(2 * len(ids)), "every job to be completed, and every one it has enqueued")
    with database_of(yard) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT id FROM {table}")
        assert Counter(id for (id,) in cursor.fetchall()) == Counter(ids)
    assert {yard.state(id) for id in ids} == {JobState.COMPLETED}
