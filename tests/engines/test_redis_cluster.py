"""Redis in a cluster of real nodes: redirections, failover and network failures."""

import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from holdfast.errors import BackendUnavailable
from holdfast.queues.contract import MAX_CHILDREN, LeasePolicy, new_owner_token
from holdfast.queues.engines.redis import (
    connections as redis_connections,
    edges as redis_edges,
    jobs as redis,
    records as redis_inspector,
    slots as redis_slots,
    state as redis_state,
)
from holdfast.queues.engines.redis.connections import RedisConnections, Script
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.values import (
    Ack,
    CancelAnswer,
    DeadReason,
    Entry,
    EntryOutcome,
    JobFilter,
    JobLease,
    JobState,
    LiveOutput,
    Nack,
    Progress,
    Put,
    ReplayAnswer,
    Resize,
    Slot,
    Spend,
    Unique,
)

from ..faults.processes import until
from ..servers.redis import RedisServer
from ..servers.running import free_port, started
from .redis_site import PREFIX, check_indexes, job, opened

SLOTS = 16384
BASE = f"{{{PREFIX}}}:"
SCRIPTS = {
    one
    for module in (redis, redis_edges, redis_inspector, redis_slots, redis_state, redis_connections)
    for one in vars(module).values()
    if isinstance(one, Script)
}


class Cluster(NamedTuple):
    """Two nodes: one has the slot of our keys and no other, the other has all the rest."""

    ours: RedisServer
    others: RedisServer

    def is_up(self) -> bool:
        for node in self:
            with node.client() as client:
                if b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                    return False
        return True


@contextmanager
def running() -> Generator[Cluster]:
    with ExitStack() as stack:
        # Ports of the cluster bus: the default ones are ephemeral, and the system may assign them to clients.
        first, second = free_port(), free_port()
        cluster = Cluster(_node(stack, first), _node(stack, second))
        with cluster.ours.client() as ours, cluster.others.client() as others:
            slot = slot_of(ours)
            ours.execute_command("CLUSTER", "ADDSLOTS", slot)
            others.execute_command("CLUSTER", "ADDSLOTS", *(other for other in range(SLOTS) if other != slot))
            # Two nodes that start with the same epoch would first have to agree on another.
            others.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 1)
            ours.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
            ours.execute_command("CLUSTER", "MEET", "127.0.0.1", cluster.others.port, second)
        until(cluster.is_up, "the nodes to know each other")
        yield cluster


def _node(stack: ExitStack, port: int) -> RedisServer:
    settings = {"cluster-enabled": "yes", "cluster-port": str(port), "cluster-node-timeout": "2000"}
    node = started(lambda: RedisServer(settings=settings))
    stack.callback(node.close)
    return node


def slot_of(client: Any) -> int:
    return int(client.execute_command("CLUSTER", "KEYSLOT", BASE))


def id_of(client: Any) -> bytes:
    found: bytes = client.execute_command("CLUSTER", "MYID")
    return found


@pytest.fixture(scope="module")
def nodes() -> Generator[Cluster]:
    with running() as cluster:
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """The same, emptied."""
    for node in nodes:
        with node.client() as client:
            client.flushall()
    return nodes


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    """A server with the settings given as the parameter."""
    server = started(lambda: RedisServer(settings=getattr(request, "param", {})))
    yield server
    server.close()


def taken(engine: RedisEngine, limit: int = 10) -> list[JobLease]:
    return engine.claim("default", limit, owner_token=new_owner_token())


