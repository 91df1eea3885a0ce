"""Slots and unique keys on Redis: damaged keys, rebuilt indexes, full servers, and how much work one call does."""

import itertools
import threading
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.clock import duration_us
from holdfast.errors import UniqueConflict
from holdfast.queues.contract import PROMOTION_S, new_owner_token
from holdfast.queues.contract.slots import MAX_PROMOTIONS, PROMOTE_AT_ONCE
from holdfast.queues.engines.redis.engine import RedisEngine
from holdfast.queues.engines.redis.slots import PROMOTE
from holdfast.values import (
    Abandon,
    Ack,
    CancelAnswer,
    DeadReason,
    Entered,
    Entry,
    EntryOutcome,
    JobEnvelope,
    JobFilter,
    JobLease,
    JobState,
    Nack,
    OnConflict,
    Put,
    Release,
    Settlement,
    Slot,
    Unique,
)

from ..servers.redis import RedisServer
from ..servers.running import started
from .redis_site import PREFIX, check_indexes, job, opened

BASE = f"{{{PREFIX}}}:"
KEY = Slot(name="key:a")
PATIENCE_S = 20.0
FAR = 2**63 - 1


@pytest.fixture(scope="module")
def one_server() -> Generator[RedisServer]:
    server = started(lambda: RedisServer())
    assert isinstance(server, RedisServer)
    yield server
    server.close()


@pytest.fixture
def client(one_server: RedisServer) -> Generator[Any]:
    with one_server.client() as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", "0")


@pytest.fixture
def engine(one_server: RedisServer, client: Any) -> Generator[RedisEngine]:
    with opened(one_server.url) as engine:
        yield engine


def taken(engine: RedisEngine, limit: int = 10, *, queue: str = "default") -> list[JobLease]:
    return engine.claim(queue, limit, owner_token=new_owner_token())


def enter(engine: RedisEngine, leases: Sequence[JobLease], *slots: Slot) -> list[Entered]:
    return engine.enter([Entry(lease=lease, slots=slots or (KEY,)) for lease in leases])


def hold(engine: RedisEngine, id: str, *slots: Slot) -> JobLease:
    """Let a job hold slots."""
    engine.accept([job(id)])
    [lease] = taken(engine)
    assert [answer.outcome for answer in enter(engine, [lease], *slots)] == [EntryOutcome.ENTERED]
    return lease


def block(engine: RedisEngine, *ids: str, slot: Slot = KEY, queue: str = "default") -> None:
    """Let jobs wait for a slot."""
    engine.accept([job(id, queue=queue) for id in ids])
    answers = enter(engine, taken(engine, len(ids), queue=queue), slot)
    assert {answer.outcome for answer in answers} == {EntryOutcome.BLOCKED}


def leave(engine: RedisEngine, lease: JobLease, *slots: Slot) -> None:
    names = tuple(slot.name for slot in slots or (KEY,))
    assert engine.settle([Ack(lease=lease, leaves=names)]) == [True]


def damage(client: Any, name: str) -> None:
    """Replace a key by one of another type."""
    client.delete(f"{BASE}{name}")
    client.set(f"{BASE}{name}", "junk")


def work(engine: RedisEngine, *slots: Slot) -> list[str]:
    """Run jobs of these slots as a worker does, until there are no more. Returns their ids."""
    done: list[str] = []
    names = tuple(slot.name for slot in slots or (KEY,))
    for _ in range(20):
        engine.tidy()
        engine.repair()
        leases = taken(engine)
        answers = enter(engine, leases, *slots) if leases else []
        inside = [lease for lease, one in zip(leases, answers, strict=True) if one.outcome is EntryOutcome.ENTERED]
        assert all(engine.settle([Ack(lease=one, leaves=names) for one in inside]))
        done += [lease.id for lease in inside]
        if not leases:
            return done
    raise AssertionError("the queue is not drained")


def unique(id: str, key: str = "k", *, reject: bool = False) -> JobEnvelope:
    return replace(job(id), unique=Unique(key=key, on_conflict=OnConflict.REJECT if reject else OnConflict.IGNORE))


def commands(client: Any) -> int:
    return sum(told["calls"] for name, told in client.info("commandstats").items() if name != "cmdstat_info")


