"""Ten thousand jobs wait for one key: they get it in turn, and each is claimed at most twice, even if no worker claims
them for a while.

With HOLDFAST_LONG=1 in the environment on every engine, otherwise on SQLite alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.queues.contract import PROMOTION_S, new_owner_token
from holdfast.testing import Lab, memory_lab, sqlite_lab
from holdfast.values import DEFAULT_QUEUE, Ack, Entry, EntryOutcome, JobLease, Slot

from .labs import mysql_lab, postgres_lab, redis_lab
from .plants.sqlite import RAM

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
JOBS = 10_000
AT_ONCE = 500
PAUSE_EVERY = 1000
PAUSE_S = 20
KEY = Slot(name="key:customer-7")

pytestmark = pytest.mark.timeout(1800 if IS_LONG else 300)


@contextmanager
def file_lab() -> Generator[Lab]:
    with TemporaryDirectory(dir=RAM) as folder, sqlite_lab(Path(folder) / "jobs.db") as lab:
        yield lab


OTHERS: list[Callable[[], AbstractContextManager[Lab]]] = [memory_lab, postgres_lab, mysql_lab, redis_lab]


@pytest.mark.parametrize("open_lab", [file_lab, *(OTHERS if IS_LONG else [])])
def test_each_of_many_jobs_with_one_key_is_claimed_at_most_twice(
    open_lab: Callable[[], AbstractContextManager[Lab]],
) -> None:
    ids = [f"job{number:05}" for number in range(JOBS)]
    claims: Counter[str] = Counter()
    order: list[str] = []
    with open_lab() as lab:
        engine = lab.engine
        for first in range(0, JOBS, AT_ONCE):
            lab.put(*ids[first : first + AT_ONCE])
            lab.advance(1)

        def enter(leases: list[JobLease]) -> list[JobLease]:
            """Those of these jobs that get the key."""
            claims.update(lease.id for lease in leases)
            answers = engine.enter([Entry(lease=lease, slots=(KEY,)) for lease in leases])
            return [one for one, answer in zip(leases, answers, strict=True) if answer.outcome is EntryOutcome.ENTERED]

        [holder] = enter(lab.claim(AT_ONCE))
        while leases := lab.claim(AT_ONCE):
            assert enter(leases) == []
        while True:
            order.append(holder.id)
            ends = [Ack(lease=holder, record=lab.record(), leaves=(KEY.name,))]
            if len(order) % PAUSE_EVERY:
                _, leases = engine.exchange(ends, DEFAULT_QUEUE, 10, owner_token=new_owner_token())
            else:
                assert engine.settle(ends) == [True]
                for _ in range(int(PAUSE_S / PROMOTION_S)):
                    lab.advance(PROMOTION_S)
                    assert engine.repair() == 0
                leases = lab.claim()
            if not leases:
                break
            [holder] = enter(leases)
    assert order == ids
    assert max(claims.values()) == 2