def test_every_script_uses_only_the_slot_of_its_installation(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has no other slot: it refuses a command with any other key."""
    executed: set[Script] = set()
    run = RedisConnections.run

    def noted(self: RedisConnections, script: Script, *arguments: bytes | str | int, **options: Any) -> Any:
        executed.add(script)
        return run(self, script, *arguments, **options)

    monkeypatch.setattr(RedisConnections, "run", noted)
    policy = LeasePolicy(lease_s=3.0, retain_completed_s=0.0, crash_limit=5)
    with RedisEngine(cluster.ours.url, opened(cluster.ours.url).envelopes, policy=policy) as engine:
        _live(engine)
        _damage(engine, cluster.ours)
    # Opening runs the first, and a key of the wrong type the others.
    assert SCRIPTS - executed == {
        redis_connections.PREPARE,
        redis_connections.REPAIR,
        redis_connections.REINDEX,
        redis_connections.RECOUNT,
        redis_connections.RELIST,
        redis_connections.REBUILT,
    }
    with cluster.ours.client() as ours, cluster.others.client() as others:
        assert (ours.exists(f"{BASE}schema"), others.dbsize()) == (1, 0)
        check_indexes(ours)


def _live(engine: RedisEngine) -> None:
    """Bring jobs and workers into every state."""
    engine.accept([job(id) for id in ("done", "failed", "dead", "cancelled", "held")])
    done, failed, dead, cancelled, held = taken(engine)
    engine.renew_many([done, failed, dead, cancelled])
    engine.lease_states([done])
    engine.report_output([(failed, LiveOutput(text="half"))])
    assert len(engine.oldest_waits()) <= 1
    engine.state.write([Resize(slot="key:resized", size=2)])
    engine.report_progress([(failed, Progress(done=1, message="half"))])
    answers, none = engine.exchange([Ack(lease=done)], "default", 1, owner_token=new_owner_token())
    assert (answers, none) == ([True], [])
    assert engine.settle([Nack(lease=failed, delay=60)]) == [True]
    assert engine.abandon(dead, DeadReason.FAILED)
    assert engine.abandon(cancelled, DeadReason.FAILED)
    assert engine.replay("dead") is ReplayAnswer.REPLAYED
    assert engine.cancel("dead") is CancelAnswer.CANCELLED
    assert engine.discard("cancelled")
    assert engine.expire_leases([bytes.fromhex(held.owner_token)[:8]]) == 1
    assert engine.reap_expired() == 1
    assert not engine.ack(held)
    engine.pause("default", "for a while")
    assert [one.queue for one in engine.pauses()] == ["default"]
    assert engine.resume("default")
    engine.wait_for_work(["default", "mail"], 60)
    assert engine.find(JobFilter(queue="default"), limit=2).next
    assert engine.find(JobFilter(states=(JobState.COMPLETED,), ids=("done",))).jobs
    assert engine.get("done")
    assert engine.counts()["default"][JobState.COMPLETED] == 1
    assert engine.purge([JobState.CANCELLED], older_than=timedelta(0)) == 1
    assert engine.prune() == 1
    _share(engine)
    _enter(engine)
    _depend(engine)


def _depend(engine: RedisEngine) -> None:
    """Let more jobs wait for another one than one call releases."""
    family = [replace(job(f"child-{at}", queue="family"), after=("parent",)) for at in range(MAX_CHILDREN + 1)]
    engine.accept([job("parent", queue="family"), *family])
    (parent,) = engine.claim("family", 1, owner_token=new_owner_token())
    assert engine.ack(parent)
    assert engine.counts()["family"][JobState.BLOCKED] == 1
    assert engine.repair() == 1
    assert engine.relatives("parent").child_count == len(family)


def _damage(engine: RedisEngine, server: RedisServer) -> None:
    """An index of the wrong type."""
    with server.client() as client:
        client.delete(f"{BASE}buckets")
        client.set(f"{BASE}buckets", "not a sorted set")
        assert engine.state.spend([Spend(bucket="mail", tokens=1, per_s=1, burst=1)])[0].tokens == 1
        assert client.getdel(f"{BASE}damaged:buckets") == b"not a sorted set"


def _share(engine: RedisEngine) -> None:
    put = Put(kind="mark", key="one", ttl=0.001)
    assert engine.state.write([put])
    until(lambda: engine.state.read("mark") == [], "the cell to expire")
    assert engine.state.spend([Spend(bucket="mail", tokens=1, per_s=1000, burst=1)])[0].tokens == 1
    until(lambda: engine.state.sweep() == 0, "everything to be swept")
    engine.accept([job(id, queue="mail") for id in ("first", "second")], writes=[put])
    first, second = engine.claim("mail", 2, owner_token=new_owner_token())
    chained = Ack(lease=first, writes=(put,), enqueues=(job("third", queue="mail"),))
    assert engine.settle([chained]) == [True]
    chained = Ack(lease=second, writes=(put,), enqueues=(job("fourth", queue="mail"),))
    answers, leases = engine.exchange([chained], "mail", 5, owner_token=new_owner_token())
    assert (answers, [lease.id for lease in leases]) == ([True], ["third", "fourth"])


def _enter(engine: RedisEngine) -> None:
    key = Slot(name="key:a")
    one, other = (replace(job(id, queue="keyed"), unique=Unique(key=id)) for id in ("one", "other"))
    assert [answer.created for answer in engine.accept([one, other])] == [True, True]
    leases = engine.claim("keyed", 2, owner_token=new_owner_token())
    answers = engine.enter([Entry(lease=lease, slots=(key,)) for lease in leases])
    assert [answer.outcome for answer in answers] == [EntryOutcome.ENTERED, EntryOutcome.BLOCKED]
    assert [slot.waiting for slot in engine.slots()] == [1]
    assert engine.repair() == 0
    assert engine.settle([Ack(lease=leases[0], leaves=(key.name,))]) == [True]
    assert engine.reschedule([other]) == [True]
    assert engine.records.delete_unused() == 1


def test_who_asks_another_node_is_led_to_the_one_that_has_the_keys(cluster: Cluster) -> None:
    with opened(cluster.others.url) as engine:
        assert engine.accept([job("a")])[0].created
        [lease] = taken(engine)
        assert engine.exchange([Ack(lease=lease)], "default", 1, owner_token=new_owner_token()) == (
            [True],
            [],
        )
        engine.wait_for_work(["default"], 0.01)
    with cluster.ours.client() as ours:
        check_indexes(ours)


@pytest.mark.parametrize("is_silent", [False, True], ids=["killed", "silent"])
def test_after_a_failover_the_node_of_the_url_is_asked_who_has_the_keys_now(is_silent: bool) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running())
        engine = stack.enter_context(opened(f"{cluster.others.url}?socket_timeout=1"))
        others = stack.enter_context(cluster.others.client())
        engine.accept([job("a")])
        if is_silent:
            stack.enter_context(cluster.ours.standing_still())
        else:
            cluster.ours.kill()
        with pytest.raises(BackendUnavailable):
            engine.accept([job("b")])
        # A replica of the dead node would do this by itself.
        others.execute_command("CLUSTER", "BUMPEPOCH")
        others.execute_command("CLUSTER", "SETSLOT", slot_of(others), "NODE", id_of(others))
        until(lambda: _accepts(engine), "the other node to have the keys")
        assert others.exists(f"{BASE}job:b")


def _accepts(engine: RedisEngine) -> bool:
    try:
        return bool(engine.accept([job("b")]))
    except BackendUnavailable:
        return False


@pytest.mark.parametrize("own_server", [{"cluster-enabled": "yes"}], indirect=True)
def test_a_cluster_that_is_down_is_unavailable(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine:
        for verb in (lambda: engine.accept([job("a")]), lambda: taken(engine), engine.reap_expired):
            with pytest.raises(BackendUnavailable):
                verb()
        with own_server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
            until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "the cluster to be up")
        assert engine.accept([job("a")])[0].created


def test_keys_on_their_way_to_another_node_are_unavailable_until_they_are_there(cluster: Cluster) -> None:
    with opened(cluster.ours.url) as engine, cluster.ours.client() as ours, cluster.others.client() as others:
        slot = slot_of(ours)
        engine.check()
        ours.flushall()
        there, here = id_of(others), id_of(ours)
        others.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
        ours.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
        with pytest.raises(BackendUnavailable):
            engine.accept([job("a")])
        for client in (others, ours):
            client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
        assert engine.accept([job("a")])[0].created


def test_a_replica_that_has_lost_its_master_is_unavailable(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine, own_server.client() as client:
        engine.check()
        client.config_set("replica-serve-stale-data", "no")
        client.replicaof("127.0.0.1", free_port())
        for verb in (engine.counts, lambda: taken(engine), lambda: engine.accept([job("a")])):
            with pytest.raises(BackendUnavailable, match="MASTER"):
                verb()
        client.replicaof("NO", "ONE")
        assert engine.accept([job("a")])[0].created


@pytest.mark.parametrize(
    "own_server",
    [{"appendonly": "no", "key-load-delay": "5000", "loading-process-events-interval-bytes": "1024"}],
    indirect=True,
)
def test_a_server_that_still_loads_its_file_is_unavailable(own_server: RedisServer) -> None:
    with opened(own_server.url) as engine:
        engine.accept([job() for _ in range(500)])
        with own_server.client() as client:
            client.save()
        own_server.kill()
        starting = threading.Thread(target=own_server.start, daemon=True)
        starting.start()
        until(lambda: "loading" in _refusal(engine).lower(), "it to say that it loads")
        with own_server.client() as client:
            client.config_set("key-load-delay", 0)
        starting.join(60)
        assert engine.counts() == {"default": {JobState.PENDING: 500}}


def _refusal(engine: RedisEngine) -> str:
    with pytest.raises(BackendUnavailable) as refusal:
        engine.counts()
    return str(refusal.value)


def test_a_drain_survives_a_server_that_forgets_its_scripts_and_hangs_up(own_server: RedisServer) -> None:
    """The worker repeats calls that failed; every job is done exactly once."""
    ids = [f"job{number:04}" for number in range(300)]
    done: list[str] = []
    with opened(own_server.url) as engine:
        engine.accept([job(id) for id in ids])

        def drain() -> None:
            settlements: list[Ack] = []
            while len(done) < len(ids):
                token = new_owner_token()
                while True:
                    with suppress(BackendUnavailable):
                        answers, leases = engine.exchange(settlements, "default", 7, owner_token=token)
                        break
                assert all(answers)
                done.extend(one.lease.id for one in settlements)
                settlements = [Ack(lease=lease) for lease in leases]

        draining = threading.Thread(target=drain, daemon=True)
        draining.start()
        disturbed = 0
        with own_server.client() as client:
            while draining.is_alive():
                client.script_flush()
                disturbed += client.client_kill_filter(_type="normal", skipme=True)
        draining.join(60)
        assert disturbed > 10
        assert sorted(done) == ids
        assert engine.counts() == {"default": {JobState.COMPLETED: len(ids)}}
        with own_server.client() as client:
            check_indexes(client)