def test_the_scripts_have_the_limits_of_the_contract() -> None:
    limits = f"{duration_us(PROMOTION_S)}, {PROMOTE_AT_ONCE}, {MAX_PROMOTIONS}\n"
    assert f"PROMOTION_US, PROMOTE_AT_ONCE, MAX_PROMOTIONS = {limits}" in PROMOTE.source.decode()


# Damaged keys

INDEXES = ("waiting:key:a:default", "queues:key:a", "waited", "used", "blocked:default", "slots")


@pytest.mark.parametrize("index", INDEXES)
def test_blocked_jobs_survive_the_damage_of_an_index(engine: RedisEngine, client: Any, index: str) -> None:
    first = hold(engine, "first")
    block(engine, "second", "third")
    counts, slots = engine.counts(), engine.slots()
    damage(client, index)
    assert engine.counts() == counts
    engine.slots()
    engine.tidy()
    assert (engine.counts(), engine.slots()) == (counts, slots)
    assert engine.repair() == 0
    check_indexes(client)
    leave(engine, first)
    assert work(engine) == ["second", "third"]
    check_indexes(client)


@pytest.mark.parametrize("key", [*INDEXES, "places:key:a"])
def test_a_holder_leaves_despite_a_damaged_key(engine: RedisEngine, client: Any, key: str) -> None:
    first = hold(engine, "first")
    block(engine, "second", "third")
    damage(client, key)
    leave(engine, first)
    assert work(engine) == ["second", "third"]
    check_indexes(client)


@pytest.mark.parametrize("key", [*INDEXES, "places:key:a"])
def test_jobs_enter_and_are_blocked_despite_a_damaged_key(engine: RedisEngine, client: Any, key: str) -> None:
    engine.accept([job(id) for id in ("first", "second", "third")])
    leases = taken(engine)
    damage(client, key)
    outcomes = [answer.outcome for answer in enter(engine, leases)]
    assert outcomes == [EntryOutcome.ENTERED, EntryOutcome.BLOCKED, EntryOutcome.BLOCKED]
    leave(engine, leases[0])
    assert work(engine) == ["second", "third"]
    check_indexes(client)


@pytest.mark.parametrize("key", INDEXES)
def test_an_operator_changes_blocked_jobs_despite_a_damaged_key(engine: RedisEngine, client: Any, key: str) -> None:
    hold(engine, "first")
    block(engine, "second", "third", "fourth")
    damage(client, key)
    assert engine.cancel("second") is CancelAnswer.CANCELLED
    assert engine.reschedule([job("third", delay=60)]) == [True]
    engine.tidy()
    states = {JobState.PROCESSING: 1, JobState.CANCELLED: 1, JobState.SCHEDULED: 1, JobState.BLOCKED: 1}
    assert engine.counts() == {"default": states}
    check_indexes(client)


PLACES = {
    "empty": "",
    "a text": "junk",
    "of bytes": b"\xff\xfe",
    "with absurd numbers": f"{FAR}{FAR} {FAR}{FAR}  0123456789abcdefdefault",
    "without a claim": "1 1  ",
    "promoted for centuries": f"0 1 {FAR} default",
    "promoted for a year": "0 1 1800000000000000 default",
    "of another claim": "1 1  0123456789abcdefdefault",
}


