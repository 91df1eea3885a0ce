"""The engine in MySQL obeys every law, on a real MariaDB whose clock obeys the lab."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from holdfast.clock import Clock
from holdfast.queues.backends.mysql import MysqlBackend
from holdfast.queues.contract import Engine, LeasePolicy
from holdfast.queues.envelope import EnvelopeFactory
from holdfast.testing import EngineConformance, Lab, machine_for
from holdfast.testing.laws.claiming import ClaimingLaws
from holdfast.testing.laws.leasing import CrashLaws
from holdfast.testing.laws.racing import RacingLaws

from ..servers.mysql import MariadbServer
from ..servers.running import started

# Where a job stands follows from its state, and has to be written with it by every statement that changes that.
MISPLACED = """
    SELECT id, state, lane, since FROM holdfast_jobs
    WHERE lane <> CASE WHEN state <= 1 THEN 9 - priority ELSE state + 8 END
       OR since <> CASE WHEN state <= 1 THEN due_at WHEN state = 2 THEN claimed_at ELSE finished_at END
       OR mark <> CAST(CASE WHEN state <= 1 THEN UNHEX(LEFT(SHA2(queue, 256), 32))
                            WHEN state = 2 THEN owner_token ELSE '' END AS BINARY(16))"""

TABLES = ("jobs", "attempts", "progress", "pauses", "facts", "workers")

_servers: list[MariadbServer] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Generator[MariadbServer]:
    server = started(lambda: MariadbServer(clock=True))
    assert isinstance(server, MariadbServer)
    _servers.append(server)
    yield server
    _servers.remove(server)
    server.close()


@contextmanager
def fresh_lab(options: str = "") -> Generator[Lab]:
    """A lab with empty tables on the one server; to make new ones for each would take longer than most clauses."""
    [server] = _servers
    assert server.clock is not None
    server.clock.restart()

    def connect(envelopes: EnvelopeFactory, policy: LeasePolicy, clock: Clock) -> Engine:
        return MysqlBackend(server.url + options, envelopes, policy=policy, clock=clock)

    with server.connect("holdfast") as connection, connection.cursor() as cursor:
        with Lab(connect, clock=server.clock) as lab:
            lab.open()
            for table in TABLES:
                cursor.execute(f"DELETE FROM holdfast_{table}")
            yield lab
        cursor.execute(MISPLACED)
        assert cursor.fetchall() == ()


@pytest.fixture
def lab() -> Generator[Lab]:
    with fresh_lab() as lab:
        yield lab


class TestMysql(EngineConformance):
    """Every clause."""


class TestWithoutSkipLocked(ClaimingLaws, CrashLaws, RacingLaws):
    """The clauses on who gets a job, where the server cannot pass over what others have locked."""

    @pytest.fixture
    def lab(self) -> Generator[Lab]:
        with fresh_lab("?skip_locked=off") as lab:
            yield lab


TestMysqlMachine = machine_for(fresh_lab, examples=30).TestCase
