"""The MySQL engine meets every clause, on a real MariaDB whose clock the lab controls."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from holdfast.testing import EngineConformance, Lab, machine_for
from holdfast.testing.laws.claiming import ClaimingLaws
from holdfast.testing.laws.dependencies import DependencyLaws
from holdfast.testing.laws.leasing import CrashLaws
from holdfast.testing.laws.racing import RacingLaws
from holdfast.testing.laws.slots import SlotLaws

from ..servers.mysql import mariadb_for_laws
from .labs import mysql_lab

# Lane, mark and time follow from the state of a job; every statement that changes the state must write them.
MISPLACED = """
    SELECT id, state, lane, since FROM holdfast_jobs
    WHERE lane <> CASE WHEN state <= 1 THEN 9 - priority ELSE state + 8 END
       OR since <> CASE WHEN state <= 1 THEN due_at WHEN state = 2 THEN claimed_at ELSE finished_at END
       OR mark <> CAST(CASE WHEN state <= 1 THEN UNHEX(LEFT(SHA2(queue, 256), 32))
                            WHEN state = 2 THEN owner_token ELSE '' END AS BINARY(16))"""


@contextmanager
def fresh_lab(options: str = "") -> Generator[Lab]:
    """A lab that finally checks the lane, mark and time of every job."""
    with mysql_lab(options=options) as lab:
        yield lab
        with mariadb_for_laws().connect("holdfast") as connection, connection.cursor() as cursor:
            cursor.execute(MISPLACED)
            assert cursor.fetchall() == ()


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestMysql(EngineConformance):
    """Every clause."""


class TestWithoutSkipLocked(ClaimingLaws, CrashLaws, DependencyLaws, RacingLaws, SlotLaws):
    """The clauses about claims, slots and dependencies, on a server that cannot skip locked rows."""

    @pytest.fixture
    def lab(self) -> Generator[Lab]:
        with fresh_lab("?skip_locked=off") as lab:
            yield lab


TestMysqlMachine = machine_for(fresh_lab, examples=15).TestCase