@pytest.mark.parametrize("stored", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("of", ["ghost", "second", b"\xff"])
def test_a_damaged_place_does_not_count(engine: RedisEngine, client: Any, stored: Any, of: Any) -> None:
    first = hold(engine, "first")
    block(engine, "second")
    leave(engine, first)
    client.hset(f"{BASE}places:{KEY.name}", of, stored)
    engine.slots()
    engine.repair()
    assert work(engine) == ["second"]
    engine.prune()
    assert client.exists(f"{BASE}places:{KEY.name}") == 0


@pytest.mark.parametrize("member", ["", "x", "40000000000000001ghost", b"\xff" * 30, "0" * 17, "9" * 17 + "first"])
def test_an_entry_of_no_waiting_job_does_not_stop_the_others(
    engine: RedisEngine, client: Any, member: str | bytes
) -> None:
    first = hold(engine, "first")
    block(engine, "second")
    client.zadd(f"{BASE}waiting:{KEY.name}:default", {member: 0})
    engine.slots()
    leave(engine, first)
    assert work(engine) == ["second"]
    engine.repair()
    assert engine.slots() == []
    check_indexes(client)


def test_many_entries_of_no_waiting_jobs_do_not_stop_the_others(engine: RedisEngine, client: Any) -> None:
    first = hold(engine, "first")
    block(engine, "second")
    client.zadd(f"{BASE}waiting:{KEY.name}:default", {f"0{0:016}ghost{number}": 0 for number in range(100)})
    leave(engine, first)
    assert work(engine) == ["second"]


@pytest.mark.parametrize("state", ["3", "31", "31:x", f"31:{FAR} 1", f"31:{FAR} {FAR}{FAR} key:a", "31:1 1 key:b"])
def test_a_blocked_job_whose_slot_is_damaged_stops_no_other(engine: RedisEngine, client: Any, state: str) -> None:
    first = hold(engine, "first")
    block(engine, "second", "third")
    client.hset(f"{BASE}job:second", "state", state)
    assert len(engine.find(JobFilter(states=(JobState.BLOCKED,))).jobs) == 2
    assert engine.get("second")
    engine.slots()
    leave(engine, first)
    assert "third" in work(engine)


def test_a_blocked_job_without_a_record_is_dead_lettered(engine: RedisEngine, client: Any) -> None:
    first = hold(engine, "first")
    block(engine, "second", "third")
    damage(client, "job:second")
    leave(engine, first)
    assert work(engine) == ["third"]
    assert engine.counts() == {"default": {JobState.COMPLETED: 2, JobState.DEAD: 1}}


@pytest.mark.parametrize("fence", [float("inf"), float("-inf"), 1e300, -5, 0.5])
def test_an_absurd_fence_is_replaced(engine: RedisEngine, client: Any, fence: float) -> None:
    client.zadd(f"{BASE}slots", {KEY.name: fence})
    engine.accept([job("a")])
    [answer] = enter(engine, taken(engine))
    assert answer.outcome is EntryOutcome.ENTERED
    assert 0 < answer.fence < 9e15


@pytest.mark.parametrize("stored", ["", "junk", b"\xff", f"{FAR}{FAR} ghost", "1", " a"])
def test_a_damaged_unique_key_is_free(engine: RedisEngine, client: Any, stored: str | bytes) -> None:
    client.hset(f"{BASE}uniques", "k", stored)
    assert engine.accept([unique("a")])[0].created
    client.hset(f"{BASE}uniques", "other", stored)
    assert engine.records.delete_unused() >= 1
    assert engine.accept([unique("b")])[0].id == "a"


def test_unique_jobs_are_accepted_despite_damaged_keys(engine: RedisEngine, client: Any) -> None:
    for name in ("uniques", "number", "jobs", "queues", "ready:default:5"):
        damage(client, name)
        assert engine.accept([unique(f"job-{name}", name)])[0].created
        assert not engine.accept([unique("again", name)])[0].created
    engine.tidy()
    check_indexes(client)


def test_a_job_whose_id_is_not_utf_8_enters_and_leaves(engine: RedisEngine, client: Any) -> None:
    engine.accept([job("bad"), job("good")])
    for kind in ("job", "wire"):
        client.rename(f"{BASE}{kind}:bad", f"{BASE}{kind}:".encode() + b"\xff")
    for index in ("ready:default:5", "jobs"):
        client.zadd(f"{BASE}{index}", {b"\xff": client.zscore(f"{BASE}{index}", "bad")})
        client.zrem(f"{BASE}{index}", "bad")
    bad, good = taken(engine)
    assert [one.outcome for one in enter(engine, [bad, good])] == [EntryOutcome.ENTERED, EntryOutcome.BLOCKED]
    assert engine.settle([Abandon(lease=bad, reason=DeadReason.UNDECODABLE, leaves=(KEY.name,))]) == [True]
    assert work(engine) == ["good"]


# How much work one call does


def test_jobs_that_wait_cost_nothing_until_a_place_is_free(engine: RedisEngine, client: Any) -> None:
    first = hold(engine, "first")
    costs: list[list[int]] = []
    for batch in (1, 1000, 1000):
        block(engine, *(f"{batch}-{len(costs)}-{number:04}" for number in range(batch)))
        numbers = [commands(client)]
        engine.repair()
        numbers.append(commands(client))
        leave(engine, first)
        numbers.append(commands(client))
        costs.append([after - before for before, after in itertools.pairwise(numbers)])
        [first] = taken(engine)
        assert enter(engine, [first])[0].outcome is EntryOutcome.ENTERED
    assert [repair for repair, _ in costs] == [costs[0][0]] * 3
    assert costs[1] == costs[2]
    assert costs[2][1] < costs[0][1] + PROMOTE_AT_ONCE + 10


def test_one_call_promotes_a_bounded_number_of_jobs(engine: RedisEngine) -> None:
    guarded = Slot(name="idem:a", unless=("done", "a"))
    first = hold(engine, "first", guarded)
    for batch in range(3):
        block(engine, *(f"{batch}-{number:04}" for number in range(500)), slot=guarded)
    mark = Put(kind="done", key="a")
    assert engine.settle([Ack(lease=first, leaves=(guarded.name,), writes=(mark,))]) == [True]
    [second] = taken(engine)
    assert enter(engine, [second], guarded)[0].outcome is EntryOutcome.SPARED
    waiting = engine.counts()["default"][JobState.PENDING]
    assert MAX_PROMOTIONS <= waiting < MAX_PROMOTIONS + PROMOTE_AT_ONCE
    assert engine.counts()["default"][JobState.BLOCKED] == 1499 - waiting
    [third] = taken(engine, 1)
    assert enter(engine, [third], guarded)[0].outcome is EntryOutcome.SPARED
    assert JobState.BLOCKED not in engine.counts()["default"]


def test_repair_checks_every_slot_a_page_at_a_time(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.jobs.CHECKED_SLOTS", 3)
    monkeypatch.setattr("holdfast.queues.engines.redis.jobs.REPAIRED_SLOTS", 2)
    for number in range(10):
        slot = Slot(name=f"key:{number}")
        lease = hold(engine, f"holder{number}", slot)
        block(engine, f"waiter{number}", slot=slot)
        # As if the worker had died: the lease ends, and the slot is not left.
        assert engine.settle([Release(lease=lease, delay=60)]) == [True]
    assert engine.repair() == 10
    assert engine.repair() == 0


def test_slots_are_listed_a_page_at_a_time(engine: RedisEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.records.SLOTS_AT_ONCE", 3)
    names = [f"key:{number:02}" for number in range(10)]
    leases = [hold(engine, name, Slot(name=name)) for name in names]
    engine.settle([Release(lease=lease, delay=60) for lease in leases[2:8]])  # their places no longer count
    assert [slot.name for slot in engine.slots()] == names[:2] + names[8:]
    assert [slot.name for slot in engine.slots(limit=3)] == [*names[:2], names[8]]
    assert [slot.name for slot in engine.slots(after=names[1], limit=1)] == [names[8]]
    assert [slot.name for slot in engine.slots([names[9], names[3], names[0]])] == [names[0], names[9]]


def test_unused_rows_are_deleted_a_page_at_a_time(
    engine: RedisEngine, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queues.engines.redis.records.PRUNE_BATCH", 2)
    names = [f"key:{number}" for number in range(7)]
    leases = [hold(engine, name, Slot(name=name)) for name in names]
    engine.accept([unique(f"unique{number}", f"k{number}") for number in range(5)])
    engine.settle([Release(lease=lease, delay=60) for lease in leases[1:]])
    for number in range(5):
        engine.cancel(f"unique{number}")
    client.zadd(f"{BASE}slots", dict.fromkeys(names, 1))
    assert engine.records.delete_unused() == 5 + 6 + 6
    assert client.zrange(f"{BASE}slots", 0, -1) == [names[0].encode()]
    check_indexes(client)


# Settlements


def test_a_promotion_wakes_a_worker_of_its_queue(engine: RedisEngine, one_server: RedisServer, client: Any) -> None:
    first = hold(engine, "first")
    block(engine, "mail", queue="mail")
    assert taken(engine, queue="mail") == []
    found: list[JobLease] = []

    def wait() -> None:
        with opened(one_server.url) as worker:
            found.extend(worker.claim("mail", 1, owner_token=new_owner_token(), wait=PATIENCE_S))

    waiting = threading.Thread(target=wait)
    waiting.start()
    leave(engine, first)
    waiting.join(PATIENCE_S)
    assert [lease.id for lease in found] == ["mail"]


@pytest.mark.parametrize("reject", [False, True])
def test_a_settled_job_may_enqueue_the_next_one_with_its_own_key(engine: RedisEngine, reject: bool) -> None:
    engine.accept([unique("a", reject=reject)])
    [lease] = taken(engine)
    assert engine.settle([Ack(lease=lease, enqueues=(unique("b", reject=reject),))]) == [True]
    assert engine.accept([unique("c")])[0].id == "b"
    [lease] = taken(engine)
    assert engine.settle([Nack(lease=lease, enqueues=(unique("d"),))]) == [True]
    assert [one.id for one in taken(engine)] == ["b"]


def test_of_unique_jobs_that_settlements_enqueue_one_is_stored(engine: RedisEngine, client: Any) -> None:
    engine.accept([job("a"), job("b"), job("c"), unique("there", "other")])
    a, b, c, there = taken(engine)
    ends: list[Settlement] = [
        Nack(lease=a, delay=60, enqueues=(unique("x"), job("plain"))),
        Ack(lease=b, enqueues=(unique("y"), unique("z", "other"))),
    ]
    assert engine.settle(ends) == [True, True]
    assert engine.settle(ends) == [True, True]
    assert sorted(view.id for view in engine.find(JobFilter(states=(JobState.PENDING,))).jobs) == ["plain", "x"]
    with pytest.raises(UniqueConflict) as caught:
        engine.exchange(
            [Ack(lease=there), Ack(lease=c, enqueues=(unique("refused", reject=True),))],
            "default",
            1,
            owner_token=new_owner_token(),
        )
    assert (caught.value.key, caught.value.job_id) == ("k", "x")
    with pytest.raises(UniqueConflict):
        engine.settle([Ack(lease=c, enqueues=(unique("refused", reject=True),))])
    assert engine.settle([Ack(lease=there), Ack(lease=c)]) == [True, True]
    check_indexes(client)


def test_a_key_belongs_to_no_job_of_a_refused_settlement(engine: RedisEngine) -> None:
    engine.accept([job("a"), job("b")])
    a, b = taken(engine)
    # Of two verdicts on a job the first counts: the second one enqueues nothing.
    ends: list[Settlement] = [
        Ack(lease=a),
        Nack(lease=a, enqueues=(unique("x"),)),
        Ack(lease=b, enqueues=(unique("y"),)),
    ]
    assert engine.settle(ends) == [True, False, True]
    assert [lease.id for lease in taken(engine)] == ["y"]


def test_a_cancellation_request_ends_with_the_job_that_would_be_blocked(engine: RedisEngine, client: Any) -> None:
    hold(engine, "first")
    engine.accept([job("second")])
    [lease] = taken(engine)
    assert engine.cancel("second") is CancelAnswer.REQUESTED
    assert enter(engine, [lease])[0].outcome is EntryOutcome.BLOCKED
    assert engine.counts()["default"][JobState.CANCELLED] == 1
    check_indexes(client)
    engine.replay("second")
    history = engine.get("second")
    assert history
    assert not history.job.cancel_requested
    check_indexes(client)


def test_a_job_that_is_asked_about_twice_is_blocked_once(engine: RedisEngine, client: Any) -> None:
    hold(engine, "first")
    engine.accept([job("second"), job("third")])
    second, third = taken(engine)
    assert {one.outcome for one in enter(engine, [second, second])} == {EntryOutcome.BLOCKED}
    check_indexes(client)
    assert engine.ack(third)


def test_a_full_server_lets_holders_leave_and_waiting_jobs_enter(engine: RedisEngine, client: Any) -> None:
    first = hold(engine, "first")
    block(engine, "second")
    client.config_set("maxmemory", "1")
    leave(engine, first)
    assert work(engine) == ["second"]
    assert engine.slots() == []
