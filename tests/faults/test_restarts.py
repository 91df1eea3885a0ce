"""Servers killed under load and restarted: no accepted job is lost, and no operator is needed.

With HOLDFAST_LONG=1 in the environment each server is killed twenty times instead of three.
"""

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from holdfast.definition import JobDefinition
from holdfast.errors import BackendUnavailable
from holdfast.queues.contract import Engine, new_owner_token
from holdfast.values import JobState, Outcome

from ..servers.mysql import MariadbServer
from ..servers.places import Place, place_on
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer
from ..servers.running import Server, started
from .processes import Program, lives, until
from .yard import Yard

IS_LONG = os.environ.get("HOLDFAST_LONG") == "1"
KILLS = 20 if IS_LONG else 3
HOUR_S = 3600
# Two producers enqueue at most 80 jobs a second, fewer on a busy machine: these take them at least twice as long as a
# worker ever waits between two requests to an unavailable engine.
RESUMED_WITHIN_JOBS = 800
UNAVAILABLE = 5
CHILDREN = 1500  # more than one commit releases

pytestmark = pytest.mark.timeout(1200 if IS_LONG else 600)

# Written to the disk before the reply, as the documentation recommends to lose nothing.
DURABLE: dict[str, Callable[[], Server]] = {
    "postgres": lambda: PostgresServer(settings={"fsync": "on", "full_page_writes": "on"}),
    "mysql": lambda: MariadbServer(
        settings={"innodb-flush-log-at-trx-commit": "1", "innodb-flush-method": "fsync"},
    ),
    "redis": lambda: RedisServer(settings={"appendfsync": "always"}),
}


# No call times out during a test: a dead server is detected because it closes or refuses connections.
PATIENT = {
    "PostgreSQL": f"timeout={HOUR_S}&connect_timeout={HOUR_S}",
    "MariaDB": f"timeout={HOUR_S}&connect_timeout={HOUR_S}",
    "Redis": f"socket_timeout={HOUR_S}&socket_connect_timeout={HOUR_S}",
}


class PatientPlace(Place):
    """A place whose clients give up on a connection only after an hour."""

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"{super().url}&{PATIENT[self.server.name]}"


