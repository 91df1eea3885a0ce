"""Stored live output is deleted when the attempt records its output or the job is deleted."""

from collections.abc import Generator

import pytest

from holdfast.queues.contract import Engine, LeasePolicy, new_owner_token
from holdfast.queues.engines.mysql.engine import MysqlEngine
from holdfast.queues.engines.postgres.engine import PostgresEngine
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.sqlite.engine import SqliteEngine
from holdfast.queues.opening import EngineFactory
from holdfast.queues.signing import Keyring, SigningKey
from holdfast.values import (
    Abandon,
    Ack,
    AttemptRecord,
    CancelJob,
    DeadReason,
    JobLease,
    JobState,
    LiveOutput,
    Nack,
    Outcome,
    Release,
    Settlement,
)

from ..servers.places import Place, every_engine
from .sqlite_site import job

KEYS = Keyring([SigningKey(b"a key of thirty-two bytes, or more")])
FORGETFUL = LeasePolicy(retain_completed_s=0, retain_dead_s=0)
COUNT = "SELECT count(*) FROM {}live_output"
TOLD = AttemptRecord(outcome=Outcome.FAILED, started_us=1, ended_us=2, output="all of it")


@pytest.fixture
def engine(place: Place) -> Generator[Engine]:
    with EngineFactory(KEYS, policy=FORGETFUL).open(place.url)[0] as engine:
        engine.create_schema()
        yield engine


@every_engine
def test_recorded_output_replaces_reported_output(engine: Engine) -> None:
    leases = printing(engine, 5)
    assert outputs_in(engine) == 5
    ends: list[Settlement] = [
        Ack(lease=leases[0], record=TOLD),
        Nack(lease=leases[1], delay=60, record=TOLD),
        Release(lease=leases[2], delay=60, record=TOLD),
        Abandon(lease=leases[3], reason=DeadReason.FAILED, record=TOLD),
        CancelJob(lease=leases[4], record=TOLD),
    ]
    for number, end in enumerate(ends, start=1):
        assert engine.settle([end]) == [True]
        assert outputs_in(engine) == 5 - number


@every_engine
@pytest.mark.parametrize("how", ["discarded", "purged", "pruned"])
def test_the_output_of_a_crash_goes_with_the_record_of_the_job(engine: Engine, how: str) -> None:
    gone, kept = printing(engine, 2)
    assert engine.settle([Abandon(lease=gone, reason=DeadReason.CRASH_LOOP)]) == [True]
    assert outputs_in(engine) == 2
    if how == "discarded":
        assert engine.discard(gone.id)
    elif how == "purged":
        assert engine.purge([JobState.DEAD]) == 1
    else:
        assert engine.prune() == 1
    assert outputs_in(engine) == 1
    history = engine.get(kept.id)
    assert history is not None
    assert history.live_output == LiveOutput(text="so far")


def printing(engine: Engine, number: int) -> list[JobLease]:
    """Running jobs that have reported output."""
    engine.accept([job(f"job-{one}") for one in range(number)])
    leases = engine.claim("default", number, owner_token=new_owner_token())
    assert engine.report_output([(lease, LiveOutput(text="so far")) for lease in leases]) == [True] * number
    return leases


def outputs_in(engine: Engine) -> int:
    """The number of stored reports, read without the engine."""
    match engine:
        case SqliteEngine():
            return int(engine.file.run(lambda one: one.execute(COUNT.format("holdfast_")).fetchone()[0]))
        case PostgresEngine():
            statement = engine.connections.sql(COUNT.format("holdfast."))
            return int(engine.connections.run(lambda one: one.execute(statement).fetchall())[0][0])
        case MysqlEngine():
            text = engine.connections.sql(COUNT.format("holdfast_"))
            return int(engine.connections.run(lambda session: session.rows(text))[0][0])
        case RedisEngine():
            call, base = engine.connections.call, engine.connections.base
            names = [name for key in call("KEYS", f"{base}told:*") for name in call("HKEYS", key)]
            return sum(name.startswith(b"output:") for name in names)
        case _:
            raise AssertionError(f"{engine} has to be looked into in a way of its own")