@pytest.fixture(params=[*DURABLE])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A private server, because it is killed."""
    server = started(DURABLE[request.param])
    yield server
    server.close()


@pytest.fixture
def yard(server: Server) -> Iterator[Yard]:
    with place_on(server) as place:
        yard = Yard(PatientPlace(*place))
        yield yard
        yard.close()


def test_a_server_killed_again_and_again_loses_no_accepted_job_and_its_workers_resume(
    yard: Yard, server: Server
) -> None:
    dice, engine = random.Random(KILLS), yard.hf.backend()
    producers = [yard.insistent_producer("brief") for _ in range(2)]
    # A job whose claim or verdict was lost does not come back in time. Each worker also has its own queue: which
    # one takes the jobs of the queue they share is a matter of luck.
    workers = {queue: yard.worker("--queue", f"default,{queue}", lease_s=HOUR_S) for queue in ("first", "second")}
    probes: list[str] = []
    gaps: list[int] = []
    for _ in range(KILLS):
        reached = len(yard.ledger()) + dice.randint(50, 200)
        until(lambda: len(yard.ledger()) >= reached, "the workers to make progress")  # noqa: B023
        server.kill()
        _refuses(engine)
        server.start()
        probes += [id for queue in workers for id in yard.put("quick", queue=queue)]
        gaps.append(_jobs_until_completed(yard, probes, producers))
        assert gaps[-1] <= RESUMED_WITHIN_JOBS
    for producer in producers:
        producer.hang_up()
        assert (producer.ended(), producer.complained) == (0, "")
    ids = [id for producer in producers for id in producer.said_lines()]
    until(lambda: set(ids) <= set(yard.ends()), "every accepted job to be run")
    until(lambda: yard.are_done(len(ids)), "every job, and no other, to be completed")
    print(f"{len(ids)} jobs, {KILLS} kills, all at work again after {max(gaps)} more jobs at most")

    assert Counter(entry.id for entry in yard.ledger()) == Counter(ids * 2 + probes), "one start and one end of each"
    for id in ids:
        *before, last = yard.outcomes(id)
        assert last is Outcome.SUCCEEDED
        assert set(before) <= {Outcome.INTERRUPTED}, "handed back before it was started"
    for worker in workers.values():
        assert worker.runs
        assert "Traceback" not in worker.complained
        assert "ignored" not in worker.complained, "what a driver has to say about the end of its connections"


def test_a_worker_without_work_whose_server_was_killed_takes_the_next_job(yard: Yard, server: Server) -> None:
    worker = yard.worker("--queue", "elsewhere", lease_s=HOUR_S)
    for number in range(1, 3):
        server.kill()
        until(lambda: worker.complained.count("engine unavailable") >= number, "the worker to notice")  # noqa: B023
        server.start()
        producers = [yard.insistent_producer("quick") for _ in range(2)]
        assert _jobs_until_completed(yard, yard.put("quick", queue="elsewhere"), producers) <= RESUMED_WITHIN_JOBS
        for producer in producers:
            producer.hang_up()
            assert producer.ended() == 0
    assert "Traceback" not in worker.complained


def test_a_server_killed_while_children_are_released_forgets_none(yard: Yard, server: Server) -> None:
    generations = [yard.put("brief")]
    for _ in range(KILLS):
        [parent, *_] = generations[-1]
        generations.append(yard.put("quick", CHILDREN, after=[parent]))
    worker = yard.worker("--count", "2", lease_s=2)
    for children in generations[1:]:
        until(lambda: yard.ends().keys() & set(children), "the first of these children to run")  # noqa: B023
        server.kill()
        server.start()
    until(lambda: yard.are_done(sum(map(len, generations))), "every job to be completed")
    assert yard.ends().keys() == {id for ids in generations for id in ids}
    assert worker.runs
    assert "Traceback" not in worker.complained


def test_a_fenced_job_is_killed_in_time_though_the_server_stands_still(yard: Yard, server: Server) -> None:
    (id,) = yard.put("gated", fence=True)
    worker = yard.worker(lease_s=2)
    first = yard.wait_for_entry("start", id, by=worker)
    with server.standing_still():
        until(lambda: not lives(first.pid), "the first run to be killed")
    again = until(lambda: yard.entries("start", id)[1:], "another run")[0]
    yard.open_gate(again)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")
    assert yard.outcomes(id) == [Outcome.CRASHED, Outcome.SUCCEEDED]


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("count", ["1", "2"], ids=["no slot free", "a slot free"])
def test_a_worker_can_give_up_on_a_server_that_stays_down_and_its_job_runs_again(
    yard: Yard, server: Server, count: str
) -> None:
    """On one server only: all engines report this in the same way."""
    (id,) = yard.put("gated")
    worker = yard.worker("--give-up-after", "1s", "--count", count, lease_s=2)
    first = yard.wait_for_entry("start", id, by=worker)
    server.kill()
    assert worker.ended() == UNAVAILABLE
    assert re.search(r"engine unavailable for [\d.]+ s; giving up", worker.complained)
    assert "1 job was not settled and will run again when its lease expires" in worker.complained
    assert "Traceback" not in worker.complained
    assert not lives(first.pid)
    server.start()
    again = yard.wait_for_entry("start", id, by=yard.worker(lease_s=2))
    yard.open_gate(again)
    until(lambda: yard.state(id) is JobState.COMPLETED, "the job to be completed")


def _refuses(engine: Engine) -> None:
    """A call to a server that is down fails immediately, before any timeout."""
    verbs: list[Callable[[], object]] = [
        lambda: engine.enqueue(JobDefinition(handler="brief")),
        lambda: engine.claim("default", 1, owner_token=new_owner_token()),
        lambda: engine.exchange([], "default", 1, owner_token=new_owner_token()),
        lambda: engine.wait_for_work(["default"], HOUR_S),
        engine.reap_expired,
        engine.counts,
        engine.check,
    ]
    sleep = time.sleep

    def elsewhere(seconds: float) -> None:
        assert threading.current_thread() is not threading.main_thread(), f"it pauses for {seconds} s"
        sleep(seconds)

    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(time, "sleep", elsewhere)
        meanwhile.setattr("redis.retry.sleep", elsewhere)
        for verb in verbs:
            with pytest.raises(BackendUnavailable):
                verb()


def _jobs_until_completed(yard: Yard, ids: list[str], producers: list[Program]) -> int:
    """The number of other jobs that are enqueued before these are completed."""

    def enqueued() -> int:
        return sum(len(producer.said_lines()) for producer in producers)

    before = enqueued()
    for id in ids:
        until(lambda: yard.state(id) is JobState.COMPLETED, f"job {id} to be completed")  # noqa: B023
    return enqueued() - before
